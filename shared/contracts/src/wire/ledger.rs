//! The ledger requests of workers: open, announce, claim, release, renew, close, put, get.
//!
//! Workers hold no credentials for the ledger; whichever coordinator answers does the write.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Bucket, CallPolicy, CallUid, ClaimToken, Json, NodeType, Pool, ReceiptState, SessionId, WireError};

/// Opens a session. Repeating it with the same id is the same session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OpenRequest {
    /// Chosen by the worker, random.
    pub session: SessionId,
    /// `interaction`, `context`, `memory`, `infer`, or a name of the user's own: lower-case letters, digits, `-`.
    pub worker_kind: String,
    /// For people: host or replica name.
    pub name: String,
    /// Version of the program.
    pub build: String,
    /// A name of this replica that no other live process has; its earlier sessions are declared dead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Wire version the worker speaks.
    pub wire: u32,
}

/// The answer to [`OpenRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenReply {
    /// How long the session lives without a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// How long before the end of the lease the worker must stop starting effects, in milliseconds.
    pub margin_ms: u64,
}

/// One thing a worker serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offer {
    /// The node type.
    pub node: NodeType,
    /// The tool, `server:tool` or sink within the node; absent: the node itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// What a call of it may do.
    #[serde(default)]
    pub policy: CallPolicy,
    /// For people and models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Json>,
    /// Declared effects: read, write, execute, network.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<String>,
    /// Whether a person must approve each call.
    #[serde(default)]
    pub requires_approval: bool,
}

/// Announces what a session serves; replaces what it announced before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnnounceRequest {
    /// The session.
    pub session: SessionId,
    /// As in [`OpenRequest`].
    pub worker_kind: String,
    /// The queue it consumes; absent: the default queue of its node types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// What it serves.
    pub offers: Vec<Offer>,
}

/// The answer to [`AnnounceRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnnounceReply {
    /// The durable consumer to pull from.
    pub consumer: String,
    /// Offers that contradict another live session; the stricter policy rules.
    #[serde(default)]
    pub conflicts: Vec<String>,
}

/// One call a worker wants to attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimItem {
    /// Day of its run.
    pub bucket: Bucket,
    /// The call.
    pub call: CallUid,
    /// Chosen by the worker; the same when it repeats this request.
    pub token: ClaimToken,
}

/// Claims calls; up to [`crate::limits::CLAIM_BATCH_MAX`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRequest {
    /// Who asks.
    pub session: SessionId,
    /// The calls.
    pub items: Vec<ClaimItem>,
}

/// What became of one claim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ClaimAnswer {
    /// The attempt is this worker's.
    Granted {
        /// Number of the attempt.
        fence: u32,
        /// Earlier attempts whose end is not known.
        earlier_unresolved: u32,
        /// Key for the backend.
        key: String,
        /// SHA-256 of the request, hexadecimal: the worker executes only a request with this hash.
        request_hash: String,
        /// The ledger's policy of the call; wins over the job's headers.
        policy: CallPolicy,
        /// Remaining time, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget_ms: Option<u64>,
    },
    /// It is over.
    Settled {
        /// Its state.
        state: ReceiptState,
    },
    /// Another attempt holds it.
    Taken,
    /// It may not start.
    Refused {
        /// `CANCELLED`, `DEADLINE_EXCEEDED`, `ATTEMPTS_EXHAUSTED` or `SESSION_DEAD`.
        reason: String,
    },
    /// There is no such receipt: nothing may be executed.
    Missing,
}

/// The answers in the order of the items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimReply {
    /// One per item.
    pub answers: Vec<ClaimAnswer>,
}

/// One attempt a worker gives back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseItem {
    /// Day of its run.
    pub bucket: Bucket,
    /// The call.
    pub call: CallUid,
    /// The attempt.
    pub fence: u32,
    /// Proof of it.
    pub token: ClaimToken,
    /// No request byte was sent: proven unstarted. Otherwise only class R is put back.
    pub unstarted: bool,
    /// When it may be tried again, in milliseconds from now.
    pub delay_ms: u64,
    /// Why, for the attempt log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// Gives attempts back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Who asks.
    pub session: SessionId,
    /// The attempts.
    pub items: Vec<ReleaseItem>,
}

/// One `true` per item that was put back; `false`: it was not this worker's any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseReply {
    /// In the order of the items.
    pub done: Vec<bool>,
}

/// One call a worker holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeldItem {
    /// Day of its run.
    pub bucket: Bucket,
    /// The call.
    pub call: CallUid,
    /// The attempt; 0 when unclaimed.
    pub fence: u32,
}

/// Extends the session and reports what it holds that is older than 5 s.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    /// Who asks.
    pub session: SessionId,
    /// What it holds.
    #[serde(default)]
    pub held: Vec<HeldItem>,
}

/// The answer to [`RenewRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewReply {
    /// `false`: the session is dead; start nothing, finish reporting, exit.
    pub alive: bool,
    /// New remaining life of the session, in milliseconds.
    pub ttl_ms: u64,
    /// Held calls whose outcome is settled: their results need not be kept.
    #[serde(default)]
    pub settled: Vec<CallUid>,
    /// Held calls that should stop.
    #[serde(default)]
    pub cancel: Vec<CallUid>,
}

/// Ends a session in an orderly way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CloseRequest {
    /// Who closes.
    pub session: SessionId,
}

/// Stores one piece of a payload. Pieces may be repeated; the payload exists once all bytes are there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutRequest {
    /// Day of the run it belongs to.
    pub bucket: Bucket,
    /// `<sha256 hex>.<size>` of the whole.
    pub payload: String,
    /// Offset of this piece, in bytes.
    pub offset: u32,
    /// The piece, base64.
    pub chunk: String,
}

/// The answer to [`PutRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PutReply {
    /// Whether the whole payload is stored.
    pub stored: bool,
}

/// Reads one piece of a payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetRequest {
    /// Day of the run it belongs to.
    pub bucket: Bucket,
    /// `<sha256 hex>.<size>` of the whole.
    pub payload: String,
    /// Offset of the piece, in bytes.
    pub offset: u32,
}

/// The answer to [`GetRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GetReply {
    /// The piece, base64; absent when there is no such payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<String>,
}

/// Stops calls at one worker session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CancelNotice {
    /// The calls.
    pub calls: Vec<CallUid>,
}

/// Tells a worker session which results are settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfirmNotice {
    /// The calls.
    pub calls: Vec<CallUid>,
}
