//! What becomes of a message that was handed out.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ditto_bus::{Bus, BusEvent, ConsumerSpec};
use tokio::{task::JoinSet, time::Instant};

use crate::support::*;

const ACK_WAIT: Duration = Duration::from_millis(500);

fn impatient() -> ConsumerSpec {
    ConsumerSpec { ack_wait: ACK_WAIT, ..consumer() }
}

pub(crate) async fn an_unanswered_message_comes_again(bus: Arc<dyn Bus>) {
    set_up_with(&bus, stream(), impatient()).await;
    publish(&bus, message("case.x", "again")).await;
    let first = take(&bus).await;
    let taken = Instant::now();
    let second = take(&bus).await;
    assert!(taken.elapsed() + Duration::from_millis(50) >= ACK_WAIT, "{:?}", taken.elapsed());
    assert_eq!((first.delivery_count, second.delivery_count), (1, 2));
    assert_eq!((first.sequence, &first.message), (second.sequence, &second.message));
    second.acker.ack().await.unwrap();
    until_messages(&bus, 0).await;
    // The answer to the outdated delivery comes too late to matter.
    first.acker.nak(Duration::ZERO).await.unwrap();
    assert!(quiet(&bus, CONSUMER, QUIET).await);
}

pub(crate) async fn a_nak_comes_back_at_once(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    publish(&bus, message("case.x", "1")).await;
    publish(&bus, message("case.x", "2")).await;
    take(&bus).await.acker.nak(Duration::ZERO).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let delivery = take(&bus).await;
        delivery.acker.ack().await.unwrap();
        seen.push((delivery.sequence, delivery.delivery_count));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, 2), (2, 1)]);
}

pub(crate) async fn a_nak_comes_back_after_its_delay(bus: Arc<dyn Bus>) {
    const DELAY: Duration = Duration::from_millis(700);
    set_up(&bus).await;
    publish(&bus, message("case.x", "1")).await;
    let delivery = take(&bus).await;
    let given_back = Instant::now();
    delivery.acker.nak(DELAY).await.unwrap();
    // Others do not wait for it.
    publish(&bus, message("case.x", "2")).await;
    let other = take(&bus).await;
    assert_eq!(other.sequence, 2);
    other.acker.ack().await.unwrap();
    let again = take(&bus).await;
    assert!(given_back.elapsed() + Duration::from_millis(50) >= DELAY, "{:?}", given_back.elapsed());
    assert_eq!((again.sequence, again.delivery_count), (1, 2));
    again.acker.ack().await.unwrap();
    until_messages(&bus, 0).await;
}

pub(crate) async fn a_terminated_message_never_comes_back(bus: Arc<dyn Bus>) {
    set_up_with(&bus, stream(), impatient()).await;
    publish(&bus, message("case.x", "poison")).await;
    take(&bus).await.acker.term().await.unwrap();
    until_messages(&bus, 0).await;
    assert!(quiet(&bus, CONSUMER, ACK_WAIT * 2).await);
}

pub(crate) async fn in_progress_restarts_the_wait(bus: Arc<dyn Bus>) {
    set_up_with(&bus, stream(), impatient()).await;
    publish(&bus, message("case.x", "slow")).await;
    let delivery = take(&bus).await;
    for _ in 0..5 {
        delivery.acker.in_progress().await.unwrap();
        assert!(quiet(&bus, CONSUMER, ACK_WAIT / 2).await);
    }
    // And then it does come again.
    let again = take(&bus).await;
    assert_eq!((again.sequence, again.delivery_count), (delivery.sequence, 2));
}

pub(crate) async fn the_first_answer_counts(bus: Arc<dyn Bus>) {
    set_up_with(&bus, stream(), impatient()).await;
    publish(&bus, message("case.x", "")).await;
    let delivery = take(&bus).await;
    delivery.acker.nak(Duration::from_millis(100)).await.unwrap();
    delivery.acker.term().await.unwrap();
    delivery.acker.in_progress().await.unwrap();
    let again = take(&bus).await;
    again.acker.ack().await.unwrap();
    again.acker.nak(Duration::ZERO).await.unwrap();
    until_messages(&bus, 0).await;
    assert!(quiet(&bus, CONSUMER, ACK_WAIT * 2).await);
}

