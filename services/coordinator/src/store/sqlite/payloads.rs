//! Values too large for a row, by content, and the pieces of those that are still arriving.

use bytes::Bytes;
use ditto_contracts::{Bucket, Json, limits::VALUE_BYTES_MAX, wire::PayloadRef};
use sha2::{Digest as _, Sha256};
use sqlx::{Row as _, SqliteConnection};

use super::batch::each;
use crate::store::{
    StoreError, StoreResult,
    rows::{self, Kept},
};

const PUT: &str = "INSERT INTO payloads (bucket, digest, size, body, created_ms) VALUES {rows} ON CONFLICT DO NOTHING";

/// Stores the values among these that are to be payloads.
pub(super) async fn keep<'a>(
    connection: &mut SqliteConnection,
    now: i64,
    values: impl Iterator<Item = (Bucket, &'a Kept)>,
) -> StoreResult<()> {
    let big: Vec<(Bucket, PayloadRef, &Json)> =
        values.filter_map(|(bucket, kept)| Some((bucket, kept.reference?, kept.big.as_ref()?))).collect();
    for one in &big {
        // One by one: a few megabytes each.
        each(connection, PUT, 5, std::slice::from_ref(one), |bind, (bucket, reference, body)| {
            bind.add(*bucket).add(&reference.digest[..]).add(i64::from(reference.size)).add(body.as_bytes()).add(now);
        })
        .await?;
    }
    Ok(())
}

/// A whole payload.
pub(super) async fn get(
    connection: &mut SqliteConnection,
    bucket: Bucket,
    payload: &PayloadRef,
) -> StoreResult<Option<Vec<u8>>> {
    let found = sqlx::query("SELECT body FROM payloads WHERE bucket = ?1 AND digest = ?2 AND size = ?3")
        .bind(bucket)
        .bind(&payload.digest[..])
        .bind(i64::from(payload.size))
        .fetch_optional(connection)
        .await?;
    Ok(found.map(|row| row.try_get(0)).transpose()?)
}

/// A value from its two columns; `None` when both are empty.
pub(super) async fn resolve(
    connection: &mut SqliteConnection,
    bucket: Bucket,
    inline: Option<Vec<u8>>,
    reference: Option<String>,
) -> StoreResult<Option<Json>> {
    if let Some(inline) = inline {
        return Ok(Some(rows::json(inline)));
    }
    let Some(reference) = reference else { return Ok(None) };
    let payload: PayloadRef = rows::id(&reference)?;
    match get(connection, bucket, &payload).await? {
        Some(body) => Ok(Some(rows::json(body))),
        None => Err(StoreError::Other(format!("payload {payload} is missing"))),
    }
}

/// Stores one piece; `true` once the whole is there and its digest is right.
pub(super) async fn put(
    connection: &mut SqliteConnection,
    now: i64,
    bucket: Bucket,
    payload: &PayloadRef,
    offset: u32,
    chunk: &[u8],
) -> StoreResult<bool> {
    let size = payload.size as usize;
    if size > VALUE_BYTES_MAX {
        return Err(StoreError::BadItem(format!("payload has more than {VALUE_BYTES_MAX} bytes")));
    }
    if (offset as usize).saturating_add(chunk.len()) > size {
        return Err(StoreError::BadItem("piece reaches beyond the end of its payload".into()));
    }
    let known = sqlx::query("SELECT 1 FROM payloads WHERE bucket = ?1 AND digest = ?2 AND size = ?3")
        .bind(bucket)
        .bind(&payload.digest[..])
        .bind(i64::from(payload.size))
        .fetch_optional(&mut *connection)
        .await?;
    if known.is_some() {
        return Ok(true);
    }
    sqlx::query(
        "INSERT INTO payload_chunks (bucket, digest, size, at, body, created_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
         ON CONFLICT DO UPDATE SET body = excluded.body",
    )
    .bind(bucket)
    .bind(&payload.digest[..])
    .bind(i64::from(payload.size))
    .bind(i64::from(offset))
    .bind(chunk)
    .bind(now)
    .execute(&mut *connection)
    .await?;
    let stored: i64 = sqlx::query(
        "SELECT coalesce(sum(length(body)), 0) FROM payload_chunks WHERE bucket = ?1 AND digest = ?2 AND size = ?3",
    )
    .bind(bucket)
    .bind(&payload.digest[..])
    .bind(i64::from(payload.size))
    .fetch_one(&mut *connection)
    .await?
    .try_get(0)?;
    if stored < i64::from(payload.size) {
        return Ok(false);
    }
    let pieces =
        sqlx::query("SELECT at, body FROM payload_chunks WHERE bucket = ?1 AND digest = ?2 AND size = ?3 ORDER BY at")
            .bind(bucket)
            .bind(&payload.digest[..])
            .bind(i64::from(payload.size))
            .fetch_all(&mut *connection)
            .await?;
    let mut whole: Vec<u8> = Vec::with_capacity(size);
    for piece in &pieces {
        let at = usize::try_from(piece.try_get::<i64, _>(0)?).unwrap_or(usize::MAX);
        let body: &[u8] = piece.try_get(1)?;
        if at > whole.len() {
            return Ok(false);
        }
        // Pieces may overlap when a sender changed their size.
        if let Some(new) = body.get(whole.len() - at..) {
            whole.extend_from_slice(new);
        }
    }
    if whole.len() < size {
        return Ok(false);
    }
    let right = <[u8; 32]>::from(Sha256::digest(&whole)) == payload.digest;
    if right {
        sqlx::query("INSERT INTO payloads (bucket, digest, size, body, created_ms) VALUES (?1, ?2, ?3, ?4, ?5)")
            .bind(bucket)
            .bind(&payload.digest[..])
            .bind(i64::from(payload.size))
            .bind(&whole)
            .bind(now)
            .execute(&mut *connection)
            .await?;
    }
    // Right: not needed any more. Wrong: the sender starts again with clean pieces.
    sqlx::query("DELETE FROM payload_chunks WHERE bucket = ?1 AND digest = ?2 AND size = ?3")
        .bind(bucket)
        .bind(&payload.digest[..])
        .bind(i64::from(payload.size))
        .execute(&mut *connection)
        .await?;
    Ok(right)
}

/// As [`get`], as the seam gives it.
pub(super) async fn get_bytes(
    connection: &mut SqliteConnection,
    bucket: Bucket,
    payload: &PayloadRef,
) -> StoreResult<Option<Bytes>> {
    Ok(get(connection, bucket, payload).await?.map(Bytes::from))
}
