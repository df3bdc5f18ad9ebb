//! Starts one process of a fleet from its configuration: a coordinator, or a worker.

use std::{sync::Arc, time::Duration};

use ditto_bus::{
    Bus,
    nats::{ConnectError, NatsBus, NatsConfig},
};
use ditto_coordinator::{Coordinator, CoordinatorError, Plans, api};
use ditto_interaction::Interaction;
use ditto_runtime::{health, shutdown::Shutdown};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    exit::{Exit, Failure, chain},
    open_ledger::Ledger,
    serve,
    settings::{CoordinatorSettings, InteractionSettings},
};

/// How long a service waits at start for a backend that is not there yet.
const START_WITHIN: Duration = Duration::from_secs(60);

/// Runs a coordinator until a signal. `plans` are those written in Rust; definitions come from the ledger.
///
/// # Errors
/// A backend cannot be reached, or the session was declared dead: exit code 7, to be started again.
pub async fn coordinator(settings: CoordinatorSettings, plans: Plans, shutdown: &Shutdown) -> Result<Exit, Failure> {
    let stop = shutdown.token();
    let bound = serve::bind(settings.http.listen).await?;
    let Some(ledger) = until(&stop, START_WITHIN, || Ledger::open(&settings.ledger)).await? else {
        return Ok(Exit::Interrupted);
    };
    let Some(bus) = until(&stop, START_WITHIN, || connect(&settings.bus)).await? else {
        return Ok(Exit::Interrupted);
    };
    let opened = Coordinator::open(settings.coordinator, ledger.store(), bus.clone(), plans).await;
    let coordinator = opened.map_err(failure)?;
    info!(address = %bound.address(), "API is served");
    let router = api::router(coordinator.handle());
    let serving = stop.child_token();
    let mut api = JoinSet::new();
    api.spawn(bound.serve(router, serving.clone()));
    let outcome = coordinator.run(stop).await;
    serving.cancel();
    while let Some(ended) = api.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "the API ended"),
            Err(error) => warn!(%error, "the API failed"),
        }
    }
    bus.close().await;
    ledger.close().await;
    outcome.map_err(failure)?;
    Ok(Exit::Completed)
}

/// Runs an interaction worker until a signal. A lost session is followed by a new one.
///
/// # Errors
/// The bus cannot be reached, or the worker ended for another reason than the signal.
pub async fn interaction(settings: InteractionSettings, shutdown: &Shutdown) -> Result<Exit, Failure> {
    let stop = shutdown.token();
    let Some(bus) = until(&stop, START_WITHIN, || connect(&settings.bus)).await? else {
        return Ok(Exit::Interrupted);
    };
    let health = health::Health::new();
    let serving = CancellationToken::new();
    let mut servers = JoinSet::new();
    if let Some(address) = settings.health.address() {
        let (bound, server) = health::serve(address, health.clone(), serving.clone())
            .await
            .map_err(|error| Failure::unreachable(format!("health: cannot listen on {address}: {}", error.kind())))?;
        info!(address = %bound, "health is served");
        servers.spawn(server);
    }
    let mut config = settings.interaction;
    if let Some(instance) = settings.instance {
        config = config.with_instance(instance);
    }
    let worker = Interaction::from_config(config).health(health.clone()).build();
    let outcome = match &worker {
        Ok(worker) => worker.run(bus.clone(), stop).await.map_err(|error| Failure::unreachable(chain(&error))),
        Err(error) => Err(Failure::usage(chain(error))),
    };
    health.stopping();
    serving.cancel();
    ditto_runtime::shutdown::drain(&mut servers, Duration::from_secs(2)).await;
    bus.close().await;
    outcome.map_err(|failure| {
        Failure { message: format!("worker interaction: {failure}"), ..failure }.code("WORKER_STOPPED")
    })?;
    Ok(Exit::Completed)
}

/// Connects to NATS.
///
/// # Errors
/// It cannot be reached or refuses, in plain words.
pub(crate) async fn connect(config: &NatsConfig) -> Result<Arc<NatsBus>, Failure> {
    NatsBus::connect(config).await.map_err(|error| match error {
        ConnectError::Config(_) => Failure::usage(error.to_string()).code("CONFIG_INVALID"),
        ConnectError::Refused { .. } => {
            // Trying again cannot help, so it is no absence of a backend to wait for.
            Failure { exit: Exit::Unreachable, ..Failure::usage(error.to_string()) }
                .code("BUS_REFUSED")
                .hint("check `bus.user`, `bus.password`, `bus.token` or the credentials file")
        }
        ConnectError::Tls { .. } => Failure::unreachable(error.to_string()).code("BUS_TLS"),
        ConnectError::Unreachable { .. } => Failure::unreachable(error.to_string())
            .code("BUS_UNREACHABLE")
            .hint("is a NATS server with JetStream running there? see `bus.url`, DITTO_NATS_URL"),
    })
}

fn failure(error: CoordinatorError) -> Failure {
    match error {
        CoordinatorError::SessionDead => {
            Failure::unreachable("the session of this coordinator was declared dead; another one has taken over")
                .code("SESSION_DEAD")
                .hint("start the process again, best by a supervisor")
        }
        other => Failure::unreachable(format!("coordinator: {other}")),
    }
}

/// Tries again while a backend is away, at most so long; `None`: told to stop.
async fn until<T, F>(
    stop: &CancellationToken,
    within: Duration,
    mut start: impl FnMut() -> F,
) -> Result<Option<T>, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let deadline = tokio::time::Instant::now() + within;
    let mut pause = Duration::from_millis(200);
    loop {
        let tried = tokio::select! {
            tried = start() => tried,
            () = stop.cancelled() => return Ok(None),
        };
        match tried {
            Ok(started) => return Ok(Some(started)),
            Err(error) if tokio::time::Instant::now() + pause < deadline && is_away(&error) => {
                warn!(error = %error, "a backend is not there yet, trying again");
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return Ok(None),
        }
        pause = (pause * 2).min(Duration::from_secs(3));
    }
}

/// Whether waiting may help.
fn is_away(failure: &Failure) -> bool {
    matches!(failure.code.as_str(), "LEDGER_UNAVAILABLE" | "BUS_UNREACHABLE")
}
