//! What a tool knows about its call.

use std::time::Duration;

use ditto_worker::{NodeContext, Sandbox};
use tokio_util::sync::CancellationToken;

/// One attempt of one call, as seen by a tool.
#[derive(Debug, Clone)]
pub struct ToolContext {
    pub(crate) node: NodeContext,
    pub(crate) call_id: String,
    pub(crate) sandbox: Sandbox,
}

impl ToolContext {
    /// A context outside a fleet, for tests of tools.
    pub fn detached(call_id: &str, sandbox: Sandbox) -> Self {
        let node = NodeContext::detached(&format!("test:{call_id}"), Duration::from_secs(30));
        Self { node, call_id: call_id.to_owned(), sandbox }
    }

    /// The call's own id, unique in its run.
    pub fn call_id(&self) -> &str {
        &self.call_id
    }

    /// The idempotency key to send to the backend: the same for every attempt of this call, and for the query about it.
    pub fn key(&self) -> &str {
        self.node.key()
    }

    /// How long this attempt may still take: the time limit for whatever it calls.
    pub fn remaining(&self) -> Duration {
        self.node.remaining()
    }

    /// Completes when somebody asks to stop. What was sent stays sent.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn cancelled(&self) {
        self.node.cancelled().await;
    }

    /// The token behind [`ToolContext::cancelled`].
    pub fn cancellation(&self) -> CancellationToken {
        self.node.cancellation()
    }

    /// What the worker allows: ask it before touching files or the network.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The attempt underneath: call, run, fence, trace.
    pub fn node(&self) -> &NodeContext {
        &self.node
    }
}
