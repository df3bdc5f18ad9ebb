//! The `ditto` command: everything Ditto has behind one binary, and the whole fleet in one process.
//!
//! [`embedded`] starts coordinator and worker in this process, behind the same doors as the services; [`services`]
//! starts one of them from `ditto.yaml`. Each command is a file under [`commands`].

pub mod args;
mod bench;
mod client;
pub mod commands;
mod context;
mod data_dir;
pub mod embedded;
mod exit;
mod input;
mod nats_client;
mod open_ledger;
mod progress;
mod serve;
pub mod services;
pub mod settings;
mod show;
mod term;

pub use context::Context;
pub use exit::{Exit, Failure};
