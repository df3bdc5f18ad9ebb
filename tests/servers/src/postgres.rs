//! A private PostgreSQL: one cluster in a temporary directory, on 127.0.0.1 only, no password.

use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use tokio::sync::OnceCell;

use crate::postgres_wire::{self, Row};
use crate::process::{Owner, Process};
use crate::{binary, port};

/// Names a PostgreSQL that already runs; its user must be allowed to create databases.
const URL: &str = "DITTO_TEST_POSTGRES_URL";
const USER: &str = "postgres";

static SHARED: OnceCell<Shared> = OnceCell::const_new();
/// A directory with an empty cluster that never runs: copying it takes a tenth of the time of making one.
static TEMPLATE: OnceCell<Process> = OnceCell::const_new();
static DATABASES: AtomicU64 = AtomicU64::new(0);

enum Shared {
    Given(String),
    Started(Postgres),
}

/// What may differ from PostgreSQL's defaults. `fsync` is on unless a setting says otherwise.
#[derive(Debug, Clone, Default)]
pub struct PostgresOptions {
    /// Settings as in `postgresql.conf`, name and value; the last of one name wins.
    pub settings: Vec<(String, String)>,
}

impl PostgresOptions {
    /// Adds one setting of `postgresql.conf`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// A running PostgreSQL that belongs to this guard. Dropped: server and data are gone.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    port: u16,
    binary: PathBuf,
    settings: Vec<(String, String)>,
}

/// One database of its own for one test, on the shared server.
#[derive(Debug)]
pub struct TestDatabase {
    url: String,
    /// Set when the server is not ours: then the database has to be dropped, else it goes with its server.
    drop_at: Option<(String, String)>,
}

impl Postgres {
    /// Starts a private server with the defaults of [`PostgresOptions`].
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start.
    pub async fn start() -> Result<Self> {
        Self::start_with(PostgresOptions::default()).await
    }

    /// Starts a private server.
    ///
    /// # Errors
    /// When PostgreSQL is not installed or does not start, with the end of its log.
    pub async fn start_with(options: PostgresOptions) -> Result<Self> {
        let binary = binary::find("postgres", URL)?;
        let binary = binary.canonicalize().with_context(|| format!("cannot follow {}", binary.display()))?;
        let owner = unprivileged_user()?;
        let template = TEMPLATE.get_or_try_init(|| initialised_cluster(&binary, owner)).await?;
        // An immediate shutdown: recovery is pointless for data about to be deleted.
        let process = Process::new("postgres", "QUIT", owner)?;
        let mut copy = process.command(Path::new("cp"));
        copy.args(["-R", "-p"]).arg(template.dir().join("data")).arg("data");
        finished(copy).await?;
        let server = Self { process, port: port::free()?, binary, settings: options.settings };
        server.restart().await?;
        Ok(server)
    }

    /// Where the database `postgres` of this server is. The same before and after a restart.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes an empty database and returns its URL.
    ///
    /// # Errors
    /// When the name is taken or is not made of lower-case letters, digits and `_`.
    pub async fn create_database(&self, name: &str) -> Result<String> {
        ensure!(is_plain_name(name), "`{name}` is no plain database name");
        self.query("postgres", &format!("CREATE DATABASE {name}")).await?;
        Ok(self.url_of(name))
    }

    /// Runs SQL in `database` on a connection of its own; every row as texts, `None` for NULL.
    ///
    /// # Errors
    /// When the server does not answer or refuses, with its message.
    pub async fn query(&self, database: &str, sql: &str) -> Result<Vec<Row>> {
        postgres_wire::query(self.port, USER, database, sql).await
    }

    /// Kills the server and every backend with `SIGKILL`. What was committed with `fsync` on is there after
    /// [`restart`](Self::restart).
    ///
    /// # Errors
    /// When the processes do not go away.
    pub fn kill9(&self) -> Result<()> {
        self.process.kill9()
    }

    /// Stops the server as an administrator would (fast shutdown): transactions are rolled back, clients disconnected.
    ///
    /// # Errors
    /// When it has not stopped after 10 s.
    pub fn stop(&self) -> Result<()> {
        self.process.end("INT")
    }

    /// Starts the server again with the same data on the same port, killing it first if it runs; returns once it
    /// answers queries.
    ///
    /// # Errors
    /// When it does not start, with the end of its log.
    pub async fn restart(&self) -> Result<()> {
        self.process.kill9()?;
        self.process.spawn(&self.binary, &self.arguments())?;
        let probe = || async { self.query("postgres", "SELECT 1").await.map(drop) };
        self.process.ready(probe).await
    }

    /// Stops the server and every backend with `SIGSTOP`: connections stay open and nothing answers.
    ///
    /// # Errors
    /// When the server is not running.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// The server's own directory, with data folder and log; it goes with the guard.
    pub fn dir(&self) -> &Path {
        self.process.dir()
    }

    /// The id of the server process, `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// The server that tests of this process share: the one named by `DITTO_TEST_POSTGRES_URL`, else a private one.
    ///
    /// # Errors
    /// When none is named and none can be started.
    pub async fn shared_url() -> Result<String> {
        Ok(match shared().await? {
            Shared::Given(url) => url.clone(),
            Shared::Started(server) => server.url(),
        })
    }

