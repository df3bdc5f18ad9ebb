//! How a command ends: the exit codes, and the one line that says why.

use std::{fmt, process::ExitCode};

use ditto_contracts::{ErrorClass, RunStatus, WireError, codes};

/// Exit codes. Scripts may rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It did what was asked; a run completed.
    Completed = 0,
    /// A run failed, or the command itself did.
    Failed = 1,
    /// The command, its input, a definition or the configuration is wrong.
    Usage = 2,
    /// A run ended before its goal, with a usable part.
    Partial = 3,
    /// A run waits for a person, or ended because only a person can decide.
    NeedsHuman = 4,
    /// An effect may or may not have happened; see `ditto receipts ls --unknown`.
    Unknown = 5,
    /// A run was cancelled.
    Cancelled = 6,
    /// A server, a ledger or a bus cannot be reached or is held by another process.
    Unreachable = 7,
    /// Stopped by a signal; what was started goes on the next time.
    Interrupted = 130,
}

impl Exit {
    /// The code of a run that is over.
    pub fn of_run(status: RunStatus, error: Option<&WireError>) -> Self {
        let unknown = error.is_some_and(|e| e.class == ErrorClass::Unknown || e.code == codes::OUTCOME_UNKNOWN);
        match status {
            RunStatus::Completed => Self::Completed,
            RunStatus::Partial => Self::Partial,
            RunStatus::Failed | RunStatus::NeedsHuman if unknown => Self::Unknown,
            RunStatus::Failed => Self::Failed,
            RunStatus::Cancelled => Self::Cancelled,
            RunStatus::NeedsHuman
            | RunStatus::Parked
            | RunStatus::Queued
            | RunStatus::Running
            | RunStatus::Cancelling => Self::NeedsHuman,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub exit: Exit,
    /// Stable code for machines.
    pub code: String,
    /// One line; several only where a list was asked for (configuration, definitions).
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// Something that was given is wrong; `message` names it.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, code: codes::INVALID_INPUT.into(), message: message.into(), hint: None }
    }

    /// A backend is away.
    pub fn unreachable(message: impl Into<String>) -> Self {
        Self { exit: Exit::Unreachable, code: "UNREACHABLE".into(), message: message.into(), hint: None }
    }

    /// The command itself failed.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, code: "FAILED".into(), message: message.into(), hint: None }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with another code for machines.
    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Self {
        self.code = code.into();
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        let exit = match error.class {
            ErrorClass::InvalidInput | ErrorClass::NotFound | ErrorClass::Conflict | ErrorClass::Denied => Exit::Usage,
            ErrorClass::Unavailable | ErrorClass::Timeout => Exit::Unreachable,
            ErrorClass::Unknown => Exit::Unknown,
            ErrorClass::Cancelled => Exit::Cancelled,
            ErrorClass::Failed | ErrorClass::Internal => Exit::Failed,
        };
        Self { exit, code: error.code, message: error.message, hint: None }
    }
}

impl From<ditto_coordinator::store::StoreError> for Failure {
    fn from(error: ditto_coordinator::store::StoreError) -> Self {
        Self::unreachable(error.to_string()).code("LEDGER_UNAVAILABLE")
    }
}

impl From<ditto_runtime::config::ConfigErrors> for Failure {
    fn from(errors: ditto_runtime::config::ConfigErrors) -> Self {
        let count = errors.problems().len();
        let plural = if count == 1 { "" } else { "s" };
        Self::usage(format!("the configuration has {count} problem{plural}:\n{errors}")).code("CONFIG_INVALID")
    }
}

/// An error with all its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_the_command_with_the_code_of_its_status() {
        let unknown = WireError::new(ErrorClass::Unknown, codes::OUTCOME_UNKNOWN, "x");
        let plain = WireError::new(ErrorClass::Failed, "NO", "x");
        #[rustfmt::skip]
        let table = [
            (RunStatus::Completed,  None,           0),
            (RunStatus::Failed,     Some(&plain),   1),
            (RunStatus::Failed,     Some(&unknown), 5),
            (RunStatus::Partial,    Some(&unknown), 3),
            (RunStatus::NeedsHuman, Some(&plain),   4),
            (RunStatus::NeedsHuman, Some(&unknown), 5),
            (RunStatus::Parked,     None,           4),
            (RunStatus::Cancelled,  Some(&plain),   6),
        ];
        for (status, error, code) in table {
            assert_eq!(Exit::of_run(status, error) as u8, code, "{status} {error:?}");
        }
    }
}
