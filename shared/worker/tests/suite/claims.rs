//! Claims: nothing starts without one that needs it, and none is ever forgotten.

use std::time::Duration;

use ditto_bus::Message;
use ditto_contracts::{
    CallPolicy, EffectClass, Verdict, codes,
    wire::{
        Headers,
        ledger::ClaimAnswer,
        subjects::{self, JOBS_STREAM},
    },
};

use crate::{
    ledger::{KIND, settled},
    support::*,
};

#[tokio::test]
async fn a_granted_call_runs_once_and_its_result_names_the_claim() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    fleet.dispatch(1).await;
    let results = fleet.ledger.results(1).await;
    let result = &results[0];
    assert_eq!((result.fence, result.body.verdict), (1, Verdict::Succeeded));
    assert_eq!(result.token.as_ref(), Some(&fleet.ledger.state().claims[0].1));
    assert_eq!(result.body.output, Some(json(r#"{"n":1}"#)));
    assert_eq!(*fleet.probe.keys.lock().unwrap(), [format!("ditto:{}", fleet.call(1))]);
    fleet.no_jobs_left().await;
    assert_eq!(fleet.stop().await, Ok(()));
    let state = fleet.ledger.state();
    assert_eq!((state.results.len(), state.releases.len(), state.closed.len()), (1, 0, 1));
}

#[tokio::test]
async fn a_call_that_is_not_ours_is_not_executed_and_its_job_is_done_with() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    let refused = ClaimAnswer::Refused { reason: codes::CANCELLED.into() };
    for (n, answer) in [(1, Some(settled())), (2, Some(ClaimAnswer::Taken)), (3, Some(refused)), (4, None)] {
        let request = request(n);
        fleet.plan(n, &request, &CallPolicy::default());
        let call = fleet.call(n);
        fleet.ledger.script(|state| match answer {
            Some(answer) => state.receipts.get_mut(&call).unwrap().answer = Some(answer),
            None => drop(state.receipts.remove(&call)),
        });
        fleet.publish(&fleet.job(n, &request, EffectClass::NonIdempotent, true), &request).await;
    }
    fleet.no_jobs_left().await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.ledger.state().claims.len(), 4);
    assert_eq!((fleet.probe.started(), fleet.ledger.state().results.len()), (0, 0));
}

#[tokio::test]
async fn a_lost_claim_reply_is_asked_for_again_with_the_same_token() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    fleet.ledger.script(|state| state.lose_claim_replies = 2);
    fleet.dispatch(1).await;
    fleet.ledger.results(1).await;
    {
        let state = fleet.ledger.state();
        assert_eq!(state.claims.len(), 3);
        assert!(state.claims.iter().all(|claim| *claim == state.claims[0]));
    }
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.started(), 1);
}

#[tokio::test]
async fn claims_are_batched_while_one_request_is_in_flight() {
    let mut fleet =
        Fleet::with(Probe::answering(CallPolicy::default()), quick(), |state| state.hold_claims = true).await;
    for n in 0..8 {
        fleet.dispatch(n).await;
    }
    fleet.ledger.until("a claim request", |state| state.claim_requests > 0).await;
    fleet.ledger.script(|state| state.hold_claims = false);
    fleet.ledger.results(8).await;
    assert_eq!(fleet.stop().await, Ok(()));
    let state = fleet.ledger.state();
    assert!(state.claim_requests < 8, "{} requests", state.claim_requests);
    assert_eq!(fleet.probe.started(), 8);
}

#[tokio::test]
async fn an_altered_job_is_ended_and_not_executed() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    // The body is not what its header names.
    fleet.plan(1, &request(1), &CallPolicy::default());
    fleet.publish(&fleet.job(1, &request(1), EffectClass::NonIdempotent, true), &request(7)).await;
    // Body and header agree with each other, and not with the receipt.
    fleet.plan(2, &request(2), &CallPolicy::default());
    fleet.publish(&fleet.job(2, &request(8), EffectClass::NonIdempotent, true), &request(8)).await;
    // No job at all, and one of another wire version.
    for headers in [Headers::new(), {
        let mut headers = fleet.job(3, &request(3), EffectClass::NonIdempotent, true).to_headers();
        headers.set("Ditto-Wire", "2");
        headers
    }] {
        let message = Message { subject: format!("ditto.jobs.{NODE}"), headers, body: request(3).to_bytes() };
        fleet.bus.publish(vec![message]).await[0].clone().unwrap();
    }
    fleet.no_jobs_left().await;
    fleet.ledger.until("the release of call 2", |state| state.releases.len() == 1).await;
    assert!(fleet.ledger.state().releases[0].unstarted);
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!((fleet.probe.started(), fleet.ledger.state().results.len()), (0, 0));
}

