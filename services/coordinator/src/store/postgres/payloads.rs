//! Values above the inline limit: content-addressed, written with what refers to them or piece by piece before.

use bytes::Bytes;
use ditto_contracts::{
    Bucket, Json,
    limits::{PAYLOAD_CHUNK_BYTES_MAX, VALUE_BYTES_MAX},
    wire::PayloadRef,
};
use sha2::{Digest as _, Sha256};
use sqlx::{PgConnection, PgExecutor, PgPool, Row as _};

use super::{
    super::{StoreError, StoreResult, rows},
    begin,
    columns::Big,
};

const STORE: &str = "
    INSERT INTO payloads (bucket, digest, size, body, created_ms)
    SELECT p.bucket, p.digest, octet_length(p.body), p.body, now_ms()
      FROM unnest($1::int[], $2::bytea[], $3::bytea[]) AS p(bucket, digest, body)
    ON CONFLICT DO NOTHING";

/// Stores the values of a batch and empties it.
pub(super) async fn store(connection: &mut PgConnection, big: &mut Big) -> sqlx::Result<()> {
    let mut values = std::mem::take(&mut big.values);
    values.sort_unstable_by_key(|(bucket, digest, _)| (*bucket, *digest));
    // A few megabytes each: one statement must not become too large.
    for part in values.chunks(8) {
        sqlx::query(STORE)
            .bind(part.iter().map(|(bucket, ..)| *bucket).collect::<Vec<_>>())
            .bind(part.iter().map(|(_, digest, _)| &digest[..]).collect::<Vec<_>>())
            .bind(part.iter().map(|(.., body)| body.as_bytes()).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// A whole payload.
pub(super) async fn get(
    executor: impl PgExecutor<'_>,
    bucket: Bucket,
    payload: &PayloadRef,
) -> StoreResult<Option<Bytes>> {
    const GET: &str = "SELECT body FROM payloads WHERE bucket = $1 AND digest = $2 AND size = $3";
    let found: Option<Vec<u8>> = sqlx::query_scalar(GET)
        .bind(bucket)
        .bind(&payload.digest[..])
        .bind(size_column(payload))
        .fetch_optional(executor)
        .await?;
    Ok(found.map(Bytes::from))
}

/// A value from its two columns; `None` when both are empty.
pub(super) async fn resolve(
    connection: &mut PgConnection,
    bucket: Bucket,
    inline: Option<Vec<u8>>,
    reference: Option<&str>,
) -> StoreResult<Option<Json>> {
    if let Some(inline) = inline {
        return Ok(Some(rows::json(inline)));
    }
    let Some(reference) = reference else { return Ok(None) };
    let payload: PayloadRef = rows::id(reference)?;
    match get(connection, bucket, &payload).await? {
        Some(body) => Ok(Some(Json::from_checked(body))),
        None => Err(StoreError::Other(format!("payload {payload} is missing"))),
    }
}

fn size_column(payload: &PayloadRef) -> i32 {
    i32::try_from(payload.size).unwrap_or(i32::MAX)
}

/// Stores one piece; `true` once the whole is there and its digest is right.
pub(super) async fn put(
    pool: &PgPool,
    bucket: Bucket,
    payload: &PayloadRef,
    offset: u32,
    chunk: &[u8],
) -> StoreResult<bool> {
    // Pieces of one payload that arrive at the same time wait for each other, so that the last one sees all.
    const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended(encode($1, 'hex'), $2::int8))";
    const KNOWN: &str = "SELECT EXISTS (SELECT 1 FROM payloads WHERE bucket = $1 AND digest = $2 AND size = $3)";
    const WHOLE: &str = "INSERT INTO payloads (bucket, digest, size, body, created_ms) VALUES ($1, $2, $3, $4, now_ms()) ON CONFLICT DO NOTHING";
    const PIECE: &str = "
        INSERT INTO payload_chunks (bucket, digest, size, at, body, created_ms) VALUES ($1, $2, $3, $4, $5, now_ms())
        ON CONFLICT (bucket, digest, size, at) DO UPDATE SET body = excluded.body";
    const STORED: &str = "
        SELECT coalesce(sum(octet_length(body)), 0)::int8 FROM payload_chunks WHERE bucket = $1 AND digest = $2 AND size = $3";
    const PIECES: &str =
        "SELECT at, body FROM payload_chunks WHERE bucket = $1 AND digest = $2 AND size = $3 ORDER BY at";
    const CLEAR: &str = "DELETE FROM payload_chunks WHERE bucket = $1 AND digest = $2 AND size = $3";

    let size = payload.size as usize;
    if size > VALUE_BYTES_MAX {
        return Err(StoreError::BadItem(format!("payload has more than {VALUE_BYTES_MAX} bytes")));
    }
    if (offset as usize).saturating_add(chunk.len()) > size {
        return Err(StoreError::BadItem("piece reaches beyond the end of its payload".into()));
    }
    if chunk.len() > PAYLOAD_CHUNK_BYTES_MAX && chunk.len() != size {
        return Err(StoreError::BadItem(format!("piece has more than {PAYLOAD_CHUNK_BYTES_MAX} bytes")));
    }
    let digest = &payload.digest[..];
    let bytes = size_column(payload);
    let mut tx = begin(pool).await?;
    sqlx::query(LOCK).bind(digest).bind(i64::from(bucket)).execute(&mut *tx).await?;
    let known: bool = sqlx::query_scalar(KNOWN).bind(bucket).bind(digest).bind(bytes).fetch_one(&mut *tx).await?;
    if known {
        tx.commit().await?;
        return Ok(true);
    }
    let mut whole = Vec::new();
    if chunk.len() == size {
        whole.extend_from_slice(chunk);
    } else {
        sqlx::query(PIECE)
            .bind(bucket)
            .bind(digest)
            .bind(bytes)
            .bind(i32::try_from(offset).unwrap_or(i32::MAX))
            .bind(chunk)
            .execute(&mut *tx)
            .await?;
        let stored: i64 = sqlx::query_scalar(STORED).bind(bucket).bind(digest).bind(bytes).fetch_one(&mut *tx).await?;
        if stored >= i64::from(payload.size) {
            for row in sqlx::query(PIECES).bind(bucket).bind(digest).bind(bytes).fetch_all(&mut *tx).await? {
                let at = usize::try_from(row.try_get::<i32, _>(0)?).unwrap_or(usize::MAX);
                let body: &[u8] = row.try_get(1)?;
                // Pieces may overlap when a sender changed their size.
                match whole.len().checked_sub(at).and_then(|known| body.get(known..)) {
                    Some(new) => whole.extend_from_slice(new),
                    None if at > whole.len() => break,
                    None => {}
                }
            }
        }
        if whole.len() < size {
            tx.commit().await?;
            return Ok(false);
        }
    }
    let right = <[u8; 32]>::from(Sha256::digest(&whole)) == payload.digest;
    if right {
        sqlx::query(WHOLE).bind(bucket).bind(digest).bind(bytes).bind(&whole).execute(&mut *tx).await?;
    }
    // Right: not needed any more. Wrong: the sender starts again with clean pieces.
    sqlx::query(CLEAR).bind(bucket).bind(digest).bind(bytes).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(right)
}
