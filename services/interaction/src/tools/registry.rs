//! The tools of a worker. It may change while the worker runs; calls under way are not touched.

use std::sync::{Arc, PoisonError, RwLock};

use ditto_contracts::{
    ErrorClass, Json, NodeType, WireError, codes,
    interaction::{ExternalResult, ToolCall},
    wire::ledger::Offer,
};
use ditto_worker::{NodeContext, NodeError, Permission, QueryAnswer, Sandbox};
use tokio::sync::watch;

use super::{Tool, ToolContext};

/// Longest name of a tool, in characters.
const NAME_CHARS_MAX: usize = 64;

/// Why a tool is not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name breaks its rule.
    #[error("invalid or duplicate tool: a name has 1 to 64 of A-Z a-z 0-9 _ -")]
    InvalidName,
    /// The name is taken.
    #[error("invalid or duplicate tool: {0} is registered already")]
    Duplicate(String),
    /// The schema of its arguments cannot be compiled.
    #[error("tool {name}: {problem}")]
    Schema {
        /// The tool.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

/// What people and models see of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub input_schema: Json,
    /// What it touches.
    pub effects: Vec<String>,
    /// Whether a person must approve each call.
    pub requires_approval: bool,
}

/// Tools by name, in the order of registration. Clones share them.
#[derive(Debug, Clone)]
pub struct ToolRegistry {
    tools: Arc<RwLock<Vec<Arc<Tool>>>>,
    changes: Arc<watch::Sender<u64>>,
}

impl Default for ToolRegistry {
    fn default() -> Self {
        Self { tools: Arc::default(), changes: Arc::new(watch::Sender::new(0)) }
    }
}

/// Takes exactly the tool away that it stands for. Dropping it removes nothing.
#[derive(Debug, Clone)]
#[must_use = "without it the tool cannot be removed; drop it on purpose"]
pub struct Registered {
    registry: ToolRegistry,
    tool: Arc<Tool>,
}

impl Registered {
    /// Removes the tool: `true` the first time, `false` afterwards and when the name belongs to another tool by now.
    pub fn remove(&self) -> bool {
        let mut tools = self.registry.tools.write().unwrap_or_else(PoisonError::into_inner);
        let before = tools.len();
        tools.retain(|tool| !Arc::ptr_eq(tool, &self.tool));
        let removed = tools.len() != before;
        drop(tools);
        if removed {
            self.registry.changes.send_modify(|n| *n += 1);
        }
        removed
    }
}

impl ToolRegistry {
    /// No tools.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// Its name is taken or breaks its rule, or its schema cannot be compiled.
    pub fn register(&self, tool: Tool) -> Result<Registered, RegistryError> {
        let name = tool.name();
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !name.chars().all(fits) {
            return Err(RegistryError::InvalidName);
        }
        tool.argument_schema()?;
        let tool = Arc::new(tool);
        let mut tools = self.tools.write().unwrap_or_else(PoisonError::into_inner);
        if tools.iter().any(|known| known.name() == tool.name()) {
            return Err(RegistryError::Duplicate(tool.name().to_owned()));
        }
        tools.push(tool.clone());
        drop(tools);
        self.changes.send_modify(|n| *n += 1);
        Ok(Registered { registry: self.clone(), tool })
    }

    /// The tools that this sandbox allows.
    pub fn list(&self, sandbox: &Sandbox) -> Vec<ToolDefinition> {
        let tools = self.snapshot();
        let allowed = tools.iter().filter(|tool| sandbox.allows(Permission::Tool(tool.name())));
        allowed
            .filter_map(|tool| {
                Some(ToolDefinition {
                    name: tool.name().to_owned(),
                    description: tool.description().map(str::to_owned),
                    input_schema: tool.argument_schema().ok()?.json().clone(),
                    effects: tool.effect_names(),
                    requires_approval: tool.is_approval_required(),
                })
            })
            .collect()
    }

    /// Runs one tool, at most once: id, permission, look-up, schema, the tool's own rule, execution, the check of the
    /// result; each step ends the call when it fails.
    ///
    /// # Errors
    /// Says what is known about the effect.
    pub async fn call(&self, cx: &NodeContext, sandbox: &Sandbox, call: ToolCall) -> Result<ExternalResult, NodeError> {
        if call.id.trim().is_empty() {
            return Err(NodeError::invalid_input(codes::INVALID_INPUT, "call.id: is empty"));
        }
        sandbox.assert(Permission::Tool(&call.name)).map_err(|error| NodeError::denied(error.to_string()))?;
        let tool = self.get(&call.name).ok_or_else(|| {
            NodeError::NotSent(WireError::new(ErrorClass::NotFound, codes::UNKNOWN_TOOL, "unknown tool"))
        })?;
        tool.check(&call.arguments).map_err(|problem| NodeError::invalid_input(codes::INVALID_ARGUMENTS, problem))?;
        let cx = ToolContext { node: cx.clone(), call_id: call.id, sandbox: sandbox.clone() };
        tool.execute(cx, call.arguments).await
    }

    /// Asks by key what became of a call.
    pub(crate) async fn query(
        &self,
        cx: &NodeContext,
        sandbox: &Sandbox,
        call: ToolCall,
    ) -> QueryAnswer<ExternalResult> {
        let Some(tool) = self.get(&call.name).filter(|tool| sandbox.allows(Permission::Tool(tool.name()))) else {
            return QueryAnswer::Unanswered;
        };
        let cx = ToolContext { node: cx.clone(), call_id: call.id, sandbox: sandbox.clone() };
        tool.query(cx, call.arguments).await
    }

    /// How the tools that this sandbox allows are announced.
    pub(crate) fn offers(&self, node: &NodeType, sandbox: &Sandbox) -> Vec<Offer> {
        let tools = self.snapshot();
        tools.iter().filter(|tool| sandbox.allows(Permission::Tool(tool.name()))).map(|tool| tool.offer(node)).collect()
    }

    /// Changes with every registration and removal.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<Tool>> {
        let tools = self.tools.read().unwrap_or_else(PoisonError::into_inner);
        tools.iter().find(|tool| tool.name() == name).cloned()
    }

    fn snapshot(&self) -> Vec<Arc<Tool>> {
        self.tools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
