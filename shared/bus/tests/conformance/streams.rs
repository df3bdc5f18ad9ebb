//! Streams, consumers and pulls.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use ditto_bus::{Bus, BusError, StreamSpec};
use ditto_contracts::wire::Headers;
use tokio::{sync::Barrier, task::JoinSet, time::Instant};

use crate::support::*;

pub(crate) async fn what_is_published_is_pulled_and_leaves_when_acked(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let messages = ["a", "b", "c"].map(|body| message("case.x", body)).to_vec();
    let answers = bus.publish(messages).await;
    let sequences: Vec<u64> = answers.into_iter().map(|answer| answer.unwrap().sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
    let state = bus.stream_state(STREAM).await.unwrap();
    assert_eq!((state.messages, state.last_sequence, state.created_now), (3, 3, false));
    assert!(state.bytes > 0 && state.created_ms > 1_600_000_000_000, "{state:?}");

    let mut pull = bus.pull(STREAM, CONSUMER, 2, SOON).await.unwrap();
    for (sequence, body) in [(1, "a"), (2, "b")] {
        let delivery = pull.next().await.unwrap().unwrap();
        assert_eq!((delivery.sequence, delivery.delivery_count), (sequence, 1));
        assert_eq!((delivery.message.subject.as_str(), text(&delivery.message).as_str()), ("case.x", body));
        delivery.acker.ack().await.unwrap();
    }
    take(&bus).await.acker.ack().await.unwrap();
    until_messages(&bus, 0).await;
    assert!(quiet(&bus, CONSUMER, QUIET).await);
    assert_eq!(bus.stream_state(STREAM).await.unwrap().last_sequence, 3);
}

pub(crate) async fn a_batch_is_answered_in_order(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    assert!(bus.publish(Vec::new()).await.is_empty());
    let messages = (0..1000).map(|n| message("case.x", n.to_string())).collect();
    let answers = bus.publish(messages).await;
    let sequences: Vec<u64> = answers.into_iter().map(|answer| answer.unwrap().sequence).collect();
    assert_eq!(sequences, (1..=1000).collect::<Vec<u64>>());
    // Several calls at once share the pipeline.
    let mut calls = JoinSet::new();
    for _ in 0..8 {
        let bus = bus.clone();
        calls.spawn(async move { bus.publish((0..200).map(|_| message("case.y", "z")).collect()).await });
    }
    while let Some(answers) = calls.join_next().await {
        assert!(answers.unwrap().iter().all(Result::is_ok));
    }
    assert_eq!(bus.stream_state(STREAM).await.unwrap().messages, 2600);
}

pub(crate) async fn a_cancelled_publish_holds_nothing_up(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let batch = || (0..500).map(|_| message("case.x", "y")).collect::<Vec<_>>();
    for round in 0..30 {
        tokio::select! {
            biased;
            _ = bus.publish(batch()) => {}
            () = async { for _ in 0..round { tokio::task::yield_now().await } } => {}
        }
    }
    assert!(bus.publish(batch()).await.iter().all(Result::is_ok));
}

pub(crate) async fn a_message_id_is_stored_once(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let first = publish_one(&bus, with_id("case.x", "id-1")).await.unwrap();
    let again = publish_one(&bus, with_id("case.x", "id-1")).await.unwrap();
    let other = publish_one(&bus, with_id("case.x", "id-2")).await.unwrap();
    assert!(!first.duplicate && again.duplicate && !other.duplicate);
    assert_eq!(first.sequence, again.sequence);
    // Also when the message is long gone.
    for _ in 0..2 {
        take(&bus).await.acker.ack().await.unwrap();
    }
    until_messages(&bus, 0).await;
    assert!(publish_one(&bus, with_id("case.x", "id-1")).await.unwrap().duplicate);
    assert!(quiet(&bus, CONSUMER, QUIET).await);
}

pub(crate) async fn a_message_id_is_forgotten_after_its_window(bus: Arc<dyn Bus>) {
    set_up_with(&bus, StreamSpec { duplicate_window: Duration::from_millis(300), ..stream() }, consumer()).await;
    publish(&bus, with_id("case.x", "id")).await;
    // Seeing it again does not prolong the window.
    eventually(async || !publish_one(&bus, with_id("case.x", "id")).await.unwrap().duplicate).await;
    assert_eq!(bus.stream_state(STREAM).await.unwrap().messages, 2);
}

pub(crate) async fn no_duration_is_too_long(bus: Arc<dyn Bus>) {
    let stream = StreamSpec { max_age: Duration::MAX, duplicate_window: Duration::MAX, ..stream() };
    set_up_with(&bus, stream, ditto_bus::ConsumerSpec { ack_wait: Duration::MAX, ..consumer() }).await;
    publish(&bus, message("case.x", "")).await;
    let mut pull = bus.pull(STREAM, CONSUMER, usize::MAX, Duration::MAX).await.unwrap();
    let delivery = pull.next().await.unwrap().unwrap();
    delivery.acker.nak(Duration::MAX).await.unwrap();
    let mut server = bus.subscribe("ask", None, usize::MAX).await.unwrap();
    let (answer, ()) = tokio::join!(bus.request(message("ask", "x"), Duration::MAX), async {
        let request = server.next().await.unwrap();
        bus.respond(&request.reply.unwrap(), Headers::new(), "y".into()).await.unwrap();
    });
    assert_eq!(text(&answer.unwrap()), "y");
}

pub(crate) async fn a_full_stream_refuses_and_recovers(bus: Arc<dyn Bus>) {
    set_up_with(&bus, StreamSpec { max_bytes: 8 * 1024, ..stream() }, consumer()).await;
    let kibibyte = || message("case.x", vec![7; 1024]);
    let answers = bus.publish((0..10).map(|_| kibibyte()).collect()).await;
    let stored = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((6..=7).contains(&stored), "{answers:?}");
    assert!(answers.iter().skip(stored).all(|answer| *answer == Err(BusError::Full)), "{answers:?}");
    assert_eq!(bus.stream_state(STREAM).await.unwrap().messages, stored as u64);
    take(&bus).await.acker.ack().await.unwrap();
    until_messages(&bus, stored as u64 - 1).await;
    publish(&bus, kibibyte()).await;
}

pub(crate) async fn consumers_take_what_their_filters_say(bus: Arc<dyn Bus>) {
    bus.ensure_stream(&stream()).await.unwrap();
    for (name, filters) in [("one", vec!["case.a", "case.b.*"]), ("two", vec!["case.c"])] {
        let filter_subjects = filters.into_iter().map(str::to_owned).collect();
        bus.ensure_consumer(&ditto_bus::ConsumerSpec { name: name.to_owned(), filter_subjects, ..consumer() })
            .await
            .unwrap();
    }
    for subject in ["case.c", "case.b.x", "case.a", "case.d", "case.b.x.y"] {
        publish(&bus, message(subject, "")).await;
    }
    for (name, expected) in [("one", vec!["case.b.x", "case.a"]), ("two", vec!["case.c"])] {
        for subject in expected {
            let delivery = take_from(&bus, name).await;
            assert_eq!(delivery.message.subject, subject);
            delivery.acker.ack().await.unwrap();
        }
        assert!(quiet(&bus, name, QUIET).await);
    }
    until_messages(&bus, 2).await;
}

pub(crate) async fn overlapping_filters_are_refused(bus: Arc<dyn Bus>) {
    let named = |name: &str, filters: &[&str]| ditto_bus::ConsumerSpec {
        name: name.to_owned(),
        filter_subjects: filters.iter().map(|&filter| filter.to_owned()).collect(),
        ..consumer()
    };
    bus.ensure_stream(&stream()).await.unwrap();
    bus.ensure_consumer(&named("one", &["case.a", "case.b"])).await.unwrap();
    for (name, filters) in [("two", vec!["case.b"]), ("three", vec!["case.>"]), ("four", vec!["case.x.*", "case.x.y"])]
    {
        let refused = bus.ensure_consumer(&named(name, &filters)).await;
        assert!(matches!(refused, Err(BusError::Conflict { .. })), "{name}: {refused:?}");
        let missing = bus.pull(STREAM, name, 1, QUIET).await.err();
        assert!(matches!(missing, Some(BusError::Missing(_))), "{missing:?}");
    }
    // The one that was there is as it was.
    publish(&bus, message("case.b", "")).await;
    assert_eq!(take_from(&bus, "one").await.message.subject, "case.b");
}

pub(crate) async fn a_message_waits_for_its_consumer(bus: Arc<dyn Bus>) {
    bus.ensure_stream(&stream()).await.unwrap();
    publish(&bus, message("case.x", "early")).await;
    bus.ensure_consumer(&consumer()).await.unwrap();
    assert_eq!(text(&take(&bus).await.message), "early");
}

pub(crate) async fn pullers_share_the_work(bus: Arc<dyn Bus>) {
    const MESSAGES: u64 = 300;
    set_up(&bus).await;
    let mut pullers = JoinSet::new();
    let all_have_one = Arc::new(Barrier::new(4));
    for _ in 0..4 {
        let (bus, all_have_one) = (bus.clone(), all_have_one.clone());
        pullers.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let mut pull = bus.pull(STREAM, CONSUMER, 5, Duration::from_secs(1)).await.unwrap();
                let before = seen.len();
                while let Some(delivery) = pull.next().await.unwrap() {
                    delivery.acker.ack().await.unwrap();
                    seen.push(delivery.sequence);
                    if seen.len() == 1 {
                        all_have_one.wait().await;
                    }
                }
                if seen.len() == before {
                    return seen;
                }
            }
        });
    }
    for batch in 0..MESSAGES / 30 {
        let answers = bus.publish((0..30).map(|n| message("case.x", format!("{batch}.{n}"))).collect()).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    let mut all = Vec::new();
    while let Some(seen) = pullers.join_next().await {
        all.extend(seen.unwrap());
    }
    assert_eq!(all.len() as u64, MESSAGES, "each once");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len() as u64, MESSAGES);
    until_messages(&bus, 0).await;
}

