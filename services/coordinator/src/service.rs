//! The coordinator service: opens its session, starts its parts, and stops them in order.

use std::{sync::Arc, time::Duration};

use ditto_bus::Bus;
use ditto_contracts::{
    SessionId, WireError,
    wire::{SubmitReply, subjects},
};
use tokio::{
    sync::{broadcast, mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    catalogue::Catalogue,
    claims,
    config::CoordinatorConfig,
    core::{Core, LedgerClock, RunChanged},
    dispatcher::{Dispatcher, WakeNotice},
    driver::{AdvanceVerb, Driver, DriverSender, Msg, SettleVerb, ring},
    intake::{Intake, Submission, SubmitVerb},
    lanes::Lanes,
    plans::Plans,
    results,
    store::{Changed, NewSession, SessionRole, Store, StoreError},
    streams,
    sweepers::Sweepers,
};

/// Why a coordinator stopped on its own.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// The ledger cannot be used.
    #[error("ledger: {0}")]
    Store(#[from] StoreError),
    /// The bus cannot be used.
    #[error("bus: {0}")]
    Bus(#[from] ditto_bus::BusError),
    /// Its session was declared dead: another coordinator has taken over. Start it again.
    #[error("session was declared dead; start the process again")]
    SessionDead,
}

/// What the HTTP interface and an embedding program do with a running coordinator. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) core: Core,
    intake: Intake,
    driver: DriverSender,
    ready: watch::Receiver<bool>,
}

impl Handle {
    /// Stores a run and starts it; answers after the commit. Goes on even if the caller goes away.
    ///
    /// # Errors
    /// When the submission is refused or the ledger does not answer.
    pub async fn submit(&self, submission: Submission) -> Result<SubmitReply, WireError> {
        let intake = self.intake.clone();
        // Its own task: a caller that goes away between commit and adoption must not orphan the run.
        let submitted = tokio::spawn(async move { intake.submit(submission).await }).await;
        submitted.unwrap_or_else(|_| {
            Err(WireError::new(ditto_contracts::ErrorClass::Internal, "SUBMIT_FAILED", "submission failed"))
        })
    }

    /// The ledger.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.core.store
    }

    /// What live workers serve.
    pub fn catalogue(&self) -> &Catalogue {
        &self.core.catalogue
    }

    /// The programs this process drives.
    pub fn plans(&self) -> &Plans {
        &self.core.plans
    }

    /// Session of this process.
    pub fn session(&self) -> &SessionId {
        &self.core.session
    }

    /// New versions of runs driven by this process. A slow reader loses some; read the ledger then.
    pub fn watch(&self) -> broadcast::Receiver<RunChanged> {
        self.core.news.subscribe()
    }

    /// Wakes whoever drives a run after something was written for it (signal, cancel, resolution).
    pub async fn ring(&self, changed: &Changed) {
        ring(&self.core, &self.driver, vec![(changed.run.clone(), changed.owner.clone())]).await;
    }

    /// Wakes whoever drives this run.
    pub async fn ring_run(&self, run: &ditto_contracts::RunId, owner: Option<SessionId>) {
        ring(&self.core, &self.driver, vec![(run.clone(), owner)]).await;
    }

    /// Waits until the coordinator serves.
    pub async fn ready(&self) -> bool {
        self.ready.clone().wait_for(|ready| *ready).await.is_ok()
    }

    /// Whether it serves now.
    pub fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }
}

/// A coordinator that is about to run.
pub struct Coordinator {
    handle: Handle,
    tasks: JoinSet<()>,
    driver: Driver,
    driver_rx: mpsc::UnboundedReceiver<Msg>,
    dispatcher: Dispatcher,
    ready: watch::Sender<bool>,
    abandon: CancellationToken,
}

impl Coordinator {
    /// Opens the session and prepares all parts; nothing runs before [`Coordinator::run`].
    ///
    /// # Errors
    /// When the ledger cannot be reached.
    pub async fn open(
        config: CoordinatorConfig,
        store: Arc<dyn Store>,
        bus: Arc<dyn Bus>,
        plans: Plans,
    ) -> Result<Self, CoordinatorError> {
        let session = SessionId::generate();
        let lease = store
            .session_open(&NewSession {
                session: session.clone(),
                role: SessionRole::Coordinator,
                kind: "coordinator".into(),
                name: config.name.clone(),
                build: env!("CARGO_PKG_VERSION").into(),
                instance: config.instance.clone(),
                ttl_ms: config.session_ttl_ms,
            })
            .await?;
        let core = Core {
            config: Arc::new(config),
            store,
            bus,
            session: session.clone(),
            catalogue: Catalogue::default(),
            plans,
            clock: LedgerClock::new(lease.now_ms),
            news: broadcast::channel(16_384).0,
        };
        core.read_catalogue().await?;
        let mut tasks = JoinSet::new();
        let abandon = CancellationToken::new();
        let (driver_tx, driver_rx) = mpsc::unbounded_channel();
        let (store, queue) = (&core.store, core.config.runs_max.min(16_384));
        let lanes = core.config.commit_lanes;
        let verb = AdvanceVerb { session: session.clone(), driver: driver_tx.clone() };
        let advance = Lanes::start(&mut tasks, store, verb, lanes, queue, &abandon);
        let verb = SettleVerb { core: core.clone(), driver: driver_tx.clone() };
        let settle = Lanes::start(&mut tasks, store, verb, 1, queue, &abandon);
        let verb = SubmitVerb { session: session.clone() };
        let submit = Lanes::start(&mut tasks, store, verb, lanes.min(2), 1_024, &abandon);
        let dispatcher = Dispatcher::start(&mut tasks, core.bus.clone(), &session);
        let driver = Driver::new(core.clone(), driver_tx.clone(), advance, settle, dispatcher.clone());
        let (ready_tx, ready) = watch::channel(false);
        let intake = Intake::new(core.clone(), driver_tx.clone(), submit, dispatcher.backlog());
        let handle = Handle { core, intake, driver: driver_tx, ready };
        Ok(Self { handle, tasks, driver, driver_rx, dispatcher, ready: ready_tx, abandon })
    }

