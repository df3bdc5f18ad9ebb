//! A work-queue stream in memory.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use ditto_contracts::wire::names;
use tokio::{
    sync::{Notify, broadcast},
    time::Instant,
};

use super::{
    consumer::{Consumer, Entries},
    ids::Ids,
    timer::{Task, Timer},
};
use crate::{
    BusError, BusEvent, ConsumerSpec, Message, Published, StreamSpec, StreamState, sendable, subject, time::after,
};

/// Subjects whose consumer is remembered.
const KNOWN_SUBJECTS: usize = 1024;
/// What a file stream adds to each message.
const RECORD_BYTES: usize = 30;
/// No consumer: ids start at 1.
pub(super) const NOBODY: u64 = 0;

/// Where a stored message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In line, or without a consumer.
    Waiting,
    /// With a puller until then.
    Held(Instant),
    /// Not before then.
    Delayed(Instant),
    /// Its deliveries are used up; it stays until its age ends.
    UsedUp,
}

/// A stored message.
pub(super) struct Entry {
    pub(super) message: Message,
    bytes: u64,
    stored: Instant,
    not_before: Option<Instant>,
    pub(super) owner: u64,
    pub(super) deliveries: u64,
    pub(super) place: Place,
}

impl Entry {
    pub(super) fn is(&self, owner: u64, place: Place) -> bool {
        self.owner == owner && self.place == place
    }
}

/// A message on its way to a puller.
pub(super) struct Taken {
    pub(super) message: Message,
    pub(super) sequence: u64,
    pub(super) deliveries: u64,
}

/// One stream.
pub(super) struct Stream {
    me: Weak<Stream>,
    name: &'static str,
    created_ms: i64,
    timer: Arc<Timer>,
    events: broadcast::Sender<BusEvent>,
    state: Mutex<State>,
}

/// Whether the stream can still be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It was deleted.
    Deleted,
    /// The bus was closed.
    Closed,
}

struct State {
    spec: StreamSpec,
    ended: Option<End>,
    last_sequence: u64,
    bytes: u64,
    entries: Entries,
    ids: Ids,
    consumers: Vec<Consumer>,
    owner_of: HashMap<String, u64>,
    /// When the timer looks next.
    armed: Option<Instant>,
}

