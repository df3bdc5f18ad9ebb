//! What the verbs of the ledger take and answer.

use std::collections::HashMap;

use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, ClaimToken, Json, LoopName, Namespace, NodeType, OnUnknown, Pool,
    ReceiptState, Revision, RunId, RunStatus, SessionId, SubmitKey, Verdict, WireError, wire::PayloadRef,
};
use ditto_graph::{CallOutcome, Ending};

/// Why a batch was not (certainly) committed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, timed out, or the reply to a commit was lost: give the same batch again.
    #[error("ledger unavailable: {0}")]
    Unavailable(String),
    /// The database is full or read-only: nothing is granted until that changes.
    #[error("ledger takes no writes: {0}")]
    ReadOnly(String),
    /// A value was refused by the database. The batch changed nothing; halve it to find the item.
    #[error("ledger refused a value: {0}")]
    BadItem(String),
    /// The schema is not the one this build knows.
    #[error("ledger schema: {0}")]
    Schema(String),
    /// Anything else: a defect.
    #[error("ledger failed: {0}")]
    Other(String),
}

impl StoreError {
    /// Whether giving the same batch again can help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::ReadOnly(_))
    }
}

/// Result of a store verb.
pub type StoreResult<T> = Result<T, StoreError>;

/// What kind of process a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SessionRole {
    /// Stored as 1.
    Coordinator,
    /// Stored as 2.
    Worker,
}

/// A session to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSession {
    /// Chosen by the process.
    pub session: SessionId,
    /// What it is.
    pub role: SessionRole,
    /// Worker kind; `coordinator` for coordinators.
    pub kind: String,
    /// For people.
    pub name: String,
    /// Version of the program.
    pub build: String,
    /// Exclusive name of the replica: opening declares its earlier sessions dead.
    pub instance: Option<String>,
    /// Life without renewal, in milliseconds.
    pub ttl_ms: u64,
}

/// State of a session after open or renew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// `false`: dead for ever.
    pub alive: bool,
    /// Ledger clock, in milliseconds since 1970.
    pub now_ms: i64,
}

/// A session as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    /// Its id.
    pub session: SessionId,
    /// What it is.
    pub role: SessionRole,
    /// Worker kind.
    pub kind: String,
    /// For people.
    pub name: String,
    /// Version of the program.
    pub build: String,
    /// Started, ledger clock.
    pub started_ms: i64,
    /// Lease ends, ledger clock.
    pub expires_ms: i64,
    /// Declared dead, ledger clock.
    pub dead_ms: Option<i64>,
}

/// A receipt to be written with the checkpoint that decided it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewReceipt {
    /// Identity.
    pub call: CallUid,
    /// Part of the identity.
    pub kind: CallKind,
    /// Part of the identity.
    pub call_id: CallId,
    /// Node type.
    pub node: NodeType,
    /// Tool, `server:tool`, sink.
    pub source: Option<String>,
    /// Queue it goes to.
    pub pool: Option<Pool>,
    /// `iteration/task`.
    pub label: String,
    /// Pinned policy (I3).
    pub policy: CallPolicy,
    /// What the run does with an unknown outcome.
    pub on_unknown: OnUnknown,
    /// Key for the backend.
    pub idem_key: String,
    /// Request bytes; the store keeps them inline or as a payload.
    pub request: Json,
    /// SHA-256 of the request bytes.
    pub request_hash: [u8; 32],
    /// Not to be dispatched for so long, in milliseconds. 0: the caller publishes it (dispatch 1) right after the commit.
    pub delay_ms: u64,
    /// Time for the whole call from now, in milliseconds; becomes `deadline_ms` by the ledger clock.
    pub budget_ms: Option<u64>,
    /// W3C trace context of the step that decided it.
    pub traceparent: Option<String>,
}

/// The part of a commit that says how a run goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// New checkpoint.
    pub checkpoint: Json,
    /// Keep this checkpoint for forks.
    pub boundary: bool,
    /// Receipts of new calls, in order.
    pub receipts: Vec<NewReceipt>,
    /// Receipts to ask to cancel (sets `cancel_ms`).
    pub cancels: Vec<CallUid>,
    /// New status.
    pub status: RunStatus,
    /// When to wake it, ledger clock.
    pub wake_ms: Option<i64>,
    /// Highest signal taken in.
    pub signal_seen: Option<i64>,
    /// Value of the run's bell up to which everything was read.
    pub bell_seen: i64,
    /// How it ended; required exactly when `status` is ended.
    pub ending: Option<Ending>,
    /// What people watching see: a JSON array, or `None`.
    pub progress: Option<Json>,
}

