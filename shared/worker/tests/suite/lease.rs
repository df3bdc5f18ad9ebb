//! The session: opened when a coordinator is there, renewed, and over when it is declared dead.

use std::{sync::Arc, time::Duration};

use ditto_contracts::{CallPolicy, Verdict};
use ditto_runtime::health::Health;
use ditto_worker::{Worker, WorkerError};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    ledger::{KIND, ScriptedLedger, State},
    support::*,
};

fn short(state: &mut State) {
    (state.ttl_ms, state.margin_ms) = (450, 150);
}

#[tokio::test]
async fn a_worker_waits_for_a_coordinator_and_is_not_ready_before() {
    let bus: Arc<dyn ditto_bus::Bus> = ditto_bus::local::LocalBus::new();
    let health = Health::new();
    let probe = Probe::answering(CallPolicy::default());
    let worker = Worker::builder(KIND).handler(probe).health(health.clone()).build().unwrap();
    let stop = CancellationToken::new();
    assert!(!health.is_ready());
    let running = tokio::spawn({
        let (bus, stop) = (bus.clone(), stop.clone());
        async move { worker.run(quick(), bus, stop).await }
    });
    tokio::task::yield_now().await;
    assert!(!health.is_ready());
    let ledger = ScriptedLedger::start(bus.clone()).await;
    ledger.until("a session", |state| !state.announced.is_empty()).await;
    let ready = async {
        while !health.is_ready() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ready).await.unwrap();
    assert_eq!(ledger.state().announced[0].offers.len(), 1);
    assert!(ledger.state().announced[0].offers[0].input_schema.is_some());
    stop.cancel();
    assert_eq!(running.await.unwrap(), Ok(()));
    assert!(!health.is_ready());
}

#[tokio::test]
async fn a_refused_renewal_ends_the_worker_after_it_reported() {
    let gate = Arc::new(Semaphore::new(0));
    let open = gate.clone();
    let probe = Probe::new(CallPolicy::default(), move |_, _| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            Ok(json("{}"))
        })
    });
    let mut fleet = Fleet::with(probe, quick(), short).await;
    fleet.dispatch(1).await;
    fleet.probe.begun().await;
    fleet.ledger.script(|state| state.dead = true);
    let told = fleet.ledger.state().renewals.len();
    fleet.ledger.until("another renewal", |state| state.renewals.len() > told).await;
    fleet.dispatch(2).await;
    open.add_permits(2);
    assert_eq!(fleet.ended().await, Err(WorkerError::SessionLost));
    let results = fleet.ledger.results(1).await;
    assert_eq!((results[0].call.clone(), results[0].body.verdict), (fleet.call(1), Verdict::Succeeded));
    assert!(fleet.ledger.state().closed.is_empty(), "a dead session is not closed");
    assert_eq!((fleet.probe.started(), fleet.jobs_left().await), (1, 1));
}

#[tokio::test]
async fn a_worker_that_runs_for_ever_opens_a_new_session() {
    let bus: Arc<dyn ditto_bus::Bus> = ditto_bus::local::LocalBus::new();
    let ledger = ScriptedLedger::start(bus.clone()).await;
    ledger.script(short);
    let worker = Worker::builder(KIND).handler(Probe::answering(CallPolicy::default())).build().unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (bus, stop) = (bus.clone(), stop.clone());
        async move { worker.run_forever(quick(), bus, stop).await }
    });
    ledger.until("a session", |state| !state.announced.is_empty()).await;
    ledger.script(|state| {
        state.dead = true;
        state.renewals.clear();
    });
    ledger.until("the renewal that is refused", |state| !state.renewals.is_empty()).await;
    ledger.script(|state| state.dead = false);
    ledger.until("a second session", |state| state.announced.len() > 1).await;
    let sessions = ledger.state().sessions.clone();
    assert_ne!(sessions[0], sessions[1]);
    stop.cancel();
    assert_eq!(running.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn case_d32_nothing_starts_on_a_lease_that_ran_out() {
    let mut fleet = Fleet::with(Probe::answering(CallPolicy::default()), quick(), |state| {
        short(state);
        state.mute_renew = true;
    })
    .await;
    // Several unanswered renewals take longer than the lease.
    fleet.ledger.until("the lease is over", |state| state.renewals.len() >= 4).await;
    fleet.dispatch(1).await;
    let told = fleet.ledger.state().renewals.len();
    fleet.ledger.until("more renewals", |state| state.renewals.len() >= told + 2).await;
    assert_eq!((fleet.ledger.state().claims.len(), fleet.probe.started()), (0, 0));
    fleet.ledger.script(|state| state.mute_renew = false);
    fleet.ledger.results(1).await;
    assert_eq!(fleet.stop().await, Ok(()));
}

#[tokio::test]
async fn case_d17_a_draining_worker_goes_on_renewing() {
    let gate = Arc::new(Semaphore::new(0));
    let open = gate.clone();
    let probe = Probe::new(CallPolicy::default(), move |_, _| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            Ok(json("{}"))
        })
    });
    let mut fleet = Fleet::with(probe, quick(), short).await;
    fleet.dispatch(1).await;
    fleet.probe.begun().await;
    fleet.shutdown.cancel();
    let told = fleet.ledger.state().renewals.len();
    fleet.ledger.until("renewals during the drain", |state| state.renewals.len() >= told + 3).await;
    open.add_permits(1);
    assert_eq!(fleet.ended().await, Ok(()));
}

#[tokio::test]
async fn after_a_pause_nothing_starts_before_a_renewal() {
    let probe = Probe::new(CallPolicy::default(), |_, input| {
        Box::pin(async move {
            if input.n == 1 {
                // Stops the only thread of this test, as a stopped process would: longer than the margin of the lease.
                std::thread::sleep(Duration::from_millis(400));
            }
            Ok(json("{}"))
        })
    });
    // A lease so long that it is not renewed by itself in this test.
    let mut fleet = Fleet::with(probe, quick(), |state| {
        (state.ttl_ms, state.margin_ms) = (60_000, 200);
        state.mute_renew = true;
    })
    .await;
    fleet.dispatch(1).await;
    fleet.ledger.results(1).await;
    fleet.dispatch(2).await;
    fleet.ledger.until("renewals are asked for", |state| state.renewals.len() >= 2).await;
    assert_eq!((fleet.probe.started(), fleet.ledger.state().claims.len()), (1, 1));
    fleet.ledger.script(|state| state.mute_renew = false);
    fleet.ledger.results(2).await;
    assert_eq!(fleet.stop().await, Ok(()));
}

#[tokio::test]
async fn what_a_worker_does_is_counted() {
    ditto_runtime::metrics::install("worker-suite");
    let mut fleet = Fleet::with(Probe::answering(CallPolicy::default()), quick(), short).await;
    fleet.dispatch(1).await;
    fleet.ledger.results(1).await;
    fleet.ledger.until("a renewal", |state| !state.renewals.is_empty()).await;
    assert_eq!(fleet.stop().await, Ok(()));
    let text = ditto_runtime::metrics::render();
    for line in [
        "ditto_worker_jobs_total{node=\"TEST.PROBE\",outcome=\"succeeded\"}",
        "ditto_worker_claims_total{answer=\"granted\"}",
        "ditto_worker_in_flight",
        "ditto_worker_held",
        "ditto_worker_handle_duration_seconds_count{node=\"TEST.PROBE\"}",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}
