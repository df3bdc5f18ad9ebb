//! Runs for people: cancel, signals, listings, progress.

use ditto_contracts::{Json, Namespace, RunId};
use sqlx::{PgPool, Row as _};

use super::{
    super::{EventRow, RunFilter, RunRow, StoreResult, rows as shared},
    begin,
    model::append_signal,
    rows::{read_run, run_columns},
};

/// Asks to cancel; after the end it changes nothing.
pub(super) async fn cancel(pool: &PgPool, namespace: &Namespace, run: &RunId) -> StoreResult<Option<RunRow>> {
    const CANCEL: &str = "
        UPDATE loops SET cancel_ms = (SELECT now_ms()), bell = bell + 1
         WHERE bucket = $1 AND loop_id = $2 AND namespace = $3 AND ended_ms IS NULL AND cancel_ms IS NULL";
    sqlx::query(CANCEL).bind(run.bucket()).bind(run.as_str()).bind(namespace.as_str()).execute(pool).await?;
    get(pool, Some(namespace), run).await
}

/// Appends a signal once per request id.
pub(super) async fn signal(
    pool: &PgPool,
    namespace: &Namespace,
    run: &RunId,
    name: &str,
    body: &Json,
    request_id: Option<&str>,
) -> StoreResult<Option<i64>> {
    // Signals of one run are numbered one after the other: its row is the lock.
    const LOCK: &str = "
        SELECT ended_ms IS NOT NULL AS ended FROM loops WHERE bucket = $1 AND loop_id = $2 AND namespace = $3 FOR UPDATE";
    const KNOWN: &str = "SELECT n FROM signals WHERE bucket = $1 AND loop_id = $2 AND request_id = $3";
    const RING: &str = "UPDATE loops SET bell = bell + 1 WHERE bucket = $1 AND loop_id = $2";
    let request_id = request_id.map(super::columns::clean);
    let mut tx = begin(pool).await?;
    let lock = sqlx::query_scalar(LOCK).bind(run.bucket()).bind(run.as_str()).bind(namespace.as_str());
    let Some(ended) = lock.fetch_optional(&mut *tx).await? else { return Ok(None) };
    if let Some(request_id) = &request_id {
        let known = sqlx::query_scalar(KNOWN).bind(run.bucket()).bind(run.as_str()).bind(request_id);
        if let Some(n) = known.fetch_optional(&mut *tx).await? {
            return Ok(Some(n));
        }
    }
    if ended {
        return Ok(None);
    }
    let n = append_signal(&mut tx, run, 1, name, body, request_id.as_deref()).await?;
    sqlx::query(RING).bind(run.bucket()).bind(run.as_str()).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(Some(n))
}

/// One run.
pub(super) async fn get(pool: &PgPool, namespace: Option<&Namespace>, run: &RunId) -> StoreResult<Option<RunRow>> {
    const GET: &str = concat!(
        "SELECT ",
        run_columns!(),
        " FROM loops l WHERE l.bucket = $1 AND l.loop_id = $2 AND ($3::text IS NULL OR l.namespace = $3)"
    );
    let mut connection = pool.acquire().await?;
    let query = sqlx::query(GET).bind(run.bucket()).bind(run.as_str()).bind(namespace.map(|n| n.as_str()));
    let Some(row) = query.fetch_optional(&mut *connection).await? else { return Ok(None) };
    read_run(&mut connection, &row).await.map(Some)
}

/// Runs, newest first.
pub(super) async fn list(pool: &PgPool, filter: &RunFilter, limit: u32) -> StoreResult<Vec<RunRow>> {
    // A run's id begins with its time.
    const LIST: &str = concat!(
        "SELECT ",
        run_columns!(),
        " FROM loops l
         WHERE (cardinality($1::int2[]) = 0 OR l.status = ANY($1)) AND ($2::text IS NULL OR l.loop_name = $2)
           AND l.bucket <= $3 AND ($4::text IS NULL OR l.loop_id < $4)
         ORDER BY l.loop_id DESC LIMIT $5"
    );
    const LIST_OF: &str = concat!(
        "SELECT ",
        run_columns!(),
        " FROM loops l
         WHERE (cardinality($1::int2[]) = 0 OR l.status = ANY($1)) AND ($2::text IS NULL OR l.loop_name = $2)
           AND l.bucket <= $3 AND ($4::text IS NULL OR l.loop_id < $4) AND l.namespace = $6
         ORDER BY l.loop_id DESC LIMIT $5"
    );
    let statuses: Vec<i16> = filter.statuses.iter().map(|status| status.code()).collect();
    let query = sqlx::query(if filter.namespace.is_some() { LIST_OF } else { LIST })
        .bind(statuses)
        .bind(filter.name.as_ref().map(|name| name.as_str()))
        .bind(filter.before.as_ref().map_or(i32::MAX, RunId::bucket))
        .bind(filter.before.as_ref().map(|run| run.as_str()))
        .bind(i64::from(limit));
    let query = match &filter.namespace {
        Some(namespace) => query.bind(namespace.as_str()),
        None => query,
    };
    let mut connection = pool.acquire().await?;
    let found = query.fetch_all(&mut *connection).await?;
    let mut all = Vec::with_capacity(found.len());
    for row in &found {
        all.push(read_run(&mut connection, row).await?);
    }
    Ok(all)
}

/// Progress after a version.
pub(super) async fn events_after(pool: &PgPool, run: &RunId, version: i64, limit: u32) -> StoreResult<Vec<EventRow>> {
    const EVENTS: &str = "
        SELECT version, created_ms, progress FROM checkpoints
         WHERE bucket = $1 AND loop_id = $2 AND version > $3 AND progress IS NOT NULL ORDER BY version LIMIT $4";
    let query = sqlx::query(EVENTS).bind(run.bucket()).bind(run.as_str()).bind(version).bind(i64::from(limit));
    let found = query.fetch_all(pool).await?;
    let rows = found.iter().map(|row| {
        Ok(EventRow {
            version: row.try_get("version")?,
            at_ms: row.try_get("created_ms")?,
            progress: shared::json(row.try_get("progress")?),
        })
    });
    rows.collect()
}
