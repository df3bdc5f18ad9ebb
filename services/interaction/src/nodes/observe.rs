//! `INTERACTION.OBSERVE`: an external result as a tool message. Pure.

use async_trait::async_trait;
use ditto_contracts::{CallPolicy, Json, NodeType, observe};
use ditto_worker::{NodeContext, NodeError, NodeHandler};

/// The node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observe;

#[async_trait]
impl NodeHandler for Observe {
    const NODE: &'static str = NodeType::OBSERVE;
    type Input = Json;
    type Output = Json;

    fn policy(&self) -> CallPolicy {
        CallPolicy::read_only()
    }

    async fn handle(&self, _: &NodeContext, input: Json) -> Result<Json, NodeError> {
        observe(&input).map_err(NodeError::NotSent)
    }
}
