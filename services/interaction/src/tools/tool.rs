//! One tool: its name, what it takes, what it may do to the world, and its function.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use ditto_contracts::{
    CallPolicy, EffectClass, Json, NodeType,
    interaction::{ExternalResult, ExternalStatus},
    wire::ledger::Offer,
};
use ditto_worker::{ArgumentSchema, NodeError, QueryAnswer, read_typed};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::{IntoOutcome, RegistryError, ToolContext, ToolError, ToolOutcome};

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Execute = Arc<dyn Fn(ToolContext, Json) -> Answer<Result<ToolOutcome, ToolError>> + Send + Sync>;
type Query = Arc<dyn Fn(ToolContext, Json) -> Answer<QueryAnswer<ToolOutcome>> + Send + Sync>;
type Rule = Arc<dyn Fn(&Json) -> Result<(), String> + Send + Sync>;

/// What a tool touches; shown to people and models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Reads something.
    Read,
    /// Changes something.
    Write,
    /// Runs a command.
    Execute,
    /// Uses the network.
    Network,
}

impl Effect {
    /// The text in the catalogue.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "execute",
            Self::Network => "network",
        }
    }
}

/// A tool. Class N (never sent again) unless [`Tool::read_only`] or [`Tool::keyed`] says otherwise.
#[derive(Clone)]
pub struct Tool {
    name: String,
    description: Option<String>,
    schema: Result<Arc<ArgumentSchema>, String>,
    effects: Vec<Effect>,
    requires_approval: bool,
    policy: CallPolicy,
    timeout_set: bool,
    rule: Option<Rule>,
    execute: Execute,
    query: Option<Query>,
}

impl std::fmt::Debug for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Tool {
    /// A tool from an async function. The schema of its arguments comes from their type; arguments that break it never
    /// reach the function.
    pub fn new<A, T, F, Fut>(name: impl Into<String>, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + Send + 'static,
        T: IntoOutcome + 'static,
        F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, ToolError>> + Send + 'static,
    {
        let schema = ArgumentSchema::of::<A>().map(Arc::new).map_err(|error| error.to_string());
        let function = Arc::new(function);
        let execute: Execute = Arc::new(move |cx, arguments| {
            let function = function.clone();
            Box::pin(async move {
                let arguments = read_typed(&arguments)
                    .map_err(|error| ToolError::invalid_arguments(format!("arguments: {error}")))?;
                let value = function(cx, arguments).await?;
                // The effect is done: an answer that cannot be written must not look like "not sent".
                value
                    .into_outcome()
                    .map_err(|error| ToolError::response_invalid(format!("the answer is no JSON: {error}")))
            })
        });
        Self {
            name: name.into(),
            description: None,
            schema,
            effects: Vec::new(),
            requires_approval: false,
            policy: CallPolicy::default(),
            timeout_set: false,
            rule: None,
            execute,
            query: None,
        }
    }

    /// What it does, for people and models.
    #[must_use]
    pub fn describe(mut self, text: impl Into<String>) -> Self {
        self.description = Some(text.into());
        self
    }

    /// What it touches.
    #[must_use]
    pub fn effects(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.effects = effects.into_iter().collect();
        self
    }

    /// Executing it again changes nothing (class R), so it needs no claim and may run again after a crash.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        let CallPolicy { timeout_ms, .. } = self.policy;
        self.policy = CallPolicy { timeout_ms, ..CallPolicy::read_only() };
        self
    }

    /// Executing it again changes nothing, but costs money or time: it is claimed all the same (class R, exclusive).
    #[must_use]
    pub fn exclusive(mut self) -> Self {
        self = self.read_only();
        self.policy.exclusive = true;
        self.policy.skip_claim = false;
        self
    }

