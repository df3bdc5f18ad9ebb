//! The seam between the fleet and its message system.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::wire::Headers;
use tokio::sync::broadcast;

/// One message to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where to. Only names that are safe as tokens, never user text.
    pub subject: String,
    /// Headers of the wire contract.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

/// One plain message that came in, with the reply subject of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// Where an answer goes; `None` when the sender wants none.
    pub reply: Option<String>,
}

/// Why a bus operation did not (certainly) happen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// It may or may not have happened: a timeout or a broken connection. Decide by the ledger.
    #[error("{operation} was not confirmed: {reason}")]
    Maybe {
        /// What was tried.
        operation: &'static str,
        /// What came back, without addresses or credentials.
        reason: String,
    },
    /// The stream is full: back off.
    #[error("stream is full")]
    Full,
    /// Nobody answers requests on this subject.
    #[error("no responders")]
    NoResponders,
    /// The message is larger than the bus takes.
    #[error("message of {size} bytes is larger than {max} bytes")]
    TooLarge {
        /// Size with headers, in bytes.
        size: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// The stream or consumer is not there.
    #[error("{0} does not exist")]
    Missing(String),
    /// It exists with settings that contradict what was asked for.
    #[error("{name} exists with other settings: {difference}")]
    Conflict {
        /// Stream or consumer.
        name: String,
        /// What differs.
        difference: String,
    },
    /// This user may not do that.
    #[error("not permitted: {0}")]
    Denied(String),
    /// The bus was closed by this process.
    #[error("closed")]
    Closed,
}

/// A publish that the stream stored (or had stored before).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Sequence in the stream.
    pub sequence: u64,
    /// The stream knew this `Nats-Msg-Id`; counts as published.
    pub duplicate: bool,
}

/// A work-queue stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSpec {
    /// Name, e.g. `DITTO_JOBS`.
    pub name: &'static str,
    /// Subjects it stores.
    pub subjects: Vec<String>,
    /// Most bytes it keeps; a publish beyond is refused with [`BusError::Full`].
    pub max_bytes: u64,
    /// Longest time a message is kept.
    pub max_age: Duration,
    /// Largest message, in bytes.
    pub max_message_bytes: u32,
    /// How long a `Nats-Msg-Id` is remembered.
    pub duplicate_window: Duration,
    /// Copies in a cluster.
    pub replicas: u8,
}

/// A durable pull consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerSpec {
    /// Stream it reads.
    pub stream: &'static str,
    /// Its durable name, letters, digits, `_` and `-`.
    pub name: String,
    /// Subjects it takes; the filters of two consumers of one stream never overlap.
    pub filter_subjects: Vec<String>,
    /// Redelivered when not acknowledged for so long.
    pub ack_wait: Duration,
    /// Most deliveries of one message.
    pub max_deliver: u32,
    /// Most unacknowledged messages over all pullers.
    pub max_ack_pending: u32,
}

/// What a stream looks like now. A stream that was re-created or went back shows another `created_ms` or a smaller
/// `last_sequence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamState {
    /// When the server created it, in milliseconds since 1970 by the server's clock.
    pub created_ms: i64,
    /// Highest sequence ever given.
    pub last_sequence: u64,
    /// Messages in it.
    pub messages: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Whether this very call had to create it.
    pub created_now: bool,
}

/// Sizes the bus imposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusLimits {
    /// Largest message with headers, in bytes.
    pub max_message_bytes: usize,
}

/// What happens to the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BusEvent {
    /// Connected for the first time or again: check the streams.
    Connected,
    /// The connection is lost; it is being re-established.
    Disconnected,
    /// A message used up its deliveries.
    MaxDeliveries {
        /// Stream.
        stream: String,
        /// Consumer.
        consumer: String,
        /// Sequence of the message.
        sequence: u64,
    },
}

