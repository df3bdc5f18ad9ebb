//! Submitting, advancing, taking over and waking runs.

use ditto_contracts::{ReceiptState, RunStatus, SubmitKey, Verdict};
use ditto_coordinator::store::{Advance, Advanced, NewRun, Settled, Step, Submitted};

use super::*;

pub async fn submit_creates_once(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let run = ledger.run_id().await;
    let new = NewRun { first: Some(step(1)), ..new_run(&run) };
    for _ in 0..2 {
        assert_eq!(ledger.store.submit(&owner, std::slice::from_ref(&new)).await.unwrap(), [Submitted::Created]);
    }
    let other = NewRun { body_hash: [8; 32], ..new };
    assert_eq!(ledger.store.submit(&owner, &[other]).await.unwrap(), [Submitted::KeyReused { run: run.clone() }]);
    let row = ledger.store.run_get(Some(&tenant()), &run).await.unwrap().unwrap();
    assert_eq!((row.version, row.status, row.owner), (1, RunStatus::Running, Some(owner)));
    assert!(ledger.store.run_get(Some(&Namespace::new("other").unwrap()), &run).await.unwrap().is_none());
}

fn keyed(run: &RunId, key: &str) -> NewRun {
    NewRun { key: Some(SubmitKey::new(key).unwrap()), ..new_run(run) }
}

pub async fn submit_key_is_kept(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (a, b, c, d) = (ledger.run_id().await, ledger.run_id().await, ledger.run_id().await, ledger.run_id().await);
    let elsewhere = NewRun { namespace: Namespace::new("other").unwrap(), ..keyed(&d, "key") };
    let answers = ledger
        .store
        .submit(
            &owner,
            &[keyed(&a, "key"), keyed(&b, "key"), NewRun { body_hash: [9; 32], ..keyed(&c, "key") }, elsewhere],
        )
        .await
        .unwrap();
    let expected = [
        Submitted::Created,
        Submitted::Duplicate { run: a.clone() },
        Submitted::KeyReused { run: a.clone() },
        Submitted::Created,
    ];
    assert_eq!(answers, expected);
    // A lost reply: the same run with the same key is still the one that was created.
    assert_eq!(ledger.store.submit(&owner, &[keyed(&a, "key")]).await.unwrap(), [Submitted::Created]);
    assert_eq!(ledger.store.submit(&owner, &[keyed(&b, "key")]).await.unwrap(), [Submitted::Duplicate { run: a }]);
    assert!(ledger.store.run_get(None, &b).await.unwrap().is_none());
}

