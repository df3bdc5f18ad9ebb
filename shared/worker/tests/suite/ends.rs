//! How attempts end, and what is said about them.

use std::{sync::Arc, time::Duration};

use ditto_contracts::{CallPolicy, ErrorClass, Verdict, WireError, codes};
use ditto_worker::{NodeError, WorkerConfig, WorkerError};
use tokio::sync::Semaphore;

use crate::support::*;

/// A probe that waits for ever.
fn stuck(policy: CallPolicy) -> Probe {
    Probe::new(policy, |_, _| Box::pin(std::future::pending()))
}

async fn end_of(probe: Probe) -> (Verdict, Option<WireError>, bool) {
    let mut fleet = Fleet::start(probe).await;
    fleet.dispatch(1).await;
    let result = fleet.ledger.results(1).await.remove(0);
    assert_eq!(fleet.stop().await, Ok(()));
    (result.body.verdict, result.body.error, result.body.output.is_some())
}

#[tokio::test]
async fn endings_are_judged_by_class() {
    let wire = |code: &str| WireError::new(ErrorClass::Failed, code, "said so");
    let keyed = CallPolicy::keyed();
    let read = CallPolicy::read_only();
    let other = CallPolicy::default();
    let half_way = CallPolicy { error_is_definite: false, ..CallPolicy::default() };
    let refused = |output: bool| NodeError::Refused { output: output.then(|| json("{}")), error: wire("NO") };
    #[rustfmt::skip]
    let table = [
        (other.clone(),  NodeError::NotSent(wire("BAD")),                Verdict::Failed,    "BAD",  false),
        (other.clone(),  refused(true),                                  Verdict::Failed,    "NO",   true),
        (half_way,       refused(true),                                  Verdict::Unknown,   "NO",   false),
        (other.clone(),  NodeError::ambiguous("RESET", "said so"),       Verdict::Unknown,   "RESET", false),
        (keyed.clone(),  NodeError::ambiguous("RESET", "said so"),       Verdict::Unknown,   "RESET", false),
        (read.clone(),   NodeError::ambiguous("RESET", "said so"),       Verdict::Failed,    "RESET", false),
        (other.clone(),  NodeError::response_invalid("said so"),         Verdict::Unknown,   codes::RESPONSE_INVALID, false),
        (read.clone(),   NodeError::response_invalid("said so"),         Verdict::Failed,    codes::RESPONSE_INVALID, false),
        (read,           NodeError::cancelled_in_flight(),               Verdict::Cancelled, codes::CANCELLED_IN_FLIGHT, false),
        (keyed,          NodeError::cancelled_in_flight(),               Verdict::Unknown,   codes::CANCELLED_IN_FLIGHT, false),
        (other,          NodeError::NotSent(wire("a b")),                Verdict::Failed,    codes::UNSAFE_ERROR, false),
    ];
    for (policy, error, verdict, code, output) in table {
        let given = error.clone();
        let probe = Probe::new(policy.clone(), move |_, _| {
            let error = error.clone();
            Box::pin(async move { Err(error) })
        });
        let (got, wire, has_output) = end_of(probe).await;
        let wire = wire.unwrap();
        assert_eq!((got, wire.code.as_str(), has_output), (verdict, code, output), "{policy:?} {given:?}");
        assert_eq!(wire.class == ErrorClass::Unknown, verdict == Verdict::Unknown);
        assert!(verdict != Verdict::Unknown || !wire.retryable);
    }
}

#[tokio::test]
async fn an_unsafe_error_text_never_leaves() {
    let probe = Probe::new(CallPolicy::default(), |_, _| {
        Box::pin(async { Err(NodeError::refused("LOGIN", "Authorization: Basic c2VjcmV0")) })
    });
    let (verdict, error, _) = end_of(probe).await;
    let error = error.unwrap();
    assert_eq!((verdict, error.code.as_str()), (Verdict::Failed, "LOGIN"));
    assert_eq!(error.message, "unsafe interaction error message: credential");
}

#[tokio::test]
async fn a_panic_is_caught_and_ambiguous() {
    for (policy, verdict) in [(CallPolicy::default(), Verdict::Unknown), (CallPolicy::read_only(), Verdict::Failed)] {
        let (got, error, _) = end_of(Probe::new(policy, |_, _| panic!("a defect of a tool"))).await;
        assert_eq!((got, error.unwrap().code.as_str()), (verdict, codes::PANICKED));
    }
}

#[tokio::test]
async fn a_timeout_is_ambiguous_and_a_failure_only_for_reads() {
    for (policy, verdict, class) in [
        (CallPolicy::default(), Verdict::Unknown, ErrorClass::Unknown),
        (CallPolicy::keyed(), Verdict::Unknown, ErrorClass::Unknown),
        (CallPolicy::read_only(), Verdict::Failed, ErrorClass::Timeout),
    ] {
        let (got, error, _) = end_of(stuck(CallPolicy { timeout_ms: 30, ..policy })).await;
        let error = error.unwrap();
        assert_eq!((got, error.code.as_str(), error.class), (verdict, codes::TIMEOUT, class));
    }
}

