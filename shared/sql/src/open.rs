//! Opens a database with settings that keep a stuck client or a lost one from holding up the others.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::{Duration, Instant};

use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

use crate::failure::{DbFailure, classify, redacted};

/// How long the pool keeps a connection at most, so that a moved server is noticed and memory is given back.
const MAX_LIFETIME: Duration = Duration::from_secs(30 * 60);

/// How a database is opened. The defaults suit a service; a test makes the times shorter.
#[derive(Debug, Clone)]
pub struct SqlOptions {
    /// Shown by Postgres in `pg_stat_activity`.
    pub application_name: String,
    /// Most connections to Postgres.
    pub max_connections: u32,
    /// Connections to Postgres that are kept open.
    pub min_connections: u32,
    /// How long to wait for a free connection, or for the first one.
    pub acquire_timeout: Duration,
    /// Postgres: longest statement.
    pub statement_timeout: Duration,
    /// Postgres: longest wait for a lock.
    pub lock_timeout: Duration,
    /// Postgres: how long a transaction may do nothing before the server ends it.
    pub idle_in_transaction_timeout: Duration,
    /// Postgres: the schema to work in, made by [`crate::migrate`]; none: what the address or the role says.
    pub schema: Option<String>,
    /// Postgres behind a pooler that gives a connection per transaction: no prepared statements, no settings at start
    /// (give the role or the database the three timeouts then).
    pub transaction_pooler: bool,
    /// SQLite: connections that only read, next to the one that writes.
    pub readers: u32,
    /// SQLite: how long to wait for another process that writes.
    pub busy_timeout: Duration,
}

impl Default for SqlOptions {
    fn default() -> Self {
        Self {
            application_name: "ditto".into(),
            max_connections: 16,
            min_connections: 1,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
            idle_in_transaction_timeout: Duration::from_secs(10),
            schema: None,
            transaction_pooler: false,
            readers: 4,
            busy_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a database could not be opened. Holds neither the address nor credentials.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// The address or an option cannot be right.
    #[error("expected {expected}")]
    Address {
        /// What was expected.
        expected: &'static str,
    },
    /// The folder of a SQLite file cannot be made.
    #[error("failed to create the folder {folder}: {kind}")]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        kind: std::io::ErrorKind,
    },
    /// The database cannot be reached or refuses.
    #[error("failed to connect: {}", redacted(.source))]
    Connect {
        /// The cause; show it through [`redacted`].
        source: sqlx::Error,
    },
}

impl OpenError {
    /// Whether trying again later may help.
    pub fn repeat(&self) -> bool {
        matches!(self, Self::Connect { source } if classify(source).repeat())
    }
}

impl fmt::Debug for OpenError {
    // The derived form would print an sqlx error in full, with what was wrong in the address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenError({self})")
    }
}

/// An open database. Clones share its connections.
#[derive(Debug, Clone)]
pub enum Db {
    /// PostgreSQL.
    Postgres(PgPool),
    /// SQLite, in a file or in memory.
    Sqlite(SqliteDb),
}

/// SQLite as one connection that writes and some that read.
///
/// One writer, because SQLite has only one anyway, and queueing for it here is fair and cheap. Begin its transactions
/// by `writer().begin_with("BEGIN IMMEDIATE")`: a transaction that starts by reading may otherwise fail at its first
/// write, where waiting is of no use.
#[derive(Debug, Clone)]
pub struct SqliteDb {
    writer: SqlitePool,
    readers: SqlitePool,
}

impl SqliteDb {
    /// The pool with the one connection that writes.
    pub const fn writer(&self) -> &SqlitePool {
        &self.writer
    }

    /// The pool of connections that only read; they see what was committed before a statement began. In memory it is
    /// the writer: do not wait for a reader while holding it.
    pub const fn readers(&self) -> &SqlitePool {
        &self.readers
    }
}

impl Db {
    /// Which database it is, as in `postgres`, fit for a log or a metric label.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// It does not, or there was no free connection in time.
    pub async fn ping(&self) -> sqlx::Result<()> {
        match self {
            Self::Postgres(pool) => sqlx::raw_sql("SELECT 1").execute(pool).await.map(drop),
            Self::Sqlite(db) => sqlx::raw_sql("SELECT 1").execute(&db.readers).await.map(drop),
        }
    }

    /// Waits for connections in use to come back and closes them all.
    pub async fn close(&self) {
        match self {
            Self::Postgres(pool) => pool.close().await,
            Self::Sqlite(db) => {
                db.readers.close().await;
                db.writer.close().await;
            }
        }
    }
}

