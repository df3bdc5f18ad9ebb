//! Brings a schema up to date: numbered steps, forward only, safe when several processes start at once.
//!
//! Every step is one transaction that takes the lock, looks at what was applied, applies the next step and records it.
//! A process that dies in between leaves nothing half done, and one that finds the lock taken waits its turn. The lock
//! belongs to the transaction, so this works through a transaction pooler too.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::SqliteConnection;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};
use tracing::info;

use crate::failure::{DbFailure, classify, redacted};
use crate::open::{Db, SqliteDb, is_plain_name};

/// How long [`migrate`] waits for another process that migrates.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Longest single statement of a migration, in place of the pool's timeout.
const STATEMENT_TIMEOUT: &str = "SET LOCAL statement_timeout = '10min'; SET LOCAL lock_timeout = '10s'";

/// Pause between two tries to get the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// One table for all owners in a database; the same text for both.
const CREATE_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS ditto_migrations (
        owner TEXT NOT NULL,
        version BIGINT NOT NULL,
        name TEXT NOT NULL,
        checksum TEXT NOT NULL,
        applied_ms BIGINT NOT NULL,
        PRIMARY KEY (owner, version)
    )";
const APPLIED: &str = "SELECT version, name, checksum FROM ditto_migrations WHERE owner = $1 ORDER BY version";
const RECORD: &str =
    "INSERT INTO ditto_migrations (owner, version, name, checksum, applied_ms) VALUES ($1, $2, $3, $4, $5)";

/// The lock of an owner in one schema; 64 bits, so two owners practically never share one.
const TRY_LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtextextended('ditto_migrations ' || current_setting('search_path') || ' ' || $1, 0))";

/// One step of a schema, with its text embedded by the crate that owns the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Counts from 1 without gaps.
    pub version: i64,
    /// What it does, as in the file name; the same for both databases.
    pub name: &'static str,
    /// The statements. Not `BEGIN` or `COMMIT`, and nothing that cannot be in a transaction.
    pub sql: &'static str,
}

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// Version of the schema now; 0: it has no steps.
    pub version: i64,
    /// Versions that this process applied; empty when nothing was to do or another process did it.
    pub applied: Vec<i64>,
}

/// Why a schema could not be brought up to date. Steps before the one that failed stay applied.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The lists of steps are wrong: a defect of the owner.
    #[error("the migrations of {owner} are wrong: {reason}")]
    Malformed {
        /// Owner of the tables.
        owner: String,
        /// What is wrong.
        reason: String,
    },
    /// The schema was made by a newer build. Start that one, or restore a backup; there is no way back.
    #[error("the schema of {owner} is at version {found}, and this build knows {known}: a newer build made it")]
    Newer {
        /// Owner of the tables.
        owner: String,
        /// Version in the database.
        found: i64,
        /// Last version of this build.
        known: i64,
    },
    /// A step was changed after it had been applied.
    #[error("migration {version} ({name}) of {owner} was applied with another text")]
    Changed {
        /// Owner of the tables.
        owner: String,
        /// The step.
        version: i64,
        /// Its name.
        name: String,
    },
    /// Another process holds the lock for too long.
    #[error("another process has been migrating {owner} for more than {waited_ms} ms")]
    Locked {
        /// Owner of the tables.
        owner: String,
        /// How long this process waited.
        waited_ms: u128,
    },
    /// A step failed and was undone.
    #[error("migration {version} ({name}) of {owner} failed: {}", redacted(.source))]
    Failed {
        /// Owner of the tables.
        owner: String,
        /// The step.
        version: i64,
        /// Its name.
        name: String,
        /// The cause.
        source: sqlx::Error,
    },
    /// The database could not be asked.
    #[error("failed to {operation}: {}", redacted(.source))]
    Database {
        /// What was attempted.
        operation: &'static str,
        /// The cause.
        source: sqlx::Error,
    },
}

impl MigrateError {
    /// Whether starting again later may help without any other change.
    pub fn repeat(&self) -> bool {
        match self {
            Self::Locked { .. } => true,
            Self::Failed { source, .. } | Self::Database { source, .. } => classify(source).repeat(),
            Self::Malformed { .. } | Self::Newer { .. } | Self::Changed { .. } => false,
        }
    }
}

/// Applies what is missing, waiting at most a minute for another process that does the same.
///
/// `owner` names the tables as a whole (`coordinator`, `memory`), so that several owners can share a database. A
/// schema given to [`crate::open`] is created if missing. Running it again does nothing.
///
/// # Errors
/// See [`MigrateError`].
///
/// # Cancel safety
/// Not cancel-safe, like every transaction; run it to its end.
pub async fn migrate(
    db: &Db,
    owner: &str,
    postgres: &[Migration],
    sqlite: &[Migration],
) -> Result<Migrated, MigrateError> {
    migrate_within(db, owner, postgres, sqlite, LOCK_WAIT).await
}

