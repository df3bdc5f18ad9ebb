//! Requests that wait for their answer.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

use crate::Message;

const PREFIX: &str = "_INBOX.local.";

/// Open requests by number.
#[derive(Default)]
pub(super) struct Requests {
    next: AtomicU64,
    open: Mutex<HashMap<u64, oneshot::Sender<Message>>>,
}

/// One open request; forgotten when dropped.
pub(super) struct OpenRequest {
    requests: Arc<Requests>,
    number: u64,
}

impl Requests {
    /// Opens a request.
    pub(super) fn open(self: &Arc<Self>) -> (OpenRequest, oneshot::Receiver<Message>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(number, sender);
        (OpenRequest { requests: self.clone(), number }, receiver)
    }

    /// Hands an answer to the request it belongs to. A message to any other
    /// subject comes back.
    pub(super) fn answer(&self, message: Message) -> Option<Message> {
        let Some(number) = message.subject.strip_prefix(PREFIX) else { return Some(message) };
        let waiting = number.parse().ok().and_then(|number| self.lock().remove(&number));
        if let Some(sender) = waiting {
            // A requester that has just given up is no error of the answerer.
            let _ = sender.send(message);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Message>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenRequest {
    /// Where the answer goes.
    pub(super) fn reply(&self) -> String {
        format!("{PREFIX}{}", self.number)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.requests.lock().remove(&self.number);
    }
}
