//! The one connection that writes, and transactions of few exchanges with the thread it lives in.
//!
//! Each exchange costs two switches between threads, more than most statements. The hot verbs need two: a transaction
//! begins with all that it reads, and ends with all that it writes.

use std::sync::atomic::{AtomicU64, Ordering};

use ditto_sql::SqliteDb;
use sqlx::{Connection as _, Row as _, Sqlite, SqliteConnection, SqlitePool, Transaction, sqlite::SqliteRow};
use tokio::sync::{Mutex, MutexGuard};

use super::{
    batch::{Found, Reads, Writes},
    clock,
};
use crate::store::{StoreError, StoreResult};

/// What the writer works with: a cache that holds the open set, and checkpoints of the log in larger steps.
const TUNE: &str = "PRAGMA cache_size = -65536; PRAGMA wal_autocheckpoint = 10000; PRAGMA temp_store = MEMORY";

const BEGIN: &str = "BEGIN IMMEDIATE";

/// The writing side of a database; whoever has the turn writes.
#[derive(Debug)]
pub(super) struct Writer {
    pool: SqlitePool,
    /// Kept between transactions, as the pool asks a connection how it is each time. Opened when it is missing.
    kept: Mutex<Option<SqliteConnection>>,
    /// The database is in memory, and its only connection must go back to those who read.
    memory: bool,
    /// Exchanges of the hot verbs with the thread of the connection.
    exchanges: AtomicU64,
}

impl Writer {
    /// The writer of `db`.
    pub(super) async fn of(db: &SqliteDb) -> StoreResult<Self> {
        let pool = db.writer().clone();
        let mut connection = pool.acquire().await?;
        let file: Option<String> = sqlx::query_scalar("SELECT file FROM pragma_database_list WHERE name = 'main'")
            .fetch_one(&mut *connection)
            .await?;
        let memory = file.is_none_or(|file| file.is_empty());
        sqlx::raw_sql(TUNE).execute(&mut *connection).await?;
        let kept = if memory { None } else { Some(connection.detach()) };
        Ok(Self { pool, kept: Mutex::new(kept), memory, exchanges: AtomicU64::new(0) })
    }

    /// Waits for a turn, no longer than one waits for a connection.
    pub(super) async fn turn(&self) -> StoreResult<Turn<'_>> {
        let slot = tokio::time::timeout(self.pool.options().get_acquire_timeout(), self.kept.lock()).await;
        let mut slot = slot.map_err(|_| StoreError::Unavailable("no turn to write in time".into()))?;
        if !self.memory && slot.is_none() {
            let mut connection = self.pool.acquire().await?;
            sqlx::raw_sql(TUNE).execute(&mut *connection).await?;
            *slot = Some(connection.detach());
        }
        Ok(Turn { writer: self, slot, pooled: None, open: false })
    }

    /// Waits for the current turn and closes the connection.
    pub(super) async fn close(&self) {
        let connection = self.kept.lock().await.take();
        if let Some(connection) = connection {
            // It is closed either way.
            let _ = connection.close().await;
        }
    }

    #[cfg(test)]
    pub(super) fn exchanges(&self) -> u64 {
        self.exchanges.load(Ordering::Relaxed)
    }
}

/// The right to write, for one transaction.
pub(super) struct Turn<'a> {
    writer: &'a Writer,
    slot: MutexGuard<'a, Option<SqliteConnection>>,
    /// The transaction of a database in memory.
    pooled: Option<Transaction<'static, Sqlite>>,
    /// A transaction is open that only its own statements end.
    open: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.open {
            // Given up in the middle. A connection that is closed rolls back, whatever it was doing.
            *self.slot = None;
        }
    }
}

