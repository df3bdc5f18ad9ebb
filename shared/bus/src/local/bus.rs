//! The local bus itself: which stream or subscription a message goes to.

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::wire::Headers;
use serde_json::json;
use tokio::{sync::broadcast, task::JoinSet, time::Instant};

use super::{
    faults::{Fault, Faults},
    plain::Plain,
    pull::LocalPull,
    requests::Requests,
    stream::{End, Stream},
    timer::{Task, Timer},
};
use crate::{
    Bus, BusError, BusEvent, BusLimits, ConsumerSpec, Message, Published, Pull, Received, StreamSpec, StreamState,
    Subscription, sendable, subject, time::after,
};

/// Largest message unless told otherwise: what a NATS server takes by default.
const MAX_MESSAGE_BYTES: usize = 1024 * 1024;
/// Events a slow listener may be behind.
const EVENTS: usize = 256;

/// The bus inside one process.
pub struct LocalBus {
    limits: BusLimits,
    closed: AtomicBool,
    streams: RwLock<Vec<Route>>,
    plain: Arc<Plain>,
    requests: Arc<Requests>,
    faults: Faults,
    events: broadcast::Sender<BusEvent>,
    timer: Arc<Timer>,
    /// Runs the timer; aborted when the bus is dropped.
    tasks: Mutex<JoinSet<()>>,
    next_consumer: AtomicU64,
    last_created_ms: AtomicI64,
}

struct Route {
    subjects: Vec<String>,
    stream: Arc<Stream>,
}

impl LocalBus {
    /// An empty bus with the message limit of a NATS server, 1 MiB.
    pub fn new() -> Arc<Self> {
        Self::with_limits(BusLimits { max_message_bytes: MAX_MESSAGE_BYTES })
    }

    /// An empty bus with other limits.
    pub fn with_limits(limits: BusLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            closed: AtomicBool::new(false),
            streams: RwLock::default(),
            plain: Arc::default(),
            requests: Arc::default(),
            faults: Faults::default(),
            events: broadcast::Sender::new(EVENTS),
            timer: Arc::default(),
            tasks: Mutex::default(),
            next_consumer: AtomicU64::new(1),
            last_created_ms: AtomicI64::new(0),
        })
    }

    /// Makes messages go wrong on purpose, for tests.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Forgets all streams and consumers as a server does that lost its disk; listeners see the connection go and come.
    pub fn wipe(&self) {
        let old = std::mem::take(&mut *self.streams.write().unwrap_or_else(PoisonError::into_inner));
        for route in old {
            route.stream.end(End::Deleted);
        }
        for event in [BusEvent::Disconnected, BusEvent::Connected] {
            // Nobody listens: fine.
            let _ = self.events.send(event);
        }
    }

    fn open(&self) -> Result<(), BusError> {
        if self.closed.load(Ordering::Acquire) { Err(BusError::Closed) } else { Ok(()) }
    }

    fn stream_of(&self, subject: &str) -> Option<Arc<Stream>> {
        let routes = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        let takes = |route: &&Route| route.subjects.iter().any(|pattern| subject::matches(pattern, subject));
        routes.iter().find(takes).map(|route| route.stream.clone())
    }

    fn stream_named(&self, name: &str) -> Result<Arc<Stream>, BusError> {
        let routes = self.streams.read().unwrap_or_else(PoisonError::into_inner);
        match routes.iter().find(|route| route.stream.name() == name) {
            Some(route) => Ok(route.stream.clone()),
            None => Err(BusError::Missing(format!("stream {name}"))),
        }
    }

    fn publish_one(&self, message: Message) -> Result<Published, BusError> {
        self.open()?;
        sendable::check(&message.subject, &message.headers, &message.body, self.limits.max_message_bytes)?;
        let Some(stream) = self.stream_of(&message.subject) else {
            return Err(BusError::Missing(format!("a stream for {}", message.subject)));
        };
        self.plain.deliver(&message, None);
        match self.faults.next(true, &message.subject) {
            None => stream.store(message, Duration::ZERO, false),
            Some(Fault::Drop) => stream.store(message, Duration::ZERO, true),
            Some(Fault::Delay(delay)) => stream.store(message, delay, false),
            Some(Fault::LoseConfirmation) => {
                stream.store(message, Duration::ZERO, false)?;
                Err(BusError::Maybe { operation: "publish", reason: "no confirmation".to_owned() })
            }
            Some(Fault::Duplicate) => {
                let published = stream.store(message.clone(), Duration::ZERO, false)?;
                let mut copy = Headers::new();
                for (name, value) in message.headers.iter() {
                    if !name.eq_ignore_ascii_case(ditto_contracts::wire::names::MSG_ID) {
                        copy.push_received(name, value);
                    }
                }
                // The second copy slips past the window; its headers lack the id, which only the window reads.
                stream.store(Message { headers: copy, ..message }, Duration::ZERO, false)?;
                Ok(published)
            }
        }
    }

    /// Sends a plain message. Says how many take it; a lost or late one counts as taken.
    fn send(&self, message: Message, reply: Option<&str>) -> Result<usize, BusError> {
        self.open()?;
        sendable::check(&message.subject, &message.headers, &message.body, self.limits.max_message_bytes)?;
        let stored = self.store_plain(&message, reply);
        let copies = match self.faults.next(false, &message.subject) {
            None => 1,
            Some(Fault::Drop | Fault::LoseConfirmation) => return Ok(1),
            Some(Fault::Duplicate) => 2,
            Some(Fault::Delay(delay)) => {
                self.start_timer();
                let received = Box::new(Received { message, reply: reply.map(str::to_owned) });
                self.timer.at(after(Instant::now(), delay), Task::Plain(Arc::downgrade(&self.plain), received));
                return Ok(1);
            }
        };
        Ok((0..copies).map(|_| self.plain.deliver(&message, reply)).sum::<usize>() + usize::from(stored))
    }

    /// A stream stores whatever is sent to its subjects, and its confirmation answers a request. `false`: no stream.
    fn store_plain(&self, message: &Message, reply: Option<&str>) -> bool {
        let Some(stream) = self.stream_of(&message.subject) else { return false };
        let confirmation = match stream.store(message.clone(), Duration::ZERO, false) {
            Ok(stored) => json!({ "stream": stream.name(), "seq": stored.sequence, "duplicate": stored.duplicate }),
            Err(error) => json!({ "error": { "description": error.to_string() } }),
        };
        if let Some(reply) = reply {
            let body = confirmation.to_string().into();
            self.requests.answer(Message { subject: reply.to_owned(), headers: Headers::new(), body });
        }
        true
    }

    fn start_timer(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.is_empty() {
            tasks.spawn(self.timer.clone().run());
        }
    }

    /// Now, but never the same twice, so that a stream created again is seen as another one.
    fn created_ms(&self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let later = |last: i64| Some(now.max(last + 1));
        match self.last_created_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, later) {
            Ok(last) | Err(last) => now.max(last + 1),
        }
    }
}

