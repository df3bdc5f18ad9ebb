//! What the cases share.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use ditto_bus::{
    Bus, BusError, ConsumerSpec, Delivery, Message, StreamSpec,
    local::LocalBus,
    nats::{NatsBus, NatsConfig},
};
use ditto_contracts::wire::{Headers, names};
use ditto_test_servers::Nats;

/// The stream of a case.
pub(crate) const STREAM: &str = "CASE";
/// Its consumer.
pub(crate) const CONSUMER: &str = "worker";
/// Longer than anything here may take, shorter than `ack_wait` of [`consumer`].
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// Long enough to be sure that nothing comes.
pub(crate) const QUIET: Duration = Duration::from_millis(300);

pub(crate) fn local() -> Arc<dyn Bus> {
    LocalBus::new()
}

pub(crate) async fn nats() -> (Nats, Arc<dyn Bus>) {
    let server = Nats::start().await.unwrap();
    let bus = connect(&server).await;
    (server, bus)
}

pub(crate) async fn connect(server: &Nats) -> Arc<NatsBus> {
    NatsBus::connect(&NatsConfig::for_url(server.url())).await.unwrap()
}

/// No case may hang.
pub(crate) async fn bounded(case: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), case).await.expect("the case hangs");
}

pub(crate) fn stream() -> StreamSpec {
    StreamSpec {
        name: STREAM,
        subjects: vec!["case.>".to_owned()],
        max_bytes: 64 * 1024 * 1024,
        max_age: Duration::from_secs(3600),
        max_message_bytes: 512 * 1024,
        duplicate_window: Duration::from_secs(120),
        replicas: 1,
    }
}

pub(crate) fn consumer() -> ConsumerSpec {
    ConsumerSpec {
        stream: STREAM,
        name: CONSUMER.to_owned(),
        filter_subjects: vec!["case.>".to_owned()],
        ack_wait: Duration::from_secs(30),
        max_deliver: 20,
        max_ack_pending: 10_000,
    }
}

/// The stream and the consumer with the settings of [`stream`] and [`consumer`].
pub(crate) async fn set_up(bus: &Arc<dyn Bus>) {
    set_up_with(bus, stream(), consumer()).await;
}

pub(crate) async fn set_up_with(bus: &Arc<dyn Bus>, stream: StreamSpec, consumer: ConsumerSpec) {
    bus.ensure_stream(&stream).await.unwrap();
    bus.ensure_consumer(&consumer).await.unwrap();
}

pub(crate) fn message(subject: &str, body: impl Into<Bytes>) -> Message {
    Message { subject: subject.to_owned(), headers: Headers::new(), body: body.into() }
}

pub(crate) fn with_id(subject: &str, id: &str) -> Message {
    let mut message = message(subject, id.to_owned());
    message.headers.push(names::MSG_ID, id);
    message
}

pub(crate) async fn publish(bus: &Arc<dyn Bus>, message: Message) -> u64 {
    publish_one(bus, message).await.unwrap().sequence
}

pub(crate) async fn publish_one(bus: &Arc<dyn Bus>, message: Message) -> Result<ditto_bus::Published, BusError> {
    let mut answers = bus.publish(vec![message]).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// The next message of the consumer; fails when none comes soon.
pub(crate) async fn take(bus: &Arc<dyn Bus>) -> Delivery {
    take_from(bus, CONSUMER).await
}

pub(crate) async fn take_from(bus: &Arc<dyn Bus>, consumer: &str) -> Delivery {
    let mut pull = bus.pull(STREAM, consumer, 1, SOON).await.unwrap();
    pull.next().await.unwrap().expect("a message")
}

/// Whether the consumer has nothing to give for a while.
pub(crate) async fn quiet(bus: &Arc<dyn Bus>, consumer: &str, while_: Duration) -> bool {
    let mut pull = bus.pull(STREAM, consumer, 1, while_).await.unwrap();
    pull.next().await.unwrap().is_none()
}

/// Waits until the stream holds so many messages: answers take effect a moment after they are given.
pub(crate) async fn until_messages(bus: &Arc<dyn Bus>, count: u64) {
    eventually(async || bus.stream_state(STREAM).await.is_ok_and(|state| state.messages == count)).await;
}

/// Waits for a condition.
pub(crate) async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let mut pace = tokio::time::interval(Duration::from_millis(10));
    tokio::time::timeout(SOON * 2, async {
        while !condition().await {
            pace.tick().await;
        }
    })
    .await
    .expect("the condition holds in time");
}

pub(crate) fn text(message: &Message) -> String {
    String::from_utf8(message.body.to_vec()).unwrap()
}
