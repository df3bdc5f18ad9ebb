//! Bounded passes over the open set. A reader looks first, so that a pass that finds nothing takes no write lock.

use std::time::Duration;

use ditto_contracts::{CallUid, ReceiptState, RunId};
use ditto_graph::receipt::ReceiptEvent;
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    batch::each,
    receipt::{self, Said, Stored},
    runs, settle,
};
use crate::store::{Changed, DueJob, StoreResult, rows};

/// What a pass looks for: `?1` now, `?2` a duration in milliseconds, `?3` the limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass(&'static str);

/// Claimed by a session that is dead, whenever it died.
pub(super) const LOST: Pass = Pass(
    "SELECT r.call_uid FROM sessions s JOIN receipts r ON r.session_id = s.session_id AND r.settled_ms IS NULL \
     AND r.state = 2 WHERE s.dead_ms IS NOT NULL AND ?1 >= 0 AND ?2 >= 0 LIMIT ?3",
);

/// Planned, due, and allowed to start.
pub(super) const DISPATCH: Pass = Pass(
    "SELECT call_uid FROM receipts WHERE settled_ms IS NULL AND due_ms <= ?1 AND state = 1 AND cancel_ms IS NULL \
     AND (deadline_ms IS NULL OR deadline_ms > ?1) AND fence < max_attempts \
     AND (effect_class <> 1 OR dispatch_no < 10) AND NOT (effect_class = 2 AND unresolved > 0 \
     AND key_ttl_ms IS NOT NULL AND first_claim_ms IS NOT NULL AND first_claim_ms + key_ttl_ms - (key_ttl_ms + 9) / 10 <= ?1) \
     AND ?2 >= 0 ORDER BY due_ms LIMIT ?3",
);

/// Unknown, open and due.
pub(super) const RECONCILE: Pass = Pass(
    "SELECT call_uid FROM receipts WHERE settled_ms IS NULL AND due_ms <= ?1 AND state = 5 AND ?2 >= 0 \
     ORDER BY due_ms LIMIT ?3",
);

/// Beyond a limit; the rules look again.
pub(super) const LIMITS: Pass = Pass(
    "SELECT call_uid FROM receipts WHERE settled_ms IS NULL AND (\
     (state = 1 AND (cancel_ms IS NOT NULL OR deadline_ms <= ?1 OR fence >= max_attempts \
       OR (effect_class = 1 AND dispatch_no >= 10 AND due_ms <= ?1) \
       OR (effect_class = 2 AND unresolved > 0 AND first_claim_ms + key_ttl_ms - (key_ttl_ms + 9) / 10 <= ?1))) \
     OR (state = 5 AND (coalesce(unknown_ms, created_ms) + ?2 <= ?1 OR (has_query = 0 AND (cancel_ms IS NOT NULL \
       OR deadline_ms <= ?1 OR fence >= max_attempts OR first_claim_ms + key_ttl_ms - (key_ttl_ms + 9) / 10 <= ?1))))) LIMIT ?3",
);

/// Planned, never claimed, and offered by nobody who lived within the wait.
pub(super) const UNSERVED: Pass = Pass(
    "SELECT r.call_uid FROM receipts r WHERE r.settled_ms IS NULL AND r.state = 1 AND r.fence = 0 \
     AND r.dispatch_no > 0 AND r.created_ms <= ?1 - ?2 AND NOT EXISTS (SELECT 1 FROM offers o \
     JOIN sessions s USING (session_id) WHERE (s.dead_ms IS NULL OR s.dead_ms > ?1 - ?2) AND o.node = r.node \
     AND (o.source IS NULL OR o.source IS r.source) AND o.pool IS r.pool) LIMIT ?3",
);

