//! A coordinator of one run, in memory: receipts, clock, checkpoint. It holds the rules that every run must keep.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use ditto_contracts::{
    CallUid, ErrorClass, Json, LoopName, Namespace, NodeType, ReceiptState, Revision, RunId, TaskId, WireError,
};
use ditto_graph::{
    CallIntent, CallOutcome, Decision, Ending, Event, Formula, FormulaError, Graph, Outlook, Plan, Progress, PureNode,
    RunFacts, RunMachine, RunOptions, Scope, Task, constant, formula,
};

/// The time a run is created.
pub(crate) const START_MS: i64 = 1_796_000_000_000;
/// How long a run waits for evidence.
pub(crate) const WINDOW_MS: u64 = 600_000;

pub(crate) struct Driver {
    plan: Arc<dyn Plan>,
    facts: RunFacts,
    machine: RunMachine,
    pub(crate) now_ms: i64,
    /// Every call ever decided, with its outcome.
    receipts: HashMap<CallUid, (CallIntent, Option<CallOutcome>)>,
    /// In the order of the decisions.
    pub(crate) decided: Vec<CallIntent>,
    pub(crate) cancelled: Vec<CallUid>,
    consumed: HashSet<CallUid>,
    pub(crate) progress: Vec<Progress>,
    pub(crate) boundaries: usize,
    pub(crate) outlook: Outlook,
    /// Whether each decision is also made by a restored machine.
    pub(crate) doubled: bool,
}

impl Driver {
    pub(crate) fn begin(plan: impl Plan + 'static, input: &str) -> Self {
        Self::begin_with(Arc::new(plan), input, true)
    }

    pub(crate) fn begin_with(plan: Arc<dyn Plan>, input: &str, doubled: bool) -> Self {
        let facts = RunFacts {
            run: RunId::new("01M8W7A80000000000000000ZZ").unwrap(),
            namespace: Namespace::default_namespace(),
            name: plan.name().clone(),
            revision: plan.revision().clone(),
            input: json(input),
        };
        let (machine, decision) = RunMachine::begin(plan.clone(), &facts, options(), START_MS).unwrap();
        let mut driver = Self {
            plan,
            facts,
            machine,
            now_ms: START_MS,
            receipts: HashMap::new(),
            decided: Vec::new(),
            cancelled: Vec::new(),
            consumed: HashSet::new(),
            progress: Vec::new(),
            boundaries: 0,
            outlook: Outlook::Running { wake_ms: None },
            doubled,
        };
        driver.commit(decision);
        driver
    }

    pub(crate) fn checkpoint(&self) -> Json {
        self.machine.checkpoint_json()
    }

    /// A machine restored from the checkpoint, with another plan if wanted.
    pub(crate) fn restored(&self, plan: &Arc<dyn Plan>) -> Result<RunMachine, WireError> {
        let checkpoint = self.checkpoint();
        let references = RunMachine::references(&checkpoint)?;
        for call in &references.open {
            assert!(!self.consumed.contains(call), "open and consumed: {call}");
        }
        let outcome = |call: CallUid| {
            let outcome = self.receipts[&call].1.clone().expect("a kept call is settled");
            (call, outcome)
        };
        let outcomes: HashMap<CallUid, CallOutcome> = references.kept.into_iter().map(outcome).collect();
        RunMachine::restore(plan.clone(), &self.facts, options(), &checkpoint, &outcomes)
    }

    /// Forgets the machine and goes on with a restored one.
    pub(crate) fn restart(&mut self) {
        let machine = self.restored(&self.plan).unwrap();
        assert_eq!(machine.checkpoint_json(), self.checkpoint());
        self.machine = machine;
    }

    pub(crate) fn advance(&mut self, events: &[Event]) -> &Outlook {
        let twin = self.doubled.then(|| self.restored(&self.plan).unwrap());
        let decision = self.machine.advance(events, self.now_ms);
        if let Some(mut twin) = twin {
            assert_eq!(twin.advance(events, self.now_ms), decision, "a restored machine decides the same");
            assert_eq!(twin.checkpoint_json(), self.machine.checkpoint_json());
        }
        self.commit(decision);
        &self.outlook
    }

