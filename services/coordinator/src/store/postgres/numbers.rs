//! Numbers for metrics, and what people want to know about the database.

use ditto_contracts::{ReceiptState, RunStatus};
use sqlx::{PgPool, Row as _};

use super::super::{LedgerCounts, StoreResult, rows::code};

fn count(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Numbers, read one after the other from the sets of what is open.
pub(super) async fn counts(pool: &PgPool) -> StoreResult<LedgerCounts> {
    const RUNS: &str = "SELECT status, count(*) FROM loops WHERE status < 5 GROUP BY status ORDER BY status";
    const OPEN: &str = "SELECT state, count(*) FROM receipts WHERE settled_ms IS NULL GROUP BY state ORDER BY state";
    const UNKNOWN: &str =
        "SELECT count(*) FROM receipts WHERE unknown_ms IS NOT NULL AND state = 5 AND settled_ms IS NOT NULL";
    const BACKLOG: &str = "
        SELECT r.node || coalesce('.' || r.pool, '') AS queue, count(*), min(r.created_ms), now_ms()
          FROM receipts r WHERE r.settled_ms IS NULL AND r.state = 1 GROUP BY 1 ORDER BY 1";
    let mut connection = pool.acquire().await?;
    let mut counts = LedgerCounts::default();
    for row in sqlx::query(RUNS).fetch_all(&mut *connection).await? {
        let status = code(RunStatus::from_code(row.try_get(0)?), "run status")?;
        counts.runs.push((status, count(row.try_get(1)?)));
    }
    for row in sqlx::query(OPEN).fetch_all(&mut *connection).await? {
        let state = code(ReceiptState::from_code(row.try_get(0)?), "receipt state")?;
        counts.open_receipts.push((state, count(row.try_get(1)?)));
    }
    counts.unknown_receipts = count(sqlx::query_scalar(UNKNOWN).fetch_one(&mut *connection).await?);
    for row in sqlx::query(BACKLOG).fetch_all(&mut *connection).await? {
        let oldest: i64 = row.try_get(2)?;
        let now: i64 = row.try_get(3)?;
        counts.backlog.push((row.try_get(0)?, count(row.try_get(1)?), count(now - oldest)));
    }
    Ok(counts)
}

/// Product, version and durability.
pub(super) async fn describe(pool: &PgPool) -> StoreResult<Vec<(String, String)>> {
    const SETTINGS: [&str; 8] = [
        "server_version",
        "fsync",
        "full_page_writes",
        "synchronous_commit",
        "synchronous_standby_names",
        "data_checksums",
        "wal_level",
        "server_encoding",
    ];
    let mut all = vec![("product".to_owned(), "PostgreSQL".to_owned())];
    for name in SETTINGS {
        let value: Option<String> =
            sqlx::query_scalar("SELECT current_setting($1, true)").bind(name).fetch_one(pool).await?;
        all.push((name.to_owned(), value.unwrap_or_default()));
    }
    Ok(all)
}
