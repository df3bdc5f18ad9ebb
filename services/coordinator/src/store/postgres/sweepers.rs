//! Bounded passes over the open set, in the order of its index. Rows somebody else is looking at are skipped; guards are
//! checked under the lock.

use std::time::Duration;

use ditto_contracts::{EffectClass, ReceiptState, RunId, SettledBy, codes};
use ditto_graph::receipt::{Change, Due, ReceiptEvent};
use sqlx::{PgConnection, PgPool, Row as _};

use super::{
    super::{
        Changed, DueJob, StoreError, StoreResult,
        rows::{self as shared, DISPATCHES_MAX, dispatch_pause_ms, ms},
    },
    begin,
    model::{Stored, Update, stored_columns, write},
    span,
};

/// Receipts to be looked at again later, and the jobs among them to publish.
#[derive(Default)]
pub(super) struct DueColumns {
    bucket: Vec<i32>,
    call: Vec<String>,
    due_ms: Vec<i64>,
    /// 0 nothing, 1 dispatch, 2 query.
    job: Vec<i16>,
}

impl DueColumns {
    /// A job to publish now, and when to look again.
    pub(super) fn push(&mut self, stored: &Stored, due_ms: i64, query: bool) {
        self.bucket.push(stored.call.bucket());
        self.call.push(stored.call.as_str().to_owned());
        self.due_ms.push(due_ms);
        self.job.push(if query { 2 } else { 1 });
    }

    /// Only when to look again.
    pub(super) fn postpone(&mut self, stored: &Stored, due_ms: i64) {
        self.push(stored, due_ms, false);
        if let Some(job) = self.job.last_mut() {
            *job = 0;
        }
    }
}

/// Writes dispatch numbers and due times of locked receipts and returns the jobs.
pub(super) async fn dispatched(connection: &mut PgConnection, columns: &DueColumns) -> StoreResult<Vec<DueJob>> {
    // Some jitter, so that what was planned together is not published together for ever.
    const DISPATCH: &str = "
        UPDATE receipts r
           SET due_ms = d.due_ms + ((d.due_ms - t.now) * (random() * 0.4 - 0.2))::int8,
               dispatch_no = r.dispatch_no + CASE WHEN d.job = 0 THEN 0 ELSE 1 END,
               reconcile_no = r.reconcile_no + CASE WHEN d.job = 2 THEN 1 ELSE 0 END
          FROM unnest($1::int[], $2::text[], $3::int8[], $4::int2[]) AS d(bucket, call_uid, due_ms, job),
               (SELECT now_ms() AS now) t
         WHERE r.bucket BETWEEN $5 AND $6 AND r.bucket = d.bucket AND r.call_uid = d.call_uid
        RETURNING d.job, r.call_uid, r.loop_id, r.node, r.pool, r.policy, r.idem_key, r.dispatch_no, r.request,
                  r.request_ref, r.request_hash, r.deadline_ms - t.now AS budget_ms, r.traceparent";
    if columns.call.is_empty() {
        return Ok(Vec::new());
    }
    let (low, high) = span(&columns.bucket);
    let found = sqlx::query(DISPATCH)
        .bind(&columns.bucket)
        .bind(&columns.call)
        .bind(&columns.due_ms)
        .bind(&columns.job)
        .bind(low)
        .bind(high)
        .fetch_all(connection)
        .await?;
    let mut jobs = Vec::with_capacity(found.len());
    for row in found {
        let job: i16 = row.try_get("job")?;
        if job == 0 {
            continue;
        }
        let request_ref: Option<String> = row.try_get("request_ref")?;
        let reference = request_ref.as_deref().map(str::parse).transpose();
        jobs.push(DueJob {
            call: shared::id(row.try_get("call_uid")?)?,
            run: shared::id(row.try_get("loop_id")?)?,
            node: shared::id(row.try_get("node")?)?,
            pool: shared::id_opt(row.try_get("pool")?)?,
            policy: shared::policy(row.try_get("policy")?)?,
            query: job == 2,
            idem_key: row.try_get("idem_key")?,
            dispatch_no: row.try_get::<i32, _>("dispatch_no")?.unsigned_abs(),
            request: row.try_get::<Option<Vec<u8>>, _>("request")?.map(shared::json),
            request_ref: reference.map_err(|error| StoreError::Schema(format!("stored payload reference: {error}")))?,
            request_hash: shared::hash(row.try_get("request_hash")?)?,
            budget_ms: row.try_get::<Option<i64>, _>("budget_ms")?.map(|ms| u64::try_from(ms).unwrap_or(0)),
            traceparent: row.try_get("traceparent")?,
        });
    }
    Ok(jobs)
}

