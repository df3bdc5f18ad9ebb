//! A finite DAG of tasks; immutable once built.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use ditto_contracts::{Json, NodeType, OnUnknown, Pool, TaskId, limits::GRAPH_TASKS_MAX};
use sha2::{Digest as _, Sha256};

use crate::{Formula, constant};

/// Most attempts a [`Retry`] may ask for.
const RETRY_ATTEMPTS_MAX: u16 = 100;

/// How often a task of class R or K that failed definitely is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, at least 2.
    pub max_attempts: u16,
    /// Pause before the second attempt, in milliseconds; doubles with each further one, up to a day.
    pub backoff_ms: u64,
}

/// One task of a graph.
#[derive(Clone)]
pub struct Task {
    /// Its id, unique in the graph.
    pub id: TaskId,
    /// What it executes.
    pub node: NodeType,
    /// Tasks declared earlier whose outputs it sees.
    pub needs: Vec<TaskId>,
    /// The node's input.
    pub input: Arc<dyn Formula>,
    /// Skipped when this is not `true`; its dependents see `null`.
    pub when: Option<Arc<dyn Formula>>,
    /// Fails the task before anything is sent when this is a nonempty string: the error code.
    pub fail: Option<Arc<dyn Formula>>,
    /// Tried again after a definite failure.
    pub retry: Option<Retry>,
    /// How long one attempt may run, in milliseconds; absent: the tool's own limit.
    pub timeout_ms: Option<u64>,
    /// Queue; absent: the catalogue's.
    pub pool: Option<Pool>,
    /// What to do with an unknown outcome.
    pub on_unknown: OnUnknown,
}

impl Task {
    /// A task without dependencies whose input is `{}`.
    pub fn new(id: TaskId, node: NodeType) -> Self {
        Self {
            id,
            node,
            needs: Vec::new(),
            input: constant(Json::empty_object()),
            when: None,
            fail: None,
            retry: None,
            timeout_ms: None,
            pool: None,
            on_unknown: OnUnknown::default(),
        }
    }

    /// Adds tasks whose outputs it sees.
    #[must_use]
    pub fn needs(mut self, needs: impl IntoIterator<Item = TaskId>) -> Self {
        self.needs.extend(needs);
        self
    }

    /// Sets the node's input.
    #[must_use]
    pub fn input(mut self, input: Arc<dyn Formula>) -> Self {
        self.input = input;
        self
    }

    /// Skips the task when this is not `true`.
    #[must_use]
    pub fn when(mut self, when: Arc<dyn Formula>) -> Self {
        self.when = Some(when);
        self
    }

    /// Fails the task when this is a nonempty string.
    #[must_use]
    pub fn fail(mut self, fail: Arc<dyn Formula>) -> Self {
        self.fail = Some(fail);
        self
    }

    /// Tries again after a definite failure.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Limits one attempt, in milliseconds.
    #[must_use]
    pub fn timeout_ms(mut self, timeout_ms: u64) -> Self {
        self.timeout_ms = Some(timeout_ms);
        self
    }

    /// Names the queue.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Says what to do with an unknown outcome.
    #[must_use]
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.on_unknown = on_unknown;
        self
    }
}

/// A finite DAG of tasks. Cloning it copies no task.
#[derive(Clone)]
pub struct Graph {
    inner: Arc<Inner>,
}

struct Inner {
    id: String,
    tasks: Vec<Task>,
    needs: Vec<Vec<usize>>,
    dependents: Vec<Vec<usize>>,
    index: HashMap<TaskId, usize>,
    shape: [u8; 32],
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks: Vec<&str> = self.tasks().iter().map(|task| task.id.as_str()).collect();
        f.debug_struct("Graph").field("id", &self.id()).field("tasks", &tasks).finish()
    }
}

impl Graph {
    /// Collects the tasks of a graph.
    pub fn builder(id: impl Into<String>) -> GraphBuilder {
        GraphBuilder { id: id.into(), tasks: Vec::new() }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Its tasks in the order of their declaration.
    pub fn tasks(&self) -> &[Task] {
        &self.inner.tasks
    }

    /// The task of this id.
    pub fn task(&self, id: &TaskId) -> Option<&Task> {
        self.inner.index.get(id).and_then(|i| self.inner.tasks.get(*i))
    }

    /// SHA-256 over ids, nodes, dependencies and options. The text of formulas is not part of it.
    pub fn shape(&self) -> [u8; 32] {
        self.inner.shape
    }

    /// Positions of the tasks that task `i` needs.
    pub(crate) fn needs_of(&self, i: usize) -> &[usize] {
        self.inner.needs.get(i).map_or(&[], Vec::as_slice)
    }

    /// Positions of the tasks that need task `i`.
    pub(crate) fn dependents_of(&self, i: usize) -> &[usize] {
        self.inner.dependents.get(i).map_or(&[], Vec::as_slice)
    }
}

/// Why a graph cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphProblem {
    /// The graph has no id.
    #[error("graph id is empty")]
    EmptyId,
    /// Two tasks share an id, or it is empty.
    #[error("duplicate or empty task id {0:?}")]
    TaskId(String),
    /// A task needs one that is not declared before it.
    #[error("task {task:?}: unknown graph dependency {dependency:?}; expected a task declared earlier")]
    Dependency {
        /// The task.
        task: String,
        /// What it names.
        dependency: String,
    },
    /// More tasks than a graph may have.
    #[error("{0} tasks; at most {max}", max = GRAPH_TASKS_MAX)]
    TooManyTasks(usize),
    /// A retry that makes no sense.
    #[error("task {0:?}: retry needs maxAttempts of 2 to 100")]
    Retry(String),
}

