//! What can go wrong: in a handler ([`NodeError`]), in a query ([`QueryAnswer`]) and in the worker ([`WorkerError`]).

use std::time::Duration;

use ditto_contracts::{ErrorClass, Json, WireError, codes};
use serde::Serialize;

/// How an attempt ended when it was no success. The variant says what is *known* about the effect; what that means for
/// the class of the call is decided in one place, [`crate::verdict_for`].
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NodeError {
    /// Refused before anything was sent: arguments, permission, unknown tool.
    #[error("{0}")]
    NotSent(WireError),
    /// No byte of the request left: name resolution, connection or TLS refused. May be tried again.
    #[error("{0}")]
    NoByteSent(WireError),
    /// The backend said "later" and its contract says that this means "not executed".
    #[error("{error}")]
    Throttled {
        /// When it may be tried again.
        delay: Duration,
        /// What it said.
        error: WireError,
    },
    /// A definite answer: it did not happen.
    #[error("{error}")]
    Refused {
        /// The node's output that says so.
        output: Option<Json>,
        /// Why.
        error: WireError,
    },
    /// It may or may not have happened: timeout, reset, gateway error, lost stream.
    #[error("{error}")]
    Ambiguous {
        /// An output that says so, if the contract of the node has one.
        output: Option<Json>,
        /// Why.
        error: WireError,
    },
    /// Cancelled after the request may have left.
    #[error("{error}")]
    Cancelled {
        /// An output that says so, if the contract of the node has one.
        output: Option<Json>,
        /// Why.
        error: WireError,
    },
    /// An answer arrived that cannot be read, breaks its contract or names another call.
    #[error("{0}")]
    Invalid(WireError),
}

impl NodeError {
    /// Refused before anything was sent, because the input breaks a rule.
    pub fn invalid_input(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::NotSent(WireError::invalid(code, message))
    }

    /// Refused before anything was sent, because it is not allowed.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::NotSent(WireError::new(ErrorClass::Denied, codes::PERMISSION_DENIED, message))
    }

    /// A definite refusal without an output.
    pub fn refused(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Refused { output: None, error: WireError::new(ErrorClass::Failed, code, message) }
    }

    /// A definite refusal that the node's own output expresses.
    pub fn refused_with<T: Serialize>(output: &T, error: WireError) -> Self {
        Self::Refused { output: Json::from_serialize(output).ok(), error }
    }

    /// An outcome nobody knows.
    pub fn ambiguous(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Ambiguous { output: None, error: WireError::new(ErrorClass::Unknown, code, message) }
    }

    /// An answer that cannot be used.
    pub fn response_invalid(message: impl Into<String>) -> Self {
        Self::Invalid(WireError::new(ErrorClass::Failed, codes::RESPONSE_INVALID, message))
    }

    /// Stopped because the caller cancelled, after the request may have left.
    pub fn cancelled_in_flight() -> Self {
        let message = "cancelled while it was in flight";
        Self::Cancelled {
            output: None,
            error: WireError::new(ErrorClass::Cancelled, codes::CANCELLED_IN_FLIGHT, message),
        }
    }

    /// The error inside.
    pub fn wire(&self) -> &WireError {
        match self {
            Self::NotSent(error) | Self::NoByteSent(error) | Self::Invalid(error) => error,
            Self::Throttled { error, .. }
            | Self::Refused { error, .. }
            | Self::Ambiguous { error, .. }
            | Self::Cancelled { error, .. } => error,
        }
    }
}

/// What a backend answered when it was asked by key what became of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryAnswer<T> {
    /// It happened, with this output.
    Applied(T),
    /// The key is known with another request.
    Conflict,
    /// It was refused and the backend remembers refusals under the key.
    Refused {
        /// The output that says so.
        output: Option<T>,
        /// Why.
        error: WireError,
    },
    /// The backend is still working on it.
    InProgress,
    /// The backend does not know the key. Not a proof that nothing will happen.
    Absent,
    /// The backend could not be asked.
    Unanswered,
}

impl<T> QueryAnswer<T> {
    /// The same answer with another output.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn try_map<U, E>(self, mut change: impl FnMut(T) -> Result<U, E>) -> Result<QueryAnswer<U>, E> {
        Ok(match self {
            Self::Applied(output) => QueryAnswer::Applied(change(output)?),
            Self::Conflict => QueryAnswer::Conflict,
            Self::Refused { output, error } => {
                QueryAnswer::Refused { output: output.map(&mut change).transpose()?, error }
            }
            Self::InProgress => QueryAnswer::InProgress,
            Self::Absent => QueryAnswer::Absent,
            Self::Unanswered => QueryAnswer::Unanswered,
        })
    }
}

/// Why a worker ended although nobody asked it to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// The session was declared dead: what was held is reported; go on with a new session or exit.
    #[error("the session is over")]
    SessionLost,
    /// The worker is put together wrongly.
    #[error("invalid worker: {0}")]
    Invalid(String),
    /// A part of the worker ended unexpectedly: a defect.
    #[error("a task of the worker ended unexpectedly")]
    Task,
    /// The work in hand was not finished within the drain time.
    #[error("the drain time passed with {left} calls in hand")]
    DrainTimeout {
        /// How many calls were left.
        left: usize,
    },
}