/// Planned and due.
pub(super) async fn dispatch(pool: &PgPool, limit: u32) -> StoreResult<Vec<DueJob>> {
    const DUE: &str = concat!(
        "SELECT ",
        stored_columns!(),
        " FROM receipts r
         WHERE r.settled_ms IS NULL AND r.due_ms <= (SELECT now_ms()) AND r.state = 1 AND r.cancel_ms IS NULL
           AND (r.deadline_ms IS NULL OR r.deadline_ms > (SELECT now_ms())) AND r.fence < r.max_attempts
           AND (r.effect_class <> 1 OR r.dispatch_no < $2)
           AND NOT (r.unresolved > 0 AND key_window_closed(r.first_claim_ms, r.key_ttl_ms, now_ms()))
         ORDER BY r.due_ms LIMIT $1 FOR UPDATE OF r SKIP LOCKED"
    );
    let mut tx = begin(pool).await?;
    let found = sqlx::query(DUE).bind(i64::from(limit)).bind(DISPATCHES_MAX).fetch_all(&mut *tx).await?;
    let mut stored: Vec<Stored> = found.iter().map(Stored::read).collect::<StoreResult<_>>()?;
    stored.sort_unstable_by(|a, b| a.call.cmp(&b.call));
    let mut due = DueColumns::default();
    for stored in &stored {
        let left_ms = stored.deadline_ms.map(|end| u64::try_from(end - stored.now_ms).unwrap_or(0));
        let pause_ms = dispatch_pause_ms(&stored.policy, left_ms, i64::from(stored.dispatch_no) + 1);
        due.push(stored, stored.now_ms.saturating_add(pause_ms), false);
    }
    let jobs = dispatched(&mut tx, &due).await?;
    tx.commit().await?;
    Ok(jobs)
}

/// Open claims of sessions that are dead, whenever they were committed.
pub(super) async fn lost_claims(pool: &PgPool, limit: u32) -> StoreResult<Vec<Changed>> {
    const LOST: &str = concat!(
        "SELECT ",
        stored_columns!(),
        " FROM receipts r
         WHERE r.settled_ms IS NULL AND r.state = 2
           AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = r.session_id AND s.dead_ms IS NULL)
         ORDER BY r.due_ms LIMIT $1 FOR UPDATE OF r SKIP LOCKED"
    );
    let mut tx = begin(pool).await?;
    let found = sqlx::query(LOST).bind(i64::from(limit)).fetch_all(&mut *tx).await?;
    let mut updates = Vec::with_capacity(found.len());
    for row in &found {
        let stored = Stored::read(row)?;
        let Some(session) = stored.receipt.claim.as_ref().map(|claim| claim.session.clone()) else { continue };
        if let Ok(change) = stored.receipt.apply(&ReceiptEvent::SessionDied { session }) {
            let mut update = Update::of(stored, change, None);
            if update.after.class == EffectClass::ReadOnly {
                // Nobody works on it: it is offered again at once.
                update.due_ms = update.before.now_ms;
            }
            updates.push(update);
        }
    }
    finish(tx, updates).await
}

type Tx = sqlx::Transaction<'static, sqlx::Postgres>;

async fn finish(mut tx: Tx, updates: Vec<Update>) -> StoreResult<Vec<Changed>> {
    let owners = write(&mut tx, &updates).await?;
    tx.commit().await?;
    Ok(updates.iter().map(|update| update.changed(&owners)).collect())
}

