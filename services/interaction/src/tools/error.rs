//! Why a tool has no answer, said so that nobody has to guess whether something happened.

use std::time::Duration;

use ditto_contracts::{ErrorClass, WireError, codes};
use ditto_worker::{NodeError, SandboxError};

/// How a call of a tool ended when it was no success. Made by `?` from any error, it means that the outcome is not
/// known: for a tool that only reads that is a failure, for every other one it is `unknown`.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolError {
    /// The backend or the tool said no, and nothing happened. Becomes a result with status `failed`.
    Refused(WireError),
    /// Nothing was sent, and sending it again cannot help: arguments, permission.
    NotSent(WireError),
    /// No byte left (connection refused): may be tried again.
    NoByteSent(WireError),
    /// Told to come later, and not executed: may be tried again.
    Throttled {
        /// After this time.
        delay: Duration,
        /// What was said.
        error: WireError,
    },
    /// It may or may not have happened.
    Ambiguous(WireError),
    /// Stopped by a cancel after the request may have left.
    Cancelled(WireError),
    /// An answer that cannot be used.
    Invalid(WireError),
}

impl ToolError {
    /// The backend said no, for this reason; nothing happened.
    pub fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Refused(WireError::new(ErrorClass::Failed, code, message))
    }

    /// The arguments break a rule; nothing was sent.
    pub fn invalid_arguments(message: impl Into<String>) -> Self {
        Self::NotSent(WireError::invalid(codes::INVALID_ARGUMENTS, message))
    }

    /// No byte left, as when a connection is refused.
    pub fn no_byte_sent(message: impl Into<String>) -> Self {
        Self::NoByteSent(WireError::new(ErrorClass::Unavailable, codes::TOOL_FAILED, message).retryable())
    }

    /// Told to come later, and not executed.
    pub fn throttled(delay: Duration, message: impl Into<String>) -> Self {
        let error = WireError::new(ErrorClass::Unavailable, codes::TOOL_FAILED, message).retryable();
        Self::Throttled { delay, error }
    }

    /// The answer was lost after the request may have left.
    pub fn response_lost(message: impl Into<String>) -> Self {
        Self::Ambiguous(WireError::new(ErrorClass::Unknown, codes::RESPONSE_LOST, message))
    }

    /// Stopped by a cancel after the request may have left.
    pub fn cancelled() -> Self {
        Self::Cancelled(NodeError::cancelled_in_flight().wire().clone())
    }

    /// The answer cannot be read.
    pub fn response_invalid(message: impl Into<String>) -> Self {
        Self::Invalid(WireError::new(ErrorClass::Failed, codes::RESPONSE_INVALID, message))
    }
}

/// An error nobody classified: it may have come after the effect. Its text is published only where that is safe.
impl<E: std::error::Error> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::Ambiguous(WireError::new(ErrorClass::Unknown, codes::TOOL_FAILED, error.to_string()))
    }
}

impl ToolError {
    /// What the sandbox refused was not sent.
    pub fn from_sandbox(error: SandboxError) -> Self {
        match error {
            SandboxError::Denied(_) => {
                Self::NotSent(WireError::new(ErrorClass::Denied, codes::PERMISSION_DENIED, error.to_string()))
            }
            SandboxError::NotFound => Self::refused("NOT_FOUND", error.to_string()),
            SandboxError::NotText => Self::refused("NOT_TEXT", error.to_string()),
            SandboxError::TooLarge(_) => Self::refused(codes::VALUE_TOO_LARGE, error.to_string()),
            SandboxError::Policy(_) | SandboxError::Io(_) => Self::refused(codes::TOOL_FAILED, error.to_string()),
        }
    }

    /// As the node's error; a refusal carries its output separately.
    pub(crate) fn into_node(self) -> NodeError {
        match self {
            Self::Refused(error) => NodeError::Refused { output: None, error },
            Self::NotSent(error) => NodeError::NotSent(error),
            Self::NoByteSent(error) => NodeError::NoByteSent(error),
            Self::Throttled { delay, error } => NodeError::Throttled { delay, error },
            Self::Ambiguous(error) => NodeError::Ambiguous { output: None, error },
            Self::Cancelled(error) => NodeError::Cancelled { output: None, error },
            Self::Invalid(error) => NodeError::Invalid(error),
        }
    }
}
