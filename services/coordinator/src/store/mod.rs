//! The ledger: the only truth. The coordinator is the sole owner of its tables.
//!
//! The seam speaks in commits, not rows. Every verb is keyed (run and version, claim token, fence and token, submit key),
//! so **repeating it is always safe**: a verb whose reply was lost is simply given again, with the same arguments, and
//! answers what the first one did. Two implementations stand behind it, Postgres and SQLite, under one
//! conformance suite.

pub(crate) mod rows;
pub mod postgres;
pub mod sqlite;

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::{
    Bucket, CallId, CallKind, CallPolicy, CallUid, ClaimToken, Json, LoopName, Namespace, NodeType, OnUnknown, Pool,
    ReceiptState, Revision, RunId, RunStatus, SessionId, SettledBy, SubmitKey, Verdict, WireError,
    wire::{
        PayloadRef,
        ledger::{ClaimAnswer, ClaimItem, Offer, ReleaseItem},
    },
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

/// The ledger.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    // --- sessions -------------------------------------------------------------------------------------------------
    /// Opens a session; the same id again is the same session.
    async fn session_open(&self, session: &NewSession) -> StoreResult<Lease>;
    /// Extends a session by its ttl.
    async fn session_renew(&self, session: &SessionId, ttl_ms: u64) -> StoreResult<Lease>;
    /// Ends a session: dead at once. Also used by a person (`ditto sessions end`).
    async fn session_close(&self, session: &SessionId) -> StoreResult<()>;
    /// Declares dead what expired longer than `grace` ago.
    async fn sessions_expire(&self, grace: Duration) -> StoreResult<Vec<SessionId>>;
    /// Sessions, live ones first.
    async fn sessions_list(&self, limit: u32) -> StoreResult<Vec<SessionRow>>;
    /// Replaces what a session offers.
    async fn offers_put(&self, session: &SessionId, kind: &str, pool: Option<&Pool>, offers: &[Offer]) -> StoreResult<()>;
    /// Offers of all live sessions.
    async fn offers_live(&self) -> StoreResult<Vec<OfferRow>>;

    // --- hot verbs: one call is one commit, answers in the order of the items -----------------------------------------
    /// T1 for new runs.
    async fn submit(&self, owner: &SessionId, runs: &[NewRun]) -> StoreResult<Vec<Submitted>>;
    /// T1 (and T3 of the settlements it rests on). No run appears twice in a batch.
    async fn advance(&self, owner: &SessionId, items: &[Advance]) -> StoreResult<Vec<Advanced>>;
    /// T2. No call appears twice in a batch.
    async fn claim(&self, session: &SessionId, items: &[ClaimItem]) -> StoreResult<Vec<ClaimAnswer>>;
    /// Rows 3 and 6: `true` where the attempt was this session's and is planned again.
    async fn release(&self, session: &SessionId, items: &[ReleaseItem]) -> StoreResult<Vec<bool>>;
    /// T3 for calls whose run this process does not drive; rings the run's bell. No call appears twice in a batch.
    async fn settle(&self, items: &[Settle]) -> StoreResult<Vec<Settled>>;

    // --- runs ------------------------------------------------------------------------------------------------------
    /// Runs that need their owner now, and runs that need one.
    async fn runs_due(&self, owner: &SessionId, take_max: u32) -> StoreResult<DueRuns>;
    /// Runs this session owns, in no order. Compared with what is in memory from time to time: an owned run that nobody
    /// drives would otherwise wait for ever.
    async fn runs_owned(&self, owner: &SessionId, limit: u32) -> StoreResult<Vec<RunId>>;
    /// Takes one run over if it has no live owner and is not over (used to wake a parked run at once).
    async fn run_take(&self, owner: &SessionId, run: &RunId) -> StoreResult<Option<LoadedRun>>;
    /// News of a run this session owns: which of these open calls are settled, signals after `signal_seen`, cancel.
    async fn run_news(&self, run: &RunId, open: &[CallUid], signal_seen: i64) -> StoreResult<Option<RunNews>>;
    /// Gives runs back: no owner, taken up by whoever comes first (used when draining).
    async fn runs_yield(&self, owner: &SessionId, runs: &[RunId]) -> StoreResult<()>;
    /// Asks to cancel; rings the bell. `None`: no such run. Repeating it, also after the end, is fine.
    async fn run_cancel(&self, namespace: &Namespace, run: &RunId) -> StoreResult<Option<RunRow>>;
    /// Appends a signal once per `request_id`; rings the bell. `None`: no such run or it is over.
    async fn signal_append(
        &self,
        namespace: &Namespace,
        run: &RunId,
        name: &str,
        body: &Json,
        request_id: Option<&str>,
    ) -> StoreResult<Option<i64>>;
    /// One run.
    async fn run_get(&self, namespace: Option<&Namespace>, run: &RunId) -> StoreResult<Option<RunRow>>;
    /// Runs, newest first.
    async fn runs_list(&self, filter: &RunFilter, limit: u32) -> StoreResult<Vec<RunRow>>;
    /// Progress after a version, in order.
    async fn events_after(&self, run: &RunId, version: i64, limit: u32) -> StoreResult<Vec<EventRow>>;

    // --- receipts -----------------------------------------------------------------------------------------------------
    /// One receipt.
    async fn receipt_get(&self, call: &CallUid) -> StoreResult<Option<ReceiptRow>>;
    /// Receipts.
    async fn receipts_list(&self, filter: &ReceiptFilter, limit: u32) -> StoreResult<Vec<ReceiptRow>>;
    /// Attempt log of a call, oldest first.
    async fn attempts_list(&self, call: &CallUid, limit: u32) -> StoreResult<Vec<AttemptRow>>;
    /// Appends evidence that changed nothing (I15), e.g. an unreadable result.
    async fn attempt_log(&self, call: &CallUid, fence: u32, detail: &Json) -> StoreResult<()>;
    /// A person's decision; rings the bell.
    async fn receipt_resolve(
        &self,
        call: &CallUid,
        settle_rev: i32,
        resolution: &Resolution,
        who: &str,
        reason: &str,
    ) -> StoreResult<Resolved>;
    /// What queries found out (rows 7, 8; §16); rings bells.
    async fn reconcile(&self, answers: &[(CallUid, QueryAnswer)]) -> StoreResult<Vec<Option<Changed>>>;
    /// Of these held calls of a session: which are settled, and which have a cancel asked for.
    async fn held_review(&self, session: &SessionId, calls: &[CallUid]) -> StoreResult<(Vec<CallUid>, Vec<CallUid>)>;

    // --- sweepers: each call is one bounded pass, guards repeated in the update ---------------------------------------------
    /// Rows 5 and 6: open claims of dead sessions.
    async fn sweep_lost_claims(&self, limit: u32) -> StoreResult<Vec<Changed>>;
    /// Planned and due: next dispatch number and due time are written, the jobs are returned for publishing.
    async fn sweep_dispatch(&self, limit: u32) -> StoreResult<Vec<DueJob>>;
    /// Unknown, open and due (K): a query job, or planned again when there is no query (row 7).
    async fn sweep_reconcile(&self, limit: u32) -> StoreResult<Vec<DueJob>>;
    /// Rows 10, 11, 12: cancelled, past deadline, attempts, dispatches, window, reconcile time. `reconcile_window`
    /// bounds how long an unknown K call is asked about.
    async fn sweep_limits(&self, reconcile_window: Duration, limit: u32) -> StoreResult<Vec<Changed>>;
    /// Fails planned, never claimed receipts of (node, source) that nobody serves for longer than `wait`
    /// (`NO_WORKER_AVAILABLE`). `served` lists what live sessions offer.
    async fn sweep_unserved(&self, wait: Duration, limit: u32) -> StoreResult<Vec<Changed>>;
    /// Makes the planned receipts of these runs due now: whoever took them over cannot know what was published.
    async fn dispatch_runs(&self, runs: &[RunId]) -> StoreResult<u64>;
    /// Makes every planned receipt due now (the bus lost its streams).
    async fn dispatch_all(&self) -> StoreResult<u64>;
    /// Prunes intermediate checkpoints and drops days whose runs all ended longer ago than `retention`; on Postgres also
    /// creates partitions ahead. Bounded work per call; `true`: call again.
    async fn sweep_retention(&self, retention: Duration) -> StoreResult<bool>;

    // --- payloads, definitions, numbers -------------------------------------------------------------------------------------
    /// Stores one piece; `true` once the whole is there and its digest is right.
    async fn payload_put(&self, bucket: Bucket, payload: &PayloadRef, offset: u32, chunk: &[u8]) -> StoreResult<bool>;
    /// A whole payload.
    async fn payload_get(&self, bucket: Bucket, payload: &PayloadRef) -> StoreResult<Option<Bytes>>;
    /// Registers a definition; the same revision again changes nothing but makes it the newest.
    async fn definition_put(&self, definition: &DefinitionRow) -> StoreResult<()>;
    /// A definition: this revision, or the newest.
    async fn definition_get(
        &self,
        namespace: &Namespace,
        name: &LoopName,
        revision: Option<&Revision>,
    ) -> StoreResult<Option<DefinitionRow>>;
    /// Newest revision of each definition, by name.
    async fn definitions_list(&self, namespace: &Namespace, after: Option<&LoopName>, limit: u32) -> StoreResult<Vec<DefinitionRow>>;
    /// Numbers for metrics.
    async fn counts(&self) -> StoreResult<LedgerCounts>;
    /// A round trip; the ledger clock in milliseconds since 1970.
    async fn now_ms(&self) -> StoreResult<i64>;
    /// For people: product, version and durability settings, without credentials.
    async fn describe(&self) -> StoreResult<Vec<(String, String)>>;
}