pub(crate) async fn every_message_is_finished_whatever_pullers_do(bus: Arc<dyn Bus>) {
    const MESSAGES: u64 = 400;
    set_up_with(&bus, stream(), ConsumerSpec { max_deliver: 0, max_ack_pending: 50, ..impatient() }).await;
    let mut pullers = JoinSet::new();
    let finished = Arc::new(AtomicBool::new(false));
    for puller in 0..3 {
        let (bus, finished) = (bus.clone(), finished.clone());
        pullers.spawn(async move {
            let mut acked = Vec::new();
            while !finished.load(Ordering::Relaxed) {
                let mut pull = bus.pull(STREAM, CONSUMER, 1 + puller * 7, QUIET).await.unwrap();
                while let Some(delivery) = pull.next().await.unwrap() {
                    let acker = &delivery.acker;
                    match delivery.sequence % 6 {
                        _ if delivery.delivery_count > 2 => {}
                        1 => acker.nak(Duration::ZERO).await.unwrap(),
                        2 => acker.nak(Duration::from_millis(20)).await.unwrap(),
                        3 => continue, // never answered
                        4 => acker.in_progress().await.unwrap(),
                        5 => break, // with the pull
                        _ => {}
                    }
                    acker.ack().await.unwrap(); // only counts where nothing else was said
                    acked.push(delivery.sequence);
                }
            }
            acked
        });
    }
    for _ in 0..MESSAGES / 40 {
        assert!(bus.publish((0..40).map(|_| message("case.x", "")).collect()).await.iter().all(Result::is_ok));
    }
    until_messages(&bus, 0).await;
    finished.store(true, Ordering::Relaxed);
    let acked: BTreeSet<u64> = pullers.join_all().await.into_iter().flatten().collect();
    assert_eq!(acked, (1..=MESSAGES).collect());
}

pub(crate) async fn unanswered_messages_are_bounded(bus: Arc<dyn Bus>) {
    set_up_with(&bus, stream(), ConsumerSpec { max_ack_pending: 2, ..consumer() }).await;
    bus.publish((0..5).map(|n| message("case.x", n.to_string())).collect()).await;
    let mut held = vec![take(&bus).await, take(&bus).await];
    assert!(quiet(&bus, CONSUMER, QUIET).await);
    let waiting = tokio::spawn({
        let bus = bus.clone();
        async move { take(&bus).await }
    });
    held.remove(0).acker.ack().await.unwrap();
    assert_eq!(waiting.await.unwrap().sequence, 3);
    assert!(quiet(&bus, CONSUMER, QUIET).await);
}

pub(crate) async fn used_up_deliveries_are_reported(bus: Arc<dyn Bus>) {
    let mut events = bus.events();
    set_up_with(&bus, stream(), ConsumerSpec { max_deliver: 2, ..impatient() }).await;
    let sequence = publish(&bus, message("case.x", "poison")).await;
    take(&bus).await;
    assert_eq!(take(&bus).await.delivery_count, 2);
    // JetStream notices when a pull asks.
    assert!(quiet(&bus, CONSUMER, ACK_WAIT * 2).await);
    let reported = tokio::time::timeout(SOON, async {
        loop {
            if let BusEvent::MaxDeliveries { stream, consumer, sequence } = events.recv().await.unwrap() {
                return (stream, consumer, sequence);
            }
        }
    });
    assert_eq!(reported.await.unwrap(), (STREAM.to_owned(), CONSUMER.to_owned(), sequence));
    assert_eq!(bus.stream_state(STREAM).await.unwrap().messages, 1, "it stays for whoever looks");
}
