//! Finding, taking and reading runs that must be driven; signals and cancels that wake them.

use std::collections::HashMap;

use ditto_contracts::{CallUid, Json, Namespace, ReceiptState, RunId, RunStatus, SessionId};
use ditto_graph::CallOutcome;
use sqlx::{Row as _, SqliteConnection, SqlitePool};

use super::{batch::each, payloads, runs};
use crate::store::{LoadedRun, RunNews, SignalRow, StoreResult, StoredCall, rows};

const MINE: &str = "SELECT loop_id FROM loops WHERE owner_session = ?1 AND ended_ms IS NULL AND bell > bell_seen \
     UNION SELECT loop_id FROM loops WHERE wake_ms <= ?2 AND wake_ms IS NOT NULL AND ended_ms IS NULL \
     AND owner_session = ?1 LIMIT 10000";

/// Runs a session owns.
pub(super) async fn owned(connection: &mut SqliteConnection, me: &SessionId, limit: u32) -> StoreResult<Vec<RunId>> {
    let found: Vec<String> =
        sqlx::query_scalar("SELECT loop_id FROM loops WHERE owner_session = ?1 AND ended_ms IS NULL LIMIT ?2")
            .bind(me.as_str())
            .bind(limit)
            .fetch_all(connection)
            .await?;
    found.iter().map(|text| rows::id(text)).collect()
}

/// Owned runs of this session with an unread bell or a wake time that has come.
pub(super) async fn mine(connection: &mut SqliteConnection, now: i64, me: &SessionId) -> StoreResult<Vec<RunId>> {
    let found = sqlx::query(MINE).bind(me.as_str()).bind(now).fetch_all(connection).await?;
    found.iter().map(|row| rows::id(row.try_get(0)?)).collect()
}

/// Active and unowned; parked and woken, by a bell or by time; owned by a session that is dead.
const ORPHANS: &str = "SELECT loop_id FROM (\
     SELECT loop_id FROM loops WHERE ended_ms IS NULL AND owner_session IS NULL AND status IN (1, 2, 4) \
     UNION SELECT loop_id FROM loops WHERE ended_ms IS NULL AND owner_session IS NULL AND bell > bell_seen \
     UNION SELECT loop_id FROM loops WHERE wake_ms <= ?1 AND wake_ms IS NOT NULL AND ended_ms IS NULL \
     AND owner_session IS NULL \
     UNION SELECT l.loop_id FROM sessions s JOIN loops l ON l.owner_session = s.session_id AND l.ended_ms IS NULL \
     WHERE s.dead_ms IS NOT NULL) ORDER BY loop_id LIMIT ?2";

/// Runs that need an owner.
pub(super) async fn orphans(connection: &mut SqliteConnection, now: i64, limit: u32) -> StoreResult<Vec<RunId>> {
    let found = sqlx::query(ORPHANS).bind(now).bind(limit).fetch_all(connection).await?;
    found.iter().map(|row| rows::id(row.try_get(0)?)).collect()
}

/// The bell rings too: a taker that never saw the answer finds the run among its own.
const TAKE: &str = "UPDATE loops SET owner_session = ?3, epoch = epoch + 1, bell = bell + 1 \
     WHERE bucket = ?1 AND loop_id = ?2 AND ended_ms IS NULL AND (owner_session IS NULL OR EXISTS \
     (SELECT 1 FROM sessions s WHERE s.session_id = loops.owner_session AND s.dead_ms IS NOT NULL))";

/// Takes a run over if it has no live owner and is not over. A run that is this session's already is read again.
pub(super) async fn take(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    run: &RunId,
) -> StoreResult<Option<LoadedRun>> {
    sqlx::query(TAKE).bind(run.bucket()).bind(run.as_str()).bind(me.as_str()).execute(&mut *connection).await?;
    load(connection, now, me, run).await
}

