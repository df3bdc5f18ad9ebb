//! The Postgres ledger: the conformance suite, and what only a server can do to a ledger.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[macro_use]
mod conformance;

use std::{sync::Arc, time::Duration};

use conformance::{Ledger, json, k, n, new_run, next, r, receipt, said, step, tenant};
use ditto_contracts::{
    CallPolicy, CallUid, ClaimToken, ErrorClass, Json, RunId, SubmitKey, Verdict, WireError,
    wire::ledger::{ClaimAnswer, ClaimItem},
};
use ditto_coordinator::store::{
    Advance, Advanced, NewRun, Settled, Step, Store, StoreError, Submitted, postgres::PostgresStore,
};
use ditto_sql::SqlOptions;
use ditto_test_servers::{Postgres, TestDatabase};
use sqlx::{AssertSqlSafe, Row as _};

fn options() -> SqlOptions {
    SqlOptions { max_connections: 6, ..SqlOptions::default() }
}

async fn open() -> Ledger {
    let database = Postgres::fresh_database().await.unwrap();
    let store = Arc::new(PostgresStore::open(database.url(), &options()).await.unwrap());
    let second = Arc::new(PostgresStore::open(database.url(), &options()).await.unwrap());
    Ledger { store, second, keep: Box::new(database) }
}

conformance!(open);

/// A ledger whose connections a test may look at.
async fn fresh() -> (TestDatabase, Arc<PostgresStore>, Ledger) {
    let database = Postgres::fresh_database().await.unwrap();
    let store = Arc::new(PostgresStore::open(database.url(), &options()).await.unwrap());
    let ledger = Ledger { store: store.clone(), second: store.clone(), keep: Box::new(()) };
    (database, store, ledger)
}

async fn text(store: &PostgresStore, sql: &str) -> String {
    let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_all(store.pool()).await.unwrap();
    rows.iter().map(|row| row.try_get::<String, _>(0).unwrap()).collect::<Vec<_>>().join("\n")
}

async fn count(store: &PostgresStore, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(store.pool()).await.unwrap()
}

/// A first step with these calls.
fn first(run: &RunId, calls: &[(&str, CallPolicy)]) -> NewRun {
    let receipts = calls.iter().map(|(id, policy)| receipt(run, id, policy)).collect();
    NewRun { first: Some(Step { receipts, ..step(1) }), ..new_run(run) }
}

mod server {
    use super::*;