/// A run to create. With a first step it is created, decided and planned in one commit, owned by the session.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRun {
    /// Its id.
    pub run: RunId,
    /// Tenant.
    pub namespace: Namespace,
    /// Idempotency of the submission.
    pub key: Option<SubmitKey>,
    /// SHA-256 over kind, name, revision asked for and input: the same key must come with the same hash.
    pub body_hash: [u8; 32],
    /// Definition.
    pub name: LoopName,
    /// Its revision.
    pub revision: Revision,
    /// Input, inline or as a payload.
    pub input: Json,
    /// Time for the whole run from now, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// W3C trace context of the submission.
    pub traceparent: Option<String>,
    /// First decision; without it the run is queued and unowned.
    pub first: Option<Step>,
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Submitted {
    /// Created; version 1 and epoch 1 when it had a first step, version 0 and epoch 0 otherwise.
    Created,
    /// The key is known with the same body; nothing was created.
    Duplicate {
        /// The earlier run.
        run: RunId,
    },
    /// The key is known with another body; nothing was created.
    KeyReused {
        /// The earlier run.
        run: RunId,
    },
}

/// What a worker said about an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Settle {
    /// The call.
    pub call: CallUid,
    /// The attempt; 0 when unclaimed.
    pub fence: u32,
    /// Proof of it; `None` when unclaimed.
    pub token: Option<ClaimToken>,
    /// Who says so.
    pub session: SessionId,
    /// Request it executed (guards unclaimed calls).
    pub request_hash: [u8; 32],
    /// The verdict.
    pub verdict: Verdict,
    /// Output, inline.
    pub output: Option<Json>,
    /// Output, stored as a payload before.
    pub output_ref: Option<PayloadRef>,
    /// Why, unless succeeded.
    pub error: Option<WireError>,
}

/// What became of a settlement.
#[derive(Debug, Clone, PartialEq)]
pub enum Settled {
    /// Written now, or the very same was written before.
    Done {
        /// Run of the call.
        run: RunId,
        /// New state.
        state: ReceiptState,
        /// `false` for a K call that is unknown and still being reconciled.
        settled: bool,
        /// Number of the settlement.
        settle_rev: i32,
        /// Live owner of the run, to be woken.
        owner: Option<SessionId>,
    },
    /// It matches no current attempt; kept in the attempt log.
    Logged,
    /// There is no such receipt.
    Missing,
}

/// One commit of one run by its owner: settle these calls and go on, or nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Advance {
    /// The run.
    pub run: RunId,
    /// Ownership it was decided under.
    pub epoch: i64,
    /// Version it was decided on; the commit makes it one more.
    pub version: i64,
    /// Settlements the decision rests on. If one does not apply as given, the run does not advance (the others stand).
    pub settles: Vec<Settle>,
    /// The decision.
    pub step: Step,
}

/// What became of an advance.
#[derive(Debug, Clone, PartialEq)]
pub enum Advanced {
    /// Committed (now, or by an earlier try of this very commit).
    Done,
    /// Another owner, epoch or version: drop the run from memory, touch nothing.
    Lost,
    /// A settlement it rests on did not apply; the run is unchanged, read it again.
    Stale,
    /// A call id was used before with another request; the run is unchanged and must end.
    CallIdReused {
        /// The call.
        call: CallUid,
    },
}

/// A call of a run that was taken up again.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCall {
    /// State.
    pub state: ReceiptState,
    /// Outcome once settled; an output kept as a payload is resolved.
    pub outcome: Option<CallOutcome>,
}

/// A signal.
#[derive(Debug, Clone, PartialEq)]
pub struct SignalRow {
    /// Number in its run.
    pub n: i64,
    /// Name.
    pub name: String,
    /// Body.
    pub body: Json,
}

