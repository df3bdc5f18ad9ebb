//! What the connection tells: up or down, refused subjects, messages that used up their deliveries.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use async_nats::{Event, ServerError, Subscriber};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::sync::{broadcast, watch};

use crate::BusEvent;

/// Where the server reports messages that used up their deliveries.
pub(super) const MAX_DELIVERIES: &str = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>";
/// Events a slow listener may be behind.
const EVENTS: usize = 256;
/// Refused subjects remembered.
const REFUSALS: usize = 64;

/// Whether there is a connection, and how often it was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) up: bool,
    pub(super) losses: u64,
}

/// Hears what the client library reports and passes it on.
pub(super) struct Signals {
    pub(super) events: broadcast::Sender<BusEvent>,
    pub(super) connection: watch::Sender<Connection>,
    refused: Mutex<VecDeque<String>>,
}

impl Signals {
    pub(super) fn new() -> Self {
        Self {
            events: broadcast::Sender::new(EVENTS),
            connection: watch::Sender::new(Connection { up: true, losses: 0 }),
            refused: Mutex::default(),
        }
    }

    /// Takes one event of the client library.
    pub(super) fn hear(&self, event: Event) {
        match event {
            Event::Connected => {
                self.connection.send_modify(|connection| connection.up = true);
                self.tell(BusEvent::Connected);
            }
            Event::Disconnected | Event::Closed => {
                self.connection.send_modify(|connection| {
                    connection.up = false;
                    connection.losses += 1;
                });
                self.tell(BusEvent::Disconnected);
            }
            Event::ServerError(ServerError::Other(text)) => {
                if let Some(subject) = refused_subject(&text) {
                    tracing::warn!(subject, "nats refused a subject: this user lacks the right");
                    let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                    if refused.len() >= REFUSALS {
                        refused.pop_front();
                    }
                    refused.push_back(subject.to_owned());
                } else {
                    tracing::warn!(error = text, "nats reports an error");
                }
            }
            Event::ServerError(error) => tracing::warn!(%error, "nats reports an error"),
            Event::ClientError(error) => tracing::debug!(%error, "nats client error"),
            Event::SlowConsumer(_) => tracing::warn!("a subscription was read too slowly and lost messages"),
            Event::LameDuckMode => tracing::info!("nats server is about to stop"),
            Event::Draining => {}
        }
    }

    /// Whether the server refused a message to this subject; asked once per refusal.
    pub(super) fn was_refused(&self, subject: &str) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let at = refused.iter().position(|known| known == subject);
        at.is_some_and(|at| refused.remove(at).is_some())
    }

    fn tell(&self, event: BusEvent) {
        // Nobody listens: fine.
        let _ = self.events.send(event);
    }
}

/// The subject in `Permissions Violation for Publish to "a.b"`.
fn refused_subject(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("Permissions Violation for ")?;
    rest.split('"').nth(1)
}

#[derive(Deserialize)]
struct Advisory {
    stream: String,
    consumer: String,
    stream_seq: u64,
}

/// Passes advisories on until the subscription ends or the task is aborted.
pub(super) async fn pass_advisories(mut subscriber: Subscriber, events: broadcast::Sender<BusEvent>) {
    while let Some(message) = subscriber.next().await {
        match serde_json::from_slice::<Advisory>(&message.payload) {
            Ok(Advisory { stream, consumer, stream_seq }) => {
                // Nobody listens: fine.
                let _ = events.send(BusEvent::MaxDeliveries { stream, consumer, sequence: stream_seq });
            }
            Err(error) => tracing::warn!(%error, "unreadable advisory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_subjects_are_read_from_the_server_s_words() {
        assert_eq!(refused_subject("Permissions Violation for Publish to \"a.b\""), Some("a.b"));
        assert_eq!(refused_subject("Permissions Violation for Subscription to \"x.>\" using queue \"q\""), Some("x.>"));
        assert_eq!(refused_subject("Unknown Protocol Operation"), None);
        let signals = Signals::new();
        signals.hear(Event::ServerError(ServerError::Other("Permissions Violation for Publish to \"a.b\"".to_owned())));
        assert!(!signals.was_refused("a"));
        assert!(signals.was_refused("a.b"));
        assert!(!signals.was_refused("a.b"));
    }
}
