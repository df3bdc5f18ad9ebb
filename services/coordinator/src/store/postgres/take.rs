//! Finding and taking runs that must be driven, and what their owner has to know.

use std::collections::{HashMap, HashSet};

use ditto_contracts::{CallUid, Json, ReceiptState, RunId, RunStatus, SessionId};
use ditto_graph::CallOutcome;
use sqlx::{PgConnection, PgPool, Row as _, postgres::PgRow};

use super::{
    super::{DueRuns, LoadedRun, RunNews, SignalRow, StoreResult, StoredCall, rows},
    begin, payloads, span,
};

/// Most runs of a session that one pass names.
const MINE_MAX: i64 = 10_000;
/// Most signals read at once; the rest comes with the next look.
const SIGNALS_MAX: i64 = 1_000;

const MINE: &str = "
    SELECT loop_id FROM loops WHERE owner_session = $1 AND ended_ms IS NULL AND bell > bell_seen
    UNION
    SELECT loop_id FROM loops WHERE wake_ms <= (SELECT now_ms()) AND wake_ms IS NOT NULL AND ended_ms IS NULL
       AND owner_session = $1
    LIMIT $2";

/// Active and without a live owner; parked, woken by time or a bell, and without a live owner. Locked, skipping what
/// somebody else is looking at. Each part reads a partial index that holds little more than its answer.
const TAKE_DUE: &str = "
    WITH t AS MATERIALIZED (SELECT now_ms() AS now),
         dead AS MATERIALIZED (SELECT session_id FROM sessions WHERE dead_ms IS NOT NULL AND role = 1),
         due AS MATERIALIZED (
            SELECT bucket, loop_id FROM (
                (SELECT bucket, loop_id FROM loops WHERE status IN (1, 2, 4) AND owner_session IS NULL LIMIT $2)
                UNION ALL
                (SELECT l.bucket, l.loop_id FROM dead d JOIN loops l ON l.owner_session = d.session_id
                  WHERE l.status IN (1, 2, 4) LIMIT $2)
                UNION ALL
                (SELECT l.bucket, l.loop_id FROM loops l
                  WHERE l.ended_ms IS NULL AND l.bell > l.bell_seen AND l.owner_session IS NULL LIMIT $2)
                UNION ALL
                (SELECT l.bucket, l.loop_id FROM dead d JOIN loops l ON l.owner_session = d.session_id
                  WHERE l.ended_ms IS NULL AND l.bell > l.bell_seen LIMIT $2)
                UNION ALL
                (SELECT l.bucket, l.loop_id FROM loops l
                  WHERE l.wake_ms <= (SELECT now FROM t) AND l.wake_ms IS NOT NULL AND l.ended_ms IS NULL
                    AND (l.owner_session IS NULL OR l.owner_session IN (SELECT session_id FROM dead)) LIMIT $2)) x
            GROUP BY bucket, loop_id ORDER BY bucket, loop_id LIMIT $2),
         locked AS MATERIALIZED (
            SELECT l.bucket, l.loop_id FROM due JOIN loops l ON l.bucket = due.bucket AND l.loop_id = due.loop_id
             WHERE l.ended_ms IS NULL AND (l.owner_session IS NULL OR l.owner_session IN (SELECT session_id FROM dead))
               FOR UPDATE OF l SKIP LOCKED)
    UPDATE loops l SET owner_session = $1, epoch = l.epoch + 1, bell = l.bell + 1
      FROM locked WHERE l.bucket = locked.bucket AND l.loop_id = locked.loop_id
       AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = $1 AND dead_ms IS NOT NULL)
    RETURNING l.loop_id";

/// The bell rings as well: a taker that never saw the answer finds the run among its own.
const TAKE: &str = "
    UPDATE loops l SET owner_session = $3, epoch = l.epoch + 1, bell = l.bell + 1
     WHERE l.bucket = $1 AND l.loop_id = $2 AND l.ended_ms IS NULL
       AND (l.owner_session IS NULL
            OR EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = l.owner_session AND s.dead_ms IS NOT NULL))
       AND NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = $3 AND dead_ms IS NOT NULL)";

const OWNED: &str = "SELECT loop_id FROM loops WHERE owner_session = $1 AND ended_ms IS NULL LIMIT $2";

const LOAD: &str = "
    SELECT l.loop_id, l.namespace, l.loop_name, l.loop_rev, l.input, l.input_ref, l.status, l.epoch, l.version, l.bell,
           l.cancel_ms IS NOT NULL AS cancel_asked, l.deadline_ms, l.traceparent, l.signal_seen, c.body, now_ms() AS now_ms
      FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
      JOIN loops l ON l.bucket BETWEEN $3 AND $4 AND l.bucket = b.bucket AND l.loop_id = b.loop_id
      LEFT JOIN checkpoints c ON c.bucket BETWEEN $3 AND $4 AND c.bucket = l.bucket AND c.loop_id = l.loop_id
                             AND c.version = l.version
     WHERE l.owner_session = $5 AND l.ended_ms IS NULL";

