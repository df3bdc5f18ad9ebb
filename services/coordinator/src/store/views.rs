//! What people and programs read of the ledger.

use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, Json, LoopName, Namespace, NodeType, Pool, ReceiptState, Revision, RunId,
    RunStatus, SessionId, SettledBy, SubmitKey, WireError, wire::ledger::Offer,
};

/// A run as people see it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub namespace: Namespace,
    /// Definition.
    pub name: LoopName,
    /// Its revision.
    pub revision: Revision,
    /// Submit key.
    pub key: Option<SubmitKey>,
    /// Status.
    pub status: RunStatus,
    /// Version of its checkpoint.
    pub version: i64,
    /// Owner session.
    pub owner: Option<SessionId>,
    /// Created, ledger clock.
    pub created_ms: i64,
    /// Ended, ledger clock.
    pub ended_ms: Option<i64>,
    /// Next wake, ledger clock.
    pub wake_ms: Option<i64>,
    /// Deadline, ledger clock.
    pub deadline_ms: Option<i64>,
    /// Cancel asked for, ledger clock.
    pub cancel_ms: Option<i64>,
    /// Input.
    pub input: Json,
    /// Output, once ended.
    pub output: Option<Json>,
    /// Error, once ended.
    pub error: Option<WireError>,
}

/// Which runs to list, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RunFilter {
    /// Only of this tenant.
    pub namespace: Option<Namespace>,
    /// Only with one of these; empty: any.
    pub statuses: Vec<RunStatus>,
    /// Only of this definition.
    pub name: Option<LoopName>,
    /// Only those that sort before this one (keyset page).
    pub before: Option<RunId>,
}

/// A receipt as people see it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptRow {
    /// The call.
    pub call: CallUid,
    /// Its run.
    pub run: RunId,
    /// Kind.
    pub kind: CallKind,
    /// Id in the run.
    pub call_id: CallId,
    /// Node type.
    pub node: NodeType,
    /// Tool, `server:tool`, sink.
    pub source: Option<String>,
    /// Queue.
    pub pool: Option<Pool>,
    /// `iteration/task`.
    pub label: String,
    /// Pinned policy.
    pub policy: CallPolicy,
    /// Key at the backend.
    pub idem_key: String,
    /// Request; `None` when only its payload reference is given.
    pub request: Option<Json>,
    /// State.
    pub state: ReceiptState,
    /// Attempts granted.
    pub fence: i32,
    /// Attempts whose end is not known.
    pub unresolved: i32,
    /// Dispatches.
    pub dispatch_no: i32,
    /// Session of the last claim.
    pub session: Option<SessionId>,
    /// Decided, ledger clock.
    pub created_ms: i64,
    /// Last claim, ledger clock.
    pub claimed_ms: Option<i64>,
    /// Settled, ledger clock.
    pub settled_ms: Option<i64>,
    /// Who settled it.
    pub settled_by: Option<SettledBy>,
    /// Number of the settlement.
    pub settle_rev: i32,
    /// Output.
    pub output: Option<Json>,
    /// Error.
    pub error: Option<WireError>,
}

/// Which receipts to list, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReceiptFilter {
    /// Only of this run (then in the order they were decided).
    pub run: Option<RunId>,
    /// Only of this tenant.
    pub namespace: Option<Namespace>,
    /// Only in one of these states; empty: any.
    pub states: Vec<ReceiptState>,
    /// Keyset page: only those after this one in the listing's order.
    pub after: Option<CallUid>,
}

/// One entry of the attempt log.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptRow {
    /// Attempt it belongs to.
    pub fence: i32,
    /// `superseded`, `released`, `late`, `query`, `person`.
    pub event: String,
    /// Details as JSON.
    pub detail: Json,
    /// When, ledger clock.
    pub at_ms: i64,
}

/// What happened at one version of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Version.
    pub version: i64,
    /// When, ledger clock.
    pub at_ms: i64,
    /// A JSON array of progress entries.
    pub progress: Json,
}

/// A registered definition.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinitionRow {
    /// Tenant.
    pub namespace: Namespace,
    /// Name.
    pub name: LoopName,
    /// Hash of its canonical form.
    pub revision: Revision,
    /// The text as registered.
    pub source: String,
    /// Registered, ledger clock.
    pub created_ms: i64,
}

/// One offer of one live session.
#[derive(Debug, Clone, PartialEq)]
pub struct OfferRow {
    /// Who offers.
    pub session: SessionId,
    /// Worker kind.
    pub kind: String,
    /// Queue it consumes.
    pub pool: Option<Pool>,
    /// The offer.
    pub offer: Offer,
}

/// Numbers a scraper wants, read together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LedgerCounts {
    /// Runs that are not over, by status.
    pub runs: Vec<(RunStatus, u64)>,
    /// Open receipts by state.
    pub open_receipts: Vec<(ReceiptState, u64)>,
    /// Settled receipts that are unknown.
    pub unknown_receipts: u64,
    /// Planned receipts per queue (`node` or `node.pool`): count and age of the oldest in milliseconds.
    pub backlog: Vec<(String, u64, u64)>,
}
