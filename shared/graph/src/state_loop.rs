//! A loop with explicit state: graphs run one after another until the state says it is done.

use std::{num::NonZeroUsize, sync::Arc};

use ditto_contracts::{Json, JsonWriter, LoopName, NodeType, Revision, TaskId, WireError, limits};
use indexmap::IndexMap;

use crate::{
    CallOutcome, Checkpoint, Execution, Formula, Graph, Plan, PureNodes, RunFacts, Scope, Task, Wait, constant,
    formula::formula, loop_run::LoopRun,
};

/// Checks an input; one line per problem, each naming the field and what was expected.
pub type InputCheck = Arc<dyn Fn(&Json) -> Result<(), Vec<String>> + Send + Sync>;

/// A loop over graphs with explicit state. Cloning it copies nothing; one definition may drive many runs.
///
/// ```
/// # use ditto_contracts::{IdError, Json, LoopName, NodeType, Revision, TaskId};
/// # use ditto_graph::{Graph, StateLoop, Task, formula};
/// # fn main() -> Result<(), IdError> {
/// let step = TaskId::new("step")?;
/// let graph = Graph::builder("work").task(Task::new(step.clone(), NodeType::new("ACME.STEP")?)).build().expect("one task");
/// let plan = StateLoop::builder(LoopName::new("until-empty")?, Revision::new("1")?)
///     .graph(graph, formula(|scope| Ok(scope.state.clone())))
///     .update(formula(move |scope| Ok(scope.tasks[&step].clone())))
///     .done(formula(|scope| Ok(Json::bool(scope.state.field("rest").is_none_or(|rest| rest.is_null())))))
///     .max_iterations(1000)
///     .build();
/// assert!(plan.is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct StateLoop {
    pub(crate) shape: Arc<LoopShape>,
}

pub(crate) struct LoopShape {
    pub(crate) name: LoopName,
    pub(crate) revision: Revision,
    pub(crate) deadline_ms: Option<u64>,
    pub(crate) check: Option<InputCheck>,
    pub(crate) initial: Arc<dyn Formula>,
    pub(crate) graphs: IndexMap<String, LoopGraph>,
    pub(crate) select: Option<Arc<dyn Formula>>,
    pub(crate) update: Option<Arc<dyn Formula>>,
    pub(crate) done: Option<Arc<dyn Formula>>,
    pub(crate) output: Option<Arc<dyn Formula>>,
    pub(crate) wait: Option<Wait>,
    pub(crate) max_iterations: u64,
    pub(crate) concurrency: Option<NonZeroUsize>,
    pub(crate) pure: Arc<PureNodes>,
}

pub(crate) struct LoopGraph {
    pub(crate) graph: Graph,
    pub(crate) input: Arc<dyn Formula>,
}

/// Why a loop cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateLoopProblem {
    /// Nothing to run.
    #[error("a loop needs at least one graph")]
    NoGraph,
    /// Two graphs share an id.
    #[error("duplicate graph id {0:?}")]
    DuplicateGraph(String),
    /// Several graphs and nothing that chooses.
    #[error("several graphs need select")]
    NoSelect,
    /// A limit of 0.
    #[error("maxIterations must be a positive integer")]
    MaxIterations,
    /// A limit of 0.
    #[error("concurrency must be a positive integer")]
    Concurrency,
    /// A wait for nothing.
    #[error("wait needs a signal, a duration or a time")]
    EmptyWait,
}

/// Puts a loop together; every problem is reported at once by [`StateLoopBuilder::build`].
pub struct StateLoopBuilder {
    shape: LoopShape,
    problems: Vec<StateLoopProblem>,
}

impl StateLoop {
    /// A loop of this name and revision. Equal revisions must behave equally.
    pub fn builder(name: LoopName, revision: Revision) -> StateLoopBuilder {
        StateLoopBuilder {
            shape: LoopShape {
                name,
                revision,
                deadline_ms: None,
                check: None,
                initial: constant(Json::empty_object()),
                graphs: IndexMap::new(),
                select: None,
                update: None,
                done: None,
                output: None,
                wait: None,
                max_iterations: limits::LOOP_ITERATIONS_DEFAULT,
                concurrency: None,
                pure: Arc::new(PureNodes::new()),
            },
            problems: Vec::new(),
        }
    }

    /// One graph, run once. Its input is the run's input; the output is an object with the output of every task.
    pub fn single_graph(name: LoopName, revision: Revision, graph: Graph) -> StateLoopBuilder {
        let outputs = formula(|scope| {
            let mut w = JsonWriter::new();
            w.begin_object();
            for (task, value) in scope.tasks {
                w.key(task.as_str()).value(value);
            }
            Ok(w.finish())
        });
        Self::builder(name, revision).graph(graph, formula(|scope| Ok(scope.input.clone()))).output(outputs)
    }

