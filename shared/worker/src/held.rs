//! What this session holds: every call from before its claim until its settlement is confirmed.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque, hash_map},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ditto_contracts::{Bucket, CallUid, wire::ledger::HeldItem};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    gate::{Gate, HELD_FULL},
    results::Sent,
};

/// Finished unclaimed jobs that are remembered, so that a late redelivery does not run again.
const FINISHED_MAX: usize = 4_096;
/// Longest time between two sendings of an unconfirmed result.
const RESEND_MAX: Duration = Duration::from_secs(60);

/// Whether a job is to be worked on.
#[derive(Debug)]
pub(crate) enum Begin {
    /// Yes, until this is cancelled.
    Started(CancellationToken),
    /// Its call is in hand, or this very job was finished a moment ago: this copy is not needed.
    InHand,
    /// An answer of an earlier attempt waits for its confirmation, and the ledger may be asking for the next one.
    Later,
}

/// The calls of a session.
#[derive(Debug)]
pub(crate) struct Held {
    inner: Mutex<Inner>,
    gate: Arc<Gate>,
    bytes_max: usize,
    resend_after: Duration,
    /// Something is due earlier than before, or nothing is held any more.
    pub(crate) changed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    calls: HashMap<CallUid, Entry>,
    bytes: usize,
    due: BinaryHeap<Reverse<(Instant, CallUid)>>,
    finished: HashSet<(CallUid, u32)>,
    finished_order: VecDeque<(CallUid, u32)>,
}

impl Inner {
    fn finish(&mut self, call: &CallUid, dispatch_no: u32) {
        if self.finished_order.len() == FINISHED_MAX
            && let Some(oldest) = self.finished_order.pop_front()
        {
            self.finished.remove(&oldest);
        }
        let job = (call.clone(), dispatch_no);
        if self.finished.insert(job.clone()) {
            self.finished_order.push_back(job);
        }
    }
}

#[derive(Debug)]
struct Entry {
    bucket: Bucket,
    fence: u32,
    since: Instant,
    cancel: CancellationToken,
    sent: Option<Arc<Sent>>,
    tries: u32,
}

