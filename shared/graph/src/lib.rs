//! Graphs, loops and receipts as pure rules: state and event in, next state and commands out. No clock, no I/O.
//!
//! The same functions drive a fleet, the embedded engine, the property tests and the model checker.

mod formula;
mod graph;
mod plan;

pub use formula::{Formula, FormulaError, RunScope, Scope, constant};
pub use graph::{Graph, GraphBuilder, GraphProblem, Retry, Task};
pub use plan::{
    CallIntent, CallOutcome, Checkpoint, Consumed, Decision, Ending, Event, Execution, Outlook, Plan, Progress, PureNode,
    References, RunFacts, RunOptions,
};