pub(crate) async fn ensuring_is_idempotent_and_may_race(bus: Arc<dyn Bus>) {
    let mut racers = JoinSet::new();
    for _ in 0..8 {
        let bus = bus.clone();
        racers.spawn(async move {
            let state = bus.ensure_stream(&stream()).await.unwrap();
            bus.ensure_consumer(&consumer()).await.unwrap();
            state
        });
    }
    let states: Vec<_> = racers.join_all().await;
    assert!(states.iter().any(|state| state.created_now));
    assert!(states.iter().all(|state| state.created_ms == states[0].created_ms), "{states:?}");
    publish(&bus, message("case.x", "kept")).await;
    let again = bus.ensure_stream(&stream()).await.unwrap();
    assert_eq!((again.created_now, again.messages, again.created_ms), (false, 1, states[0].created_ms));
    // Not even a message that is out is touched.
    let delivery = take(&bus).await;
    bus.ensure_consumer(&consumer()).await.unwrap();
    assert!(quiet(&bus, CONSUMER, QUIET).await);
    delivery.acker.ack().await.unwrap();
    until_messages(&bus, 0).await;
}

pub(crate) async fn settings_can_be_updated(bus: Arc<dyn Bus>) {
    set_up_with(&bus, StreamSpec { max_bytes: 2048, ..stream() }, consumer()).await;
    let body = vec![0; 1500];
    publish(&bus, message("case.x", body.clone())).await;
    assert_eq!(publish_one(&bus, message("case.x", body.clone())).await, Err(BusError::Full));
    let state = bus.ensure_stream(&stream()).await.unwrap();
    assert_eq!((state.created_now, state.messages), (false, 1));
    publish(&bus, message("case.x", body)).await;

    let shorter = ditto_bus::ConsumerSpec { ack_wait: Duration::from_millis(300), max_deliver: 5, ..consumer() };
    bus.ensure_consumer(&shorter).await.unwrap();
    let delivery = take(&bus).await;
    take(&bus).await.acker.ack().await.unwrap();
    let again = take(&bus).await;
    assert_eq!((again.sequence, again.delivery_count), (delivery.sequence, 2));

    let filtered = ditto_bus::ConsumerSpec { filter_subjects: vec!["case.y".to_owned()], ..shorter };
    bus.ensure_consumer(&filtered).await.unwrap();
    publish(&bus, message("case.y", "y")).await;
    let delivery = take(&bus).await;
    assert!(delivery.message.subject == "case.y" || delivery.sequence == again.sequence);
}