    /// A new, empty database on the shared server.
    ///
    /// # Errors
    /// When there is no shared server or it refuses; `psql` is needed to speak to a server named by
    /// `DITTO_TEST_POSTGRES_URL`.
    pub async fn fresh_database() -> Result<TestDatabase> {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let count = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("ditto_test_{}_{now_ns}_{count}", std::process::id());
        match shared().await? {
            Shared::Started(server) => Ok(TestDatabase { url: server.create_database(&name).await?, drop_at: None }),
            Shared::Given(url) => {
                let (at, sql) = (url.clone(), format!("CREATE DATABASE {name}"));
                tokio::task::spawn_blocking(move || psql(&at, &sql)).await.context("psql was abandoned")??;
                Ok(TestDatabase { url: with_database(url, &name)?, drop_at: Some((url.clone(), name)) })
            }
        }
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["-D".to_owned(), "data".to_owned(), "-p".to_owned(), self.port.to_string()];
        let defaults = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("fsync", "on"),
            ("max_connections", "200"),
            // In the data directory, so that it goes with it whatever happens to the server.
            ("dynamic_shared_memory_type", "mmap"),
            ("log_min_messages", "warning"),
        ];
        let given = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in defaults.into_iter().chain(given) {
            arguments.push("-c".to_owned());
            arguments.push(format!("{name}={value}"));
        }
        arguments
    }
}

impl TestDatabase {
    /// Where the database is.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if let Some((server, name)) = &self.drop_at {
            let _ = psql(server, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        }
    }
}

/// Makes the template of all clusters of this process.
async fn initialised_cluster(postgres: &Path, owner: Option<Owner>) -> Result<Process> {
    // `initdb` looks for its companions beside itself, so take it from the same installation.
    let initdb = postgres.with_file_name("initdb");
    let initdb = if initdb.is_file() { initdb } else { binary::find("initdb", URL)? };
    let place = Process::new("postgres-template", "KILL", owner)?;
    let mut command = place.command(&initdb);
    command.args(["-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]);
    finished(command).await?;
    Ok(place)
}

/// Runs a helper program to its end.
async fn finished(mut command: Command) -> Result<()> {
    let name = PathBuf::from(command.get_program());
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .context("a helper program was abandoned")?
        .with_context(|| format!("cannot run {}", name.display()))?;
    ensure!(output.status.success(), "{} failed:\n{}", name.display(), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn shared() -> Result<&'static Shared> {
    SHARED
        .get_or_try_init(|| async {
            match env::var(URL) {
                Ok(url) if !url.is_empty() => Ok(Shared::Given(url)),
                _ => Postgres::start().await.map(Shared::Started),
            }
        })
        .await
}

/// PostgreSQL refuses to run as root: then `postgres` runs it, or `nobody` where there is no such user.
fn unprivileged_user() -> Result<Option<Owner>> {
    let probe = tempfile::tempfile().context("cannot make a temporary file")?;
    if probe.metadata().context("cannot look at a temporary file")?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    let owner = |name: &str| {
        let mut fields =
            users.lines().map(|line| line.split(':')).find(|fields| fields.clone().next() == Some(name))?;
        Some(Owner { uid: fields.nth(2)?.parse().ok()?, gid: fields.next()?.parse().ok()? })
    };
    let owner = owner("postgres").or_else(|| owner("nobody"));
    Ok(Some(owner.context("PostgreSQL does not run as root, and there is no user `postgres` or `nobody` to run it")?))
}

fn is_plain_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// A named server may ask for any kind of password: `psql` knows them all.
fn psql(url: &str, sql: &str) -> Result<()> {
    let program = binary::find("psql", "PATH")?;
    let output = Command::new(program)
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, "-d", url])
        .stdin(Stdio::null())
        .output()
        .context("cannot run psql")?;
    ensure!(output.status.success(), "{URL}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// The same URL for another database: the path is replaced, parameters stay.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (scheme, rest) =
        url.split_once("://").with_context(|| format!("{URL} is not of the form postgres://host/db"))?;
    let (place, parameters) = rest.split_once('?').map_or((rest, None), |(place, list)| (place, Some(list)));
    let host = place.split_once('/').map_or(place, |(host, _)| host);
    let parameters = parameters.map(|list| format!("?{list}")).unwrap_or_default();
    Ok(format!("{scheme}://{host}/{name}{parameters}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        let table = [
            ("postgres://u:p@h:5432/old?sslmode=disable", "postgres://u:p@h:5432/new?sslmode=disable"),
            ("postgres://h", "postgres://h/new"),
            ("postgresql://h/", "postgresql://h/new"),
        ];
        for (url, becomes) in table {
            assert_eq!(with_database(url, "new").unwrap(), becomes);
        }
        assert!(with_database("host=h", "new").is_err());
    }

    #[test]
    fn only_plain_names_become_databases() {
        assert!(is_plain_name("ditto_test_1"));
        for name in ["", "1a", "A", "a b", "a;drop", &"a".repeat(64)] {
            assert!(!is_plain_name(name), "{name}");
        }
    }
}
