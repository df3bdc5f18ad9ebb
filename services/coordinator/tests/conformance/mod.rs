//! One suite for every ledger: what the seam promises, shown on a fresh database per case.
//!
//! A test file brings `async fn open() -> Ledger` and says `conformance!(open)`.

#![allow(unreachable_pub, missing_docs, dead_code, reason = "one suite, compiled into each ledger's own test")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed step fails the case")]

pub mod claims;
pub mod machine;
pub mod operate;
pub mod runs;
pub mod settles;
pub mod sweeps;
pub mod values;

use std::{any::Any, future::Future, sync::Arc, time::Duration};

use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, ClaimToken, Json, LoopName, Namespace, NodeType, OnUnknown, Revision, RunId,
    RunStatus, SessionId, Verdict, WireError,
    wire::ledger::{ClaimAnswer, ClaimItem},
};
use ditto_coordinator::store::{
    Advance, Advanced, NewReceipt, NewRun, NewSession, ReceiptRow, SessionRole, Settle, Settled, Step, Store, Submitted,
};
use ditto_graph::Ending;
use sha2::{Digest as _, Sha256};

/// A fresh ledger, seen by two coordinators.
pub struct Ledger {
    /// The one most cases use.
    pub store: Arc<dyn Store>,
    /// Another one over the same tables.
    pub second: Arc<dyn Store>,
    /// Whatever must live as long.
    pub keep: Box<dyn Any + Send + Sync>,
}

/// Makes one test per case.
macro_rules! conformance {
    ($open:ident) => {
        conformance! { @ $open;
            runs { submit_creates_once, submit_key_is_kept, one_key_from_many_sides, a_first_step_is_owned,
                advance_goes_on, a_stale_epoch_spoils_nothing, advance_is_repeated, a_call_id_is_used_once,
                settle_and_advance_are_one, a_lost_settlement_is_stale, an_ending_is_kept, an_ended_run_stays,
                parked_runs_wake_by_bell, parked_runs_wake_by_time, runs_of_the_dead_are_taken,
                a_taken_run_is_found_again, yielded_runs_are_taken, old_owners_change_nothing,
                a_taken_run_brings_its_calls, news_tell_what_is_settled, signals_come_once, cancel_is_repeatable,
                two_coordinators_share_one_ledger }
            claims { one_of_twelve_wins, a_claim_is_repeated_by_token, the_dead_claim_nothing, no_claim_beyond_a_limit,
                release_unstarted, release_started_by_class, release_is_repeated, a_second_claim_supersedes,
                a_used_token_starts_nothing }
            settles { success_and_its_repeat, late_evidence_after_unknown, strangers_are_logged, keyed_unknown_stays_open,
                unclaimed_reads_go_by_hash, refusal_with_another_attempt_open, late_news_are_signalled,
                missing_is_missing, errors_are_kept }
            sweeps { lost_claims_by_class, a_claim_after_death_is_found, dispatch_counts, delayed_calls_wait,
                reconcile_with_query, reconcile_without_query, answers_of_backends, limits_of_planned_calls,
                limits_of_open_unknowns, nobody_serves, sessions_expire, instances_replace, held_calls_are_reviewed,
                retention_drops_days }
            operate { a_person_resolves, another_attempt, runs_and_receipts_are_listed, events_in_order, definitions,
                offers_of_the_living, numbers }
            values { values_come_back_to_the_byte, large_values, payloads_in_pieces, a_wrong_digest_is_refused }
            machine { the_ledger_follows_the_table }
        }
    };
    (@ $open:ident; $($room:ident { $($case:ident),* $(,)? })*) => {
        $(mod $room {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::conformance::$room::$case(&super::$open().await).await;
            })*
        })*
    };
}

/// JSON from text.
pub fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

/// The default tenant.
pub fn tenant() -> Namespace {
    Namespace::default_namespace()
}

