//! Sweepers, queries and sessions: what time and the loss of processes may do, and what they may not.

use ditto_contracts::{ErrorClass, ReceiptState, RunStatus, SettledBy, Verdict, codes, wire::ledger::Offer};
use ditto_coordinator::store::{Changed, QueryAnswer, Step};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

async fn code(ledger: &Ledger, call: &CallUid) -> String {
    ledger.receipt(call).await.error.map(|error| error.code).unwrap_or_default()
}

fn only(mut changed: Vec<Changed>) -> Changed {
    assert_eq!(changed.len(), 1, "{changed:?}");
    changed.remove(0)
}

pub async fn lost_claims_by_class(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, calls) = ledger.run_with(&owner, &[("r", r()), ("k", k()), ("n", n()), ("alive", n())]).await;
    let (lost, alive) = (ledger.worker().await, ledger.worker().await);
    for call in &calls[..3] {
        ledger.granted(&lost, call).await;
    }
    ledger.granted(&alive, &calls[3]).await;
    assert!(ledger.store.sweep_lost_claims(10).await.unwrap().is_empty());
    ledger.store.session_close(&lost).await.unwrap();
    let mut changed = ledger.store.sweep_lost_claims(10).await.unwrap();
    changed.sort_by_key(|change| calls.iter().position(|call| *call == change.call));
    let seen: Vec<_> = changed.iter().map(|change| (change.state, change.settled)).collect();
    let expected = [(ReceiptState::Planned, false), (ReceiptState::Unknown, false), (ReceiptState::Unknown, true)];
    assert_eq!(seen, expected);
    assert!(changed.iter().all(|change| change.run == run && change.owner == Some(owner.clone())));
    assert!(ledger.store.sweep_lost_claims(10).await.unwrap().is_empty());
    for call in &calls[..3] {
        assert_eq!(ledger.receipt(call).await.unresolved, 1);
    }
    assert_eq!(code(ledger, &calls[2]).await, codes::WORKER_LOST);
    assert_eq!(ledger.receipt(&calls[2]).await.settled_by, Some(SettledBy::Sweeper));
    assert_eq!(ledger.receipt(&calls[3]).await.state, ReceiptState::Claimed);
    // The read is due at once.
    let jobs = ledger.store.sweep_dispatch(10).await.unwrap();
    assert_eq!(jobs.iter().map(|job| &job.call).collect::<Vec<_>>(), [&calls[0]]);
}

pub async fn a_claim_after_death_is_found(ledger: &Ledger) {
    // The claim is in the tables of a session that has been dead for a while: each pass looks at all of them.
    let (_, _, call) = ledger.call(n()).await;
    let worker = ledger.session_for(SessionRole::Worker, 1).await;
    let token = ClaimToken::generate();
    let granted = matches!(ledger.claim(&worker, &call, &token).await, ClaimAnswer::Granted { .. });
    until(|| async { (!ledger.store.sessions_expire(Duration::ZERO).await.unwrap().is_empty()).then_some(()) }).await;
    ledger.store.sweep_lost_claims(10).await.unwrap();
    let state = ledger.receipt(&call).await.state;
    assert_eq!(state, if granted { ReceiptState::Unknown } else { ReceiptState::Planned });
    assert!(!ledger.store.session_renew(&worker, 60_000).await.unwrap().alive);
}

