//! The coordinator: runs loops and keeps their checkpoints and receipts.
//!
//! The path of a run: [`Submission`] ▶ intake ▶ one commit (run, checkpoint, receipts) ▶ dispatcher ▶ bus ▶ worker ▶
//! results ▶ driver ▶ one commit (settlement, next checkpoint, next receipts) ▶ … ▶ ending.

pub mod api;
mod catalogue;
mod claims;
mod config;
mod core;
mod dispatcher;
mod driver;
mod intake;
mod lanes;
mod metrics;
mod operate;
mod plans;
mod results;
mod service;
pub mod store;
mod streams;
mod sweepers;

pub use catalogue::{Catalogue, Served};
pub use config::CoordinatorConfig;
pub use core::RunChanged;
pub use intake::Submission;
pub use plans::Plans;
pub use service::{Coordinator, CoordinatorError, Handle};
