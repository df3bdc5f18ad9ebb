//! Pruning intermediate checkpoints and dropping days that are over.

use sqlx::{Row as _, SqliteConnection};

use crate::store::StoreResult;

/// Most rows that one call looks at or removes.
const PAGE: i64 = 2_000;

/// Checkpoints after `cursor` that a later one replaces; the last and the boundaries stay. Returns the next cursor, or
/// `None` at the end of the table.
pub(super) async fn prune(connection: &mut SqliteConnection, cursor: i64) -> StoreResult<Option<i64>> {
    let row = sqlx::query(
        "SELECT max(id), count(*) FROM (SELECT rowid AS id FROM checkpoints WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)",
    )
    .bind(cursor)
    .bind(PAGE)
    .fetch_one(&mut *connection)
    .await?;
    let (end, count): (Option<i64>, i64) = (row.try_get(0)?, row.try_get(1)?);
    let Some(end) = end else { return Ok(None) };
    let replaced = "rowid > ?1 AND rowid <= ?2 AND boundary = 0 AND body IS NOT NULL AND version < \
         (SELECT l.version FROM loops l WHERE l.bucket = checkpoints.bucket AND l.loop_id = checkpoints.loop_id)";
    let delete = sqlx::AssertSqlSafe(format!("DELETE FROM checkpoints WHERE progress IS NULL AND {replaced}"));
    sqlx::query(delete).bind(cursor).bind(end).execute(&mut *connection).await?;
    // What people watched stays readable.
    let empty = sqlx::AssertSqlSafe(format!("UPDATE checkpoints SET body = NULL WHERE {replaced}"));
    sqlx::query(empty).bind(cursor).bind(end).execute(&mut *connection).await?;
    Ok((count >= PAGE).then_some(end))
}

/// A day whose runs all ended before `before`.
pub(super) async fn closed_day(connection: &mut SqliteConnection, before: i64) -> StoreResult<Option<i32>> {
    let found = sqlx::query(
        "SELECT bucket FROM loops GROUP BY bucket HAVING count(*) = count(ended_ms) AND max(ended_ms) < ?1 \
         ORDER BY bucket LIMIT 1",
    )
    .bind(before)
    .fetch_optional(connection)
    .await?;
    Ok(found.map(|row| row.try_get(0)).transpose()?)
}

const REGISTER: &str = "INSERT INTO unknown_register (bucket, call_uid, loop_id, namespace, kind, call_id, node, source, \
     idem_key, error_code, created_ms, registered_ms) \
     SELECT r.bucket, r.call_uid, r.loop_id, l.namespace, r.kind, r.call_id, r.node, r.source, r.idem_key, \
     r.error_code, r.created_ms, ?2 FROM receipts r JOIN loops l USING (bucket, loop_id) \
     WHERE r.bucket = ?1 AND r.state = 5 ON CONFLICT DO NOTHING";

/// Removes a page of a day; its runs go last. `true`: there is more.
pub(super) async fn drop_day(connection: &mut SqliteConnection, now: i64, bucket: i32) -> StoreResult<bool> {
    sqlx::query(REGISTER).bind(bucket).bind(now).execute(&mut *connection).await?;
    for table in ["attempts", "receipts", "signals", "checkpoints", "payload_chunks", "payloads", "loops"] {
        let delete =
            format!("DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE bucket = ?1 LIMIT {PAGE})");
        let done = sqlx::query(sqlx::AssertSqlSafe(delete)).bind(bucket).execute(&mut *connection).await?;
        if done.rows_affected() > 0 && table != "loops" {
            return Ok(true);
        }
        if done.rows_affected() >= PAGE.unsigned_abs() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Forgets sessions that died before `before` and hold nothing.
pub(super) async fn forget_sessions(connection: &mut SqliteConnection, before: i64) -> StoreResult<()> {
    sqlx::query(
        "DELETE FROM sessions WHERE dead_ms < ?1 AND NOT EXISTS (SELECT 1 FROM loops l \
         WHERE l.owner_session = sessions.session_id AND l.ended_ms IS NULL) AND NOT EXISTS (SELECT 1 FROM receipts r \
         WHERE r.session_id = sessions.session_id AND r.settled_ms IS NULL AND r.state = 2)",
    )
    .bind(before)
    .execute(&mut *connection)
    .await?;
    sqlx::query("DELETE FROM offers WHERE session_id NOT IN (SELECT session_id FROM sessions)")
        .execute(connection)
        .await?;
    Ok(())
}
