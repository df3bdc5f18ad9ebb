//! Opening, migrating and classifying on a SQLite file and on a real Postgres.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use ditto_sql::{
    Db, DbFailure, MigrateError, Migrated, Migration, OpenError, SqlOptions, classify, migrate, migrate_within, open,
    redacted,
};
use ditto_test_servers::{Postgres, TestDatabase};
use sqlx::{PgPool, SqlitePool};
use tokio::task::JoinSet;

const LOOPS: Migration =
    Migration { version: 1, name: "loops", sql: "CREATE TABLE loops (id TEXT PRIMARY KEY, version BIGINT NOT NULL)" };
const RECEIPTS: Migration = Migration {
    version: 2,
    name: "receipts",
    sql: "CREATE TABLE receipts (id TEXT PRIMARY KEY, state TEXT NOT NULL CHECK (state <> ''));
          CREATE INDEX receipts_state ON receipts (state);
          INSERT INTO receipts VALUES ('seed', 'planned')",
};

fn options() -> SqlOptions {
    SqlOptions { max_connections: 4, ..SqlOptions::default() }
}

async fn postgres() -> (TestDatabase, PgPool, Db) {
    let database = Postgres::fresh_database().await.unwrap();
    let db = open(database.url(), &options()).await.unwrap();
    let Db::Postgres(pool) = db.clone() else { panic!("not Postgres") };
    (database, pool, db)
}

async fn sqlite(folder: &Path) -> (SqlitePool, Db) {
    let db = open(&format!("sqlite:{}", folder.join("made/on/the/way/ledger.db").display()), &options()).await.unwrap();
    let Db::Sqlite(sqlite) = &db else { panic!("not SQLite") };
    (sqlite.writer().clone(), db)
}

/// What must hold on both databases.
async fn migrations_apply_once_in_order_and_only_forward(db: &Db) {
    let run = async |steps: &[Migration]| migrate(db, "coordinator", steps, steps).await;
    assert_eq!(run(&[]).await.unwrap(), Migrated { version: 0, applied: vec![] });
    assert_eq!(run(&[LOOPS]).await.unwrap(), Migrated { version: 1, applied: vec![1] });
    assert_eq!(run(&[LOOPS, RECEIPTS]).await.unwrap(), Migrated { version: 2, applied: vec![2] });
    assert_eq!(run(&[LOOPS, RECEIPTS]).await.unwrap(), Migrated { version: 2, applied: vec![] });

    let refused = run(&[LOOPS]).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Newer { found: 2, known: 1, .. }), "{refused}");
    assert!(!refused.repeat());

    let other = Migration { sql: "CREATE TABLE loops (id TEXT)", ..LOOPS };
    let refused = run(&[other, RECEIPTS]).await.unwrap_err();
    assert!(matches!(&refused, MigrateError::Changed { version: 1, .. }), "{refused}");

    // A step that fails leaves nothing behind, not even its first statement, and can be corrected.
    let broken = Migration {
        version: 3,
        name: "attempts",
        sql: "CREATE TABLE attempts (id TEXT); INSERT INTO nowhere VALUES (1)",
    };
    let refused = run(&[LOOPS, RECEIPTS, broken]).await.unwrap_err();
    assert!(matches!(&refused, MigrateError::Failed { version: 3, .. }), "{refused}");
    let corrected = Migration { sql: "CREATE TABLE attempts (id TEXT)", ..broken };
    assert_eq!(run(&[LOOPS, RECEIPTS, corrected]).await.unwrap().applied, [3]);

    // Another owner in the same database counts for itself.
    let notes = Migration { version: 1, name: "notes", sql: "CREATE TABLE notes (id TEXT)" };
    assert_eq!(migrate(db, "memory", &[notes], &[notes]).await.unwrap().applied, [1]);
}