/// A duration as a parameter.
pub(super) fn duration_ms(duration: Duration) -> i64 {
    rows::ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// The calls a pass would change.
pub(super) async fn find(
    connection: &mut SqliteConnection,
    pass: Pass,
    now: i64,
    duration: i64,
    limit: u32,
) -> StoreResult<Vec<CallUid>> {
    let found = sqlx::query(pass.0).bind(now).bind(duration).bind(limit).fetch_all(connection).await?;
    found.iter().map(|row| rows::id(row.try_get(0)?)).collect()
}

/// Finds, changes by `rule` (`false`: leave it) and rings.
async fn change(
    connection: &mut SqliteConnection,
    pass: Pass,
    now: i64,
    duration: i64,
    limit: u32,
    rule: impl Fn(&mut Stored) -> bool + Send,
) -> StoreResult<Vec<Changed>> {
    let calls = find(connection, pass, now, duration, limit).await?;
    let mut receipts = receipt::load(connection, now, &calls.iter().collect::<Vec<_>>()).await?;
    let mut changed = Vec::with_capacity(calls.len());
    for call in &calls {
        if let Some(mut r) = receipts.remove(call)
            && rule(&mut r)
        {
            changed.push(r);
        }
    }
    receipt::write(connection, now, &changed).await?;
    let bell = runs::ring(connection, settle::runs_of(&changed)).await?;
    Ok(changed.iter().map(|r| r.changed(&bell)).collect())
}

/// Rows 5 and 6: open claims of dead sessions.
pub(super) async fn lost(connection: &mut SqliteConnection, now: i64, limit: u32) -> StoreResult<Vec<Changed>> {
    change(connection, LOST, now, 0, limit, |r| {
        let Some(claim) = r.pure.claim.clone() else { return false };
        // A read runs again at once.
        r.apply(&ReceiptEvent::SessionDied { session: claim.session }, Said::default(), 0, now).is_ok()
    })
    .await
}

/// Rows 10, 11 and 12.
pub(super) async fn limits(
    connection: &mut SqliteConnection,
    now: i64,
    window: i64,
    limit: u32,
) -> StoreResult<Vec<Changed>> {
    change(connection, LIMITS, now, window, limit, |r| r.limit(window, now)).await
}

/// Fails what nobody serves.
pub(super) async fn unserved(
    connection: &mut SqliteConnection,
    now: i64,
    wait: i64,
    limit: u32,
) -> StoreResult<Vec<Changed>> {
    change(connection, UNSERVED, now, wait, limit, |r| r.unserved(now)).await
}

const JOBS: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) SELECT r.call_uid, r.loop_id, r.node, r.pool, r.policy, \
     r.idem_key, r.dispatch_no, r.reconcile_no, r.request, r.request_ref, r.request_hash, r.deadline_ms, r.traceparent \
     FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

const DISPATCHED: &str = "WITH b(bucket, call_uid, state, dispatch_no, reconcile_no, due_ms) AS (VALUES {rows}) \
     UPDATE receipts SET state = b.state, dispatch_no = b.dispatch_no, reconcile_no = b.reconcile_no, \
     due_ms = b.due_ms FROM b WHERE receipts.bucket = b.bucket AND receipts.call_uid = b.call_uid";

/// One dispatch to be written.
struct Next {
    job: DueJob,
    state: ReceiptState,
    reconcile_no: i64,
    due_ms: i64,
}

fn job(row: &SqliteRow, now: i64) -> StoreResult<(DueJob, i64)> {
    let (policy, hash): (&[u8], &[u8]) = (row.try_get(4)?, row.try_get(10)?);
    let deadline_ms: Option<i64> = row.try_get(11)?;
    let job = DueJob {
        call: rows::id(row.try_get(0)?)?,
        run: rows::id(row.try_get(1)?)?,
        node: rows::id(row.try_get(2)?)?,
        pool: rows::id_opt(row.try_get(3)?)?,
        policy: rows::policy(policy)?,
        query: false,
        idem_key: row.try_get(5)?,
        dispatch_no: row.try_get::<u32, _>(6)?.saturating_add(1),
        request: row.try_get::<Option<Vec<u8>>, _>(8)?.map(rows::json),
        request_ref: rows::id_opt(row.try_get(9)?)?,
        request_hash: rows::hash(hash)?,
        budget_ms: deadline_ms.map(|deadline| u64::try_from(deadline - now).unwrap_or(0)),
        traceparent: row.try_get(12)?,
    };
    Ok((job, row.try_get(7)?))
}

