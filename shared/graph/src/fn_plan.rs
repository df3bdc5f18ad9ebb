//! A plan written as a durable async function. Its history is a journal; after a restart it is run again against it.

use std::{
    collections::HashMap,
    future::Future,
    num::NonZeroUsize,
    pin::Pin,
    sync::{Arc, LazyLock, Mutex},
    task::{Context, Poll, Waker},
};

use ditto_contracts::{CallUid, ErrorClass, Json, JsonWriter, LoopName, Revision, RunStatus, WireError, codes, limits};
use serde::Deserialize;

use crate::{
    CallOutcome, Checkpoint, Decision, Ending, Event, Execution, GraphFailure, InputCheck, Outlook, Plan, PlanContext,
    PlanEnd, Progress, PureNodes, RunFacts, RunScope,
    failure::{check_size, error, guarded, internal},
    graph_run::GraphCx,
    inbox::Inbox,
    journal::{Answer, Ask, Entry, RawEntry, diverged},
    plan_context::{Active, Recorded, Shared, lock},
};

type PlanFuture = Pin<Box<dyn Future<Output = PlanEnd> + Send>>;
type PlanBody = Arc<dyn Fn(PlanContext, Json) -> PlanFuture + Send + Sync>;

/// A plan written as an async function. It must decide by its input and by what its context gives it, and by nothing
/// else; a program that asks for other things than its journal says is stopped with `PLAN_DIVERGED`.
///
/// ```
/// # use ditto_contracts::{IdError, Json, LoopName, NodeType, Revision, TaskId};
/// # use ditto_graph::{FnPlan, Graph, GraphFailure, PlanContext, Task, formula};
/// # fn main() -> Result<(), IdError> {
/// let read = TaskId::new("read")?;
/// let graph = Graph::builder("lookup")
///     .task(Task::new(read.clone(), NodeType::new("MEMORY.GET")?).input(formula(|scope| Ok(scope.graph.clone()))))
///     .build()
///     .expect("one task");
/// let plan = FnPlan::new(LoopName::new("patient")?, Revision::new("1")?, move |cx: PlanContext, input: Json| {
///     let (graph, read) = (graph.clone(), read.clone());
///     async move {
///         loop {
///             match cx.graph(&graph, input.clone()).await {
///                 Ok(outputs) => return Ok::<_, GraphFailure>(outputs[&read].clone()),
///                 Err(failure) if failure.error.retryable => cx.sleep(60_000).await,
///                 Err(failure) => return Err(failure),
///             }
///         }
///     }
/// });
/// # let _ = plan;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FnPlan {
    name: LoopName,
    revision: Revision,
    body: PlanBody,
    settings: Settings,
}

#[derive(Clone)]
struct Settings {
    deadline_ms: Option<u64>,
    check: Option<InputCheck>,
    max_iterations: u64,
    concurrency: Option<NonZeroUsize>,
    pure: Arc<PureNodes>,
}

impl FnPlan {
    /// A plan of this name and revision. Change the revision whenever the function asks for something else.
    pub fn new<F, Fut>(name: LoopName, revision: Revision, run: F) -> Self
    where
        F: Fn(PlanContext, Json) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: Into<PlanEnd>,
    {
        let run = Arc::new(run);
        let body: PlanBody = Arc::new(move |cx, input| {
            let run = run.clone();
            Box::pin(async move { run(cx, input).await.into() })
        });
        let settings = Settings {
            deadline_ms: None,
            check: None,
            max_iterations: limits::LOOP_ITERATIONS_DEFAULT,
            concurrency: None,
            pure: Arc::new(PureNodes::new()),
        };
        Self { name, revision, body, settings }
    }

    /// How long a run may take, in milliseconds.
    #[must_use]
    pub fn deadline_ms(mut self, deadline_ms: u64) -> Self {
        self.settings.deadline_ms = Some(deadline_ms);
        self
    }

    /// How an input is checked; without it every input is accepted.
    #[must_use]
    pub fn check_input(mut self, check: InputCheck) -> Self {
        self.settings.check = Some(check);
        self
    }

    /// Most graphs, failed ones included; 32 without it. The function cannot catch that it is reached.
    #[must_use]
    pub fn max_iterations(mut self, max_iterations: u64) -> Self {
        self.settings.max_iterations = max_iterations;
        self
    }

    /// Most tasks of a graph open at once; 0: unlimited, as without it.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = NonZeroUsize::new(concurrency);
        self
    }

    /// Nodes that are evaluated inside a decision.
    #[must_use]
    pub fn pure_nodes(mut self, pure: Arc<PureNodes>) -> Self {
        self.settings.pure = pure;
        self
    }
}

impl Plan for FnPlan {
    fn name(&self) -> &LoopName {
        &self.name
    }

    fn revision(&self) -> &Revision {
        &self.revision
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.settings.deadline_ms
    }

