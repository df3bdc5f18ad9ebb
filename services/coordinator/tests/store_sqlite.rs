//! The ledger in SQLite under the suite that holds for every ledger, and what only a file can show.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

#[macro_use]
mod conformance;

use std::{sync::Arc, time::Duration};

use conformance::Ledger;
use ditto_coordinator::store::{Advanced, Store, sqlite::SqliteStore};

async fn open() -> Ledger {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ledger.db");
    Ledger {
        store: Arc::new(SqliteStore::open(&path).await.unwrap()),
        second: Arc::new(SqliteStore::open(&path).await.unwrap()),
        keep: Box::new(folder),
    }
}

conformance!(open);

#[tokio::test]
async fn a_file_is_found_again_as_it_was_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/ledger.db");
    let store = Arc::new(SqliteStore::open(&path).await.unwrap());
    let ledger = Ledger { store: store.clone(), second: store.clone(), keep: Box::new(()) };
    let (_, run, call) = ledger.call(conformance::n()).await;
    store.close().await;
    let again = SqliteStore::open(&path).await.unwrap();
    assert!(again.run_get(None, &run).await.unwrap().is_some());
    assert!(again.receipt_get(&call).await.unwrap().is_some());
    let facts = again.describe().await.unwrap();
    assert!(facts.contains(&("journal_mode".to_owned(), "wal".to_owned())), "{facts:?}");
    assert!(facts.contains(&("synchronous".to_owned(), "2".to_owned())), "{facts:?}");
}

#[tokio::test]
async fn a_day_is_dropped_when_its_runs_are_over() {
    let ledger = open().await;
    let worker = ledger.worker().await;
    let (owner, run, call) = ledger.call(conformance::n()).await;
    let held = ledger.granted(&worker, &call).await;
    ledger.settle(conformance::said(&worker, &call, &held, ditto_contracts::Verdict::Unknown)).await;
    let last = conformance::next(&run, 1, conformance::ending(ditto_contracts::RunStatus::Completed));
    assert_eq!(ledger.advance(&owner, last).await, Advanced::Done);
    conformance::until(|| async {
        ledger.store.sweep_retention(Duration::ZERO).await.unwrap();
        ledger.store.run_get(None, &run).await.unwrap().is_none().then_some(())
    })
    .await;
    assert!(ledger.store.receipt_get(&call).await.unwrap().is_none());
    assert!(ledger.store.events_after(&run, 0, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_half_done() {
    let ledger = open().await;
    let owner = ledger.coordinator().await;
    for _ in 0..20 {
        let run = ledger.run_id().await;
        let new = [conformance::new_run(&run)];
        let submit = ledger.store.submit(&owner, &new);
        // Given up after very little: wherever that is, the writer stays usable.
        let _ = tokio::time::timeout(Duration::from_micros(200), submit).await;
        let run = ledger.run_id().await;
        ledger.store.submit(&owner, &[conformance::new_run(&run)]).await.unwrap();
        assert!(ledger.second.run_get(None, &run).await.unwrap().is_some());
    }
}
