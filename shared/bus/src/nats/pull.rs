//! A pull on a durable consumer: requests without heartbeat, their messages as they come.
//!
//! A pull request cannot be taken back, and whatever the server has sent to an inbox that is gone waits for `ack_wait`.
//! So a long pull is a chain of short requests, and the inbox of a dropped pull stays until its last request is over;
//! what still arrives there is given back.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use async_nats::Subject;
use async_trait::async_trait;
use futures_util::StreamExt;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, Sleep},
};

use super::{
    ack::{NatsAck, nak_body},
    events::Connection,
    inbox::Inbox,
    link::Link,
    wire,
};
use crate::{BusError, Delivery, Pull, time::after};

const OPERATION: &str = "pull";
/// Longest life of one request at the server.
const REQUEST: Duration = Duration::from_secs(1);
/// How much longer the client waits for word of the end of a request.
const GRACE: Duration = Duration::from_secs(1);
/// Between the end of a request and the return of what it took with it.
const MARGIN: Duration = Duration::from_millis(10);

/// Most messages of one pull; an inbox holds more.
const MOST: usize = 16 * 1024;
/// Most dropped pulls looked after at once.
const LOOKED_AFTER: usize = 1024;

/// One open pull.
pub(super) struct NatsPull {
    link: Arc<Link>,
    /// Where requests of this consumer go.
    subject: Subject,
    /// The consumer in errors and in what the link remembers.
    consumer: String,
    /// `None` once the pull is over.
    inbox: Option<Inbox>,
    /// Reply subject of the open request; `None` between two.
    reply: Option<Subject>,
    /// Messages still wanted.
    left: usize,
    expires: Instant,
    /// When the open request ends at the server.
    request_ends: Instant,
    /// When the client gives it up.
    give_up: Pin<Box<Sleep>>,
    connection: watch::Receiver<Connection>,
    losses: u64,
    /// Found by `try_next`, told by `next`.
    failed: Option<BusError>,
}

/// A pull that was dropped while its request was open.
pub(super) struct Abandoned {
    inbox: Inbox,
    reply: Subject,
    left: usize,
    request_ends: Instant,
}

/// What one message in the inbox means.
enum Step {
    Deliver(Delivery),
    End,
    Fail(BusError),
    Pass,
}

