//! What people do and see.

use ditto_contracts::{ReceiptState, RunStatus, SettledBy, Verdict, wire::ledger::Offer};
use ditto_coordinator::store::{DefinitionRow, NewRun, ReceiptFilter, Resolution, Resolved, RunFilter, Step};

use super::*;

/// An N call settled as unknown, and the session that held it.
async fn unknown(ledger: &Ledger) -> (RunId, CallUid, SessionId) {
    let (_, run, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(said(&worker, &call, &held, Verdict::Unknown)).await;
    (run, call, worker)
}

pub async fn a_person_resolves(ledger: &Ledger) {
    let (run, call, _) = unknown(ledger).await;
    let output = Some(json(r#"{"found":"it"}"#));
    let happened = Resolution::Succeeded { output: output.clone() };
    let resolve = |rev: i32, what: Resolution, who: &'static str| {
        let (store, call) = (ledger.store.clone(), call.clone());
        async move { store.receipt_resolve(&call, rev, &what, who, "looked it up").await.unwrap() }
    };
    for _ in 0..2 {
        let done = resolve(1, happened.clone(), "ada").await;
        let Resolved::Done(change) = done else { panic!("{done:?}") };
        assert_eq!((change.state, change.settled, change.run), (ReceiptState::Succeeded, true, run.clone()));
    }
    let row = ledger.receipt(&call).await;
    assert_eq!((row.settled_by, row.settle_rev, row.unresolved), (Some(SettledBy::Person), 2, 0));
    assert_eq!(row.output, output);
    // The second of two people gets a conflict.
    let conflict = Resolved::Conflict { settle_rev: 2, state: ReceiptState::Succeeded };
    assert_eq!(resolve(1, Resolution::Failed, "bob").await, conflict);
    let refused = Resolved::NotUnknown { state: ReceiptState::Succeeded };
    assert_eq!(resolve(2, Resolution::Failed, "bob").await, refused);
    let log = ledger.store.attempts_list(&call, 10).await.unwrap();
    assert_eq!((log.len(), log[0].event.as_str()), (1, "person"));
    assert!(log[0].detail.as_str().contains("ada"));
    let stranger = CallUid::derive(&ledger.run_id().await, CallKind::Tool, &CallId::new("x").unwrap());
    let missing = ledger.store.receipt_resolve(&stranger, 0, &happened, "ada", "x").await.unwrap();
    assert_eq!(missing, Resolved::Missing);
}

pub async fn another_attempt(ledger: &Ledger) {
    let (_, call, worker) = unknown(ledger).await;
    let again = || async {
        ledger.store.receipt_resolve(&call, 1, &Resolution::AnotherAttempt, "ada", "it is safe").await.unwrap()
    };
    // The session lives; nobody else may send it.
    assert_eq!(again().await, Resolved::SessionMayLive);
    let other = ledger.worker().await;
    let answer = ledger.claim(&other, &call, &ClaimToken::generate()).await;
    assert_eq!(answer, ClaimAnswer::Settled { state: ReceiptState::Unknown });
    ledger.store.session_close(&worker).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(again().await, Resolved::Done(_)));
        let row = ledger.receipt(&call).await;
        assert_eq!((row.state, row.fence, row.unresolved, row.settled_ms), (ReceiptState::Planned, 1, 1, None));
    }
    assert_eq!(ledger.store.sweep_dispatch(10).await.unwrap().len(), 1);
    let answer = ledger.claim(&other, &call, &ClaimToken::generate()).await;
    assert!(matches!(answer, ClaimAnswer::Granted { fence: 2, earlier_unresolved: 1, .. }), "{answer:?}");
    // A session that only went silent may wake up again.
    let (_, call, worker) = {
        let (_, run, call) = ledger.call(n()).await;
        let silent = ledger.session_for(SessionRole::Worker, 50).await;
        let token = ClaimToken::generate();
        let answer = ledger.claim(&silent, &call, &token).await;
        if !matches!(answer, ClaimAnswer::Granted { .. }) {
            // A slow machine: its life was over before the claim.
            return;
        }
        (run, call, silent)
    };
    until(|| async { ledger.store.sessions_expire(Duration::ZERO).await.unwrap().contains(&worker).then_some(()) })
        .await;
    ledger.store.sweep_lost_claims(10).await.unwrap();
    let resolved = ledger.store.receipt_resolve(&call, 1, &Resolution::AnotherAttempt, "ada", "?").await.unwrap();
    assert_eq!(resolved, Resolved::SessionMayLive);
}

