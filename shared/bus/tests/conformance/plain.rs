//! Plain messages, groups and requests.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use ditto_bus::{Bus, BusError, Subscription};
use ditto_contracts::wire::Headers;
use tokio::{task::JoinSet, time::Instant};

use crate::support::*;

/// Reads until the message that was sent last.
async fn read_until(subscription: &mut Box<dyn Subscription>, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let received = tokio::time::timeout(SOON, subscription.next()).await.unwrap().unwrap();
        if received.message.subject == last {
            return seen;
        }
        seen.push(text(&received.message));
    }
}

pub(crate) async fn wildcards_take_what_they_say(bus: Arc<dyn Bus>) {
    let mut one = bus.subscribe("a.*", None, 100).await.unwrap();
    let mut rest = bus.subscribe("a.>", None, 100).await.unwrap();
    let mut exact = bus.subscribe("a.b", None, 100).await.unwrap();
    for subject in ["a.b", "a.b.c", "a", "b.a", "a.c", "a.b.end"] {
        bus.notify(message(subject, subject.to_owned())).await.unwrap();
    }
    for subject in ["a.end"] {
        bus.notify(message(subject, "")).await.unwrap();
    }
    assert_eq!(read_until(&mut one, "a.end").await, ["a.b", "a.c"]);
    assert_eq!(read_until(&mut rest, "a.end").await, ["a.b", "a.b.c", "a.c", "a.b.end"]);
    bus.notify(message("a.b", "last")).await.unwrap();
    assert_eq!(text(&exact.next().await.unwrap().message), "a.b");
    assert_eq!(text(&exact.next().await.unwrap().message), "last");
    assert!(exact.try_next().is_none());
}

pub(crate) async fn a_group_shares_and_others_see_all(bus: Arc<dyn Bus>) {
    const MESSAGES: usize = 200;
    let mut all = bus.subscribe("work", None, 1000).await.unwrap();
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push(bus.subscribe("work", Some("crew"), 1000).await.unwrap());
    }
    let mut watchers = bus.subscribe("work", Some("watch"), 1000).await.unwrap();
    for n in 0..MESSAGES {
        bus.notify(message("work", n.to_string())).await.unwrap();
    }
    let expected: Vec<String> = (0..MESSAGES).map(|n| n.to_string()).collect();
    for subscription in [&mut all, &mut watchers] {
        let mut seen = Vec::new();
        while seen.len() < MESSAGES {
            seen.push(text(&subscription.next().await.unwrap().message));
        }
        assert_eq!(seen, expected);
    }
    let mut shares = vec![0; members.len()];
    let mut seen = Vec::new();
    eventually(async || {
        for (member, share) in members.iter_mut().zip(&mut shares) {
            while let Some(received) = member.try_next() {
                seen.push(text(&received.message).parse::<usize>().unwrap());
                *share += 1;
            }
        }
        seen.len() == MESSAGES
    })
    .await;
    seen.sort_unstable();
    assert_eq!(seen, (0..MESSAGES).collect::<Vec<_>>());
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    // A member that leaves gets nothing more.
    members.truncate(1);
    for n in 0..20 {
        bus.notify(message("work", format!("late {n}"))).await.unwrap();
    }
    let mut late = 0;
    eventually(async || {
        while members[0].try_next().is_some() {
            late += 1;
        }
        late == 20
    })
    .await;
}

pub(crate) async fn requests_get_their_own_answers(bus: Arc<dyn Bus>) {
    let mut server = bus.subscribe("ask", Some("servers"), 1000).await.unwrap();
    let serving = tokio::spawn({
        let bus = bus.clone();
        async move {
            while let Some(received) = server.next().await {
                let mut headers = Headers::new();
                headers.push("Ditto-Error", "none");
                let answer = format!("re: {}", text(&received.message));
                bus.respond(&received.reply.unwrap(), headers, answer.into()).await.unwrap();
            }
        }
    });
    let mut requests = JoinSet::new();
    for n in 0..100 {
        let bus = bus.clone();
        requests.spawn(async move {
            let answer = bus.request(message("ask", n.to_string()), SOON).await.unwrap();
            assert_eq!(text(&answer), format!("re: {n}"));
            assert_eq!(answer.headers.get("ditto-error"), Some("none"));
        });
    }
    while let Some(done) = requests.join_next().await {
        done.unwrap();
    }
    serving.abort();
}

