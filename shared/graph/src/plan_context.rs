//! What a plan function may do: run a graph, ask for the time, sleep, wait for a signal. Nothing else.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use ditto_contracts::{CallUid, ErrorClass, Json, RunId, TaskId, WireError, codes};
use indexmap::IndexMap;

use crate::{
    CallOutcome, Graph, GraphFailure,
    failure::{error, internal},
    graph_record::Cursor,
    graph_run::GraphRun,
    journal::{Answer, Ask, ENTRIES_MAX, Entry, RawEntry, diverged},
};

/// The hands of a plan function. One step at a time: a step must be awaited to its end before the next one begins.
#[derive(Clone)]
pub struct PlanContext {
    pub(crate) shared: Arc<Mutex<Shared>>,
    run: RunId,
}

/// What the function and its driver share.
pub(crate) struct Shared {
    pub(crate) now_ms: i64,
    pub(crate) journal: Vec<Entry>,
    pub(crate) journal_bytes: usize,
    /// How many questions were asked.
    pub(crate) asked: usize,
    /// How many of them were graphs.
    pub(crate) graphs: u64,
    pub(crate) max_iterations: u64,
    /// The question that is open.
    pub(crate) active: Option<Active>,
    pub(crate) answer: Option<Answer>,
    /// The run is over with this error; the function is not told and not polled again.
    pub(crate) stopped: Option<WireError>,
    /// While the journal is replayed: the question that was open, and what the receipts say.
    pub(crate) recorded: Option<Recorded>,
    pub(crate) outcomes: HashMap<CallUid, CallOutcome>,
}

/// A question that is open.
pub(crate) struct Active {
    pub(crate) ask: Ask,
    pub(crate) run: Option<Box<GraphRun>>,
    /// Number of the graph in the run.
    pub(crate) iteration: u64,
    pub(crate) until_ms: Option<i64>,
    /// It was decided now or earlier; `false`: its start was not yet reported.
    pub(crate) started: bool,
}

/// A question that was open when the checkpoint was written.
pub(crate) struct Recorded {
    pub(crate) entry: RawEntry,
    pub(crate) open: Vec<CallUid>,
    pub(crate) kept: Vec<CallUid>,
}

pub(crate) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner) // a panic of the function ends the run anyway
}

impl PlanContext {
    pub(crate) fn new(shared: Arc<Mutex<Shared>>, run: RunId) -> Self {
        Self { shared, run }
    }

    /// The run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Runs a graph and returns the outputs of its tasks. Costs one iteration, also when it fails.
    ///
    /// # Errors
    /// The first error of the graph, after everything it had started has ended. The plan may go on after it.
    ///
    /// # Cancel safety
    /// Not cancel-safe: dropping the future before it is ready ends the run at the next step.
    pub async fn graph(&self, graph: &Graph, input: Json) -> Result<IndexMap<TaskId, Json>, GraphFailure> {
        match self.step(Ask::Graph { graph: graph.clone(), input }).await {
            Answer::Graph(result) => result,
            Answer::Slept | Answer::Signal(_) | Answer::Now(_) => std::future::pending().await,
        }
    }

    /// The time in milliseconds since 1970, by the ledger's clock: that of the decision which asked first.
    pub fn now(&self) -> i64 {
        lock(&self.shared).now()
    }

    /// Waits for this many milliseconds. The run needs no memory meanwhile.
    ///
    /// # Cancel safety
    /// Not cancel-safe: dropping the future before it is ready ends the run at the next step.
    pub async fn sleep(&self, ms: u64) {
        let _ = self.step(Ask::Sleep { ms }).await;
    }

    /// Waits for a signal and returns its body. Signals that came earlier count.
    ///
    /// # Cancel safety
    /// Not cancel-safe: dropping the future before it is ready ends the run at the next step.
    pub async fn signal(&self, name: &str) -> Json {
        match self.step(Ask::Signal { name: name.to_owned(), ms: None }).await {
            Answer::Signal(Some(body)) => body,
            Answer::Signal(None) | Answer::Graph(_) | Answer::Slept | Answer::Now(_) => std::future::pending().await,
        }
    }

    /// Waits for a signal for at most this many milliseconds; `None` when it did not come.
    ///
    /// # Cancel safety
    /// Not cancel-safe: dropping the future before it is ready ends the run at the next step.
    pub async fn signal_within(&self, name: &str, ms: u64) -> Option<Json> {
        match self.step(Ask::Signal { name: name.to_owned(), ms: Some(ms) }).await {
            Answer::Signal(body) => body,
            Answer::Graph(_) | Answer::Slept | Answer::Now(_) => std::future::pending().await,
        }
    }

    fn step(&self, ask: Ask) -> Step {
        Step { shared: self.shared.clone(), ask: Some(ask), number: 0 }
    }
}

/// One question on its way to its answer.
struct Step {
    shared: Arc<Mutex<Shared>>,
    ask: Option<Ask>,
    number: usize,
}

