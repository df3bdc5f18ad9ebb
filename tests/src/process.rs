//! A process that a test kills, stops and starts again.

use std::{
    fs::OpenOptions,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// How to start a process.
#[derive(Debug, Clone)]
pub struct Spec {
    /// For messages and the log file.
    pub name: String,
    /// Program.
    pub program: PathBuf,
    /// Arguments.
    pub arguments: Vec<String>,
    /// Environment on top of the test's own.
    pub environment: Vec<(String, String)>,
    /// Where its output goes.
    pub log: PathBuf,
}

/// A process under a test's control; killed when dropped.
#[derive(Debug)]
pub struct Process {
    spec: Spec,
    child: Child,
}

impl Process {
    /// Starts it, with a fault armed if given (`point:nth:action`).
    pub fn start(spec: Spec, fault: Option<&str>) -> Self {
        let child = spawn(&spec, fault);
        Self { spec, child }
    }

    /// Kills it without warning.
    pub fn kill9(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }

    /// Sends a signal by name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name} {}", self.spec.name);
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self, fault: Option<&str>) {
        self.kill9();
        self.child = spawn(&self.spec, fault);
    }

    /// Starts it again if it has ended. Answers whether it had.
    pub fn revive(&mut self) -> bool {
        let ended = !self.is_running();
        if ended {
            self.child = spawn(&self.spec, None);
        }
        ended
    }

    /// Asks it to end and waits.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        self.signal("TERM");
        self.child.wait().unwrap()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.spec.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn spawn(spec: &Spec, fault: Option<&str>) -> Child {
    let log = OpenOptions::new().create(true).append(true).open(&spec.log).unwrap();
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.arguments)
        .envs(spec.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    without_test_settings(&mut command);
    command.env_remove("DITTO_TEST_FAULT");
    if let Some(fault) = fault {
        command.env("DITTO_TEST_FAULT", fault);
    }
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", spec.program.display()))
}

/// Takes away what only the tests read: a process refuses variables it does not know.
pub fn without_test_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("DITTO_SOAK_") || name.starts_with("DITTO_LONG_LOOP_")) {
            command.env_remove(name);
        }
    }
}

/// The `ditto` binary: `DITTO_BIN`, else the one beside this test.
pub fn ditto_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("DITTO_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    let found = test.ancestors().map(|dir| dir.join("ditto")).find(|path| path.is_file());
    found.expect("the ditto binary is not built: cargo build -p ditto, or run cargo xtask test")
}

/// A folder for one test.
pub fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ditto-it-").tempdir().unwrap()
}

/// Path as text.
pub fn text(path: &Path) -> String {
    path.display().to_string()
}
