//! The ledger in Postgres: plain prepared statements over arrays, READ COMMITTED, compare-and-set.
//!
//! The hot verbs are one statement and one commit for a whole batch. Only items that the statement did not answer are
//! looked at again, to tell a repetition from a refusal. Every verb runs in a task of its own, so that a caller who goes
//! away never interrupts a transaction.

mod advance;
mod claim;
mod columns;
mod definitions;
mod model;
mod numbers;
mod partitions;
mod payloads;
mod receipts;
mod reconcile;
mod retention;
mod rows;
mod runs;
mod sessions;
mod settle;
mod submit;
mod sweepers;
mod take;
mod verbs;

use std::{future::Future, sync::Arc};

use ditto_sql::{Db, Migration, SqlOptions};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};
use tokio_util::task::TaskTracker;

use super::{StoreError, StoreResult};

/// Steps of the schema, the same names for both databases.
const MIGRATIONS: [Migration; 1] =
    [Migration { version: 1, name: "ledger", sql: include_str!("../../../migrations/postgres/0001_ledger.sql") }];
/// Only the names of these are looked at.
const SQLITE_NAMES: [Migration; 1] = [Migration { version: 1, name: "ledger", sql: "" }];

/// The ledger in Postgres. Clones share its connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: PgPool,
    /// Running verbs: they outlive a caller who went away, and [`PostgresStore::close`] waits for them.
    tasks: TaskTracker,
    /// Database identity and timeline, noted with each session (receipts contract §15).
    mark: String,
    prune: retention::Cursor,
}

impl PostgresStore {
    /// Connects, brings the schema up to date and creates the partitions of the next days.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database cannot be reached or is being migrated, [`StoreError::Schema`] when
    /// its schema is not the one this build knows, [`StoreError::Other`] for an address that cannot be right.
    pub async fn open(url: &str, options: &SqlOptions) -> StoreResult<Self> {
        let planned_once = if options.transaction_pooler { url.to_owned() } else { plan_once(url) };
        let db = ditto_sql::open(&planned_once, options).await.map_err(|error| {
            if error.repeat() {
                StoreError::Unavailable(error.to_string())
            } else {
                StoreError::Other(error.to_string())
            }
        })?;
        let migrated = ditto_sql::migrate(&db, "coordinator", &MIGRATIONS, &SQLITE_NAMES).await;
        migrated.map_err(|error| {
            if error.repeat() {
                StoreError::Unavailable(error.to_string())
            } else {
                StoreError::Schema(error.to_string())
            }
        })?;
        let Db::Postgres(pool) = db else {
            return Err(StoreError::Other("not a Postgres address".into()));
        };
        let mark = mark(&pool).await;
        let store = Self {
            inner: Arc::new(Inner { pool, tasks: TaskTracker::new(), mark, prune: retention::Cursor::default() }),
        };
        store.run(|store| async move { partitions::create_ahead(&store.inner.pool).await.map(drop) }).await?;
        Ok(store)
    }

    /// Waits for verbs that are under way and closes the connections.
    pub async fn close(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.pool.close().await;
    }

    /// The connections, for tests that look behind the seam.
    #[doc(hidden)]
    pub fn pool(&self) -> &PgPool {
        &self.inner.pool
    }

    /// Runs a verb to its end, whatever becomes of the caller.
    async fn run<T, F>(&self, verb: impl FnOnce(Self) -> F) -> StoreResult<T>
    where
        T: Send + 'static,
        F: Future<Output = StoreResult<T>> + Send + 'static,
    {
        if self.inner.tasks.is_closed() {
            return Err(StoreError::Unavailable("the ledger is closed".into()));
        }
        let task = self.inner.tasks.spawn(verb(self.clone()));
        task.await.map_err(|error| StoreError::Other(format!("ledger task failed: {error}")))?
    }
}

/// The address with settings for statements whose cost is in their planning: planned once per connection, for any
/// parameters, by index. A day that was just created has no statistics; without these a plan made then would read whole
/// tables for ever. Behind a transaction pooler nothing can be set at the start: give them to the role.
fn plan_once(url: &str) -> String {
    const SETTINGS: [(&str, &str); 14] = [
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("enable_bitmapscan", "off"),
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
        ("enable_material", "off"),
        ("enable_memoize", "off"),
        // Rows count, pages do not: a look-up by key is then always cheaper than a pass over a day, also over an empty one.
        ("random_page_cost", "0.01"),
        ("seq_page_cost", "0.01"),
        ("cpu_index_tuple_cost", "0.05"),
        ("cpu_operator_cost", "0.0001"),
        ("jit", "off"),
        ("max_parallel_workers_per_gather", "0"),
        ("synchronous_commit", "on"),
    ];
    let mut all = url.to_owned();
    let mut separator = if url.contains('?') { '&' } else { '?' };
    for (name, value) in SETTINGS {
        all.push(separator);
        all.push_str(&format!("options[{name}]={value}"));
        separator = '&';
    }
    all
}

/// Database identity and timeline; empty where the role may not ask.
async fn mark(pool: &PgPool) -> String {
    let asked = "SELECT s.system_identifier::text || '/' || c.timeline_id::text FROM pg_control_system() s, pg_control_checkpoint() c";
    sqlx::query_scalar(asked).fetch_one(pool).await.unwrap_or_default()
}

/// A transaction to be ended by [`Transaction::commit`]; an error drops it, which rolls back.
async fn begin(pool: &PgPool) -> StoreResult<Transaction<'static, Postgres>> {
    Ok(pool.begin().await?)
}

/// The lowest and highest bucket of a batch: constants for the statement, so that other days are pruned before it runs.
fn span(buckets: &[i32]) -> (i32, i32) {
    let low = buckets.iter().copied().min().unwrap_or(0);
    (low, buckets.iter().copied().max().unwrap_or(low))
}

/// An entry for the attempt log.
struct LogEntry {
    bucket: i32,
    call: String,
    fence: i32,
    session: Option<String>,
    token: Option<String>,
    event: i16,
    detail: Vec<u8>,
}

/// Appends to the attempt log; an entry that is there already with the same content is not repeated.
async fn log(connection: &mut PgConnection, entries: &[LogEntry]) -> sqlx::Result<()> {
    const LOG: &str = "
        INSERT INTO attempts (bucket, call_uid, fence, session_id, claim_token, event, detail, at_ms)
        SELECT DISTINCT e.bucket, e.call_uid, e.fence, e.session_id, e.token, e.event, e.detail, (SELECT now_ms())
          FROM unnest($1::int[], $2::text[], $3::int[], $4::text[], $5::text[], $6::int2[], $7::bytea[])
               AS e(bucket, call_uid, fence, session_id, token, event, detail)
         WHERE NOT EXISTS (SELECT 1 FROM attempts a
                            WHERE a.bucket = e.bucket AND a.call_uid = e.call_uid AND a.fence = e.fence
                              AND a.event = e.event AND a.detail = e.detail)";
    if entries.is_empty() {
        return Ok(());
    }
    sqlx::query(LOG)
        .bind(entries.iter().map(|e| e.bucket).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.call.as_str()).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.fence).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.session.as_deref()).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.token.as_deref()).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.event).collect::<Vec<_>>())
        .bind(entries.iter().map(|e| e.detail.as_slice()).collect::<Vec<_>>())
        .execute(connection)
        .await
        .map(drop)
}
