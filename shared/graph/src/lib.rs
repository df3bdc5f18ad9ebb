//! Graphs, loops and receipts as pure rules: state and event in, next state and commands out. No clock, no I/O.
//!
//! The same functions drive a fleet, the embedded engine, the property tests and the model checker.

mod ending;
mod envelope;
mod failure;
mod fn_plan;
mod formula;
mod graph;
mod graph_record;
mod graph_run;
mod identity;
mod inbox;
mod journal;
mod loop_run;
mod outcome;
mod plan;
mod plan_context;
mod plan_end;
mod pure;
mod run_machine;
mod state_loop;
mod task_call;
mod wait;

pub mod receipt;

pub use failure::GraphFailure;
pub use fn_plan::FnPlan;
pub use formula::{DECISION_STEPS_MAX, Formula, FormulaError, RunScope, Scope, StepBudget, constant, formula};
pub use graph::{Graph, GraphBuilder, GraphProblem, Retry, Task};
pub use plan::{
    CallIntent, CallOutcome, Checkpoint, Consumed, Decision, Ending, Event, Execution, Outlook, Plan, Progress,
    PureNode, References, RunFacts, RunOptions,
};
pub use plan_context::PlanContext;
pub use plan_end::PlanEnd;
pub use pure::PureNodes;
pub use run_machine::RunMachine;
pub use state_loop::{InputCheck, StateLoop, StateLoopBuilder, StateLoopProblem};
pub use wait::Wait;