pub(crate) async fn nobody_there_is_told_at_once(bus: Arc<dyn Bus>) {
    let started = Instant::now();
    assert_eq!(bus.request(message("ask", ""), SOON).await, Err(BusError::NoResponders));
    let server = bus.subscribe("ask", None, 10).await.unwrap();
    let maybe = bus.request(message("ask", ""), QUIET).await;
    assert!(matches!(maybe, Err(BusError::Maybe { .. })), "{maybe:?}");
    drop(server);
    eventually(async || bus.request(message("ask", ""), QUIET).await == Err(BusError::NoResponders)).await;
    assert!(started.elapsed() < SOON);
}

pub(crate) async fn silence_is_maybe(bus: Arc<dyn Bus>) {
    let mut server = bus.subscribe("ask", None, 10).await.unwrap();
    let started = Instant::now();
    let silence = bus.request(message("ask", "1"), QUIET).await;
    assert!(matches!(silence, Err(BusError::Maybe { operation: "request", .. })), "{silence:?}");
    assert!(started.elapsed() >= QUIET && started.elapsed() < SOON);
    // An answer that comes too late reaches nobody, also not the next request.
    let late = server.next().await.unwrap();
    let next = tokio::spawn({
        let bus = bus.clone();
        async move { bus.request(message("ask", "2"), SOON).await }
    });
    let second = server.next().await.unwrap();
    bus.respond(&late.reply.unwrap(), Headers::new(), Bytes::from_static(b"late")).await.unwrap();
    bus.respond(&second.reply.unwrap(), Headers::new(), Bytes::from_static(b"in time")).await.unwrap();
    assert_eq!(text(&next.await.unwrap().unwrap()), "in time");
}

pub(crate) async fn a_slow_reader_loses_the_oldest(bus: Arc<dyn Bus>) {
    let mut slow = bus.subscribe("news", None, 3).await.unwrap();
    let mut end = bus.subscribe("end", None, 1).await.unwrap();
    for n in 0..10 {
        bus.notify(message("news", n.to_string())).await.unwrap();
    }
    // Sent after them on the same connection, so they are here when it is.
    bus.notify(message("end", "")).await.unwrap();
    end.next().await.unwrap();
    for expected in ["7", "8", "9"] {
        assert_eq!(text(&slow.next().await.unwrap().message), expected);
    }
    assert!(slow.try_next().is_none());
    bus.notify(message("news", "10")).await.unwrap();
    assert_eq!(text(&slow.next().await.unwrap().message), "10");
}

pub(crate) async fn nobody_needs_to_listen(bus: Arc<dyn Bus>) {
    bus.notify(message("void", "x")).await.unwrap();
    bus.respond("_INBOX.gone.1", Headers::new(), Bytes::new()).await.unwrap();
    let mut subscription = bus.subscribe("void", None, 1).await.unwrap();
    let nothing = tokio::time::timeout(Duration::from_millis(200), subscription.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

pub(crate) async fn a_stream_stores_and_answers_what_is_sent_to_its_subjects(bus: Arc<dyn Bus>) {
    set_up(&bus).await;
    let mut watching = bus.subscribe("case.>", None, 10).await.unwrap();
    bus.notify(message("case.x", "sent")).await.unwrap();
    let answer = bus.request(message("case.x", "asked"), SOON).await.unwrap();
    assert!(text(&answer).contains("\"seq\":2"), "{answer:?}");
    publish(&bus, message("case.x", "published")).await;
    for expected in ["sent", "asked", "published"] {
        assert_eq!(text(&take(&bus).await.message), expected);
        assert_eq!(text(&watching.next().await.unwrap().message), expected);
    }
}

pub(crate) async fn malformed_subjects_are_refused(bus: Arc<dyn Bus>) {
    for subject in ["", "a..b", "a b", ".a", "a.\r\nPUB x 0"] {
        let refused =
            |error: Option<BusError>| assert!(matches!(error, Some(BusError::Denied(_))), "{subject:?}: {error:?}");
        refused(bus.notify(message(subject, "")).await.err());
        refused(bus.request(message(subject, ""), QUIET).await.err());
        refused(bus.respond(subject, Headers::new(), Bytes::new()).await.err());
        refused(bus.subscribe(subject, None, 1).await.err());
        refused(publish_one(&bus, message(subject, "")).await.err());
    }
    let refused = bus.notify(message("a.*", "")).await;
    assert!(matches!(refused, Err(BusError::Denied(_))), "{refused:?}");
}
