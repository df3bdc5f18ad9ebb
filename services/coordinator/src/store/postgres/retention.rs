//! What nobody needs any more: intermediate checkpoints, and whole days (receipts contract §18).

use std::{sync::Mutex, time::Duration};

use sqlx::{PgPool, Row as _};

use super::{
    super::{StoreResult, rows::ms},
    partitions::{DAY_MS, clear_default, create_ahead, days, default_days, drop_day},
};

/// Runs looked at per call.
const RUNS_PAGE: i64 = 500;

/// How far the pruning of checkpoints has come in this process. Losing it costs a walk over the ledger.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    at: Mutex<Option<(i32, String)>>,
}

impl Cursor {
    fn get(&self) -> Option<(i32, String)> {
        self.at.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn set(&self, at: Option<(i32, String)>) {
        *self.at.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = at;
    }
}

/// One bounded pass; `true`: call again.
pub(super) async fn sweep(pool: &PgPool, cursor: &Cursor, retention: Duration) -> StoreResult<bool> {
    create_ahead(pool).await?;
    let retention_ms = ms(u64::try_from(retention.as_millis()).unwrap_or(u64::MAX));
    let more = drop_days(pool, retention_ms).await?;
    let more = prune(pool, cursor).await? || more;
    forget_sessions(pool, retention_ms).await?;
    Ok(more)
}

/// Empties checkpoints that a later one of the same run replaces; what people watching read stays until its day goes.
async fn prune(pool: &PgPool, cursor: &Cursor) -> StoreResult<bool> {
    // Not the last, no boundary, and old enough that nobody repeats the commit that wrote it.
    const PRUNE: &str = "
        WITH page AS MATERIALIZED (
                SELECT l.bucket, l.loop_id, l.version FROM loops l
                 WHERE l.loop_id > $2 AND l.bucket >= $1 ORDER BY l.loop_id LIMIT $3),
             gone AS (
                DELETE FROM checkpoints c USING page
                 WHERE c.bucket = page.bucket AND c.loop_id = page.loop_id AND c.version < page.version
                   AND NOT c.boundary AND c.progress IS NULL AND c.created_ms < (SELECT now_ms()) - 60000),
             emptied AS (
                UPDATE checkpoints c SET body = NULL FROM page
                 WHERE c.bucket = page.bucket AND c.loop_id = page.loop_id AND c.version < page.version
                   AND NOT c.boundary AND c.progress IS NOT NULL AND c.body IS NOT NULL
                   AND c.created_ms < (SELECT now_ms()) - 60000)
        SELECT bucket, loop_id FROM page ORDER BY loop_id DESC LIMIT 1";
    let (bucket, run) = cursor.get().unwrap_or((i32::MIN, String::new()));
    let last = sqlx::query(PRUNE).bind(bucket).bind(&run).bind(RUNS_PAGE).fetch_optional(pool).await?;
    match last {
        Some(row) => {
            cursor.set(Some((row.try_get(0)?, row.try_get(1)?)));
            Ok(true)
        }
        None => {
            // The next walk begins with the days that still change.
            let today: i64 = sqlx::query_scalar("SELECT now_ms() / 86400000").fetch_one(pool).await?;
            cursor.set(Some((i32::try_from(today - 2).unwrap_or(i32::MAX), String::new())));
            Ok(false)
        }
    }
}

async fn drop_days(pool: &PgPool, retention_ms: i64) -> StoreResult<bool> {
    // No run of the day goes on, and the last one ended long enough ago. Without runs: the day itself is over long enough.
    const OVER: &str = "
        SELECT NOT EXISTS (SELECT 1 FROM loops WHERE bucket = $1 AND ended_ms IS NULL)
           AND coalesce((SELECT max(ended_ms) FROM loops WHERE bucket = $1), ($1::int8 + 1) * 86400000) + $2 <= now_ms()";
    const REGISTER: &str = "
        INSERT INTO unknown_register (bucket, call_uid, loop_id, namespace, kind, call_id, node, source, idem_key,
                                      error_code, created_ms, registered_ms)
        SELECT r.bucket, r.call_uid, r.loop_id, l.namespace, r.kind, r.call_id, r.node, r.source, r.idem_key, r.error_code,
               r.created_ms, now_ms()
          FROM receipts r JOIN loops l ON l.bucket = r.bucket AND l.loop_id = r.loop_id
         WHERE r.bucket = $1 AND r.state = 5
        ON CONFLICT DO NOTHING";
    let now: i64 = sqlx::query_scalar("SELECT now_ms()").fetch_one(pool).await?;
    // New runs may still come to today, and late ones, by a clock that differs, to yesterday.
    let open = i32::try_from(now / DAY_MS - 1).unwrap_or(i32::MAX);
    // Looked at only when the day could be over: no run ends before it begins.
    let open = open.min(i32::try_from((now - retention_ms) / DAY_MS + 1).unwrap_or(i32::MIN));
    let oldest_first = days(pool).await?.into_iter().map(|day| (day, false));
    let in_default = default_days(pool).await?.into_iter().map(|day| (day, true));
    for (day, default) in oldest_first.chain(in_default).filter(|(day, _)| *day < open) {
        let over: bool = sqlx::query_scalar(OVER).bind(day).bind(retention_ms).fetch_one(pool).await?;
        if !over {
            continue;
        }
        sqlx::query(REGISTER).bind(day).execute(pool).await?;
        if default {
            clear_default(pool, day).await?;
        } else {
            drop_day(pool, day).await?;
        }
        return Ok(true);
    }
    Ok(false)
}

/// Sessions that ended long ago and own nothing that is open; one that holds a run or a claim stays.
async fn forget_sessions(pool: &PgPool, retention_ms: i64) -> StoreResult<()> {
    const FORGET: &str = "
        DELETE FROM sessions s
         WHERE s.dead_ms + greatest($1, 172800000) < (SELECT now_ms())
           AND NOT EXISTS (SELECT 1 FROM loops l WHERE l.owner_session = s.session_id AND l.status IN (1, 2, 4))
           AND NOT EXISTS (SELECT 1 FROM receipts r WHERE r.settled_ms IS NULL AND r.session_id = s.session_id)";
    const OFFERS: &str = "
        DELETE FROM offers o WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = o.session_id)
           AND EXISTS (SELECT 1 FROM sessions)";
    let gone = sqlx::query(FORGET).bind(retention_ms).execute(pool).await?;
    if gone.rows_affected() > 0 {
        sqlx::query(OFFERS).execute(pool).await?;
    }
    Ok(())
}
