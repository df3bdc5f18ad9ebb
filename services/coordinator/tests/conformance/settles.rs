//! What workers say about attempts.

use ditto_contracts::{ErrorClass, ReceiptState, SettledBy, Verdict};
use ditto_coordinator::store::{Resolution, Resolved};

use super::*;

/// The parts of a settlement that stands.
fn done(settled: Settled) -> (ReceiptState, bool, i32) {
    match settled {
        Settled::Done { state, settled, settle_rev, .. } => (state, settled, settle_rev),
        other => panic!("{other:?}"),
    }
}

pub async fn success_and_its_repeat(ledger: &Ledger) {
    let worker = ledger.worker().await;
    for policy in [r(), k(), n()] {
        let (owner, run, call) = ledger.call(policy).await;
        let held = ledger.granted(&worker, &call).await;
        for _ in 0..2 {
            let settled = ledger.settle(said(&worker, &call, &held, Verdict::Succeeded)).await;
            let Settled::Done { run: of, owner: Some(of_owner), .. } = &settled else { panic!("{settled:?}") };
            assert_eq!((of, of_owner), (&run, &owner));
            assert_eq!(done(settled), (ReceiptState::Succeeded, true, 1));
        }
        let row = ledger.receipt(&call).await;
        assert_eq!((row.settled_by, row.unresolved, row.error), (Some(SettledBy::Worker), 0, None));
        assert_eq!(row.output, Some(json(r#"{"ok":true}"#)));
        assert!(ledger.store.attempts_list(&call, 10).await.unwrap().is_empty());
        assert_eq!(ledger.store.runs_due(&owner, 0).await.unwrap().mine, [run]);
    }
}

pub async fn late_evidence_after_unknown(ledger: &Ledger) {
    let (_, _, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    ledger.store.session_close(&worker).await.unwrap();
    let lost = ledger.store.sweep_lost_claims(10).await.unwrap();
    assert_eq!((lost[0].state, lost[0].settled), (ReceiptState::Unknown, true));
    // The process was only paused: what it knows now is evidence.
    for _ in 0..2 {
        let settled = ledger.settle(said(&worker, &call, &held, Verdict::Succeeded)).await;
        assert_eq!(done(settled), (ReceiptState::Succeeded, true, 2));
    }
    let row = ledger.receipt(&call).await;
    assert_eq!((row.settled_by, row.unresolved), (Some(SettledBy::LateResult), 0));
    // What is known does not change any more.
    assert_eq!(ledger.settle(said(&worker, &call, &held, Verdict::Failed)).await, Settled::Logged);
    assert_eq!(ledger.receipt(&call).await.state, ReceiptState::Succeeded);
}

pub async fn strangers_are_logged(ledger: &Ledger) {
    let (_, _, call) = ledger.call(r()).await;
    let (first, second) = (ledger.worker().await, ledger.worker().await);
    let old = ledger.granted(&first, &call).await;
    ledger.store.session_close(&first).await.unwrap();
    ledger.store.sweep_lost_claims(10).await.unwrap();
    let new = ledger.granted(&second, &call).await;
    assert_eq!(ledger.settle(said(&first, &call, &old, Verdict::Succeeded)).await, Settled::Logged);
    let wrong = (ClaimToken::generate(), new.1);
    assert_eq!(ledger.settle(said(&second, &call, &wrong, Verdict::Failed)).await, Settled::Logged);
    assert_eq!(ledger.receipt(&call).await.state, ReceiptState::Claimed);
    let log = ledger.store.attempts_list(&call, 10).await.unwrap();
    let late: Vec<_> = log.iter().filter(|entry| entry.event == "late").collect();
    assert_eq!(late.iter().map(|entry| entry.fence).collect::<Vec<_>>(), [1, 2]);
    assert!(late[0].detail.as_str().contains("succeeded"));
}

pub async fn keyed_unknown_stays_open(ledger: &Ledger) {
    let (_, _, call) = ledger.call(k()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    for _ in 0..2 {
        let settled = ledger.settle(said(&worker, &call, &held, Verdict::Unknown)).await;
        assert_eq!(done(settled), (ReceiptState::Unknown, false, 1));
    }
    let row = ledger.receipt(&call).await;
    assert_eq!((row.settled_ms, row.unresolved), (None, 1));
    assert_eq!(ledger.claim(&worker, &call, &ClaimToken::generate()).await, ClaimAnswer::Taken);
    let settled = ledger.settle(said(&worker, &call, &held, Verdict::Succeeded)).await;
    assert_eq!(done(settled), (ReceiptState::Succeeded, true, 2));
}

pub async fn unclaimed_reads_go_by_hash(ledger: &Ledger) {
    let policy = CallPolicy::read_only();
    let (_, run, call) = ledger.call(policy.clone()).await;
    let worker = ledger.worker().await;
    let unclaimed = |hash: [u8; 32], verdict: Verdict| Settle {
        fence: 0,
        token: None,
        request_hash: hash,
        ..said(&worker, &call, &(ClaimToken::generate(), 0), verdict)
    };
    let hash = receipt(&run, "call", &policy).request_hash;
    assert_eq!(ledger.settle(unclaimed([1; 32], Verdict::Succeeded)).await, Settled::Logged);
    for _ in 0..2 {
        assert_eq!(done(ledger.settle(unclaimed(hash, Verdict::Succeeded)).await), (ReceiptState::Succeeded, true, 1));
    }
    assert_eq!(ledger.settle(unclaimed(hash, Verdict::Failed)).await, Settled::Logged);
    // A call that must be claimed is not settled without a claim.
    let (_, run, call) = ledger.call(n()).await;
    let forged = Settle {
        call: call.clone(),
        fence: 0,
        token: None,
        request_hash: receipt(&run, "call", &n()).request_hash,
        ..said(&worker, &call, &(ClaimToken::generate(), 0), Verdict::Succeeded)
    };
    assert_eq!(ledger.settle(forged).await, Settled::Logged);
    assert_eq!(ledger.receipt(&call).await.state, ReceiptState::Planned);
}

pub async fn refusal_with_another_attempt_open(ledger: &Ledger) {
    // K, refusals not stored: the first attempt may still arrive.
    let worker = ledger.worker().await;
    for (stored, state) in [(false, ReceiptState::Unknown), (true, ReceiptState::Failed)] {
        let (_, _, call) = ledger.call(CallPolicy { rejections_stored: stored, ..k() }).await;
        let first = ledger.granted(&worker, &call).await;
        ledger.settle(said(&worker, &call, &first, Verdict::Unknown)).await;
        assert!(ledger.store.sweep_reconcile(10).await.unwrap().iter().any(|job| job.call == call));
        let second = ledger.granted(&worker, &call).await;
        assert_eq!(done(ledger.settle(said(&worker, &call, &second, Verdict::Failed)).await).0, state);
    }
    // N, where a person authorised another attempt.
    let (_, _, call) = ledger.call(n()).await;
    let first = ledger.granted(&worker, &call).await;
    ledger.settle(said(&worker, &call, &first, Verdict::Unknown)).await;
    ledger.store.session_close(&worker).await.unwrap();
    let another = ledger.store.receipt_resolve(&call, 1, &Resolution::AnotherAttempt, "ada", "sure").await.unwrap();
    assert!(matches!(another, Resolved::Done(_)), "{another:?}");
    let worker = ledger.worker().await;
    let second = ledger.granted(&worker, &call).await;
    let settled = ledger.settle(said(&worker, &call, &second, Verdict::Failed)).await;
    assert_eq!((done(settled).0, ledger.receipt(&call).await.unresolved), (ReceiptState::Unknown, 2));
}

pub async fn late_news_are_signalled(ledger: &Ledger) {
    let (_, run, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(said(&worker, &call, &held, Verdict::Unknown)).await;
    assert!(ledger.store.run_news(&run, &[], 0).await.unwrap().unwrap().signals.is_empty());
    ledger.settle(said(&worker, &call, &held, Verdict::Failed)).await;
    let news = ledger.store.run_news(&run, &[], 0).await.unwrap().unwrap();
    assert_eq!((news.signals.len(), news.signals[0].name.as_str()), (1, "resolved"));
    assert_eq!(news.signals[0].body.field("call").unwrap().to_text().unwrap(), call.as_str());
}

pub async fn missing_is_missing(ledger: &Ledger) {
    let worker = ledger.worker().await;
    let call = CallUid::derive(&ledger.run_id().await, CallKind::Tool, &CallId::new("x").unwrap());
    let held = (ClaimToken::generate(), 1);
    assert_eq!(ledger.settle(said(&worker, &call, &held, Verdict::Succeeded)).await, Settled::Missing);
    // Next to others in a batch.
    let (_, _, known) = ledger.call(n()).await;
    let mine = ledger.granted(&worker, &known).await;
    let batch = [said(&worker, &call, &held, Verdict::Failed), said(&worker, &known, &mine, Verdict::Failed)];
    let answers = ledger.store.settle(&batch).await.unwrap();
    assert_eq!(answers[0], Settled::Missing);
    assert!(matches!(answers[1], Settled::Done { state: ReceiptState::Failed, .. }));
}

pub async fn errors_are_kept(ledger: &Ledger) {
    let (_, _, call) = ledger.call(n()).await;
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    let error = WireError::new(ErrorClass::Denied, "PERMISSION_DENIED", "not here — «é»").retryable();
    let settle = Settle {
        output: Some(json(r#"{"status":"failed"}"#)),
        error: Some(error.clone()),
        ..said(&worker, &call, &held, Verdict::Failed)
    };
    ledger.settle(settle).await;
    let row = ledger.receipt(&call).await;
    assert_eq!((row.error, row.output), (Some(error), Some(json(r#"{"status":"failed"}"#))));
    // Evidence from elsewhere changes nothing and is kept.
    ledger.store.attempt_log(&call, 1, &json(r#"{"odd":1}"#)).await.unwrap();
    assert_eq!(ledger.store.attempts_list(&call, 10).await.unwrap()[0].detail, json(r#"{"odd":1}"#));
}
