//! What a definition computes: an expression over the values in scope, written as CEL or as a Rust closure.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

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
    /// What the expressions of the current decision have cost.
    pub spent: StepBudget,
}

impl RunScope {
    /// Facts of a run at this iteration.
    pub fn new(id: RunId, iteration: u64) -> Self {
        Self { id, iteration, spent: StepBudget::default() }
    }
}

/// Steps that all expressions of one decision may take together. Each expression has a limit of its own; thousands of
/// them in one graph would still hold up every other run of a coordinator.
pub const DECISION_STEPS_MAX: u64 = 5_000_000;

/// Counts the steps of one decision. No part of a run's identity: two scopes that differ only here are equal.
#[derive(Debug, Default)]
pub struct StepBudget(AtomicU64);

impl StepBudget {
    /// A new decision begins.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Counts what an expression took.
    pub fn spend(&self, steps: u64) {
        self.0.fetch_add(steps, Ordering::Relaxed);
    }

    /// Whether the decision may evaluate another expression.
    pub fn is_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) <= DECISION_STEPS_MAX
    }
}

impl Clone for StepBudget {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.0.load(Ordering::Relaxed)))
    }
}

impl PartialEq for StepBudget {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for StepBudget {}

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
