//! The ledger in SQLite: one file, one writer, one transaction a batch.
//!
//! Every write is one `BEGIN IMMEDIATE` transaction: rows are read set-based, changed by the rules and written back
//! set-based. Nothing else writes in between, in this process or another.

mod batch;
mod claims;
mod drive;
mod payloads;
mod reads;
mod receipt;
mod retention;
mod rules;
mod runs;
mod sessions;
mod settle;
mod sweepers;
mod writer;

use std::{
    path::Path,
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::{
    Bucket, CallUid, Json, LoopName, Namespace, Pool, Revision, RunId, SessionId,
    wire::{
        PayloadRef,
        ledger::{ClaimAnswer, ClaimItem, Offer, ReleaseItem},
    },
};
use ditto_graph::receipt::AttemptEvent;
use ditto_sql::{Db, Migration, SqlOptions, SqliteDb};
use sqlx::{Row as _, Sqlite, SqliteConnection, pool::PoolConnection};

use super::{
    Advance, Advanced, AttemptRow, Changed, DefinitionRow, DueJob, DueRuns, EventRow, Lease, LedgerCounts, LoadedRun,
    NewRun, NewSession, OfferRow, QueryAnswer, ReceiptFilter, ReceiptRow, Resolution, Resolved, RunFilter, RunNews,
    RunRow, SessionRow, Settle, Settled, Store, StoreError, StoreResult, Submitted, rows,
};
use receipt::Entry;
use sweepers::{Pass, duration_ms};
use writer::Writer;

/// The steps of the schema.
const STEPS: &[Migration] =
    &[Migration { version: 1, name: "ledger", sql: include_str!("../../../migrations/sqlite/0001_ledger.sql") }];

/// A ledger in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    db: SqliteDb,
    writer: Writer,
    /// Where pruning goes on.
    pruned: AtomicI64,
}

impl SqliteStore {
    /// Opens (and creates or upgrades) the ledger at `path`. Several processes may have it open.
    ///
    /// # Errors
    /// The file cannot be opened, or its schema is not one this build knows.
    pub async fn open(path: &Path) -> StoreResult<Self> {
        let url = format!("sqlite:{}", path.display());
        let db = ditto_sql::open(&url, &SqlOptions::default()).await;
        Self::with(db.map_err(|error| StoreError::Unavailable(error.to_string()))?).await
    }

    /// A ledger over a database that is open already.
    ///
    /// # Errors
    /// As [`Self::open`], or it is not SQLite.
    pub async fn with(db: Db) -> StoreResult<Self> {
        let migrated = ditto_sql::migrate(&db, "coordinator", STEPS, STEPS).await;
        migrated.map_err(|error| StoreError::Schema(error.to_string()))?;
        let Db::Sqlite(db) = db else {
            return Err(StoreError::Other("expected a SQLite database".into()));
        };
        let writer = Writer::of(&db).await?;
        Ok(Self { db, writer, pruned: AtomicI64::new(0) })
    }

    /// Waits for running work and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        Db::Sqlite(self.db.clone()).close().await;
    }

    async fn read(&self) -> StoreResult<PoolConnection<Sqlite>> {
        Ok(self.db.readers().acquire().await?)
    }

    /// Whether a pass finds anything; looks without taking the write lock.
    async fn any(&self, pass: Pass, duration: i64) -> StoreResult<bool> {
        let mut connection = self.read().await?;
        let now = clock(&mut connection).await?;
        Ok(!sweepers::find(&mut connection, pass, now, duration, 1).await?.is_empty())
    }
}

/// The ledger's clock, in milliseconds since 1970.
async fn clock(connection: &mut SqliteConnection) -> StoreResult<i64> {
    let row = sqlx::query("SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)").fetch_one(connection).await?;
    Ok(row.try_get(0)?)
}