async fn jobs(
    connection: &mut SqliteConnection,
    now: i64,
    calls: &[CallUid],
    next: impl Fn(DueJob, i64) -> Option<Next> + Send,
) -> StoreResult<Vec<DueJob>> {
    let found = each(connection, JOBS, 2, calls, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    });
    let mut due = Vec::with_capacity(calls.len());
    for row in found.await? {
        let (job, reconcile_no) = job(&row, now)?;
        due.extend(next(job, reconcile_no));
    }
    each(connection, DISPATCHED, 6, &due, |bind, n: &Next| {
        bind.add(n.job.call.bucket())
            .add(n.job.call.as_str())
            .add(n.state.code())
            .add(n.job.dispatch_no)
            .add(n.reconcile_no)
            .add(n.due_ms);
    })
    .await?;
    Ok(due.into_iter().map(|next| next.job).collect())
}

/// Planned and due: the next dispatch.
pub(super) async fn dispatch(connection: &mut SqliteConnection, now: i64, limit: u32) -> StoreResult<Vec<DueJob>> {
    let calls = find(connection, DISPATCH, now, 0, limit).await?;
    jobs(connection, now, &calls, |job, reconcile_no| {
        let pause = rows::dispatch_pause_ms(&job.policy, job.budget_ms, i64::from(job.dispatch_no));
        Some(Next { state: ReceiptState::Planned, reconcile_no, due_ms: now.saturating_add(pause), job })
    })
    .await
}

/// Unknown, open and due: a query, or the same request with the same key again (row 7).
pub(super) async fn reconcile(connection: &mut SqliteConnection, now: i64, limit: u32) -> StoreResult<Vec<DueJob>> {
    let calls = find(connection, RECONCILE, now, 0, limit).await?;
    let receipts = receipt::load(connection, now, &calls.iter().collect::<Vec<_>>()).await?;
    jobs(connection, now, &calls, |mut job, reconcile_no| {
        let r = receipts.get(&job.call)?;
        if r.pure.query {
            job.query = true;
            let due_ms = now.saturating_add(rows::backoff_ms(reconcile_no + 1));
            return Some(Next { job, state: ReceiptState::Unknown, reconcile_no: reconcile_no + 1, due_ms });
        }
        // Beyond a limit: the limits pass settles it.
        r.pure.can_send_again().then(|| {
            let due_ms = now.saturating_add(rows::backoff_ms(i64::from(job.dispatch_no)));
            Next { job, state: ReceiptState::Planned, reconcile_no, due_ms }
        })
    })
    .await
}

/// Makes the planned receipts of these runs due now. One that was delayed and never published keeps its time.
pub(super) async fn dispatch_runs(connection: &mut SqliteConnection, now: i64, runs: &[RunId]) -> StoreResult<u64> {
    let mut count = 0;
    for run in runs {
        let done = sqlx::query(
            "UPDATE receipts SET due_ms = ?1
              WHERE bucket = ?2 AND loop_id = ?3 AND settled_ms IS NULL AND state = 1 AND dispatch_no > 0",
        )
        .bind(now)
        .bind(run.bucket())
        .bind(run.as_str())
        .execute(&mut *connection)
        .await?;
        count += done.rows_affected();
    }
    Ok(count)
}

/// Makes the planned receipts of these runs due now. One that waits for its first dispatch keeps its time.
pub(super) async fn dispatch_all(connection: &mut SqliteConnection, now: i64) -> StoreResult<u64> {
    let done = sqlx::query("UPDATE receipts SET due_ms = ?1 WHERE settled_ms IS NULL AND state = 1")
        .bind(now)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}