pub(crate) async fn contradicting_streams_are_refused(bus: Arc<dyn Bus>) {
    bus.ensure_stream(&stream()).await.unwrap();
    let overlapping = StreamSpec { name: "OTHER", subjects: vec!["*.x".to_owned()], ..stream() };
    let refused = bus.ensure_stream(&overlapping).await;
    assert!(matches!(refused, Err(BusError::Conflict { .. })), "{refused:?}");
}

pub(crate) async fn a_deleted_consumer_is_missing_and_its_messages_stay(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    publish(&bus, message("case.x", "stays")).await;
    let before = take(&bus).await;
    let started = Instant::now();
    let waiting = tokio::spawn({
        let mut pull = bus.pull(STREAM, CONSUMER, 1, SOON).await.unwrap();
        async move { pull.next().await }
    });
    // A later pull was served to its end, so the server knows the earlier one.
    assert!(quiet(&bus, CONSUMER, QUIET).await);
    bus.delete_consumer(STREAM, CONSUMER).await.unwrap();
    let ended = waiting.await.unwrap();
    assert!(matches!(ended, Err(BusError::Missing(_))), "{ended:?} after {:?}", started.elapsed());
    bus.delete_consumer(STREAM, CONSUMER).await.unwrap();
    let missing = bus.pull(STREAM, CONSUMER, 1, SOON).await.err();
    assert!(matches!(missing, Some(BusError::Missing(_))), "{missing:?}");

    bus.ensure_consumer(&consumer()).await.unwrap();
    let again = take(&bus).await;
    assert_eq!((again.sequence, again.delivery_count), (before.sequence, 1));
}

