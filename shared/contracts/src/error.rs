//! The one error shape that crosses a process boundary.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What kind of failure an error is; tells a caller what to do, independent of the exact code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The request is malformed or breaks a rule; repeating it unchanged cannot help.
    InvalidInput,
    /// The caller or the run may not do this.
    Denied,
    /// What was named does not exist (any more).
    NotFound,
    /// It exists, but in another state, version or shape than the caller assumed.
    Conflict,
    /// A part of the fleet or a backend cannot be reached or is full; repeating later may help.
    Unavailable,
    /// It took too long, and nothing was done.
    Timeout,
    /// It was cancelled, and nothing was done.
    Cancelled,
    /// A definite refusal or failure by the thing that was asked to act.
    Failed,
    /// The effect may or may not have happened; it must be reconciled and must not be repeated.
    Unknown,
    /// A defect or a broken invariant on our side.
    Internal,
}

/// A typed, already sanitised error: `{class, code, message, retryable}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[error("{code}: {message}")]
pub struct WireError {
    /// The kind of failure.
    pub class: ErrorClass,
    /// Stable machine-readable code, 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
    pub code: String,
    /// For people; at most 512 characters, no control characters, no secrets, no paths.
    pub message: String,
    /// A hint that repeating the same request later may help. Nothing in Ditto acts on it.
    #[serde(default)]
    pub retryable: bool,
}

impl WireError {
    /// Makes an error that is not retryable.
    pub fn new(class: ErrorClass, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { class, code: code.into(), message: message.into(), retryable: false }
    }

    /// An `invalid_input` error.
    pub fn invalid(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorClass::InvalidInput, code, message)
    }

    /// The same error with the retry hint set.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }
}

/// The error codes Ditto itself writes. A tool or sink may use others.
pub mod codes {
    /// Input does not satisfy its schema or contract.
    pub const INVALID_INPUT: &str = "INVALID_INPUT";
    /// Arguments of a tool do not satisfy its schema.
    pub const INVALID_ARGUMENTS: &str = "INVALID_ARGUMENTS";
    /// The sandbox refused.
    pub const PERMISSION_DENIED: &str = "PERMISSION_DENIED";
    /// No tool of that name is registered.
    pub const UNKNOWN_TOOL: &str = "UNKNOWN_TOOL";
    /// No live worker served the node or tool within the wait.
    pub const NO_WORKER_AVAILABLE: &str = "NO_WORKER_AVAILABLE";
    /// The same call id was decided with another request.
    pub const CALL_ID_REUSED: &str = "CALL_ID_REUSED";
    /// The same submit key was used with another body.
    pub const KEY_REUSED: &str = "KEY_REUSED";
    /// A value is larger than the limit.
    pub const VALUE_TOO_LARGE: &str = "VALUE_TOO_LARGE";
    /// The answer was lost after the request may have left.
    pub const RESPONSE_LOST: &str = "RESPONSE_LOST";
    /// The answer was unreadable, too large or broke its contract.
    pub const RESPONSE_INVALID: &str = "RESPONSE_INVALID";
    /// Time ran out.
    pub const TIMEOUT: &str = "TIMEOUT";
    /// The worker that held the claim is gone.
    pub const WORKER_LOST: &str = "WORKER_LOST";
    /// The call was cancelled while it was in flight.
    pub const CANCELLED_IN_FLIGHT: &str = "CANCELLED_IN_FLIGHT";
    /// The call was cancelled before it started.
    pub const CANCELLED: &str = "CANCELLED";
    /// The deadline passed before the call started.
    pub const DEADLINE_EXCEEDED: &str = "DEADLINE_EXCEEDED";
    /// The ledger lost commits.
    pub const LEDGER_REGRESSED: &str = "LEDGER_REGRESSED";
    /// The backend no longer guarantees the idempotency key.
    pub const KEY_WINDOW_CLOSED: &str = "KEY_WINDOW_CLOSED";
    /// The backend knows the key with another request.
    pub const KEY_CONFLICT: &str = "KEY_CONFLICT";
    /// Answer to a query: the backend does not know the key.
    pub const KEY_ABSENT: &str = "KEY_ABSENT";
    /// Answer to a query: the backend is still working on it.
    pub const KEY_IN_PROGRESS: &str = "KEY_IN_PROGRESS";
    /// Answer to a query: the backend could not be asked.
    pub const QUERY_UNANSWERED: &str = "QUERY_UNANSWERED";
    /// Evidence did not arrive within the reconcile window.
    pub const RECONCILE_EXHAUSTED: &str = "RECONCILE_EXHAUSTED";
    /// Every attempt killed its worker.
    pub const POISONED: &str = "POISONED";
    /// Attempts are used up.
    pub const ATTEMPTS_EXHAUSTED: &str = "ATTEMPTS_EXHAUSTED";
    /// The loop reached its iteration limit without being done.
    pub const ITERATION_LIMIT: &str = "ITERATION_LIMIT";
    /// An expression of a definition failed.
    pub const EXPRESSION_FAILED: &str = "EXPRESSION_FAILED";
    /// A definition stopped the loop on purpose or a task failed.
    pub const TASK_FAILED: &str = "TASK_FAILED";
    /// The outcome of a call is unknown and the definition says to stop.
    pub const OUTCOME_UNKNOWN: &str = "OUTCOME_UNKNOWN";
    /// The registered program no longer matches the journal of the run.
    pub const PLAN_DIVERGED: &str = "PLAN_DIVERGED";
    /// A non-idempotent node carries a `retry`.
    pub const RETRY_NOT_ALLOWED: &str = "RETRY_NOT_ALLOWED";
    /// A tool, server or sink reported its own failure.
    pub const TOOL_FAILED: &str = "TOOL_FAILED";
    /// A result carried an error text that may not be published.
    pub const UNSAFE_ERROR: &str = "UNSAFE_ERROR";
    /// The tool's code panicked.
    pub const PANICKED: &str = "PANICKED";
    /// A receipt answered for another delivery.
    pub const DELIVERY_MISMATCH: &str = "DELIVERY_MISMATCH";
}
