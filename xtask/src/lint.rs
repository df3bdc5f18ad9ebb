//! `cargo xtask lint`: formatting, clippy and documentation of every crate, each warning an error.

use anyhow::{Result, ensure};

use crate::cargo::{Workspace, run as run_command};
use crate::step;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "lint takes no arguments");
    let workspace = Workspace::find()?;
    step("formatting (repair with `cargo fmt --all`)");
    run_command(&mut workspace.cargo(&["fmt", "--all", "--check"]))?;
    step("clippy, every crate and target");
    run_command(&mut workspace.cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    step("documentation");
    run_command(workspace.cargo(&["doc", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-D warnings"))
}
