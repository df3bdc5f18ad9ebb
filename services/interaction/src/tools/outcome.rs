//! What a tool answers.

use ditto_contracts::{
    Json,
    interaction::{ExternalResult, ExternalStatus, InteractionError, Reference},
};
use serde::Serialize;

/// An external result without identity: call id and source are set by the node, a tool cannot.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutcome {
    /// How it ended.
    pub status: ExternalStatus,
    /// What it said.
    pub content: Option<Json>,
    /// Structured answer.
    pub structured_content: Option<Json>,
    /// Things kept elsewhere.
    pub references: Option<Vec<Reference>>,
    /// Required unless the status is success.
    pub error: Option<InteractionError>,
    /// A JSON object.
    pub metadata: Option<Json>,
}

impl ToolOutcome {
    fn of(status: ExternalStatus) -> Self {
        Self { status, content: None, structured_content: None, references: None, error: None, metadata: None }
    }

    /// A success with this text.
    pub fn text(text: &str) -> Self {
        Self { content: Some(Json::string(text)), ..Self::of(ExternalStatus::Success) }
    }

    /// A success with this structure.
    pub fn structured(value: Json) -> Self {
        Self { structured_content: Some(value), ..Self::of(ExternalStatus::Success) }
    }

    /// A definite failure: nothing happened.
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> Self {
        let error = InteractionError { code: code.into(), message: message.into(), retryable: None };
        Self { error: Some(error), ..Self::of(ExternalStatus::Failed) }
    }

    /// An outcome nobody knows.
    pub fn unknown(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: ExternalStatus::Unknown, ..Self::failed(code, message) }
    }

    pub(crate) fn into_result(self, call_id: &str, source: &str) -> ExternalResult {
        ExternalResult {
            call_id: call_id.to_owned(),
            source: source.to_owned(),
            status: self.status,
            content: self.content,
            structured_content: self.structured_content,
            references: self.references,
            error: self.error,
            metadata: self.metadata,
        }
    }
}

/// What a tool's function may return: an outcome, or any value that becomes the structured answer of a success.
pub trait IntoOutcome {
    /// The outcome.
    ///
    /// # Errors
    /// When the value cannot be written as JSON.
    fn into_outcome(self) -> Result<ToolOutcome, serde_json::Error>;
}

impl IntoOutcome for ToolOutcome {
    fn into_outcome(self) -> Result<ToolOutcome, serde_json::Error> {
        Ok(self)
    }
}

impl<T: Serialize> IntoOutcome for T {
    fn into_outcome(self) -> Result<ToolOutcome, serde_json::Error> {
        Json::from_serialize(&self).map(ToolOutcome::structured)
    }
}
