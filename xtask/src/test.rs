//! `cargo xtask test`: every test of the workspace against real servers, and proof that nothing stays behind.

use std::path::PathBuf;
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::cargo::{Workspace, output, run as run_command};
use crate::test_run::TestRun;
use crate::{setup, step};

/// Most tests wait for servers and processes, and each starts several: more threads than this only adds time-outs.
const MAX_TEST_THREADS: usize = 4;

/// The command line of `cargo test`, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    filter: Option<String>,
    cargo: Vec<String>,
    harness: Vec<String>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let arguments = Arguments::parse(arguments)?;
    let workspace = Workspace::find()?;
    let servers = setup::ensure(&workspace)?;
    step("building the `ditto` binary");
    let binary = build_binary(&workspace)?;
    let threads = thread::available_parallelism().map_or(2, usize::from).clamp(2, MAX_TEST_THREADS);
    let run = TestRun::begin()?;
    let line = arguments.command_line();
    step(format!("cargo {}", line.join(" ")));
    let mut command = workspace.cargo(&line.iter().map(String::as_str).collect::<Vec<_>>());
    command.envs(servers.environment()).env("DITTO_BIN", &binary).env("TMPDIR", run.dir()).stdin(Stdio::null());
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        command.env("RUST_TEST_THREADS", threads.to_string());
    }
    let tests = run_command(&mut command);
    step("looking for anything left behind");
    let end = run.end();
    tests?;
    end?;
    step("all tests passed and nothing is left running");
    Ok(())
}

impl Arguments {
    fn parse(arguments: &[String]) -> Result<Self> {
        let mut parsed = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--" {
                parsed.harness.extend(rest.cloned());
                break;
            } else if argument == "--filter" {
                parsed.set_filter(rest.next().context("--filter needs the name of a test, or a part of it")?)?;
            } else if let Some(filter) = argument.strip_prefix("--filter=") {
                parsed.set_filter(filter)?;
            } else {
                parsed.cargo.push(argument.clone());
            }
        }
        Ok(parsed)
    }

    fn set_filter(&mut self, filter: &str) -> Result<()> {
        ensure!(self.filter.is_none(), "--filter is given twice");
        self.filter = Some(filter.to_owned());
        Ok(())
    }

    fn command_line(&self) -> Vec<String> {
        let names_packages = |argument: &String| argument.starts_with("-p") || argument.starts_with("--package");
        let mut line = vec!["test".to_owned()];
        if !self.cargo.iter().any(names_packages) {
            line.push("--workspace".to_owned());
        }
        if !self.cargo.iter().any(|argument| argument == "--no-fail-fast") {
            line.push("--no-fail-fast".to_owned());
        }
        line.extend(self.cargo.iter().cloned());
        line.extend(self.filter.iter().cloned());
        if !self.harness.is_empty() {
            line.push("--".to_owned());
            line.extend(self.harness.iter().cloned());
        }
        line
    }
}

/// What cargo says about one thing it built, as far as it matters here.
#[derive(Deserialize)]
struct Built {
    executable: Option<PathBuf>,
    target: Option<BuiltTarget>,
}

#[derive(Deserialize)]
struct BuiltTarget {
    name: String,
}

fn build_binary(workspace: &Workspace) -> Result<PathBuf> {
    // Of the whole workspace, so that dependencies have the features the tests will build them with.
    let format = "--message-format=json-render-diagnostics";
    let messages = output(&mut workspace.cargo(&["build", "--workspace", "--bin", "ditto", format]))?;
    for message in messages.lines() {
        let Ok(Built { executable: Some(path), target: Some(target) }) = serde_json::from_str(message) else {
            continue;
        };
        if target.name == "ditto" {
            return Ok(path);
        }
    }
    bail!("cargo built no executable `ditto`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_cargo_and_the_test_harness() {
        let table: [(&[&str], &str); 6] = [
            (&[], "test --workspace --no-fail-fast"),
            (&["--filter", "kill"], "test --workspace --no-fail-fast kill"),
            (&["--filter=kill", "-p", "ditto-bus"], "test --no-fail-fast -p ditto-bus kill"),
            (&["--package=ditto-bus"], "test --no-fail-fast --package=ditto-bus"),
            (&["--test", "it", "--", "--nocapture"], "test --workspace --no-fail-fast --test it -- --nocapture"),
            (&["--", "--filter", "x"], "test --workspace --no-fail-fast -- --filter x"),
        ];
        for (given, becomes) in table {
            let given: Vec<String> = given.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(Arguments::parse(&given).unwrap().command_line().join(" "), becomes);
        }
    }

    #[test]
    fn a_filter_without_a_name_is_an_error() {
        assert!(Arguments::parse(&["--filter".to_owned()]).is_err());
        assert!(Arguments::parse(&["--filter=a".to_owned(), "--filter=b".to_owned()]).is_err());
    }
}
