//! What only the bus in process has: faults on purpose and forgetting.

use std::{sync::Arc, time::Duration};

use ditto_bus::{Bus, BusError, BusEvent, BusLimits, local::LocalBus};
use tokio::time::Instant;

use crate::support::*;

async fn faulty() -> (Arc<LocalBus>, Arc<dyn Bus>) {
    let local = LocalBus::new();
    let bus: Arc<dyn Bus> = local.clone();
    set_up(&bus).await;
    (local, bus)
}

#[tokio::test]
async fn a_wiped_bus_looks_like_a_wiped_server() {
    let (local, bus) = faulty().await;
    let before = bus.stream_state(STREAM).await.unwrap();
    publish(&bus, message("case.x", "gone")).await;
    let delivery = take(&bus).await;
    let mut events = bus.events();
    let mut subscription = bus.subscribe("plain", None, 1).await.unwrap();
    let waiting = tokio::spawn({
        let mut pull = bus.pull(STREAM, CONSUMER, 1, SOON).await.unwrap();
        async move { pull.next().await }
    });
    tokio::task::yield_now().await;
    local.wipe();
    assert!(matches!(waiting.await.unwrap(), Err(BusError::Missing(_))));
    assert_eq!(events.recv().await, Ok(BusEvent::Disconnected));
    assert_eq!(events.recv().await, Ok(BusEvent::Connected));
    assert!(matches!(bus.stream_state(STREAM).await, Err(BusError::Missing(_))));
    let after = bus.ensure_stream(&stream()).await.unwrap();
    assert!(after.created_now && after.created_ms > before.created_ms && after.last_sequence == 0);
    assert!(matches!(bus.pull(STREAM, CONSUMER, 1, SOON).await.err(), Some(BusError::Missing(_))));
    bus.ensure_consumer(&consumer()).await.unwrap();
    // Answers to what was before touch nothing.
    publish(&bus, message("case.x", "new")).await;
    delivery.acker.ack().await.unwrap();
    assert_eq!(text(&take(&bus).await.message), "new");
    // Subscriptions survive.
    bus.notify(message("plain", "still here")).await.unwrap();
    assert_eq!(text(&subscription.next().await.unwrap().message), "still here");
}

#[tokio::test]
async fn stored_messages_can_be_lost_doubled_and_delayed() {
    const DELAY: Duration = Duration::from_millis(200);
    let (local, bus) = faulty().await;
    local.faults().drop_stored("case.*", 1);
    publish(&bus, with_id("case.x", "lost")).await;
    assert!(quiet(&bus, CONSUMER, QUIET).await);
    assert!(publish_one(&bus, with_id("case.x", "lost")).await.unwrap().duplicate, "the window remembers it");

    local.faults().duplicate_stored("case.x", 1);
    publish(&bus, with_id("case.x", "twice")).await;
    for _ in 0..2 {
        let delivery = take(&bus).await;
        assert_eq!(text(&delivery.message), "twice");
        delivery.acker.ack().await.unwrap();
    }

    local.faults().delay_stored("case.x", 1, DELAY);
    let published = Instant::now();
    publish(&bus, message("case.x", "late")).await;
    publish(&bus, message("case.x", "early")).await;
    assert_eq!(text(&take(&bus).await.message), "early");
    let late = take(&bus).await;
    assert_eq!((text(&late.message).as_str(), late.delivery_count), ("late", 1));
    assert!(published.elapsed() >= DELAY);

    local.faults().lose_confirmations("case.>", 1);
    let answer = publish_one(&bus, message("case.x", "stored")).await;
    assert!(matches!(answer, Err(BusError::Maybe { .. })), "{answer:?}");
    assert_eq!(text(&take(&bus).await.message), "stored");
}

#[tokio::test]
async fn plain_messages_can_be_lost_doubled_and_delayed() {
    let (local, bus) = faulty().await;
    let mut subscription = bus.subscribe("plain", None, 10).await.unwrap();
    local.faults().drop_plain("plain", 1);
    local.faults().duplicate_plain("plain", 1);
    local.faults().delay_plain("plain", 1, Duration::from_millis(100));
    for body in ["lost", "twice", "late", "last"] {
        bus.notify(message("plain", body)).await.unwrap();
    }
    for expected in ["twice", "twice", "last", "late"] {
        assert_eq!(text(&subscription.next().await.unwrap().message), expected);
    }
    // A lost request is silence, not absence.
    local.faults().drop_plain("plain", 1);
    let silence = bus.request(message("plain", ""), QUIET).await;
    assert!(matches!(silence, Err(BusError::Maybe { .. })), "{silence:?}");
    local.faults().drop_plain("plain", 5);
    local.faults().clear();
    bus.notify(message("plain", "through")).await.unwrap();
    assert_eq!(text(&subscription.next().await.unwrap().message), "through");
}

#[tokio::test]
async fn nothing_runs_on_when_the_bus_is_gone() {
    let (local, bus) = faulty().await;
    publish(&bus, message("case.x", "")).await;
    let held = take(&bus).await;
    let tasks = tokio::runtime::Handle::current().metrics();
    assert_eq!(tasks.num_alive_tasks(), 1, "the timer");
    drop((local, bus, held));
    eventually(async || tasks.num_alive_tasks() == 0).await;
}

#[tokio::test]
async fn limits_are_those_asked_for() {
    let bus = LocalBus::with_limits(BusLimits { max_message_bytes: 100 });
    assert_eq!(bus.limits().max_message_bytes, 100);
    assert_eq!(bus.notify(message("plain", vec![0; 101])).await, Err(BusError::TooLarge { size: 101, max: 100 }));
}
