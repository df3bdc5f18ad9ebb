//! A pull on a durable consumer: one request, its messages as they come, no heartbeat.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, Sleep},
};

use super::{
    ack::{NAK, NatsAck},
    events::Connection,
    inbox::Inbox,
    link::Link,
    wire,
};
use crate::{BusError, Delivery, Pull};

/// How much longer than the server the client waits for the end of a pull.
const GRACE: Duration = Duration::from_secs(1);
/// How long a dropped pull may keep its inbox until the server has let go of it.
const LEAVE: Duration = Duration::from_secs(1);

/// One open pull.
pub(super) struct NatsPull {
    link: Arc<Link>,
    /// Key of the consumer in errors and in what the link remembers.
    consumer: String,
    /// `None` once the request is over and the inbox went back to the pool.
    inbox: Option<Inbox>,
    reply: Subject,
    left: usize,
    end: Pin<Box<Sleep>>,
    connection: watch::Receiver<Connection>,
    losses: u64,
    /// Found by `try_next`, told by `next`.
    failed: Option<BusError>,
}

/// What one message in the inbox means.
enum Step {
    Deliver(Delivery),
    End,
    Fail(BusError),
    Pass,
}

impl NatsPull {
    /// Sends the pull request.
    pub(super) async fn open(
        link: Arc<Link>,
        stream: &str,
        consumer: &str,
        max: usize,
        expires: Duration,
    ) -> Result<Self, BusError> {
        const OPERATION: &str = "pull";
        let until = Instant::now() + link.timeout;
        link.ready(OPERATION, until).await?;
        let connection = link.signals.connection.subscribe();
        let losses = connection.borrow().losses;
        let mut inbox = link.pulls.take(&link, until).await?;
        let (_, reply) = inbox.reply();
        let max = max.max(1);
        let expires = expires.max(Duration::from_millis(1));
        let body = format!("{{\"batch\":{max},\"expires\":{}}}", expires.as_nanos());
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        link.send(OPERATION, until, subject.into(), Some(reply.clone()), None, Bytes::from(body)).await?;
        Ok(Self {
            consumer: consumer_key(stream, consumer),
            inbox: Some(inbox),
            reply,
            left: max,
            end: Box::pin(tokio::time::sleep(expires + GRACE)),
            connection,
            losses,
            failed: None,
            link,
        })
    }

    fn step(&mut self, message: Option<async_nats::Message>) -> Step {
        let Some(mut message) = message else {
            self.inbox = None;
            return Step::Fail(BusError::Closed);
        };
        let Some(status) = message.status.map(|status| status.as_u16()).filter(|status| *status != 200) else {
            let reply = message.reply.take();
            let Some((stored, reply)) = reply.and_then(|reply| Some((wire::stored(&reply)?, reply))) else {
                tracing::warn!(subject = %message.subject, "a message without a stream's reply subject was passed over");
                return Step::Pass;
            };
            self.left = self.left.saturating_sub(1);
            let delivery = Delivery {
                message: wire::message_in(message),
                sequence: stored.sequence,
                delivery_count: stored.deliveries,
                acker: Arc::new(NatsAck::new(self.link.clone(), reply)),
            };
            if self.left == 0 {
                self.finish();
            }
            return Step::Deliver(delivery);
        };
        if message.subject != self.reply {
            return Step::Pass; // the end of an earlier request of this inbox
        }
        let description = message.description.unwrap_or_default();
        match status {
            100 => Step::Pass,
            404 | 408 => {
                self.finish();
                Step::End
            }
            503 => {
                self.finish();
                self.link.forget_consumer(&self.consumer);
                Step::Fail(BusError::Missing(self.consumer.clone()))
            }
            409 if description.contains("Deleted") => {
                self.finish();
                self.link.forget_consumer(&self.consumer);
                Step::Fail(BusError::Missing(self.consumer.clone()))
            }
            _ => {
                self.finish();
                Step::Fail(BusError::Maybe { operation: "pull", reason: format!("{status} {description}") })
            }
        }
    }

    /// The server is done with the request: the inbox can serve another.
    fn finish(&mut self) {
        self.left = 0;
        if let Some(inbox) = self.inbox.take() {
            self.link.pulls.give(inbox);
        }
    }

    /// The request is over without a word from the server: whatever still comes goes back.
    fn leave(&mut self) {
        self.left = 0;
        if let Some(inbox) = self.inbox.take() {
            // Full or ended: the messages come again after `ack_wait`.
            let _ = self.link.left_open.try_send(inbox);
        }
    }
}

#[async_trait]
impl Pull for NatsPull {
    async fn next(&mut self) -> Result<Option<Delivery>, BusError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            let Some(inbox) = &mut self.inbox else { return Ok(None) };
            let message = tokio::select! {
                biased;
                message = inbox.subscriber.next() => message,
                changed = self.connection.changed() => {
                    let lost = changed.is_err() || self.connection.borrow().losses != self.losses;
                    if lost {
                        // The server forgot the request with the connection.
                        self.leave();
                        let reason = "the connection was lost".to_owned();
                        return Err(BusError::Maybe { operation: "pull", reason });
                    }
                    continue;
                }
                () = &mut self.end => {
                    // Not even its end was told: perhaps the consumer is gone, so the next pull looks.
                    self.link.forget_consumer(&self.consumer);
                    self.leave();
                    return Ok(None);
                }
            };
            match self.step(message) {
                Step::Deliver(delivery) => return Ok(Some(delivery)),
                Step::End => return Ok(None),
                Step::Fail(error) => return Err(error),
                Step::Pass => {}
            }
        }
    }

    fn try_next(&mut self) -> Option<Delivery> {
        loop {
            let message = self.inbox.as_mut()?.arrived()?;
            match self.step(message) {
                Step::Deliver(delivery) => return Some(delivery),
                Step::End => return None,
                Step::Fail(error) => {
                    self.failed = Some(error);
                    return None;
                }
                Step::Pass => {}
            }
        }
    }
}

impl Drop for NatsPull {
    fn drop(&mut self) {
        self.leave();
    }
}

/// How a consumer is called in errors and in memory.
pub(super) fn consumer_key(stream: &str, consumer: &str) -> String {
    format!("consumer {consumer} of stream {stream}")
}

/// Ends the inboxes of dropped pulls and gives back what is in them, so that nobody waits for `ack_wait`. The server
/// hears the end of the subscription first, else it would send the messages to the same inbox again. A message that
/// leaves the server in that very moment still has to wait.
pub(super) async fn give_back(mut left_open: mpsc::Receiver<Inbox>, client: async_nats::Client) {
    while let Some(mut inbox) = left_open.recv().await {
        let end = Instant::now() + LEAVE;
        if !matches!(tokio::time::timeout_at(end, inbox.subscriber.drain()).await, Ok(Ok(()))) {
            continue;
        }
        while let Ok(Some(message)) = tokio::time::timeout_at(end, inbox.subscriber.next()).await {
            let Some(reply) = message.reply.filter(|reply| wire::stored(reply).is_some()) else { continue };
            let back = client.publish(reply, Bytes::from_static(NAK));
            if !matches!(tokio::time::timeout_at(end, back).await, Ok(Ok(()))) {
                break;
            }
        }
    }
}
