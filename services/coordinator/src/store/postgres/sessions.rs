//! Lives of processes, and what workers among them offer.

use std::time::Duration;

use ditto_contracts::{Json, Pool, SessionId, wire::ledger::Offer};
use sqlx::{PgPool, Row as _};

use super::{
    super::{
        Lease, NewSession, OfferRow, SessionRow, StoreError, StoreResult,
        rows::{self, encode, ms, role_code, role_from},
    },
    begin,
    columns::{clean, json_bytes},
};

/// Opens a session, or finds it.
pub(super) async fn open(pool: &PgPool, session: &NewSession, mark: &str) -> StoreResult<Lease> {
    const OPEN: &str = "
        INSERT INTO sessions (session_id, role, kind, name, build, instance, started_ms, expires_ms, ledger_mark)
        SELECT $1, $2, $3, $4, $5, $6, t.now, t.now + $7, $8 FROM (SELECT now_ms() AS now) t
        ON CONFLICT (session_id) DO NOTHING";
    const REPLACE: &str = "
        UPDATE sessions SET dead_ms = coalesce(dead_ms, (SELECT now_ms())), closed = true
         WHERE instance = $1 AND session_id <> $2 AND role = $3 AND kind = $4 AND NOT closed";
    let mut tx = begin(pool).await?;
    let made = sqlx::query(OPEN)
        .bind(session.session.as_str())
        .bind(role_code(session.role))
        .bind(clean(&session.kind))
        .bind(clean(&session.name))
        .bind(clean(&session.build))
        .bind(session.instance.as_deref().map(clean))
        .bind(ms(session.ttl_ms))
        .bind(mark)
        .execute(&mut *tx)
        .await?;
    // Only when it is new: a late repetition must not end its successor.
    if let (1, Some(instance)) = (made.rows_affected(), &session.instance) {
        sqlx::query(REPLACE)
            .bind(clean(instance))
            .bind(session.session.as_str())
            .bind(role_code(session.role))
            .bind(clean(&session.kind))
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    if made.rows_affected() == 1 {
        return Ok(Lease { alive: true, now_ms: now_ms(pool).await? });
    }
    renew(pool, &session.session, session.ttl_ms).await
}

/// Extends a session.
pub(super) async fn renew(pool: &PgPool, session: &SessionId, ttl_ms: u64) -> StoreResult<Lease> {
    const RENEW: &str = "
        WITH t AS MATERIALIZED (SELECT now_ms() AS now),
             ok AS (UPDATE sessions SET expires_ms = t.now + $2 FROM t WHERE session_id = $1 AND dead_ms IS NULL RETURNING 1)
        SELECT EXISTS (SELECT 1 FROM ok) AS alive, t.now AS now FROM t";
    let row = sqlx::query(RENEW).bind(session.as_str()).bind(ms(ttl_ms)).fetch_one(pool).await?;
    Ok(Lease { alive: row.try_get("alive")?, now_ms: row.try_get("now")? })
}

/// Ends a session.
pub(super) async fn close(pool: &PgPool, session: &SessionId) -> StoreResult<()> {
    const CLOSE: &str = "UPDATE sessions SET dead_ms = coalesce(dead_ms, (SELECT now_ms())), closed = true WHERE session_id = $1 AND NOT closed";
    sqlx::query(CLOSE).bind(session.as_str()).execute(pool).await?;
    Ok(())
}

/// Declares dead what expired longer ago than the grace.
pub(super) async fn expire(pool: &PgPool, grace: Duration) -> StoreResult<Vec<SessionId>> {
    const EXPIRE: &str = "
        UPDATE sessions SET dead_ms = (SELECT now_ms()) WHERE dead_ms IS NULL AND expires_ms <= (SELECT now_ms()) - $1
        RETURNING session_id";
    let grace_ms = ms(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
    let dead: Vec<String> = sqlx::query_scalar(EXPIRE).bind(grace_ms).fetch_all(pool).await?;
    dead.iter().map(|session| rows::id(session)).collect()
}

/// Live ones first, then by start.
pub(super) async fn list(pool: &PgPool, limit: u32) -> StoreResult<Vec<SessionRow>> {
    const LIST: &str = "
        SELECT session_id, role, kind, name, build, started_ms, expires_ms, dead_ms FROM sessions
         ORDER BY dead_ms IS NOT NULL, started_ms DESC, session_id LIMIT $1";
    let found = sqlx::query(LIST).bind(i64::from(limit)).fetch_all(pool).await?;
    let rows = found.iter().map(|row| {
        Ok(SessionRow {
            session: rows::id(row.try_get("session_id")?)?,
            role: rows::code(role_from(row.try_get("role")?), "session role")?,
            kind: row.try_get("kind")?,
            name: row.try_get("name")?,
            build: row.try_get("build")?,
            started_ms: row.try_get("started_ms")?,
            expires_ms: row.try_get("expires_ms")?,
            dead_ms: row.try_get("dead_ms")?,
        })
    });
    rows.collect()
}

/// Replaces what a session offers.
pub(super) async fn offers_put(
    pool: &PgPool,
    session: &SessionId,
    kind: &str,
    queue: Option<&Pool>,
    offers: &[Offer],
) -> StoreResult<()> {
    const LOCK: &str = "SELECT 1 FROM sessions WHERE session_id = $1 FOR UPDATE";
    const CLEAR: &str = "DELETE FROM offers WHERE session_id = $1";
    const PUT: &str = "
        INSERT INTO offers (session_id, n, kind, pool, node, source, offer)
        SELECT $1, o.n, $2, $3, o.node, o.source, o.offer
          FROM unnest($4::int[], $5::text[], $6::text[], $7::bytea[]) AS o(n, node, source, offer)";
    let bodies: Vec<Json> = offers.iter().map(encode).collect::<StoreResult<_>>()?;
    let mut tx = begin(pool).await?;
    // Two announcements at once take turns.
    sqlx::query(LOCK).bind(session.as_str()).execute(&mut *tx).await?;
    sqlx::query(CLEAR).bind(session.as_str()).execute(&mut *tx).await?;
    sqlx::query(PUT)
        .bind(session.as_str())
        .bind(clean(kind))
        .bind(queue.map(|pool| pool.as_str()))
        .bind((0..).take(offers.len()).collect::<Vec<i32>>())
        .bind(offers.iter().map(|offer| offer.node.as_str()).collect::<Vec<_>>())
        .bind(offers.iter().map(|offer| offer.source.as_deref().map(clean)).collect::<Vec<_>>())
        .bind(json_bytes(&bodies))
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(())
}

/// Offers of live sessions.
pub(super) async fn offers_live(pool: &PgPool) -> StoreResult<Vec<OfferRow>> {
    const LIVE: &str = "
        SELECT o.session_id, o.kind, o.pool, o.offer FROM offers o
          JOIN sessions s ON s.session_id = o.session_id AND s.dead_ms IS NULL
         ORDER BY o.session_id, o.n";
    let found = sqlx::query(LIVE).fetch_all(pool).await?;
    let rows = found.iter().map(|row| {
        let offer = serde_json::from_slice(row.try_get("offer")?);
        Ok(OfferRow {
            session: rows::id(row.try_get("session_id")?)?,
            kind: row.try_get("kind")?,
            pool: rows::id_opt(row.try_get("pool")?)?,
            offer: offer.map_err(|error| StoreError::Schema(format!("stored offer: {error}")))?,
        })
    });
    rows.collect()
}

/// The ledger clock.
pub(super) async fn now_ms(pool: &PgPool) -> StoreResult<i64> {
    Ok(sqlx::query_scalar("SELECT now_ms()").fetch_one(pool).await?)
}