#[async_trait]
impl Store for SqliteStore {
    async fn session_open(&self, session: &NewSession) -> StoreResult<Lease> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let lease = sessions::open(&mut tx, now, session).await?;
        tx.commit().await?;
        Ok(lease)
    }

    async fn session_renew(&self, session: &SessionId, ttl_ms: u64) -> StoreResult<Lease> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let lease = sessions::renew(&mut tx, now, session, ttl_ms).await?;
        tx.commit().await?;
        Ok(lease)
    }

    async fn session_close(&self, session: &SessionId) -> StoreResult<()> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        sessions::close(&mut tx, now, session).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn sessions_expire(&self, grace: Duration) -> StoreResult<Vec<SessionId>> {
        let mut reader = self.read().await?;
        let now = clock(&mut reader).await?;
        let any = sessions::any_expired(&mut reader, now, grace).await?;
        drop(reader);
        if !any {
            return Ok(Vec::new());
        }
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let dead = sessions::expire(&mut tx, now, grace).await?;
        tx.commit().await?;
        Ok(dead)
    }

    async fn sessions_list(&self, limit: u32) -> StoreResult<Vec<SessionRow>> {
        let mut reader = self.read().await?;
        sessions::list(&mut reader, limit).await
    }

    async fn offers_put(
        &self,
        session: &SessionId,
        kind: &str,
        pool: Option<&Pool>,
        offers: &[Offer],
    ) -> StoreResult<()> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, _) = turn.begin().await?;
        sessions::offers_put(&mut tx, session, kind, pool, offers).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn offers_live(&self) -> StoreResult<Vec<OfferRow>> {
        let mut reader = self.read().await?;
        sessions::offers_live(&mut reader).await
    }

    async fn submit(&self, owner: &SessionId, runs: &[NewRun]) -> StoreResult<Vec<Submitted>> {
        runs::submit(self.writer.turn().await?, owner, runs).await
    }

    async fn advance(&self, owner: &SessionId, items: &[Advance]) -> StoreResult<Vec<Advanced>> {
        runs::advance(self.writer.turn().await?, owner, items).await
    }

    async fn claim(&self, session: &SessionId, items: &[ClaimItem]) -> StoreResult<Vec<ClaimAnswer>> {
        claims::claim(self.writer.turn().await?, session, items).await
    }

    async fn release(&self, session: &SessionId, items: &[ReleaseItem]) -> StoreResult<Vec<bool>> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let answers = claims::release(&mut tx, now, session, items).await?;
        tx.commit().await?;
        Ok(answers)
    }

    async fn settle(&self, items: &[Settle]) -> StoreResult<Vec<Settled>> {
        settle::settle(self.writer.turn().await?, items).await
    }

    async fn runs_due(&self, owner: &SessionId, take_max: u32) -> StoreResult<DueRuns> {
        let mut reader = self.read().await?;
        let now = clock(&mut reader).await?;
        let mut due = DueRuns { mine: drive::mine(&mut reader, now, owner).await?, taken: Vec::new() };
        let any = take_max > 0 && !drive::orphans(&mut reader, now, 1).await?.is_empty();
        drop(reader);
        if any {
            let mut turn = self.writer.turn().await?;
            let (mut tx, now) = turn.begin().await?;
            for run in drive::orphans(&mut tx, now, take_max).await? {
                due.taken.extend(drive::take(&mut tx, now, owner, &run).await?);
            }
            tx.commit().await?;
        }
        Ok(due)
    }

    async fn runs_owned(&self, owner: &SessionId, limit: u32) -> StoreResult<Vec<RunId>> {
        drive::owned(&mut *self.read().await?, owner, limit).await
    }

    async fn run_take(&self, owner: &SessionId, run: &RunId) -> StoreResult<Option<LoadedRun>> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let taken = drive::take(&mut tx, now, owner, run).await?;
        tx.commit().await?;
        Ok(taken)
    }

    async fn run_news(&self, run: &RunId, open: &[CallUid], signal_seen: i64) -> StoreResult<Option<RunNews>> {
        drive::news(self.db.readers(), run, open, signal_seen).await
    }

    async fn runs_yield(&self, owner: &SessionId, runs: &[RunId]) -> StoreResult<()> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, _) = turn.begin().await?;
        drive::give_back(&mut tx, owner, runs).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn run_cancel(&self, namespace: &Namespace, run: &RunId) -> StoreResult<Option<RunRow>> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        drive::cancel(&mut tx, now, namespace, run).await?;
        let row = reads::run(&mut tx, Some(namespace), run).await?;
        tx.commit().await?;
        Ok(row)
    }

    async fn signal_append(
        &self,
        namespace: &Namespace,
        run: &RunId,
        name: &str,
        body: &Json,
        request_id: Option<&str>,
    ) -> StoreResult<Option<i64>> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let n = drive::signal(&mut tx, now, namespace, run, (name, body), request_id).await?;
        tx.commit().await?;
        Ok(n)
    }

    async fn run_get(&self, namespace: Option<&Namespace>, run: &RunId) -> StoreResult<Option<RunRow>> {
        let mut reader = self.read().await?;
        reads::run(&mut reader, namespace, run).await
    }

    async fn runs_list(&self, filter: &RunFilter, limit: u32) -> StoreResult<Vec<RunRow>> {
        let mut reader = self.read().await?;
        reads::runs(&mut reader, filter, limit).await
    }

    async fn events_after(&self, run: &RunId, version: i64, limit: u32) -> StoreResult<Vec<EventRow>> {
        let mut reader = self.read().await?;
        reads::events(&mut reader, run, version, limit).await
    }

    async fn receipt_get(&self, call: &CallUid) -> StoreResult<Option<ReceiptRow>> {
        let mut reader = self.read().await?;
        reads::receipt(&mut reader, call).await
    }

    async fn receipts_list(&self, filter: &ReceiptFilter, limit: u32) -> StoreResult<Vec<ReceiptRow>> {
        let mut reader = self.read().await?;
        reads::receipts(&mut reader, filter, limit).await
    }

    async fn attempts_list(&self, call: &CallUid, limit: u32) -> StoreResult<Vec<AttemptRow>> {
        let mut reader = self.read().await?;
        reads::attempts(&mut reader, call, limit).await
    }

    async fn attempt_log(&self, call: &CallUid, fence: u32, detail: &Json) -> StoreResult<()> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let entry = Entry {
            call: call.clone(),
            fence,
            session: None,
            token: None,
            event: AttemptEvent::Late,
            detail: detail.clone(),
        };
        receipt::log(&mut tx, now, &[entry]).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn receipt_resolve(
        &self,
        call: &CallUid,
        settle_rev: i32,
        resolution: &Resolution,
        who: &str,
        reason: &str,
    ) -> StoreResult<Resolved> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let resolved = settle::resolve(&mut tx, now, call, settle_rev, resolution, who, reason).await?;
        tx.commit().await?;
        Ok(resolved)
    }

    async fn reconcile(&self, answers: &[(CallUid, QueryAnswer)]) -> StoreResult<Vec<Option<Changed>>> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let changed = settle::reconcile(&mut tx, now, answers).await?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn held_review(&self, _session: &SessionId, calls: &[CallUid]) -> StoreResult<(Vec<CallUid>, Vec<CallUid>)> {
        let mut reader = self.read().await?;
        settle::held_review(&mut reader, calls).await
    }

    async fn sweep_lost_claims(&self, limit: u32) -> StoreResult<Vec<Changed>> {
        if !self.any(sweepers::LOST, 0).await? {
            return Ok(Vec::new());
        }
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let changed = sweepers::lost(&mut tx, now, limit).await?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn sweep_dispatch(&self, limit: u32) -> StoreResult<Vec<DueJob>> {
        if !self.any(sweepers::DISPATCH, 0).await? {
            return Ok(Vec::new());
        }
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let jobs = sweepers::dispatch(&mut tx, now, limit).await?;
        tx.commit().await?;
        Ok(jobs)
    }

    async fn sweep_reconcile(&self, limit: u32) -> StoreResult<Vec<DueJob>> {
        if !self.any(sweepers::RECONCILE, 0).await? {
            return Ok(Vec::new());
        }
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let jobs = sweepers::reconcile(&mut tx, now, limit).await?;
        tx.commit().await?;
        Ok(jobs)
    }

    async fn sweep_limits(&self, reconcile_window: Duration, limit: u32) -> StoreResult<Vec<Changed>> {
        let window = duration_ms(reconcile_window);
        if !self.any(sweepers::LIMITS, window).await? {
            return Ok(Vec::new());
        }
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let changed = sweepers::limits(&mut tx, now, window, limit).await?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn sweep_unserved(&self, wait: Duration, limit: u32) -> StoreResult<Vec<Changed>> {
        let wait = duration_ms(wait);
        if !self.any(sweepers::UNSERVED, wait).await? {
            return Ok(Vec::new());
        }
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let changed = sweepers::unserved(&mut tx, now, wait, limit).await?;
        tx.commit().await?;
        Ok(changed)
    }

    async fn dispatch_runs(&self, runs: &[RunId]) -> StoreResult<u64> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let count = sweepers::dispatch_runs(&mut tx, now, runs).await?;
        tx.commit().await?;
        Ok(count)
    }

    async fn dispatch_all(&self) -> StoreResult<u64> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let count = sweepers::dispatch_all(&mut tx, now).await?;
        tx.commit().await?;
        Ok(count)
    }

    async fn sweep_retention(&self, retention: Duration) -> StoreResult<bool> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let next = retention::prune(&mut tx, self.pruned.load(Ordering::Relaxed)).await?;
        let before = now - duration_ms(retention);
        let mut more = next.is_some();
        if let Some(bucket) = retention::closed_day(&mut tx, before).await? {
            more |= retention::drop_day(&mut tx, now, bucket).await?;
        }
        retention::forget_sessions(&mut tx, before.min(now - rows::SILENT_MS)).await?;
        tx.commit().await?;
        // At the end of the table it begins again with the next pass.
        self.pruned.store(next.unwrap_or(0), Ordering::Relaxed);
        Ok(more)
    }

    async fn payload_put(&self, bucket: Bucket, payload: &PayloadRef, offset: u32, chunk: &[u8]) -> StoreResult<bool> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        let stored = payloads::put(&mut tx, now, bucket, payload, offset, chunk).await?;
        tx.commit().await?;
        Ok(stored)
    }

    async fn payload_get(&self, bucket: Bucket, payload: &PayloadRef) -> StoreResult<Option<Bytes>> {
        let mut reader = self.read().await?;
        payloads::get_bytes(&mut reader, bucket, payload).await
    }

    async fn definition_put(&self, definition: &DefinitionRow) -> StoreResult<()> {
        let mut turn = self.writer.turn().await?;
        let (mut tx, now) = turn.begin().await?;
        reads::definition_put(&mut tx, now, definition).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn definition_get(
        &self,
        namespace: &Namespace,
        name: &LoopName,
        revision: Option<&Revision>,
    ) -> StoreResult<Option<DefinitionRow>> {
        let mut reader = self.read().await?;
        reads::definition(&mut reader, namespace, name, revision).await
    }

    async fn definitions_list(
        &self,
        namespace: &Namespace,
        after: Option<&LoopName>,
        limit: u32,
    ) -> StoreResult<Vec<DefinitionRow>> {
        let mut reader = self.read().await?;
        reads::definitions(&mut reader, namespace, after, limit).await
    }

    async fn counts(&self) -> StoreResult<LedgerCounts> {
        let mut reader = self.read().await?;
        let now = clock(&mut reader).await?;
        reads::counts(&mut reader, now).await
    }

    async fn now_ms(&self) -> StoreResult<i64> {
        let mut reader = self.read().await?;
        clock(&mut reader).await
    }

    async fn describe(&self) -> StoreResult<Vec<(String, String)>> {
        let mut connection = self.db.writer().acquire().await?;
        let mut facts = vec![("product".to_owned(), "SQLite".to_owned())];
        for (name, sql) in [
            ("version", "SELECT sqlite_version()"),
            ("journal_mode", "SELECT journal_mode FROM pragma_journal_mode"),
            ("synchronous", "SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous"),
        ] {
            let row = sqlx::query(sql).fetch_one(&mut *connection).await?;
            facts.push((name.to_owned(), row.try_get(0)?));
        }
        Ok(facts)
    }
}
