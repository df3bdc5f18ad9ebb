//! `ditto bench`: the workloads by which Ditto is compared with other engines, measured on real processes.
//!
//! The parts are processes of their own so that each one's CPU time and memory can be told apart: the fleet (or the
//! embedded engine), the worker with the step, and the load client. This process only starts them, reads `/proc`, and
//! reads the file to which every step appends one line.

mod client;
mod definitions;
mod effects;
mod ends;
mod engine;
mod facts;
mod http;
mod parts;
mod plan;
mod proc;
mod report;
mod stat;
mod step;
mod system;
mod table;
mod worker;
mod workloads;

pub(crate) use client::{ClientArgs, run as client};
pub(crate) use engine::{EngineArgs, run as engine};
pub use plan::{Class, Workload};
pub(crate) use plan::{Mode, Plan, Sizes};
pub(crate) use worker::{BenchWorkerArgs, run as worker};

use crate::{context::Context, exit::Failure};

/// Measures everything the plan names.
///
/// # Errors
/// A part does not start or stops; what was measured is then not reported.
pub(crate) async fn measure(plan: &Plan, context: &Context) -> Result<report::Report, Failure> {
    workloads::all(plan, context).await
}

/// A report as people read it.
pub(crate) fn render(report: &report::Report) -> String {
    table::render(report)
}