    /// The backend turns the same [`ToolContext::key`] into one effect (class K), and `query` asks it by that key what
    /// became of a call.
    #[must_use]
    pub fn keyed<A, T, F, Fut>(mut self, query: F) -> Self
    where
        A: DeserializeOwned + Send + 'static,
        T: IntoOutcome + 'static,
        F: Fn(ToolContext, A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<QueryAnswer<T>, ToolError>> + Send + 'static,
    {
        let query = Arc::new(query);
        self.query = Some(Arc::new(move |cx, arguments| {
            let query = query.clone();
            Box::pin(async move {
                let Ok(arguments) = read_typed(&arguments) else { return QueryAnswer::Unanswered };
                // An error says that nobody knows: the ledger asks again.
                let Ok(answer) = query(cx, arguments).await else { return QueryAnswer::Unanswered };
                answer.try_map(IntoOutcome::into_outcome).unwrap_or(QueryAnswer::Unanswered)
            })
        }));
        self = self.keyed_without_query();
        self.policy.query = true;
        self
    }

    /// The backend turns the same key into one effect, but cannot be asked (class K): after a lost answer the call is
    /// sent again with the same key.
    #[must_use]
    pub fn keyed_without_query(mut self) -> Self {
        let CallPolicy { timeout_ms, .. } = self.policy;
        self.policy = CallPolicy { timeout_ms, ..CallPolicy::keyed() };
        self
    }

    /// The backend remembers a key for so long; for ever unless said.
    #[must_use]
    pub fn key_ttl(mut self, ttl: Duration) -> Self {
        self.policy.key_ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// The key is this expression over `input` instead of one per call, as in `input.call.arguments.order`.
    #[must_use]
    pub fn key(mut self, expression: impl Into<String>) -> Self {
        self.policy.key = Some(expression.into());
        self
    }

    /// The backend remembers refusals under the key as well.
    #[must_use]
    pub fn rejections_stored(mut self) -> Self {
        self.policy.rejections_stored = true;
        self
    }

    /// A refusal of this tool may come half-way: it does not prove that nothing happened.
    #[must_use]
    pub fn error_is_not_definite(mut self) -> Self {
        self.policy.error_is_definite = false;
        self
    }

    /// How long one attempt may take; the worker's `toolTimeout` unless said.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.policy.timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        self.timeout_set = true;
        self
    }

    /// A person must approve each call before it is sent.
    #[must_use]
    pub fn requires_approval(mut self) -> Self {
        self.requires_approval = true;
        self
    }

    /// A rule of its own over the arguments, after the schema; its text is the error's.
    #[must_use]
    pub fn validate(mut self, rule: impl Fn(&Json) -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.rule = Some(Arc::new(rule));
        self
    }

    /// A schema given as JSON instead of the one of the type.
    #[must_use]
    pub fn schema(mut self, schema: Json) -> Self {
        self.schema = ArgumentSchema::new(schema).map(Arc::new).map_err(|error| error.to_string());
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a call of it may do to the world.
    pub fn policy(&self) -> &CallPolicy {
        &self.policy
    }

    /// The schema of its arguments.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub(crate) fn argument_schema(&self) -> Result<&ArgumentSchema, RegistryError> {
        self.schema
            .as_deref()
            .map_err(|error| RegistryError::Schema { name: self.name.clone(), problem: error.clone() })
    }

    pub(crate) fn set_default_timeout(&mut self, limit: Duration) {
        if !self.timeout_set {
            self.policy.timeout_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1);
        }
    }

    pub(crate) fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    pub(crate) fn effect_names(&self) -> Vec<String> {
        self.effects.iter().map(|effect| effect.as_str().to_owned()).collect()
    }

    pub(crate) fn is_approval_required(&self) -> bool {
        self.requires_approval
    }

    /// How it is announced.
    pub(crate) fn offer(&self, node: &NodeType) -> Offer {
        Offer {
            node: node.clone(),
            source: Some(self.name.clone()),
            policy: self.policy.clone(),
            description: self.description.clone(),
            input_schema: self.schema.as_ref().ok().map(|schema| schema.json().clone()),
            effects: self.effect_names(),
            requires_approval: self.requires_approval,
        }
    }

