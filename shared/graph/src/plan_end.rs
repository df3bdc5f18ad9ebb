//! How a plan function ends its run.

use ditto_contracts::{Json, RunStatus, WireError};

use crate::Ending;

/// How a plan function ends its run.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanEnd {
    /// As defined.
    Completed(Json),
    /// Before its goal, with a usable part.
    Partial {
        /// The part.
        output: Json,
        /// What is missing.
        error: WireError,
    },
    /// Only a person can decide how to go on.
    NeedsHuman {
        /// What there is.
        output: Json,
        /// What is to be decided.
        error: WireError,
    },
    /// With an error.
    Failed(WireError),
}

impl<E: Into<WireError>> From<Result<Json, E>> for PlanEnd {
    fn from(result: Result<Json, E>) -> Self {
        result.map_or_else(|error| Self::Failed(error.into()), Self::Completed)
    }
}

impl<E: Into<WireError>> From<Result<PlanEnd, E>> for PlanEnd {
    fn from(result: Result<PlanEnd, E>) -> Self {
        result.unwrap_or_else(|error| Self::Failed(error.into()))
    }
}

impl From<PlanEnd> for Ending {
    fn from(end: PlanEnd) -> Self {
        match end {
            PlanEnd::Completed(output) => Self { status: RunStatus::Completed, output: Some(output), error: None },
            PlanEnd::Partial { output, error } => {
                Self { status: RunStatus::Partial, output: Some(output), error: Some(error) }
            }
            PlanEnd::NeedsHuman { output, error } => {
                Self { status: RunStatus::NeedsHuman, output: Some(output), error: Some(error) }
            }
            PlanEnd::Failed(error) => Self { status: RunStatus::Failed, output: None, error: Some(error) },
        }
    }
}
