//! `read_text`: the built-in tool that reads a text file of the workspace.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Effect, Tool, ToolContext, ToolError, ToolOutcome};

/// Arguments of `read_text`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadText {
    /// Path of the file, relative to the workspace.
    #[schemars(length(min = 1, max = 4096))]
    path: String,
}

/// The tool; reads at most `bytes_max` bytes. Needs the permissions `tools:read_text` and `read`.
pub fn read_text(bytes_max: u64) -> Tool {
    let read = move |cx: ToolContext, arguments: ReadText| async move {
        if cx.cancellation().is_cancelled() {
            return Err(ToolError::cancelled());
        }
        match cx.sandbox().read_text(&arguments.path, bytes_max).await {
            Ok(text) => Ok(ToolOutcome::text(&text)),
            Err(error) => Err(ToolError::from_sandbox(error)),
        }
    };
    Tool::new("read_text", read).describe("Read a text file of the workspace").effects([Effect::Read]).read_only()
}