const LOAD: &str = "SELECT namespace, loop_name, loop_rev, input, input_ref, status, epoch, version, bell, cancel_ms, \
     deadline_ms, traceparent, signal_seen FROM loops \
     WHERE bucket = ?1 AND loop_id = ?2 AND owner_session = ?3 AND ended_ms IS NULL";

async fn load(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    run: &RunId,
) -> StoreResult<Option<LoadedRun>> {
    let bucket = run.bucket();
    let found = sqlx::query(LOAD).bind(bucket).bind(run.as_str()).bind(me.as_str());
    let Some(row) = found.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let version: i64 = row.try_get(7)?;
    let checkpoint = sqlx::query("SELECT body FROM checkpoints WHERE bucket = ?1 AND loop_id = ?2 AND version = ?3")
        .bind(bucket)
        .bind(run.as_str())
        .bind(version)
        .fetch_optional(&mut *connection)
        .await?;
    let checkpoint: Option<Vec<u8>> = checkpoint.map(|row| row.try_get(0)).transpose()?.flatten();
    let checkpoint = checkpoint.map(rows::json);
    let named = checkpoint.as_ref().map(rows::checkpoint_calls).unwrap_or_default();
    let calls: HashMap<CallUid, StoredCall> = calls(connection, &named).await?.into_iter().collect();
    let input = payloads::resolve(connection, bucket, row.try_get(3)?, row.try_get(4)?).await?;
    Ok(Some(LoadedRun {
        run: run.clone(),
        namespace: rows::id(row.try_get(0)?)?,
        name: rows::id(row.try_get(1)?)?,
        revision: rows::id(row.try_get(2)?)?,
        input: input.unwrap_or_else(Json::null),
        status: rows::code(RunStatus::from_code(row.try_get(5)?), "run status")?,
        epoch: row.try_get(6)?,
        version,
        checkpoint,
        calls,
        signals: signals(connection, run, row.try_get(12)?).await?,
        bell: row.try_get(8)?,
        cancel_asked: row.try_get::<Option<i64>, _>(9)?.is_some(),
        deadline_ms: row.try_get(10)?,
        now_ms: now,
        traceparent: row.try_get(11)?,
    }))
}

const CALLS: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) \
     SELECT r.call_uid, r.state, r.settled_ms IS NOT NULL, r.settle_rev, r.outcome, r.outcome_ref, r.error_class, \
     r.error_code, r.error_message, r.error_retryable \
     FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

async fn calls(connection: &mut SqliteConnection, calls: &[CallUid]) -> StoreResult<Vec<(CallUid, StoredCall)>> {
    let found = each(connection, CALLS, 2, calls, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    });
    let found = found.await?;
    let mut stored = Vec::with_capacity(found.len());
    for row in found {
        let call: CallUid = rows::id(row.try_get(0)?)?;
        let state = rows::code(ReceiptState::from_code(row.try_get(1)?), "receipt state")?;
        let outcome = if row.try_get(2)? {
            Some(CallOutcome {
                state,
                settle_rev: row.try_get(3)?,
                output: payloads::resolve(connection, call.bucket(), row.try_get(4)?, row.try_get(5)?).await?,
                error: rows::error(row.try_get(6)?, row.try_get(7)?, row.try_get(8)?, row.try_get(9)?),
            })
        } else {
            None
        };
        stored.push((call, StoredCall { state, outcome }));
    }
    Ok(stored)
}

async fn signals(connection: &mut SqliteConnection, run: &RunId, after: i64) -> StoreResult<Vec<SignalRow>> {
    let found = sqlx::query(
        "SELECT n, name, body FROM signals WHERE bucket = ?1 AND loop_id = ?2 AND n > ?3 ORDER BY n LIMIT 1000",
    )
    .bind(run.bucket())
    .bind(run.as_str())
    .bind(after)
    .fetch_all(connection)
    .await?;
    let rows = found
        .into_iter()
        .map(|row| Ok(SignalRow { n: row.try_get(0)?, name: row.try_get(1)?, body: rows::json(row.try_get(2)?) }));
    rows.collect()
}