    fn check_input(&self, input: &Json) -> Result<(), Vec<String>> {
        self.settings.check.as_ref().map_or(Ok(()), |check| check(input))
    }

    fn begin(&self, facts: &RunFacts) -> Result<Box<dyn Execution>, WireError> {
        Ok(Box::new(FnRun::new(self, facts, Vec::new(), None, HashMap::new(), Inbox::default())))
    }

    fn restore(
        &self,
        facts: &RunFacts,
        checkpoint: &Checkpoint,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<Box<dyn Execution>, WireError> {
        let record: Record = checkpoint.body.to().map_err(|problem| internal(&format!("checkpoint: {problem}")))?;
        let mut kept = checkpoint.kept.iter().cloned();
        let mut journal = Vec::with_capacity(record.entries.len());
        for written in record.entries {
            let count = RawEntry::read(&written)?.record.map_or(0, |record| record.kept_count());
            journal.push(Entry { written, kept: kept.by_ref().take(count).collect() });
        }
        let open = checkpoint.open.clone();
        let recorded = record.active.map(|entry| Recorded { entry, open, kept: kept.collect() });
        let mut run = FnRun::new(self, facts, journal, recorded, outcomes.clone(), Inbox::restore(record.inbox));
        if record.ended {
            run.close();
        } else {
            run.replay()?;
        }
        Ok(Box::new(run))
    }
}

/// One run of the function.
struct FnRun {
    facts: RunFacts,
    settings: Settings,
    shared: Arc<Mutex<Shared>>,
    /// `None`: over.
    future: Option<PlanFuture>,
    inbox: Inbox,
}

static NULL: LazyLock<Json> = LazyLock::new(Json::null);

impl FnRun {
    fn new(
        plan: &FnPlan,
        facts: &RunFacts,
        journal: Vec<Entry>,
        recorded: Option<Recorded>,
        outcomes: HashMap<CallUid, CallOutcome>,
        inbox: Inbox,
    ) -> Self {
        let shared = Arc::new(Mutex::new(Shared {
            now_ms: 0,
            journal_bytes: journal.iter().map(|entry| entry.written.len()).sum(),
            journal,
            asked: 0,
            graphs: 0,
            max_iterations: plan.settings.max_iterations,
            active: None,
            answer: None,
            stopped: None,
            recorded,
            outcomes,
        }));
        let cx = PlanContext::new(shared.clone(), facts.run.clone());
        let future = Some((plan.body)(cx, facts.input.clone()));
        Self { facts: facts.clone(), settings: plan.settings.clone(), shared, future, inbox }
    }

    /// Brings the function to the question that was open.
    fn replay(&mut self) -> Result<(), WireError> {
        let end = self.poll()?;
        let mut shared = lock(&self.shared);
        shared.outcomes = HashMap::new();
        let asked = shared.asked;
        if let Some(recorded) = &shared.recorded {
            return Err(diverged(asked, &recorded.entry.describe(), "nothing more"));
        }
        if asked < shared.journal.len() || end.is_some() {
            let recorded = shared.journal.get(asked).and_then(|entry| RawEntry::read(&entry.written).ok());
            let recorded = recorded.map_or("nothing more".into(), |entry| entry.describe());
            return Err(diverged(asked, &recorded, "the end"));
        }
        Ok(())
    }

