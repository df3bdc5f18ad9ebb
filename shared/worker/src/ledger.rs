//! Requests to whichever coordinator answers.

use std::{sync::Arc, time::Duration};

use ditto_bus::{Bus, BusError, Message};
use ditto_contracts::{
    Json,
    wire::{Headers, WIRE_VERSION, names},
};
use serde::{Serialize, de::DeserializeOwned};

/// Why a ledger request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LedgerError {
    /// No coordinator listens: the request had no effect.
    #[error("no coordinator answers")]
    Away,
    /// It may have had its effect.
    #[error("no answer: {0}")]
    Maybe(String),
    /// A coordinator answered that it could not do it now.
    #[error("the coordinator answered: {0}")]
    Refused(String),
}

/// Sends ledger requests.
#[derive(Clone)]
pub(crate) struct Ledger {
    bus: Arc<dyn Bus>,
}

impl Ledger {
    pub(crate) fn new(bus: Arc<dyn Bus>) -> Self {
        Self { bus }
    }

    /// One request, once.
    pub(crate) async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        subject: &str,
        request: &Q,
        timeout: Duration,
    ) -> Result<A, LedgerError> {
        let body = Json::from_serialize(request).map_err(|error| LedgerError::Refused(error.to_string()))?.to_bytes();
        let mut headers = Headers::new();
        headers.push(names::WIRE, WIRE_VERSION);
        let message = Message { subject: subject.to_owned(), headers, body };
        let answer = match self.bus.request(message, timeout).await {
            Ok(answer) => answer,
            Err(BusError::NoResponders) => return Err(LedgerError::Away),
            Err(error) => return Err(LedgerError::Maybe(error.to_string())),
        };
        if let Some(error) = answer.headers.get(names::ERROR) {
            return Err(LedgerError::Refused(error.to_owned()));
        }
        let unreadable = |error: &dyn std::fmt::Display| LedgerError::Maybe(format!("unreadable answer: {error}"));
        Json::parse(answer.body).map_err(|error| unreadable(&error))?.to().map_err(|error| unreadable(&error))
    }
}

/// `base` up to twice as long: so that many workers do not come back at once.
pub(crate) fn jitter(base: Duration) -> Duration {
    use rand::RngExt as _;
    base.mul_f64(1.0 + rand::rng().random::<f64>())
}