/// How a stored message is answered. Each is given at most once and takes effect at most once; failing to answer is
/// safe, the message comes again.
#[async_trait]
pub trait Ack: Send + Sync {
    /// Done with it.
    async fn ack(&self) -> Result<(), BusError>;
    /// Again, after this delay.
    async fn nak(&self, delay: Duration) -> Result<(), BusError>;
    /// Never again.
    async fn term(&self) -> Result<(), BusError>;
    /// Still at it: restarts `ack_wait`.
    async fn in_progress(&self) -> Result<(), BusError>;
}

/// One stored message handed to this process.
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// How often it was delivered, from 1. For display only; attempts are counted in the ledger.
    pub delivery_count: u64,
    /// How to answer it.
    pub acker: Arc<dyn Ack>,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delivery")
            .field("message", &self.message)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

/// One open pull request for up to a number of messages.
#[async_trait]
pub trait Pull: Send {
    /// The next message; `None` when the request is used up or has expired (open another).
    ///
    /// # Errors
    /// When the connection or the consumer is gone; open another pull after a pause.
    ///
    /// # Cancel safety
    /// Cancelling loses no message.
    async fn next(&mut self) -> Result<Option<Delivery>, BusError>;

    /// A message that is already here, without waiting.
    fn try_next(&mut self) -> Option<Delivery>;
}

/// Plain messages of one subject, as they come. A slow reader loses the oldest ones.
#[async_trait]
pub trait Subscription: Send {
    /// The next message; `None` when the bus is closed.
    ///
    /// # Cancel safety
    /// Cancelling loses no message.
    async fn next(&mut self) -> Option<Received>;

    /// A message that is already here, without waiting.
    fn try_next(&mut self) -> Option<Received>;
}

/// The message system. Every operation has its own time limit; none waits without bound.
#[async_trait]
pub trait Bus: Send + Sync + 'static {
    /// Stores messages on their streams, pipelined, and waits for all confirmations. Answers in the order given.
    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<Published, BusError>>;

    /// Opens a pull for up to `max` messages that ends after `expires`.
    ///
    /// # Errors
    /// [`BusError::Missing`] when stream or consumer does not exist.
    async fn pull(
        &self,
        stream: &'static str,
        consumer: &str,
        max: usize,
        expires: Duration,
    ) -> Result<Box<dyn Pull>, BusError>;

    /// Sends a plain message: not stored, safe to lose.
    async fn notify(&self, message: Message) -> Result<(), BusError>;

    /// Sends a plain message to the reply subject of a request.
    async fn respond(&self, reply: &str, headers: Headers, body: Bytes) -> Result<(), BusError>;

    /// Sends a request and waits for one answer.
    ///
    /// # Errors
    /// [`BusError::NoResponders`] at once when nobody serves the subject; [`BusError::Maybe`] on timeout.
    async fn request(&self, message: Message, timeout: Duration) -> Result<Message, BusError>;

    /// Receives plain messages; with a group, each goes to one member only. `capacity` bounds what may wait unread.
    async fn subscribe(
        &self,
        subject: &str,
        group: Option<&str>,
        capacity: usize,
    ) -> Result<Box<dyn Subscription>, BusError>;

    /// Creates the stream, or updates the settings that may change, and says what it looks like.
    async fn ensure_stream(&self, spec: &StreamSpec) -> Result<StreamState, BusError>;

    /// What a stream looks like.
    async fn stream_state(&self, stream: &'static str) -> Result<StreamState, BusError>;

    /// Subjects of a stream that hold messages and match the filter, with how many. One request; for many subjects only
    /// a part may be told.
    async fn stream_subjects(&self, stream: &'static str, filter: &str) -> Result<Vec<(String, u64)>, BusError>;

    /// Creates the consumer, or updates the settings that may change. Several coordinators may do so at once.
    async fn ensure_consumer(&self, spec: &ConsumerSpec) -> Result<(), BusError>;

    /// Removes a consumer; messages stay. Fine when it is not there.
    async fn delete_consumer(&self, stream: &'static str, name: &str) -> Result<(), BusError>;

    /// Connection events from now on.
    fn events(&self) -> broadcast::Receiver<BusEvent>;

    /// Sizes the bus imposes, as learned from the server.
    fn limits(&self) -> BusLimits;

    /// Flushes what was sent and closes; bounded.
    async fn close(&self);
}