/// Rows 10, 11 and 12.
pub(super) async fn limits(pool: &PgPool, reconcile_window: Duration, limit: u32) -> StoreResult<Vec<Changed>> {
    const OVER: &str = concat!(
        "SELECT ",
        stored_columns!(),
        " FROM receipts r, (SELECT now_ms() AS now) t
         WHERE r.settled_ms IS NULL
           AND CASE r.state
               WHEN 1 THEN r.cancel_ms IS NOT NULL OR r.deadline_ms <= t.now OR r.fence >= r.max_attempts
                        OR r.effect_class = 1 AND r.dispatch_no >= $2 AND r.due_ms <= t.now
                        OR r.unresolved > 0 AND key_window_closed(r.first_claim_ms, r.key_ttl_ms, t.now)
               WHEN 5 THEN coalesce(r.unknown_ms, r.created_ms) + $3 <= t.now
                        OR NOT r.has_query AND (r.cancel_ms IS NOT NULL OR r.deadline_ms <= t.now OR r.fence >= r.max_attempts
                                                OR key_window_closed(r.first_claim_ms, r.key_ttl_ms, t.now))
               ELSE false END
         ORDER BY r.due_ms LIMIT $1 FOR UPDATE OF r SKIP LOCKED"
    );
    let window_ms = ms(u64::try_from(reconcile_window.as_millis()).unwrap_or(u64::MAX));
    let mut tx = begin(pool).await?;
    let found =
        sqlx::query(OVER).bind(i64::from(limit)).bind(DISPATCHES_MAX).bind(window_ms).fetch_all(&mut *tx).await?;
    let mut updates = Vec::with_capacity(found.len());
    for row in &found {
        let stored = Stored::read(row)?;
        let event = limit_event(&stored, window_ms);
        if let Some(change) = event.and_then(|event| stored.receipt.apply(&event).ok())
            && change.receipt.settled
        {
            updates.push(Update::of(stored, change, None));
        }
    }
    finish(tx, updates).await
}

fn limit_event(stored: &Stored, window_ms: i64) -> Option<ReceiptEvent> {
    let receipt = &stored.receipt;
    let used_up = receipt.fence >= receipt.max_attempts;
    match receipt.state {
        ReceiptState::Planned if receipt.cancel_asked => Some(ReceiptEvent::CancelAsked),
        ReceiptState::Planned if receipt.deadline_passed => Some(ReceiptEvent::DeadlinePassed),
        ReceiptState::Planned if used_up => Some(ReceiptEvent::AttemptsExhausted),
        ReceiptState::Planned
            if receipt.class == EffectClass::ReadOnly && i64::from(stored.dispatch_no) >= DISPATCHES_MAX =>
        {
            Some(ReceiptEvent::DispatchesExhausted)
        }
        ReceiptState::Planned if !receipt.window_open => Some(ReceiptEvent::WindowClosed),
        ReceiptState::Unknown => {
            let since_ms = stored.unknown_ms.unwrap_or(stored.created_ms);
            if since_ms.saturating_add(window_ms) <= stored.now_ms {
                Some(ReceiptEvent::ReconcileExhausted)
            } else if receipt.query {
                None
            } else if !receipt.can_send_again() {
                Some(ReceiptEvent::ReconcileExhausted)
            } else {
                None
            }
        }
        ReceiptState::Planned
        | ReceiptState::Claimed
        | ReceiptState::Succeeded
        | ReceiptState::Failed
        | ReceiptState::Cancelled => None,
    }
}

