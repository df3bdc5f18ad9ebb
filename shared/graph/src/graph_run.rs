//! Progress of one graph: which tasks are ready, which calls are open, what is done. Costs what changed, not what is
//! there.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroUsize,
};

use ditto_contracts::{CallId, CallUid, ErrorClass, Json, ReceiptState, TaskId, WireError, codes};
use indexmap::IndexMap;

use crate::{
    CallIntent, CallOutcome, Decision, Graph, GraphFailure, Progress, PureNodes, RunFacts, RunScope, Scope,
    failure::{check_size, error, invalid},
    identity::CallIdentity,
    outcome::{TaskValue, task_value},
    task_call::{RequestHash, on_purpose, pause_ms, request, request_hash},
};

/// What surrounds a graph while it runs. Must be the same for every call about one [`GraphRun`].
pub(crate) struct GraphCx<'a> {
    pub(crate) facts: &'a RunFacts,
    pub(crate) run: &'a RunScope,
    pub(crate) state: &'a Json,
    pub(crate) signal: &'a Json,
    pub(crate) pure: &'a PureNodes,
    /// Most tasks open at once.
    pub(crate) concurrency: Option<NonZeroUsize>,
}

/// One graph on its way.
pub(crate) struct GraphRun {
    pub(crate) graph: Graph,
    pub(crate) input: Json,
    pub(crate) slots: Vec<Slot>,
    /// For each task, how many of its dependencies are not done.
    pub(crate) missing: Vec<usize>,
    /// Tasks that may start, by position.
    pub(crate) ready: BTreeSet<usize>,
    pub(crate) calls: HashMap<CallUid, OpenCall>,
    pub(crate) open: usize,
    pub(crate) done: usize,
    /// Bytes of the values that only the checkpoint holds.
    pub(crate) inline_bytes: usize,
    pub(crate) failure: Option<GraphFailure>,
}

/// Where one task stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Slot {
    /// Not decided.
    Waiting,
    /// Its call is open.
    Open { call: CallUid, attempt: u16 },
    /// It has its value.
    Done { value: Json, origin: Origin },
    /// It failed, or ended after another one failed.
    Dropped,
}

/// Where the value of a done task is found again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// In the receipt of this call.
    Receipt(CallUid),
    /// Only here.
    Inline,
    /// It was skipped.
    Skipped,
}

/// A call decided and not settled. Tasks that ask for the very same call share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenCall {
    pub(crate) hash: RequestHash,
    pub(crate) tasks: Vec<usize>,
}

impl GraphRun {
    pub(crate) fn new(graph: Graph, input: Json) -> Self {
        let count = graph.tasks().len();
        let missing: Vec<usize> = (0..count).map(|i| graph.needs_of(i).len()).collect();
        let ready = (0..count).filter(|i| missing[*i] == 0).collect();
        let slots = vec![Slot::Waiting; count];
        Self {
            graph,
            input,
            slots,
            missing,
            ready,
            calls: HashMap::new(),
            open: 0,
            done: 0,
            inline_bytes: 0,
            failure: None,
        }
    }

    /// Every task is done.
    pub(crate) fn is_complete(&self) -> bool {
        self.failure.is_none() && self.done == self.slots.len()
    }

    /// It is over: complete, or failed with nothing open.
    pub(crate) fn is_settled(&self) -> bool {
        self.open == 0 && (self.failure.is_some() || self.is_complete())
    }

    /// The value of every task that is done, in the order of the declaration.
    pub(crate) fn outputs(&self) -> IndexMap<TaskId, Json> {
        let pairs = self.graph.tasks().iter().zip(&self.slots);
        pairs
            .filter_map(|(task, slot)| match slot {
                Slot::Done { value, .. } => Some((task.id.clone(), value.clone())),
                Slot::Waiting | Slot::Open { .. } | Slot::Dropped => None,
            })
            .collect()
    }