    /// For the HTTP interface and embedding programs.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Runs until `shutdown`, then gives its runs back and closes its session.
    ///
    /// # Errors
    /// When its session was declared dead.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), CoordinatorError> {
        let Self { handle, mut tasks, driver, driver_rx, dispatcher, ready, abandon } = self;
        let core = handle.core.clone();
        let stop = shutdown.child_token();
        prepare_streams(&core, &stop).await;
        let mut parts = JoinSet::new();
        parts.spawn(claims::run(core.clone(), stop.clone()));
        parts.spawn(results::run(core.clone(), handle.driver.clone(), stop.clone()));
        parts.spawn(handle.intake.clone().serve_requests(stop.clone()));
        parts.spawn(handle.intake.clone().serve_inbox(stop.clone()));
        parts.spawn(doorbells(core.clone(), handle.driver.clone(), stop.clone()));
        parts.spawn(catalogue_watch(core.clone(), handle.driver.clone(), stop.clone()));
        let sweepers = Sweepers {
            core: core.clone(),
            driver: handle.driver.clone(),
            dispatcher: dispatcher.clone(),
            live_coordinators: Default::default(),
            reopened: Default::default(),
        };
        parts.spawn(sweepers.run(stop.clone()));
        let driver = tokio::spawn(driver.run(driver_rx));
        let _ = ready.send(true); // nobody may be waiting
        info!(session = %core.session, "coordinator serves");

        let dead = keep_session(&core, &stop).await;
        let _ = ready.send(false); // nobody may be waiting
        stop.cancel();
        if dead {
            error!("session was declared dead; this coordinator stops");
        }
        while parts.join_next().await.is_some() {}
        let _ = handle.driver.send(Msg::Drain); // it may have ended already
        // The last commits are bounded by the ledger's own time limits; after that they are abandoned and read back by
        // the next owner.
        let deadline = tokio::spawn({
            let abandon = abandon.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(10)).await;
                abandon.cancel();
            }
        });
        if let Err(error) = driver.await {
            error!(%error, "the driver failed; its runs are taken over");
        }
        deadline.abort();
        abandon.cancel();
        drop((handle, dispatcher));
        while tasks.join_next().await.is_some() {}
        if dead {
            return Err(CoordinatorError::SessionDead);
        }
        if let Err(error) = core.store.session_close(&core.session).await {
            warn!(%error, "session is not closed; it expires");
        }
        info!("coordinator stopped");
        Ok(())
    }
}

/// Creates streams and consumers before anything needs them; a bus that is away is waited for.
async fn prepare_streams(core: &Core, stop: &CancellationToken) {
    loop {
        let prepared = async {
            streams::ensure(core, None).await?;
            core.bus.ensure_consumer(&results::consumer(core, &core.session)).await
        };
        match prepared.await {
            Ok(()) => return,
            Err(error) => warn!(%error, "streams cannot be prepared, trying again"),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(500)) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Renews the session until stopped (`false`) or until it is dead (`true`).
async fn keep_session(core: &Core, stop: &CancellationToken) -> bool {
    let ttl_ms = core.config.session_ttl_ms;
    let mut period = tokio::time::interval(Duration::from_millis((ttl_ms / 3).max(1)));
    period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = period.tick() => {}
            () = stop.cancelled() => return false,
        }
        match core.store.session_renew(&core.session, ttl_ms).await {
            Ok(lease) if lease.alive => core.clock.heard(lease.now_ms),
            Ok(_) => return true,
            Err(error) => warn!(%error, "session is not renewed"),
        }
    }
}

/// Hears doorbells of other coordinators.
async fn doorbells(core: Core, driver: DriverSender, stop: CancellationToken) {
    while !stop.is_cancelled() {
        match core.bus.subscribe(&subjects::wake(&core.session), None, 65_536).await {
            Ok(mut bells) => loop {
                let bell = tokio::select! {
                    bell = bells.next() => bell,
                    () = stop.cancelled() => return,
                };
                let Some(bell) = bell else { break };
                match serde_json::from_slice::<WakeNotice>(&bell.message.body) {
                    Ok(notice) => drop(driver.send(Msg::Wake(notice.runs))),
                    Err(error) => warn!(%error, "unreadable doorbell"),
                }
            },
            Err(error) => warn!(%error, "doorbells cannot be heard now; the poll finds what they would say"),
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(500)) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Tells the driver when workers come or go.
async fn catalogue_watch(core: Core, driver: DriverSender, stop: CancellationToken) {
    let mut changes = core.catalogue.subscribe();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
        let _ = driver.send(Msg::CatalogueChanged); // a driver that has ended needs no news
    }
}