pub async fn runs_and_receipts_are_listed(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        let (run, _) = ledger.run_with(&owner, &[("a", n()), ("b", k())]).await;
        runs.push(run);
    }
    ledger.advance(&owner, next(&runs[1], 1, ending(RunStatus::Completed))).await;
    runs.sort();
    runs.reverse();
    let list = |filter: RunFilter| {
        let store = ledger.store.clone();
        async move {
            let rows = store.runs_list(&filter, 2).await.unwrap();
            rows.into_iter().map(|row| row.run).collect::<Vec<_>>()
        }
    };
    assert_eq!(list(RunFilter::default()).await, runs[..2]);
    assert_eq!(list(RunFilter { before: Some(runs[1].clone()), ..RunFilter::default() }).await, runs[2..]);
    let ended = RunFilter { statuses: vec![RunStatus::Completed], ..RunFilter::default() };
    assert_eq!(list(ended).await.len(), 1);
    let other = RunFilter { namespace: Some(Namespace::new("other").unwrap()), ..RunFilter::default() };
    assert!(list(other).await.is_empty());
    let named = RunFilter { name: Some(LoopName::new("loop").unwrap()), ..RunFilter::default() };
    assert_eq!(list(named).await.len(), 2);

    let receipts = |filter: ReceiptFilter| {
        let store = ledger.store.clone();
        async move { store.receipts_list(&filter, 4).await.unwrap() }
    };
    let of_run = ReceiptFilter { run: Some(runs[0].clone()), ..ReceiptFilter::default() };
    let rows = receipts(of_run.clone()).await;
    assert_eq!(rows.iter().map(|row| row.label.as_str()).collect::<Vec<_>>(), ["0/a", "0/b"]);
    let after = receipts(ReceiptFilter { after: Some(rows[0].call.clone()), ..of_run }).await;
    assert_eq!(after.iter().map(|row| row.label.as_str()).collect::<Vec<_>>(), ["0/b"]);
    let page = receipts(ReceiptFilter::default()).await;
    assert_eq!(page.len(), 4);
    let rest = receipts(ReceiptFilter { after: Some(page[3].call.clone()), ..ReceiptFilter::default() }).await;
    assert_eq!(rest.len(), 2);
    let unknown = ReceiptFilter { states: vec![ReceiptState::Unknown], ..ReceiptFilter::default() };
    assert!(receipts(unknown.clone()).await.is_empty());
    let (run, call, _) = self::unknown(ledger).await;
    let found = receipts(ReceiptFilter { namespace: Some(tenant()), ..unknown }).await;
    assert_eq!((found.len(), &found[0].call, &found[0].run), (1, &call, &run));
}

pub async fn events_in_order(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let (run, _) = ledger.run_with(&owner, &[]).await;
    for version in 1..4 {
        let progress = (version != 2).then(|| json(&format!("[{version}]")));
        ledger.advance(&owner, next(&run, version, Step { progress, ..step(version) })).await;
    }
    let events = ledger.store.events_after(&run, 0, 10).await.unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.version, event.progress.as_str())).collect();
    assert_eq!(seen, [(2, "[1]"), (4, "[3]")]);
    assert_eq!(ledger.store.events_after(&run, 2, 10).await.unwrap().len(), 1);
    assert_eq!(ledger.store.events_after(&run, 0, 1).await.unwrap()[0].version, 2);
}