    /// Takes in the outcome of a call. Calls that are not open here are ignored.
    ///
    /// # Errors
    /// The run fails (a retry met a call id that is in use).
    pub(crate) fn settle(
        &mut self,
        call: &CallUid,
        outcome: &CallOutcome,
        cx: &GraphCx<'_>,
        decision: &mut Decision,
    ) -> Result<(), WireError> {
        let Some(open) = self.calls.remove(call) else { return Ok(()) };
        for i in open.tasks {
            let Slot::Open { attempt, .. } = self.slots[i] else { continue };
            self.open -= 1;
            self.slots[i] = Slot::Waiting;
            if self.failure.is_none() && self.wants_retry(i, attempt, outcome) {
                match self.request(i, cx) {
                    Ok((request, identity)) => self.open_call(i, attempt + 1, request, identity, cx, decision)?,
                    Err(failure) => self.fail(i, failure, cx, decision),
                }
                continue;
            }
            decision.progress.push(Progress::TaskDone {
                label: self.label(i, cx),
                status: outcome.state.as_str().into(),
                code: outcome.error.as_ref().map(|error| error.code.clone()),
            });
            if self.failure.is_some() {
                self.slots[i] = Slot::Dropped;
                continue;
            }
            let value = match (&outcome.output, outcome.state) {
                // The usual case needs no look at the request.
                (Some(output), ReceiptState::Succeeded) => Ok(TaskValue { value: output.clone(), in_receipt: true }),
                _ => self.request(i, cx).and_then(|(_, identity)| task_value(&identity.answer, outcome)),
            };
            match value {
                Ok(TaskValue { value, in_receipt }) => {
                    let origin = if in_receipt { Origin::Receipt(call.clone()) } else { Origin::Inline };
                    self.finish(i, value, origin);
                    self.check_inline(i);
                }
                Err(failure) => self.set_failure(i, failure),
            }
        }
        Ok(())
    }

    /// Starts every task that may start, and evaluates what needs no call.
    ///
    /// # Errors
    /// The run fails: two different requests use one call id. None of the calls of this decision must be sent.
    pub(crate) fn admit(&mut self, cx: &GraphCx<'_>, decision: &mut Decision) -> Result<(), WireError> {
        while self.failure.is_none() && cx.concurrency.is_none_or(|limit| self.open < limit.get()) {
            let Some(i) = self.ready.pop_first() else { break };
            self.decide(i, cx, decision)?;
        }
        Ok(())
    }

    fn decide(&mut self, i: usize, cx: &GraphCx<'_>, decision: &mut Decision) -> Result<(), WireError> {
        let graph = self.graph.clone();
        let task = &graph.tasks()[i];
        let tasks = self.dependencies(i);
        let scope = self.scope(&tasks, cx);
        if let Some(when) = &task.when {
            match when.evaluate(&scope) {
                Ok(value) if value.is_true() => {}
                Ok(_) => {
                    let label = self.label(i, cx);
                    decision.progress.push(Progress::TaskDone { label, status: "skipped".into(), code: None });
                    self.finish(i, Json::null(), Origin::Skipped);
                    return Ok(());
                }
                Err(failure) => {
                    self.fail(i, failure.into(), cx, decision);
                    return Ok(());
                }
            }
        }
        if let Some(fail) = &task.fail {
            match fail.evaluate(&scope).map_err(WireError::from).and_then(|value| on_purpose(task, &value)) {
                Ok(None) => {}
                Ok(Some(failure)) | Err(failure) => {
                    self.fail(i, failure, cx, decision);
                    return Ok(());
                }
            }
        }
        if let Some(pure) = cx.pure.get(&task.node) {
            let label = self.label(i, cx);
            decision.progress.push(Progress::TaskStarted { label: label.clone(), node: task.node.clone() });
            match task.input.evaluate(&scope).map_err(WireError::from).and_then(|input| pure.evaluate(&input)) {
                Ok(value) => {
                    let status = ReceiptState::Succeeded.as_str().into();
                    decision.progress.push(Progress::TaskDone { label, status, code: None });
                    self.finish(i, value, Origin::Inline);
                    self.check_inline(i);
                }
                Err(failure) => self.fail(i, failure, cx, decision),
            }
            return Ok(());
        }
        match request(task, &scope, cx) {
            Ok((request, identity)) => {
                decision.progress.push(Progress::TaskStarted { label: self.label(i, cx), node: task.node.clone() });
                self.open_call(i, 1, request, identity, cx, decision)
            }
            Err(failure) => {
                self.fail(i, failure, cx, decision);
                Ok(())
            }
        }
    }

    /// The request of a task that was decided. The same as then: everything it depends on is fixed.
    fn request(&self, i: usize, cx: &GraphCx<'_>) -> Result<(Json, CallIdentity), WireError> {
        let tasks = self.dependencies(i);
        request(&self.graph.tasks()[i], &self.scope(&tasks, cx), cx)
    }

