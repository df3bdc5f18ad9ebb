//! A submission and its answer, the same over NATS and HTTP.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Json, RunId, SubmitKey, status::stored_enum};

stored_enum! {
    /// What is submitted.
    SubmitKind {
        /// One node, executed once. The name is its node type.
        Node = 1 "node",
        /// One registered graph, executed once.
        Graph = 2 "graph",
        /// One registered loop.
        Loop = 3 "loop",
    }
}

/// The body of a submission.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitBody {
    /// Makes the submission idempotent: the same key is the same run; the same key with another body is a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SubmitKey>,
    /// The input; checked against the definition's schema.
    #[serde(default)]
    pub input: Json,
    /// Revision to run; absent: the newest registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<crate::Revision>,
}

/// The answer to an accepted submission, sent after the run is durable.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubmitReply {
    /// The run.
    pub run_id: RunId,
    /// Whether the key was known: the run was there before.
    pub duplicate: bool,
}