/// Collects tasks; every problem is reported at once by [`GraphBuilder::build`].
pub struct GraphBuilder {
    pub(crate) id: String,
    pub(crate) tasks: Vec<Task>,
}

impl GraphBuilder {
    /// Adds a task after the ones already there.
    #[must_use]
    pub fn task(mut self, task: Task) -> Self {
        self.tasks.push(task);
        self
    }

    /// Checks everything and makes the graph. Repeated dependencies of one task collapse.
    ///
    /// # Errors
    /// All problems, in the order of the declaration.
    pub fn build(self) -> Result<Graph, Vec<GraphProblem>> {
        let Self { id, mut tasks } = self;
        let mut problems = Vec::new();
        if id.trim().is_empty() {
            problems.push(GraphProblem::EmptyId);
        }
        if tasks.len() > GRAPH_TASKS_MAX {
            problems.push(GraphProblem::TooManyTasks(tasks.len()));
            return Err(problems);
        }
        let mut index: HashMap<TaskId, usize> = HashMap::with_capacity(tasks.len());
        let mut needs = Vec::with_capacity(tasks.len());
        let mut dependents = vec![Vec::new(); tasks.len()];
        for (i, task) in tasks.iter_mut().enumerate() {
            let mut seen = HashSet::new();
            task.needs.retain(|need| seen.insert(need.clone()));
            let mut positions = Vec::with_capacity(task.needs.len());
            for need in &task.needs {
                match index.get(need) {
                    Some(position) => positions.push(*position),
                    None => problems.push(GraphProblem::Dependency {
                        task: task.id.as_str().into(),
                        dependency: need.as_str().into(),
                    }),
                }
            }
            for position in &positions {
                dependents[*position].push(i);
            }
            needs.push(positions);
            if task.retry.is_some_and(|retry| !(2..=RETRY_ATTEMPTS_MAX).contains(&retry.max_attempts)) {
                problems.push(GraphProblem::Retry(task.id.as_str().into()));
            }
            if index.insert(task.id.clone(), i).is_some() {
                problems.push(GraphProblem::TaskId(task.id.as_str().into()));
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let shape = shape(&id, &tasks);
        Ok(Graph { inner: Arc::new(Inner { id, tasks, needs, dependents, index, shape }) })
    }
}

/// Every part is preceded by its length, so that no two shapes hash the same text.
fn shape(id: &str, tasks: &[Task]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    };
    part(id);
    for task in tasks {
        part(task.id.as_str());
        part(task.node.as_str());
        part(&task.needs.len().to_string());
        task.needs.iter().for_each(|need| part(need.as_str()));
        part(&format!(
            "{} {} {:?} {:?} {:?} {:?}",
            task.when.is_some(),
            task.fail.is_some(),
            task.retry,
            task.timeout_ms,
            task.pool,
            task.on_unknown
        ));
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str) -> Task {
        Task::new(TaskId::new(id).unwrap(), NodeType::new("TEST.ECHO").unwrap())
    }

    fn id(text: &str) -> TaskId {
        TaskId::new(text).unwrap()
    }

    #[test]
    fn all_problems_of_a_graph_are_reported_at_once() {
        let problems = Graph::builder(" ")
            .task(task("a"))
            .task(task("a").needs([id("zz")]))
            .task(task("b").needs([id("b")]).retry(Retry { max_attempts: 1, backoff_ms: 0 }))
            .build()
            .unwrap_err();
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 5, "{texts:?}");
        assert!(texts[0].contains("graph id is empty"));
        assert!(texts[1].contains("unknown graph dependency \"zz\""));
        assert!(texts[2].contains("duplicate or empty task id \"a\""));
        assert!(texts[3].contains("unknown graph dependency \"b\""));
        assert!(texts[4].contains("maxAttempts"));
    }

    #[test]
    fn a_graph_keeps_its_tasks_and_collapses_repeated_dependencies() {
        let graph = Graph::builder("g")
            .task(task("constructor"))
            .task(task("b").needs([id("constructor"), id("constructor")]))
            .build()
            .unwrap();
        assert_eq!(graph.task(&id("b")).unwrap().needs, [id("constructor")]);
        assert_eq!((graph.needs_of(1), graph.dependents_of(0)), (&[0][..], &[1][..]));
        assert!(graph.task(&id("toString")).is_none());
        let too_many = (0..=GRAPH_TASKS_MAX).fold(Graph::builder("g"), |b, n| b.task(task(&n.to_string())));
        assert_eq!(too_many.build().unwrap_err(), [GraphProblem::TooManyTasks(GRAPH_TASKS_MAX + 1)]);
        assert!(Graph::builder("empty").build().unwrap().tasks().is_empty());
    }

    #[test]
    fn the_shape_tells_graphs_apart() {
        let one = Graph::builder("g").task(task("a")).task(task("b")).build().unwrap();
        let same = Graph::builder("g").task(task("a")).task(task("b")).build().unwrap();
        let other = Graph::builder("g").task(task("a")).task(task("b").needs([id("a")])).build().unwrap();
        assert_eq!(one.shape(), same.shape());
        assert_ne!(one.shape(), other.shape());
    }
}
