//! What follows once a result is in the ledger: its message is acknowledged, and the session that holds it is told.

use std::collections::HashMap;

use ditto_bus::Message;
use ditto_contracts::{
    CallUid, SessionId,
    wire::{Headers, ledger::ConfirmNotice, subjects},
};
use tracing::debug;

use super::Answered;
use crate::core::Core;

/// Confirmations that are collected and sent together, one message per session.
#[derive(Default)]
pub(crate) struct Confirms(HashMap<SessionId, Vec<CallUid>>);

impl Confirms {
    /// Acknowledges a result that is in the ledger and notes whom to tell.
    pub(crate) async fn settled(&mut self, answered: Answered) {
        if let Some((session, call)) = answered.confirm {
            self.0.entry(session).or_default().push(call);
        }
        if let Some(ack) = answered.ack
            && let Err(error) = ack.ack().await
        {
            debug!(%error, "ack of a settled result was not sent; it comes again and is known");
        }
    }

    /// Tells the sessions. Safe to lose: they learn it from their next renewal.
    pub(crate) async fn send(&mut self, core: &Core) {
        for (session, calls) in self.0.drain() {
            let Some(kind) = core.catalogue.kind_of(&session) else { continue };
            let Ok(body) = serde_json::to_vec(&ConfirmNotice { calls }) else { continue };
            let subject = subjects::confirm(&kind, &session);
            let message = Message { subject, headers: Headers::new(), body: body.into() };
            if let Err(error) = core.bus.notify(message).await {
                debug!(%session, %error, "confirmation was not sent; the session learns it from its next renewal");
            }
        }
    }
}