impl Held {
    pub(crate) fn new(gate: Arc<Gate>, bytes_max: usize, resend_after: Duration) -> Self {
        Self { inner: Mutex::default(), gate, bytes_max, resend_after, changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a call in hand.
    pub(crate) fn begin(&self, call: &CallUid, bucket: Bucket, dispatch_no: u32) -> Begin {
        let mut inner = self.lock();
        if inner.finished.contains(&(call.clone(), dispatch_no)) {
            return Begin::InHand;
        }
        match inner.calls.entry(call.clone()) {
            hash_map::Entry::Occupied(entry) => match &entry.get().sent {
                Some(sent) if sent.dispatch_no < dispatch_no => Begin::Later,
                _ => Begin::InHand,
            },
            hash_map::Entry::Vacant(entry) => {
                let cancel = CancellationToken::new();
                let cancelled = cancel.clone();
                entry.insert(Entry { bucket, fence: 0, since: Instant::now(), cancel, sent: None, tries: 0 });
                Begin::Started(cancelled)
            }
        }
    }

    /// The attempt that was granted.
    pub(crate) fn granted(&self, call: &CallUid, fence: u32) {
        if let Some(entry) = self.lock().calls.get_mut(call) {
            entry.fence = fence;
        }
    }

    /// Gives a call up that has no result: it was never this worker's, or was released.
    pub(crate) fn drop_call(&self, call: &CallUid) {
        let mut inner = self.lock();
        inner.calls.remove(call);
        let empty = inner.calls.is_empty();
        drop(inner);
        if empty {
            self.changed.notify_waiters();
        }
    }

    /// Keeps the result of a claimed call that is about to be sent.
    pub(crate) fn keep(&self, sent: &Arc<Sent>) {
        let mut inner = self.lock();
        if let Some(entry) = inner.calls.get_mut(&sent.message.call)
            && entry.sent.is_none()
        {
            entry.sent = Some(sent.clone());
            inner.bytes += sent.bytes();
        }
        // Under the lock, so that a confirmation at the same moment cannot leave the gate closed for good.
        if inner.bytes > self.bytes_max && self.gate.set(HELD_FULL, true) {
            tracing::warn!(limit_bytes = self.bytes_max, "too many results are unconfirmed: nothing more is pulled");
        }
    }

    /// The bus stored the result. That of an unclaimed call is the bus's from now on: should the bus lose it, the call
    /// is read again. Any other one is sent again if nobody confirms it.
    pub(crate) fn stored(&self, sent: &Sent) {
        let call = &sent.message.call;
        let mut inner = self.lock();
        if sent.message.fence == 0 {
            inner.calls.remove(call);
            inner.finish(call, sent.dispatch_no);
            let empty = inner.calls.is_empty();
            drop(inner);
            if empty {
                self.changed.notify_waiters();
            }
            return;
        }
        let Some(entry) = inner.calls.get_mut(call) else { return };
        let wait = self.resend_after.saturating_mul(1 << entry.tries.min(4)).min(RESEND_MAX.max(self.resend_after));
        entry.tries = entry.tries.saturating_add(1);
        let due = Instant::now() + wait;
        let earliest = inner.due.peek().is_none_or(|Reverse((first, _))| due < *first);
        inner.due.push(Reverse((due, call.clone())));
        drop(inner);
        if earliest {
            self.changed.notify_waiters();
        }
    }

    /// The outcome is settled: the result need not be kept. A call without a result is still under way and stays.
    pub(crate) fn confirm(&self, call: &CallUid) -> bool {
        let mut inner = self.lock();
        if inner.calls.get(call).is_none_or(|entry| entry.sent.is_none()) {
            return false;
        }
        if let Some(sent) = inner.calls.remove(call).and_then(|entry| entry.sent) {
            inner.bytes -= sent.bytes();
        }
        if inner.bytes <= self.bytes_max {
            self.gate.set(HELD_FULL, false);
        }
        let empty = inner.calls.is_empty();
        drop(inner);
        if empty {
            self.changed.notify_waiters();
        }
        true
    }

    /// Asks the handler of this call to stop.
    pub(crate) fn cancel(&self, call: &CallUid) {
        let token = self.lock().calls.get(call).map(|entry| entry.cancel.clone());
        if let Some(token) = token {
            token.cancel();
        }
    }

    /// What is held for at least so long, for the renewal.
    pub(crate) fn older_than(&self, age: Duration) -> Vec<HeldItem> {
        let now = Instant::now();
        let inner = self.lock();
        let old = inner.calls.iter().filter(|(_, entry)| now.duration_since(entry.since) >= age);
        old.map(|(call, entry)| HeldItem { bucket: entry.bucket, call: call.clone(), fence: entry.fence }).collect()
    }

    /// Results that were not confirmed in time, and how long until the next one may be due.
    pub(crate) fn take_due(&self) -> (Vec<(Arc<Sent>, u32)>, Option<Instant>) {
        let now = Instant::now();
        let mut inner = self.lock();
        let mut due = Vec::new();
        while let Some(Reverse((at, call))) = inner.due.peek() {
            if !inner.calls.contains_key(call) {
                inner.due.pop();
                continue;
            }
            if *at > now {
                return (due, Some(*at));
            }
            let Some(Reverse((_, call))) = inner.due.pop() else { break };
            if let Some(entry) = inner.calls.get(&call)
                && let Some(sent) = &entry.sent
            {
                due.push((sent.clone(), entry.tries + 1));
            }
        }
        (due, None)
    }

    /// How many calls have no result yet, or one that the bus never stored.
    pub(crate) fn unfinished(&self) -> usize {
        self.lock().calls.values().filter(|entry| entry.tries == 0).count()
    }

    /// Bytes of unconfirmed results.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// How many calls are held.
    pub(crate) fn len(&self) -> usize {
        self.lock().calls.len()
    }

    /// Waits until nothing is held.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn emptied(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.len() == 0 {
                return;
            }
            changed.await;
        }
    }
}
