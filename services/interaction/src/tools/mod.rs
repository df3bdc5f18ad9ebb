//! Tools: how one is described, what it answers, where they are kept, and the one that is built in.

mod context;
mod error;
mod outcome;
mod read_text;
mod registry;
mod tool;

pub use context::ToolContext;
pub use error::ToolError;
pub use outcome::{IntoOutcome, ToolOutcome};
pub use read_text::read_text;
pub use registry::{Registered, RegistryError, ToolDefinition, ToolRegistry};
pub use tool::{Effect, Tool};