impl Stream {
    pub(super) fn new(
        spec: &StreamSpec,
        created_ms: i64,
        timer: Arc<Timer>,
        events: broadcast::Sender<BusEvent>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            name: spec.name,
            created_ms,
            timer,
            events,
            state: Mutex::new(State {
                spec: spec.clone(),
                ended: None,
                last_sequence: 0,
                bytes: 0,
                entries: BTreeMap::new(),
                ids: Ids::default(),
                consumers: Vec::new(),
                owner_of: HashMap::new(),
                armed: None,
            }),
        })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Takes over settings that may change.
    pub(super) fn update(&self, spec: &StreamSpec) {
        let mut state = self.lock();
        state.spec = spec.clone();
        let oldest = state.oldest_ends();
        self.arm(&mut state, oldest);
    }

    pub(super) fn state(&self, created_now: bool) -> StreamState {
        let state = self.lock();
        StreamState {
            created_ms: self.created_ms,
            last_sequence: state.last_sequence,
            messages: state.entries.len() as u64,
            bytes: state.bytes,
            created_now,
        }
    }

    /// Subjects with messages that match the filter.
    pub(super) fn subjects(&self, filter: &str) -> Vec<(String, u64)> {
        let mut counts: HashMap<String, u64> = HashMap::new();
        for entry in self.lock().entries.values() {
            if subject::matches(filter, &entry.message.subject) {
                *counts.entry(entry.message.subject.clone()).or_default() += 1;
            }
        }
        counts.into_iter().collect()
    }

    /// Stores a message.
    pub(super) fn store(&self, message: Message, delay: Duration, lost: bool) -> Result<Published, BusError> {
        let now = Instant::now();
        let mut state = self.lock();
        state.usable(self.name)?;
        let id = message.headers.get(names::MSG_ID).map(|id| state.ids.digest(id));
        let window = state.spec.duplicate_window;
        if let Some(sequence) = id.and_then(|id| state.ids.known(id, window, now)) {
            return Ok(Published { sequence, duplicate: true });
        }
        let size = sendable::size(&message.headers, &message.body);
        let max = state.spec.max_message_bytes as usize;
        if max > 0 && size > max {
            return Err(BusError::TooLarge { size, max });
        }
        let bytes = (size + message.subject.len() + RECORD_BYTES) as u64;
        if state.spec.max_bytes > 0 && state.bytes + bytes > state.spec.max_bytes {
            return Err(BusError::Full);
        }
        state.last_sequence += 1;
        let sequence = state.last_sequence;
        if let Some(id) = id {
            state.ids.remember(id, sequence, now);
        }
        if lost {
            return Ok(Published { sequence, duplicate: false });
        }
        state.bytes += bytes;
        let not_before = (!delay.is_zero()).then(|| after(now, delay));
        let mut entry =
            Entry { message, bytes, stored: now, not_before, owner: NOBODY, deliveries: 0, place: Place::Waiting };
        let mut bell = None;
        let mut due = None;
        if let Some(consumer) = state.consumer_for(&entry.message.subject) {
            due = consumer.enqueue(sequence, &mut entry, not_before);
            bell = Some(consumer.bell.clone());
        }
        state.entries.insert(sequence, entry);
        let ends = (!state.spec.max_age.is_zero()).then(|| after(now, state.spec.max_age));
        self.arm(&mut state, [due, ends].into_iter().flatten().min());
        drop(state);
        if let Some(bell) = bell {
            bell.notify_one();
        }
        Ok(Published { sequence, duplicate: false })
    }

    /// The consumer of that name and its bell.
    pub(super) fn consumer(&self, name: &str) -> Result<(u64, Arc<Notify>), BusError> {
        let state = self.lock();
        state.usable(self.name)?;
        match state.consumers.iter().find(|consumer| consumer.spec.name == name) {
            Some(consumer) => Ok((consumer.id, consumer.bell.clone())),
            None => Err(missing_consumer(self.name, name)),
        }
    }

    /// Hands out the next message of a consumer.
    pub(super) fn take(&self, consumer: u64, now: Instant) -> Result<Option<Taken>, BusError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.usable(self.name)?;
        let Some(consumer) = state.consumers.iter_mut().find(|known| known.id == consumer) else {
            return Err(missing_consumer(self.name, "the consumer"));
        };
        let Some((sequence, until)) = consumer.take(&mut state.entries, now) else { return Ok(None) };
        let more = consumer.has_work().then(|| consumer.bell.clone());
        let taken = state.entries.get(&sequence).map(|entry| Taken {
            message: entry.message.clone(),
            sequence,
            deliveries: entry.deliveries,
        });
        self.arm(state, Some(until));
        drop(guard);
        if let Some(bell) = more {
            bell.notify_one();
        }
        Ok(taken)
    }

    /// Acknowledged or terminated: the message leaves a work queue.
    pub(super) fn remove(&self, consumer: u64, sequence: u64) -> Result<(), BusError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.ended == Some(End::Closed) {
            return Err(BusError::Closed);
        }
        if state.entries.get(&sequence).is_none_or(|entry| entry.owner != consumer) {
            return Ok(()); // outdated: the consumer or the message is gone
        }
        let bell = state.discard(sequence);
        drop(guard);
        if let Some(bell) = bell {
            bell.notify_one();
        }
        Ok(())
    }

    /// To be delivered again after the delay.
    pub(super) fn again(&self, consumer: u64, sequence: u64, delay: Duration, now: Instant) -> Result<(), BusError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.ended == Some(End::Closed) {
            return Err(BusError::Closed);
        }
        let Some(consumer) = state.consumers.iter_mut().find(|known| known.id == consumer) else { return Ok(()) };
        if state.entries.get(&sequence).is_none_or(|entry| entry.owner != consumer.id) {
            return Ok(());
        }
        let (due, used_up) = consumer.give_back(sequence, &mut state.entries, delay, now);
        let bell = consumer.bell.clone();
        let event = used_up.then(|| self.used_up(consumer, sequence));
        self.arm(state, due);
        drop(guard);
        bell.notify_one();
        self.tell(event);
        Ok(())
    }

    /// Restarts `ack_wait`.
    pub(super) fn renew(&self, consumer: u64, sequence: u64, now: Instant) -> Result<(), BusError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.ended == Some(End::Closed) {
            return Err(BusError::Closed);
        }
        let Some(consumer) = state.consumers.iter_mut().find(|known| known.id == consumer) else { return Ok(()) };
        if state.entries.get(&sequence).is_none_or(|entry| entry.owner != consumer.id) {
            return Ok(());
        }
        let until = consumer.renew(sequence, &mut state.entries, now);
        self.arm(state, until);
        Ok(())
    }

    /// Redelivers, releases and expires what is due; called by the timer.
    pub(super) fn serve_due(&self, now: Instant) {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.armed.is_some_and(|at| at > now) {
            return; // an earlier appointment that was replaced
        }
        state.armed = None;
        let mut events = Vec::new();
        let mut bells = Vec::new();
        for consumer in &mut state.consumers {
            for sequence in consumer.serve_due(&mut state.entries, now) {
                events.push(self.used_up(consumer, sequence));
            }
            if consumer.has_work() {
                bells.push(consumer.bell.clone());
            }
        }
        while let Some(end) = state.oldest_ends()
            && end <= now
            && let Some(sequence) = state.entries.keys().next().copied()
        {
            bells.extend(state.discard(sequence));
        }
        let next = state.consumers.iter().filter_map(Consumer::next_due).chain(state.oldest_ends()).min();
        self.arm(state, next);
        drop(guard);
        for bell in bells {
            bell.notify_one();
        }
        self.tell(events);
    }

    /// Creates or updates a consumer.
    pub(super) fn ensure_consumer(&self, spec: &ConsumerSpec, id: u64) -> Result<(), BusError> {
        let mut guard = self.lock();
        let state = &mut *guard;
        state.usable(self.name)?;
        let conflict = |difference: String| Err(BusError::Conflict { name: spec.name.clone(), difference });
        let filters = filters_of(spec);
        for (n, filter) in filters.iter().enumerate() {
            if !subject::is_pattern(filter) {
                return conflict(format!("{filter:?} is not a subject filter"));
            }
            if filters.iter().skip(n + 1).any(|other| subject::overlap(filter, other)) {
                return conflict(format!("its filters overlap at {filter}"));
            }
        }
        for other in state.consumers.iter().filter(|other| other.spec.name != spec.name) {
            let taken = filters_of(&other.spec);
            if filters.iter().any(|filter| taken.iter().any(|theirs| subject::overlap(filter, theirs))) {
                return conflict(format!("its filter overlaps with that of {}", other.spec.name));
            }
        }
        let at = match state.consumers.iter().position(|known| known.spec.name == spec.name) {
            Some(at) => at,
            None => {
                state.consumers.push(Consumer::new(id, spec.clone()));
                state.consumers.len() - 1
            }
        };
        state.owner_of.clear();
        let Some(consumer) = state.consumers.get_mut(at) else { return Ok(()) };
        consumer.spec = spec.clone();
        let mut due = None;
        for (sequence, entry) in &mut state.entries {
            let wanted = consumer.wants(&entry.message.subject);
            if entry.owner == consumer.id && !wanted && entry.is(consumer.id, Place::Waiting) {
                consumer.release(entry);
            } else if entry.owner == NOBODY && wanted {
                let not_before = entry.not_before;
                due = [due, consumer.enqueue(*sequence, entry, not_before)].into_iter().flatten().min();
            }
        }
        let bell = consumer.bell.clone();
        self.arm(state, due);
        drop(guard);
        bell.notify_one();
        Ok(())
    }

    /// Removes a consumer; its messages stay, as if never delivered.
    pub(super) fn delete_consumer(&self, name: &str) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(at) = state.consumers.iter().position(|known| known.spec.name == name) else { return };
        let consumer = state.consumers.remove(at);
        state.owner_of.clear();
        for entry in state.entries.values_mut().filter(|entry| entry.owner == consumer.id) {
            entry.owner = NOBODY;
            entry.deliveries = 0;
            entry.place = Place::Waiting;
        }
        drop(guard);
        consumer.bell.notify_waiters();
    }

    /// Ends the stream; waiting pulls end with an error.
    pub(super) fn end(&self, end: End) {
        let mut state = self.lock();
        state.ended = Some(end);
        state.entries.clear();
        state.bytes = 0;
        let consumers = std::mem::take(&mut state.consumers);
        drop(state);
        for consumer in consumers {
            consumer.bell.notify_waiters();
        }
    }

    fn used_up(&self, consumer: &Consumer, sequence: u64) -> BusEvent {
        BusEvent::MaxDeliveries { stream: self.name.to_owned(), consumer: consumer.spec.name.clone(), sequence }
    }

    fn tell(&self, events: impl IntoIterator<Item = BusEvent>) {
        for event in events {
            // Nobody listens: fine.
            let _ = self.events.send(event);
        }
    }

    fn arm(&self, state: &mut State, due: Option<Instant>) {
        let Some(at) = due else { return };
        if state.armed.is_none_or(|armed| at < armed) {
            state.armed = Some(at);
            self.timer.at(at, Task::Stream(self.me.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn usable(&self, name: &str) -> Result<(), BusError> {
        match self.ended {
            None => Ok(()),
            Some(End::Deleted) => Err(BusError::Missing(format!("stream {name}"))),
            Some(End::Closed) => Err(BusError::Closed),
        }
    }

    /// The one consumer that takes this subject.
    fn consumer_for(&mut self, subject: &str) -> Option<&mut Consumer> {
        let id = match self.owner_of.get(subject) {
            Some(id) => *id,
            None => {
                let id =
                    self.consumers.iter().find(|consumer| consumer.wants(subject)).map_or(NOBODY, |known| known.id);
                if self.owner_of.len() >= KNOWN_SUBJECTS {
                    self.owner_of.clear();
                }
                self.owner_of.insert(subject.to_owned(), id);
                id
            }
        };
        self.consumers.iter_mut().find(|consumer| consumer.id == id)
    }

    /// Removes a message. Returns the bell to ring if its consumer has room again.
    fn discard(&mut self, sequence: u64) -> Option<Arc<Notify>> {
        let entry = self.entries.remove(&sequence)?;
        self.bytes = self.bytes.saturating_sub(entry.bytes);
        let consumer = self.consumers.iter_mut().find(|known| known.id == entry.owner)?;
        consumer.forget(&entry, &self.entries);
        consumer.has_work().then(|| consumer.bell.clone())
    }

    /// When the oldest message ends by age.
    fn oldest_ends(&self) -> Option<Instant> {
        if self.spec.max_age.is_zero() {
            return None;
        }
        self.entries.values().next().map(|entry| after(entry.stored, self.spec.max_age))
    }
}

fn filters_of(spec: &ConsumerSpec) -> Vec<&str> {
    if spec.filter_subjects.is_empty() { vec![">"] } else { spec.filter_subjects.iter().map(String::as_str).collect() }
}

fn missing_consumer(stream: &str, name: &str) -> BusError {
    BusError::Missing(format!("consumer {name} of stream {stream}"))
}
