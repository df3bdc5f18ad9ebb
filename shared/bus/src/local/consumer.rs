//! A durable consumer of a local stream: which messages wait for it, and when what it holds comes again.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::stream::{Entry, NOBODY, Place};
use crate::{ConsumerSpec, subject, time::after};

/// Stored messages by sequence.
pub(super) type Entries = BTreeMap<u64, Entry>;

/// Queues may hold this many outdated places before they are swept.
const SLACK: usize = 1024;

pub(super) struct Consumer {
    /// Unique in the process: a consumer created again is another one.
    pub(super) id: u64,
    pub(super) spec: ConsumerSpec,
    /// Rings when there is something to take.
    pub(super) bell: Arc<Notify>,
    /// Never delivered.
    fresh: VecDeque<u64>,
    /// To be delivered again; goes first.
    again: VecDeque<u64>,
    /// Delivered and not answered.
    outstanding: usize,
    /// Ends of `ack_wait` in order; an entry counts only while the message still shows the same instant.
    deadlines: VecDeque<(Instant, u64)>,
    /// As `deadlines`, for messages that wait before they may be delivered.
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
}

impl Consumer {
    pub(super) fn new(id: u64, spec: ConsumerSpec) -> Self {
        Self {
            id,
            spec,
            bell: Arc::new(Notify::new()),
            fresh: VecDeque::new(),
            again: VecDeque::new(),
            outstanding: 0,
            deadlines: VecDeque::new(),
            delayed: BinaryHeap::new(),
        }
    }

    /// Whether it takes messages of this subject; no filter takes all.
    pub(super) fn wants(&self, subject: &str) -> bool {
        self.spec.filter_subjects.is_empty()
            || self.spec.filter_subjects.iter().any(|filter| subject::matches(filter, subject))
    }

    /// Puts a stored message in line. Returns when the timer has to look, if it is delayed.
    pub(super) fn enqueue(&mut self, sequence: u64, entry: &mut Entry, not_before: Option<Instant>) -> Option<Instant> {
        entry.owner = self.id;
        match not_before {
            Some(at) => {
                entry.place = Place::Delayed(at);
                self.delayed.push(Reverse((at, sequence)));
                Some(at)
            }
            None => {
                entry.place = Place::Waiting;
                self.fresh.push_back(sequence);
                None
            }
        }
    }

    /// Whether a pull would get something, as far as can be seen without a look at the messages.
    pub(super) fn has_work(&self) -> bool {
        !self.again.is_empty() || (!self.fresh.is_empty() && self.outstanding < self.window())
    }

    /// The next message, now held until the returned instant.
    pub(super) fn take(&mut self, entries: &mut Entries, now: Instant) -> Option<(u64, Instant)> {
        loop {
            let sequence = match self.again.pop_front() {
                Some(sequence) => sequence,
                None if self.outstanding < self.window() => self.fresh.pop_front()?,
                None => return None,
            };
            let Some(entry) = entries.get_mut(&sequence) else { continue };
            if entry.owner != self.id || entry.place != Place::Waiting {
                continue;
            }
            if entry.deliveries == 0 {
                self.outstanding += 1;
            }
            entry.deliveries += 1;
            return Some((sequence, self.hold(sequence, entry, now)));
        }
    }

    /// Starts `ack_wait` for a message.
    fn hold(&mut self, sequence: u64, entry: &mut Entry, now: Instant) -> Instant {
        let until = after(now, self.spec.ack_wait);
        entry.place = Place::Held(until);
        self.deadlines.push_back((until, sequence));
        until
    }

    /// Restarts `ack_wait`. Returns the new end when the message was held.
    pub(super) fn renew(&mut self, sequence: u64, entries: &mut Entries, now: Instant) -> Option<Instant> {
        let entry = entries.get_mut(&sequence).filter(|entry| matches!(entry.place, Place::Held(_)))?;
        let until = self.hold(sequence, entry, now);
        self.sweep(entries);
        Some(until)
    }