#[tokio::test]
async fn a_refusal_after_an_unresolved_attempt_proves_nothing() {
    for (stored, verdict) in [(false, Verdict::Unknown), (true, Verdict::Failed)] {
        let policy = CallPolicy { rejections_stored: stored, ..CallPolicy::keyed() };
        let probe = Probe::new(policy.clone(), |_, _| Box::pin(async { Err(NodeError::refused("NO", "no")) }));
        let mut fleet = Fleet::start(probe).await;
        fleet.plan(1, &request(1), &policy);
        let call = fleet.call(1);
        fleet.ledger.script(|state| state.receipts.get_mut(&call).unwrap().earlier_unresolved = 1);
        fleet.publish(&fleet.job(1, &request(1), policy.class, true), &request(1)).await;
        assert_eq!(fleet.ledger.results(1).await[0].body.verdict, verdict);
        assert_eq!(fleet.stop().await, Ok(()));
    }
}

#[tokio::test]
async fn what_was_proven_unsent_is_given_back() {
    let throttled = NodeError::Throttled {
        delay: Duration::from_millis(700),
        error: WireError::new(ErrorClass::Unavailable, "SLOW_DOWN", "later"),
    };
    let refused = NodeError::NoByteSent(WireError::new(ErrorClass::Unavailable, "REFUSED", "connection refused"));
    for (error, delay_ms) in [(throttled, 700), (refused, 500)] {
        let probe = Probe::new(CallPolicy::default(), move |_, _| {
            let error = error.clone();
            Box::pin(async move { Err(error) })
        });
        let mut fleet = Fleet::start(probe).await;
        fleet.dispatch(1).await;
        fleet.ledger.until("a release", |state| state.releases.len() == 1).await;
        assert_eq!(fleet.stop().await, Ok(()));
        let state = fleet.ledger.state();
        let release = &state.releases[0];
        assert!(release.unstarted && release.error.is_some());
        assert_eq!((release.fence, release.delay_ms, &release.token), (1, delay_ms, &state.claims[0].1));
        assert!(state.results.is_empty());
    }
}

#[tokio::test]
async fn a_cancelled_call_is_told_and_what_it_answers_stands() {
    let probe = Probe::new(CallPolicy::default(), |cx, _| {
        Box::pin(async move {
            cx.cancelled().await;
            Err(NodeError::refused("STOPPED", "stopped in time"))
        })
    });
    let mut fleet = Fleet::start(probe).await;
    fleet.dispatch(1).await;
    fleet.probe.begun().await;
    fleet.ledger.cancel(&fleet.call(1)).await;
    let result = fleet.ledger.results(1).await.remove(0);
    assert_eq!((result.body.verdict, result.body.error.unwrap().code.as_str()), (Verdict::Failed, "STOPPED"));
    assert_eq!(fleet.stop().await, Ok(()));
}

#[tokio::test]
async fn a_call_that_ignores_its_cancel_is_dropped_and_unknown() {
    for (policy, verdict) in [(CallPolicy::default(), Verdict::Unknown), (CallPolicy::read_only(), Verdict::Cancelled)]
    {
        let mut fleet = Fleet::start(stuck(policy)).await;
        fleet.dispatch(1).await;
        fleet.probe.begun().await;
        fleet.ledger.cancel(&fleet.call(1)).await;
        let result = fleet.ledger.results(1).await.remove(0);
        assert_eq!(result.body.verdict, verdict);
        assert_eq!(result.body.error.unwrap().code, codes::CANCELLED_IN_FLIGHT);
        assert_eq!(fleet.stop().await, Ok(()));
    }
}

#[tokio::test]
async fn a_result_is_sent_again_until_it_is_confirmed() {
    let probe = Probe::answering(CallPolicy::default());
    let mut fleet = Fleet::with(probe, quick(), |state| state.unconfirming = true).await;
    fleet.dispatch(1).await;
    let results = fleet.ledger.results(3).await;
    assert!(results.iter().all(|result| result == &results[0]));
    {
        let state = fleet.ledger.state();
        let ids: std::collections::HashSet<_> = state.result_ids.iter().collect();
        assert_eq!(ids.len(), state.result_ids.len(), "every sending has its own id");
    }
    fleet.ledger.script(|state| state.unconfirming = false);
    fleet.ledger.confirm(&results[0].session, &results[0].call).await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.started(), 1);
}