/// Waits until `check` gives something.
pub async fn until<T, F: Future<Output = Option<T>>>(mut check: impl FnMut() -> F) -> T {
    for _ in 0..5_000 {
        if let Some(value) = check().await {
            return value;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("condition did not come true");
}

impl Ledger {
    /// A live session.
    pub async fn session(&self, role: SessionRole) -> SessionId {
        self.session_for(role, 600_000).await
    }

    /// A session with a short life.
    pub async fn session_for(&self, role: SessionRole, ttl_ms: u64) -> SessionId {
        let session = SessionId::generate();
        let new = NewSession {
            session: session.clone(),
            role,
            kind: "interaction".into(),
            name: "host".into(),
            build: "test".into(),
            instance: None,
            ttl_ms,
        };
        assert!(self.store.session_open(&new).await.unwrap().alive);
        session
    }

    /// A coordinator.
    pub async fn coordinator(&self) -> SessionId {
        self.session(SessionRole::Coordinator).await
    }

    /// A worker.
    pub async fn worker(&self) -> SessionId {
        self.session(SessionRole::Worker).await
    }

    /// A new run id.
    pub async fn run_id(&self) -> RunId {
        RunId::generate(self.store.now_ms().await.unwrap())
    }

    /// A run at version 1 with these calls, owned by `owner`.
    pub async fn run_with(&self, owner: &SessionId, calls: &[(&str, CallPolicy)]) -> (RunId, Vec<CallUid>) {
        let run = self.run_id().await;
        let receipts: Vec<NewReceipt> = calls.iter().map(|(id, policy)| receipt(&run, id, policy)).collect();
        let uids = receipts.iter().map(|r| r.call.clone()).collect();
        let first = Step { receipts, ..step(1) };
        let new = NewRun { first: Some(first), ..new_run(&run) };
        assert_eq!(self.store.submit(owner, &[new]).await.unwrap(), [Submitted::Created]);
        (run, uids)
    }

    /// A call of a run of its own.
    pub async fn call(&self, policy: CallPolicy) -> (SessionId, RunId, CallUid) {
        let owner = self.coordinator().await;
        let (run, mut calls) = self.run_with(&owner, &[("call", policy)]).await;
        (owner, run, calls.remove(0))
    }

    /// Claims one call.
    pub async fn claim(&self, session: &SessionId, call: &CallUid, token: &ClaimToken) -> ClaimAnswer {
        let item = ClaimItem { bucket: call.bucket(), call: call.clone(), token: token.clone() };
        self.store.claim(session, &[item]).await.unwrap().remove(0)
    }

    /// Claims one call, which must be granted; the token and the attempt.
    pub async fn granted(&self, session: &SessionId, call: &CallUid) -> (ClaimToken, u32) {
        let token = ClaimToken::generate();
        match self.claim(session, call, &token).await {
            ClaimAnswer::Granted { fence, .. } => (token, fence),
            other => panic!("expected a grant, got {other:?}"),
        }
    }

    /// Settles one call.
    pub async fn settle(&self, settle: Settle) -> Settled {
        self.store.settle(&[settle]).await.unwrap().remove(0)
    }

    /// Advances one run.
    pub async fn advance(&self, owner: &SessionId, item: Advance) -> Advanced {
        self.store.advance(owner, &[item]).await.unwrap().remove(0)
    }

    /// A receipt that exists.
    pub async fn receipt(&self, call: &CallUid) -> ReceiptRow {
        self.store.receipt_get(call).await.unwrap().unwrap()
    }
}

/// A run without a first step.
pub fn new_run(run: &RunId) -> NewRun {
    NewRun {
        run: run.clone(),
        namespace: tenant(),
        key: None,
        body_hash: [7; 32],
        name: LoopName::new("loop").unwrap(),
        revision: Revision::new("r1").unwrap(),
        input: json(r#"{"in":1}"#),
        deadline_ms: None,
        traceparent: None,
        first: None,
    }
}

/// A step that leaves a run running; `n` makes checkpoints differ.
pub fn step(n: i64) -> Step {
    Step {
        checkpoint: json(&format!(r#"{{"open":[],"kept":[],"body":{n}}}"#)),
        boundary: false,
        receipts: Vec::new(),
        cancels: Vec::new(),
        status: RunStatus::Running,
        wake_ms: None,
        signal_seen: None,
        bell_seen: 0,
        ending: None,
        progress: None,
    }
}

/// A step that names calls in its checkpoint.
pub fn step_with(open: &[CallUid]) -> Step {
    let names: Vec<&str> = open.iter().map(CallUid::as_str).collect();
    let text = serde_json::to_string(&names).unwrap();
    Step { checkpoint: json(&format!(r#"{{"open":{text},"kept":[],"body":null}}"#)), ..step(0) }
}

/// A step that ends a run.
pub fn ending(status: RunStatus) -> Step {
    let ending = Ending { status, output: Some(json(r#"{"out":1}"#)), error: None };
    Step { status, ending: Some(ending), ..step(99) }
}

/// The next commit of a run.
pub fn next(run: &RunId, version: i64, step: Step) -> Advance {
    Advance { run: run.clone(), epoch: 1, version, settles: Vec::new(), step }
}

/// A call of a run.
pub fn receipt(run: &RunId, id: &str, policy: &CallPolicy) -> NewReceipt {
    let call_id = CallId::new(id).unwrap();
    let request = json(&format!(r#"{{"tool":"{id}"}}"#));
    let call = CallUid::derive(run, CallKind::Tool, &call_id);
    NewReceipt {
        kind: CallKind::Tool,
        node: NodeType::new(NodeType::ACT_TOOL).unwrap(),
        source: Some("tool".into()),
        pool: None,
        label: format!("0/{id}"),
        policy: policy.clone(),
        on_unknown: OnUnknown::Park,
        idem_key: format!("ditto:{call}"),
        request_hash: Sha256::digest(request.as_bytes()).into(),
        request,
        delay_ms: 0,
        budget_ms: None,
        traceparent: None,
        call,
        call_id,
    }
}

/// Class N.
pub fn n() -> CallPolicy {
    CallPolicy::default()
}

/// Class K.
pub fn k() -> CallPolicy {
    CallPolicy::keyed()
}

/// Class K with a query.
pub fn k_query() -> CallPolicy {
    CallPolicy { query: true, rejections_stored: true, ..CallPolicy::keyed() }
}

/// Class R, claimed.
pub fn r() -> CallPolicy {
    CallPolicy { skip_claim: false, exclusive: true, ..CallPolicy::read_only() }
}

/// A settlement of a claimed attempt.
pub fn said(session: &SessionId, call: &CallUid, (token, fence): &(ClaimToken, u32), verdict: Verdict) -> Settle {
    let succeeded = verdict == Verdict::Succeeded;
    Settle {
        call: call.clone(),
        fence: *fence,
        token: Some(token.clone()),
        session: session.clone(),
        request_hash: [0; 32],
        verdict,
        output: succeeded.then(|| json(r#"{"ok":true}"#)),
        output_ref: None,
        error: (!succeeded).then(|| WireError::new(ditto_contracts::ErrorClass::Failed, "TOOL_FAILED", "it said no")),
    }
}