pub(crate) async fn what_does_not_exist_is_missing(bus: Arc<dyn Bus>) {
    let missing = |error: Option<BusError>| assert!(matches!(error, Some(BusError::Missing(_))), "{error:?}");
    missing(bus.stream_state(STREAM).await.err());
    missing(bus.ensure_consumer(&consumer()).await.err());
    missing(bus.pull(STREAM, CONSUMER, 1, QUIET).await.err());
    missing(publish_one(&bus, message("case.x", "")).await.err());
    bus.ensure_stream(&stream()).await.unwrap();
    missing(bus.pull(STREAM, CONSUMER, 1, QUIET).await.err());
    missing(publish_one(&bus, message("elsewhere", "")).await.err());
    bus.delete_consumer(STREAM, CONSUMER).await.unwrap();
    bus.delete_consumer("NEVER", CONSUMER).await.unwrap();
}

pub(crate) async fn bytes_and_headers_arrive_unchanged(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let mut subscription = bus.subscribe("plain", None, 10).await.unwrap();
    let every_byte: Vec<u8> = (0..=255).collect();
    let odd =
        ["", "a:b: c", "{\"json\": [1, 2]}", "two  spaces", "grüß dich \u{1F980}", "%0d%0a", "tab\there", "=\"'`"];
    for body in [every_byte, Vec::new(), vec![0; 100_000]] {
        let mut headers = Headers::new();
        for (n, value) in odd.iter().enumerate() {
            headers.push_received(&format!("Odd-{n}"), *value);
        }
        headers.push_received("Many", "1");
        headers.push_received("Many", "2");
        headers.push_received("lower_case.9", "x".repeat(2000));
        let mut sent = message("case.x", body);
        sent.headers = headers;
        publish(&bus, sent.clone()).await;
        let delivery = take(&bus).await;
        delivery.acker.ack().await.unwrap();
        sent.subject = "plain".to_owned();
        bus.notify(sent.clone()).await.unwrap();
        let received = subscription.next().await.unwrap();
        assert_eq!(received.reply, None);
        for got in [delivery.message, received.message] {
            assert_eq!(got.body, sent.body);
            let sorted = |headers: &Headers| {
                let mut all: Vec<_> = headers.iter().map(|(name, v)| (name.to_owned(), v.to_owned())).collect();
                all.sort();
                all
            };
            assert_eq!(sorted(&got.headers), sorted(&sent.headers));
        }
    }
}

pub(crate) async fn what_is_too_large_is_refused_alone(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let max = bus.limits().max_message_bytes;
    assert!(max >= 64 * 1024);
    let answers = bus
        .publish(vec![
            message("case.x", "small"),
            message("case.x", vec![0; max + 1]),
            message("case.x", vec![0; 600 * 1024]), // fits the server, not the stream
            message("case.x", "small"),
        ])
        .await;
    assert!(answers[0].is_ok() && answers[3].is_ok(), "{answers:?}");
    assert_eq!(answers[1], Err(BusError::TooLarge { size: max + 1, max }));
    assert_eq!(answers[2], Err(BusError::TooLarge { size: 600 * 1024, max: 512 * 1024 }));
    // Headers count.
    let mut heavy = message("case.x", vec![0; max - 100]);
    heavy.headers.push("Ditto-Call", "x".repeat(200));
    assert!(matches!(publish_one(&bus, heavy.clone()).await, Err(BusError::TooLarge { .. })));
    heavy.subject = "plain".to_owned();
    assert!(matches!(bus.notify(heavy.clone()).await, Err(BusError::TooLarge { .. })));
    assert!(matches!(bus.request(heavy.clone(), SOON).await, Err(BusError::TooLarge { .. })));
    let refused = bus.respond("plain", heavy.headers, heavy.body).await;
    assert!(matches!(refused, Err(BusError::TooLarge { .. })));
    assert_eq!(bus.stream_state(STREAM).await.unwrap().messages, 2);
}

