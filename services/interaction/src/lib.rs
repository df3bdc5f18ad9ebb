//! The interaction worker: runs tools, turns results into messages, and hands messages to a sink.
//!
//! A program with tools of its own puts an [`Interaction`] together and runs it; `docs/tools.md` shows how.

mod config;
mod nodes;
mod serve;
mod service;
mod sinks;
mod tools;

pub use config::{InteractionConfig, OutputConfig};
pub use ditto_worker::{Permission, QueryAnswer, Sandbox, SandboxError, SandboxPolicy};
pub use nodes::{ActTool, Observe, Output};
pub use serve::ServeError;
pub use service::{Interaction, InteractionBuilder, InteractionError, run};
pub use sinks::{ConsoleSink, DeliveryContext, FileSink, OutputSink, SinkError};
pub use tools::{
    Effect, IntoOutcome, Registered, RegistryError, Tool, ToolContext, ToolDefinition, ToolError, ToolOutcome,
    ToolRegistry, read_text,
};

/// The examples of `docs/tools.md` compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tools.md")]
struct ToolsGuide;
