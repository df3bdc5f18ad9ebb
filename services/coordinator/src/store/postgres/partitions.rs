//! Days as partitions: created ahead, dropped as a whole.

use sqlx::{AssertSqlSafe, PgPool};
use tracing::warn;

use super::{super::StoreResult, begin};

/// The partitioned tables; runs last, so that a day is there as long as anything of it is.
pub(super) const TABLES: [&str; 7] =
    ["signals", "payload_chunks", "payloads", "attempts", "receipts", "checkpoints", "loops"];

/// One day lasts so many milliseconds.
pub(super) const DAY_MS: i64 = 86_400_000;

/// Held while partitions are created or dropped, by whichever process does it.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('ditto_partitions ' || current_schema(), 0))";

/// Days that exist for all tables.
pub(super) async fn days(pool: &PgPool) -> StoreResult<Vec<i32>> {
    const DAYS: &str = "
        SELECT substring(c.relname FROM '_d([0-9]+)$')::int AS day
          FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'loops'::regclass AND c.relname ~ '_d[0-9]+$' ORDER BY 1";
    Ok(sqlx::query_scalar(DAYS).fetch_all(pool).await?)
}

/// Creates yesterday to the day after tomorrow where they are missing; returns how many were made.
///
/// A day that began before its partition was made lives in the default partition and stays there.
pub(super) async fn create_ahead(pool: &PgPool) -> StoreResult<usize> {
    const MISSING: &str = "
        SELECT d.day FROM generate_series((now_ms() / 86400000)::int - 1, (now_ms() / 86400000)::int + 2) AS d(day)
         WHERE to_regclass('loops_d' || d.day) IS NULL OR to_regclass('signals_d' || d.day) IS NULL ORDER BY 1";
    let missing: Vec<i32> = sqlx::query_scalar(MISSING).fetch_all(pool).await?;
    let mut made = 0;
    for day in missing {
        match create(pool, day).await {
            Ok(true) => made += 1,
            Ok(false) => {}
            // Rows go to the default partition meanwhile; the next pass tries again.
            Err(error) if error.is_transient() => warn!(day, %error, "ledger partitions were not created"),
            Err(error) => return Err(error),
        }
    }
    Ok(made)
}

/// Creates one day in all tables or in none. `false`: it is there, or its rows are in a default partition.
///
/// Attached, not created in place: that leaves readers and writers of other days alone.
pub(super) async fn create(pool: &PgPool, day: i32) -> StoreResult<bool> {
    let mut tx = begin(pool).await?;
    sqlx::query(LOCK).execute(&mut *tx).await?;
    for table in TABLES {
        let rows = format!("SELECT EXISTS (SELECT 1 FROM {table}_default WHERE bucket = $1)");
        let taken: bool = sqlx::query_scalar(AssertSqlSafe(rows)).bind(day).fetch_one(&mut *tx).await?;
        if taken {
            return Ok(false);
        }
    }
    let mut made = false;
    for table in TABLES {
        let name = format!("{table}_d{day}");
        let known: bool =
            sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(&name).fetch_one(&mut *tx).await?;
        if known {
            continue;
        }
        let options: String =
            sqlx::query_scalar("SELECT ledger_partition_options($1)").bind(table).fetch_one(&mut *tx).await?;
        // Table names and a number: nothing here comes from outside.
        let sql = format!(
            "CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS) {options};
             ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({day}) TO ({})",
            i64::from(day) + 1
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
        made = true;
    }
    tx.commit().await?;
    Ok(made)
}

/// Drops one day, table by table, so that no more than one table is locked at a time. A part that fails leaves the rest
/// for the next pass: the runs go last.
pub(super) async fn drop_day(pool: &PgPool, day: i32) -> StoreResult<()> {
    for table in TABLES {
        let mut tx = begin(pool).await?;
        sqlx::query(LOCK).execute(&mut *tx).await?;
        let sql = format!("DROP TABLE IF EXISTS {table}_d{day}");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// Days that have rows in the default partition of runs, oldest first.
pub(super) async fn default_days(pool: &PgPool) -> StoreResult<Vec<i32>> {
    const DAYS: &str = "SELECT DISTINCT bucket FROM loops_default ORDER BY bucket";
    Ok(sqlx::query_scalar(DAYS).fetch_all(pool).await?)
}

/// Deletes a day from the default partitions, a page of each table per call; `true`: there is more.
pub(super) async fn clear_default(pool: &PgPool, day: i32) -> StoreResult<bool> {
    const PAGE: u64 = 2_000;
    for table in TABLES {
        let sql = format!(
            "DELETE FROM {table}_default WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table}_default WHERE bucket = $1 LIMIT {PAGE}))"
        );
        let done = sqlx::query(AssertSqlSafe(sql)).bind(day).execute(pool).await?;
        if done.rows_affected() >= PAGE {
            return Ok(true);
        }
    }
    Ok(false)
}
