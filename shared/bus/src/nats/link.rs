//! What every operation shares: the client, its time limit, its inboxes, the state of the connection.

use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{Client, HeaderMap, Subject, connection::State};
use bytes::Bytes;
use tokio::{
    sync::{Semaphore, mpsc},
    time::Instant,
};

use super::{events::Signals, inbox::Pool, pull::Abandoned};
use crate::BusError;

/// Most messages published and not confirmed.
pub(super) const UNCONFIRMED: usize = 256;
/// Names of consumers remembered as existing.
const KNOWN_CONSUMERS: usize = 1024;

/// The connection as the operations see it.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) timeout: Duration,
    pub(super) signals: Arc<Signals>,
    /// For requests and confirmations.
    pub(super) replies: Pool,
    /// For pulls.
    pub(super) pulls: Pool,
    pub(super) unconfirmed: Semaphore,
    /// Takes pulls that were dropped while a request was open.
    pub(super) abandoned: mpsc::Sender<Abandoned>,
    closed: AtomicBool,
    consumers: Mutex<HashSet<String>>,
}

impl Link {
    pub(super) fn new(
        client: Client,
        timeout: Duration,
        signals: Arc<Signals>,
        abandoned: mpsc::Sender<Abandoned>,
    ) -> Self {
        Self {
            client,
            timeout,
            signals,
            replies: Pool::default(),
            pulls: Pool::default(),
            unconfirmed: Semaphore::new(UNCONFIRMED),
            abandoned,
            closed: AtomicBool::new(false),
            consumers: Mutex::default(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn set_closed(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Waits for a connection, at most until `until`.
    pub(super) async fn ready(&self, operation: &'static str, until: Instant) -> Result<(), BusError> {
        if self.is_closed() {
            return Err(BusError::Closed);
        }
        if self.client.connection_state() == State::Connected {
            return Ok(());
        }
        let mut connection = self.signals.connection.subscribe();
        let up = connection.wait_for(|connection| connection.up);
        match tokio::time::timeout_at(until, up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(BusError::Closed),
            Err(_) => Err(BusError::Maybe { operation, reason: "not connected".to_owned() }),
        }
    }

    /// Bounds one step of an operation by `until`.
    pub(super) async fn within<T, E: std::fmt::Display>(
        &self,
        operation: &'static str,
        until: Instant,
        step: impl Future<Output = Result<T, E>>,
    ) -> Result<T, BusError> {
        match tokio::time::timeout_at(until, step).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) if self.is_closed() => Err(BusError::Closed),
            Ok(Err(error)) => Err(BusError::Maybe { operation, reason: error.to_string() }),
            Err(_) => Err(BusError::Maybe { operation, reason: "timed out".to_owned() }),
        }
    }

    /// Hands a message to the connection.
    pub(super) async fn send(
        &self,
        operation: &'static str,
        until: Instant,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        body: Bytes,
    ) -> Result<(), BusError> {
        let client = &self.client;
        match (reply, headers) {
            (None, None) => self.within(operation, until, client.publish(subject, body)).await,
            (None, Some(h)) => self.within(operation, until, client.publish_with_headers(subject, h, body)).await,
            (Some(r), None) => self.within(operation, until, client.publish_with_reply(subject, r, body)).await,
            (Some(r), Some(h)) => {
                self.within(operation, until, client.publish_with_reply_and_headers(subject, r, h, body)).await
            }
        }
    }

    /// What an answer that never came means.
    pub(super) fn unanswered(&self, operation: &'static str, subject: &str) -> BusError {
        if self.is_closed() {
            return BusError::Closed;
        }
        if self.signals.was_refused(subject) {
            return BusError::Denied(subject.to_owned());
        }
        BusError::Maybe { operation, reason: "no confirmation in time".to_owned() }
    }

    /// Whether this consumer was seen; a pull then costs no look at the server.
    pub(super) fn knows_consumer(&self, key: &str) -> bool {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    pub(super) fn learn_consumer(&self, key: String) {
        let mut known = self.consumers.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= KNOWN_CONSUMERS {
            known.clear();
        }
        known.insert(key);
    }

    pub(super) fn forget_consumer(&self, key: &str) {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
