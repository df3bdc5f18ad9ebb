//! The one timer of a local bus: wakes streams for redeliveries, delays and ages, and sends delayed plain messages.

use std::{
    cmp::Ordering,
    collections::BinaryHeap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::{sync::Notify, time::Instant};

use super::{plain::Plain, stream::Stream};
use crate::Received;

/// What is to be done at a time.
pub(super) enum Task {
    /// Look at what is due in this stream.
    Stream(Weak<Stream>),
    /// Send this plain message.
    Plain(Weak<Plain>, Box<Received>),
}

struct Entry {
    at: Instant,
    task: Task,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Earliest first in a max-heap.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

/// The entries of the timer and the bell that says the first one changed.
#[derive(Default)]
pub(super) struct Timer {
    entries: Mutex<BinaryHeap<Entry>>,
    changed: Notify,
}

impl Timer {
    /// Does `task` at `at`.
    pub(super) fn at(&self, at: Instant, task: Task) {
        let mut entries = self.lock();
        let first = entries.peek().is_none_or(|entry| at < entry.at);
        entries.push(Entry { at, task });
        drop(entries);
        if first {
            self.changed.notify_one();
        }
    }

    /// Serves the entries until the task that runs this is aborted.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let next = self.lock().peek().map(|entry| entry.at);
            match next {
                None => self.changed.notified().await,
                Some(at) => tokio::select! {
                    () = tokio::time::sleep_until(at) => self.serve(Instant::now()),
                    () = self.changed.notified() => {}
                },
            }
        }
    }

    fn serve(&self, now: Instant) {
        let mut due = Vec::new();
        {
            let mut entries = self.lock();
            while entries.peek().is_some_and(|entry| entry.at <= now) {
                due.extend(entries.pop());
            }
        }
        for entry in due {
            match entry.task {
                Task::Stream(stream) => {
                    if let Some(stream) = stream.upgrade() {
                        stream.serve_due(now);
                    }
                }
                Task::Plain(plain, received) => {
                    if let Some(plain) = plain.upgrade() {
                        plain.deliver(&received.message, received.reply.as_deref());
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BinaryHeap<Entry>> {
        // A panic elsewhere leaves a whole heap behind.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