    /// Runs the function until it has a question or an end.
    fn poll(&mut self) -> Result<Option<PlanEnd>, WireError> {
        let Some(future) = self.future.as_mut() else { return Err(internal("an ended plan was asked to go on")) };
        let polled = guarded(|| future.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        if let Some(reason) = lock(&self.shared).stopped.clone() {
            return Err(reason);
        }
        match polled {
            Err(panicked) => Err(panicked),
            Ok(Poll::Ready(end)) => Ok(Some(end)),
            Ok(Poll::Pending) if lock(&self.shared).active.is_some() => Ok(None),
            Ok(Poll::Pending) => {
                let message = "the plan awaits something that is not a step of its context";
                Err(error(ErrorClass::InvalidInput, codes::TASK_FAILED, message))
            }
        }
    }

    fn proceed(&mut self, events: &[Event], now_ms: i64, decision: &mut Decision) -> Result<Outlook, WireError> {
        lock(&self.shared).now_ms = now_ms;
        for event in events {
            match event {
                Event::CallSettled { call, outcome } => self.settle(call, outcome, decision)?,
                Event::Signal { name, body, .. } => self.inbox.push(name, body),
                Event::Woke | Event::CancelRequested | Event::DeadlinePassed => {}
            }
        }
        loop {
            if let Some(outlook) = self.proceed_active(now_ms, decision)? {
                return Ok(outlook);
            }
            if let Some(end) = self.poll()? {
                return Ok(Outlook::Ended(end.into()));
            }
        }
    }

    fn settle(&mut self, call: &CallUid, outcome: &CallOutcome, decision: &mut Decision) -> Result<(), WireError> {
        let mut shared = lock(&self.shared);
        let Some(Active { run: Some(run), iteration, .. }) = &mut shared.active else { return Ok(()) };
        let scope = RunScope::new(self.facts.run.clone(), *iteration);
        run.settle(call, outcome, &graph_cx(&self.facts, &self.settings, &scope), decision)
    }

    /// Takes the open question as far as it goes. `None`: it has its answer, or there is none.
    fn proceed_active(&mut self, now_ms: i64, decision: &mut Decision) -> Result<Option<Outlook>, WireError> {
        let mut shared = lock(&self.shared);
        let Some(active) = &mut shared.active else { return Ok(None) };
        let (entry, answer) = match (&active.ask, &mut active.run) {
            (ask @ Ask::Graph { graph, .. }, Some(run)) => {
                if !std::mem::replace(&mut active.started, true) {
                    let graph = graph.id().to_owned();
                    decision.progress.push(Progress::Iteration { iteration: active.iteration, graph });
                }
                let scope = RunScope::new(self.facts.run.clone(), active.iteration);
                run.admit(&graph_cx(&self.facts, &self.settings, &scope), decision)?;
                if !run.is_settled() {
                    return Ok(Some(Outlook::Running { wake_ms: None }));
                }
                decision.boundary = true;
                let result = match &run.failure {
                    Some(failure) => Err::<_, GraphFailure>(failure.clone()),
                    None => Ok(run.outputs()),
                };
                (Entry::graph(ask, run), Answer::Graph(result))
            }
            (Ask::Sleep { .. }, _) => {
                if active.until_ms.is_some_and(|until_ms| until_ms > now_ms) {
                    return Ok(Some(Outlook::Parked { wake_ms: active.until_ms, reason: "time".into() }));
                }
                (Entry::other(&active.ask, &Answer::Slept), Answer::Slept)
            }
            (Ask::Signal { name, .. }, _) => {
                let body = self.inbox.take(name);
                if body.is_none() && active.until_ms.is_none_or(|until_ms| until_ms > now_ms) {
                    let reason = format!("signal {name}");
                    return Ok(Some(Outlook::Parked { wake_ms: active.until_ms, reason }));
                }
                let answer = Answer::Signal(body);
                (Entry::other(&active.ask, &answer), answer)
            }
            (Ask::Graph { .. } | Ask::Now, _) => return Err(internal("a step of the plan cannot be taken")),
        };
        shared.journal_bytes += entry.written.len();
        check_size("the journal of the plan", shared.journal_bytes)?;
        shared.journal.push(entry);
        shared.answer = Some(answer);
        shared.active = None;
        Ok(None)
    }

    /// Drops the function; its destructors run, and nothing they ask for is done.
    fn close(&mut self) {
        lock(&self.shared).stop(internal("the plan is over"));
        if let Some(future) = self.future.take() {
            // A destructor that panics must not take the driver down; the run is over either way.
            let _ = guarded(|| drop(future));
        }
    }
}

impl Drop for FnRun {
    fn drop(&mut self) {
        self.close();
    }
}

fn graph_cx<'a>(facts: &'a RunFacts, settings: &'a Settings, run: &'a RunScope) -> GraphCx<'a> {
    GraphCx { facts, run, state: &NULL, signal: &NULL, pure: &settings.pure, concurrency: settings.concurrency }
}

impl Execution for FnRun {
    fn advance(&mut self, events: &[Event], now_ms: i64) -> Decision {
        let mut decision = Decision::waiting();
        decision.outlook = self.proceed(events, now_ms, &mut decision).unwrap_or_else(|error| {
            Outlook::Ended(Ending { status: RunStatus::Failed, output: None, error: Some(error) })
        });
        if matches!(decision.outlook, Outlook::Ended(_)) {
            self.close();
        }
        decision
    }

    fn checkpoint(&self) -> Checkpoint {
        let shared = lock(&self.shared);
        let (mut open, mut kept) = (Vec::new(), Vec::new());
        let mut w = JsonWriter::new();
        w.begin_object().key("entries").begin_array();
        for entry in &shared.journal {
            w.value(&entry.written);
            kept.extend(entry.kept.iter().cloned());
        }
        w.end();
        if self.future.is_none() {
            w.key("ended").value(&Json::bool(true));
        } else if let Some(active) = &shared.active {
            w.key("active");
            active.ask.write_open(&mut w, active.run.as_deref(), active.until_ms, &mut open, &mut kept);
        }
        w.key("inbox");
        self.inbox.write(&mut w);
        Checkpoint { open, kept, body: w.finish() }
    }
}

/// The body of a checkpoint.
#[derive(Deserialize)]
struct Record {
    entries: Vec<Json>,
    #[serde(default)]
    active: Option<RawEntry>,
    #[serde(default)]
    ended: bool,
    inbox: Vec<(String, Json)>,
}