impl Future for Step {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Answer> {
        let shared = self.shared.clone();
        let mut shared = lock(&shared);
        if let Some(ask) = self.ask.take() {
            self.number = shared.asked;
            return shared.ask(ask).map_or(Poll::Pending, Poll::Ready);
        }
        // The answer is for the question asked last; an older one was given up and gets none.
        if shared.asked != self.number + 1 {
            return Poll::Pending;
        }
        shared.answer.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Shared {
    /// Ends the run. The first reason counts.
    pub(crate) fn stop(&mut self, reason: WireError) {
        self.stopped.get_or_insert(reason);
    }

    /// Answers from the journal, or opens the question.
    fn ask(&mut self, ask: Ask) -> Option<Answer> {
        let (n, iteration) = (self.asked, self.graphs);
        if self.stopped.is_some() || !self.may_ask(&ask) {
            return None;
        }
        self.asked += 1;
        if matches!(ask, Ask::Graph { .. }) {
            self.graphs += 1;
        }
        if let Some(entry) = self.journal.get(n) {
            return match entry.replay(n, &ask, &self.outcomes) {
                Ok(answer) => Some(answer),
                Err(reason) => {
                    self.stop(reason);
                    None
                }
            };
        }
        match self.open(n, ask, iteration) {
            Ok(active) => self.active = Some(active),
            Err(reason) => self.stop(reason),
        }
        None
    }

    fn may_ask(&mut self, ask: &Ask) -> bool {
        if self.active.is_some() || self.answer.is_some() {
            let message = format!("{} was asked for while another step was not awaited to its end", ask.describe());
            self.stop(error(ErrorClass::InvalidInput, codes::TASK_FAILED, &message));
            return false;
        }
        if self.asked < self.journal.len() || self.recorded.is_some() {
            return true;
        }
        if matches!(ask, Ask::Graph { .. }) && self.graphs >= self.max_iterations {
            let message = format!("loop iteration limit reached: {}", self.max_iterations);
            self.stop(error(ErrorClass::Failed, codes::ITERATION_LIMIT, &message));
            return false;
        }
        if self.asked >= ENTRIES_MAX {
            let message = format!("a plan may take {ENTRIES_MAX} steps: iteration limit reached");
            self.stop(error(ErrorClass::Failed, codes::ITERATION_LIMIT, &message));
            return false;
        }
        true
    }

    /// A question that the journal does not answer: the one that was open before, or a new one.
    fn open(&mut self, n: usize, ask: Ask, iteration: u64) -> Result<Active, WireError> {
        let recorded = self.recorded.take();
        let until_ms = match (&recorded, &ask) {
            (Some(recorded), _) => recorded.entry.until,
            (None, Ask::Sleep { ms } | Ask::Signal { ms: Some(ms), .. }) => {
                Some(self.now_ms.saturating_add(i64::try_from(*ms).unwrap_or(i64::MAX)))
            }
            (None, Ask::Graph { .. } | Ask::Signal { ms: None, .. } | Ask::Now) => None,
        };
        let started = recorded.is_some();
        let run = match (recorded, &ask) {
            (Some(recorded), _) => {
                recorded.entry.check(n, &ask)?;
                match (recorded.entry.record, &ask) {
                    (Some(record), Ask::Graph { graph, .. }) => {
                        let (mut open, mut kept) = (Cursor::new(&recorded.open), Cursor::new(&recorded.kept));
                        Some(Box::new(record.restore(graph.clone(), &mut open, &mut kept, &self.outcomes)?))
                    }
                    (None, Ask::Graph { .. }) => return Err(internal("the journal has a graph without progress")),
                    (_, Ask::Sleep { .. } | Ask::Signal { .. } | Ask::Now) => None,
                }
            }
            (None, Ask::Graph { graph, input }) => Some(Box::new(GraphRun::new(graph.clone(), input.clone()))),
            (None, Ask::Sleep { .. } | Ask::Signal { .. } | Ask::Now) => None,
        };
        Ok(Active { ask, run, iteration, until_ms, started })
    }

    fn now(&mut self) -> i64 {
        if self.stopped.is_some() || !self.may_ask(&Ask::Now) {
            return self.now_ms;
        }
        let n = self.asked;
        self.asked += 1;
        if let Some(entry) = self.journal.get(n) {
            return match entry.replay(n, &Ask::Now, &self.outcomes) {
                Ok(Answer::Now(now_ms)) => now_ms,
                Ok(Answer::Graph(_) | Answer::Slept | Answer::Signal(_)) => self.now_ms,
                Err(reason) => {
                    self.stop(reason);
                    self.now_ms
                }
            };
        }
        if let Some(recorded) = &self.recorded {
            let reason = diverged(n, &recorded.entry.describe(), &Ask::Now.describe());
            self.stop(reason);
            return self.now_ms;
        }
        self.journal.push(Entry::other(&Ask::Now, &Answer::Now(self.now_ms)));
        self.now_ms
    }
}
