//! Claiming and releasing attempts.

use std::collections::HashMap;

use ditto_contracts::{ReceiptState, Verdict, codes, wire::ledger::ReleaseItem};
use ditto_coordinator::store::Step;

use super::*;

fn refused(reason: &str) -> ClaimAnswer {
    ClaimAnswer::Refused { reason: reason.to_owned() }
}

pub async fn one_of_twelve_wins(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let names: Vec<String> = (0..20).map(|n| format!("c{n}")).collect();
    let wanted: Vec<(&str, CallPolicy)> = names.iter().map(|name| (name.as_str(), n())).collect();
    let (_, calls) = ledger.run_with(&owner, &wanted).await;
    let mut tasks = tokio::task::JoinSet::new();
    for racer in 0..12 {
        let store = if racer % 2 == 0 { ledger.store.clone() } else { ledger.second.clone() };
        let session = ledger.worker().await;
        let mut items: Vec<ClaimItem> = calls
            .iter()
            .map(|call| ClaimItem { bucket: call.bucket(), call: call.clone(), token: ClaimToken::generate() })
            .collect();
        items.rotate_left(racer);
        tasks.spawn(async move {
            let answers = store.claim(&session, &items).await.unwrap();
            items.into_iter().map(|item| item.call).zip(answers).collect::<Vec<_>>()
        });
    }
    let mut winners: HashMap<CallUid, u32> = HashMap::new();
    while let Some(answers) = tasks.join_next().await {
        for (call, answer) in answers.unwrap() {
            match answer {
                ClaimAnswer::Granted { fence: 1, earlier_unresolved: 0, .. } => *winners.entry(call).or_default() += 1,
                ClaimAnswer::Taken => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(winners.len(), calls.len());
    assert!(winners.values().all(|count| *count == 1));
}

pub async fn a_claim_is_repeated_by_token(ledger: &Ledger) {
    let (_, _, call) = ledger.call(k()).await;
    let (worker, other) = (ledger.worker().await, ledger.worker().await);
    let token = ClaimToken::generate();
    let first = ledger.claim(&worker, &call, &token).await;
    let ClaimAnswer::Granted { fence: 1, earlier_unresolved: 0, key, request_hash, policy, budget_ms: None } = &first
    else {
        panic!("{first:?}")
    };
    assert_eq!((key.clone(), policy.clone()), (format!("ditto:{call}"), k()));
    let row = ledger.receipt(&call).await;
    let hash: String = row.request.unwrap().sha256().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(*request_hash, hash);
    assert_eq!(ledger.claim(&worker, &call, &token).await, first);
    assert_eq!(ledger.claim(&worker, &call, &ClaimToken::generate()).await, ClaimAnswer::Taken);
    assert_eq!(ledger.claim(&other, &call, &ClaimToken::generate()).await, ClaimAnswer::Taken);
    let row = ledger.receipt(&call).await;
    assert_eq!((row.fence, row.unresolved, row.session), (1, 1, Some(worker)));
    let stranger = CallUid::derive(&ledger.run_id().await, CallKind::Tool, &CallId::new("x").unwrap());
    assert_eq!(ledger.claim(&other, &stranger, &token).await, ClaimAnswer::Missing);
}

pub async fn the_dead_claim_nothing(ledger: &Ledger) {
    let (_, _, call) = ledger.call(n()).await;
    let dead = ledger.worker().await;
    ledger.store.session_close(&dead).await.unwrap();
    assert_eq!(ledger.claim(&dead, &call, &ClaimToken::generate()).await, refused("SESSION_DEAD"));
    let unheard_of = SessionId::generate();
    assert_eq!(ledger.claim(&unheard_of, &call, &ClaimToken::generate()).await, refused("SESSION_DEAD"));
    // Silent beyond its life, though nobody has declared it dead yet.
    let silent = ledger.session_for(SessionRole::Worker, 0).await;
    assert_eq!(ledger.claim(&silent, &call, &ClaimToken::generate()).await, refused("SESSION_DEAD"));
    assert_eq!(ledger.receipt(&call).await.fence, 0);
}

pub async fn no_claim_beyond_a_limit(ledger: &Ledger) {
    let worker = ledger.worker().await;
    let (owner, run, call) = ledger.call(n()).await;
    let cancel = Step { cancels: vec![call.clone()], ..step(2) };
    ledger.advance(&owner, next(&run, 1, cancel)).await;
    assert_eq!(ledger.claim(&worker, &call, &ClaimToken::generate()).await, refused(codes::CANCELLED));

    let late = NewReceipt { budget_ms: Some(0), ..receipt(&run, "late", &n()) };
    let uid = late.call.clone();
    ledger.advance(&owner, next(&run, 2, Step { receipts: vec![late], ..step(3) })).await;
    assert_eq!(ledger.claim(&worker, &uid, &ClaimToken::generate()).await, refused(codes::DEADLINE_EXCEEDED));

    let once = CallPolicy { max_attempts: 1, ..r() };
    let (_, _, call) = ledger.call(once).await;
    let held = ledger.granted(&worker, &call).await;
    assert_eq!(release(ledger, &worker, &call, &held, true).await, [true]);
    assert_eq!(ledger.claim(&worker, &call, &ClaimToken::generate()).await, refused(codes::ATTEMPTS_EXHAUSTED));

    let (_, _, call) = ledger.call(n()).await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(said(&worker, &call, &held, Verdict::Failed)).await;
    let settled = ClaimAnswer::Settled { state: ReceiptState::Failed };
    assert_eq!(ledger.claim(&worker, &call, &ClaimToken::generate()).await, settled);

    // What is left of a deadline is told.
    let (owner, run, _) = ledger.call(n()).await;
    let timed = NewReceipt { budget_ms: Some(60_000), ..receipt(&run, "timed", &n()) };
    let uid = timed.call.clone();
    ledger.advance(&owner, next(&run, 1, Step { receipts: vec![timed], ..step(2) })).await;
    let answer = ledger.claim(&worker, &uid, &ClaimToken::generate()).await;
    assert!(matches!(answer, ClaimAnswer::Granted { budget_ms: Some(1..=60_000), .. }), "{answer:?}");
}

async fn release(
    ledger: &Ledger,
    session: &SessionId,
    call: &CallUid,
    (token, fence): &(ClaimToken, u32),
    unstarted: bool,
) -> Vec<bool> {
    let item = ReleaseItem {
        bucket: call.bucket(),
        call: call.clone(),
        fence: *fence,
        token: token.clone(),
        unstarted,
        delay_ms: 0,
        error: None,
    };
    ledger.store.release(session, &[item]).await.unwrap()
}

pub async fn release_unstarted(ledger: &Ledger) {
    let (worker, other) = (ledger.worker().await, ledger.worker().await);
    for policy in [r(), k(), n()] {
        let (_, _, call) = ledger.call(policy).await;
        let held = ledger.granted(&worker, &call).await;
        let wrong = (ClaimToken::generate(), held.1);
        assert_eq!(release(ledger, &worker, &call, &wrong, true).await, [false]);
        assert_eq!(release(ledger, &other, &call, &held, true).await, [false]);
        assert_eq!(release(ledger, &worker, &call, &held, true).await, [true]);
        let row = ledger.receipt(&call).await;
        assert_eq!((row.state, row.fence, row.unresolved), (ReceiptState::Planned, 1, 0));
        assert_eq!(ledger.store.attempts_list(&call, 10).await.unwrap()[0].event, "released");
        assert_eq!(ledger.granted(&other, &call).await.1, 2);
    }
}

pub async fn release_started_by_class(ledger: &Ledger) {
    let worker = ledger.worker().await;
    for (policy, back) in [(r(), true), (k(), false), (n(), false)] {
        let (_, _, call) = ledger.call(policy).await;
        let held = ledger.granted(&worker, &call).await;
        assert_eq!(release(ledger, &worker, &call, &held, false).await, [back]);
        let row = ledger.receipt(&call).await;
        let state = if back { ReceiptState::Planned } else { ReceiptState::Claimed };
        assert_eq!((row.state, row.unresolved), (state, 1));
    }
}

pub async fn release_is_repeated(ledger: &Ledger) {
    let (_, _, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    for _ in 0..2 {
        assert_eq!(release(ledger, &worker, &call, &held, true).await, [true]);
    }
    assert_eq!(ledger.receipt(&call).await.unresolved, 0);
    assert_eq!(ledger.store.attempts_list(&call, 10).await.unwrap().len(), 1);
    let next = ledger.granted(&worker, &call).await;
    assert_eq!(release(ledger, &worker, &call, &held, true).await, [false]);
    ledger.settle(said(&worker, &call, &next, Verdict::Succeeded)).await;
    assert_eq!(release(ledger, &worker, &call, &next, true).await, [false]);
}

pub async fn a_second_claim_supersedes(ledger: &Ledger) {
    let (_, _, call) = ledger.call(r()).await;
    let (first, second) = (ledger.worker().await, ledger.worker().await);
    ledger.granted(&first, &call).await;
    ledger.store.session_close(&first).await.unwrap();
    assert_eq!(ledger.store.sweep_lost_claims(10).await.unwrap().len(), 1);
    let answer = ledger.claim(&second, &call, &ClaimToken::generate()).await;
    assert!(matches!(answer, ClaimAnswer::Granted { fence: 2, earlier_unresolved: 1, .. }), "{answer:?}");
    let log = ledger.store.attempts_list(&call, 10).await.unwrap();
    assert_eq!((log.len(), log[0].fence, log[0].event.as_str()), (1, 1, "superseded"));
}

pub async fn a_used_token_starts_nothing(ledger: &Ledger) {
    // An echo of a claim whose attempt was given back.
    let (_, _, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    assert_eq!(release(ledger, &worker, &call, &held, true).await, [true]);
    let answer = ledger.claim(&worker, &call, &held.0).await;
    assert!(!matches!(answer, ClaimAnswer::Granted { .. }), "{answer:?}");
    assert_eq!(ledger.receipt(&call).await.fence, 1);
}