    fn commit(&mut self, decision: Decision) {
        if let Some(ending) = self.machine.ending() {
            assert!(decision.calls.is_empty(), "an ended run makes no call");
            if let Outlook::Ended(before) = &self.outlook {
                assert_eq!(before, ending, "the end stands");
            }
        }
        for call in decision.calls {
            let known = self.receipts.insert(call.call.clone(), (call.clone(), None));
            assert!(known.is_none(), "{} was decided twice", call.label);
            self.decided.push(call);
        }
        for consumed in decision.consumed {
            assert!(self.receipts.contains_key(&consumed.call), "consumed but never decided");
            assert!(self.consumed.insert(consumed.call), "an outcome was taken in twice");
        }
        self.cancelled.extend(decision.cancels);
        self.progress.extend(decision.progress);
        self.boundaries += usize::from(decision.boundary);
        if let Outlook::Ended(_) = decision.outlook {
            assert_eq!(self.consumed.len(), self.receipts.len(), "an ended run left a call open");
        }
        self.outlook = decision.outlook;
    }

    /// Records an outcome; returns its event.
    pub(crate) fn settled(&mut self, label: &str, outcome: CallOutcome) -> Event {
        let found = self.decided.iter().rev().find(|call| call.label == label || call.call_id.as_str() == label);
        let call = found.unwrap_or_else(|| panic!("no call {label} in {:?}", self.labels())).call.clone();
        self.receipts.get_mut(&call).unwrap().1 = Some(outcome.clone());
        Event::CallSettled { call, outcome }
    }

    /// Settles a call and advances.
    pub(crate) fn settle(&mut self, label: &str, outcome: CallOutcome) -> &Outlook {
        let event = self.settled(label, outcome);
        self.advance(&[event])
    }

    /// Settles a call as succeeded and advances.
    pub(crate) fn ok(&mut self, label: &str, output: &str) -> &Outlook {
        self.settle(label, succeeded(output))
    }

    pub(crate) fn signal(&mut self, n: i64, name: &str, body: &str) -> &Outlook {
        self.advance(&[Event::Signal { n, name: name.into(), body: json(body) }])
    }

    /// Lets time pass and wakes the run.
    pub(crate) fn after(&mut self, ms: i64) -> &Outlook {
        self.now_ms += ms;
        self.advance(&[Event::Woke])
    }

    /// Labels of all calls decided so far.
    pub(crate) fn labels(&self) -> Vec<&str> {
        self.decided.iter().map(|call| call.label.as_str()).collect()
    }

    /// Labels of the calls that are open.
    pub(crate) fn open(&self) -> Vec<String> {
        let open = self.decided.iter().filter(|call| !self.consumed.contains(&call.call));
        open.map(|call| call.label.clone()).collect()
    }

    pub(crate) fn ending(&self) -> &Ending {
        match &self.outlook {
            Outlook::Ended(ending) => ending,
            other => panic!("not ended: {other:?}, open {:?}", self.open()),
        }
    }

    /// Call ids of the calls that are open.
    pub(crate) fn open_ids(&self) -> Vec<String> {
        let open = self.decided.iter().filter(|call| !self.consumed.contains(&call.call));
        open.map(|call| call.call_id.as_str().to_owned()).collect()
    }

    /// Whether an event says what the receipt of its call says.
    pub(crate) fn holds(&self, event: &Event) -> bool {
        match event {
            Event::CallSettled { call, outcome } => self.receipts[call].1.as_ref() == Some(outcome),
            Event::Signal { .. } | Event::Woke | Event::CancelRequested | Event::DeadlinePassed => false,
        }
    }

    /// The output of a run that ended, as text.
    pub(crate) fn output(&self) -> String {
        let ending = self.ending();
        assert_eq!(ending.error, None);
        ending.output.as_ref().unwrap().to_string()
    }

    /// `status CODE message` of a run that ended otherwise.
    pub(crate) fn error(&self) -> String {
        let ending = self.ending();
        let error = ending.error.as_ref().unwrap_or_else(|| panic!("no error: {ending:?}"));
        format!("{} {} {}", ending.status, error.code, error.message)
    }
}

