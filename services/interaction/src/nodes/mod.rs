//! The nodes of the interaction worker.

mod act_tool;
mod observe;
mod output;

pub use act_tool::ActTool;
pub use observe::Observe;
pub use output::Output;
