//! The whole fleet in one process: coordinator and interaction worker behind their usual doors, an in-process bus, and
//! SQLite in a folder that this process holds alone.
//!
//! State is in the folder only: kill the process at any moment, start it again on the same folder, and it goes on.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use ditto_bus::{Bus, BusError, Message, local::LocalBus};
use ditto_contracts::{
    SessionId,
    wire::{Headers, ledger::RenewRequest, subjects},
};
use ditto_coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorError, Handle, Plans,
    store::{Store, sqlite::SqliteStore},
};
use ditto_interaction::{Interaction, InteractionConfig};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    data_dir::DataDir,
    exit::{Failure, chain},
};

/// How long the start waits for the first announcement of the worker.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(10);
/// How long after its lease a silent session would be declared dead, in milliseconds: ten years, which is never. The
/// folder has one holder, and whoever holds it next declares the sessions before it dead at once. So nobody needs to
/// guess from silence, and a laptop may sleep for as long as it likes.
const GRACE_MS: u64 = 10 * 365 * 86_400_000;

/// What an embedded fleet is made of.
#[derive(Clone)]
pub struct EmbeddedConfig {
    /// Folder of the ledger; created if missing, held until [`Embedded::stop`].
    pub data_dir: PathBuf,
    /// The coordinator. Its instance and graces are set by the folder.
    pub coordinator: CoordinatorConfig,
    /// The interaction worker.
    pub interaction: InteractionConfig,
    /// Plans written in Rust, besides the definitions in the ledger.
    pub plans: Plans,
}

enum Ended {
    Coordinator(Result<(), CoordinatorError>),
    Worker(Result<(), String>),
}

/// A running embedded fleet. Dropping it stops everything at once, as a kill would; [`Embedded::stop`] is orderly.
pub struct Embedded {
    handle: Handle,
    bus: Arc<LocalBus>,
    store: Arc<SqliteStore>,
    tasks: JoinSet<Ended>,
    stop_worker: CancellationToken,
    stop_coordinator: CancellationToken,
    data_dir: DataDir,
}