    /// Gives a held message back. Returns when the timer has to look, if it is delayed, and whether its deliveries are
    /// used up.
    pub(super) fn give_back(
        &mut self,
        sequence: u64,
        entries: &mut Entries,
        delay: Duration,
        now: Instant,
    ) -> (Option<Instant>, bool) {
        let Some(entry) = entries.get_mut(&sequence).filter(|entry| matches!(entry.place, Place::Held(_))) else {
            return (None, false);
        };
        if delay.is_zero() {
            return (None, self.requeue(sequence, entry));
        }
        let at = after(now, delay);
        entry.place = Place::Delayed(at);
        self.delayed.push(Reverse((at, sequence)));
        (Some(at), false)
    }

    /// Puts a message in line again, or retires it when its deliveries are used up (`true`).
    fn requeue(&mut self, sequence: u64, entry: &mut Entry) -> bool {
        let max = u64::from(self.spec.max_deliver);
        if max > 0 && entry.deliveries >= max {
            entry.place = Place::UsedUp;
            self.outstanding = self.outstanding.saturating_sub(1);
            return true;
        }
        entry.place = Place::Waiting;
        if entry.deliveries == 0 {
            self.fresh.push_back(sequence)
        } else {
            self.again.push_back(sequence)
        }
        false
    }

    /// A waiting message is not for this consumer any more.
    pub(super) fn release(&mut self, entry: &mut Entry) {
        if entry.deliveries > 0 {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        entry.owner = NOBODY;
        entry.deliveries = 0;
    }

    /// A message of this consumer leaves the stream.
    pub(super) fn forget(&mut self, entry: &Entry, entries: &Entries) {
        if entry.deliveries > 0 && entry.place != Place::UsedUp {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
        self.sweep(entries);
    }

    /// Puts in line what is due. Returns the sequences whose deliveries are used up.
    pub(super) fn serve_due(&mut self, entries: &mut Entries, now: Instant) -> Vec<u64> {
        let mut used_up = Vec::new();
        while let Some(&(at, sequence)) = self.deadlines.front() {
            let live = entries.get_mut(&sequence).filter(|entry| entry.is(self.id, Place::Held(at)));
            if live.is_some() && at > now {
                break;
            }
            self.deadlines.pop_front();
            if let Some(entry) = live
                && self.requeue(sequence, entry)
            {
                used_up.push(sequence);
            }
        }
        while let Some(&Reverse((at, sequence))) = self.delayed.peek() {
            let live = entries.get_mut(&sequence).filter(|entry| entry.is(self.id, Place::Delayed(at)));
            if live.is_some() && at > now {
                break;
            }
            self.delayed.pop();
            if let Some(entry) = live
                && self.requeue(sequence, entry)
            {
                used_up.push(sequence);
            }
        }
        used_up
    }

    /// When something is due next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let deadline = self.deadlines.front().map(|(at, _)| *at);
        let delayed = self.delayed.peek().map(|Reverse((at, _))| *at);
        [deadline, delayed].into_iter().flatten().min()
    }

    /// Most messages held at once.
    fn window(&self) -> usize {
        match self.spec.max_ack_pending {
            0 => usize::MAX,
            n => n as usize,
        }
    }

    /// Drops outdated places once they are the majority, so that queues stay as long as what they are about.
    fn sweep(&mut self, entries: &Entries) {
        let id = self.id;
        while let Some((at, sequence)) = self.deadlines.front() {
            if entries.get(sequence).is_some_and(|entry| entry.is(id, Place::Held(*at))) {
                break;
            }
            self.deadlines.pop_front();
        }
        if self.deadlines.len() > 2 * self.outstanding + SLACK {
            self.deadlines
                .retain(|(at, sequence)| entries.get(sequence).is_some_and(|entry| entry.is(id, Place::Held(*at))));
        }
        if self.fresh.len() > 2 * entries.len() + SLACK {
            self.fresh.retain(|sequence| entries.get(sequence).is_some_and(|entry| entry.is(id, Place::Waiting)));
        }
    }
}
