//! The project's own tasks, started as `cargo xtask <task>`: a table of tasks, one file each.

mod cargo;
mod ci;
mod lint;
mod setup;
mod test;
mod test_run;

use std::process::ExitCode;

use anyhow::Result;

struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<()>,
}

#[rustfmt::skip]
const TASKS: &[Task] = &[
    Task { name: "setup", about: "find or install the servers that tests start", run: setup::run },
    Task { name: "test", about: "setup, then all tests: [--filter NAME] [arguments of cargo test]", run: test::run },
    Task { name: "lint", about: "formatting, clippy and documentation, warnings are errors", run: lint::run },
    Task { name: "ci", about: "lint, test, and the quick start of README.md", run: ci::run },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = arguments.split_first() else {
        eprint!("{}", usage());
        return ExitCode::from(2);
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprint!("xtask: there is no task `{name}`\n\n{}", usage());
        return ExitCode::from(2);
    };
    match (task.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let rows = TASKS.iter().map(|task| format!("  {:<8}{}\n", task.name, task.about));
    format!("usage: cargo xtask <task> [arguments]\n\n{}", rows.collect::<String>())
}

/// Tells the user what comes next, one line a step.
fn step(what: impl std::fmt::Display) {
    eprintln!("xtask: {what}");
}