#[tokio::test]
async fn a_claim_is_skipped_only_if_job_and_worker_both_say_so() {
    use EffectClass::{Keyed, ReadOnly};
    let exclusive = CallPolicy { exclusive: true, ..CallPolicy::read_only() };
    #[rustfmt::skip]
    let table = [
        // the worker's policy       class in the job  claim in the job  claimed
        (CallPolicy::read_only(),    ReadOnly,         false,            false),
        (CallPolicy::read_only(),    ReadOnly,         true,             true),
        (CallPolicy::read_only(),    Keyed,            false,            true),
        (CallPolicy::keyed(),        ReadOnly,         false,            true),
        (CallPolicy::default(),      ReadOnly,         false,            true),
        (exclusive,                  ReadOnly,         false,            true),
    ];
    for (policy, class, claim, claimed) in table {
        let mut fleet = Fleet::start(Probe::answering(policy.clone())).await;
        fleet.plan(1, &request(1), &policy);
        fleet.publish(&fleet.job(1, &request(1), class, claim), &request(1)).await;
        let results = fleet.ledger.results(1).await;
        assert_eq!(results[0].fence, u32::from(claimed), "{policy:?} {class:?} {claim}");
        assert_eq!(results[0].token.is_some(), claimed);
        fleet.no_jobs_left().await;
        assert_eq!(fleet.stop().await, Ok(()));
        assert_eq!(fleet.ledger.state().claims.len(), usize::from(claimed));
        assert_eq!(fleet.probe.started(), 1);
    }
}

#[tokio::test]
async fn a_job_delivered_twice_runs_once() {
    for policy in [CallPolicy::read_only(), CallPolicy::default()] {
        let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
        let open = gate.clone();
        let probe = Probe::new(policy, move |_, _| {
            let gate = gate.clone();
            Box::pin(async move {
                gate.acquire().await.unwrap().forget();
                Ok(json("{}"))
            })
        });
        let mut fleet = Fleet::start(probe).await;
        fleet.local.faults().duplicate_stored("ditto.jobs.>", 1);
        fleet.dispatch(1).await;
        fleet.probe.begun().await;
        // The copy is dropped while the first one runs: at most the running job itself is left.
        let wait = async {
            while fleet.jobs_left().await > 1 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
        open.add_permits(2);
        fleet.no_jobs_left().await;
        fleet.ledger.results(1).await;
        assert_eq!(fleet.stop().await, Ok(()));
        assert_eq!((fleet.probe.started(), fleet.ledger.state().results.len()), (1, 1));
    }
}

#[tokio::test]
async fn a_finished_unclaimed_job_that_comes_again_is_dropped() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::read_only())).await;
    fleet.dispatch(1).await;
    fleet.ledger.results(1).await;
    fleet.no_jobs_left().await;
    // The same job once more, as after a lost acknowledgement.
    let job = fleet.job(1, &request(1), EffectClass::ReadOnly, false);
    let mut headers = job.to_headers();
    headers.set("Nats-Msg-Id", "another");
    let message = Message { subject: format!("ditto.jobs.{NODE}"), headers, body: request(1).to_bytes() };
    fleet.bus.publish(vec![message]).await[0].clone().unwrap();
    fleet.no_jobs_left().await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.started(), 1);
}

#[tokio::test]
async fn never_more_runs_than_permits_and_never_more_is_pulled() {
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let open = gate.clone();
    let probe = Probe::new(CallPolicy::default(), move |_, _| {
        let gate = gate.clone();
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            Ok(json("{}"))
        })
    });
    let config = ditto_worker::WorkerConfig { concurrency: 3, ..quick() };
    let mut fleet = Fleet::with(probe, config, |_| {}).await;
    for n in 0..20 {
        fleet.dispatch(n).await;
    }
    for _ in 0..3 {
        fleet.probe.begun().await;
    }
    // Everything that is not running can be had by another replica.
    let mut other = fleet.bus.pull(JOBS_STREAM, KIND, 17, Duration::from_secs(5)).await.unwrap();
    let mut rest = Vec::new();
    while rest.len() < 17 {
        rest.push(other.next().await.unwrap().expect("pulled beyond the permits"));
    }
    for delivery in rest {
        delivery.acker.nak(Duration::ZERO).await.unwrap();
    }
    open.add_permits(20);
    fleet.ledger.results(20).await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.most.load(std::sync::atomic::Ordering::SeqCst), 3);
    assert_eq!(fleet.probe.started(), 20);
}

