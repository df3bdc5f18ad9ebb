//! How a message of a local stream is answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::stream::Stream;
use crate::{Ack, BusError};

/// The answer to one delivery. As in JetStream, an answer to an outdated delivery counts for the message.
pub(super) struct LocalAck {
    pub(super) stream: Arc<Stream>,
    pub(super) consumer: u64,
    pub(super) sequence: u64,
    pub(super) answered: AtomicBool,
}

impl LocalAck {
    fn once(&self, answer: impl FnOnce(&Stream) -> Result<(), BusError>) -> Result<(), BusError> {
        if self.answered.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        answer(&self.stream)
    }
}

#[async_trait]
impl Ack for LocalAck {
    async fn ack(&self) -> Result<(), BusError> {
        self.once(|stream| stream.remove(self.consumer, self.sequence))
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        self.once(|stream| stream.again(self.consumer, self.sequence, delay, Instant::now()))
    }

    async fn term(&self) -> Result<(), BusError> {
        self.once(|stream| stream.remove(self.consumer, self.sequence))
    }

    async fn in_progress(&self) -> Result<(), BusError> {
        if self.answered.load(Ordering::Acquire) {
            return Ok(());
        }
        self.stream.renew(self.consumer, self.sequence, Instant::now())
    }
}