/// News of an owned run. The bell is read first: what comes later rings again.
pub(super) async fn news(
    readers: &SqlitePool,
    run: &RunId,
    open: &[CallUid],
    signal_seen: i64,
) -> StoreResult<Option<RunNews>> {
    let mut connection = readers.acquire().await?;
    let found = sqlx::query(
        "SELECT bell, cancel_ms, CAST(unixepoch('subsec') * 1000 AS INTEGER) FROM loops \
         WHERE bucket = ?1 AND loop_id = ?2",
    )
    .bind(run.bucket())
    .bind(run.as_str())
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = found else { return Ok(None) };
    let stored = calls(&mut connection, open).await?;
    Ok(Some(RunNews {
        bell: row.try_get(0)?,
        settled: stored.into_iter().filter_map(|(call, stored)| Some((call, stored.outcome?))).collect(),
        signals: signals(&mut connection, run, signal_seen).await?,
        cancel_asked: row.try_get::<Option<i64>, _>(1)?.is_some(),
        now_ms: row.try_get(2)?,
    }))
}

const YIELD: &str = "WITH b(bucket, loop_id, owner) AS (VALUES {rows}) UPDATE loops SET owner_session = NULL FROM b \
     WHERE loops.bucket = b.bucket AND loops.loop_id = b.loop_id AND loops.owner_session = b.owner";

/// Gives runs back.
pub(super) async fn give_back(connection: &mut SqliteConnection, me: &SessionId, runs: &[RunId]) -> StoreResult<()> {
    each(connection, YIELD, 3, runs, |bind, run| {
        bind.add(run.bucket()).add(run.as_str()).add(me.as_str());
    })
    .await?;
    Ok(())
}

/// Asks to cancel; after the end it changes nothing.
pub(super) async fn cancel(
    connection: &mut SqliteConnection,
    now: i64,
    namespace: &Namespace,
    run: &RunId,
) -> StoreResult<()> {
    sqlx::query(
        "UPDATE loops SET cancel_ms = ?4, bell = bell + 1 WHERE bucket = ?1 AND loop_id = ?2 AND namespace = ?3 \
         AND ended_ms IS NULL AND cancel_ms IS NULL",
    )
    .bind(run.bucket())
    .bind(run.as_str())
    .bind(namespace.as_str())
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}

/// Appends a signal once per request id.
pub(super) async fn signal(
    connection: &mut SqliteConnection,
    now: i64,
    namespace: &Namespace,
    run: &RunId,
    (name, body): (&str, &Json),
    request_id: Option<&str>,
) -> StoreResult<Option<i64>> {
    if let Some(request_id) = request_id {
        let known = sqlx::query(
            "SELECT s.n FROM signals s JOIN loops l USING (bucket, loop_id) \
             WHERE s.bucket = ?1 AND s.loop_id = ?2 AND s.request_id = ?3 AND l.namespace = ?4",
        )
        .bind(run.bucket())
        .bind(run.as_str())
        .bind(request_id)
        .bind(namespace.as_str())
        .fetch_optional(&mut *connection)
        .await?;
        if let Some(row) = known {
            return Ok(Some(row.try_get(0)?));
        }
    }
    let going =
        sqlx::query("SELECT 1 FROM loops WHERE bucket = ?1 AND loop_id = ?2 AND namespace = ?3 AND ended_ms IS NULL")
            .bind(run.bucket())
            .bind(run.as_str())
            .bind(namespace.as_str())
            .fetch_optional(&mut *connection)
            .await?;
    if going.is_none() {
        return Ok(None);
    }
    let n = runs::append_signal(connection, now, run, 1, name, body, request_id).await?;
    runs::ring(connection, [run.clone()].into_iter()).await?;
    Ok(n)
}