/// Several processes start at once; every step is applied by exactly one of them.
async fn migrators_at_once_apply_each_step_once(dbs: Vec<Db>) {
    let mut tasks = JoinSet::new();
    for db in dbs {
        tasks.spawn(async move { migrate(&db, "coordinator", &[LOOPS, RECEIPTS], &[LOOPS, RECEIPTS]).await });
    }
    let mut applied = Vec::new();
    for done in tasks.join_all().await {
        let done = done.unwrap();
        assert_eq!(done.version, 2);
        applied.extend(done.applied);
    }
    applied.sort_unstable();
    assert_eq!(applied, [1, 2]);
}

#[tokio::test]
async fn migrations_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let (_, db) = sqlite(folder.path()).await;
    migrations_apply_once_in_order_and_only_forward(&db).await;
    let memory = open("sqlite::memory:", &options()).await.unwrap();
    migrations_apply_once_in_order_and_only_forward(&memory).await;
}

#[tokio::test]
async fn migrations_on_postgres() {
    let (_database, _, db) = postgres().await;
    migrations_apply_once_in_order_and_only_forward(&db).await;
}

#[tokio::test]
async fn migrators_at_once_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    // Each with connections of its own, as in a process of its own; they also create the file at once.
    let mut opening = JoinSet::new();
    for _ in 0..4 {
        let path = folder.path().to_path_buf();
        opening.spawn(async move { sqlite(&path).await.1 });
    }
    migrators_at_once_apply_each_step_once(opening.join_all().await).await;
}

#[tokio::test]
async fn migrators_at_once_on_postgres() {
    let database = Postgres::fresh_database().await.unwrap();
    let mut dbs = Vec::new();
    for _ in 0..4 {
        let options = SqlOptions { schema: Some("ditto_ledger".into()), ..options() };
        dbs.push(open(database.url(), &options).await.unwrap());
    }
    let Db::Postgres(pool) = dbs[0].clone() else { panic!("not Postgres") };
    migrators_at_once_apply_each_step_once(dbs).await;
    let schema: String =
        sqlx::query_scalar("SELECT table_schema::text FROM information_schema.tables WHERE table_name = 'receipts'")
            .fetch_one(&pool)
            .await
            .unwrap();
    assert_eq!(schema, "ditto_ledger");
}

#[tokio::test]
async fn waiting_for_another_migrator_has_a_bound() {
    let (_database, pool, db) = postgres().await;
    let mut other = pool.begin().await.unwrap();
    sqlx::query(
        "SELECT pg_advisory_xact_lock(hashtextextended('ditto_migrations ' || current_setting('search_path') || ' coordinator', 0))",
    )
    .execute(&mut *other)
    .await
    .unwrap();
    let wait = Duration::from_millis(100);
    let refused = migrate_within(&db, "coordinator", &[LOOPS], &[LOOPS], wait).await.unwrap_err();
    assert!(matches!(refused, MigrateError::Locked { .. }) && refused.repeat(), "{refused}");
    // Another owner does not wait for it.
    assert_eq!(migrate_within(&db, "memory", &[LOOPS], &[LOOPS], wait).await.unwrap().applied, [1]);
    other.rollback().await.unwrap();
    assert_eq!(migrate_within(&db, "coordinator", &[], &[], wait).await.unwrap().version, 0);
}

#[tokio::test]
async fn settings_of_a_postgres_connection() {
    let (_database, pool, db) = postgres().await;
    db.ping().await.unwrap();
    for (name, value) in [
        ("statement_timeout", "5s"),
        ("lock_timeout", "2s"),
        ("idle_in_transaction_session_timeout", "10s"),
        ("application_name", "ditto"),
    ] {
        let found: String = sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&pool).await.unwrap();
        assert_eq!(found, value, "{name}");
    }
}