impl Embedded {
    /// Takes the folder, opens the ledger, starts everything, and waits until it serves.
    ///
    /// # Errors
    /// Another process holds the folder, or the ledger cannot be opened.
    pub async fn start(config: EmbeddedConfig) -> Result<Self, Failure> {
        let EmbeddedConfig { data_dir, mut coordinator, interaction, plans } = config;
        let data_dir = DataDir::take(&data_dir)?;
        // The ledger has one holder, wherever its folder is moved to.
        let instance = "embedded";
        // Before anything runs: a workspace or a sink that cannot be used is a mistake in the configuration.
        let worker = Interaction::from_config(interaction.with_instance(format!("{instance}#interaction"))).build();
        let worker = worker.map_err(|error| {
            Failure::usage(format!("workers.interaction: {}", chain(&error))).code("CONFIG_INVALID")
        })?;
        coordinator.name = "embedded".into();
        coordinator.instance = Some(format!("{instance}#coordinator"));
        coordinator.session_grace_ms = GRACE_MS;
        coordinator.worker_grace_ms = GRACE_MS;

        let file = data_dir.ledger();
        let opened = SqliteStore::open(&file).await;
        let store = Arc::new(opened.map_err(|error| {
            Failure::unreachable(format!("ledger {}: {error}", file.display())).code("LEDGER_UNAVAILABLE")
        })?);
        let bus = LocalBus::new();
        let opened = Coordinator::open(coordinator, store.clone(), bus.clone(), plans).await;
        let coordinator = opened.map_err(|error| Failure::unreachable(format!("coordinator: {error}")))?;
        let handle = coordinator.handle();

        let (stop_worker, stop_coordinator) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        let stop = stop_coordinator.clone();
        tasks.spawn(async move { Ended::Coordinator(coordinator.run(stop).await) });
        // Only now is there somebody whom the worker could ask for a session.
        let early = tokio::select! {
            () = serves_the_ledger(&handle, bus.as_ref()) => None,
            ended = tasks.join_next() => Some(failure_of(ended)),
        };
        if let Some(failure) = early {
            store.close().await;
            return Err(failure);
        }
        let (doorway, stop) = (bus.clone(), stop_worker.clone());
        tasks.spawn(async move { Ended::Worker(worker.run(doorway, stop).await.map_err(|error| chain(&error))) });
        let mut embedded = Self { handle, bus, store, tasks, stop_worker, stop_coordinator, data_dir };
        let serves = async {
            let mut changes = embedded.handle.catalogue().subscribe();
            while embedded.handle.catalogue().all().is_empty() {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        let ended = tokio::select! {
            () = serves => None,
            // Runs wait for a worker by themselves; it only should not look like a hang.
            () = tokio::time::sleep(ANNOUNCED_WITHIN) => None,
            ended = embedded.tasks.join_next() => Some(ended),
        };
        if let Some(ended) = ended {
            let failure = failure_of(ended);
            embedded.stop().await;
            return Err(failure);
        }
        Ok(embedded)
    }

    /// What to do with the coordinator: submit, wait, signal, serve its API.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The bus inside this process.
    pub fn bus(&self) -> &Arc<LocalBus> {
        &self.bus
    }

    /// The ledger.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// The folder, absolute.
    pub fn data_dir(&self) -> &std::path::Path {
        self.data_dir.path()
    }

    /// Waits until a part ends by itself, which none should.
    ///
    /// # Cancel safety
    /// Cancelling loses nothing.
    pub async fn ended(&mut self) -> Failure {
        failure_of(self.tasks.join_next().await)
    }

    /// Lets the work in hand end (bounded by the worker's drain time), gives runs back, closes the ledger and lets go of
    /// the folder.
    pub async fn stop(mut self) {
        // The worker first: what it holds can only be settled while the coordinator is there.
        self.stop_worker.cancel();
        let mut coordinator_ended = false;
        while !self.tasks.is_empty() {
            match self.tasks.join_next().await {
                Some(Ok(Ended::Worker(outcome))) => {
                    if let Err(error) = outcome {
                        warn!(error, "the worker did not end in order");
                    }
                    self.stop_coordinator.cancel();
                }
                Some(Ok(Ended::Coordinator(outcome))) => {
                    if let Err(error) = outcome {
                        warn!(%error, "the coordinator did not end in order");
                    }
                    coordinator_ended = true;
                }
                Some(Err(error)) => {
                    warn!(%error, "a part of the fleet failed");
                    self.stop_coordinator.cancel();
                }
                None => break,
            }
            if coordinator_ended {
                // Nobody is left whom the worker could wait for.
                self.tasks.abort_all();
            }
        }
        self.bus.close().await;
        self.store.close().await;
        debug!("the embedded fleet has stopped");
    }
}

/// Waits until requests of workers are answered, which is a moment after the coordinator says that it is ready.
async fn serves_the_ledger(handle: &Handle, bus: &LocalBus) {
    handle.ready().await;
    let request = RenewRequest { session: SessionId::generate(), held: Vec::new() };
    let body: Bytes = serde_json::to_vec(&request).unwrap_or_default().into();
    loop {
        // Renewing a session that does not exist changes nothing.
        let message = Message { subject: subjects::LEDGER_RENEW.into(), headers: Headers::new(), body: body.clone() };
        match bus.request(message, Duration::from_secs(1)).await {
            Err(BusError::NoResponders) => tokio::time::sleep(Duration::from_millis(2)).await,
            Ok(_) | Err(_) => return,
        }
    }
}

fn failure_of(ended: Option<Result<Ended, tokio::task::JoinError>>) -> Failure {
    let reason = match ended {
        Some(Ok(Ended::Coordinator(Ok(())))) => "the coordinator stopped".into(),
        Some(Ok(Ended::Coordinator(Err(error)))) => format!("the coordinator stopped: {error}"),
        Some(Ok(Ended::Worker(Ok(())))) => "the worker stopped".into(),
        Some(Ok(Ended::Worker(Err(error)))) => format!("the worker stopped: {error}"),
        Some(Err(error)) if error.is_panic() => "a part of the fleet failed; what it did is in the ledger".into(),
        Some(Err(_)) | None => "the fleet is stopping".into(),
    };
    Failure::unreachable(reason).code("FLEET_STOPPED").hint("start it again: it goes on where it was")
}
