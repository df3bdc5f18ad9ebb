//! The bus on a NATS connection.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::wire::Headers;
use tokio::{
    sync::{broadcast, mpsc},
    task::JoinSet,
    time::Instant,
};

use super::{
    ConnectError, NatsConfig, api, connect,
    events::{MAX_DELIVERIES, Signals, pass_advisories},
    link::Link,
    plain::{self, NatsSubscription},
    publish,
    pull::{NatsPull, consumer_key, look_after},
    wire,
};
use crate::{
    Bus, BusError, BusEvent, BusLimits, ConsumerSpec, Message, Published, Pull, StreamSpec, StreamState, Subscription,
    subject,
};

/// Dropped pulls that wait to be looked after.
const ABANDONED: usize = 1024;

/// The bus on NATS JetStream.
///
/// Every operation waits at most the configured time for a connection and for the server. A lost connection is
/// re-established for ever; subscriptions survive it, open pulls end with an error.
pub struct NatsBus {
    link: Arc<Link>,
    /// Message limits of the streams this process made sure of.
    streams: Mutex<Vec<(Vec<String>, usize)>>,
    /// Advisories and dropped pulls; aborted when the bus is dropped.
    tasks: Mutex<JoinSet<()>>,
}

impl NatsBus {
    /// Connects.
    ///
    /// # Errors
    /// When the configuration is wrong, the server refuses, or cannot be reached within `connect_retry_ms`.
    pub async fn connect(config: &NatsConfig) -> Result<Arc<Self>, ConnectError> {
        let signals = Arc::new(Signals::new());
        let client = connect::connect(config, &signals).await?;
        let (abandoned, to_look_after) = mpsc::channel(ABANDONED);
        let link = Arc::new(Link::new(client.clone(), config.request_timeout(), signals.clone(), abandoned));
        let mut tasks = JoinSet::new();
        if config.advisories {
            let until = Instant::now() + config.request_timeout();
            let subscribe = link.within("subscribe", until, client.subscribe(MAX_DELIVERIES));
            match subscribe.await {
                Ok(subscriber) => {
                    tasks.spawn(pass_advisories(subscriber, signals.events.clone()));
                }
                Err(error) => {
                    return Err(ConnectError::Unreachable {
                        servers: config.servers_shown(),
                        within_ms: config.request_timeout_ms,
                        reason: error.to_string(),
                    });
                }
            }
        }
        tasks.spawn(look_after(to_look_after, Arc::downgrade(&link)));
        Ok(Arc::new(Self { link, streams: Mutex::default(), tasks: Mutex::new(tasks) }))
    }

    fn open(&self) -> Result<(), BusError> {
        if self.link.is_closed() { Err(BusError::Closed) } else { Ok(()) }
    }

    /// The smallest known limit for messages to this subject.
    fn limit_for(&self, subject: &str) -> usize {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = |subjects: &[String]| subjects.iter().any(|pattern| subject::matches(pattern, subject));
        let limits = streams.iter().filter(|(subjects, _)| takes(subjects)).map(|(_, max)| *max);
        limits.chain([self.link.client.max_payload()]).min().unwrap_or(0)
    }
}

#[async_trait]
impl Bus for NatsBus {
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<Published, BusError>> {
        publish::publish(&self.link, messages, |subject| self.limit_for(subject)).await
    }

    async fn pull(
        &self,
        stream: &'static str,
        consumer: &str,
        max: usize,
        expires: Duration,
    ) -> Result<Box<dyn Pull>, BusError> {
        self.open()?;
        let key = consumer_key(stream, consumer);
        if !self.link.knows_consumer(&key) {
            api::consumer_exists(&self.link, stream, consumer).await?;
            self.link.learn_consumer(key);
        }
        Ok(Box::new(NatsPull::open(self.link.clone(), stream, consumer, max, expires).await?))
    }

    async fn notify(&self, message: Message) -> Result<(), BusError> {
        plain::send(&self.link, "notify", message).await
    }

    async fn respond(&self, reply: &str, headers: Headers, body: Bytes) -> Result<(), BusError> {
        plain::send(&self.link, "respond", Message { subject: reply.to_owned(), headers, body }).await
    }

    async fn request(&self, message: Message, timeout: Duration) -> Result<Message, BusError> {
        plain::request(&self.link, "request", message, timeout).await.map(wire::message_in)
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
        let until = Instant::now() + self.link.timeout;
        let client = &self.link.client;
        let subject = subject.to_owned();
        let subscriber = match group {
            None => self.link.within("subscribe", until, client.subscribe(subject)).await?,
            Some(group) => {
                self.link.within("subscribe", until, client.queue_subscribe(subject, group.to_owned())).await?
            }
        };
        Ok(Box::new(NatsSubscription::new(subscriber, capacity)))
    }

    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BusError> {
        self.open()?;
        let state = api::ensure_stream(&self.link, spec).await?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|(subjects, _)| *subjects != spec.subjects);
        if spec.max_message_bytes > 0 {
            streams.push((spec.subjects.clone(), spec.max_message_bytes as usize));
        }
        Ok(state)
    }

    async fn stream_state(&self, stream: &'static str) -> Result<StreamState, BusError> {
        self.open()?;
        api::stream_state(&self.link, stream).await
    }

    async fn stream_subjects(&self, stream: &'static str, filter: &str) -> Result<Vec<(String, u64)>, BusError> {
        self.open()?;
        api::stream_subjects(&self.link, stream, filter).await
    }

    async fn ensure_consumer(&self, spec: &ConsumerSpec) -> Result<(), BusError> {
        self.open()?;
        api::ensure_consumer(&self.link, spec).await?;
        self.link.learn_consumer(consumer_key(spec.stream, &spec.name));
        Ok(())
    }

    async fn delete_consumer(&self, stream: &'static str, name: &str) -> Result<(), BusError> {
        self.open()?;
        self.link.forget_consumer(&consumer_key(stream, name));
        api::delete_consumer(&self.link, stream, name).await
    }

    fn events(&self) -> broadcast::Receiver<BusEvent> {
        self.link.signals.events.subscribe()
    }

    fn limits(&self) -> BusLimits {
        BusLimits { max_message_bytes: self.link.client.max_payload() }
    }

    async fn close(&self) {
        if self.link.is_closed() {
            return;
        }
        self.link.set_closed();
        let flushed = tokio::time::timeout(self.link.timeout, self.link.client.flush()).await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::warn!("the bus was closed before everything was sent");
        }
        self.link.replies.clear();
        self.link.pulls.clear();
        // Best effort: the connection also ends with the last clone of the client.
        let _ = tokio::time::timeout(self.link.timeout, self.link.client.drain()).await;
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}