pub(crate) fn options() -> RunOptions {
    RunOptions { reconcile_window_ms: WINDOW_MS }
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

pub(crate) fn succeeded(output: &str) -> CallOutcome {
    CallOutcome { state: ReceiptState::Succeeded, settle_rev: 1, output: Some(json(output)), error: None }
}

pub(crate) fn ended(state: ReceiptState, class: ErrorClass, code: &str) -> CallOutcome {
    CallOutcome { state, settle_rev: 1, output: None, error: Some(WireError::new(class, code, "why")) }
}

pub(crate) fn failed(code: &str) -> CallOutcome {
    ended(ReceiptState::Failed, ErrorClass::Failed, code)
}

pub(crate) fn unknown(code: &str) -> CallOutcome {
    ended(ReceiptState::Unknown, ErrorClass::Unknown, code)
}

pub(crate) fn id(text: &str) -> TaskId {
    TaskId::new(text).unwrap()
}

pub(crate) fn node(text: &str) -> NodeType {
    NodeType::new(text).unwrap()
}

pub(crate) fn name(text: &str) -> (LoopName, Revision) {
    (LoopName::new(text).unwrap(), Revision::new("1").unwrap())
}

/// A task of an open node type whose input is what it sees.
pub(crate) fn task(name: &str, needs: &[&str]) -> Task {
    Task::new(id(name), node("TEST.WORK")).needs(needs.iter().map(|need| id(need))).input(formula(|scope| {
        let mut w = ditto_contracts::JsonWriter::new();
        w.begin_object();
        for (task, value) in scope.tasks {
            w.key(task.as_str()).value(value);
        }
        Ok(w.finish())
    }))
}

/// A tool task with this call id.
pub(crate) fn tool(name: &str, call_id: &str, needs: &[&str]) -> Task {
    let input = format!(r#"{{"call":{{"id":"{call_id}","name":"pay","arguments":{{}}}}}}"#);
    Task::new(id(name), node(NodeType::ACT_TOOL)).needs(needs.iter().map(|need| id(need))).input(constant(json(&input)))
}

pub(crate) fn graph(name: &str, tasks: impl IntoIterator<Item = Task>) -> Graph {
    tasks.into_iter().fold(Graph::builder(name), |builder, task| builder.task(task)).build().unwrap()
}

/// A path of field names below `input`, `state`, `graph`, `signal` or a task.
pub(crate) fn path(text: &'static str) -> Arc<dyn Formula> {
    formula(move |scope| {
        let mut parts = text.split('.');
        let root = parts.next().unwrap_or_default();
        let mut value = match root {
            "input" => scope.input.clone(),
            "state" => scope.state.clone(),
            "graph" => scope.graph.clone(),
            "signal" => scope.signal.clone(),
            "iteration" => json(&scope.run.iteration.to_string()),
            task => scope.tasks.get(&id(task)).cloned().ok_or_else(|| missing(text))?,
        };
        for part in parts {
            value = value.field(part).ok_or_else(|| missing(text))?;
        }
        Ok(value)
    })
}

fn missing(text: &str) -> FormulaError {
    FormulaError { path: text.into(), message: "no such value".into() }
}

/// A formula that always fails.
pub(crate) fn broken(path: &'static str) -> Arc<dyn Formula> {
    formula(move |_| Err(missing(path)))
}

/// The number in scope as state.
pub(crate) fn count(scope: &Scope<'_>) -> i64 {
    scope.state.to().unwrap()
}

/// Doubles a number inside the decision; refuses anything else.
pub(crate) struct Double(pub(crate) NodeType);

impl PureNode for Double {
    fn node(&self) -> &NodeType {
        &self.0
    }

    fn evaluate(&self, input: &Json) -> Result<Json, WireError> {
        let number: i64 =
            input.to().map_err(|_| WireError::invalid("INVALID_INPUT", format!("not a number: {input}")))?;
        Ok(json(&(2 * number).to_string()))
    }
}
