//! Sessions, their leases and what they offer.

use std::time::Duration;

use ditto_contracts::{Pool, SessionId, wire::ledger::Offer};
use sqlx::{Row as _, SqliteConnection};

use super::batch::each;
use crate::store::{Lease, NewSession, OfferRow, SessionRow, StoreError, StoreResult, rows};

/// Opens a session; a new one declares the earlier sessions of its instance dead.
pub(super) async fn open(connection: &mut SqliteConnection, now: i64, new: &NewSession) -> StoreResult<Lease> {
    let inserted = sqlx::query(
        "INSERT INTO sessions (session_id, role, kind, name, build, instance, started_ms, expires_ms) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT DO NOTHING",
    )
    .bind(new.session.as_str())
    .bind(rows::role_code(new.role))
    .bind(&new.kind)
    .bind(&new.name)
    .bind(&new.build)
    .bind(&new.instance)
    .bind(now)
    .bind(now.saturating_add(rows::ms(new.ttl_ms)))
    .execute(&mut *connection)
    .await?;
    if inserted.rows_affected() == 1
        && let Some(instance) = &new.instance
    {
        sqlx::query(
            "UPDATE sessions SET dead_ms = coalesce(dead_ms, ?1), closed = 1 WHERE instance = ?2 AND role = ?3 \
             AND kind = ?4 AND session_id <> ?5",
        )
        .bind(now)
        .bind(instance)
        .bind(rows::role_code(new.role))
        .bind(&new.kind)
        .bind(new.session.as_str())
        .execute(&mut *connection)
        .await?;
    }
    let row = sqlx::query("SELECT dead_ms IS NULL FROM sessions WHERE session_id = ?1")
        .bind(new.session.as_str())
        .fetch_one(connection)
        .await?;
    Ok(Lease { alive: row.try_get(0)?, now_ms: now })
}

/// Extends a session unless it is dead.
pub(super) async fn renew(
    connection: &mut SqliteConnection,
    now: i64,
    session: &SessionId,
    ttl_ms: u64,
) -> StoreResult<Lease> {
    let renewed = sqlx::query("UPDATE sessions SET expires_ms = ?2 WHERE session_id = ?1 AND dead_ms IS NULL")
        .bind(session.as_str())
        .bind(now.saturating_add(rows::ms(ttl_ms)))
        .execute(connection)
        .await?;
    Ok(Lease { alive: renewed.rows_affected() == 1, now_ms: now })
}

/// Ends a session, which is known to be over then.
pub(super) async fn close(connection: &mut SqliteConnection, now: i64, session: &SessionId) -> StoreResult<()> {
    sqlx::query("UPDATE sessions SET dead_ms = coalesce(dead_ms, ?2), closed = 1 WHERE session_id = ?1")
        .bind(session.as_str())
        .bind(now)
        .execute(connection)
        .await?;
    Ok(())
}

/// Whether [`expire`] would find anything.
pub(super) async fn any_expired(connection: &mut SqliteConnection, now: i64, grace: Duration) -> StoreResult<bool> {
    let found = sqlx::query("SELECT 1 FROM sessions WHERE dead_ms IS NULL AND expires_ms <= ?1 LIMIT 1")
        .bind(now - grace_ms(grace))
        .fetch_optional(connection)
        .await?;
    Ok(found.is_some())
}

fn grace_ms(grace: Duration) -> i64 {
    rows::ms(u64::try_from(grace.as_millis()).unwrap_or(u64::MAX))
}

/// Declares dead what expired longer than `grace` ago.
pub(super) async fn expire(
    connection: &mut SqliteConnection,
    now: i64,
    grace: Duration,
) -> StoreResult<Vec<SessionId>> {
    let found =
        sqlx::query("UPDATE sessions SET dead_ms = ?1 WHERE dead_ms IS NULL AND expires_ms <= ?2 RETURNING session_id")
            .bind(now)
            .bind(now - grace_ms(grace))
            .fetch_all(connection)
            .await?;
    found.iter().map(|row| rows::id(row.try_get(0)?)).collect()
}

/// Sessions, live ones first.
pub(super) async fn list(connection: &mut SqliteConnection, limit: u32) -> StoreResult<Vec<SessionRow>> {
    let found = sqlx::query(
        "SELECT session_id, role, kind, name, build, started_ms, expires_ms, dead_ms FROM sessions \
         ORDER BY dead_ms IS NOT NULL, started_ms DESC, session_id LIMIT ?1",
    )
    .bind(limit)
    .fetch_all(connection)
    .await?;
    let sessions = found.iter().map(|row| {
        Ok(SessionRow {
            session: rows::id(row.try_get(0)?)?,
            role: rows::code(rows::role_from(row.try_get(1)?), "session role")?,
            kind: row.try_get(2)?,
            name: row.try_get(3)?,
            build: row.try_get(4)?,
            started_ms: row.try_get(5)?,
            expires_ms: row.try_get(6)?,
            dead_ms: row.try_get(7)?,
        })
    });
    sessions.collect()
}

/// Replaces what a session offers.
pub(super) async fn offers_put(
    connection: &mut SqliteConnection,
    session: &SessionId,
    kind: &str,
    pool: Option<&Pool>,
    offers: &[Offer],
) -> StoreResult<()> {
    sqlx::query("DELETE FROM offers WHERE session_id = ?1").bind(session.as_str()).execute(&mut *connection).await?;
    let mut numbered = Vec::with_capacity(offers.len());
    for (n, offer) in (0i64..).zip(offers) {
        numbered.push((n, offer, rows::encode(offer)?));
    }
    let insert = "INSERT INTO offers (session_id, n, kind, pool, node, source, offer) VALUES {rows}";
    each(connection, insert, 7, &numbered, |bind, (n, offer, text)| {
        bind.add(session.as_str())
            .add(*n)
            .add(kind)
            .add(pool.map(Pool::as_str))
            .add(offer.node.as_str())
            .add(offer.source.as_deref())
            .add(text.as_bytes());
    })
    .await?;
    Ok(())
}

/// Offers of all live sessions.
pub(super) async fn offers_live(connection: &mut SqliteConnection) -> StoreResult<Vec<OfferRow>> {
    let found = sqlx::query(
        "SELECT o.session_id, o.kind, o.pool, o.offer FROM offers o JOIN sessions s USING (session_id) \
         WHERE s.dead_ms IS NULL ORDER BY o.session_id, o.n LIMIT 100000",
    )
    .fetch_all(connection)
    .await?;
    let offers = found.iter().map(|row| {
        let offer: &[u8] = row.try_get(3)?;
        Ok(OfferRow {
            session: rows::id(row.try_get(0)?)?,
            kind: row.try_get(1)?,
            pool: rows::id_opt(row.try_get(2)?)?,
            offer: serde_json::from_slice(offer)
                .map_err(|error| StoreError::Schema(format!("stored offer: {error}")))?,
        })
    });
    offers.collect()
}