/// A run with everything needed to drive it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedRun {
    /// The run.
    pub run: RunId,
    /// Tenant.
    pub namespace: Namespace,
    /// Definition.
    pub name: LoopName,
    /// Its revision.
    pub revision: Revision,
    /// Input.
    pub input: Json,
    /// Status.
    pub status: RunStatus,
    /// Ownership it was taken with.
    pub epoch: i64,
    /// Version of the checkpoint; 0: never decided.
    pub version: i64,
    /// Last checkpoint.
    pub checkpoint: Option<Json>,
    /// Calls named by the checkpoint (open and kept).
    pub calls: HashMap<CallUid, StoredCall>,
    /// Signals not yet taken in.
    pub signals: Vec<SignalRow>,
    /// Bell read before the calls and signals.
    pub bell: i64,
    /// Somebody asked to cancel.
    pub cancel_asked: bool,
    /// Deadline, ledger clock.
    pub deadline_ms: Option<i64>,
    /// Ledger clock now.
    pub now_ms: i64,
    /// W3C trace context of the submission.
    pub traceparent: Option<String>,
}

/// News of a run that this session owns.
#[derive(Debug, Clone, PartialEq)]
pub struct RunNews {
    /// Bell read before the rest.
    pub bell: i64,
    /// Of the calls asked about, the settled ones.
    pub settled: Vec<(CallUid, CallOutcome)>,
    /// Signals after the one asked about.
    pub signals: Vec<SignalRow>,
    /// Somebody asked to cancel.
    pub cancel_asked: bool,
    /// Ledger clock now.
    pub now_ms: i64,
}

/// What one pass over the runs found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DueRuns {
    /// Owned by the asking session, with a wake time that has come or an unread bell.
    pub mine: Vec<RunId>,
    /// Taken over now: unowned or of a dead session, and active, woken or with an unread bell.
    pub taken: Vec<LoadedRun>,
}

/// A job to publish after the commit that found it due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueJob {
    /// Identity.
    pub call: CallUid,
    /// Its run.
    pub run: RunId,
    /// Node type.
    pub node: NodeType,
    /// Queue.
    pub pool: Option<Pool>,
    /// Policy.
    pub policy: CallPolicy,
    /// Ask the backend instead of executing.
    pub query: bool,
    /// Key, for queries.
    pub idem_key: String,
    /// Number of this dispatch.
    pub dispatch_no: u32,
    /// Request inline; `None` when it is a payload.
    pub request: Option<Json>,
    /// Request as a payload.
    pub request_ref: Option<PayloadRef>,
    /// SHA-256 of the request.
    pub request_hash: [u8; 32],
    /// Remaining time, in milliseconds.
    pub budget_ms: Option<u64>,
    /// Trace of the step that decided it.
    pub traceparent: Option<String>,
}

/// A receipt that a sweeper, a query or a person changed, and whom to wake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The call.
    pub call: CallUid,
    /// Its run.
    pub run: RunId,
    /// New state.
    pub state: ReceiptState,
    /// Whether it is settled now.
    pub settled: bool,
    /// Live owner of the run.
    pub owner: Option<SessionId>,
}

/// What a backend said when it was asked by key (receipts contract §16).
#[derive(Debug, Clone, PartialEq)]
pub enum QueryAnswer {
    /// It did it.
    Applied {
        /// Output, as the call itself would have given it.
        output: Option<Json>,
    },
    /// It refused, and refusals are stored.
    Refused {
        /// Output, if any.
        output: Option<Json>,
        /// Why.
        error: WireError,
    },
    /// It knows the key with another request.
    Conflict,
    /// It is still at it: ask again.
    InProgress,
    /// It does not know the key: send again with the same key, if window, attempts and deadline allow.
    Absent,
    /// It could not be asked: ask again.
    Unanswered,
}

/// What a person decides about an unknown outcome.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    /// It happened.
    Succeeded {
        /// Output to hand to the run, if known.
        output: Option<Json>,
    },
    /// It did not happen and cannot happen any more.
    Failed,
    /// Make another attempt although the earlier one is unresolved.
    AnotherAttempt,
}

/// What became of a resolution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// Written.
    Done(Changed),
    /// Somebody settled it first.
    Conflict {
        /// Number of the settlement that stands.
        settle_rev: i32,
        /// State that stands.
        state: ReceiptState,
    },
    /// The receipt is in no state a person may resolve.
    NotUnknown {
        /// Its state.
        state: ReceiptState,
    },
    /// The worker's session may still be alive: another attempt is not offered yet.
    SessionMayLive,
    /// There is no such receipt.
    Missing,
}