/// [`migrate`] with another limit on the waiting.
///
/// # Errors
/// See [`MigrateError`].
pub async fn migrate_within(
    db: &Db,
    owner: &str,
    postgres: &[Migration],
    sqlite: &[Migration],
    wait: Duration,
) -> Result<Migrated, MigrateError> {
    well_formed(owner, postgres, sqlite)?;
    let job = Job { owner, steps: if matches!(db, Db::Postgres(_)) { postgres } else { sqlite }, wait };
    let mut applied = Vec::new();
    loop {
        let step = match db {
            Db::Postgres(pool) => job.postgres_step(pool).await?,
            Db::Sqlite(db) => job.sqlite_step(db).await?,
        };
        match step {
            Some(step) => {
                info!(owner, version = step.version, name = step.name, "migrated");
                applied.push(step.version);
            }
            None => {
                let version = job.steps.last().map_or(0, |step| step.version);
                return Ok(Migrated { version, applied });
            }
        }
    }
}

/// The lists must be numbered from 1 without gaps and name the same steps.
fn well_formed(owner: &str, postgres: &[Migration], sqlite: &[Migration]) -> Result<(), MigrateError> {
    let wrong = |reason: String| Err(MigrateError::Malformed { owner: owner.to_owned(), reason });
    if owner.is_empty() {
        return wrong("the owner has no name".into());
    }
    for steps in [postgres, sqlite] {
        for (step, version) in steps.iter().zip(1_i64..) {
            if step.version != version {
                return wrong(format!("expected version {version}, found {} ({})", step.version, step.name));
            }
        }
    }
    if postgres.len() != sqlite.len() {
        return wrong(format!("{} steps for Postgres and {} for SQLite", postgres.len(), sqlite.len()));
    }
    match postgres.iter().zip(sqlite).find(|(a, b)| a.name != b.name) {
        Some((a, b)) => wrong(format!("version {} is called {} and {}", a.version, a.name, b.name)),
        None => Ok(()),
    }
}

/// A step that was applied before.
struct Applied {
    version: i64,
    name: String,
    checksum: String,
}

struct Job<'a> {
    owner: &'a str,
    steps: &'a [Migration],
    wait: Duration,
}

impl<'a> Job<'a> {
    /// Applies the next step on Postgres; `None`: there is none.
    async fn postgres_step(&self, pool: &PgPool) -> Result<Option<&'a Migration>, MigrateError> {
        let mut connection = pool.acquire().await.map_err(database("get a connection"))?;
        let start = Instant::now();
        loop {
            let mut transaction = connection.begin().await.map_err(database("begin"))?;
            let locked: bool = sqlx::query_scalar(TRY_LOCK)
                .bind(self.owner)
                .fetch_one(&mut *transaction)
                .await
                .map_err(database("take the migration lock"))?;
            if !locked {
                transaction.rollback().await.map_err(database("roll back"))?;
                self.pause(start).await?;
                continue;
            }
            let connection = &mut *transaction;
            let set = sqlx::raw_sql(STATEMENT_TIMEOUT).execute(&mut *connection).await;
            set.map_err(database("set the timeout of migrations"))?;
            create_schema(connection).await?;
            let made = sqlx::raw_sql(CREATE_TABLE).execute(&mut *connection).await;
            made.map_err(database("create the migration table"))?;
            let rows = sqlx::query(APPLIED).bind(self.owner).fetch_all(&mut *connection).await;
            let rows = rows.map_err(database("read the applied migrations"))?;
            let applied = rows
                .iter()
                .map(|row| Ok(Applied { version: row.try_get(0)?, name: row.try_get(1)?, checksum: row.try_get(2)? }));
            let applied: sqlx::Result<Vec<Applied>> = applied.collect();
            let next = self.next(&applied.map_err(database("read the applied migrations"))?)?;
            if let Some(step) = next {
                let done = sqlx::raw_sql(step.sql).execute(&mut *connection).await;
                done.map_err(|source| self.failed(step, source))?;
                let recorded = sqlx::query(RECORD)
                    .bind(self.owner)
                    .bind(step.version)
                    .bind(step.name)
                    .bind(checksum(step.sql))
                    .bind(now_ms());
                recorded.execute(&mut *connection).await.map_err(|source| self.failed(step, source))?;
            }
            // Without a step there is something to keep as well: the migration table itself.
            transaction.commit().await.map_err(database("commit a migration"))?;
            return Ok(next);
        }
    }

    /// Applies the next step on SQLite; `None`: there is none.
    async fn sqlite_step(&self, db: &SqliteDb) -> Result<Option<&'a Migration>, MigrateError> {
        let mut connection = db.writer().acquire().await.map_err(database("get a connection"))?;
        let start = Instant::now();
        loop {
            // Takes the lock of the whole file at once, or waits as long as the busy timeout.
            let mut transaction = match connection.begin_with("BEGIN IMMEDIATE").await {
                Ok(transaction) => transaction,
                Err(error) if classify(&error) == DbFailure::Conflict => {
                    self.pause(start).await?;
                    continue;
                }
                Err(source) => return Err(MigrateError::Database { operation: "begin", source }),
            };
            let connection: &mut SqliteConnection = &mut transaction;
            let made = sqlx::raw_sql(CREATE_TABLE).execute(&mut *connection).await;
            made.map_err(database("create the migration table"))?;
            let rows = sqlx::query(APPLIED).bind(self.owner).fetch_all(&mut *connection).await;
            let rows = rows.map_err(database("read the applied migrations"))?;
            let applied = rows
                .iter()
                .map(|row| Ok(Applied { version: row.try_get(0)?, name: row.try_get(1)?, checksum: row.try_get(2)? }));
            let applied: sqlx::Result<Vec<Applied>> = applied.collect();
            let next = self.next(&applied.map_err(database("read the applied migrations"))?)?;
            if let Some(step) = next {
                let done = sqlx::raw_sql(step.sql).execute(&mut *connection).await;
                done.map_err(|source| self.failed(step, source))?;
                let recorded = sqlx::query(RECORD)
                    .bind(self.owner)
                    .bind(step.version)
                    .bind(step.name)
                    .bind(checksum(step.sql))
                    .bind(now_ms());
                recorded.execute(&mut *connection).await.map_err(|source| self.failed(step, source))?;
            }
            transaction.commit().await.map_err(database("commit a migration"))?;
            return Ok(next);
        }
    }

    /// Checks what was applied against what this build knows, and picks the next step.
    fn next(&self, applied: &[Applied]) -> Result<Option<&'a Migration>, MigrateError> {
        for (index, old) in applied.iter().enumerate() {
            let Some(step) = self.steps.get(index).filter(|step| step.version == old.version) else {
                return Err(MigrateError::Newer {
                    owner: self.owner.to_owned(),
                    found: applied.last().map_or(0, |last| last.version),
                    known: self.steps.last().map_or(0, |step| step.version),
                });
            };
            if step.name != old.name || checksum(step.sql) != old.checksum {
                return Err(MigrateError::Changed {
                    owner: self.owner.to_owned(),
                    version: old.version,
                    name: old.name.clone(),
                });
            }
        }
        Ok(self.steps.get(applied.len()))
    }

    async fn pause(&self, start: Instant) -> Result<(), MigrateError> {
        if start.elapsed() >= self.wait {
            let waited_ms = start.elapsed().as_millis();
            return Err(MigrateError::Locked { owner: self.owner.to_owned(), waited_ms });
        }
        tokio::time::sleep(LOCK_PAUSE.min(self.wait)).await;
        Ok(())
    }

    fn failed(&self, step: &Migration, source: sqlx::Error) -> MigrateError {
        MigrateError::Failed { owner: self.owner.to_owned(), version: step.version, name: step.name.to_owned(), source }
    }
}

