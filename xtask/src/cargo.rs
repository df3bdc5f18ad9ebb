//! Runs cargo and other commands the way every task needs them: in the workspace, failing with the command's own text.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Where the workspace and what is built from it are.
#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    #[serde(rename = "target_directory")]
    pub(crate) target: PathBuf,
}

impl Workspace {
    /// Asks cargo, so that `CARGO_TARGET_DIR` and configuration files count.
    pub(crate) fn find() -> Result<Self> {
        // Cargo's own directory is inside the workspace, wherever the task was started from.
        let mut command = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str(&output(&mut command)?).context("cargo metadata printed something else than its JSON")
    }

    /// A cargo command in the root of the workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        command.current_dir(&self.root);
        command
    }
}

/// The same cargo that runs this task, without what it told this task about itself: a build script that looks at those
/// variables would run again.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command
}

/// Runs a command with the terminal as its output.
///
/// # Errors
/// When it cannot be started or fails; with the command line.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    ensure!(status.success(), "{} failed ({status})", line(command));
    Ok(())
}

/// Runs a command and returns what it printed on standard output; standard error stays on the terminal.
///
/// # Errors
/// When it cannot be started, fails, or prints no UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", line(command)))?;
    ensure!(output.status.success(), "{} failed ({})", line(command), output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{} printed no UTF-8", line(command)))
}

/// The command as one would type it, near enough to be recognised.
fn line(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_name().map_or_else(|| program.display().to_string(), |name| name.to_string_lossy().into());
    let words = command.get_args().map(|word| word.to_string_lossy());
    let words = std::iter::once(name.into()).chain(words).collect::<Vec<_>>();
    format!("`{}`", words.join(" "))
}
