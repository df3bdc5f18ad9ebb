//! Publishing to streams: pipelined, each confirmation bounded in time.

use std::{collections::VecDeque, time::Duration};

use async_nats::StatusCode;
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    api::{ApiError, publish_error},
    inbox::Inbox,
    link::Link,
    wire,
};
use crate::{BusError, Message, Published, sendable};

const OPERATION: &str = "publish";

type Answer = Result<Published, BusError>;

/// Publishes all messages with at most [`super::link::UNCONFIRMED`] of this connection unconfirmed, and waits for the
/// confirmations.
pub(super) async fn publish(link: &Link, messages: Vec<Message>, stream_limit: impl Fn(&str) -> usize) -> Vec<Answer> {
    let count = messages.len();
    if count == 0 {
        return Vec::new();
    }
    let until = Instant::now() + link.timeout;
    let inbox = match link.ready(OPERATION, until).await {
        Ok(()) => link.replies.take(link, until).await,
        Err(error) => Err(error),
    };
    let inbox = match inbox {
        Ok(inbox) => inbox,
        Err(error) => return vec![Err(error); count],
    };
    let mut flight = Flight {
        link,
        inbox,
        answers: vec![None; count],
        sent: Vec::with_capacity(count),
        open: VecDeque::new(),
        permits: Permits { semaphore: &link.unconfirmed, held: 0 },
        stuck: false,
        subjects: messages.iter().map(|message| (message.subject.clone(), message.body.len())).collect(),
    };
    let mut messages = messages.into_iter().enumerate().peekable();
    loop {
        while !flight.stuck && messages.peek().is_some() && flight.permits.take(link.timeout).await {
            if let Some((at, message)) = messages.next() {
                flight.send(at, message).await;
            }
        }
        if !flight.settle_next(&stream_limit).await {
            let Some((at, _)) = messages.next() else { break };
            let reason = "not sent: earlier messages are unconfirmed".to_owned();
            flight.settle(at, Err(BusError::Maybe { operation: OPERATION, reason }));
        }
    }
    let Flight { inbox, answers, .. } = flight;
    link.replies.give(inbox);
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(link.unanswered(OPERATION, "")))).collect()
}

/// The messages of one call that are on their way.
struct Flight<'a> {
    link: &'a Link,
    inbox: Inbox,
    answers: Vec<Option<Answer>>,
    /// Reply number and place in the call, in the order sent.
    sent: Vec<(u64, usize)>,
    /// What is not settled, or not yet seen to be: place and end of its wait, in the order sent.
    open: VecDeque<(usize, Instant)>,
    permits: Permits<'a>,
    /// One was not confirmed in time: no more are sent, so that a call takes no longer than one of them.
    stuck: bool,
    /// For errors.
    subjects: Vec<(String, usize)>,
}

impl Flight<'_> {
    async fn send(&mut self, at: usize, message: Message) {
        let until = Instant::now() + self.link.timeout;
        let (number, reply) = self.inbox.reply();
        let result = match self.prepare(&message) {
            Err(error) => Err(error),
            Ok(headers) => {
                self.link.send(OPERATION, until, message.subject.into(), Some(reply), headers, message.body).await
            }
        };
        match result {
            Ok(()) => {
                self.sent.push((number, at));
                self.open.push_back((at, until));
            }
            Err(error) => {
                self.stuck |= matches!(error, BusError::Maybe { .. });
                self.settle(at, Err(error));
            }
        }
    }

    fn prepare(&self, message: &Message) -> Result<Option<async_nats::HeaderMap>, BusError> {
        sendable::check(&message.subject, &message.headers, &message.body, self.link.client.max_payload())?;
        wire::headers_out(&message.headers)
    }

    /// Waits for one confirmation or the end of one wait. `false`: nothing is open.
    async fn settle_next(&mut self, stream_limit: &impl Fn(&str) -> usize) -> bool {
        while let Some((at, _)) = self.open.front()
            && self.answers.get(*at).is_none_or(Option::is_some)
        {
            self.open.pop_front();
        }
        let Some((at, until)) = self.open.front().copied() else { return false };
        match tokio::time::timeout_at(until, self.inbox.subscriber.next()).await {
            Ok(Some(message)) => {
                // Numbers of one call rise, so the place is found by bisection; late answers of earlier calls are not.
                let number = self.inbox.number(&message.subject);
                let place = number.and_then(|n| self.sent.binary_search_by_key(&n, |(number, _)| *number).ok());
                if let Some(at) = place.and_then(|place| self.sent.get(place)).map(|(_, at)| *at) {
                    let (subject, size) = self.subjects.get(at).map_or(("", 0), |(s, n)| (s.as_str(), *n));
                    let answer = read(&message, subject, size, stream_limit);
                    self.settle(at, answer);
                }
            }
            Ok(None) => {
                for (at, _) in std::mem::take(&mut self.open) {
                    self.settle(at, Err(BusError::Closed));
                }
            }
            Err(_) => {
                let subject = self.subjects.get(at).map_or("", |(subject, _)| subject.as_str());
                let error = self.link.unanswered(OPERATION, subject);
                self.stuck |= matches!(error, BusError::Maybe { .. });
                self.settle(at, Err(error));
            }
        }
        true
    }

    fn settle(&mut self, at: usize, answer: Answer) {
        if let Some(place @ None) = self.answers.get_mut(at) {
            *place = Some(answer);
            self.permits.give();
        }
    }
}

/// Permits of the connection held by one call; given back even when the call is dropped.
struct Permits<'a> {
    semaphore: &'a Semaphore,
    held: usize,
}

impl Permits<'_> {
    /// One more. While none is held it waits for other calls to be confirmed; while some are held it does not.
    async fn take(&mut self, longest: Duration) -> bool {
        let permit = match self.held {
            0 => tokio::time::timeout(longest, self.semaphore.acquire()).await.ok().and_then(Result::ok),
            _ => self.semaphore.try_acquire().ok(),
        };
        let Some(permit) = permit else { return false };
        permit.forget();
        self.held += 1;
        true
    }

    fn give(&mut self) {
        if self.held > 0 {
            self.held -= 1;
            self.semaphore.add_permits(1);
        }
    }
}

impl Drop for Permits<'_> {
    fn drop(&mut self) {
        self.semaphore.add_permits(self.held);
    }
}

#[derive(Deserialize)]
struct Confirmation {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

fn read(message: &async_nats::Message, subject: &str, size: usize, stream_limit: &impl Fn(&str) -> usize) -> Answer {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(BusError::Missing(format!("a stream for {subject}")));
    }
    match serde_json::from_slice::<Confirmation>(&message.payload) {
        Ok(Confirmation { error: Some(error), .. }) => Err(publish_error(error, size, || stream_limit(subject))),
        Ok(Confirmation { seq, duplicate, error: None }) if seq > 0 => Ok(Published { sequence: seq, duplicate }),
        Ok(_) | Err(_) => {
            Err(BusError::Maybe { operation: OPERATION, reason: "the confirmation is unreadable".to_owned() })
        }
    }
}