#[tokio::test]
async fn a_renewal_confirms_as_well() {
    let probe = Probe::answering(CallPolicy::default());
    let config = WorkerConfig { resend_after: Duration::from_millis(20), ..quick() };
    let mut fleet = Fleet::with(probe, config, |state| {
        state.unconfirming = true;
        (state.ttl_ms, state.margin_ms) = (600, 100);
    })
    .await;
    fleet.dispatch(1).await;
    fleet.ledger.results(1).await;
    fleet.ledger.until("it is reported", |state| state.renewals.iter().any(|held| !held.is_empty())).await;
    let call = fleet.call(1);
    fleet.ledger.script(|state| state.settled = vec![call]);
    fleet.ledger.until("it is held no more", |state| state.renewals.last().is_some_and(Vec::is_empty)).await;
    assert_eq!(fleet.stop().await, Ok(()));
}

#[tokio::test]
async fn a_claim_granted_during_shutdown_is_given_back_unstarted() {
    let probe = Probe::answering(CallPolicy::default());
    let config = WorkerConfig { request_timeout: Duration::from_secs(10), ..quick() };
    let mut fleet = Fleet::with(probe, config, |state| state.hold_claims = true).await;
    fleet.dispatch(1).await;
    fleet.ledger.until("a claim request", |state| state.claim_requests == 1).await;
    fleet.shutdown.cancel();
    tokio::task::yield_now().await;
    fleet.ledger.script(|state| state.hold_claims = false);
    assert_eq!(fleet.ended().await, Ok(()));
    let state = fleet.ledger.state();
    assert_eq!((state.releases.len(), state.closed.len(), fleet.probe.started()), (1, 1, 0));
    assert!(state.releases[0].unstarted);
}

#[tokio::test]
async fn a_shutdown_lets_running_calls_finish() {
    let gate = Arc::new(Semaphore::new(0));
    let open = gate.clone();
    let probe = Probe::new(CallPolicy::default(), move |_, _| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            Ok(json("{}"))
        })
    });
    let mut fleet = Fleet::start(probe).await;
    fleet.dispatch(1).await;
    fleet.probe.begun().await;
    fleet.shutdown.cancel();
    fleet.dispatch(2).await;
    open.add_permits(1);
    assert_eq!(fleet.ended().await, Ok(()));
    {
        let state = fleet.ledger.state();
        assert_eq!((state.results.len(), state.closed.len(), fleet.probe.started()), (1, 1, 1));
        assert_eq!(state.results[0].body.verdict, Verdict::Succeeded);
    }
    assert_eq!(fleet.jobs_left().await, 1, "what was not begun is left to others");
}

#[tokio::test]
async fn case_w7_a_shutdown_is_bounded_and_tells_what_it_cut_off() {
    let config = WorkerConfig { drain: Duration::from_millis(100), ..quick() };
    let mut fleet = Fleet::with(stuck(CallPolicy::default()), config.clone(), |_| {}).await;
    fleet.dispatch(1).await;
    fleet.probe.begun().await;
    assert_eq!(fleet.stop().await, Err(WorkerError::DrainTimeout { left: 1 }));
    let result = fleet.ledger.results(1).await.remove(0);
    assert_eq!((result.body.verdict, result.body.error.unwrap().code.as_str()), (Verdict::Unknown, codes::WORKER_LOST));

    let read = CallPolicy { skip_claim: false, ..CallPolicy::read_only() };
    let mut fleet = Fleet::with(stuck(read), config, |_| {}).await;
    fleet.dispatch(1).await;
    fleet.probe.begun().await;
    assert_eq!(fleet.stop().await, Err(WorkerError::DrainTimeout { left: 1 }));
    let state = fleet.ledger.state();
    assert_eq!((state.results.len(), state.releases.len()), (0, 1));
    assert!(!state.releases[0].unstarted);
}

#[tokio::test]
async fn a_result_that_the_bus_refuses_is_sent_again() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    fleet.local.faults().lose_confirmations("ditto.results.>", 1);
    fleet.dispatch(1).await;
    fleet.ledger.results(1).await;
    assert_eq!(fleet.stop().await, Ok(()));
    let mut lost = Fleet::start(Probe::answering(CallPolicy::default())).await;
    // Stored, confirmed and then lost with the bus: the worker still has it.
    lost.local.faults().drop_stored("ditto.results.>", 1);
    lost.dispatch(1).await;
    let results = lost.ledger.results(1).await;
    assert!(lost.ledger.state().result_ids[0].contains(".1.2."), "the second sending arrives");
    assert_eq!(results[0].body.verdict, Verdict::Succeeded);
    assert_eq!(lost.stop().await, Ok(()));
}

#[tokio::test]
async fn a_worker_is_refused_that_cannot_work() {
    use ditto_worker::Worker;
    for kind in ["", "Upper", "a.b", "0123456789012345678901234567890123"] {
        assert!(matches!(Worker::builder(kind).build(), Err(WorkerError::Invalid(_))), "{kind}");
    }
    let probe = || Probe::answering(CallPolicy::default());
    let twice = Worker::builder("probe").handler(probe()).handler(probe()).build();
    assert!(matches!(twice, Err(WorkerError::Invalid(_))));
}
