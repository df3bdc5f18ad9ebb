//! The processes of a measurement: started, killed, started again.

use std::{
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
};

use ditto_runtime::telemetry::{self, LogConfig, TelemetryConfig, TelemetryGuard};
use tokio::process::{Child, Command};

use crate::exit::{Failure, chain};

/// Logs of a part: warnings only.
pub(super) fn log(service: &'static str) -> Result<TelemetryGuard, Failure> {
    let log = LogConfig { filter: Some("warn".into()), ..LogConfig::default() };
    let config = TelemetryConfig { log, ..TelemetryConfig::default() };
    telemetry::init(&config, service).map_err(|error| Failure::usage(chain(&error)))
}

/// How a part is started.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    /// What it is in the figures.
    pub(super) role: &'static str,
    /// Arguments of `ditto`.
    pub(super) arguments: Vec<String>,
    /// Its environment, besides this process's own.
    pub(super) environment: Vec<(&'static str, String)>,
    /// Its working folder; its output goes there.
    pub(super) dir: PathBuf,
}

/// A part that runs; killed when dropped.
#[derive(Debug)]
pub(super) struct Part {
    spec: Spec,
    child: Child,
}

impl Spec {
    /// The command, with nothing connected yet.
    pub(super) fn command(&self) -> Result<Command, Failure> {
        let program = std::env::current_exe().map_err(|error| Failure::internal(format!("this program: {error}")))?;
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .env_remove("DITTO_CONFIG")
            .env_remove("DITTO_SERVER")
            .env_remove("DITTO_NATS_URL")
            .env_remove("DITTO_INSTANCE")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir)
            .kill_on_drop(true);
        Ok(command)
    }

    /// Standard error of the part.
    pub(super) fn log(&self) -> Result<File, Failure> {
        self.file("log")
    }

    fn file(&self, kind: &str) -> Result<File, Failure> {
        let path = self.dir.join(format!("{}.{kind}", self.role));
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        opened.map_err(|error| Failure::internal(format!("{}: {error}", path.display())))
    }

    fn spawn(&self) -> Result<Child, Failure> {
        let mut command = self.command()?;
        command.stdin(Stdio::null()).stdout(self.file("out")?).stderr(self.log()?);
        command.spawn().map_err(|error| Failure::internal(format!("{}: {error}", self.role)))
    }
}

impl Part {
    /// Starts it.
    pub(super) fn start(spec: Spec) -> Result<Self, Failure> {
        let child = spec.spawn()?;
        Ok(Self { spec, child })
    }

    /// What it is in the figures.
    pub(super) fn role(&self) -> &'static str {
        self.spec.role
    }

    /// Its process, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Kills it without warning.
    pub(super) async fn kill9(&mut self) -> Result<(), Failure> {
        let killed = self.child.kill().await;
        killed.map_err(|error| Failure::internal(format!("{} cannot be killed: {error}", self.spec.role)))
    }

    /// Starts it again with what it was started with.
    pub(super) fn restart(&mut self) -> Result<(), Failure> {
        self.child = self.spec.spawn()?;
        Ok(())
    }

    /// An error if it has ended by itself.
    pub(super) fn still_runs(&mut self) -> Result<(), Failure> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Failure::internal(format!("{} ended: {status}\n{}", self.spec.role, self.tail()))),
            Err(error) => Err(Failure::internal(format!("{}: {error}", self.spec.role))),
        }
    }

    /// The first line it printed.
    pub(super) fn first_line(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.spec.dir.join(format!("{}.out", self.spec.role))).ok()?;
        text.split_once('\n').map(|(line, _)| line.to_owned())
    }

    /// The end of its log.
    pub(super) fn tail(&self) -> String {
        tail(&self.spec.dir.join(format!("{}.log", self.spec.role)))
    }
}

/// The last lines of a log.
pub(super) fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