pub(crate) async fn what_would_break_the_frame_is_refused(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    for (name, value) in
        [("Name", "line\nbreak"), ("Name", "carriage\rreturn"), ("two words", "x"), ("", "x"), ("a:b", "x")]
    {
        let mut broken = message("case.x", "");
        broken.headers.push_received(name, value);
        let answers = bus.publish(vec![broken.clone(), message("case.x", "whole")]).await;
        assert!(matches!(answers[0], Err(BusError::Denied(_))) && answers[1].is_ok(), "{answers:?}");
        assert!(matches!(bus.notify(broken).await, Err(BusError::Denied(_))));
    }
}

pub(crate) async fn a_waiting_pull_wakes_at_once(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let mut pull = bus.pull(STREAM, CONSUMER, 1, Duration::from_secs(30)).await.unwrap();
        let waiting = tokio::spawn(async move { (pull.next().await, Instant::now()) });
        tokio::task::yield_now().await;
        let published = Instant::now();
        publish(&bus, message("case.x", "ring")).await;
        let (delivery, woken) = waiting.await.unwrap();
        delivery.unwrap().unwrap().acker.ack().await.unwrap();
        slowest = slowest.max(woken.saturating_duration_since(published));
    }
    // A poll or the end of the pull would take far longer; a busy machine does not.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
}

pub(crate) async fn a_pull_ends_when_it_expires(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let started = Instant::now();
    let mut pull = bus.pull(STREAM, CONSUMER, 5, QUIET).await.unwrap();
    assert!(pull.try_next().is_none());
    assert!(pull.next().await.unwrap().is_none());
    assert!(started.elapsed() >= QUIET);
    assert!(pull.next().await.unwrap().is_none() && pull.try_next().is_none());
    // What comes later is for the next one.
    publish(&bus, message("case.x", "later")).await;
    assert!(pull.next().await.unwrap().is_none());
    assert_eq!(take(&bus).await.delivery_count, 1);
}

pub(crate) async fn a_pull_ends_when_it_is_used_up(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    for _ in 0..3 {
        publish(&bus, message("case.x", "")).await;
    }
    let mut pull = bus.pull(STREAM, CONSUMER, 2, SOON).await.unwrap();
    assert!(pull.next().await.unwrap().is_some());
    eventually(async || pull.try_next().is_some()).await;
    let started = Instant::now();
    assert!(pull.try_next().is_none());
    assert!(pull.next().await.unwrap().is_none());
    assert!(started.elapsed() < SOON);
    assert_eq!(take(&bus).await.sequence, 3);
}

pub(crate) async fn a_cancelled_wait_loses_nothing(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    const MESSAGES: usize = 50;
    let mut pull = bus.pull(STREAM, CONSUMER, MESSAGES, Duration::from_secs(30)).await.unwrap();
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move {
            for n in 0..MESSAGES {
                publish(&bus, message("case.x", n.to_string())).await;
            }
        }
    });
    let mut seen = Vec::new();
    while seen.len() < MESSAGES {
        tokio::select! {
            biased;
            delivery = pull.next() => seen.push(delivery.unwrap().unwrap().sequence),
            () = tokio::task::yield_now() => {}
        }
    }
    publisher.await.unwrap();
    assert_eq!(seen, (1..=MESSAGES as u64).collect::<Vec<_>>());
}

pub(crate) async fn a_dropped_pull_gives_back_what_it_held(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    bus.publish((0..5).map(|n| message("case.x", n.to_string())).collect()).await;
    let mut pull = bus.pull(STREAM, CONSUMER, 10, SOON).await.unwrap();
    pull.next().await.unwrap().unwrap().acker.ack().await.unwrap();
    until_messages(&bus, 4).await;
    drop(pull);
    // Long before `ack_wait`.
    let mut seen = BTreeSet::new();
    while seen.len() < 4 {
        let delivery = take(&bus).await;
        delivery.acker.ack().await.unwrap();
        seen.insert(text(&delivery.message));
    }
    until_messages(&bus, 0).await;
    // A pull dropped while it waits takes nothing with it either.
    drop(bus.pull(STREAM, CONSUMER, 10, SOON).await.unwrap());
    publish(&bus, message("case.x", "after")).await;
    assert_eq!(text(&take(&bus).await.message), "after");
}