    /// Every other commit is cut off somewhere between its start and its answer; the caller gives it again.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn commits_that_are_cut_off_are_given_again() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let killer = {
            let store = store.clone();
            tokio::spawn(async move {
                let mut killed = 0;
                loop {
                    const KILL: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'";
                    let n: Result<i64, _> = sqlx::query_scalar(KILL).fetch_one(store.pool()).await;
                    killed += n.unwrap_or(0);
                    tokio::task::yield_now().await;
                    if killed >= 60 {
                        return killed;
                    }
                }
            })
        };
        let mut tries = 0;
        let mut rounds = 0;
        while !killer.is_finished() || rounds == 0 {
            rounds += 1;
            let runs: Vec<RunId> = {
                let now = loop {
                    if let Ok(now) = store.now_ms().await {
                        break now;
                    }
                };
                (0..8).map(|_| RunId::generate(now)).collect()
            };
            let new: Vec<NewRun> = runs.iter().map(|run| first(run, &[("a", n())])).collect();
            let submitted = again(&mut tries, || store.submit(&owner, &new)).await;
            assert!(submitted.iter().all(|s| *s == Submitted::Created), "{submitted:?}");
            let items: Vec<ClaimItem> = new
                .iter()
                .map(|new| new.first.as_ref().unwrap().receipts[0].call.clone())
                .map(|call| ClaimItem { bucket: call.bucket(), call, token: ClaimToken::generate() })
                .collect();
            let claimed = again(&mut tries, || store.claim(&worker, &items)).await;
            assert!(claimed.iter().all(|c| matches!(c, ClaimAnswer::Granted { fence: 1, .. })), "{claimed:?}");
            let advances: Vec<Advance> = runs
                .iter()
                .zip(&items)
                .map(|(run, item)| {
                    let settle = said(&worker, &item.call, &(item.token.clone(), 1), Verdict::Succeeded);
                    let step = Step { receipts: vec![receipt(run, "b", &r())], ..step(2) };
                    Advance { settles: vec![settle], ..next(run, 1, step) }
                })
                .collect();
            let advanced = again(&mut tries, || store.advance(&owner, &advances)).await;
            assert!(advanced.iter().all(|a| *a == Advanced::Done), "{advanced:?}");
        }
        assert!(killer.await.unwrap() >= 60);
        assert!(tries > 0, "nothing was cut off");
        // Exactly what was decided is there, once.
        let all = rounds * 8;
        assert_eq!(count(&store, "SELECT count(*) FROM checkpoints").await, 2 * all);
        assert_eq!(count(&store, "SELECT count(*) FROM receipts").await, 2 * all);
        assert_eq!(count(&store, "SELECT count(*) FROM receipts WHERE state = 3 AND settle_rev = 1").await, all);
        assert_eq!(count(&store, "SELECT count(*) FROM loops WHERE version = 2 AND bell = bell_seen").await, all);
        assert_eq!(count(&store, "SELECT count(*) FROM attempts").await, 0);
    }

    async fn again<T, F: Future<Output = Result<T, StoreError>>>(tries: &mut u32, mut verb: impl FnMut() -> F) -> T {
        loop {
            match verb().await {
                Ok(done) => return done,
                Err(error) if error.is_transient() => *tries += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_restart_between_verbs_loses_nothing() {
        let server = Postgres::start().await.unwrap();
        let url = server.create_database("ledger").await.unwrap();
        let store = Arc::new(PostgresStore::open(&url, &options()).await.unwrap());
        let ledger = Ledger { store: store.clone(), second: store.clone(), keep: Box::new(()) };
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let (run, calls) = ledger.run_with(&owner, &[("a", k())]).await;
        let (token, fence) = ledger.granted(&worker, &calls[0]).await;
        server.kill9().unwrap();
        let item = ClaimItem { bucket: calls[0].bucket(), call: calls[0].clone(), token: token.clone() };
        let down = store.claim(&worker, std::slice::from_ref(&item)).await;
        assert!(matches!(down, Err(StoreError::Unavailable(_))), "{down:?}");
        server.restart().await.unwrap();
        let mut tries = 0;
        let repeated = again(&mut tries, || store.claim(&worker, std::slice::from_ref(&item))).await;
        assert!(matches!(repeated[0], ClaimAnswer::Granted { fence: f, .. } if f == fence), "{repeated:?}");
        let settle = said(&worker, &calls[0], &(token, fence), Verdict::Succeeded);
        let advance = [Advance { settles: vec![settle], ..next(&run, 1, step(2)) }];
        assert_eq!(store.advance(&owner, &advance).await.unwrap(), [Advanced::Done]);
        server.restart().await.unwrap();
        let repeated = again(&mut tries, || store.advance(&owner, &advance)).await;
        assert_eq!(repeated, [Advanced::Done]);
        assert_eq!(store.run_get(None, &run).await.unwrap().unwrap().version, 2);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_processes_open_an_empty_database_at_once() {
        let database = Postgres::fresh_database().await.unwrap();
        let options = options();
        let open = || PostgresStore::open(database.url(), &options);
        let (a, b, c) = tokio::join!(open(), open(), open());
        for store in [a.unwrap(), b.unwrap(), c.unwrap()] {
            assert_eq!(count(&store, "SELECT count(*) FROM ditto_migrations WHERE owner = 'coordinator'").await, 1);
            assert_eq!(count(&store, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'loops'::regclass").await, 5);
            store.close().await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_row_that_somebody_holds_is_waited_for_so_long() {
        let database = Postgres::fresh_database().await.unwrap();
        let options = SqlOptions { lock_timeout: Duration::from_millis(100), ..options() };
        let store = Arc::new(PostgresStore::open(database.url(), &options).await.unwrap());
        let ledger = Ledger { store: store.clone(), second: store.clone(), keep: Box::new(()) };
        let owner = ledger.coordinator().await;
        let (run, _) = ledger.run_with(&owner, &[]).await;
        let mut holder = store.pool().begin().await.unwrap();
        sqlx::query("SELECT 1 FROM loops WHERE loop_id = $1 FOR UPDATE")
            .bind(run.as_str())
            .execute(&mut *holder)
            .await
            .unwrap();
        let item = [next(&run, 1, step(2))];
        let waited = store.advance(&owner, &item).await;
        assert!(matches!(waited, Err(StoreError::Unavailable(_))), "{waited:?}");
        holder.rollback().await.unwrap();
        assert_eq!(store.advance(&owner, &item).await.unwrap(), [Advanced::Done]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_caller_who_goes_away_does_not_interrupt_a_commit() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let (run, _) = ledger.run_with(&owner, &[]).await;
        for version in 1..30 {
            let item = [next(&run, version, step(version))];
            // Polled once: the verb has begun, and its caller is gone.
            let mut verb = Box::pin(store.advance(&owner, &item));
            let _ = futures_util::poll!(&mut verb);
            drop(verb);
            conformance::until(|| async {
                let row = store.run_get(None, &run).await.unwrap().unwrap();
                (row.version == version + 1).then_some(())
            })
            .await;
            assert_eq!(store.advance(&owner, &item).await.unwrap(), [Advanced::Done]);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_closed_ledger_says_so() {
        let (_database, store, _ledger) = fresh().await;
        store.close().await;
        assert!(matches!(store.now_ms().await, Err(StoreError::Unavailable(_))));
    }
}

mod days {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_run_of_any_day_finds_a_place() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let now = store.now_ms().await.unwrap();
        for day in [-400, -2, -1, 0, 1, 2, 3, 400] {
            let run = RunId::generate(now + day * DAY_MS);
            let new = [first(&run, &[("a", n())])];
            assert_eq!(store.submit(&owner, &new).await.unwrap(), [Submitted::Created]);
            assert_eq!(ledger.advance(&owner, next(&run, 1, step(2))).await, Advanced::Done);
            let table =
                text(&store, &format!("SELECT tableoid::regclass::text FROM receipts WHERE loop_id = '{run}'")).await;
            let named = format!("receipts_d{}", run.bucket());
            assert_eq!(table, if (-1..=2).contains(&day) { named } else { "receipts_default".into() });
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn days_are_made_ahead_and_dropped_when_they_are_over() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let now = store.now_ms().await.unwrap();
        let today = i32::try_from(now / DAY_MS).unwrap();
        // Two days in the past, as if their partitions had been made then.
        for day in [today - 5, today - 4] {
            for table in ["signals", "payload_chunks", "payloads", "attempts", "receipts", "checkpoints", "loops"] {
                let sql = format!(
                    "CREATE TABLE {table}_d{day} PARTITION OF {table} FOR VALUES FROM ({day}) TO ({})",
                    day + 1
                );
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
            }
        }
        let over = RunId::generate(now - 5 * DAY_MS);
        let going = RunId::generate(now - 4 * DAY_MS);
        let stray = RunId::generate(now - 300 * DAY_MS);
        for run in [&over, &going, &stray] {
            store.submit(&owner, &[first(run, &[("a", n())])]).await.unwrap();
        }
        let call = receipt(&over, "a", &n()).call;
        let held = ledger.granted(&worker, &call).await;
        ledger.settle(said(&worker, &call, &held, Verdict::Unknown)).await;
        let ended = conformance::ending(ditto_contracts::RunStatus::Completed);
        for run in [&over, &stray] {
            let step = Step { bell_seen: 1, ..ended.clone() };
            assert_eq!(ledger.advance(&owner, next(run, 1, step)).await, Advanced::Done);
        }
        while store.sweep_retention(Duration::from_secs(3_600)).await.unwrap() {}
        assert!(store.run_get(None, &over).await.unwrap().is_some(), "retention has not passed");
        // The last end must lie in the past of the database clock.
        conformance::until(|| async {
            while store.sweep_retention(Duration::ZERO).await.unwrap() {}
            store.run_get(None, &over).await.unwrap().is_none().then_some(())
        })
        .await;
        let tables =
            text(&store, "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND relname LIKE '%\\_d%' ORDER BY 1")
                .await;
        assert!(!tables.contains(&format!("_d{}", today - 5)), "{tables}");
        assert!(tables.contains(&format!("loops_d{}", today - 4)), "{tables}");
        for (run, there) in [(&over, false), (&going, true), (&stray, false)] {
            assert_eq!(store.run_get(None, run).await.unwrap().is_some(), there);
            let receipts = format!("SELECT count(*) FROM receipts WHERE loop_id = '{run}'");
            assert_eq!(count(&store, &receipts).await, i64::from(there));
        }
        // The unknown outcome is remembered.
        assert_eq!(text(&store, "SELECT call_uid FROM unknown_register").await, call.as_str());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_day_that_began_without_its_partition_stays_where_it_is() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let now = store.now_ms().await.unwrap();
        let day = now / DAY_MS + 2;
        for table in ["signals", "payload_chunks", "payloads", "attempts", "receipts", "checkpoints", "loops"] {
            let sql = format!("DROP TABLE {table}_d{day}");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
        }
        let run = RunId::generate(now + 2 * DAY_MS);
        store.submit(&owner, &[first(&run, &[("a", n())])]).await.unwrap();
        while store.sweep_retention(Duration::ZERO).await.unwrap() {}
        assert_eq!(ledger.advance(&owner, next(&run, 1, step(2))).await, Advanced::Done);
        let known = format!("SELECT count(*) FROM pg_class WHERE relname = 'loops_d{day}'");
        assert_eq!(count(&store, &known).await, 0);
    }
}

mod plans {
    use super::*;

    /// Statements of the hot verbs as the server sees them, with their generic plans on empty and on filled tables.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn hot_statements_go_by_key_into_one_day() {
        let server = Postgres::start_with(
            ditto_test_servers::PostgresOptions::default()
                .set("session_preload_libraries", "auto_explain")
                .set("auto_explain.log_min_duration", "0")
                .set("auto_explain.log_analyze", "on")
                .set("auto_explain.log_timing", "off")
                .set("log_min_messages", "log"),
        )
        .await
        .unwrap();
        let url = server.create_database("ledger").await.unwrap();
        // One connection: the plan made on empty tables serves the filled ones too.
        let options = SqlOptions { max_connections: 1, ..options() };
        let store = Arc::new(PostgresStore::open(&url, &options).await.unwrap());
        let ledger = Ledger { store: store.clone(), second: store.clone(), keep: Box::new(()) };
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let now = store.now_ms().await.unwrap();
        for _ in 0..12 {
            let runs: Vec<RunId> = (0..64).map(|_| RunId::generate(now)).collect();
            let new: Vec<NewRun> = runs.iter().map(|run| first(run, &[("a", n()), ("b", n())])).collect();
            store.submit(&owner, &new).await.unwrap();
            let items: Vec<ClaimItem> = new
                .iter()
                .flat_map(|new| &new.first.as_ref().unwrap().receipts)
                .map(|r| ClaimItem { bucket: r.call.bucket(), call: r.call.clone(), token: ClaimToken::generate() })
                .collect();
            store.claim(&worker, &items).await.unwrap();
            let settle = |item: &ClaimItem| said(&worker, &item.call, &(item.token.clone(), 1), Verdict::Succeeded);
            let advances: Vec<Advance> = runs
                .iter()
                .zip(items.chunks(2))
                .map(|(run, items)| {
                    let step = Step { receipts: vec![receipt(run, "c", &n())], ..step(2) };
                    Advance { settles: vec![settle(&items[0])], ..next(run, 1, step) }
                })
                .collect();
            let advanced = store.advance(&owner, &advances).await.unwrap();
            assert!(advanced.iter().all(|a| *a == Advanced::Done));
            let settles: Vec<_> = items.chunks(2).map(|items| settle(&items[1])).collect();
            let settled = store.settle(&settles).await.unwrap();
            assert!(settled.iter().all(|s| matches!(s, Settled::Done { .. })));
        }
        let log = std::fs::read_to_string(log_file(&server)).unwrap();
        let mut seen = 0;
        for entry in
            log.split("LOG:  duration:").filter(|entry| entry.contains("unnest(") && entry.contains("now_ms()"))
        {
            let Some(plan) = entry.split_once("Query Text:").map(|(_, rest)| rest) else { continue };
            let hot = ["SET state = 2", "st AS (", "INSERT INTO submissions"];
            if !hot.iter().any(|mark| plan.contains(mark)) {
                continue;
            }
            seen += 1;
            assert!(!plan.contains("Seq Scan"), "{plan}");
            assert!(!plan.contains("Rows Removed by Join Filter"), "{plan}");
            assert!(!plan.contains("Bitmap"), "{plan}");
            if plan.contains("UPDATE receipts") {
                // Generic (parameters stand in it), other days removed before it runs, rows found by their whole key.
                assert!(plan.contains("Subplans Removed: 4"), "{plan}");
                assert!(plan.contains("Index Cond: ((call_uid = "), "{plan}");
                assert!(plan.contains("(bucket >= $"), "{plan}");
            }
        }
        assert!(seen >= 48, "{seen} plans of hot statements in the log");
    }

    /// A claim, and an advance from running to running, change no indexed column: their rows stay in their pages.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn claims_and_advances_touch_no_index() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let (run, calls) = ledger.run_with(&owner, &[("a", n())]).await;
        let day = run.bucket();
        let held = ledger.granted(&worker, &calls[0]).await;
        assert_eq!(ledger.advance(&owner, next(&run, 1, step(2))).await, Advanced::Done);
        for table in ["receipts", "loops"] {
            let hot = format!(
                "SELECT pg_stat_get_tuples_hot_updated(c) - pg_stat_get_tuples_updated(c)
                   FROM (SELECT '{table}_d{day}'::regclass::oid AS c) x WHERE pg_stat_get_tuples_updated(c) > 0"
            );
            // Statistics arrive when their connection has been idle for a moment.
            let difference = conformance::until(|| async {
                sqlx::query_scalar::<_, i64>(AssertSqlSafe(hot.clone())).fetch_optional(store.pool()).await.unwrap()
            })
            .await;
            assert_eq!(difference, 0, "{table}");
        }
        ledger.settle(said(&worker, &calls[0], &held, Verdict::Succeeded)).await;
    }

    fn log_file(server: &Postgres) -> std::path::PathBuf {
        let mut files = std::fs::read_dir(server.dir()).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
        files.find(|path| path.is_file() && path.to_string_lossy().contains("log")).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_due_is_found_by_partial_indexes() {
        let (_database, store, _ledger) = fresh().await;
        let day = store.now_ms().await.unwrap() / 86_400_000;
        let table = [
            (
                "SELECT call_uid FROM receipts WHERE settled_ms IS NULL AND due_ms <= 5 ORDER BY due_ms LIMIT 10",
                format!("receipts_d{day}_due_ms_idx"),
            ),
            (
                "SELECT loop_id FROM loops WHERE owner_session = 'a' AND ended_ms IS NULL AND bell > bell_seen",
                format!("loops_d{day}_owner_session_idx1"),
            ),
            (
                "SELECT loop_id FROM loops WHERE wake_ms <= 5 AND wake_ms IS NOT NULL AND ended_ms IS NULL",
                format!("loops_d{day}_wake_ms_idx"),
            ),
            (
                "SELECT loop_id FROM loops WHERE status IN (1, 2, 4) AND owner_session IS NULL",
                format!("loops_d{day}_owner_session_idx"),
            ),
        ];
        for (sql, index) in table {
            let plan = text(&store, &format!("EXPLAIN {sql}")).await;
            assert!(plan.contains(&index), "{index}\n{plan}");
        }
    }
}

mod guarantees {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn one_key_makes_one_run_however_many_ask() {
        let (database, store, ledger) = fresh().await;
        let other = Arc::new(PostgresStore::open(database.url(), &options()).await.unwrap());
        let owner = ledger.coordinator().await;
        let now = store.now_ms().await.unwrap();
        for round in 0..20 {
            let key = SubmitKey::new(format!("key {round}")).unwrap();
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..8 {
                let (store, owner, key) =
                    (if n % 2 == 0 { store.clone() } else { other.clone() }, owner.clone(), key.clone());
                tasks.spawn(async move {
                    let run = RunId::generate(now);
                    let new = NewRun { key: Some(key), ..first(&run, &[("a", n_policy())]) };
                    (run, store.submit(&owner, &[new]).await.unwrap().remove(0))
                });
            }
            let (mut created, mut named) = (Vec::new(), Vec::new());
            while let Some(done) = tasks.join_next().await {
                match done.unwrap() {
                    (run, Submitted::Created) => created.push(run),
                    (_, Submitted::Duplicate { run }) => named.push(run),
                    (_, other) => panic!("{other:?}"),
                }
            }
            assert_eq!((created.len(), named.len()), (1, 7));
            assert!(named.iter().all(|run| *run == created[0]));
        }
        assert_eq!(count(&store, "SELECT count(*) FROM loops").await, 20);
        assert_eq!(count(&store, "SELECT count(*) FROM receipts").await, 20);
    }

    fn n_policy() -> CallPolicy {
        n()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_value_is_refused_by_the_database() {
        let (_database, store, ledger) = fresh().await;
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let run = ledger.run_id().await;
        let value = json("{\"nul\":\"\\u0000\",\"big\":18446744073709551616,\"z\":-0,\"e\":1e2,\"z\\u0000\":[]}");
        let policy = CallPolicy { key_ttl_ms: Some(u64::MAX), timeout_ms: u64::MAX, key: Some("a\0b".into()), ..n() };
        let mut call = receipt(&run, "a", &policy);
        call.request = value.clone();
        call.label = "nul \0 in a label".into();
        call.idem_key = "nul \0 in a key".into();
        call.budget_ms = Some(u64::MAX);
        call.traceparent = Some("nul \0".into());
        let uid: CallUid = call.call.clone();
        let steps = Step { receipts: vec![call], progress: Some(json("[\"\\u0000\"]")), ..step(1) };
        let new = NewRun { input: value.clone(), deadline_ms: Some(u64::MAX), first: Some(steps), ..new_run(&run) };
        assert_eq!(store.submit(&owner, &[new]).await.unwrap(), [Submitted::Created]);
        let held = ledger.granted(&worker, &uid).await;
        let mut settle = said(&worker, &uid, &held, Verdict::Failed);
        settle.output = Some(value.clone());
        settle.error = Some(WireError::new(ErrorClass::Failed, "NUL\0", "a \0 in a message"));
        assert!(matches!(ledger.settle(settle.clone()).await, Settled::Done { .. }));
        assert!(matches!(ledger.settle(settle).await, Settled::Done { .. }));
        let row = ledger.receipt(&uid).await;
        assert_eq!((row.output, row.request, row.policy), (Some(value.clone()), Some(value.clone()), policy));
        assert_eq!(row.error.unwrap().message, "a \u{fffd} in a message");
        let loaded = store.run_get(None, &run).await.unwrap().unwrap();
        assert_eq!(loaded.input, value);
        // Fences and tokens out of range match nothing and harm nothing.
        let mut stranger = said(&worker, &uid, &(ClaimToken::generate(), u32::MAX), Verdict::Succeeded);
        stranger.request_hash = [1; 32];
        assert_eq!(ledger.settle(stranger).await, Settled::Logged);
        let body = Json::string("\0");
        assert_eq!(store.signal_append(&tenant(), &run, "nul \0", &body, Some("r \0")).await.unwrap(), Some(1));
        assert_eq!(store.signal_append(&tenant(), &run, "nul \0", &body, Some("r \0")).await.unwrap(), Some(1));
    }

    /// Settlements, claims and advances of the same calls from several sides never block each other in a circle.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn batches_in_any_order_do_not_deadlock() {
        let (database, store, ledger) = fresh().await;
        let other = Arc::new(PostgresStore::open(database.url(), &options()).await.unwrap());
        let owner = ledger.coordinator().await;
        let worker = ledger.worker().await;
        let now = store.now_ms().await.unwrap();
        for _ in 0..5 {
            let runs: Vec<RunId> = (0..32).map(|_| RunId::generate(now)).collect();
            let new: Vec<NewRun> = runs.iter().map(|run| first(run, &[("a", k()), ("b", k())])).collect();
            store.submit(&owner, &new).await.unwrap();
            let calls: Vec<CallUid> = new
                .iter()
                .flat_map(|new| &new.first.as_ref().unwrap().receipts)
                .map(|receipt| receipt.call.clone())
                .collect();
            let mut held = Vec::new();
            for call in &calls {
                held.push((call.clone(), ledger.granted(&worker, call).await));
            }
            let mut tasks = tokio::task::JoinSet::new();
            for side in 0..4 {
                let store = if side % 2 == 0 { store.clone() } else { other.clone() };
                let mut settles: Vec<_> =
                    held.iter().map(|(call, held)| said(&worker, call, held, Verdict::Succeeded)).collect();
                settles.rotate_left(side * 13);
                tasks.spawn(async move { store.settle(&settles).await.map(|all| all.len()) });
            }
            let advances: Vec<Advance> = runs
                .iter()
                .rev()
                .map(|run| {
                    let cancels = vec![receipt(run, "a", &k()).call, receipt(run, "b", &k()).call];
                    next(run, 1, Step { cancels, ..step(2) })
                })
                .collect();
            let advanced = store.advance(&owner, &advances).await.unwrap();
            assert!(advanced.iter().all(|a| *a == Advanced::Done));
            while let Some(done) = tasks.join_next().await {
                assert_eq!(done.unwrap().unwrap(), 64);
            }
        }
        assert_eq!(count(&store, "SELECT count(*) FROM receipts WHERE state <> 3 OR settle_rev <> 1").await, 0);
    }
}