    /// One node, run once. The run's input is the node's input, the node's output is the run's output.
    ///
    /// # Errors
    /// Never in practice: when the node type is no definition name.
    pub fn single_node(node: NodeType) -> Result<StateLoopBuilder, WireError> {
        let invalid = |problem: ditto_contracts::IdError| crate::failure::invalid(&problem.to_string());
        let name = LoopName::new(node.as_str()).map_err(invalid)?;
        let revision = Revision::new("1").map_err(invalid)?;
        let task = TaskId::new("node").map_err(invalid)?;
        let graph = Graph::builder(node.as_str())
            .task(Task::new(task.clone(), node.clone()).input(formula(|scope| Ok(scope.graph.clone()))))
            .build()
            .map_err(|_| crate::failure::internal("a graph of one task was refused"))?;
        let output = formula(move |scope: &Scope<'_>| Ok(scope.tasks.get(&task).cloned().unwrap_or_default()));
        Ok(Self::single_graph(name, revision, graph).output(output))
    }

    /// The graphs it may run.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.shape.graphs.values().map(|entry| &entry.graph)
    }
}

impl StateLoopBuilder {
    /// How long a run may take, in milliseconds.
    #[must_use]
    pub fn deadline_ms(mut self, deadline_ms: u64) -> Self {
        self.shape.deadline_ms = Some(deadline_ms);
        self
    }

    /// How an input is checked; without it every input is accepted.
    #[must_use]
    pub fn check_input(mut self, check: InputCheck) -> Self {
        self.shape.check = Some(check);
        self
    }

    /// The state of the first iteration; `{}` without it. Only `input` and `run` are in scope.
    #[must_use]
    pub fn initial_state(mut self, initial: Arc<dyn Formula>) -> Self {
        self.shape.initial = initial;
        self
    }

    /// Adds a graph and the formula for its input.
    #[must_use]
    pub fn graph(mut self, graph: Graph, input: Arc<dyn Formula>) -> Self {
        let id = graph.id().to_owned();
        if self.shape.graphs.insert(id.clone(), LoopGraph { graph, input }).is_some() {
            self.problems.push(StateLoopProblem::DuplicateGraph(id));
        }
        self
    }

    /// Names the graph of an iteration; not needed when there is only one.
    #[must_use]
    pub fn select(mut self, select: Arc<dyn Formula>) -> Self {
        self.shape.select = Some(select);
        self
    }

    /// The next state, from the old one and all outputs of the graph; without it the state stays.
    #[must_use]
    pub fn update(mut self, update: Arc<dyn Formula>) -> Self {
        self.shape.update = Some(update);
        self
    }

    /// Whether this iteration was the last, from the new state and the outputs; without it one iteration is run.
    #[must_use]
    pub fn done(mut self, done: Arc<dyn Formula>) -> Self {
        self.shape.done = Some(done);
        self
    }

    /// The output of the run, from the last state and outputs; without it the last state.
    #[must_use]
    pub fn output(mut self, output: Arc<dyn Formula>) -> Self {
        self.shape.output = Some(output);
        self
    }

    /// What to wait for between iterations.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.shape.wait = Some(wait);
        self
    }

    /// Most iterations, at least 1; 32 without it.
    #[must_use]
    pub fn max_iterations(mut self, max_iterations: u64) -> Self {
        self.shape.max_iterations = max_iterations;
        self
    }

    /// Most tasks of a graph open at once, at least 1; unlimited without it.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.shape.concurrency = NonZeroUsize::new(concurrency);
        if concurrency == 0 {
            self.problems.push(StateLoopProblem::Concurrency);
        }
        self
    }

    /// Nodes that are evaluated inside a decision.
    #[must_use]
    pub fn pure_nodes(mut self, pure: Arc<PureNodes>) -> Self {
        self.shape.pure = pure;
        self
    }

    /// Checks everything and makes the loop.
    ///
    /// # Errors
    /// All problems.
    pub fn build(self) -> Result<StateLoop, Vec<StateLoopProblem>> {
        let Self { shape, mut problems } = self;
        if shape.graphs.is_empty() {
            problems.push(StateLoopProblem::NoGraph);
        }
        if shape.graphs.len() > 1 && shape.select.is_none() {
            problems.push(StateLoopProblem::NoSelect);
        }
        if shape.max_iterations == 0 {
            problems.push(StateLoopProblem::MaxIterations);
        }
        if shape.wait.as_ref().is_some_and(|w| w.signal.is_none() && w.duration.is_none() && w.until.is_none()) {
            problems.push(StateLoopProblem::EmptyWait);
        }
        if problems.is_empty() { Ok(StateLoop { shape: Arc::new(shape) }) } else { Err(problems) }
    }
}

impl Plan for StateLoop {
    fn name(&self) -> &LoopName {
        &self.shape.name
    }

    fn revision(&self) -> &Revision {
        &self.shape.revision
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.shape.deadline_ms
    }

    fn check_input(&self, input: &Json) -> Result<(), Vec<String>> {
        self.shape.check.as_ref().map_or(Ok(()), |check| check(input))
    }

    fn begin(&self, facts: &RunFacts) -> Result<Box<dyn Execution>, WireError> {
        Ok(Box::new(LoopRun::begin(self.shape.clone(), facts.clone())?))
    }

    fn restore(
        &self,
        facts: &RunFacts,
        checkpoint: &Checkpoint,
        outcomes: &std::collections::HashMap<ditto_contracts::CallUid, CallOutcome>,
    ) -> Result<Box<dyn Execution>, WireError> {
        Ok(Box::new(LoopRun::restore(self.shape.clone(), facts.clone(), checkpoint, outcomes)?))
    }
}
