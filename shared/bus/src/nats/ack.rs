//! How a stored message is answered: a message to its reply subject, without waiting for the server.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use super::link::Link;
use crate::{Ack, BusError, time::nanos};

/// Says that a message is to come again after this delay.
pub(super) fn nak_body(delay: Duration) -> Bytes {
    if delay.is_zero() {
        return Bytes::from_static(b"-NAK");
    }
    Bytes::from(format!("-NAK {{\"delay\":{}}}", nanos(delay)))
}

/// The answer to one delivery.
pub(super) struct NatsAck {
    link: Arc<Link>,
    reply: Subject,
    answered: AtomicBool,
}

impl NatsAck {
    pub(super) fn new(link: Arc<Link>, reply: Subject) -> Self {
        Self { link, reply, answered: AtomicBool::new(false) }
    }

    async fn send(&self, operation: &'static str, body: Bytes) -> Result<(), BusError> {
        if self.link.is_closed() {
            return Err(BusError::Closed);
        }
        let until = Instant::now() + self.link.timeout;
        self.link.send(operation, until, self.reply.clone(), None, None, body).await
    }

    async fn once(&self, operation: &'static str, body: Bytes) -> Result<(), BusError> {
        if self.answered.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.send(operation, body).await
    }
}

#[async_trait]
impl Ack for NatsAck {
    async fn ack(&self) -> Result<(), BusError> {
        self.once("ack", Bytes::from_static(b"+ACK")).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        self.once("nak", nak_body(delay)).await
    }

    async fn term(&self) -> Result<(), BusError> {
        self.once("term", Bytes::from_static(b"+TERM")).await
    }

    async fn in_progress(&self) -> Result<(), BusError> {
        if self.answered.load(Ordering::Acquire) {
            return Ok(());
        }
        self.send("in progress", Bytes::from_static(b"+WPI")).await
    }
}
