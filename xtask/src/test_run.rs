//! One run of the tests: its own directory for temporary files, and the search for whatever outlives it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Servers end a moment after the test process that owned them.
const GRACE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);
/// Build daemons that cargo may start: they are the user's, and outlive a run on purpose.
const DAEMONS: [&str; 1] = ["sccache"];

/// A directory that becomes `TMPDIR` of all tests, and by which their processes are recognised.
#[derive(Debug)]
pub(crate) struct TestRun {
    dir: PathBuf,
}

impl TestRun {
    pub(crate) fn begin() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("ditto-run-{}", std::process::id()));
        // A server that runs as another user has to pass through it.
        fs::DirBuilder::new().mode(0o711).create(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Waits until every process of the run is gone, and removes the directory.
    ///
    /// # Errors
    /// When processes are left after [`GRACE`]; they are named, and killed.
    pub(crate) fn end(self) -> Result<()> {
        let deadline = Instant::now() + GRACE;
        let left = loop {
            let left = processes_of(&self.dir);
            if left.is_empty() || Instant::now() > deadline {
                break left;
            }
            sleep(POLL);
        };
        for (pid, _) in &left {
            // Best effort: the run has failed already, and says so below.
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        let _ = fs::remove_dir_all(&self.dir);
        if !left.is_empty() {
            let rows: Vec<String> = left.iter().map(|(pid, name)| format!("  {pid}  {name}")).collect();
            bail!("left running by a test, now killed:\n{}", rows.join("\n"));
        }
        Ok(())
    }
}

/// Processes with the directory in their command line, environment or working directory: number and command line.
/// Empty on systems without `/proc`.
fn processes_of(dir: &Path) -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let needle = dir.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let name = String::from_utf8_lossy(&read("comm")).trim().to_owned();
        if pid == std::process::id() || DAEMONS.contains(&name.as_str()) {
            continue;
        }
        let command_line = read("cmdline");
        let mentions = |text: &[u8]| text.windows(needle.len()).any(|window| window == needle);
        let works_there = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(dir));
        if works_there || mentions(&command_line) || mentions(&read("environ")) {
            let words = String::from_utf8_lossy(&command_line).replace('\0', " ");
            found.push((pid, if words.is_empty() { name } else { words.trim().chars().take(160).collect() }));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_of_the_run_is_found_by_its_environment() {
        let dir = std::env::temp_dir().join(format!("ditto-run-test-{}", std::process::id()));
        let mut child =
            Command::new("cat").env("TMPDIR", &dir).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let found = processes_of(&dir);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(found.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [child.id()]);
        assert_eq!(processes_of(&dir), []);
    }
}
