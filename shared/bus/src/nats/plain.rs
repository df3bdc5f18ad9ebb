//! Plain messages and requests.

use std::{collections::VecDeque, time::Duration};

use async_nats::{StatusCode, Subscriber};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::{task::coop, time::Instant};

use super::{link::Link, wire};
use crate::{BusError, Message, Received, Subscription, sendable, time::after};

/// Sends a plain message.
pub(super) async fn send(link: &Link, operation: &'static str, message: Message) -> Result<(), BusError> {
    sendable::check(&message.subject, &message.headers, &message.body, link.client.max_payload())?;
    let headers = wire::headers_out(&message.headers)?;
    let now = Instant::now();
    // It may be lost, so nobody waits for a connection.
    link.ready(operation, now).await?;
    link.send(operation, now + link.timeout, message.subject.into(), None, headers, message.body).await
}

/// Sends a request and waits for its answer until `timeout` has passed.
pub(super) async fn request(
    link: &Link,
    operation: &'static str,
    message: Message,
    timeout: Duration,
) -> Result<async_nats::Message, BusError> {
    sendable::check(&message.subject, &message.headers, &message.body, link.client.max_payload())?;
    let headers = wire::headers_out(&message.headers)?;
    let until = after(Instant::now(), timeout);
    link.ready(operation, until).await?;
    let mut inbox = link.replies.take(link, until).await?;
    let (number, reply) = inbox.reply();
    link.send(operation, until, message.subject.as_str().into(), Some(reply), headers, message.body).await?;
    let answer = loop {
        match tokio::time::timeout_at(until, inbox.subscriber.next()).await {
            Ok(Some(answer)) if inbox.number(&answer.subject) == Some(number) => break Some(answer),
            Ok(Some(_)) => {} // the late answer to an earlier request
            Ok(None) => return Err(BusError::Closed),
            Err(_) => break None,
        }
    };
    link.replies.give(inbox);
    match answer {
        None => Err(link.unanswered(operation, &message.subject)),
        Some(answer) if answer.status == Some(StatusCode::NO_RESPONDERS) => Err(BusError::NoResponders),
        Some(answer) => Ok(answer),
    }
}

/// A request whose body is JSON.
pub(super) async fn ask(link: &Link, operation: &'static str, subject: String, body: Bytes) -> Result<Bytes, BusError> {
    let message = Message { subject, headers: ditto_contracts::wire::Headers::new(), body };
    Ok(request(link, operation, message, link.timeout).await?.payload)
}

/// One subscription. The client library keeps up to 65 536 unread messages; of these the newest `capacity` are kept.
pub(super) struct NatsSubscription {
    subscriber: Subscriber,
    capacity: usize,
    unread: VecDeque<Received>,
    ended: bool,
}

impl NatsSubscription {
    pub(super) fn new(subscriber: Subscriber, capacity: usize) -> Self {
        Self { subscriber, capacity: capacity.max(1), unread: VecDeque::new(), ended: false }
    }

    fn collect(&mut self) {
        while !self.ended {
            match coop::unconstrained(self.subscriber.next()).now_or_never() {
                None => return,
                Some(None) => self.ended = true,
                Some(Some(message)) => {
                    if self.unread.len() >= self.capacity {
                        self.unread.pop_front();
                    }
                    self.unread.push_back(wire::received(message));
                }
            }
        }
    }
}

#[async_trait]
impl Subscription for NatsSubscription {
    async fn next(&mut self) -> Option<Received> {
        self.collect();
        if let Some(received) = self.unread.pop_front() {
            return Some(received);
        }
        if self.ended {
            return None;
        }
        self.subscriber.next().await.map(wire::received)
    }

    fn try_next(&mut self) -> Option<Received> {
        self.collect();
        self.unread.pop_front()
    }
}
