//! The ledger: the only truth. The coordinator is the sole owner of its tables.
//!
//! The seam speaks in commits, not rows. Every verb is keyed (run and version, claim token, fence and token, submit key),
//! so **repeating it is always safe**: a verb whose reply was lost is simply given again, with the same arguments, and
//! answers what the first one did. Two implementations stand behind it, Postgres and SQLite, under one
//! conformance suite.

mod model;
pub mod postgres;
pub(crate) mod rows;
pub mod sqlite;
mod views;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::{
    Bucket, CallUid, Json, LoopName, Namespace, Pool, Revision, RunId, SessionId,
    wire::{
        PayloadRef,
        ledger::{ClaimAnswer, ClaimItem, Offer, ReleaseItem},
    },
};

pub use model::{
    Advance, Advanced, Changed, DueJob, DueRuns, Lease, LoadedRun, NewReceipt, NewRun, NewSession, QueryAnswer,
    Resolution, Resolved, RunNews, SessionRole, SessionRow, Settle, Settled, SignalRow, Step, StoreError, StoreResult,
    StoredCall, Submitted,
};
pub use views::{
    AttemptRow, DefinitionRow, EventRow, LedgerCounts, OfferRow, ReceiptFilter, ReceiptRow, RunFilter, RunRow,
};

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
    async fn offers_put(
        &self,
        session: &SessionId,
        kind: &str,
        pool: Option<&Pool>,
        offers: &[Offer],
    ) -> StoreResult<()>;
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
    async fn definitions_list(
        &self,
        namespace: &Namespace,
        after: Option<&LoopName>,
        limit: u32,
    ) -> StoreResult<Vec<DefinitionRow>>;
    /// Numbers for metrics.
    async fn counts(&self) -> StoreResult<LedgerCounts>;
    /// A round trip; the ledger clock in milliseconds since 1970.
    async fn now_ms(&self) -> StoreResult<i64>;
    /// For people: product, version and durability settings, without credentials.
    async fn describe(&self) -> StoreResult<Vec<(String, String)>>;
}
