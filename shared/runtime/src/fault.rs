//! Fault points: places where a crash test kills, pauses or cheats the process.
//!
//! They are compiled in always, so that what is tested is what is shipped, and do nothing (one relaxed atomic load)
//! unless the process was started with
//!
//! ```text
//! DITTO_TEST_FAULT=<point>:<nth>:<kill|pause|exit|drop>[,…]
//! ```
//!
//! At the nth passing (from 1) of that point, once: `kill` sends SIGKILL to the process, `pause` SIGSTOP, `exit` ends
//! it with [`EXIT_CODE`], and `drop` tells the caller to lose the reply it has in hand ([`FaultAction::Drop`]). Just
//! before, a line `<point>:<nth>:<action> <process id>` is appended to the file that `DITTO_TEST_FAULT_LOG` names, so
//! that the test knows. `ditto doctor` shows whether the variable is set.

use std::io::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::process::{Signal, getpid, kill_process};

/// The variable that arms fault points.
pub const VARIABLE: &str = "DITTO_TEST_FAULT";

/// The variable that names the file to write a line to when a fault fires.
pub const LOG_VARIABLE: &str = "DITTO_TEST_FAULT_LOG";

/// Exit code of the `exit` action.
pub const EXIT_CODE: i32 = 86;

/// What the caller of a fault point has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultAction {
    /// Go on.
    None,
    /// Lose the reply: behave as if it had never arrived.
    Drop,
}

impl FaultAction {
    /// Whether the reply is to be lost.
    pub const fn is_drop(self) -> bool {
        matches!(self, Self::Drop)
    }
}

/// Why the variable cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected `<point>:<nth>:<kill|pause|exit|drop>`, comma separated, nth from 1")]
pub struct FaultError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill,
    Pause,
    Exit,
    Drop,
}

#[derive(Debug)]
struct Fault {
    point: String,
    nth: u64,
    action: Action,
    passed: AtomicU64,
}

const UNREAD: u8 = 0;
const OFF: u8 = 1;
const ARMED: u8 = 2;

/// Read once per process; afterwards a point costs one load of this.
static STATE: AtomicU8 = AtomicU8::new(UNREAD);
static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
static LOG: Mutex<()> = Mutex::new(());

/// A place where a fault may be injected. Returns [`FaultAction::None`] at once unless this process is under test.
///
/// # Cancel safety
/// Has no point at which it could be cancelled.
#[inline]
pub async fn point(name: &str) -> FaultAction {
    point_now(name)
}

/// [`point`] for code that is not async.
#[inline]
pub fn point_now(name: &str) -> FaultAction {
    if STATE.load(Ordering::Relaxed) == OFF { FaultAction::None } else { pass(name) }
}

/// Whether this process was started with armed fault points.
pub fn armed() -> bool {
    read() == ARMED
}

/// Checks the value of [`VARIABLE`].
///
/// # Errors
/// It is not in the form described above.
pub fn check(value: &str) -> Result<(), FaultError> {
    parse(value).map(drop)
}

#[cold]
fn read() -> u8 {
    let state = STATE.load(Ordering::Relaxed);
    if state != UNREAD {
        return state;
    }
    let faults = FAULTS.get_or_init(|| match std::env::var(VARIABLE) {
        Ok(value) if !value.is_empty() => parse(&value).unwrap_or_else(|error| {
            // A test that arms nothing would pass for the wrong reason: refuse to run.
            let _ = writeln!(std::io::stderr(), "{VARIABLE}: {error}");
            std::process::exit(EXIT_CODE);
        }),
        _ => Vec::new(),
    });
    let state = if faults.is_empty() { OFF } else { ARMED };
    STATE.store(state, Ordering::Relaxed);
    state
}

#[cold]
fn pass(name: &str) -> FaultAction {
    if read() != ARMED {
        return FaultAction::None;
    }
    let faults = FAULTS.get().map_or(&[][..], Vec::as_slice);
    let mut outcome = FaultAction::None;
    for fault in faults.iter().filter(|fault| fault.passes(name)) {
        record(fault);
        match fault.action {
            // If a signal cannot be sent the test must not go on as if it had been.
            Action::Kill => deliver(Signal::KILL),
            Action::Pause => deliver(Signal::STOP),
            Action::Exit => std::process::exit(EXIT_CODE),
            Action::Drop => outcome = FaultAction::Drop,
        }
    }
    outcome
}

impl Fault {
    /// Counts a passing; `true` at the one that was asked for.
    fn passes(&self, name: &str) -> bool {
        self.point == name && self.passed.fetch_add(1, Ordering::SeqCst) + 1 == self.nth
    }
}

fn parse(value: &str) -> Result<Vec<Fault>, FaultError> {
    let one = |text: &str| {
        let mut parts = text.split(':');
        let (Some(point), Some(nth), Some(action), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(FaultError);
        };
        let action = match action {
            "kill" => Action::Kill,
            "pause" => Action::Pause,
            "exit" => Action::Exit,
            "drop" => Action::Drop,
            _ => return Err(FaultError),
        };
        let nth = nth.parse().ok().filter(|nth| *nth > 0).ok_or(FaultError)?;
        let named =
            !point.is_empty() && point.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        if named {
            Ok(Fault { point: point.to_owned(), nth, action, passed: AtomicU64::new(0) })
        } else {
            Err(FaultError)
        }
    };
    value.split(',').map(one).collect()
}

fn deliver(signal: Signal) {
    if kill_process(getpid(), signal).is_err() {
        std::process::exit(EXIT_CODE);
    }
}

/// Writes the line that tells the test; synced, because the process may be dead in a moment.
fn record(fault: &Fault) {
    let Ok(path) = std::env::var(LOG_VARIABLE) else { return };
    let _one_line_at_a_time = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let action = match fault.action {
        Action::Kill => "kill",
        Action::Pause => "pause",
        Action::Exit => "exit",
        Action::Drop => "drop",
    };
    let line = format!("{}:{}:{action} {}\n", fault.point, fault.nth, std::process::id());
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()).and_then(|()| file.sync_data()));
    if let Err(error) = written {
        let _ = writeln!(std::io::stderr(), "{LOG_VARIABLE}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_read_as_the_table_says() {
        #[rustfmt::skip]
        let table = [
            ("after_claim_commit:1:kill",      true),
            ("a:1:kill,b.c:2:pause,d:3:exit",  true),
            ("a:18446744073709551615:drop",    true),
            ("",           false),
            ("a",          false),
            ("a:1",        false),
            ("a:0:kill",   false),
            ("a:-1:kill",  false),
            ("a:1:KILL",   false),
            ("a:1:kill:x", false),
            (":1:kill",    false),
            ("a b:1:kill", false),
            ("a:1:kill,",  false),
        ];
        for (text, ok) in table {
            assert_eq!(check(text).is_ok(), ok, "{text:?}");
        }
    }

    #[test]
    fn a_fault_fires_at_its_passing_only() {
        let faults = parse("a:2:drop").unwrap();
        let fired: Vec<bool> = ["a", "b", "a", "a"].iter().map(|name| faults[0].passes(name)).collect();
        assert_eq!(fired, [false, false, true, false]);
    }
}
