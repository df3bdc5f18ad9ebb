//! One run of a state loop. Its checkpoint holds the current iteration only, so it stays as small in iteration
//! 100 000 as in the first.

use std::{collections::HashMap, sync::Arc};

use ditto_contracts::{CallUid, ErrorClass, Json, JsonWriter, RunStatus, TaskId, WireError, codes};
use indexmap::IndexMap;
use serde::Deserialize;

use crate::{
    CallOutcome, Checkpoint, Decision, Ending, Event, Execution, Outlook, Progress, RunFacts, RunScope, Scope,
    failure::{check_size, error, expression, internal},
    graph_record::{Cursor, GraphRecord},
    graph_run::{GraphCx, GraphRun},
    inbox::Inbox,
    state_loop::LoopShape,
    wait::Waiting,
};

/// Iterations in one decision after which it is committed first, when no call interrupts them.
const ITERATIONS_PER_DECISION: u64 = 1000;

pub(crate) struct LoopRun {
    shape: Arc<LoopShape>,
    facts: RunFacts,
    scope: RunScope,
    state: Json,
    /// Body of the signal that ended the last wait.
    signal: Json,
    stage: Stage,
    inbox: Inbox,
}

enum Stage {
    /// The next iteration begins with the next decision.
    Begin,
    /// The graph of the current iteration.
    Graph(Box<GraphRun>),
    /// Between two iterations; the iteration number is already the next.
    Wait(Waiting),
    /// Nothing more to decide.
    Ended,
}

/// What the next pass of a decision does.
enum Next {
    Again,
    Return(Outlook),
}

impl LoopRun {
    pub(crate) fn begin(shape: Arc<LoopShape>, facts: RunFacts) -> Result<Self, WireError> {
        let scope = RunScope::new(facts.run.clone(), 0);
        let mut run = Self {
            shape,
            facts,
            scope,
            state: Json::null(),
            signal: Json::null(),
            stage: Stage::Begin,
            inbox: Inbox::default(),
        };
        run.state = run.shape.initial.evaluate(&run.between(&IndexMap::new()))?;
        Ok(run)
    }

    pub(crate) fn restore(
        shape: Arc<LoopShape>,
        facts: RunFacts,
        checkpoint: &Checkpoint,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<Self, WireError> {
        let record: Record = checkpoint.body.to().map_err(|problem| internal(&format!("checkpoint: {problem}")))?;
        let stage = match (record.graph, record.wait, record.ended) {
            (Some(graph), ..) => {
                let entry = shape.graphs.get(&graph.graph);
                let entry = entry.ok_or_else(|| internal(&format!("the loop has no graph {:?}", graph.graph)))?;
                let (mut open, mut kept) = (Cursor::new(&checkpoint.open), Cursor::new(&checkpoint.kept));
                Stage::Graph(Box::new(graph.restore(entry.graph.clone(), &mut open, &mut kept, outcomes)?))
            }
            (None, Some((signal, wake_ms)), _) => Stage::Wait(Waiting { signal, wake_ms }),
            (None, None, true) => Stage::Ended,
            (None, None, false) => Stage::Begin,
        };
        let scope = RunScope::new(facts.run.clone(), record.iteration);
        let inbox = Inbox::restore(record.inbox);
        Ok(Self { shape, facts, scope, state: record.state, signal: record.signal, stage, inbox })
    }

    fn proceed(&mut self, now_ms: i64, decision: &mut Decision) -> Result<Outlook, WireError> {
        let begun_at = self.scope.iteration;
        loop {
            let next = match std::mem::replace(&mut self.stage, Stage::Ended) {
                Stage::Begin if self.scope.iteration >= begun_at + ITERATIONS_PER_DECISION => {
                    self.stage = Stage::Begin;
                    Next::Return(Outlook::Running { wake_ms: Some(now_ms) })
                }
                Stage::Begin => self.begin_iteration(decision)?,
                Stage::Graph(run) => self.proceed_graph(run, now_ms, decision)?,
                Stage::Wait(waiting) => self.proceed_wait(waiting, now_ms),
                Stage::Ended => return Err(internal("an ended loop was asked to go on")),
            };
            if let Next::Return(outlook) = next {
                return Ok(outlook);
            }
        }
    }

    fn begin_iteration(&mut self, decision: &mut Decision) -> Result<Next, WireError> {
        let none = IndexMap::new();
        let scope = self.between(&none);
        let entry = match &self.shape.select {
            None => self.shape.graphs.values().next(),
            Some(select) => {
                let name = select.evaluate(&scope)?;
                let found = name.to_text().and_then(|name| self.shape.graphs.get(&name));
                Some(found.ok_or_else(|| expression("select", &format!("must name a graph of the loop, is {name}")))?)
            }
        };
        let entry = entry.ok_or_else(|| internal("the loop has no graph"))?;
        let input = entry.input.evaluate(&scope)?;
        check_size("graph.input: the input", input.len())?;
        decision
            .progress
            .push(Progress::Iteration { iteration: self.scope.iteration, graph: entry.graph.id().to_owned() });
        self.stage = Stage::Graph(Box::new(GraphRun::new(entry.graph.clone(), input)));
        Ok(Next::Again)
    }

    fn proceed_graph(
        &mut self,
        mut run: Box<GraphRun>,
        now_ms: i64,
        decision: &mut Decision,
    ) -> Result<Next, WireError> {
        if run.failure.is_none() {
            run.admit(&self.graph_cx(), decision)?;
        }
        if let Some(failure) = run.failure {
            return Err(failure.error);
        }
        if !run.is_complete() {
            self.stage = Stage::Graph(run);
            return Ok(Next::Return(Outlook::Running { wake_ms: None }));
        }
        let tasks = run.outputs();
        decision.boundary = true;
        if let Some(update) = &self.shape.update {
            let state = update.evaluate(&self.after(&run.input, &tasks))?;
            check_size("update: the state", state.len())?;
            self.state = state;
        }
        let scope = self.after(&run.input, &tasks);
        let done = match &self.shape.done {
            None => true,
            Some(done) => {
                let value = done.evaluate(&scope)?;
                match value.as_str() {
                    "true" => true,
                    "false" => false,
                    _ => return Err(expression("done", &format!("must be true or false, is {value}"))),
                }
            }
        };
        if done {
            let output = match &self.shape.output {
                Some(output) => output.evaluate(&scope)?,
                None => self.state.clone(),
            };
            check_size("output: the output", output.len())?;
            let ending = Ending { status: RunStatus::Completed, output: Some(output), error: None };
            return Ok(Next::Return(Outlook::Ended(ending)));
        }
        let limit = self.shape.max_iterations;
        if self.scope.iteration + 1 >= limit {
            let message = format!("loop iteration limit reached: {limit}");
            return Err(error(ErrorClass::Failed, codes::ITERATION_LIMIT, &message));
        }
        let waiting = match &self.shape.wait {
            Some(wait) => wait.begin(&scope, now_ms)?,
            None => None,
        };
        self.scope.iteration += 1;
        self.signal = Json::null();
        self.stage = waiting.map_or(Stage::Begin, Stage::Wait);
        Ok(Next::Again)
    }

    fn proceed_wait(&mut self, waiting: Waiting, now_ms: i64) -> Next {
        if let Some(body) = waiting.signal.as_ref().and_then(|name| self.inbox.take(name)) {
            self.signal = body;
            self.stage = Stage::Begin;
            return Next::Again;
        }
        if waiting.wake_ms.is_some_and(|wake_ms| wake_ms <= now_ms) {
            self.stage = Stage::Begin;
            return Next::Again;
        }
        let outlook = Outlook::Parked { wake_ms: waiting.wake_ms, reason: waiting.reason() };
        self.stage = Stage::Wait(waiting);
        Next::Return(outlook)
    }

    fn graph_cx(&self) -> GraphCx<'_> {
        GraphCx {
            facts: &self.facts,
            run: &self.scope,
            state: &self.state,
            signal: &self.signal,
            pure: &self.shape.pure,
            concurrency: self.shape.concurrency,
        }
    }

