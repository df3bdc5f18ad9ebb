//! Runs the real binary in a folder of its own, with nothing of the surroundings' configuration.
#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here is the test")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// A folder with two texts to read.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

pub(crate) fn example(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    root.join("examples").join(name).display().to_string()
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "hello\n").unwrap();
        std::fs::write(folder.path().join("b.txt"), "world\n").unwrap();
        Self { folder }
    }

    /// Deliveries become files, so that they can be counted.
    pub(crate) fn with_file_sink() -> Self {
        let place = Self::new();
        place.write("ditto.yaml", "workers:\n  interaction:\n    output: { sink: file, dir: out }\n");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Contents of all deliveries, sorted.
    pub(crate) fn deliveries(&self) -> Vec<String> {
        let mut texts: Vec<_> = std::fs::read_dir(self.path("out"))
            .map(|files| files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap()).collect())
            .unwrap_or_default();
        texts.sort();
        texts
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ditto"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("DITTO_") || name.starts_with("OTEL_") {
                command.env_remove(name);
            }
        }
        command.current_dir(self.folder.path()).args(arguments).stdin(Stdio::null());
        command
    }

    pub(crate) fn ditto(&self, arguments: &[&str]) -> Said {
        self.finish(self.command(arguments))
    }

    /// Runs to its end, within a bound.
    pub(crate) fn finish(&self, mut command: Command) -> Said {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        within_a_minute(child)
    }

    pub(crate) fn with_stdin(&self, arguments: &[&str], text: &str) -> Said {
        let mut command = self.command(arguments);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        within_a_minute(child)
    }

    /// Starts `ditto dev` on a free port and waits until it serves.
    pub(crate) fn dev(&self, arguments: &[&str]) -> Dev {
        let mut all = vec!["dev", "--listen", "127.0.0.1:0", "--json"];
        all.extend(arguments);
        let mut command = self.command(&all);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let told: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Dev { url: told["url"].as_str().unwrap().to_owned(), child, _out: out }
    }
}

/// A server that is stopped when it goes out of scope.
pub(crate) struct Dev {
    pub(crate) url: String,
    child: Child,
    _out: BufReader<ChildStdout>,
}

impl Dev {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop and gives its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::yield_now();
        }
        panic!("it does not stop");
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn within_a_minute(child: Child) -> Said {
    let id = child.id();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let guard = std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(60)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    guard.join().unwrap();
    Said::of(output)
}