#[tokio::test]
async fn what_this_worker_does_not_serve_goes_back() {
    let mut fleet = Fleet::start(Probe { unserved: true, ..Probe::answering(CallPolicy::default()) }).await;
    fleet.dispatch(1).await;
    let mut job = fleet.job(2, &request(2), EffectClass::NonIdempotent, true);
    job.node = ditto_contracts::NodeType::new("TEST.OTHER").unwrap();
    fleet.publish(&job, &request(2)).await;
    // A call that is served would run: the node is asked for both jobs before this one.
    assert_eq!(fleet.jobs_left().await, 2);
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.jobs_left().await, 2);
    let state = fleet.ledger.state();
    assert_eq!((fleet.probe.started(), state.claims.len()), (0, 0));
}

#[tokio::test]
async fn without_a_coordinator_jobs_go_back_and_run_once_one_answers() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    fleet.ledger.go_away().await;
    fleet.dispatch(1).await;
    // The claim finds nobody, so the job goes back; the probes of the worker find the ledger again.
    fleet.ledger.come_back().await;
    fleet.ledger.results(1).await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.started(), 1);
    assert!(fleet.bus.stream_state(subjects::JOBS_STREAM).await.unwrap().messages == 0);
}

#[tokio::test]
async fn a_claim_that_may_be_granted_is_asked_for_until_it_is_answered() {
    let mut fleet = Fleet::start(Probe::answering(CallPolicy::default())).await;
    // The first request is carried out and its answer lost; then nobody is there for a while.
    fleet.ledger.script(|state| state.lose_claim_replies = 1);
    fleet.dispatch(1).await;
    fleet.ledger.until("the lost claim", |state| state.claims.len() == 1).await;
    fleet.ledger.go_away().await;
    fleet.ledger.come_back().await;
    fleet.ledger.results(1).await;
    assert_eq!(fleet.stop().await, Ok(()));
    let state = fleet.ledger.state();
    assert!(state.claims.iter().all(|claim| *claim == state.claims[0]), "never forgotten, never another token");
    assert_eq!((fleet.probe.started(), state.results[0].fence), (1, 1));
}

#[tokio::test]
async fn the_next_attempt_waits_for_the_confirmation_of_the_last_answer() {
    let policy = CallPolicy::keyed();
    let probe = Probe::new(policy.clone(), |cx, _| {
        Box::pin(async move {
            if cx.fence() == 1 { Err(ditto_worker::NodeError::ambiguous("LOST", "lost")) } else { Ok(json("{}")) }
        })
    });
    let mut fleet = Fleet::with(probe, quick(), |state| state.unconfirming = true).await;
    fleet.dispatch(1).await;
    let first = fleet.ledger.results(1).await.remove(0);
    assert_eq!(first.body.verdict, Verdict::Unknown);
    // The ledger knows the answer and plans the next attempt; its confirmation is late.
    let call = fleet.call(1);
    fleet.ledger.script(|state| state.receipts.get_mut(&call).unwrap().token = None);
    let mut job = fleet.job(1, &request(1), EffectClass::Keyed, true);
    job.dispatch_no = 2;
    fleet.publish(&job, &request(1)).await;
    fleet.ledger.confirm(&first.session, &call).await;
    fleet.ledger.until("the second attempt", |state| state.results.iter().any(|result| result.fence == 2)).await;
    fleet.ledger.script(|state| state.unconfirming = false);
    fleet.ledger.confirm(&first.session, &call).await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.started(), 2);
}

#[tokio::test]
async fn nothing_is_pulled_while_too_many_results_are_unconfirmed() {
    let probe = Probe::answering(CallPolicy::default());
    let config = ditto_worker::WorkerConfig { concurrency: 1, held_bytes_max: 600, ..quick() };
    let mut fleet = Fleet::with(probe, config, |state| state.unconfirming = true).await;
    for n in 0..4 {
        fleet.dispatch(n).await;
    }
    // Two results are more than 600 bytes: resent again and again, and nothing else is begun.
    fleet.ledger.until("several resends", |state| state.results.len() >= 6).await;
    assert_eq!((fleet.probe.started(), fleet.jobs_left().await), (2, 2));
    fleet.ledger.script(|state| state.unconfirming = false);
    fleet
        .ledger
        .until("the rest", |state| {
            (0..4)
                .all(|n| state.results.iter().any(|result| result.body.output == Some(json(&format!("{{\"n\":{n}}}")))))
        })
        .await;
    assert_eq!(fleet.stop().await, Ok(()));
    assert_eq!(fleet.probe.started(), 4);
}
