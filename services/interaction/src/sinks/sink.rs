//! What a sink is.

use async_trait::async_trait;
use ditto_contracts::{
    CallPolicy, ErrorClass, WireError, codes,
    interaction::{OutputInput, OutputReceipt},
};
use ditto_worker::{NodeContext, NodeError, QueryAnswer};

/// One delivery, as seen by a sink.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryContext<'a> {
    node: &'a NodeContext,
}

impl<'a> DeliveryContext<'a> {
    pub(crate) fn new(node: &'a NodeContext) -> Self {
        Self { node }
    }

    /// The idempotency key: the same for every attempt of this delivery.
    pub fn key(&self) -> &str {
        self.node.key()
    }

    /// The attempt underneath: budget, cancellation, trace.
    pub fn node(&self) -> &NodeContext {
        self.node
    }
}

/// Why a delivery has no receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// Nothing was delivered, and trying again cannot help.
    #[error("not delivered: {0}")]
    NotDelivered(String),
    /// Nothing was delivered; trying again may help.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// It may have been delivered.
    #[error("not confirmed: {0}")]
    Unconfirmed(String),
}

impl From<SinkError> for NodeError {
    fn from(error: SinkError) -> Self {
        let text = error.to_string();
        let wire = |class, code| WireError::new(class, code, text.clone());
        match error {
            SinkError::NotDelivered(_) => NodeError::NotSent(wire(ErrorClass::Failed, codes::TOOL_FAILED)),
            SinkError::Unavailable(_) => NodeError::NoByteSent(wire(ErrorClass::Unavailable, codes::TOOL_FAILED)),
            SinkError::Unconfirmed(_) => {
                NodeError::Ambiguous { output: None, error: wire(ErrorClass::Unknown, codes::RESPONSE_LOST) }
            }
        }
    }
}

/// Takes messages out of the fleet.
#[async_trait]
pub trait OutputSink: Send + Sync + 'static {
    /// What a delivery may do to the world; class N unless said otherwise.
    fn policy(&self) -> CallPolicy {
        CallPolicy::default()
    }

    /// Delivers, once; the receipt names the delivery it answers.
    ///
    /// # Errors
    /// Says what is known about the delivery.
    async fn deliver(&self, cx: &DeliveryContext<'_>, input: &OutputInput) -> Result<OutputReceipt, SinkError>;

    /// Asks by key what became of a delivery. Delivers nothing.
    async fn query(&self, cx: &DeliveryContext<'_>, input: &OutputInput) -> QueryAnswer<OutputReceipt> {
        let _ = (cx, input);
        QueryAnswer::Unanswered
    }
}