pub async fn definitions(ledger: &Ledger) {
    let row = |name: &str, revision: &str| DefinitionRow {
        namespace: tenant(),
        name: LoopName::new(name).unwrap(),
        revision: Revision::new(revision).unwrap(),
        source: format!("{name} {revision} \u{2028}é"),
        created_ms: 0,
    };
    for (name, revision) in [("a", "1"), ("a", "2"), ("b", "1")] {
        for _ in 0..2 {
            ledger.store.definition_put(&row(name, revision)).await.unwrap();
        }
    }
    let a = LoopName::new("a").unwrap();
    let get = |revision: Option<&'static str>| {
        let (store, a) = (ledger.store.clone(), a.clone());
        async move {
            let revision = revision.map(|text| Revision::new(text).unwrap());
            store.definition_get(&tenant(), &a, revision.as_ref()).await.unwrap().map(|row| row.revision.to_string())
        }
    };
    assert_eq!(get(None).await.as_deref(), Some("2"));
    assert_eq!(get(Some("1")).await.as_deref(), Some("1"));
    assert_eq!(get(Some("3")).await, None);
    let stored = ledger.store.definition_get(&tenant(), &a, None).await.unwrap().unwrap();
    assert_eq!(stored.source, row("a", "2").source);
    assert!(stored.created_ms > 0);
    // The earlier one again: it is the newest now.
    ledger.store.definition_put(&row("a", "1")).await.unwrap();
    assert_eq!(get(None).await.as_deref(), Some("1"));
    let list = ledger.store.definitions_list(&tenant(), None, 10).await.unwrap();
    let names: Vec<_> = list.iter().map(|row| (row.name.as_str(), row.revision.as_str())).collect();
    assert_eq!(names, [("a", "1"), ("b", "1")]);
    assert_eq!(ledger.store.definitions_list(&tenant(), Some(&a), 10).await.unwrap().len(), 1);
    let other = Namespace::new("other").unwrap();
    assert!(ledger.store.definitions_list(&other, None, 10).await.unwrap().is_empty());
}

pub async fn offers_of_the_living(ledger: &Ledger) {
    let worker = ledger.worker().await;
    let offer = Offer {
        node: NodeType::new(NodeType::OUTPUT).unwrap(),
        source: Some("sink".into()),
        policy: k_query(),
        description: Some("a sink".into()),
        input_schema: Some(json(r#"{"type":"object"}"#)),
        effects: vec!["write".into()],
        requires_approval: true,
    };
    let pool = ditto_contracts::Pool::new("p").unwrap();
    ledger.store.offers_put(&worker, "interaction", Some(&pool), std::slice::from_ref(&offer)).await.unwrap();
    let live = ledger.second.offers_live().await.unwrap();
    assert_eq!((live.len(), &live[0].offer, &live[0].pool, &live[0].session), (1, &offer, &Some(pool), &worker));
    ledger.store.offers_put(&worker, "interaction", None, &[]).await.unwrap();
    assert!(ledger.store.offers_live().await.unwrap().is_empty());
    ledger.store.offers_put(&worker, "interaction", None, &[offer]).await.unwrap();
    ledger.store.session_close(&worker).await.unwrap();
    assert!(ledger.store.offers_live().await.unwrap().is_empty());
}

pub async fn numbers(ledger: &Ledger) {
    let owner = ledger.coordinator().await;
    let run = ledger.run_id().await;
    let pooled = NewReceipt { pool: Some(ditto_contracts::Pool::new("p").unwrap()), ..receipt(&run, "a", &n()) };
    let first = Step { receipts: vec![pooled, receipt(&run, "b", &n())], ..step(1) };
    ledger.store.submit(&owner, &[NewRun { first: Some(first), ..new_run(&run) }]).await.unwrap();
    unknown(ledger).await;
    let mut counts = ledger.store.counts().await.unwrap();
    counts.backlog.sort();
    assert_eq!(counts.runs, [(RunStatus::Running, 2)]);
    assert_eq!((counts.open_receipts, counts.unknown_receipts), (vec![(ReceiptState::Planned, 2)], 1));
    let queues: Vec<_> = counts.backlog.iter().map(|(queue, count, _)| (queue.as_str(), *count)).collect();
    assert_eq!(queues, [("INTERACTION.ACT.TOOL", 1), ("INTERACTION.ACT.TOOL.p", 1)]);
    assert!(ledger.store.now_ms().await.unwrap() > 1_600_000_000_000);
    let facts = ledger.store.describe().await.unwrap();
    assert!(facts.iter().any(|(name, value)| name == "product" && !value.is_empty()));
}
