//! A finite DAG of tasks; immutable once built.

use std::sync::Arc;

use ditto_contracts::{NodeType, OnUnknown, Pool, TaskId};

use crate::Formula;

/// How often a task of class R or K that failed definitely is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, at least 2.
    pub max_attempts: u16,
    /// Pause before the second attempt, in milliseconds; doubles with each further one.
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

/// A finite DAG of tasks.
#[derive(Clone)]
pub struct Graph {
    pub(crate) id: String,
    pub(crate) tasks: Vec<Task>,
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
    #[error("{0} tasks; at most {max}", max = ditto_contracts::limits::GRAPH_TASKS_MAX)]
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
