//! What a worker serves: one typed handler per node type, and its untyped form that the loop calls.

use async_trait::async_trait;
use ditto_contracts::{CallPolicy, ErrorClass, Json, NodeType, WireError, codes, limits, wire::ledger::Offer};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::watch;

use crate::{ArgumentSchema, NodeContext, NodeError, QueryAnswer, WorkerError};

/// One node, typed.
///
/// The input is checked against the schema of `Input` before anything is called: a violation is a definite failure that
/// names the path, and nothing was sent.
#[async_trait]
pub trait NodeHandler: Send + Sync + 'static {
    /// The node type, as in `INTERACTION.OUTPUT`.
    const NODE: &'static str;
    /// What it takes.
    type Input: DeserializeOwned + JsonSchema + Send + 'static;
    /// What it answers.
    type Output: Serialize + Send + 'static;

    /// What a call of it may do to the world; class N unless said otherwise.
    fn policy(&self) -> CallPolicy {
        CallPolicy::default()
    }

    /// The policy of the call with this input; `None` when this worker does not serve it (a tool it does not have): the
    /// job goes back to its queue.
    fn policy_of(&self, input: &Json) -> Option<CallPolicy> {
        let _ = input;
        Some(self.policy())
    }

    /// What is announced: the node itself unless said otherwise.
    fn offers(&self) -> Vec<Offer> {
        let Ok(node) = NodeType::new(Self::NODE) else { return Vec::new() };
        vec![Offer {
            node,
            source: None,
            policy: self.policy(),
            description: None,
            input_schema: None,
            effects: Vec::new(),
            requires_approval: false,
        }]
    }

    /// Changes whenever [`NodeHandler::offers`] does.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Performs the call: at most one request to the backend, never repeated here.
    ///
    /// # Errors
    /// Says what is known about the effect.
    async fn handle(&self, cx: &NodeContext, input: Self::Input) -> Result<Self::Output, NodeError>;

    /// Asks the backend by [`NodeContext::key`] what became of the call. Changes nothing.
    async fn query(&self, cx: &NodeContext, input: Self::Input) -> QueryAnswer<Self::Output> {
        let _ = (cx, input);
        QueryAnswer::Unanswered
    }
}

/// A handler without its types.
#[async_trait]
pub trait DynHandler: Send + Sync + 'static {
    /// The node type.
    fn node(&self) -> &NodeType;
    /// As [`NodeHandler::policy_of`].
    fn policy_of(&self, input: &Json) -> Option<CallPolicy>;
    /// As [`NodeHandler::offers`].
    fn offers(&self) -> Vec<Offer>;
    /// As [`NodeHandler::changes`].
    fn changes(&self) -> Option<watch::Receiver<u64>>;
    /// As [`NodeHandler::handle`]; the output is acceptable JSON within the size limit.
    async fn handle(&self, cx: &NodeContext, input: &Json) -> Result<Json, NodeError>;
    /// As [`NodeHandler::query`].
    async fn query(&self, cx: &NodeContext, input: &Json) -> QueryAnswer<Json>;
}

/// A [`NodeHandler`] as a [`DynHandler`].
pub(crate) struct Typed<H: NodeHandler> {
    node: NodeType,
    schema: ArgumentSchema,
    handler: H,
}

impl<H: NodeHandler> Typed<H> {
    pub(crate) fn new(handler: H) -> Result<Self, WorkerError> {
        let invalid = |error: &dyn std::fmt::Display| WorkerError::Invalid(format!("node {}: {error}", H::NODE));
        Ok(Self {
            node: NodeType::new(H::NODE).map_err(|error| invalid(&error))?,
            schema: ArgumentSchema::of::<H::Input>().map_err(|error| invalid(&error))?,
            handler,
        })
    }