/// Opens `postgres://…`, `postgresql://…`, `sqlite:path`, `sqlite://path` or `sqlite::memory:`.
///
/// For Postgres every connection gets its three timeouts, name, keepalive and schema when it starts, and is checked
/// when it comes back to the pool: one that is still inside a transaction, left there by a cancelled `begin()`, is
/// closed, because writes on it would report success and never be committed. A SQLite file and its folder are created
/// if missing.
///
/// # Errors
/// See [`OpenError`]. Nothing is retried, except that a SQLite file which another process is just creating is waited
/// for.
pub async fn open(url: &str, options: &SqlOptions) -> Result<Db, OpenError> {
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        open_postgres(url, options).await.map(Db::Postgres)
    } else if let Some(rest) = url.strip_prefix("sqlite:") {
        open_sqlite(url, rest, options).await.map(Db::Sqlite)
    } else {
        Err(OpenError::Address { expected: "an address that begins with `postgres://` or `sqlite:`" })
    }
}

async fn open_postgres(url: &str, options: &SqlOptions) -> Result<PgPool, OpenError> {
    let mut connect = PgConnectOptions::from_str(url)
        .map_err(|_| OpenError::Address { expected: "a Postgres address such as `postgres://user@host:5432/name`" })?
        .application_name(&options.application_name);
    if let Some(schema) = &options.schema
        && !is_plain_name(schema)
    {
        return Err(OpenError::Address { expected: "a schema name of lower case letters, digits and underscores" });
    }
    if options.transaction_pooler {
        // A prepared statement belongs to a connection, and the next transaction may get another one.
        connect = connect.statement_cache_capacity(0);
    } else {
        let ms = |duration: Duration| duration.as_millis().to_string();
        connect = connect.options([
            ("statement_timeout", ms(options.statement_timeout)),
            ("lock_timeout", ms(options.lock_timeout)),
            ("idle_in_transaction_session_timeout", ms(options.idle_in_transaction_timeout)),
            // The client library has no keepalive of its own; with these the server notices a client that is gone
            // and gives its locks back.
            ("tcp_keepalives_idle", "30".to_owned()),
            ("tcp_keepalives_interval", "10".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
        ]);
    }
    if let Some(schema) = &options.schema {
        connect = connect.options([("search_path", schema)]);
    }
    PgPoolOptions::new()
        .max_connections(options.max_connections.max(1))
        .min_connections(options.min_connections.min(options.max_connections))
        .acquire_timeout(options.acquire_timeout)
        .max_lifetime(MAX_LIFETIME)
        // Each connection is asked when it comes back, so asking again on the way out would only cost a round trip.
        .test_before_acquire(false)
        .after_release(|connection, _| {
            Box::pin(async move {
                // Outside a transaction the two are the same moment. Unprepared, so that it works on a connection
                // whose prepared statements are in disorder. An error closes the connection as well.
                let row = sqlx::raw_sql("SELECT now() <> statement_timestamp()").fetch_one(connection).await?;
                let inside: bool = row.try_get(0)?;
                Ok(!inside)
            })
        })
        .connect_with(connect)
        .await
        .map_err(|source| OpenError::Connect { source })
}

async fn open_sqlite(url: &str, rest: &str, options: &SqlOptions) -> Result<SqliteDb, OpenError> {
    let expected = "a SQLite address such as `sqlite:folder/file.db` or `sqlite::memory:`";
    let path = rest.trim_start_matches("//");
    let memory = path == ":memory:" || path.split_once('?').is_some_and(|(_, query)| query.contains("mode=memory"));
    if path.is_empty() || path.starts_with('?') {
        return Err(OpenError::Address { expected });
    }
    let base = SqliteConnectOptions::from_str(url)
        .map_err(|_| OpenError::Address { expected })?
        .create_if_missing(true)
        .foreign_keys(true)
        .busy_timeout(options.busy_timeout)
        .synchronous(SqliteSynchronous::Full);
    let pool = |connections: u32| {
        SqlitePoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(options.acquire_timeout)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
    };
    if memory {
        // One connection for everything: a database in memory lives and dies with it, and sharing its cache between
        // connections brings table locks that do not wait.
        let only = pool(1).min_connections(1).connect_with(base.shared_cache(false));
        let only = only.await.map_err(|source| OpenError::Connect { source })?;
        return Ok(SqliteDb { writer: only.clone(), readers: only });
    }
    create_folder(base.get_filename())?;
    let base = base.journal_mode(SqliteJournalMode::Wal);
    let deadline = Instant::now() + options.busy_timeout;
    let writer = loop {
        match pool(1).min_connections(1).connect_with(base.clone()).await {
            Ok(writer) => break writer,
            // Turning the journal on needs the file alone and does not wait for it.
            Err(source) if classify(&source) == DbFailure::Conflict && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(source) => return Err(OpenError::Connect { source }),
        }
    };
    let readers = pool(options.readers.max(1)).connect_with(base.pragma("query_only", "ON"));
    let readers = readers.await.map_err(|source| OpenError::Connect { source })?;
    Ok(SqliteDb { writer, readers })
}

fn create_folder(file: &Path) -> Result<(), OpenError> {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::create_dir_all(folder)
            .map_err(|error| OpenError::Folder { folder: folder.to_path_buf(), kind: error.kind() }),
        _ => Ok(()),
    }
}

/// Whether a name needs no quotes in SQL and fits Postgres.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}
