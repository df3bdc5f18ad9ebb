//! `INTERACTION.OUTPUT`: hands one message to the sink, once.

use std::sync::Arc;

use async_trait::async_trait;
use ditto_contracts::{
    CallPolicy, ErrorClass, Json, NodeType, WireError, codes,
    interaction::{DeliveryStatus, InteractionProblem, OutputInput, OutputReceipt},
};
use ditto_worker::{NodeContext, NodeError, NodeHandler, QueryAnswer};

use crate::{DeliveryContext, OutputSink};

/// The node over a sink.
pub struct Output {
    sink: Arc<dyn OutputSink>,
    policy: CallPolicy,
}

impl Output {
    /// Delivers to this sink; one delivery may take `timeout_ms`.
    pub fn new(sink: Arc<dyn OutputSink>, timeout_ms: u64) -> Self {
        let policy = CallPolicy { timeout_ms, ..sink.policy() };
        Self { sink, policy }
    }
}

/// A receipt that cannot be used came after the delivery: an error, and never a second delivery.
fn unusable(problem: InteractionProblem) -> NodeError {
    let code = if problem.code == codes::INVALID_INPUT { codes::RESPONSE_INVALID } else { problem.code };
    NodeError::Invalid(WireError::new(ErrorClass::Failed, code, format!("receipt {problem}")))
}

fn read(input: &Json) -> Result<OutputInput, NodeError> {
    OutputInput::from_json(input).map_err(|problem| NodeError::invalid_input(codes::INVALID_INPUT, problem.to_string()))
}

#[async_trait]
impl NodeHandler for Output {
    const NODE: &'static str = NodeType::OUTPUT;
    type Input = Json;
    type Output = OutputReceipt;

    fn policy(&self) -> CallPolicy {
        self.policy.clone()
    }

    async fn handle(&self, cx: &NodeContext, input: Json) -> Result<OutputReceipt, NodeError> {
        let input = read(&input)?;
        let receipt = self.sink.deliver(&DeliveryContext::new(cx), &input).await.map_err(NodeError::from)?;
        receipt.check().map_err(unusable)?;
        let receipt = receipt.answering(&input.delivery_id).map_err(unusable)?;
        let wire = |class| {
            let error = receipt.error.clone();
            let (code, message) = error.map_or_else(Default::default, |error| (error.code, error.message));
            WireError::new(class, code, message)
        };
        match receipt.status {
            DeliveryStatus::Accepted => Ok(receipt),
            DeliveryStatus::Rejected => Err(NodeError::refused_with(&receipt, wire(ErrorClass::Failed))),
            DeliveryStatus::Unknown => Err(NodeError::Ambiguous {
                output: Json::from_serialize(&receipt).ok(),
                error: wire(ErrorClass::Unknown),
            }),
        }
    }

    async fn query(&self, cx: &NodeContext, input: Json) -> QueryAnswer<OutputReceipt> {
        let Ok(input) = read(&input) else { return QueryAnswer::Unanswered };
        let answer = self.sink.query(&DeliveryContext::new(cx), &input).await.try_map(|receipt| {
            receipt.check()?;
            receipt.answering(&input.delivery_id)
        });
        match answer {
            Ok(QueryAnswer::Applied(receipt)) if receipt.status != DeliveryStatus::Accepted => QueryAnswer::Unanswered,
            Ok(answer) => answer,
            Err(problem) => {
                tracing::warn!(call = %cx.call(), %problem, "the answer of a sink cannot be used");
                QueryAnswer::Unanswered
            }
        }
    }
}