#[tokio::test]
async fn settings_of_sqlite_connections() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, db) = sqlite(folder.path()).await;
    let Db::Sqlite(sqlite) = &db else { panic!("not SQLite") };
    for (name, value) in
        [("journal_mode", "wal"), ("synchronous", "2"), ("foreign_keys", "1"), ("busy_timeout", "5000")]
    {
        let sql = format!(
            "SELECT CAST(\"{}\" AS TEXT) FROM pragma_{name}",
            if name == "busy_timeout" { "timeout" } else { name }
        );
        for pool in [&writer, sqlite.readers()] {
            let found: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.clone())).fetch_one(pool).await.unwrap();
            assert_eq!(found, value, "{name}");
        }
    }
    let refused = sqlx::query("CREATE TABLE t (id TEXT)").execute(sqlite.readers()).await.unwrap_err();
    assert_eq!(classify(&refused), DbFailure::ReadOnly, "{refused}");
    // Readers see what was committed, and are not held up by a writer.
    let mut transaction = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("CREATE TABLE t (id TEXT)").execute(&mut *transaction).await.unwrap();
    let tables = "SELECT count(*) FROM sqlite_master WHERE name = 't'";
    let seen: i64 = sqlx::query_scalar(tables).fetch_one(sqlite.readers()).await.unwrap();
    assert_eq!(seen, 0);
    transaction.commit().await.unwrap();
    let seen: i64 = sqlx::query_scalar(tables).fetch_one(sqlite.readers()).await.unwrap();
    assert_eq!(seen, 1);
}

/// Drives a future until it has waited `times` times, then drops it, as `select!` would at such a moment.
async fn cancelled_after<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut waited = 0;
    std::future::poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if waited == times => Poll::Ready(None),
        Poll::Pending => {
            waited += 1;
            Poll::Pending
        }
    })
    .await
}

/// Cancels `begin()` at every moment of its life; what is written afterwards on the same pool must be there.
///
/// Without the check on release, about half of the cancelled calls leave a connection inside a transaction, where
/// later writes report success and are never committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_begin_loses_no_later_write_on_postgres() {
    let (database, _, _) = postgres().await;
    let db = open(database.url(), &SqlOptions { max_connections: 2, ..options() }).await.unwrap();
    let Db::Postgres(pool) = &db else { panic!("not Postgres") };
    sqlx::query("CREATE TABLE writes (id BIGINT PRIMARY KEY)").execute(pool).await.unwrap();
    let mut cancelled = 0;
    for id in 0..400_i64 {
        cancelled += i64::from(cancelled_after((id % 4) as usize, pool.begin()).await.is_none());
        sqlx::query("INSERT INTO writes VALUES ($1)").bind(id).execute(pool).await.unwrap();
    }
    let other = open(database.url(), &options()).await.unwrap();
    let Db::Postgres(other) = &other else { panic!("not Postgres") };
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM writes").fetch_one(other).await.unwrap();
    assert!(cancelled >= 100, "only {cancelled} calls were cancelled");
    assert_eq!(stored, 400, "writes were reported as done and are gone ({cancelled} cancelled)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_begin_loses_no_later_write_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, db) = sqlite(folder.path()).await;
    sqlx::query("CREATE TABLE writes (id BIGINT PRIMARY KEY)").execute(&writer).await.unwrap();
    for id in 0..200_i64 {
        drop(cancelled_after((id % 4) as usize, writer.begin_with("BEGIN IMMEDIATE")).await);
        sqlx::query("INSERT INTO writes VALUES ($1)").bind(id).execute(&writer).await.unwrap();
    }
    let Db::Sqlite(sqlite) = &db else { panic!("not SQLite") };
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM writes").fetch_one(sqlite.readers()).await.unwrap();
    assert_eq!(stored, 200);
}

