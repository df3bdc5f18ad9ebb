//! The errors a run makes itself.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ditto_contracts::{
    ErrorClass, TaskId, WireError, codes,
    limits::{ERROR_MESSAGE_CHARS_MAX, VALUE_BYTES_MAX},
};

use crate::FormulaError;

/// Why a graph did not end with the outputs of all its tasks: the first error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("graph {graph}, task {task}: {error}")]
pub struct GraphFailure {
    /// Id of the graph.
    pub graph: String,
    /// The task that failed first.
    pub task: TaskId,
    /// Its error, unchanged.
    pub error: WireError,
}

impl From<GraphFailure> for WireError {
    fn from(failure: GraphFailure) -> Self {
        failure.error
    }
}

/// An error with a message that is short and free of control characters.
pub(crate) fn error(class: ErrorClass, code: &str, message: &str) -> WireError {
    let message: String =
        message.chars().take(ERROR_MESSAGE_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    WireError::new(class, code, message)
}

/// A value of a definition cannot be used.
pub(crate) fn invalid(message: &str) -> WireError {
    error(ErrorClass::InvalidInput, codes::INVALID_INPUT, message)
}

/// Checks that a value is not larger than any value may be.
pub(crate) fn check_size(what: &str, bytes: usize) -> Result<(), WireError> {
    if bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("{what} has {bytes} bytes; at most {VALUE_BYTES_MAX}");
    Err(error(ErrorClass::InvalidInput, codes::VALUE_TOO_LARGE, &message))
}

/// Runs code of a plan. A panic in it ends the run, not its driver.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, WireError> {
    let failed = |_| error(ErrorClass::Internal, codes::PANICKED, "the code of the plan panicked");
    catch_unwind(AssertUnwindSafe(run)).map_err(failed)
}

/// A defect on our side, or a checkpoint that was not written by this plan.
pub(crate) fn internal(message: &str) -> WireError {
    error(ErrorClass::Internal, "INTERNAL", message)
}

impl From<FormulaError> for WireError {
    fn from(failure: FormulaError) -> Self {
        error(ErrorClass::InvalidInput, codes::EXPRESSION_FAILED, &failure.to_string())
    }
}

/// An expression had a value of the wrong kind.
pub(crate) fn expression(path: &str, message: &str) -> WireError {
    FormulaError { path: path.into(), message: message.into() }.into()
}
