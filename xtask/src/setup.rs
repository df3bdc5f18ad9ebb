//! `cargo xtask setup`: finds or installs what the tests start: PostgreSQL, Redis, NATS, and a foreign NATS client.

mod apt;
mod lookup;
mod python;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::Workspace;
use crate::step;

/// A server that the distribution packages.
struct Packaged {
    title: &'static str,
    executables: &'static [&'static str],
    package: &'static str,
    /// Names a running server that tests may use instead, unless they have to kill it.
    url: &'static str,
}

const PACKAGED: [Packaged; 2] = [
    Packaged {
        title: "PostgreSQL",
        executables: &["postgres", "initdb"],
        package: "postgresql",
        url: "DITTO_TEST_POSTGRES_URL",
    },
    Packaged { title: "Redis", executables: &["redis-server"], package: "redis-server", url: "DITTO_TEST_REDIS_URL" },
];

/// Where the tests find their servers.
#[derive(Debug)]
pub(crate) struct Servers {
    dir: PathBuf,
}

impl Servers {
    /// The environment in which tests find them: `DITTO_TEST_BIN_DIR`, and `DITTO_TEST_PYTHONPATH` with the NATS client
    /// for Python.
    pub(crate) fn environment(&self) -> BTreeMap<&'static str, OsString> {
        BTreeMap::from([
            ("DITTO_TEST_BIN_DIR", self.dir.clone().into_os_string()),
            ("DITTO_TEST_PYTHONPATH", self.dir.join("python").into_os_string()),
        ])
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "setup takes no arguments");
    ensure(&Workspace::find()?).map(drop)
}

/// Finds every server, installing those that are missing. Needs no network when all are there.
///
/// # Errors
/// When something is missing and cannot be installed here, with what to do about it.
pub(crate) fn ensure(workspace: &Workspace) -> Result<Servers> {
    let dir = workspace.target.join("test-servers");
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    packaged()?;
    python::nats_server(&dir)?;
    python::nats_client(&dir)?;
    Ok(Servers { dir })
}

fn packaged() -> Result<()> {
    let missing: Vec<&Packaged> = PACKAGED.iter().filter(|server| !is_there(server)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if apt::is_usable() {
        apt::install(&missing.iter().map(|server| server.package).collect::<Vec<_>>())?;
        return match missing.iter().find(|server| !is_there(server)) {
            Some(server) => bail!("the package {} is installed, yet {} is not found", server.package, server.title),
            None => Ok(()),
        };
    }
    for server in &missing {
        let Packaged { title, url, .. } = server;
        ensure!(
            std::env::var_os(url).is_some_and(|url| !url.is_empty()),
            "{title} is missing, and packages can be installed only by root with apt-get. Install it so that {} can be \
             found on PATH, or name a running server in {url}",
            server.executables.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" and "),
        );
        step(format!("{title}: not installed, using {url}; tests that have to kill a {title} of their own will fail"));
    }
    Ok(())
}

fn is_there(server: &Packaged) -> bool {
    let found: Option<Vec<PathBuf>> = server.executables.iter().map(|name| lookup::find(name)).collect();
    match found.as_deref() {
        Some([first, ..]) => {
            step(format!("{}: {}", server.title, first.display()));
            true
        }
        _ => false,
    }
}
