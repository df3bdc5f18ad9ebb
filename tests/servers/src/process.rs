//! One server process in its own directory: started, killed, paused, watched, and cleaned up after.

use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// How long a server may take from its start to its first answer, recovery after a kill included.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long one question to a starting server may stay unanswered before it is asked again.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// How long killed processes may take to disappear.
const GONE_WITHIN: Duration = Duration::from_secs(10);
/// Pause between two looks at a condition.
const POLL: Duration = Duration::from_millis(3);

/// The user a server runs as when the tests run as root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// A server process, or the place of one that was killed. Dropped: process and directory are gone.
#[derive(Debug)]
pub(crate) struct Process {
    label: &'static str,
    dir: PathBuf,
    owner: Option<Owner>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The server itself, until it has been seen to exit.
    child: Option<Child>,
    /// The server and its children, while they are stopped.
    stopped: Vec<u32>,
    /// Cleans up when its standard input ends, which is when this process drops it or dies.
    watcher: Child,
}

impl Process {
    /// Makes the directory and its watcher; starts no server. `end_signal` is what ends the server on clean-up.
    pub(crate) fn new(label: &'static str, end_signal: &str, owner: Option<Owner>) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("ditto-test-{label}-"))
            .tempdir()
            .context("cannot make a temporary directory for a test server")?;
        if let Some(Owner { uid, gid }) = owner {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(gid)).context("cannot hand over a directory")?;
        }
        let watcher = Command::new("sh")
            .args(["-c", include_str!("watcher.sh"), "ditto-test-watcher"])
            .arg(dir.path())
            .arg(end_signal)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal is for the tests; the watcher then sees them end.
            .process_group(0)
            .spawn()
            .context("cannot start the watcher of a test server")?;
        let state = State { child: None, stopped: Vec::new(), watcher };
        Ok(Self { label, dir: dir.keep(), owner, state: Mutex::new(state) })
    }

    /// The server's own directory: data, log, configuration.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A command that runs `program` as the server's user, inside its directory.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.dir).stdin(Stdio::null());
        if let Some(Owner { uid, gid }) = self.owner {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts the server. Its output goes to the log.
    pub(crate) fn spawn(&self, program: &Path, args: &[String]) -> Result<()> {
        let mut state = self.state();
        ensure!(!state.is_running()?, "{} is running already", self.label);
        let log = self.open_log()?;
        // The shell names its process to the watcher, then becomes the server: no moment when nobody would clean up.
        let child = self
            .command(Path::new("sh"))
            .args(["-c", "echo $$ > pids || exit 1; exec \"$@\"", "sh"])
            .arg(program)
            .args(args)
            .stdout(log.try_clone().context("cannot share the server's log")?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        state.child = Some(child);
        Ok(())
    }

    /// Asks `probe` until it succeeds.
    ///
    /// # Errors
    /// When the server exits first or gives no good answer within a minute; with the end of its log.
    pub(crate) async fn ready<F, Fut>(&self, probe: F) -> Result<()>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<()>> + Send,
    {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let answer = match tokio::time::timeout(PROBE_WITHIN, probe()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => anyhow::anyhow!("no answer within {PROBE_WITHIN:?}"),
            };
            if !self.state().is_running()? {
                return Err(answer.context(format!("{} exited while starting:\n{}", self.label, self.log_tail())));
            }
            if Instant::now() > deadline {
                let what = format!("{} not ready within {READY_WITHIN:?}:\n{}", self.label, self.log_tail());
                return Err(answer.context(what));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills the server and all its children with `SIGKILL` and waits until they are gone. Nothing if none runs.
    pub(crate) fn kill9(&self) -> Result<()> {
        let mut state = self.state();
        if !state.is_running()? {
            return Ok(());
        }
        let pids = state.stop_all()?;
        signal("KILL", &pids)?;
        if let Some(mut child) = state.child.take() {
            child.wait().with_context(|| format!("cannot wait for {}", self.label))?;
        }
        self.forget(&mut state)?;
        wait_until_gone(self.label, &pids)
    }

    /// Ends the server with `name` (a signal it takes as a wish to stop) and waits until it has exited.
    pub(crate) fn end(&self, name: &str) -> Result<()> {
        let mut state = self.state();
        if !state.is_running()? {
            return Ok(());
        }
        let Some(pid) = state.child.as_ref().map(Child::id) else { return Ok(()) };
        signal(name, &[pid])?;
        let deadline = Instant::now() + GONE_WITHIN;
        while state.is_running()? {
            ensure!(Instant::now() < deadline, "{} has not stopped {GONE_WITHIN:?} after SIG{name}", self.label);
            std::thread::sleep(POLL);
        }
        self.forget(&mut state)
    }

    /// Stops the server and its children with `SIGSTOP`: connections stay open, nothing answers.
    pub(crate) fn pause(&self) -> Result<()> {
        let mut state = self.state();
        ensure!(state.is_running()?, "{} is not running, so it cannot be paused", self.label);
        let pids = state.stop_all()?;
        // A stopped child does not notice that its server died: the watcher has to know it by name.
        let list: Vec<String> = pids.iter().map(u32::to_string).collect();
        fs::write(self.dir.join("pids"), list.join(" ")).context("cannot note the paused processes")?;
        state.stopped = pids;
        Ok(())
    }

    /// Lets a paused server go on. Nothing if it is not paused.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut state = self.state();
        let pids = std::mem::take(&mut state.stopped);
        let Some(server) = pids.first() else { return Ok(()) };
        fs::write(self.dir.join("pids"), server.to_string()).context("cannot note the resumed process")?;
        signal("CONT", &pids)
    }

    /// The id of the server process, if it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        let mut state = self.state();
        state.is_running().ok()?.then(|| state.child.as_ref().map(Child::id)).flatten()
    }

    /// The last lines the server wrote.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(self.dir.join("log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn open_log(&self) -> Result<File> {
        let path = self.dir.join("log");
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// After the server is gone its number may become another process's: the watcher must not signal it.
    fn forget(&self, state: &mut State) -> Result<()> {
        state.child = None;
        state.stopped.clear();
        fs::write(self.dir.join("pids"), "").context("cannot note that the server is gone")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(state.watcher.stdin.take());
        let deadline = Instant::now() + GONE_WITHIN;
        loop {
            let server_gone = state.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            let watcher_gone = !matches!(state.watcher.try_wait(), Ok(None));
            if server_gone && watcher_gone {
                break;
            }
            // With the watcher gone nobody else ends the server.
            if (watcher_gone || Instant::now() > deadline)
                && let Some(mut child) = state.child.take()
            {
                let _ = child.kill();
                let _ = child.wait();
            }
            if Instant::now() > deadline {
                break;
            }
            std::thread::sleep(POLL);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl State {
    fn is_running(&mut self) -> Result<bool> {
        let Some(child) = &mut self.child else { return Ok(false) };
        Ok(child.try_wait().context("cannot look at a server process")?.is_none())
    }

    /// Stops the server first, so that it starts no more children, then those it has. Returns all, the server first.
    fn stop_all(&mut self) -> Result<Vec<u32>> {
        let Some(server) = self.child.as_ref().map(Child::id) else { return Ok(Vec::new()) };
        signal("STOP", &[server])?;
        let mut pids = descendants(server)?;
        if !pids.is_empty() {
            signal("STOP", &pids)?;
        }
        pids.insert(0, server);
        Ok(pids)
    }
}

/// Sends a signal through the shell's `kill`, which every system has. Processes already gone are no error.
fn signal(name: &str, pids: &[u32]) -> Result<()> {
    Command::new("sh")
        .args(["-c", "kill \"$@\" 2>/dev/null; :", "sh", &format!("-{name}")])
        .args(pids.iter().map(u32::to_string))
        .status()
        .with_context(|| format!("cannot send SIG{name}"))?;
    Ok(())
}

fn descendants(root: u32) -> Result<Vec<u32>> {
    let table = process_table()?;
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(table.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.remove(0);
    Ok(found)
}

/// All processes as `(process, its parent)`.
fn process_table() -> Result<Vec<(u32, u32)>> {
    if Path::new("/proc/self/stat").exists() {
        let entries = fs::read_dir("/proc").context("cannot list processes")?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        return Ok(pids.filter_map(|pid| Some((pid, stat_fields(pid)?.1))).collect());
    }
    let output = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().context("cannot list processes")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let row = |line: &str| {
        let mut words = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        Some((words.next()??, words.next()??))
    };
    Ok(text.lines().filter_map(row).collect())
}

/// State letter and parent of a process, from `/proc`. The name before them may hold anything, parentheses included.
fn stat_fields(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn wait_until_gone(label: &str, pids: &[u32]) -> Result<()> {
    let deadline = Instant::now() + GONE_WITHIN;
    let mut left = pids.to_vec();
    loop {
        if Path::new("/proc/self/stat").exists() {
            // A zombie does nothing more; who adopted it will collect it.
            left.retain(|pid| stat_fields(*pid).is_some_and(|(state, _)| state != 'Z'));
        } else {
            let table = process_table()?;
            left.retain(|pid| table.iter().any(|(other, _)| other == pid));
        }
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{label}: processes {left:?} are still there {GONE_WITHIN:?} after SIGKILL");
        }
        std::thread::sleep(POLL);
    }
}