impl Turn<'_> {
    /// The connection, for what the hot path seldom needs in the middle of its transaction.
    pub(super) fn connection(&mut self) -> StoreResult<&mut SqliteConnection> {
        self.writer.exchanges.fetch_add(1, Ordering::Relaxed);
        let pooled = self.pooled.as_deref_mut();
        pooled.or(self.slot.as_mut()).ok_or_else(|| StoreError::Unavailable("the writer is closed".into()))
    }

    /// Begins a transaction of any statements, and reads the ledger's clock.
    pub(super) async fn begin(&mut self) -> StoreResult<(Transaction<'_, Sqlite>, i64)> {
        // A connection that cannot begin may be out of order: it is replaced.
        self.open = true;
        let mut transaction = match self.slot.as_mut() {
            Some(connection) => connection.begin_with(BEGIN).await?,
            None => self.writer.pool.begin_with(BEGIN).await?,
        };
        self.open = false;
        let now = clock(&mut transaction).await?;
        Ok((transaction, now))
    }

    /// Begins a transaction with all that it reads, and the ledger's clock.
    pub(super) async fn read(&mut self, reads: Reads) -> StoreResult<(i64, Found)> {
        let mut rows = Vec::new();
        let begin = if self.writer.memory {
            self.pooled = Some(self.writer.pool.begin_with(BEGIN).await?);
            ""
        } else {
            self.open = true;
            "BEGIN IMMEDIATE;"
        };
        let (queries, places) = reads.finish();
        for (n, query) in queries.into_iter().enumerate() {
            let before = if n == 0 { begin } else { "" };
            match query.one(self.connection()?, before).await {
                Ok(row) => rows.push(row),
                Err(error) => return Err(self.fail(error).await),
            }
        }
        let now = rows.first().map(|row| row.try_get(0)).transpose()?;
        let now = now.ok_or_else(|| StoreError::Other("no clock".into()))?;
        Ok((now, Found::new(rows, places)))
    }

    /// Writes and commits. What the statements return comes in their order.
    pub(super) async fn commit(mut self, writes: Writes) -> StoreResult<Vec<SqliteRow>> {
        let mut rows = Vec::new();
        let mut queries = writes.finish();
        let commit = if self.writer.memory { "" } else { ";COMMIT" };
        let last = queries.pop().unwrap_or_default();
        for query in queries {
            match query.run(self.connection()?, "").await {
                Ok(found) => rows.extend(found),
                Err(error) => return Err(self.fail(error).await),
            }
        }
        match last.run(self.connection()?, commit).await {
            Ok(found) => rows.extend(found),
            Err(error) => return Err(self.fail(error).await),
        }
        self.open = false;
        if let Some(transaction) = self.pooled.take() {
            transaction.commit().await?;
        }
        Ok(rows)
    }

    /// Rolls back what has failed. A connection that cannot do so, or was not in a transaction any more, is closed.
    async fn fail(&mut self, error: sqlx::Error) -> StoreError {
        if self.open
            && let Some(connection) = self.slot.as_mut()
        {
            self.open = sqlx::raw_sql("ROLLBACK").execute(connection).await.is_err();
        }
        error.into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail their test")]
mod tests {
    use std::{path::Path, time::Duration};

    use ditto_sql::{Db, SqlOptions};

    use super::*;

    const PUT: &str = "INSERT INTO t (n) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL";

    async fn open(url: &str) -> (SqliteDb, Writer) {
        let Db::Sqlite(db) = ditto_sql::open(url, &SqlOptions::default()).await.unwrap() else { unreachable!() };
        sqlx::raw_sql("CREATE TABLE t (n INTEGER NOT NULL CHECK (n < 1000), PRIMARY KEY (n)) STRICT")
            .execute(db.writer())
            .await
            .unwrap();
        let writer = Writer::of(&db).await.unwrap();
        (db, writer)
    }

    fn url(folder: &Path) -> String {
        format!("sqlite:{}", folder.join("w.db").display())
    }

    async fn count(db: &SqliteDb) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM t").fetch_one(db.readers()).await.unwrap()
    }

    fn put(writes: &mut Writes, numbers: &[i64]) {
        writes.add(PUT, 1, numbers, |bind, n| {
            bind.add(*n);
        });
    }

    async fn write(writer: &Writer, parts: &[&[i64]]) -> StoreResult<()> {
        let mut turn = writer.turn().await?;
        turn.read(Reads::new()).await?;
        let mut writes = Writes::default();
        parts.iter().for_each(|part| put(&mut writes, part));
        turn.commit(writes).await.map(drop)
    }

    async fn an_error_in_the_middle_leaves_nothing(url: &str) {
        let (db, writer) = open(url).await;
        write(&writer, &[&[1, 2, 3], &[4]]).await.unwrap();
        assert_eq!(count(&db).await, 4, "rows that fill up are not inserted");
        // The second of three statements fails, by its value or by a repeated key.
        for bad in [1000, 1] {
            write(&writer, &[&[5], &[bad], &[6]]).await.unwrap_err();
            assert_eq!(count(&db).await, 4);
        }
        // Outside a transaction: both ways to begin one work.
        let mut turn = writer.turn().await.unwrap();
        let (transaction, _) = turn.begin().await.unwrap();
        transaction.rollback().await.unwrap();
        drop(turn);
        write(&writer, &[&[5]]).await.unwrap();
        assert_eq!(count(&db).await, 5);
    }

    #[tokio::test]
    async fn a_file_has_nothing_of_a_batch_that_fails() {
        let folder = tempfile::tempdir().unwrap();
        an_error_in_the_middle_leaves_nothing(&url(folder.path())).await;
    }

    #[tokio::test]
    async fn memory_has_nothing_of_a_batch_that_fails() {
        an_error_in_the_middle_leaves_nothing("sqlite::memory:").await;
    }

    #[tokio::test]
    async fn a_transaction_given_up_in_the_middle_holds_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (db, writer) = open(&url(folder.path())).await;
        let mut turn = writer.turn().await.unwrap();
        turn.read(Reads::new()).await.unwrap();
        let mut writes = Writes::default();
        put(&mut writes, &[7]);
        writes.run(turn.connection().unwrap()).await.unwrap();
        drop(turn);
        // Another connection gets the lock as soon as the first is closed.
        let other = ditto_sql::open(&url(folder.path()), &SqlOptions::default()).await.unwrap();
        let Db::Sqlite(other) = other else { unreachable!() };
        other.writer().begin_with(BEGIN).await.unwrap().rollback().await.unwrap();
        assert_eq!(count(&db).await, 0);
        for micros in 0..50 {
            let _ = tokio::time::timeout(Duration::from_micros(micros * 10), write(&writer, &[&[1], &[2]])).await;
            let stored = count(&db).await;
            assert!(stored == 0 || stored == 2, "{stored} of 2");
            sqlx::raw_sql("DELETE FROM t").execute(other.writer()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_larger_than_one_text_is_still_one_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let (db, writer) = open(&url(folder.path())).await;
        let before = writer.exchanges();
        write(&writer, &[&[1], &[2]]).await.unwrap();
        assert_eq!(writer.exchanges() - before, 2);
        let many: Vec<[i64; 1]> = (10..900).map(|n| [n]).collect();
        let mut many: Vec<&[i64]> = many.iter().map(|n| &n[..]).collect();
        many.push(&[1000]);
        let before = writer.exchanges();
        write(&writer, &many).await.unwrap_err();
        assert!(writer.exchanges() - before > 3, "the last one fails in an exchange of its own");
        assert_eq!(count(&db).await, 2);
        many.pop();
        write(&writer, &many).await.unwrap();
        assert_eq!(count(&db).await, 892);
    }

    #[tokio::test]
    async fn each_hot_verb_takes_two_exchanges() {
        use ditto_contracts::{
            CallId, CallKind, CallPolicy, CallUid, ClaimToken, Json, LoopName, Namespace, NodeType, OnUnknown,
            Revision, RunId, RunStatus, SessionId, Verdict,
            wire::ledger::{ClaimAnswer, ClaimItem},
        };

        use crate::store::{
            Advance, Advanced, NewReceipt, NewRun, NewSession, SessionRole, Settle, Settled, Step, Store as _,
            sqlite::SqliteStore,
        };

        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("ledger.db")).await.unwrap();
        let me = SessionId::generate();
        let session = NewSession {
            session: me.clone(),
            role: SessionRole::Coordinator,
            kind: "k".into(),
            name: "n".into(),
            build: "b".into(),
            instance: None,
            ttl_ms: 60_000,
        };
        store.session_open(&session).await.unwrap();
        let run = RunId::generate(store.now_ms().await.unwrap());
        let receipt = |n: i64| {
            let call_id = CallId::new(format!("step:{n}")).unwrap();
            let call = CallUid::derive(&run, CallKind::Tool, &call_id);
            let request = Json::parse(format!("{n}")).unwrap();
            NewReceipt {
                kind: CallKind::Tool,
                node: NodeType::new(NodeType::ACT_TOOL).unwrap(),
                source: None,
                pool: None,
                label: "l".into(),
                policy: CallPolicy::default(),
                on_unknown: OnUnknown::Park,
                idem_key: format!("a;b|{n}"),
                request_hash: request.sha256(),
                request,
                delay_ms: 0,
                budget_ms: None,
                traceparent: None,
                call,
                call_id,
            }
        };
        let step = |receipts: Vec<NewReceipt>| Step {
            checkpoint: Json::parse("{}").unwrap(),
            boundary: false,
            receipts,
            cancels: Vec::new(),
            status: RunStatus::Running,
            wake_ms: None,
            signal_seen: None,
            bell_seen: 0,
            ending: None,
            progress: None,
        };
        let (first, second) = (receipt(1), receipt(2));
        let new = NewRun {
            run: run.clone(),
            namespace: Namespace::default_namespace(),
            key: None,
            body_hash: [1; 32],
            name: LoopName::new("l").unwrap(),
            revision: Revision::new("1").unwrap(),
            input: Json::parse("1").unwrap(),
            deadline_ms: None,
            traceparent: None,
            first: Some(step(vec![first.clone()])),
        };
        let start = store.writer.exchanges();
        store.submit(&me, &[new]).await.unwrap();
        assert_eq!(store.writer.exchanges() - start, 2);
        let mut held = Vec::new();
        for call in [&first.call, &first.call] {
            let item = ClaimItem { bucket: run.bucket(), call: call.clone(), token: ClaimToken::generate() };
            let answer = store.claim(&me, std::slice::from_ref(&item)).await.unwrap().remove(0);
            held.push((item.token, answer));
        }
        assert_eq!(store.writer.exchanges() - start, 6);
        let (token, ClaimAnswer::Granted { fence, key, .. }) = held.remove(0) else { unreachable!() };
        assert_eq!(key, "a;b|1");
        assert_eq!(held[0].1, ClaimAnswer::Taken);
        let settle = Settle {
            call: first.call.clone(),
            fence,
            token: Some(token),
            session: me.clone(),
            request_hash: first.request_hash,
            verdict: Verdict::Succeeded,
            output: None,
            output_ref: None,
            error: None,
        };
        let settles = vec![settle.clone()];
        let item = Advance { run: run.clone(), epoch: 1, version: 1, settles, step: step(vec![second]) };
        assert_eq!(store.advance(&me, &[item]).await.unwrap(), [Advanced::Done]);
        assert_eq!(store.writer.exchanges() - start, 8);
        let again = store.settle(&[settle]).await.unwrap().remove(0);
        assert!(matches!(again, Settled::Done { owner: Some(_), .. }), "{again:?}");
        assert_eq!(store.writer.exchanges() - start, 10);
    }
}