#[tokio::test]
async fn errors_of_postgres_are_classified() {
    let (_database, pool, db) = postgres().await;
    migrate(&db, "coordinator", &[LOOPS, RECEIPTS], &[LOOPS, RECEIPTS]).await.unwrap();
    let insert = "INSERT INTO receipts VALUES ($1, $2)";
    let failure =
        async |id: &str, state: &str| sqlx::query(insert).bind(id).bind(state).execute(&pool).await.unwrap_err();
    let named = |name: &str| DbFailure::Constraint { name: Some(name.into()) };
    let error = failure("seed", "planned").await;
    assert_eq!(classify(&error), named("receipts_pkey"));
    assert!(!redacted(&error).to_string().contains("seed"), "{}", redacted(&error));
    assert_eq!(classify(&failure("a", "").await), named("receipts_state_check"));
    assert_eq!(classify(&failure("a\0b", "planned").await), DbFailure::BadData);

    let slow = sqlx::raw_sql("SET statement_timeout = 20; SELECT pg_sleep(10)").execute(&pool).await.unwrap_err();
    assert_eq!(classify(&slow), DbFailure::Timeout);
    let ended = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())").execute(&pool).await.unwrap_err();
    assert_eq!(classify(&ended), DbFailure::Unavailable);
    db.ping().await.unwrap();

    // Two transactions that each want what the other has.
    let (mut a, mut b) = (pool.begin().await.unwrap(), pool.begin().await.unwrap());
    let lock = "SELECT pg_advisory_xact_lock($1)";
    sqlx::query(lock).bind(1_i64).execute(&mut *a).await.unwrap();
    sqlx::query(lock).bind(2_i64).execute(&mut *b).await.unwrap();
    let (first, second) =
        tokio::join!(sqlx::query(lock).bind(2_i64).execute(&mut *a), sqlx::query(lock).bind(1_i64).execute(&mut *b));
    let error = first.err().or(second.err()).unwrap();
    assert_eq!(classify(&error), DbFailure::Conflict, "{error}");
}

#[tokio::test]
async fn errors_of_sqlite_are_classified() {
    let folder = tempfile::tempdir().unwrap();
    let (writer, db) = sqlite(folder.path()).await;
    migrate(&db, "coordinator", &[LOOPS, RECEIPTS], &[LOOPS, RECEIPTS]).await.unwrap();
    for (id, state) in [("seed", "planned"), ("a", "")] {
        let insert = sqlx::query("INSERT INTO receipts VALUES ($1, $2)").bind(id).bind(state);
        let error = insert.execute(&writer).await.unwrap_err();
        assert_eq!(classify(&error), DbFailure::Constraint { name: None }, "{error}");
    }
    let impatient = SqlOptions { busy_timeout: Duration::from_millis(20), ..options() };
    let address = format!("sqlite:{}", folder.path().join("made/on/the/way/ledger.db").display());
    let other = open(&address, &impatient).await.unwrap();
    let Db::Sqlite(other) = &other else { panic!("not SQLite") };
    let held = writer.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = other.writer().begin_with("BEGIN IMMEDIATE").await.map(drop).unwrap_err();
    assert_eq!(classify(&error), DbFailure::Conflict, "{error}");
    drop(held);
}

#[tokio::test]
async fn an_address_that_cannot_work_is_refused_without_showing_it() {
    let quick = SqlOptions { acquire_timeout: Duration::from_millis(300), ..options() };
    for url in [
        "",
        "mysql://u:hunter2@h/db",
        "postgres://u:hunter2@h:port/db",
        "sqlite:",
        "sqlite:?mode=hunter2",
        "sqlite:x.db?hunter2=1",
        "postgres://u:hunter2@127.0.0.1:1/db",
    ] {
        let refused = open(url, &quick).await.unwrap_err();
        let shown = format!("{refused} {refused:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(refused.repeat(), url.contains("127.0.0.1"), "{shown}");
    }
    let odd = SqlOptions { schema: Some("a; DROP TABLE loops".into()), ..quick };
    assert!(matches!(open("postgres://h/db", &odd).await, Err(OpenError::Address { .. })));
}

/// A killed server costs each open connection one error at most, and every error says that repeating helps.
#[tokio::test]
async fn a_pool_recovers_from_a_killed_server() {
    let server = Postgres::start().await.unwrap();
    let db = open(&server.url(), &options()).await.unwrap();
    let Db::Postgres(pool) = &db else { panic!("not Postgres") };
    // Four connections in the pool.
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(pool.acquire().await.unwrap());
    }
    drop(held);
    server.kill9().unwrap();
    let refused = db.ping().await.unwrap_err();
    assert!(classify(&refused).repeat(), "{refused}");
    server.restart().await.unwrap();
    let mut errors = 0;
    while let Err(error) = db.ping().await {
        assert_eq!(classify(&error), DbFailure::Unavailable, "{error}");
        errors += 1;
        assert!(errors <= 4, "{error}");
    }
}
