//! The nodes that a decision evaluates itself instead of making a call.

use std::{collections::HashMap, fmt, sync::Arc};

use ditto_contracts::NodeType;

use crate::PureNode;

/// Pure nodes by type.
#[derive(Clone, Default)]
pub struct PureNodes {
    nodes: HashMap<NodeType, Arc<dyn PureNode>>,
}

impl PureNodes {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node; one of the same type is replaced.
    #[must_use]
    pub fn with(mut self, node: Arc<dyn PureNode>) -> Self {
        self.nodes.insert(node.node().clone(), node);
        self
    }

    /// The node of this type.
    pub fn get(&self, node: &NodeType) -> Option<&Arc<dyn PureNode>> {
        self.nodes.get(node)
    }
}

impl fmt::Debug for PureNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.nodes.keys()).finish()
    }
}
