//! `cargo xtask ci`: what has to hold before a change is merged, in one command.

use anyhow::{Result, ensure};

use crate::cargo::{Workspace, output};
use crate::{lint, step, test};

/// The quick start of README.md, letter for letter, after `cargo`.
const QUICK_START: [&str; 7] = [
    "run",
    "--release",
    "--",
    "run",
    "examples/read-and-deliver.yaml",
    "--input",
    r#"{"paths":["README.md","Cargo.toml"]}"#,
];
/// What the quick start prints.
const DELIVERED: &str = r#"{"delivered":2}"#;

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    ensure!(arguments.is_empty(), "ci takes no arguments");
    lint::run(&[])?;
    test::run(&[])?;
    let workspace = Workspace::find()?;
    step("the quick start of README.md");
    let printed = output(&mut workspace.cargo(&QUICK_START))?;
    ensure!(printed.trim_end() == DELIVERED, "the quick start printed {printed:?} instead of {DELIVERED}");
    step("all of it passed");
    Ok(())
}
