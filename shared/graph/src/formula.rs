//! What a definition computes: an expression over the values in scope, written as CEL or as a Rust closure.

use std::sync::Arc;

use ditto_contracts::{Json, RunId, TaskId};
use indexmap::IndexMap;

/// The values an expression may use.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// Input of the run.
    pub input: &'a Json,
    /// State of the loop; `null` before it exists.
    pub state: &'a Json,
    /// Input of the current graph; `null` outside one.
    pub graph: &'a Json,
    /// Outputs of the declared dependencies only; after a graph has ended, of all its tasks. A skipped task is `null`.
    pub tasks: &'a IndexMap<TaskId, Json>,
    /// The signal that ended the last wait; `null` otherwise.
    pub signal: &'a Json,
    /// Facts of the run.
    pub run: &'a RunScope,
}

/// Facts of the run that do not change when a step is decided again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunScope {
    /// The run.
    pub id: RunId,
    /// Number of the current iteration, from 0.
    pub iteration: u64,
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct FormulaError {
    /// Where it stands in the definition, e.g. `graph.tasks.read.with.call.id`.
    pub path: String,
    /// What went wrong.
    pub message: String,
}

/// One expression. Evaluating it is bounded, has no effect and gives the same value for the same scope.
pub trait Formula: Send + Sync {
    /// Its value.
    ///
    /// # Errors
    /// When it cannot be computed from this scope.
    fn evaluate(&self, scope: &Scope<'_>) -> Result<Json, FormulaError>;
}

impl<F> Formula for F
where
    F: Fn(&Scope<'_>) -> Result<Json, FormulaError> + Send + Sync,
{
    fn evaluate(&self, scope: &Scope<'_>) -> Result<Json, FormulaError> {
        self(scope)
    }
}

/// An expression that is always this value.
pub fn constant(value: Json) -> Arc<dyn Formula> {
    Arc::new(move |_: &Scope<'_>| Ok(value.clone()))
}

/// An expression written as a closure.
pub fn formula<F>(compute: F) -> Arc<dyn Formula>
where
    F: Fn(&Scope<'_>) -> Result<Json, FormulaError> + Send + Sync + 'static,
{
    Arc::new(compute)
}