pub async fn dispatch_counts(ledger: &Ledger) {
    let (_, run, call) = ledger.call(n()).await;
    // Published by the decider itself: the first time it is due is later.
    assert!(ledger.store.sweep_dispatch(10).await.unwrap().is_empty());
    for n in 2..5 {
        assert_eq!(ledger.store.dispatch_all().await.unwrap(), 1);
        let jobs = ledger.store.sweep_dispatch(10).await.unwrap();
        assert_eq!((jobs.len(), jobs[0].dispatch_no, jobs[0].query), (1, n, false));
        assert_eq!((&jobs[0].call, &jobs[0].run), (&call, &run));
        assert_eq!(jobs[0].request, Some(json(r#"{"tool":"call"}"#)));
        assert_eq!(jobs[0].request_hash, jobs[0].request.as_ref().unwrap().sha256());
        assert!(ledger.store.sweep_dispatch(10).await.unwrap().is_empty());
    }
    assert_eq!(ledger.receipt(&call).await.dispatch_no, 4);
    // What is claimed is not dispatched, whatever happens to the bus.
    let worker = ledger.worker().await;
    ledger.granted(&worker, &call).await;
    assert_eq!(ledger.store.dispatch_all().await.unwrap(), 0);
    assert!(ledger.store.sweep_dispatch(10).await.unwrap().is_empty());
}

pub async fn delayed_calls_wait(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    let soon = NewReceipt { delay_ms: 1, ..receipt(&run, "soon", &n()) };
    let later = NewReceipt { delay_ms: 3_600_000, ..receipt(&run, "later", &n()) };
    let uid = soon.call.clone();
    ledger.advance(&owner, next(&run, 1, Step { receipts: vec![soon, later], ..step(2) })).await;
    let job = until(|| async { ledger.store.sweep_dispatch(10).await.unwrap().pop() }).await;
    assert_eq!((job.call, job.dispatch_no), (uid, 1));
    assert!(ledger.store.sweep_dispatch(10).await.unwrap().is_empty());
}

/// An open unknown of class K.
async fn unknown(ledger: &Ledger, policy: CallPolicy) -> CallUid {
    let (_, _, call) = ledger.call(policy).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(said(&worker, &call, &held, Verdict::Unknown)).await;
    call
}

pub async fn reconcile_with_query(ledger: &Ledger) {
    let call = unknown(ledger, k_query()).await;
    let jobs = ledger.store.sweep_reconcile(10).await.unwrap();
    assert_eq!((jobs.len(), jobs[0].query, jobs[0].dispatch_no), (1, true, 2));
    assert_eq!(jobs[0].idem_key, format!("ditto:{call}"));
    assert!(ledger.store.sweep_reconcile(10).await.unwrap().is_empty());
    assert_eq!(ledger.receipt(&call).await.state, ReceiptState::Unknown);
    assert!(ledger.store.sweep_dispatch(10).await.unwrap().is_empty());
}

pub async fn reconcile_without_query(ledger: &Ledger) {
    let call = unknown(ledger, k()).await;
    let jobs = ledger.store.sweep_reconcile(10).await.unwrap();
    assert_eq!((jobs.len(), jobs[0].query), (1, false));
    let row = ledger.receipt(&call).await;
    assert_eq!((row.state, row.fence, row.unresolved), (ReceiptState::Planned, 1, 1));
    let worker = ledger.worker().await;
    let answer = ledger.claim(&worker, &call, &ClaimToken::generate()).await;
    assert!(matches!(answer, ClaimAnswer::Granted { fence: 2, earlier_unresolved: 1, .. }), "{answer:?}");
}

pub async fn answers_of_backends(ledger: &Ledger) {
    let output = Some(json(r#"{"id":7}"#));
    let error = WireError::new(ErrorClass::Failed, "REFUSED", "no");
    let refused = || QueryAnswer::Refused { output: None, error: error.clone() };
    let table = [
        (k_query(), QueryAnswer::Applied { output: output.clone() }, Some((ReceiptState::Succeeded, true))),
        (k_query(), refused(), Some((ReceiptState::Failed, true))),
        (CallPolicy { rejections_stored: false, ..k_query() }, refused(), None),
        (k_query(), QueryAnswer::Conflict, Some((ReceiptState::Unknown, true))),
        (k_query(), QueryAnswer::Absent, Some((ReceiptState::Planned, false))),
        (CallPolicy { max_attempts: 1, ..k_query() }, QueryAnswer::Absent, None),
        (k_query(), QueryAnswer::Unanswered, None),
    ];
    for (policy, answer, expected) in table {
        let call = unknown(ledger, policy).await;
        let changed = ledger.store.reconcile(&[(call.clone(), answer.clone())]).await.unwrap().remove(0);
        let changed = changed.map(|change| (change.state, change.settled));
        assert_eq!(changed, expected, "{answer:?}");
        let row = ledger.receipt(&call).await;
        if let Some((state, settled)) = expected {
            assert_eq!((row.state, row.settled_ms.is_some()), (state, settled));
        }
        match answer {
            QueryAnswer::Applied { .. } => {
                assert_eq!((row.output, row.settled_by, row.unresolved), (output.clone(), Some(SettledBy::Query), 0));
            }
            QueryAnswer::Conflict => assert_eq!(row.error.unwrap().code, codes::KEY_CONFLICT),
            _ => {}
        }
    }
    // In progress: nobody is told a new state.
    let call = unknown(ledger, k_query()).await;
    ledger.store.reconcile(&[(call.clone(), QueryAnswer::InProgress)]).await.unwrap();
    let row = ledger.receipt(&call).await;
    assert_eq!((row.state, row.settled_ms), (ReceiptState::Unknown, None));
    // N with a query: only a hit says something.
    let call = unknown(ledger, CallPolicy { query: true, ..n() }).await;
    assert_eq!(ledger.store.reconcile(&[(call.clone(), QueryAnswer::Absent)]).await.unwrap(), [None]);
    assert_eq!(ledger.receipt(&call).await.state, ReceiptState::Unknown);
    let hit = ledger.store.reconcile(&[(call.clone(), QueryAnswer::Applied { output: None })]).await.unwrap();
    assert_eq!(hit[0].as_ref().unwrap().state, ReceiptState::Succeeded);
}

pub async fn limits_of_planned_calls(ledger: &Ledger) {
    assert!(ledger.store.sweep_limits(HOUR, 10).await.unwrap().is_empty());
    let worker = ledger.worker().await;
    // Cancel before any claim.
    let (owner, run, call) = ledger.call(n()).await;
    ledger.advance(&owner, next(&run, 1, Step { cancels: vec![call.clone()], ..step(2) })).await;
    let change = only(ledger.store.sweep_limits(HOUR, 10).await.unwrap());
    assert_eq!((change.state, change.settled, change.owner), (ReceiptState::Cancelled, true, Some(owner.clone())));
    assert_eq!(ledger.store.runs_due(&owner, 0).await.unwrap().mine, std::slice::from_ref(&run));
    // Deadline before any claim.
    let late = NewReceipt { budget_ms: Some(0), ..receipt(&run, "late", &n()) };
    let uid = late.call.clone();
    ledger.advance(&owner, next(&run, 2, Step { receipts: vec![late], ..step(3) })).await;
    assert_eq!(only(ledger.store.sweep_limits(HOUR, 10).await.unwrap()).state, ReceiptState::Failed);
    let row = ledger.receipt(&uid).await;
    let error = row.error.unwrap();
    assert_eq!((error.class, error.code.as_str()), (ErrorClass::Timeout, codes::DEADLINE_EXCEEDED));
    // Every attempt lost its worker.
    let (_, _, call) = ledger.call(CallPolicy { max_attempts: 1, ..r() }).await;
    let lost = ledger.worker().await;
    ledger.granted(&lost, &call).await;
    ledger.store.session_close(&lost).await.unwrap();
    ledger.store.sweep_lost_claims(10).await.unwrap();
    assert!(ledger.store.sweep_dispatch(10).await.unwrap().is_empty());
    assert_eq!(only(ledger.store.sweep_limits(HOUR, 10).await.unwrap()).state, ReceiptState::Failed);
    assert_eq!(code(ledger, &call).await, codes::POISONED);
    // Cancel while an earlier attempt is in doubt: not cancelled.
    let (owner, run, call) = ledger.call(k()).await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(said(&worker, &call, &held, Verdict::Unknown)).await;
    assert_eq!(ledger.store.sweep_reconcile(10).await.unwrap().len(), 1);
    ledger.advance(&owner, next(&run, 1, Step { cancels: vec![call.clone()], ..step(2) })).await;
    let change = only(ledger.store.sweep_limits(HOUR, 10).await.unwrap());
    assert_eq!((change.state, change.settled), (ReceiptState::Unknown, true));
    assert_eq!(code(ledger, &call).await, codes::CANCELLED_IN_FLIGHT);
    // Cancel while claimed changes nothing here; whatever the worker says stands.
    let (owner, run, call) = ledger.call(n()).await;
    let held = ledger.granted(&worker, &call).await;
    ledger.advance(&owner, next(&run, 1, Step { cancels: vec![call.clone()], ..step(2) })).await;
    assert!(ledger.store.sweep_limits(HOUR, 10).await.unwrap().is_empty());
    ledger.settle(said(&worker, &call, &held, Verdict::Succeeded)).await;
    assert_eq!(ledger.receipt(&call).await.state, ReceiptState::Succeeded);
}

pub async fn limits_of_open_unknowns(ledger: &Ledger) {
    // With a query it is asked until the time for it is used up.
    let call = unknown(ledger, k_query()).await;
    assert!(ledger.store.sweep_limits(HOUR, 10).await.unwrap().is_empty());
    let change = only(ledger.store.sweep_limits(Duration::ZERO, 10).await.unwrap());
    assert_eq!((change.state, change.settled), (ReceiptState::Unknown, true));
    assert_eq!(code(ledger, &call).await, codes::RECONCILE_EXHAUSTED);
    assert_eq!(ledger.receipt(&call).await.unresolved, 1);
    // Without one, attempts are the limit.
    let call = unknown(ledger, CallPolicy { max_attempts: 1, ..k() }).await;
    assert!(ledger.store.sweep_reconcile(10).await.unwrap().is_empty());
    assert!(only(ledger.store.sweep_limits(HOUR, 10).await.unwrap()).settled);
    assert_eq!(code(ledger, &call).await, codes::ATTEMPTS_EXHAUSTED);
    // A key that the backend does not remember any more is not sent again.
    let call = unknown(ledger, CallPolicy { key_ttl_ms: Some(0), ..k() }).await;
    assert!(ledger.store.sweep_reconcile(10).await.unwrap().is_empty());
    assert!(only(ledger.store.sweep_limits(HOUR, 10).await.unwrap()).settled);
    assert_eq!(code(ledger, &call).await, codes::KEY_WINDOW_CLOSED);
}

pub async fn nobody_serves(ledger: &Ledger) {
    let worker = ledger.worker().await;
    let offer = |source: Option<&str>| Offer {
        node: NodeType::new(NodeType::ACT_TOOL).unwrap(),
        source: source.map(str::to_owned),
        policy: n(),
        description: None,
        input_schema: None,
        effects: Vec::new(),
        requires_approval: false,
    };
    let (_, _, call) = ledger.call(n()).await;
    assert!(ledger.store.sweep_unserved(HOUR, 10).await.unwrap().is_empty());
    ledger.store.offers_put(&worker, "interaction", None, &[offer(Some("tool"))]).await.unwrap();
    assert!(ledger.store.sweep_unserved(Duration::ZERO, 10).await.unwrap().is_empty());
    ledger.store.offers_put(&worker, "interaction", None, &[offer(None)]).await.unwrap();
    assert!(ledger.store.sweep_unserved(Duration::ZERO, 10).await.unwrap().is_empty());
    ledger.store.offers_put(&worker, "interaction", None, &[offer(Some("other"))]).await.unwrap();
    let change = only(ledger.store.sweep_unserved(Duration::ZERO, 10).await.unwrap());
    assert_eq!((change.state, change.settled), (ReceiptState::Failed, true));
    assert_eq!(code(ledger, &call).await, codes::NO_WORKER_AVAILABLE);
    // Claimed once: somebody was there.
    let (_, _, call) = ledger.call(n()).await;
    ledger.granted(&worker, &call).await;
    assert!(ledger.store.sweep_unserved(Duration::ZERO, 10).await.unwrap().is_empty());
}

pub async fn sessions_expire(ledger: &Ledger) {
    let (short, long) = (ledger.session_for(SessionRole::Worker, 0).await, ledger.worker().await);
    assert!(ledger.store.sessions_expire(HOUR).await.unwrap().is_empty());
    // Late, but not declared dead: it may go on.
    assert!(ledger.store.session_renew(&short, 0).await.unwrap().alive);
    let dead = until(|| async {
        let dead = ledger.store.sessions_expire(Duration::ZERO).await.unwrap();
        (!dead.is_empty()).then_some(dead)
    })
    .await;
    assert_eq!(dead, std::slice::from_ref(&short));
    assert!(!ledger.store.session_renew(&short, 60_000).await.unwrap().alive);
    assert!(ledger.store.session_renew(&long, 60_000).await.unwrap().alive);
    let listed = ledger.store.sessions_list(10).await.unwrap();
    assert_eq!(listed.iter().map(|row| &row.session).collect::<Vec<_>>(), [&long, &short]);
    assert!(listed[1].dead_ms.is_some() && listed[0].dead_ms.is_none());
    assert!(!ledger.store.session_renew(&SessionId::generate(), 1).await.unwrap().alive);
}

pub async fn instances_replace(ledger: &Ledger) {
    let open = |session: &SessionId, instance: Option<&str>| NewSession {
        session: session.clone(),
        role: SessionRole::Worker,
        kind: "interaction".into(),
        name: "host".into(),
        build: "test".into(),
        instance: instance.map(str::to_owned),
        ttl_ms: 60_000,
    };
    let (a, b, c) = (SessionId::generate(), SessionId::generate(), SessionId::generate());
    assert!(ledger.store.session_open(&open(&a, Some("one"))).await.unwrap().alive);
    assert!(ledger.store.session_open(&open(&b, Some("two"))).await.unwrap().alive);
    assert!(ledger.store.session_open(&open(&c, Some("one"))).await.unwrap().alive);
    assert!(!ledger.store.session_renew(&a, 60_000).await.unwrap().alive);
    assert!(ledger.store.session_renew(&b, 60_000).await.unwrap().alive);
    // An echo of the first opening brings nobody back and replaces nobody.
    assert!(!ledger.store.session_open(&open(&a, Some("one"))).await.unwrap().alive);
    assert!(ledger.store.session_renew(&c, 60_000).await.unwrap().alive);
}

pub async fn held_calls_are_reviewed(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let worker = ledger.worker().await;
    let (run, calls) = ledger.run_with(&owner, &[("done", n()), ("stop", n()), ("going", n())]).await;
    let done = ledger.granted(&worker, &calls[0]).await;
    ledger.granted(&worker, &calls[1]).await;
    ledger.granted(&worker, &calls[2]).await;
    ledger.settle(said(&worker, &calls[0], &done, Verdict::Succeeded)).await;
    ledger.advance(&owner, next(&run, 1, Step { cancels: vec![calls[1].clone()], ..step(2) })).await;
    let review = ledger.store.held_review(&worker, &calls).await.unwrap();
    assert_eq!(review, (vec![calls[0].clone()], vec![calls[1].clone()]));
}

pub async fn retention_drops_days(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let worker = ledger.worker().await;
    let (run, calls) = ledger.run_with(&owner, &[("a", n())]).await;
    let held = ledger.granted(&worker, &calls[0]).await;
    ledger.settle(said(&worker, &calls[0], &held, Verdict::Unknown)).await;
    for version in 1..4 {
        ledger.advance(&owner, next(&run, version, step(version + 1))).await;
    }
    // Pruning leaves what is needed to go on.
    while ledger.store.sweep_retention(HOUR).await.unwrap() {}
    ledger.store.session_close(&owner).await.unwrap();
    let heir = ledger.coordinator().await;
    let taken = ledger.store.run_take(&heir, &run).await.unwrap().unwrap();
    assert_eq!((taken.version, taken.checkpoint), (4, Some(step(4).checkpoint)));
    // A day with a run that goes on stays.
    while ledger.store.sweep_retention(Duration::ZERO).await.unwrap() {}
    assert!(ledger.store.run_get(None, &run).await.unwrap().is_some());
    let last = Advance { epoch: taken.epoch, ..next(&run, 4, ending(RunStatus::Completed)) };
    assert_eq!(ledger.advance(&heir, last).await, Advanced::Done);
    while ledger.store.sweep_retention(HOUR).await.unwrap() {}
    assert!(ledger.store.run_get(None, &run).await.unwrap().is_some());
}
