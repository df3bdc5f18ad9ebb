//! The SDK of every worker: a typed handler per node, and the loop around it that claims before an effect, keeps each
//! result until it is confirmed, and never says more about an outcome than it knows.
//!
//! A worker holds no credentials for the ledger. It talks to whichever coordinator answers, over the bus.

mod claims;
mod config;
mod context;
mod error;
mod gate;
mod handler;
mod held;
mod job;
mod lease;
mod ledger;
mod metrics;
mod notices;
mod payload;
mod pull;
mod releases;
mod results;
mod sandbox;
mod schema;
mod session;
mod verdict;
mod worker;

pub use config::WorkerConfig;
pub use context::NodeContext;
pub use error::{NodeError, QueryAnswer, WorkerError};
pub use handler::{DynHandler, NodeHandler};
pub use sandbox::{Permission, Sandbox, SandboxError, SandboxPolicy};
pub use schema::{ArgumentSchema, SchemaError, read_typed};
pub use verdict::{Ending, Settlement, Standing, verdict_for};
pub use worker::{Worker, WorkerBuilder};