const CALLS: &str = "
    SELECT r.call_uid, r.state, r.settled_ms IS NOT NULL AS settled, r.settle_rev, r.outcome, r.outcome_ref,
           r.error_class, r.error_code, r.error_message, r.error_retryable
      FROM unnest($1::int[], $2::text[]) AS b(bucket, call_uid)
      JOIN receipts r ON r.bucket BETWEEN $3 AND $4 AND r.bucket = b.bucket AND r.call_uid = b.call_uid";

const SIGNALS: &str = "
    SELECT n, name, body FROM signals WHERE bucket = $1 AND loop_id = $2 AND n > $3 ORDER BY n LIMIT $4";

/// One pass.
pub(super) async fn due(pool: &PgPool, owner: &SessionId, take_max: u32) -> StoreResult<DueRuns> {
    // What was taken before and not heard of is among these.
    let mine: Vec<String> = sqlx::query_scalar(MINE).bind(owner.as_str()).bind(MINE_MAX).fetch_all(pool).await?;
    let mine: Vec<RunId> = mine.iter().map(|run| rows::id(run)).collect::<StoreResult<_>>()?;
    let mut taken = Vec::new();
    if take_max > 0 {
        let found: Vec<String> =
            sqlx::query_scalar(TAKE_DUE).bind(owner.as_str()).bind(i64::from(take_max)).fetch_all(pool).await?;
        let runs: Vec<RunId> = found.iter().map(|run| rows::id(run)).collect::<StoreResult<_>>()?;
        taken = load(pool, owner, &runs).await?;
    }
    Ok(DueRuns { mine, taken })
}

/// Takes one run; one that is this session's already is read again.
pub(super) async fn take(pool: &PgPool, owner: &SessionId, run: &RunId) -> StoreResult<Option<LoadedRun>> {
    sqlx::query(TAKE).bind(run.bucket()).bind(run.as_str()).bind(owner.as_str()).execute(pool).await?;
    Ok(load(pool, owner, std::slice::from_ref(run)).await?.pop())
}

/// Reads owned runs: first the runs with their bells, then what their checkpoints name.
async fn load(pool: &PgPool, owner: &SessionId, runs: &[RunId]) -> StoreResult<Vec<LoadedRun>> {
    let mut loaded = Vec::with_capacity(runs.len());
    if runs.is_empty() {
        return Ok(loaded);
    }
    let mut connection = pool.acquire().await?;
    let buckets: Vec<i32> = runs.iter().map(|run| run.bucket()).collect();
    let texts: Vec<&str> = runs.iter().map(|run| run.as_str()).collect();
    let (low, high) = span(&buckets);
    let query = sqlx::query(LOAD).bind(&buckets).bind(&texts).bind(low).bind(high).bind(owner.as_str());
    let found = query.fetch_all(&mut *connection).await?;
    let mut named: Vec<(RunId, Vec<CallUid>)> = Vec::with_capacity(found.len());
    for row in &found {
        let checkpoint: Option<Json> = row.try_get::<Option<Vec<u8>>, _>("body")?.map(rows::json);
        let run: RunId = rows::id(row.try_get("loop_id")?)?;
        named.push((run, checkpoint.as_ref().map(rows::checkpoint_calls).unwrap_or_default()));
    }
    let all: Vec<CallUid> =
        named.iter().flat_map(|(_, calls)| calls.iter().cloned()).collect::<HashSet<_>>().into_iter().collect();
    let mut stored = calls(&mut connection, &all).await?;
    for (row, (run, names)) in found.iter().zip(named) {
        let calls: HashMap<CallUid, StoredCall> =
            names.into_iter().filter_map(|call| stored.remove_entry(&call)).collect();
        loaded.push(one(&mut connection, row, run, calls).await?);
    }
    Ok(loaded)
}

async fn one(
    connection: &mut PgConnection,
    row: &PgRow,
    run: RunId,
    calls: HashMap<CallUid, StoredCall>,
) -> StoreResult<LoadedRun> {
    let input =
        payloads::resolve(&mut *connection, run.bucket(), row.try_get("input")?, row.try_get("input_ref")?).await?;
    Ok(LoadedRun {
        namespace: rows::id(row.try_get("namespace")?)?,
        name: rows::id(row.try_get("loop_name")?)?,
        revision: rows::id(row.try_get("loop_rev")?)?,
        input: input.unwrap_or_else(Json::null),
        status: rows::code(RunStatus::from_code(row.try_get("status")?), "run status")?,
        epoch: row.try_get("epoch")?,
        version: row.try_get("version")?,
        checkpoint: row.try_get::<Option<Vec<u8>>, _>("body")?.map(rows::json),
        calls,
        signals: signals(&mut *connection, &run, row.try_get("signal_seen")?).await?,
        bell: row.try_get("bell")?,
        cancel_asked: row.try_get("cancel_asked")?,
        deadline_ms: row.try_get("deadline_ms")?,
        now_ms: row.try_get("now_ms")?,
        traceparent: row.try_get("traceparent")?,
        run,
    })
}