/// Creates the schema that the search path names first, if there is none yet.
async fn create_schema(connection: &mut PgConnection) -> Result<(), MigrateError> {
    let asked = sqlx::raw_sql("SELECT current_schema() IS NULL, current_setting('search_path')");
    let row = asked.fetch_one(&mut *connection).await.map_err(database("read the search path"))?;
    let missing: bool = row.try_get(0).map_err(database("read the search path"))?;
    let path: String = row.try_get(1).map_err(database("read the search path"))?;
    let first = path.split(',').next().unwrap_or_default().trim().trim_matches('"');
    if missing && is_plain_name(first) {
        // A plain name needs no quoting, so nothing can be smuggled in.
        let create = format!("CREATE SCHEMA IF NOT EXISTS {first}");
        let made = sqlx::raw_sql(AssertSqlSafe(create)).execute(connection).await;
        made.map_err(database("create the schema"))?;
    }
    Ok(())
}

fn database(operation: &'static str) -> impl FnOnce(sqlx::Error) -> MigrateError {
    move |source| MigrateError::Database { operation, source }
}

/// Of the text, with line endings as on Unix: a checkout on another system may have changed them.
fn checksum(sql: &str) -> String {
    Sha256::digest(sql.replace("\r\n", "\n")).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// For display only.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn step(version: i64, name: &'static str, sql: &'static str) -> Migration {
        Migration { version, name, sql }
    }

    #[test]
    fn lists_that_do_not_belong_together_are_refused() {
        let one = step(1, "loops", "");
        let two = step(2, "receipts", "");
        let other = step(2, "recepits", "");
        assert!(well_formed("o", &[one, two], &[one, two]).is_ok());
        assert!(well_formed("o", &[], &[]).is_ok());
        for (postgres, sqlite) in [
            (vec![two], vec![two]),
            (vec![one, one], vec![one, one]),
            (vec![one, two], vec![one]),
            (vec![one, two], vec![one, other]),
        ] {
            assert!(matches!(well_formed("o", &postgres, &sqlite), Err(MigrateError::Malformed { .. })));
        }
        assert!(well_formed("", &[], &[]).is_err());
    }

    #[test]
    fn a_checksum_ignores_line_endings_only() {
        assert_eq!(checksum("a\nb"), checksum("a\r\nb"));
        assert_ne!(checksum("a\nb"), checksum("a\nb "));
    }
}
