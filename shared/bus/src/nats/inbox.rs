//! Inboxes: one wildcard subscription each, used again and again with a new reply subject every time.

use std::sync::{Mutex, PoisonError};

use async_nats::{Message, Subject, Subscriber};
use futures_util::{FutureExt, StreamExt};
use tokio::{task::coop, time::Instant};

use super::link::Link;
use crate::BusError;

/// Idle inboxes kept.
const IDLE: usize = 64;

/// One subscription to `<prefix>.*`. Answers to earlier reply subjects may still arrive; the caller compares.
pub(super) struct Inbox {
    prefix: String,
    used: u64,
    pub(super) subscriber: Subscriber,
}

impl Inbox {
    /// A reply subject that was never used before.
    pub(super) fn reply(&mut self) -> (u64, Subject) {
        self.used += 1;
        (self.used, Subject::from(format!("{}.{}", self.prefix, self.used)))
    }

    /// Which reply subject this is.
    pub(super) fn number(&self, subject: &str) -> Option<u64> {
        subject.strip_prefix(self.prefix.as_str())?.strip_prefix('.')?.parse().ok()
    }

    /// What arrived already. `None`: nothing; `Some(None)`: the connection is closed for good.
    pub(super) fn arrived(&mut self) -> Option<Option<Message>> {
        // Without the scheduler's budget, which would hide messages that are here.
        coop::unconstrained(self.subscriber.next()).now_or_never()
    }
}

/// Inboxes that wait for their next use.
#[derive(Default)]
pub(super) struct Pool(Mutex<Vec<Inbox>>);

impl Pool {
    /// An idle inbox, or a new one.
    pub(super) async fn take(&self, link: &Link, until: Instant) -> Result<Inbox, BusError> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(inbox) = idle {
            return Ok(inbox);
        }
        let prefix = link.client.new_inbox();
        let subscriber = link.within("subscribe", until, link.client.subscribe(format!("{prefix}.*"))).await?;
        Ok(Inbox { prefix, used: 0, subscriber })
    }

    /// Takes an inbox back that nothing is under way to but what its next user will pass over.
    pub(super) fn give(&self, inbox: Inbox) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(inbox);
        }
    }

    /// Ends all idle ones.
    pub(super) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