impl NatsPull {
    /// Sends the first request.
    pub(super) async fn open(
        link: Arc<Link>,
        stream: &str,
        consumer: &str,
        max: usize,
        expires: Duration,
    ) -> Result<Self, BusError> {
        let now = Instant::now();
        let until = now + link.timeout;
        link.ready(OPERATION, until).await?;
        let connection = link.signals.connection.subscribe();
        let losses = connection.borrow().losses;
        let inbox = link.pulls.take(&link, until).await?;
        let mut pull = Self {
            subject: Subject::from(format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")),
            consumer: consumer_key(stream, consumer),
            inbox: Some(inbox),
            reply: None,
            left: max.clamp(1, MOST),
            expires: after(now, expires),
            request_ends: now,
            give_up: Box::pin(tokio::time::sleep(GRACE)),
            connection,
            losses,
            failed: None,
            link,
        };
        pull.ask().await?;
        Ok(pull)
    }

    /// Sends the next request. Cancelled, it may be called again.
    async fn ask(&mut self) -> Result<(), BusError> {
        let Some(inbox) = &mut self.inbox else { return Ok(()) };
        let now = Instant::now();
        let life = self.expires.saturating_duration_since(now).clamp(Duration::from_millis(1), REQUEST);
        let (_, reply) = inbox.reply();
        let body = format!("{{\"batch\":{},\"expires\":{}}}", self.left, life.as_nanos());
        let until = now + self.link.timeout;
        self.link.ready(OPERATION, until).await?;
        self.link.send(OPERATION, until, self.subject.clone(), Some(reply.clone()), None, body.into()).await?;
        self.reply = Some(reply);
        self.request_ends = Instant::now() + life;
        self.give_up.as_mut().reset(self.request_ends + GRACE);
        Ok(())
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
                self.reply = None;
                self.finish();
            }
            return Step::Deliver(delivery);
        };
        if self.reply.as_ref() != Some(&message.subject) {
            return Step::Pass; // the end of an earlier request of this inbox
        }
        self.reply = None;
        let description = message.description.unwrap_or_default();
        match status {
            404 | 408 => Step::End,
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
                Step::Fail(BusError::Maybe { operation: OPERATION, reason: format!("{status} {description}") })
            }
        }
    }

    /// The pull is over. With no request open the inbox can serve another pull; else it stays until the request ends.
    fn finish(&mut self) {
        let left = std::mem::take(&mut self.left);
        let Some(inbox) = self.inbox.take() else { return };
        match self.reply.take() {
            None => self.link.pulls.give(inbox),
            Some(reply) => {
                let abandoned = Abandoned { inbox, reply, left, request_ends: self.request_ends };
                // Full or ended: what still comes waits for `ack_wait`.
                let _ = self.link.abandoned.try_send(abandoned);
            }
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
            if self.reply.is_none() && Instant::now() >= self.expires {
                self.finish();
            } else if self.reply.is_none()
                && let Err(error) = self.ask().await
            {
                self.finish();
                return Err(error);
            }
            let Some(inbox) = &mut self.inbox else { return Ok(None) };
            let message = tokio::select! {
                biased;
                message = inbox.subscriber.next() => message,
                changed = self.connection.changed() => {
                    let lost = changed.is_err() || self.connection.borrow().losses != self.losses;
                    if lost {
                        // The server forgot the request with the connection.
                        self.finish();
                        let reason = "the connection was lost".to_owned();
                        return Err(BusError::Maybe { operation: OPERATION, reason });
                    }
                    continue;
                }
                () = &mut self.give_up => {
                    // Not even its end was told: perhaps the consumer is gone, so the next pull looks.
                    self.link.forget_consumer(&self.consumer);
                    self.finish();
                    return Ok(None);
                }
            };
            match self.step(message) {
                Step::Deliver(delivery) => return Ok(Some(delivery)),
                Step::Fail(error) => return Err(error),
                Step::End | Step::Pass => {}
            }
        }
    }

    fn try_next(&mut self) -> Option<Delivery> {
        loop {
            let message = self.inbox.as_mut()?.arrived()?;
            match self.step(message) {
                Step::Deliver(delivery) => return Some(delivery),
                Step::End => return None, // `next` sends another request, if it is time for one
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
        self.finish();
    }
}

/// How a consumer is called in errors and in memory.
pub(super) fn consumer_key(stream: &str, consumer: &str) -> String {
    format!("consumer {consumer} of stream {stream}")
}

/// Looks after the requests of dropped pulls until each is over.
pub(super) async fn look_after(mut abandoned: mpsc::Receiver<Abandoned>, link: Weak<Link>) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            next = abandoned.recv() => match (next, link.upgrade()) {
                (Some(_), Some(_)) if open.len() >= LOOKED_AFTER => {} // its messages come again after `ack_wait`
                (Some(next), Some(link)) => {
                    open.spawn(give_back(next, link));
                }
                (None, _) | (_, None) => return,
            },
            Some(_) = open.join_next() => {}
        }
    }
}

/// Gives back what arrives for a dropped pull until its request is over. While the request is open the messages come
/// back after its end, else the server would send them here again.
async fn give_back(mut abandoned: Abandoned, link: Arc<Link>) {
    let end = abandoned.request_ends + GRACE;
    while let Ok(Some(message)) = tokio::time::timeout_at(end, abandoned.inbox.subscriber.next()).await {
        let mut back = Vec::new();
        let mut over = false;
        let mut next = Some(message);
        while let Some(message) = next {
            match message.reply.filter(|reply| wire::stored(reply).is_some()) {
                Some(reply) => {
                    abandoned.left = abandoned.left.saturating_sub(1);
                    back.push(reply);
                }
                None => over |= message.subject == abandoned.reply,
            }
            next = abandoned.inbox.arrived().flatten();
        }
        over |= abandoned.left == 0;
        let wait = abandoned.request_ends.saturating_duration_since(Instant::now()) + MARGIN;
        let body = nak_body(if over { Duration::ZERO } else { wait });
        for reply in back {
            if link.send("nak", end, reply, None, None, body.clone()).await.is_err() {
                return; // they come again after `ack_wait`
            }
        }
        if over {
            link.pulls.give(abandoned.inbox);
            return;
        }
    }
}