pub(crate) async fn pulls_dropped_at_any_time_lose_nothing(bus: Arc<dyn Bus>) {
    const MESSAGES: usize = 100;
    set_up(&bus).await;
    let publisher = tokio::spawn({
        let bus = bus.clone();
        async move {
            for n in 0..MESSAGES {
                publish(&bus, message("case.x", n.to_string())).await;
            }
        }
    });
    let mut seen = BTreeSet::new();
    for round in 0..200 {
        let mut pull = bus.pull(STREAM, CONSUMER, 5, SOON).await.unwrap();
        for _ in 0..round % 7 {
            tokio::select! {
                biased;
                delivery = pull.next() => {
                    let delivery = delivery.unwrap().unwrap();
                    delivery.acker.ack().await.unwrap();
                    seen.insert(delivery.sequence);
                    break;
                }
                () = tokio::task::yield_now() => {}
            }
        }
    }
    publisher.await.unwrap();
    // All others are there long before `ack_wait`.
    while seen.len() < MESSAGES {
        let delivery = take(&bus).await;
        delivery.acker.ack().await.unwrap();
        seen.insert(delivery.sequence);
    }
    until_messages(&bus, 0).await;
}

pub(crate) async fn aborted_waiters_lose_nothing(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let mut published = 0;
    for round in 0..40 {
        let mut waiters = JoinSet::new();
        for _ in 0..3 {
            let (bus, seen) = (bus.clone(), seen.clone());
            waiters.spawn(async move {
                let mut pull = bus.pull(STREAM, CONSUMER, 2, SOON).await.unwrap();
                while let Some(delivery) = pull.next().await.unwrap() {
                    seen.lock().unwrap().insert(delivery.sequence);
                }
            });
        }
        for n in 0..3 {
            publish(&bus, message("case.x", "")).await;
            published += 1;
            if n == round % 3 {
                waiters.abort_all();
            }
        }
        waiters.shutdown().await;
    }
    while seen.lock().unwrap().len() < published {
        let sequence = take(&bus).await.sequence;
        seen.lock().unwrap().insert(sequence);
    }
}

pub(crate) async fn old_messages_go(bus: Arc<dyn Bus>) {
    let short = StreamSpec { max_age: Duration::from_millis(500), ..stream() };
    set_up_with(&bus, short, consumer()).await;
    publish(&bus, message("case.x", "old")).await;
    until_messages(&bus, 0).await;
    assert!(quiet(&bus, CONSUMER, QUIET).await);
    assert_eq!(publish(&bus, message("case.x", "new")).await, 2);
    assert_eq!(text(&take(&bus).await.message), "new");
}

pub(crate) async fn a_closed_bus_says_so(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    publish(&bus, message("case.x", "")).await;
    let delivery = take(&bus).await;
    let mut subscription = bus.subscribe("plain", None, 10).await.unwrap();
    let mut pull = bus.pull(STREAM, CONSUMER, 1, SOON).await.unwrap();
    let waiting = tokio::spawn(async move { (subscription.next().await, pull.next().await) });
    bus.close().await;
    bus.close().await;
    let (received, pulled) = waiting.await.unwrap();
    assert_eq!(received, None);
    assert!(!matches!(pulled, Ok(Some(_))), "{pulled:?}");
    let closed = |error: Option<BusError>| assert_eq!(error, Some(BusError::Closed));
    closed(publish_one(&bus, message("case.x", "")).await.err());
    closed(bus.pull(STREAM, CONSUMER, 1, SOON).await.err());
    closed(bus.notify(message("plain", "")).await.err());
    closed(bus.respond("plain", Headers::new(), "".into()).await.err());
    closed(bus.request(message("plain", ""), SOON).await.err());
    closed(bus.subscribe("plain", None, 1).await.err());
    closed(bus.ensure_stream(&stream()).await.err());
    closed(bus.ensure_consumer(&consumer()).await.err());
    closed(bus.stream_state(STREAM).await.err());
    closed(bus.delete_consumer(STREAM, CONSUMER).await.err());
    closed(delivery.acker.ack().await.err());
}