#[async_trait]
impl Bus for LocalBus {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<Published, BusError>> {
        messages.into_iter().map(|message| self.publish_one(message)).collect()
    }

    async fn pull(
        &self,
        stream: &'static str,
        consumer: &str,
        max: usize,
        expires: Duration,
    ) -> Result<Box<dyn Pull>, BusError> {
        self.open()?;
        let stream = self.stream_named(stream)?;
        let (consumer, bell) = stream.consumer(consumer)?;
        Ok(Box::new(LocalPull::new(stream, consumer, bell, max, expires)))
    }

    async fn notify(&self, message: Message) -> Result<(), BusError> {
        self.send(message, None).map(|_| ())
    }

    async fn respond(&self, reply: &str, headers: Headers, body: Bytes) -> Result<(), BusError> {
        self.open()?;
        let message = Message { subject: reply.to_owned(), headers, body };
        sendable::check(&message.subject, &message.headers, &message.body, self.limits.max_message_bytes)?;
        match self.requests.answer(message) {
            Some(elsewhere) => self.send(elsewhere, None).map(|_| ()),
            None => Ok(()),
        }
    }

    async fn request(&self, message: Message, timeout: Duration) -> Result<Message, BusError> {
        let (open, answer) = self.requests.open();
        if self.send(message, Some(&open.reply()))? == 0 {
            return Err(BusError::NoResponders);
        }
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => {
                Err(BusError::Maybe { operation: "request", reason: format!("no answer within {timeout:?}") })
            }
        }
    }

    async fn subscribe(
        &self,
        subject: &str,
        group: Option<&str>,
        capacity: usize,
    ) -> Result<Box<dyn Subscription>, BusError> {
        self.open()?;
        if !subject::is_pattern(subject) {
            return Err(BusError::Denied(format!("{subject:?} is not a subject")));
        }
        match self.plain.subscribe(subject, group, capacity) {
            Some(subscription) => Ok(Box::new(subscription)),
            None => Err(BusError::Closed),
        }
    }

    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BusError> {
        self.open()?;
        self.start_timer();
        let conflict = |difference| Err(BusError::Conflict { name: spec.name.to_owned(), difference });
        if let Some(bad) = spec.subjects.iter().find(|pattern| !subject::is_pattern(pattern)) {
            return conflict(format!("{bad:?} is not a subject"));
        }
        let mut routes = self.streams.write().unwrap_or_else(PoisonError::into_inner);
        let overlaps = |route: &&Route| {
            route.stream.name() != spec.name
                && route.subjects.iter().any(|a| spec.subjects.iter().any(|b| subject::overlap(a, b)))
        };
        if let Some(other) = routes.iter().find(overlaps) {
            return conflict(format!("its subjects overlap with those of {}", other.stream.name()));
        }
        if let Some(route) = routes.iter_mut().find(|route| route.stream.name() == spec.name) {
            route.subjects.clone_from(&spec.subjects);
            route.stream.update(spec);
            return Ok(route.stream.state(false));
        }
        let stream = Stream::new(spec, self.created_ms(), self.timer.clone(), self.events.clone());
        routes.push(Route { subjects: spec.subjects.clone(), stream: stream.clone() });
        Ok(stream.state(true))
    }

    async fn stream_state(&self, stream: &'static str) -> Result<StreamState, BusError> {
        self.open()?;
        Ok(self.stream_named(stream)?.state(false))
    }

    async fn stream_subjects(&self, stream: &'static str, filter: &str) -> Result<Vec<(String, u64)>, BusError> {
        self.open()?;
        Ok(self.stream_named(stream)?.subjects(filter))
    }

    async fn ensure_consumer(&self, spec: &ConsumerSpec) -> Result<(), BusError> {
        self.open()?;
        let id = self.next_consumer.fetch_add(1, Ordering::Relaxed);
        self.stream_named(spec.stream)?.ensure_consumer(spec, id)
    }

    async fn delete_consumer(&self, stream: &'static str, name: &str) -> Result<(), BusError> {
        self.open()?;
        match self.stream_named(stream) {
            Ok(stream) => stream.delete_consumer(name),
            Err(BusError::Missing(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn events(&self) -> broadcast::Receiver<BusEvent> {
        self.events.subscribe()
    }

    fn limits(&self) -> BusLimits {
        self.limits
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.plain.close();
        let streams = std::mem::take(&mut *self.streams.write().unwrap_or_else(PoisonError::into_inner));
        for route in streams {
            route.stream.end(End::Closed);
        }
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}
