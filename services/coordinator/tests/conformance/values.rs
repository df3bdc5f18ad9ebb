//! Values come back as they went in, whatever their size and content.

use ditto_contracts::{Verdict, limits::VALUE_BYTES_MAX, wire::PayloadRef};
use ditto_coordinator::store::{Advance, NewRun, Step, StoreError};

use super::*;

/// Escaped NUL, large and odd numbers, key order, doubled meaning by escapes, text beyond ASCII.
const ODD: &str = r#"{"z":"a\u0000b","a":9223372036854775808,"m":[1e2,-0,1.50,123456789012345678901234567890],"é":"\ud83d\ude00 \"q\" ' $1 ?1 \\"}"#;

pub async fn values_come_back_to_the_byte(ledger: &Ledger) {
    let (old, new) = (ledger.coordinator().await, ledger.coordinator().await);
    let worker = ledger.worker().await;
    let odd = json(ODD);
    let run = ledger.run_id().await;
    let call = NewReceipt { request: odd.clone(), request_hash: odd.sha256(), ..receipt(&run, "c", &n()) };
    let uid = call.call.clone();
    let named = format!(r#"{{"open":["{uid}"],"kept":[],"body":{ODD}}}"#);
    let first =
        Step { checkpoint: json(&named), receipts: vec![call], progress: Some(json(&format!("[{ODD}]"))), ..step(1) };
    let new_run = NewRun { input: odd.clone(), first: Some(first), ..new_run(&run) };
    ledger.store.submit(&old, &[new_run]).await.unwrap();
    assert_eq!(ledger.receipt(&uid).await.request, Some(odd.clone()));
    let held = ledger.granted(&worker, &uid).await;
    let settle = Settle { output: Some(odd.clone()), ..said(&worker, &uid, &held, Verdict::Succeeded) };
    ledger.settle(settle).await;
    ledger.store.signal_append(&tenant(), &run, "s", &odd, None).await.unwrap();
    ledger.store.session_close(&old).await.unwrap();
    let taken = ledger.store.run_take(&new, &run).await.unwrap().unwrap();
    assert_eq!((&taken.input, taken.checkpoint.as_ref().unwrap().as_str()), (&odd, named.as_str()));
    assert_eq!(taken.calls[&uid].outcome.as_ref().unwrap().output, Some(odd.clone()));
    assert_eq!(taken.signals[0].body, odd);
    assert_eq!(ledger.store.events_after(&run, 0, 1).await.unwrap()[0].progress.as_str(), format!("[{ODD}]"));
    // `null` is an output; none is none.
    let (_, _, call) = ledger.call(n()).await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(Settle { output: Some(Json::null()), ..said(&worker, &call, &held, Verdict::Succeeded) }).await;
    assert_eq!(ledger.receipt(&call).await.output, Some(Json::null()));
}

fn text(bytes: usize) -> Json {
    json(&format!("\"{}\"", "x".repeat(bytes - 2)))
}

pub async fn large_values(ledger: &Ledger) {
    let (old, new) = (ledger.coordinator().await, ledger.coordinator().await);
    let worker = ledger.worker().await;
    for size in [64 * 1024, 64 * 1024 + 1, 70 * 1024, VALUE_BYTES_MAX] {
        let big = text(size);
        let run = ledger.run_id().await;
        let call = NewReceipt { request: big.clone(), request_hash: big.sha256(), ..receipt(&run, "c", &n()) };
        let uid = call.call.clone();
        let checkpoint = step_with(std::slice::from_ref(&uid)).checkpoint;
        let first = Step { checkpoint, receipts: vec![call], ..step(1) };
        let new_run = NewRun { input: big.clone(), first: Some(first), ..new_run(&run) };
        ledger.store.submit(&old, &[new_run]).await.unwrap();
        // The job names the payload instead of carrying it.
        assert_eq!(ledger.store.dispatch_all().await.unwrap(), 1);
        let job = ledger.store.sweep_dispatch(10).await.unwrap().remove(0);
        let request = match (job.request, job.request_ref) {
            (Some(inline), None) => inline.to_bytes(),
            (None, Some(reference)) => ledger.store.payload_get(uid.bucket(), &reference).await.unwrap().unwrap(),
            other => panic!("{other:?}"),
        };
        assert!(request == big.as_bytes(), "request of {size} bytes");
        assert_eq!(job.request_hash, big.sha256());
        let held = ledger.granted(&worker, &uid).await;
        let settle = Settle { output: Some(big.clone()), ..said(&worker, &uid, &held, Verdict::Succeeded) };
        ledger.settle(settle).await;
        assert!(ledger.receipt(&uid).await.output == Some(big.clone()), "output of {size} bytes");
        ledger.store.runs_yield(&old, std::slice::from_ref(&run)).await.unwrap();
        let taken = ledger.store.run_take(&new, &run).await.unwrap().unwrap();
        assert!(taken.input == big, "input of {size} bytes");
        assert!(taken.calls[&uid].outcome.as_ref().unwrap().output == Some(big.clone()));
        let mut last = ending(ditto_contracts::RunStatus::Completed);
        last.ending.as_mut().unwrap().output = Some(big.clone());
        ledger.advance(&new, Advance { epoch: 2, ..next(&run, 1, last) }).await;
        assert!(ledger.store.run_get(None, &run).await.unwrap().unwrap().output == Some(big));
        assert!(!ledger.store.runs_list(&Default::default(), 10).await.unwrap().is_empty());
    }
}

fn reference(bytes: &[u8]) -> PayloadRef {
    PayloadRef { digest: Sha256::digest(bytes).into(), size: u32::try_from(bytes.len()).unwrap() }
}

pub async fn payloads_in_pieces(ledger: &Ledger) {
    let whole = text(700_000);
    let whole = whole.as_bytes();
    let payload = reference(whole);
    let (_, _, call) = ledger.call(n()).await;
    let bucket = call.bucket();
    let chunk = 256 * 1024;
    let put = |at: usize| {
        let (store, piece) = (ledger.store.clone(), whole[at..whole.len().min(at + chunk)].to_vec());
        async move { store.payload_put(bucket, &payload, u32::try_from(at).unwrap(), &piece).await.unwrap() }
    };
    assert!(!put(2 * chunk).await);
    assert!(!put(0).await);
    assert!(!put(0).await);
    assert!(ledger.store.payload_get(bucket, &payload).await.unwrap().is_none());
    assert!(put(chunk).await);
    assert!(put(chunk).await);
    assert!(ledger.store.payload_get(bucket, &payload).await.unwrap().unwrap() == whole);
    // An output that was stored before is taken by its name.
    let worker = ledger.worker().await;
    let held = ledger.granted(&worker, &call).await;
    let settle = Settle { output: None, output_ref: Some(payload), ..said(&worker, &call, &held, Verdict::Succeeded) };
    ledger.settle(settle).await;
    assert!(ledger.receipt(&call).await.output.unwrap().as_bytes() == whole);
}

pub async fn a_wrong_digest_is_refused(ledger: &Ledger) {
    let bucket = ledger.run_id().await.bucket();
    let payload = reference(b"right");
    assert!(!ledger.store.payload_put(bucket, &payload, 0, b"wrong").await.unwrap());
    assert!(ledger.store.payload_get(bucket, &payload).await.unwrap().is_none());
    // Starting again heals it.
    assert!(!ledger.store.payload_put(bucket, &payload, 2, b"ght").await.unwrap());
    assert!(ledger.store.payload_put(bucket, &payload, 0, b"ri").await.unwrap());
    assert_eq!(ledger.store.payload_get(bucket, &payload).await.unwrap().unwrap(), "right");
    let beyond = ledger.store.payload_put(bucket, &reference(b"x"), 1, b"y").await;
    assert!(matches!(beyond, Err(StoreError::BadItem(_))), "{beyond:?}");
}