pub async fn one_key_from_many_sides(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { ledger.store.clone() } else { ledger.second.clone() };
        let (owner, run) = (owner.clone(), ledger.run_id().await);
        tasks.spawn(async move { (run.clone(), store.submit(&owner, &[keyed(&run, "one")]).await.unwrap().remove(0)) });
    }
    let (mut created, mut duplicates) = (Vec::new(), Vec::new());
    while let Some(answer) = tasks.join_next().await {
        match answer.unwrap() {
            (run, Submitted::Created) => created.push(run),
            (_, Submitted::Duplicate { run }) => duplicates.push(run),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!(created.len(), 1);
    assert!(duplicates.iter().all(|run| *run == created[0]));
}

pub async fn a_first_step_is_owned(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let run = ledger.run_id().await;
    ledger.store.submit(&owner, &[new_run(&run)]).await.unwrap();
    let row = ledger.store.run_get(None, &run).await.unwrap().unwrap();
    assert_eq!((row.version, row.status, row.owner), (0, RunStatus::Queued, None));
    let taken = ledger.store.runs_due(&owner, 10).await.unwrap().taken;
    assert_eq!((taken.len(), taken[0].epoch, taken[0].version), (1, 1, 0));
    assert!(taken[0].checkpoint.is_none());
    let first = Advance { version: 0, ..next(&run, 0, step(1)) };
    assert_eq!(ledger.advance(&owner, first).await, Advanced::Done);
}

pub async fn advance_goes_on(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    let planned = Step { receipts: vec![receipt(&run, "a", &n()), receipt(&run, "b", &r())], ..step(2) };
    assert_eq!(ledger.advance(&owner, next(&run, 1, planned)).await, Advanced::Done);
    assert_eq!(ledger.advance(&owner, next(&run, 2, step(3))).await, Advanced::Done);
    let row = ledger.store.run_get(None, &run).await.unwrap().unwrap();
    assert_eq!(row.version, 3);
    let a = ledger.receipt(&receipt(&run, "a", &n()).call).await;
    assert_eq!((a.state, a.fence, a.dispatch_no), (ReceiptState::Planned, 0, 1));
    assert_eq!((a.policy, a.request), (n(), Some(json(r#"{"tool":"a"}"#))));
}

pub async fn a_stale_epoch_spoils_nothing(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (a, _) = ledger.run_with(&owner, &[]).await;
    let (b, _) = ledger.run_with(&owner, &[]).await;
    let (c, _) = ledger.run_with(&owner, &[]).await;
    let stranger = ledger.run_id().await;
    let with_call = |run: &RunId| Step { receipts: vec![receipt(run, "x", &n())], ..step(2) };
    let items = [
        next(&a, 1, with_call(&a)),
        Advance { epoch: 2, ..next(&b, 1, with_call(&b)) },
        next(&c, 5, with_call(&c)),
        next(&stranger, 1, step(2)),
    ];
    let answers = ledger.store.advance(&owner, &items).await.unwrap();
    assert_eq!(answers, [Advanced::Done, Advanced::Lost, Advanced::Lost, Advanced::Lost]);
    assert!(ledger.store.receipt_get(&receipt(&a, "x", &n()).call).await.unwrap().is_some());
    assert!(ledger.store.receipt_get(&receipt(&b, "x", &n()).call).await.unwrap().is_none());
    assert!(ledger.store.receipt_get(&receipt(&c, "x", &n()).call).await.unwrap().is_none());
}

pub async fn advance_is_repeated(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    let item = next(&run, 1, Step { receipts: vec![receipt(&run, "a", &n())], ..step(2) });
    for _ in 0..3 {
        assert_eq!(ledger.advance(&owner, item.clone()).await, Advanced::Done);
    }
    assert_eq!(ledger.store.run_get(None, &run).await.unwrap().unwrap().version, 2);
    // Another decision on the same version, or the same by somebody else, is not a repetition.
    assert_eq!(ledger.advance(&owner, next(&run, 1, step(77))).await, Advanced::Lost);
    let other = ledger.coordinator().await;
    assert_eq!(ledger.advance(&other, item.clone()).await, Advanced::Lost);
    // The last commit of a run too.
    let last = next(&run, 2, ending(RunStatus::Completed));
    assert_eq!(ledger.advance(&owner, last.clone()).await, Advanced::Done);
    assert_eq!(ledger.advance(&owner, last).await, Advanced::Done);
}

pub async fn a_call_id_is_used_once(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, calls) = ledger.run_with(&owner, &[("a", n())]).await;
    let (other, _) = ledger.run_with(&owner, &[]).await;
    let changed = json(r#"{"tool":"another"}"#);
    let reused = NewReceipt { request_hash: changed.sha256(), request: changed, ..receipt(&run, "a", &n()) };
    let fresh = receipt(&run, "b", &n());
    let items = [
        next(&run, 1, Step { receipts: vec![fresh.clone(), reused], ..step(2) }),
        next(&other, 1, Step { receipts: vec![receipt(&other, "a", &n())], ..step(2) }),
    ];
    let answers = ledger.store.advance(&owner, &items).await.unwrap();
    assert_eq!(answers, [Advanced::CallIdReused { call: calls[0].clone() }, Advanced::Done]);
    assert!(ledger.store.receipt_get(&fresh.call).await.unwrap().is_none());
    assert_eq!(ledger.store.run_get(None, &run).await.unwrap().unwrap().version, 1);
    // The same call with the same request was decided before: nothing new.
    let same = Step { receipts: vec![receipt(&run, "a", &n())], ..step(2) };
    assert_eq!(ledger.advance(&owner, next(&run, 1, same)).await, Advanced::Done);
}

pub async fn settle_and_advance_are_one(ledger: &Ledger) {
    let (owner, run, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    let item = Advance {
        settles: vec![said(&worker, &call, &held, Verdict::Succeeded)],
        ..next(&run, 1, Step { receipts: vec![receipt(&run, "next", &n())], ..step(2) })
    };
    for _ in 0..2 {
        assert_eq!(ledger.advance(&owner, item.clone()).await, Advanced::Done);
        let row = ledger.receipt(&call).await;
        assert_eq!((row.state, row.settle_rev, row.unresolved), (ReceiptState::Succeeded, 1, 0));
    }
    assert_eq!(ledger.store.run_get(None, &run).await.unwrap().unwrap().version, 2);
    // Its own settlement rings nobody.
    assert!(ledger.store.runs_due(&owner, 0).await.unwrap().mine.is_empty());
    // Settled on its own before, by somebody else with the same news: it counts.
    let call = receipt(&run, "next", &n()).call;
    let held = ledger.granted(&worker, &call).await;
    let settle = said(&worker, &call, &held, Verdict::Succeeded);
    assert!(matches!(ledger.settle(settle.clone()).await, Settled::Done { .. }));
    let item = Advance { settles: vec![settle], ..next(&run, 2, step(3)) };
    assert_eq!(ledger.advance(&owner, item).await, Advanced::Done);
}

pub async fn a_lost_settlement_is_stale(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let worker = ledger.worker().await;
    let (run, calls) = ledger.run_with(&owner, &[("a", n()), ("b", n())]).await;
    let (other, _) = ledger.run_with(&owner, &[]).await;
    let a = ledger.granted(&worker, &calls[0]).await;
    let b = ledger.granted(&worker, &calls[1]).await;
    let wrong = (ClaimToken::generate(), b.1);
    let items = [
        Advance {
            settles: vec![
                said(&worker, &calls[0], &a, Verdict::Succeeded),
                said(&worker, &calls[1], &wrong, Verdict::Succeeded),
            ],
            ..next(&run, 1, step(2))
        },
        next(&other, 1, step(2)),
    ];
    assert_eq!(ledger.store.advance(&owner, &items).await.unwrap(), [Advanced::Stale, Advanced::Done]);
    assert_eq!(ledger.store.run_get(None, &run).await.unwrap().unwrap().version, 1);
    // What did apply stands, and its owner is told to read again.
    assert_eq!(ledger.receipt(&calls[0]).await.state, ReceiptState::Succeeded);
    assert_eq!(ledger.receipt(&calls[1]).await.state, ReceiptState::Claimed);
    assert_eq!(ledger.store.runs_due(&owner, 0).await.unwrap().mine, std::slice::from_ref(&run));
    assert_eq!(ledger.store.attempts_list(&calls[1], 10).await.unwrap()[0].event, "late");
    // A settlement that contradicts the one that stands is stale too.
    let contrary = Advance { settles: vec![said(&worker, &calls[0], &a, Verdict::Failed)], ..next(&run, 1, step(2)) };
    assert_eq!(ledger.advance(&owner, contrary).await, Advanced::Stale);
    assert_eq!(ledger.receipt(&calls[0]).await.state, ReceiptState::Succeeded);
}

pub async fn an_ending_is_kept(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    let error = WireError::new(ditto_contracts::ErrorClass::Failed, "TASK_FAILED", "a task failed");
    let mut last = ending(RunStatus::Failed);
    last.ending.as_mut().unwrap().error = Some(error.clone());
    assert_eq!(ledger.advance(&owner, next(&run, 1, last)).await, Advanced::Done);
    let row = ledger.store.run_get(None, &run).await.unwrap().unwrap();
    assert_eq!((row.status, row.owner, row.error), (RunStatus::Failed, None, Some(error)));
    assert_eq!(row.output, Some(json(r#"{"out":1}"#)));
    assert!(row.ended_ms.is_some());
    // In its first step too.
    let run = ledger.run_id().await;
    let new = NewRun { first: Some(ending(RunStatus::Completed)), ..new_run(&run) };
    ledger.store.submit(&owner, &[new]).await.unwrap();
    let row = ledger.store.run_get(None, &run).await.unwrap().unwrap();
    assert_eq!((row.status, row.owner, row.output.is_some()), (RunStatus::Completed, None, true));
}

pub async fn an_ended_run_stays(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    ledger.advance(&owner, next(&run, 1, ending(RunStatus::Completed))).await;
    assert_eq!(ledger.advance(&owner, next(&run, 2, step(3))).await, Advanced::Lost);
    assert!(ledger.store.run_take(&owner, &run).await.unwrap().is_none());
    let due = ledger.store.runs_due(&owner, 10).await.unwrap();
    assert!(due.mine.is_empty() && due.taken.is_empty());
    assert_eq!(ledger.store.signal_append(&tenant(), &run, "go", &Json::null(), None).await.unwrap(), None);
}

fn parked(n: i64, wake_ms: Option<i64>) -> Step {
    Step { status: RunStatus::Parked, wake_ms, ..step(n) }
}

pub async fn parked_runs_wake_by_bell(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    ledger.advance(&owner, next(&run, 1, parked(2, None))).await;
    assert_eq!(ledger.store.run_get(None, &run).await.unwrap().unwrap().owner, None);
    assert!(ledger.store.runs_due(&owner, 10).await.unwrap().taken.is_empty());
    assert_eq!(ledger.store.signal_append(&tenant(), &run, "go", &json("1"), None).await.unwrap(), Some(1));
    let taken = ledger.store.runs_due(&owner, 10).await.unwrap().taken;
    assert_eq!((taken.len(), taken[0].epoch, taken[0].signals.len()), (1, 2, 1));
    let again = Advance { epoch: 2, ..next(&run, 2, Step { bell_seen: taken[0].bell, ..parked(3, None) }) };
    assert_eq!(ledger.advance(&owner, again).await, Advanced::Done);
    assert!(ledger.store.runs_due(&owner, 10).await.unwrap().taken.is_empty());
}

pub async fn parked_runs_wake_by_time(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let now = ledger.store.now_ms().await.unwrap();
    let (later, _) = ledger.run_with(&owner, &[]).await;
    let (soon, _) = ledger.run_with(&owner, &[]).await;
    ledger.advance(&owner, next(&later, 1, parked(2, Some(now + 3_600_000)))).await;
    ledger.advance(&owner, next(&soon, 1, parked(2, Some(now)))).await;
    let taken = ledger.store.runs_due(&owner, 10).await.unwrap().taken;
    assert_eq!(taken.iter().map(|run| &run.run).collect::<Vec<_>>(), [&soon]);
    // A running one that asked to be woken is its owner's.
    let (mine, _) = ledger.run_with(&owner, &[]).await;
    ledger.advance(&owner, next(&mine, 1, Step { wake_ms: Some(now), ..step(2) })).await;
    assert!(ledger.store.runs_due(&owner, 10).await.unwrap().mine.contains(&mine));
    // A parked one can be taken before its time.
    assert_eq!(ledger.store.run_take(&owner, &later).await.unwrap().unwrap().epoch, 2);
}

pub async fn runs_of_the_dead_are_taken(ledger: &Ledger) {
    let (old, new) = (ledger.coordinator().await, ledger.coordinator().await);
    let (run, _) = ledger.run_with(&old, &[]).await;
    assert!(ledger.store.runs_due(&new, 10).await.unwrap().taken.is_empty());
    assert!(ledger.store.run_take(&new, &run).await.unwrap().is_none());
    ledger.store.session_close(&old).await.unwrap();
    assert!(ledger.store.runs_due(&new, 0).await.unwrap().taken.is_empty());
    let taken = ledger.second.runs_due(&new, 10).await.unwrap().taken;
    assert_eq!((taken.len(), taken[0].epoch, taken[0].version), (1, 2, 1));
    assert_eq!(taken[0].checkpoint, Some(step(1).checkpoint));
    assert_eq!(taken[0].input, json(r#"{"in":1}"#));
    assert!(ledger.store.runs_due(&new, 10).await.unwrap().taken.is_empty());
}

pub async fn a_taken_run_is_found_again(ledger: &Ledger) {
    let (old, new) = (ledger.coordinator().await, ledger.coordinator().await);
    let (run, _) = ledger.run_with(&old, &[]).await;
    ledger.store.session_close(&old).await.unwrap();
    // The answer is lost; the run is among the taker's own until its first commit, and can be read again.
    let lost = ledger.store.runs_due(&new, 10).await.unwrap().taken.remove(0);
    assert_eq!(ledger.store.runs_due(&new, 10).await.unwrap().mine, std::slice::from_ref(&run));
    let again = ledger.store.run_take(&new, &run).await.unwrap().unwrap();
    assert_eq!((again.epoch, again.version), (lost.epoch, lost.version));
    let step = Step { bell_seen: again.bell, ..step(2) };
    assert_eq!(ledger.advance(&new, Advance { epoch: again.epoch, ..next(&run, 1, step) }).await, Advanced::Done);
    assert!(ledger.store.runs_due(&new, 10).await.unwrap().mine.is_empty());
}

pub async fn yielded_runs_are_taken(ledger: &Ledger) {
    let (a, b) = (ledger.coordinator().await, ledger.coordinator().await);
    let (run, _) = ledger.run_with(&a, &[]).await;
    ledger.store.runs_yield(&b, std::slice::from_ref(&run)).await.unwrap();
    assert!(ledger.store.runs_due(&b, 10).await.unwrap().taken.is_empty());
    ledger.store.runs_yield(&a, std::slice::from_ref(&run)).await.unwrap();
    assert_eq!(ledger.store.runs_due(&b, 10).await.unwrap().taken.len(), 1);
}

pub async fn old_owners_change_nothing(ledger: &Ledger) {
    let (old, new) = (ledger.coordinator().await, ledger.coordinator().await);
    let (run, _) = ledger.run_with(&old, &[]).await;
    ledger.store.session_close(&old).await.unwrap();
    ledger.store.run_take(&new, &run).await.unwrap().unwrap();
    assert_eq!(ledger.advance(&old, next(&run, 1, step(2))).await, Advanced::Lost);
    assert_eq!(ledger.store.run_get(None, &run).await.unwrap().unwrap().version, 1);
}

pub async fn a_taken_run_brings_its_calls(ledger: &Ledger) {
    let (old, new) = (ledger.coordinator().await, ledger.coordinator().await);
    let worker = ledger.worker().await;
    let (run, calls) = ledger.run_with(&old, &[("a", n()), ("b", n()), ("unnamed", n())]).await;
    ledger.advance(&old, next(&run, 1, step_with(&calls[..2]))).await;
    let held = ledger.granted(&worker, &calls[0]).await;
    ledger.settle(said(&worker, &calls[0], &held, Verdict::Succeeded)).await;
    ledger.store.session_close(&old).await.unwrap();
    let taken = ledger.store.run_take(&new, &run).await.unwrap().unwrap();
    assert_eq!(taken.calls.len(), 2);
    let done = &taken.calls[&calls[0]];
    assert_eq!(done.state, ReceiptState::Succeeded);
    assert_eq!(done.outcome.as_ref().unwrap().output, Some(json(r#"{"ok":true}"#)));
    assert!(taken.calls[&calls[1]].outcome.is_none());
}

pub async fn news_tell_what_is_settled(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let worker = ledger.worker().await;
    let (run, calls) = ledger.run_with(&owner, &[("a", n()), ("b", n())]).await;
    let held = ledger.granted(&worker, &calls[0]).await;
    let settled = ledger.settle(said(&worker, &calls[0], &held, Verdict::Unknown)).await;
    assert!(matches!(settled, Settled::Done { owner: Some(o), settled: true, .. } if o == owner));
    assert_eq!(ledger.store.runs_due(&owner, 0).await.unwrap().mine, std::slice::from_ref(&run));
    ledger.store.signal_append(&tenant(), &run, "s", &json("[1]"), None).await.unwrap();
    let news = ledger.store.run_news(&run, &calls, 0).await.unwrap().unwrap();
    assert_eq!(news.settled.len(), 1);
    assert_eq!((news.settled[0].1.state, news.settled[0].1.settle_rev), (ReceiptState::Unknown, 1));
    assert_eq!((news.signals.len(), news.cancel_asked), (1, false));
    // Read up to here: not due any more.
    let step = Step { bell_seen: news.bell, signal_seen: Some(1), ..step(2) };
    ledger.advance(&owner, next(&run, 1, step)).await;
    assert!(ledger.store.runs_due(&owner, 0).await.unwrap().mine.is_empty());
    assert!(ledger.store.run_news(&run, &[], 1).await.unwrap().unwrap().signals.is_empty());
    assert!(ledger.store.run_news(&ledger.run_id().await, &[], 0).await.unwrap().is_none());
}

pub async fn signals_come_once(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    let body = json(r#"{"yes":true}"#);
    let append = |request: Option<&'static str>| {
        let (store, run, body) = (ledger.store.clone(), run.clone(), body.clone());
        async move { store.signal_append(&tenant(), &run, "approve", &body, request).await.unwrap() }
    };
    assert_eq!(append(Some("r1")).await, Some(1));
    assert_eq!(append(Some("r1")).await, Some(1));
    assert_eq!(append(Some("r2")).await, Some(2));
    assert_eq!(append(None).await, Some(3));
    let news = ledger.store.run_news(&run, &[], 1).await.unwrap().unwrap();
    assert_eq!(news.signals.iter().map(|s| s.n).collect::<Vec<_>>(), [2, 3]);
    let stranger = Namespace::new("other").unwrap();
    assert_eq!(ledger.store.signal_append(&stranger, &run, "x", &body, None).await.unwrap(), None);
    // After the end the earlier one is still answered.
    ledger.advance(&owner, next(&run, 1, ending(RunStatus::Completed))).await;
    assert_eq!(append(Some("r2")).await, Some(2));
    assert_eq!(append(Some("r3")).await, None);
}

pub async fn cancel_is_repeatable(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    assert!(ledger.store.run_cancel(&Namespace::new("other").unwrap(), &run).await.unwrap().is_none());
    let row = ledger.store.run_cancel(&tenant(), &run).await.unwrap().unwrap();
    assert!(row.cancel_ms.is_some());
    let again = ledger.store.run_cancel(&tenant(), &run).await.unwrap().unwrap();
    assert_eq!(again.cancel_ms, row.cancel_ms);
    assert_eq!(ledger.store.runs_due(&owner, 0).await.unwrap().mine, std::slice::from_ref(&run));
    assert!(ledger.store.run_news(&run, &[], 0).await.unwrap().unwrap().cancel_asked);
    ledger.advance(&owner, next(&run, 1, ending(RunStatus::Cancelled))).await;
    let ended = ledger.store.run_cancel(&tenant(), &run).await.unwrap().unwrap();
    assert_eq!(ended.status, RunStatus::Cancelled);
    assert!(ledger.store.run_cancel(&tenant(), &ledger.run_id().await).await.unwrap().is_none());
}

pub async fn two_coordinators_share_one_ledger(ledger: &Ledger) {
    let (a, b) = (ledger.coordinator().await, ledger.coordinator().await);
    let mut runs = Vec::new();
    for _ in 0..20 {
        let run = ledger.run_id().await;
        ledger.store.submit(&a, &[new_run(&run)]).await.unwrap();
        runs.push(run);
    }
    // Both take at once; each run goes to one of them.
    let (one, two) = tokio::join!(ledger.store.runs_due(&a, 20), ledger.second.runs_due(&b, 20));
    let (one, two) = (one.unwrap().taken, two.unwrap().taken);
    let mut all: Vec<RunId> = one.iter().chain(&two).map(|run| run.run.clone()).collect();
    all.sort();
    runs.sort();
    // Whoever was passed by a row under the other's lock finds it next time.
    let rest = ledger.second.runs_due(&b, 20).await.unwrap().taken;
    all.extend(rest.iter().map(|run| run.run.clone()));
    all.sort();
    assert_eq!(all, runs);
    assert!(one.iter().chain(&two).all(|run| run.epoch == 1));
}