    fn read(&self, input: &Json) -> Result<H::Input, NodeError> {
        let refuse = |message: String| NodeError::invalid_input(codes::INVALID_INPUT, message);
        self.schema.check(input).map_err(|error| refuse(format!("input {error}")))?;
        crate::read_typed(input).map_err(|error| refuse(format!("input: {error}")))
    }
}

#[async_trait]
impl<H: NodeHandler> DynHandler for Typed<H> {
    fn node(&self) -> &NodeType {
        &self.node
    }

    fn policy_of(&self, input: &Json) -> Option<CallPolicy> {
        self.handler.policy_of(input)
    }

    fn offers(&self) -> Vec<Offer> {
        let mut offers = self.handler.offers();
        // What the node takes is known from its type; the schema of a tool's arguments is the tool's own.
        for offer in offers.iter_mut().filter(|offer| offer.source.is_none() && offer.input_schema.is_none()) {
            offer.input_schema = Some(self.schema.json().clone());
        }
        offers
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.handler.changes()
    }

    async fn handle(&self, cx: &NodeContext, input: &Json) -> Result<Json, NodeError> {
        let input = self.read(input)?;
        output(&self.handler.handle(cx, input).await?)
    }

    async fn query(&self, cx: &NodeContext, input: &Json) -> QueryAnswer<Json> {
        let Ok(input) = self.read(input) else { return QueryAnswer::Unanswered };
        match self.handler.query(cx, input).await.try_map(|value| output(&value)) {
            Ok(answer) => answer,
            // It happened, but its answer cannot be read: no evidence that could be stored.
            Err(error) => {
                tracing::warn!(call = %cx.call, %error, "the answer to a query cannot be used");
                QueryAnswer::Unanswered
            }
        }
    }
}

/// An output as acceptable JSON. It comes after the effect: what is wrong with it must not hide that.
fn output<T: Serialize>(value: &T) -> Result<Json, NodeError> {
    let json = Json::from_serialize(value)
        .map_err(|error| NodeError::response_invalid(format!("the output cannot be written as JSON: {error}")))?;
    check_output(json)
}

pub(crate) fn check_output(json: Json) -> Result<Json, NodeError> {
    if json.len() > limits::VALUE_BYTES_MAX {
        return Err(too_large(&json));
    }
    Json::parse(json.to_bytes())
        .map_err(|error| NodeError::response_invalid(format!("the output is not acceptable JSON: {error}")))
}

/// Names size and digest, and how the output begins where that may be published: evidence for a person.
fn too_large(json: &Json) -> NodeError {
    let digest = data_encoding::HEXLOWER.encode(&json.sha256());
    let facts = format!("the output has {} bytes, more than {} (sha256 {digest})", json.len(), limits::VALUE_BYTES_MAX);
    let begin: String = json.as_str().chars().take(200).collect();
    let full = format!("{facts}; it begins: {begin}");
    let message = if ditto_contracts::check_public_message(&full).is_ok() { full } else { facts };
    NodeError::Invalid(WireError::new(ErrorClass::Failed, codes::RESPONSE_INVALID, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_above_the_limit_leaves_its_evidence() {
        let json = Json::string(&"x".repeat(limits::VALUE_BYTES_MAX));
        let Err(NodeError::Invalid(error)) = check_output(json) else { panic!("accepted") };
        assert_eq!(error.code, codes::RESPONSE_INVALID);
        assert!(error.message.contains("8388610 bytes") && error.message.contains("xxx"), "{}", error.message);
        assert!(ditto_contracts::check_public_message(&error.message).is_ok());
    }

    #[test]
    fn an_output_that_is_no_acceptable_json_is_invalid() {
        let broken = Json::from_checked(bytes::Bytes::from_static(b"{\"a\":1,\"a\":2}"));
        assert!(matches!(check_output(broken), Err(NodeError::Invalid(_))));
        let map = std::collections::HashMap::from([((1, 2), 3)]);
        assert!(matches!(output(&map), Err(NodeError::Invalid(_))));
    }
}