async fn calls(connection: &mut PgConnection, calls: &[CallUid]) -> StoreResult<HashMap<CallUid, StoredCall>> {
    if calls.is_empty() {
        return Ok(HashMap::new());
    }
    let buckets: Vec<i32> = calls.iter().map(|call| call.bucket()).collect();
    let texts: Vec<&str> = calls.iter().map(|call| call.as_str()).collect();
    let (low, high) = span(&buckets);
    let query = sqlx::query(CALLS).bind(&buckets).bind(&texts).bind(low).bind(high);
    let found = query.fetch_all(&mut *connection).await?;
    let mut all = HashMap::with_capacity(found.len());
    for row in found {
        let call: CallUid = rows::id(row.try_get("call_uid")?)?;
        let state = rows::code(ReceiptState::from_code(row.try_get("state")?), "receipt state")?;
        let outcome = if row.try_get("settled")? {
            let inline = row.try_get("outcome")?;
            let reference = row.try_get("outcome_ref")?;
            Some(CallOutcome {
                state,
                settle_rev: row.try_get("settle_rev")?,
                output: payloads::resolve(&mut *connection, call.bucket(), inline, reference).await?,
                error: rows::error(
                    row.try_get("error_class")?,
                    row.try_get("error_code")?,
                    row.try_get("error_message")?,
                    row.try_get("error_retryable")?,
                ),
            })
        } else {
            None
        };
        all.insert(call, StoredCall { state, outcome });
    }
    Ok(all)
}

async fn signals(connection: &mut PgConnection, run: &RunId, after: i64) -> StoreResult<Vec<SignalRow>> {
    let query = sqlx::query(SIGNALS).bind(run.bucket()).bind(run.as_str()).bind(after).bind(SIGNALS_MAX);
    let found = query.fetch_all(connection).await?;
    let rows = found.iter().map(|row| {
        Ok(SignalRow { n: row.try_get("n")?, name: row.try_get("name")?, body: rows::json(row.try_get("body")?) })
    });
    rows.collect()
}

/// News of an owned run. The bell is read first: what comes later rings again.
pub(super) async fn news(
    pool: &PgPool,
    run: &RunId,
    open: &[CallUid],
    signal_seen: i64,
) -> StoreResult<Option<RunNews>> {
    const BELL: &str = "
        SELECT bell, cancel_ms IS NOT NULL AS cancel_asked, now_ms() AS now_ms FROM loops WHERE bucket = $1 AND loop_id = $2";
    let mut connection = pool.acquire().await?;
    let query = sqlx::query(BELL).bind(run.bucket()).bind(run.as_str());
    let Some(row) = query.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let mut stored = calls(&mut connection, open).await?;
    let settled = open.iter().filter_map(|call| {
        let (call, stored) = stored.remove_entry(call)?;
        Some((call, stored.outcome?))
    });
    Ok(Some(RunNews {
        bell: row.try_get("bell")?,
        settled: settled.collect(),
        signals: signals(&mut connection, run, signal_seen).await?,
        cancel_asked: row.try_get("cancel_asked")?,
        now_ms: row.try_get("now_ms")?,
    }))
}

/// Gives runs back.
pub(super) async fn give_back(pool: &PgPool, owner: &SessionId, runs: &[RunId]) -> StoreResult<()> {
    const LOCK: &str = "
        SELECT 1 FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
          JOIN loops l ON l.bucket BETWEEN $3 AND $4 AND l.bucket = b.bucket AND l.loop_id = b.loop_id
         ORDER BY l.bucket, l.loop_id FOR UPDATE OF l";
    const GIVE: &str = "
        UPDATE loops l SET owner_session = NULL FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
         WHERE l.bucket BETWEEN $3 AND $4 AND l.bucket = b.bucket AND l.loop_id = b.loop_id AND l.owner_session = $5";
    let mut runs: Vec<&RunId> = runs.iter().collect();
    runs.sort_unstable();
    let buckets: Vec<i32> = runs.iter().map(|run| run.bucket()).collect();
    let texts: Vec<&str> = runs.iter().map(|run| run.as_str()).collect();
    let (low, high) = span(&buckets);
    let mut tx = begin(pool).await?;
    sqlx::query(LOCK).bind(&buckets).bind(&texts).bind(low).bind(high).execute(&mut *tx).await?;
    let query = sqlx::query(GIVE).bind(&buckets).bind(&texts).bind(low).bind(high).bind(owner.as_str());
    query.execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

/// Runs a session owns.
pub(super) async fn runs_owned(pool: &PgPool, owner: &SessionId, limit: u32) -> StoreResult<Vec<RunId>> {
    let found: Vec<String> =
        sqlx::query_scalar(OWNED).bind(owner.as_str()).bind(i64::from(limit)).fetch_all(pool).await?;
    found.iter().map(|text| rows::id(text)).collect()
}