/// Planned, published and never claimed, of a (node, source, pool) that nobody has served for longer than `wait`.
pub(super) async fn unserved(pool: &PgPool, wait: Duration, limit: u32) -> StoreResult<Vec<Changed>> {
    const UNSERVED: &str = concat!(
        "SELECT ",
        stored_columns!(),
        " FROM receipts r, (SELECT now_ms() AS now) t
         WHERE r.settled_ms IS NULL AND r.state = 1 AND r.fence = 0 AND r.dispatch_no > 0 AND r.created_ms + $2 <= t.now
           AND NOT EXISTS (SELECT 1 FROM offers o JOIN sessions s ON s.session_id = o.session_id
                            WHERE o.node = r.node AND (o.source IS NULL OR r.source IS NULL OR o.source = r.source)
                              AND o.pool IS NOT DISTINCT FROM r.pool
                              AND (s.dead_ms IS NULL OR s.dead_ms + $2 > t.now))
         ORDER BY r.due_ms LIMIT $1 FOR UPDATE OF r SKIP LOCKED"
    );
    let wait_ms = ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    let mut tx = begin(pool).await?;
    let found = sqlx::query(UNSERVED).bind(i64::from(limit)).bind(wait_ms).fetch_all(&mut *tx).await?;
    let mut updates = Vec::with_capacity(found.len());
    for row in &found {
        let stored = Stored::read(row)?;
        if stored.receipt.state != ReceiptState::Planned || stored.receipt.fence != 0 {
            continue;
        }
        // Row 10: nothing was ever sent.
        let mut receipt = stored.receipt.clone();
        receipt.state = ReceiptState::Failed;
        receipt.settled = true;
        receipt.settled_by = Some(SettledBy::Sweeper);
        receipt.settle_rev = receipt.settle_rev.saturating_add(1);
        let change =
            Change { receipt, due: Due::Never, code: Some(codes::NO_WORKER_AVAILABLE), log: None, stop_worker: false };
        updates.push(Update::of(stored, change, None));
    }
    finish(tx, updates).await
}

/// Makes the planned receipts of these runs due now. One that waits for its first dispatch keeps its time.
pub(super) async fn dispatch_runs(pool: &PgPool, runs: &[RunId]) -> StoreResult<u64> {
    const DUE: &str = "
        WITH planned AS MATERIALIZED (
            SELECT r.bucket, r.call_uid FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
              JOIN receipts r ON r.bucket BETWEEN $3 AND $4 AND r.bucket = b.bucket AND r.loop_id = b.loop_id
             WHERE r.state = 1 AND r.settled_ms IS NULL AND r.dispatch_no > 0
             ORDER BY r.bucket, r.call_uid FOR UPDATE OF r)
        UPDATE receipts r SET due_ms = (SELECT now_ms()) FROM planned p
         WHERE r.bucket BETWEEN $3 AND $4 AND r.bucket = p.bucket AND r.call_uid = p.call_uid
           AND r.state = 1 AND r.settled_ms IS NULL";
    let buckets: Vec<i32> = runs.iter().map(RunId::bucket).collect();
    let ids: Vec<String> = runs.iter().map(ToString::to_string).collect();
    let (low, high) = span(&buckets);
    let done = sqlx::query(DUE).bind(&buckets).bind(&ids).bind(low).bind(high).execute(pool).await?;
    Ok(done.rows_affected())
}

/// Makes every planned receipt due now, a page at a time, so that no row stays locked for long.
pub(super) async fn dispatch_all(pool: &PgPool) -> StoreResult<u64> {
    const PAGE: &str = "
        WITH page AS MATERIALIZED (
            SELECT bucket, call_uid FROM receipts
             WHERE settled_ms IS NULL AND state = 1 AND due_ms > $1 ORDER BY due_ms LIMIT 2000
               FOR UPDATE SKIP LOCKED)
        UPDATE receipts r SET due_ms = $1 FROM page
         WHERE r.bucket BETWEEN $2 AND $3 AND r.bucket = page.bucket AND r.call_uid = page.call_uid
           AND r.state = 1 AND r.settled_ms IS NULL
        RETURNING r.call_uid";
    let now: i64 = sqlx::query_scalar("SELECT now_ms()").fetch_one(pool).await?;
    let (low, high) = span(&[i32::MIN, i32::MAX]);
    let mut count = 0;
    loop {
        let page: Vec<String> = sqlx::query_scalar(PAGE).bind(now).bind(low).bind(high).fetch_all(pool).await?;
        count += page.len() as u64;
        if page.is_empty() {
            break;
        }
    }
    // Those that were due anyway count as well.
    const DUE: &str = "SELECT count(*) FROM receipts WHERE settled_ms IS NULL AND state = 1 AND due_ms <= $1";
    let all: i64 = sqlx::query_scalar(DUE).bind(now).fetch_one(pool).await?;
    Ok(count.max(u64::try_from(all).unwrap_or(0)))
}