    /// The scope outside a graph.
    fn between<'a>(&'a self, none: &'a IndexMap<TaskId, Json>) -> Scope<'a> {
        self.after(&NULL, none)
    }

    /// The scope after a graph.
    fn after<'a>(&'a self, graph: &'a Json, tasks: &'a IndexMap<TaskId, Json>) -> Scope<'a> {
        let (state, signal) = (&self.state, &self.signal);
        Scope { input: &self.facts.input, state, graph, tasks, signal, run: &self.scope }
    }
}

static NULL: std::sync::LazyLock<Json> = std::sync::LazyLock::new(Json::null);

impl Execution for LoopRun {
    fn advance(&mut self, events: &[Event], now_ms: i64) -> Decision {
        self.scope.spent.reset();
        let mut decision = Decision::waiting();
        let mut taken = Ok(());
        for event in events {
            match event {
                Event::CallSettled { call, outcome } => {
                    let Self { shape, facts, scope, state, signal, stage, .. } = self;
                    if let Stage::Graph(run) = stage {
                        let cx = GraphCx {
                            facts,
                            run: scope,
                            state,
                            signal,
                            pure: &shape.pure,
                            concurrency: shape.concurrency,
                        };
                        taken = taken.and(run.settle(call, outcome, &cx, &mut decision));
                    }
                }
                Event::Signal { name, body, .. } => {
                    // A signal that no wait of this loop can name would only lie about.
                    if self.shape.wait.as_ref().is_some_and(|wait| wait.signal.as_deref() == Some(name)) {
                        self.inbox.push(name, body);
                    }
                }
                // Time is compared, not announced; cancel and deadline belong to the run, not to the plan.
                Event::Woke | Event::CancelRequested | Event::DeadlinePassed => {}
            }
        }
        decision.outlook = taken.and_then(|()| self.proceed(now_ms, &mut decision)).unwrap_or_else(|error| {
            Outlook::Ended(Ending { status: RunStatus::Failed, output: None, error: Some(error) })
        });
        if matches!(decision.outlook, Outlook::Ended(_)) {
            self.stage = Stage::Ended;
        }
        decision
    }

    fn checkpoint(&self) -> Checkpoint {
        let (mut open, mut kept) = (Vec::new(), Vec::new());
        let mut w = JsonWriter::new();
        w.begin_object().key("iteration").integer(self.scope.iteration);
        w.key("state").value(&self.state).key("signal").value(&self.signal);
        match &self.stage {
            Stage::Begin => {}
            Stage::Graph(run) => {
                w.key("graph");
                run.write(&mut w, &mut open, &mut kept);
            }
            Stage::Wait(waiting) => {
                w.key("wait").value(&Json::from_serialize(&(&waiting.signal, waiting.wake_ms)).unwrap_or_default());
            }
            Stage::Ended => {
                w.key("ended").value(&Json::bool(true));
            }
        }
        w.key("inbox");
        self.inbox.write(&mut w);
        Checkpoint { open, kept, body: w.finish() }
    }
}

/// The body of a checkpoint.
#[derive(Deserialize)]
struct Record {
    iteration: u64,
    state: Json,
    signal: Json,
    #[serde(default)]
    graph: Option<GraphRecord>,
    #[serde(default)]
    wait: Option<(Option<String>, Option<i64>)>,
    #[serde(default)]
    ended: bool,
    inbox: Vec<(String, Json)>,
}