    fn open_call(
        &mut self,
        i: usize,
        attempt: u16,
        request: Json,
        identity: CallIdentity,
        cx: &GraphCx<'_>,
        decision: &mut Decision,
    ) -> Result<(), WireError> {
        let graph = self.graph.clone();
        let task = &graph.tasks()[i];
        let call_id = if attempt == 1 {
            identity.call_id
        } else {
            match CallId::new(format!("{}~{attempt}", identity.call_id)) {
                Ok(id) => id,
                Err(problem) => {
                    self.fail(i, invalid(&format!("task {}: attempt {attempt}: {problem}", task.id)), cx, decision);
                    return Ok(());
                }
            }
        };
        let call = CallUid::derive(&cx.facts.run, identity.kind, &call_id);
        let hash = request_hash(task, &request);
        if let Some(open) = self.calls.get_mut(&call) {
            if open.hash != hash {
                decision.calls.clear();
                let message = format!("task {}: call id {call_id} is in use with another request", task.id);
                return Err(error(ErrorClass::Conflict, codes::CALL_ID_REUSED, &message));
            }
            open.tasks.push(i);
        } else {
            self.calls.insert(call.clone(), OpenCall { hash, tasks: vec![i] });
            decision.calls.push(CallIntent {
                call: call.clone(),
                kind: identity.kind,
                call_id,
                node: task.node.clone(),
                source: identity.source,
                pool: task.pool.clone(),
                request,
                timeout_ms: task.timeout_ms,
                retry: task.retry.is_some(),
                delay_ms: pause_ms(task, attempt),
                label: self.label(i, cx),
                on_unknown: task.on_unknown,
            });
        }
        self.open += 1;
        self.slots[i] = Slot::Open { call, attempt };
        Ok(())
    }

    /// Only a definite failure that another attempt could change.
    fn wants_retry(&self, i: usize, attempt: u16, outcome: &CallOutcome) -> bool {
        let hopeless = outcome
            .error
            .as_ref()
            .is_some_and(|error| matches!(error.class, ErrorClass::InvalidInput | ErrorClass::Denied));
        outcome.state == ReceiptState::Failed
            && !hopeless
            && self.graph.tasks()[i].retry.is_some_and(|retry| attempt < retry.max_attempts)
    }

    /// What no receipt holds goes into every checkpoint of this graph, so all of it together is bounded.
    fn check_inline(&mut self, i: usize) {
        if let Err(failure) = check_size("what the graph keeps in its checkpoint", self.inline_bytes) {
            self.done -= 1;
            self.set_failure(i, failure);
        }
    }

    fn finish(&mut self, i: usize, value: Json, origin: Origin) {
        if origin == Origin::Inline {
            self.inline_bytes += value.len();
        }
        self.slots[i] = Slot::Done { value, origin };
        self.done += 1;
        for dependent in self.graph.dependents_of(i) {
            self.missing[*dependent] -= 1;
            if self.missing[*dependent] == 0 {
                self.ready.insert(*dependent);
            }
        }
    }

    fn fail(&mut self, i: usize, failure: WireError, cx: &GraphCx<'_>, decision: &mut Decision) {
        decision.progress.push(Progress::TaskDone {
            label: self.label(i, cx),
            status: ReceiptState::Failed.as_str().into(),
            code: Some(failure.code.clone()),
        });
        self.set_failure(i, failure);
    }

    /// The first error wins; from then on nothing starts.
    fn set_failure(&mut self, i: usize, failure: WireError) {
        self.slots[i] = Slot::Dropped;
        let (graph, task) = (self.graph.id().to_owned(), self.graph.tasks()[i].id.clone());
        self.failure.get_or_insert(GraphFailure { graph, task, error: failure });
        self.ready.clear();
    }

    fn dependencies(&self, i: usize) -> IndexMap<TaskId, Json> {
        let needs = self.graph.needs_of(i).iter();
        needs
            .map(|need| {
                let value = match &self.slots[*need] {
                    Slot::Done { value, .. } => value.clone(),
                    Slot::Waiting | Slot::Open { .. } | Slot::Dropped => Json::null(),
                };
                (self.graph.tasks()[*need].id.clone(), value)
            })
            .collect()
    }

    fn scope<'a>(&'a self, tasks: &'a IndexMap<TaskId, Json>, cx: &GraphCx<'a>) -> Scope<'a> {
        Scope { input: &cx.facts.input, state: cx.state, graph: &self.input, tasks, signal: cx.signal, run: cx.run }
    }

    fn label(&self, i: usize, cx: &GraphCx<'_>) -> String {
        format!("{}/{}", cx.run.iteration, self.graph.tasks()[i].id)
    }
}
