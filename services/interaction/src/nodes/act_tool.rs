//! `INTERACTION.ACT.TOOL`: one call executes one tool at most once.

use async_trait::async_trait;
use ditto_contracts::{
    CallPolicy, Json, NodeType, codes,
    interaction::{ExternalResult, ToolCall},
    wire::ledger::Offer,
};
use ditto_worker::{NodeContext, NodeError, NodeHandler, QueryAnswer, Sandbox};
use tokio::sync::watch;

use crate::ToolRegistry;

/// The node over a registry and a sandbox.
#[derive(Debug, Clone)]
pub struct ActTool {
    registry: ToolRegistry,
    sandbox: Sandbox,
}

impl ActTool {
    /// Runs the tools of this registry, as far as this sandbox allows.
    pub fn new(registry: ToolRegistry, sandbox: Sandbox) -> Self {
        Self { registry, sandbox }
    }
}

fn call_of(input: &Json) -> Result<ToolCall, NodeError> {
    let refuse = |message: String| NodeError::invalid_input(codes::INVALID_INPUT, message);
    let call = input.field("call").ok_or_else(|| refuse("call: is missing".into()))?;
    ToolCall::from_json(&call).map_err(|problem| refuse(format!("call.{problem}")))
}

#[async_trait]
impl NodeHandler for ActTool {
    const NODE: &'static str = NodeType::ACT_TOOL;
    type Input = Json;
    type Output = ExternalResult;

    fn policy_of(&self, input: &Json) -> Option<CallPolicy> {
        // A malformed call is refused by `handle`, under the strictest policy.
        let Ok(call) = call_of(input) else { return Some(self.policy()) };
        // Another worker of the pool may have the tool.
        self.registry.get(&call.name).map(|tool| tool.policy().clone())
    }

    fn offers(&self) -> Vec<Offer> {
        let Ok(node) = NodeType::new(Self::NODE) else { return Vec::new() };
        self.registry.offers(&node, &self.sandbox)
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.registry.changes())
    }

    async fn handle(&self, cx: &NodeContext, input: Json) -> Result<ExternalResult, NodeError> {
        self.registry.call(cx, &self.sandbox, call_of(&input)?).await
    }

    async fn query(&self, cx: &NodeContext, input: Json) -> QueryAnswer<ExternalResult> {
        match call_of(&input) {
            Ok(call) => self.registry.query(cx, &self.sandbox, call).await,
            Err(_) => QueryAnswer::Unanswered,
        }
    }
}
