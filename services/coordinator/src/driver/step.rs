//! From a decision to what is committed: policies are pinned, keys are made, times are set.

use std::sync::Arc;

use ditto_contracts::{CallPolicy, EffectClass, ErrorClass, Json, RunId, RunStatus, WireError, codes};
use ditto_graph::{CallIntent, Decision, Ending, Outlook, Progress, RunMachine};

use crate::{
    catalogue::Catalogue,
    store::{NewReceipt, Step},
};

/// What a decision comes to.
pub(crate) enum Planned {
    /// Commit this.
    Step(Box<Step>),
    /// Nobody serves these yet.
    Unserved(Vec<String>),
    /// The decision breaks a rule; the run ends with this before anything is sent.
    Refused(WireError),
}

/// What the step of a run is planned with.
pub(crate) struct StepInput<'a> {
    pub(crate) run: &'a RunId,
    pub(crate) machine: &'a RunMachine,
    pub(crate) decision: &'a Decision,
    pub(crate) catalogue: &'a Catalogue,
    /// Plan calls nobody serves, too: the wait is over, the sweeper fails them.
    pub(crate) unserved_too: bool,
    pub(crate) cancelling: bool,
    pub(crate) bell: i64,
    pub(crate) deadline_ms: Option<i64>,
    pub(crate) deadline_told: bool,
    pub(crate) now_ms: i64,
    pub(crate) traceparent: Option<&'a str>,
}

impl StepInput<'_> {
    /// Plans the commit of this decision.
    pub(crate) fn plan(&self) -> Planned {
        let mut receipts = Vec::with_capacity(self.decision.calls.len());
        let mut unserved = Vec::new();
        for intent in &self.decision.calls {
            let served = self.catalogue.find(&intent.node, intent.source.as_deref());
            if served.is_none() && !self.unserved_too {
                unserved.push(match &intent.source {
                    Some(source) => format!("{} {source}", intent.node),
                    None => intent.node.to_string(),
                });
                continue;
            }
            let pool = intent.pool.clone().or_else(|| served.as_ref().and_then(|s| s.pools.first().cloned().flatten()));
            let policy = served.map_or_else(CallPolicy::default, |served| served.policy);
            match self.receipt(intent, policy, pool) {
                Ok(receipt) => receipts.push(receipt),
                Err(error) => return Planned::Refused(error),
            }
        }
        if !unserved.is_empty() {
            return Planned::Unserved(unserved);
        }
        let (status, wake_ms, ending) = match &self.decision.outlook {
            Outlook::Running { wake_ms } if self.cancelling => (RunStatus::Cancelling, *wake_ms, None),
            Outlook::Running { wake_ms } => (RunStatus::Running, *wake_ms, None),
            Outlook::Parked { wake_ms, .. } => (RunStatus::Parked, *wake_ms, None),
            Outlook::Ended(ending) => (ending.status, None, Some(ending.clone())),
        };
        let deadline_ms = self.deadline_ms.filter(|_| !self.deadline_told && ending.is_none());
        let wake_ms = match (wake_ms, deadline_ms) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Planned::Step(Box::new(Step {
            checkpoint: self.machine.checkpoint_json(),
            boundary: self.decision.boundary,
            receipts,
            cancels: self.decision.cancels.clone(),
            status,
            wake_ms,
            signal_seen: self.decision.signal_seen,
            bell_seen: self.bell,
            ending,
            progress: progress_json(&self.decision.progress),
        }))
    }

    fn receipt(
        &self,
        intent: &CallIntent,
        mut policy: CallPolicy,
        pool: Option<ditto_contracts::Pool>,
    ) -> Result<NewReceipt, WireError> {
        if intent.retry && policy.class == EffectClass::NonIdempotent {
            return Err(WireError::invalid(
                codes::RETRY_NOT_ALLOWED,
                format!(
                    "task {}: retry is allowed only for read-only and keyed calls, this one is class N",
                    intent.label
                ),
            ));
        }
        if let Some(timeout_ms) = intent.timeout_ms {
            policy.timeout_ms = timeout_ms;
        }
        let idem_key = match &policy.key {
            None => format!("ditto:{}", intent.call),
            Some(rule) => ditto_definition::key_of_request(rule, self.run, &intent.request).map_err(|error| {
                WireError::invalid(codes::EXPRESSION_FAILED, format!("task {}: idempotency key: {error}", intent.label))
            })?,
        };
        let budget_ms = self.deadline_ms.map(|at_ms| u64::try_from(at_ms - self.now_ms).unwrap_or(0));
        Ok(NewReceipt {
            call: intent.call.clone(),
            kind: intent.kind,
            call_id: intent.call_id.clone(),
            node: intent.node.clone(),
            source: intent.source.clone(),
            pool,
            label: intent.label.clone(),
            policy,
            on_unknown: intent.on_unknown,
            idem_key,
            request: intent.request.clone(),
            request_hash: intent.request.sha256(),
            delay_ms: intent.delay_ms,
            budget_ms,
            traceparent: self.traceparent.map(str::to_owned),
        })
    }
}

/// The ending of a run whose decision could not be committed.
pub(crate) fn refused(error: WireError) -> Ending {
    Ending { status: RunStatus::Failed, output: None, error: Some(error) }
}

/// The ending of a run that its plan cannot take up again.
pub(crate) fn broken(reason: impl std::fmt::Display) -> Ending {
    refused(WireError::new(ErrorClass::Internal, codes::PLAN_DIVERGED, reason.to_string()))
}

/// What people watching see, as stored with the version.
fn progress_json(progress: &[Progress]) -> Option<Json> {
    if progress.is_empty() {
        return None;
    }
    let mut w = ditto_contracts::JsonWriter::new();
    w.begin_array();
    for entry in progress {
        w.begin_object();
        match entry {
            Progress::Iteration { iteration, graph } => {
                w.key("event").string("iteration").key("iteration").integer(*iteration).key("graph").string(graph);
            }
            Progress::TaskStarted { label, node } => {
                w.key("event").string("started").key("task").string(label).key("node").string(node.as_str());
            }
            Progress::TaskDone { label, status, code } => {
                w.key("event").string("done").key("task").string(label).key("status").string(status);
                if let Some(code) = code {
                    w.key("code").string(code);
                }
            }
        }
        w.end();
    }
    Some(w.finish())
}

/// Shared so that watchers do not copy outputs.
pub(crate) fn shared(ending: &Option<Ending>) -> Option<Arc<(Option<Json>, Option<WireError>)>> {
    ending.as_ref().map(|e| Arc::new((e.output.clone(), e.error.clone())))
}
