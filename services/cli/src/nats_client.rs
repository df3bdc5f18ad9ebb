//! Submits over NATS, as any client of any language would: one request, answered after the commit.

use std::time::Duration;

use ditto_bus::{Bus as _, BusError, Message, nats::NatsConfig};
use ditto_contracts::{
    Json, LoopName, Namespace, WireError,
    wire::{Headers, SubmitBody, SubmitKind, SubmitReply, subjects},
};

use crate::{exit::Failure, services};

/// Time for the answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Submits and waits for the answer.
pub(crate) async fn submit(
    config: &NatsConfig,
    namespace: &Namespace,
    kind: SubmitKind,
    name: &LoopName,
    body: &SubmitBody,
) -> Result<SubmitReply, Failure> {
    // A client needs no rights beyond its submit subjects and its inbox.
    let config = NatsConfig { advisories: false, ..config.clone() };
    let bus = services::connect(&config).await?;
    let body = serde_json::to_vec(body).map_err(|error| Failure::internal(error.to_string()))?;
    let message =
        Message { subject: subjects::submit(namespace, kind, name), headers: Headers::new(), body: body.into() };
    let answer = bus.request(message, ANSWER_WITHIN).await;
    bus.close().await;
    let answer = answer.map_err(|error| match error {
        BusError::NoResponders => Failure::unreachable("no coordinator answers submissions on this NATS server")
            .hint("start one with `ditto coordinator`; to store submissions until then, publish to ditto.inbox.…"),
        BusError::TooLarge { .. } => Failure::usage(format!("--input: {error}")),
        BusError::Denied(_) => Failure::usage(format!("nats: {error}")),
        other => Failure::unreachable(format!("nats: {other}")).hint("with --key it is safe to submit again"),
    })?;
    let json = Json::parse(answer.body).map_err(|_| Failure::internal("the answer is no JSON"))?;
    if let Some(error) = json.field("error") {
        let error: WireError = crate::client::read(&error)?;
        return Err(error.into());
    }
    crate::client::read(&json)
}
