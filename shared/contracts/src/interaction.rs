//! The values of the INTERACTION nodes: tool calls, external results, observations and output receipts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Json, WireError};

mod check;

pub use check::InteractionProblem;

/// One request to a tool or an MCP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ToolCall {
    /// Identity of the call in its run.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// A JSON object.
    pub arguments: Json,
}

/// Input of `INTERACTION.ACT.TOOL`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActToolInput {
    /// The call.
    pub call: ToolCall,
}

/// How an external action ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExternalStatus {
    /// It happened.
    Success,
    /// It did not happen: refused, or failed before anything was done.
    Failed,
    /// Cancelled, and nothing was done.
    Cancelled,
    /// Too late, and nothing was done.
    Timeout,
    /// It may or may not have happened.
    Unknown,
}

impl ExternalStatus {
    /// The text on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
        }
    }
}

/// The error inside a result: already safe for people and models.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InteractionError {
    /// 1 to 64 characters of `A-Z a-z 0-9 _ . -`.
    pub code: String,
    /// 1 to 512 characters without control characters, credentials or absolute paths.
    pub message: String,
    /// A hint; nothing acts on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

impl From<WireError> for InteractionError {
    fn from(error: WireError) -> Self {
        Self { code: error.code, message: error.message, retryable: Some(error.retryable) }
    }
}

/// Something kept elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reference {
    /// Where; not blank.
    pub uri: String,
    /// Media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// Digest of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// What a tool or an MCP server answered, or what is known about its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalResult {
    /// The call this answers.
    pub call_id: String,
    /// Tool name, or `server:tool`.
    pub source: String,
    /// How it ended.
    pub status: ExternalStatus,
    /// What it said; `null` is content, absent is not.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub content: Option<Json>,
    /// Structured answer.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub structured_content: Option<Json>,
    /// Things kept elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub references: Option<Vec<Reference>>,
    /// Required unless the status is success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<InteractionError>,
    /// A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub metadata: Option<Json>,
}

/// Keeps `null` apart from an absent field.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

impl ExternalResult {
    /// A result without content that carries an error.
    pub fn with_error(
        call_id: impl Into<String>,
        source: impl Into<String>,
        status: ExternalStatus,
        error: InteractionError,
    ) -> Self {
        Self {
            call_id: call_id.into(),
            source: source.into(),
            status,
            content: None,
            structured_content: None,
            references: None,
            error: Some(error),
            metadata: None,
        }
    }
}

/// Who speaks in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// A person.
    User,
    /// The model or the loop.
    Assistant,
    /// A tool.
    Tool,
}

/// One chat message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// Any JSON value; must be present, may be null.
    pub content: Json,
    /// Name of the speaker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// An external result made into a tool message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// The call that was observed.
    pub call_id: String,
    /// Tool name, or `server:tool`.
    pub source: String,
    /// Status of the observed result, never upgraded.
    pub status: ExternalStatus,
    /// The tool message.
    pub message: Message,
    /// As in the observed result.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub structured_content: Option<Json>,
    /// As in the observed result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub references: Option<Vec<Reference>>,
    /// As in the observed result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<InteractionError>,
    /// As in the observed result.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub metadata: Option<Json>,
}

/// A named thing that goes with a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Artifact {
    /// Not blank.
    pub name: String,
    /// Where it is.
    pub reference: Reference,
}

/// Input of `INTERACTION.OUTPUT`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OutputInput {
    /// Identity of the delivery in its run.
    pub delivery_id: String,
    /// What to deliver.
    pub message: Message,
    /// What goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<Artifact>>,
}

/// How a delivery ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryStatus {
    /// The sink took it. Not: delivered or read.
    Accepted,
    /// The sink refused it.
    Rejected,
    /// The sink may or may not have taken it.
    Unknown,
}

/// What a sink answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputReceipt {
    /// The delivery this answers.
    pub delivery_id: String,
    /// How it ended.
    pub status: DeliveryStatus,
    /// What was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<Artifact>>,
    /// Required unless accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<InteractionError>,
    /// A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub metadata: Option<Json>,
}