    /// Checks the arguments against schema and rule. Nothing is sent.
    pub(crate) fn check(&self, arguments: &Json) -> Result<(), String> {
        if let Ok(schema) = &self.schema {
            schema.check(arguments).map_err(|error| format!("arguments {error}"))?;
        }
        self.rule.as_ref().map_or(Ok(()), |rule| rule(arguments))
    }

    /// Runs it, once. The answer carries this call's identity whatever the tool said.
    pub(crate) async fn execute(&self, cx: ToolContext, arguments: Json) -> Result<ExternalResult, NodeError> {
        let call_id = cx.call_id.clone();
        let result = match (self.execute)(cx, arguments).await {
            Ok(outcome) => outcome,
            Err(ToolError::Refused(error)) => ToolOutcome { error: Some(error.into()), ..ToolOutcome::failed("", "") },
            Err(error) => return Err(error.into_node()),
        }
        .into_result(&call_id, &self.name);
        self.judge(result)
    }

    /// What an outcome says about the effect.
    fn judge(&self, result: ExternalResult) -> Result<ExternalResult, NodeError> {
        result.check().map_err(|problem| {
            let mut error: ditto_contracts::WireError = problem.into();
            error.class = ditto_contracts::ErrorClass::Failed;
            NodeError::Invalid(error)
        })?;
        let Some(error) = result.error.clone().filter(|_| result.status != ExternalStatus::Success) else {
            return Ok(result);
        };
        let class = match result.status {
            ExternalStatus::Failed | ExternalStatus::Success => ditto_contracts::ErrorClass::Failed,
            ExternalStatus::Cancelled => ditto_contracts::ErrorClass::Cancelled,
            ExternalStatus::Timeout => ditto_contracts::ErrorClass::Timeout,
            ExternalStatus::Unknown => ditto_contracts::ErrorClass::Unknown,
        };
        let wire = ditto_contracts::WireError {
            class,
            code: error.code,
            message: error.message,
            retryable: error.retryable.unwrap_or(false),
        };
        match result.status {
            ExternalStatus::Failed => Err(NodeError::refused_with(&result, wire)),
            // Only a tool that changes nothing can know that a late or cancelled call did nothing.
            ExternalStatus::Cancelled if self.policy.class == EffectClass::ReadOnly => {
                Err(NodeError::Cancelled { output: Json::from_serialize(&result).ok(), error: wire })
            }
            ExternalStatus::Timeout if self.policy.class == EffectClass::ReadOnly => {
                Err(NodeError::refused_with(&result, wire))
            }
            ExternalStatus::Unknown => {
                Err(NodeError::Ambiguous { output: Json::from_serialize(&result).ok(), error: wire })
            }
            ExternalStatus::Cancelled | ExternalStatus::Timeout | ExternalStatus::Success => {
                Err(NodeError::Ambiguous { output: None, error: wire })
            }
        }
    }

    /// Asks by key what became of a call.
    pub(crate) async fn query(&self, cx: ToolContext, arguments: Json) -> QueryAnswer<ExternalResult> {
        let Some(query) = &self.query else { return QueryAnswer::Unanswered };
        let call_id = cx.call_id.clone();
        let answer = query(cx, arguments).await.try_map(|outcome| {
            let result = outcome.into_result(&call_id, &self.name);
            result.check().map(|()| result)
        });
        match answer {
            // A success that says anything but success is no evidence.
            Ok(QueryAnswer::Applied(result)) if result.status != ExternalStatus::Success => QueryAnswer::Unanswered,
            Ok(answer) => answer,
            Err(problem) => {
                tracing::warn!(tool = self.name, %problem, "the answer to a query cannot be used");
                QueryAnswer::Unanswered
            }
        }
    }
}
