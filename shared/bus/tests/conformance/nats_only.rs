//! What only a server can do: die, forget, freeze, refuse.

use std::{path::PathBuf, sync::Arc, time::Duration};

use ditto_bus::{
    Bus, BusError, BusEvent, ConsumerSpec,
    nats::{ConnectError, NatsBus, NatsConfig, NatsTls, Secret},
};
use ditto_test_servers::{Nats, NatsOptions, free_port};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, net::TcpStream, time::Instant};

use crate::support::*;

/// A bus that notices quickly.
async fn quick(server: &Nats) -> Arc<dyn Bus> {
    let config = NatsConfig {
        ping_interval_ms: 500,
        request_timeout_ms: 500,
        reconnect_max_ms: 200,
        connect_timeout_ms: 1000,
        ..NatsConfig::for_url(server.url())
    };
    NatsBus::connect(&config).await.unwrap()
}

async fn next_of(events: &mut tokio::sync::broadcast::Receiver<BusEvent>, wanted: BusEvent) {
    let wait = async { while events.recv().await.unwrap() != wanted {} };
    tokio::time::timeout(Duration::from_secs(20), wait).await.unwrap();
}

#[tokio::test]
async fn a_killed_server_is_survived() {
    let server = Nats::start().await.unwrap();
    let bus = quick(&server).await;
    // A server that dies forgets what was given back and waits for `ack_wait`.
    set_up_with(&bus, stream(), ConsumerSpec { ack_wait: Duration::from_secs(2), ..consumer() }).await;
    let created = bus.stream_state(STREAM).await.unwrap().created_ms;
    publish(&bus, message("case.x", "before")).await;
    let mut events = bus.events();
    let mut subscription = bus.subscribe("plain", None, 10).await.unwrap();
    take(&bus).await.acker.nak(Duration::from_secs(1)).await.unwrap();
    let waiting = tokio::spawn({
        let mut pull = bus.pull(STREAM, CONSUMER, 1, Duration::from_secs(60)).await.unwrap();
        async move { pull.next().await }
    });
    // The pull has reached the server when the answer to a later request is here.
    bus.stream_state(STREAM).await.unwrap();
    server.kill9().unwrap();
    next_of(&mut events, BusEvent::Disconnected).await;
    let ended = waiting.await.unwrap();
    assert!(matches!(ended, Err(BusError::Maybe { .. })), "{ended:?}");

    let maybe = |error: Option<BusError>| assert!(matches!(error, Some(BusError::Maybe { .. })), "{error:?}");
    let started = Instant::now();
    maybe(publish_one(&bus, message("case.x", "")).await.err());
    maybe(bus.pull(STREAM, CONSUMER, 1, SOON).await.err());
    maybe(bus.notify(message("plain", "")).await.err());
    maybe(bus.request(message("plain", ""), QUIET).await.err());
    maybe(bus.stream_state(STREAM).await.err());
    maybe(bus.ensure_stream(&stream()).await.err());
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());

    server.restart().await.unwrap();
    next_of(&mut events, BusEvent::Connected).await;
    eventually(async || bus.ensure_stream(&stream()).await.is_ok_and(|state| state.created_ms == created)).await;
    assert_eq!(text(&take(&bus).await.message), "before", "pulls work again after re-opening");
    publish(&bus, message("case.x", "after")).await;
    // Subscriptions were made again before anything else was sent.
    bus.notify(message("plain", "still here")).await.unwrap();
    assert_eq!(text(&subscription.next().await.unwrap().message), "still here");
}

#[tokio::test]
async fn a_wiped_server_is_seen() {
    let server = Nats::start().await.unwrap();
    let bus = quick(&server).await;
    set_up(&bus).await;
    publish(&bus, message("case.x", "gone")).await;
    let before = bus.stream_state(STREAM).await.unwrap();
    let mut events = bus.events();
    server.wipe_and_restart().await.unwrap();
    next_of(&mut events, BusEvent::Connected).await;
    let missing = bus.stream_state(STREAM).await;
    assert!(matches!(missing, Err(BusError::Missing(_))), "{missing:?}");
    let missing = publish_one(&bus, message("case.x", "")).await;
    assert!(matches!(missing, Err(BusError::Missing(_))), "{missing:?}");
    // The consumer was known: the loss shows at the latest when the pull is read.
    let pulled = match bus.pull(STREAM, CONSUMER, 1, SOON).await {
        Ok(mut pull) => pull.next().await.err(),
        Err(error) => Some(error),
    };
    assert!(matches!(pulled, Some(BusError::Missing(_))), "{pulled:?}");
    let again = bus.pull(STREAM, CONSUMER, 1, SOON).await.err();
    assert!(matches!(again, Some(BusError::Missing(_))), "{again:?}");

    let after = bus.ensure_stream(&stream()).await.unwrap();
    assert!(after.created_now && after.last_sequence < before.last_sequence, "{after:?}");
    assert!(after.created_ms > before.created_ms);
    bus.ensure_consumer(&consumer()).await.unwrap();
    publish(&bus, message("case.x", "new")).await;
    assert_eq!(text(&take(&bus).await.message), "new");
}

#[tokio::test]
async fn a_frozen_server_leaves_a_maybe() {
    let server = Nats::start().await.unwrap();
    let bus = quick(&server).await;
    set_up(&bus).await;
    publish(&bus, message("case.x", "first")).await;
    let delivery = take(&bus).await;
    server.pause().unwrap();
    let started = Instant::now();
    let answers = bus.publish((0..300).map(|n| with_id("case.x", &format!("m{n}"))).collect()).await;
    let error = answers.iter().find(|answer| !matches!(answer, Err(BusError::Maybe { .. })));
    assert_eq!(error, None);
    assert!(matches!(bus.stream_state(STREAM).await, Err(BusError::Maybe { .. })));
    // Answers are handed to the connection, or fail in time.
    let _ = delivery.acker.ack().await;
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    server.resume().unwrap();
    // What was in doubt is settled by asking again under the same id.
    for n in 0..300 {
        let id = format!("m{n}");
        eventually(async || publish_one(&bus, with_id("case.x", &id)).await.is_ok()).await;
    }
    eventually(async || matches!(bus.stream_state(STREAM).await, Ok(state) if (300..=301).contains(&state.messages)))
        .await;
    assert!(take(&bus).await.sequence > 0);
}

#[tokio::test]
async fn a_server_that_stays_frozen_is_given_up() {
    let server = Nats::start().await.unwrap();
    let bus = quick(&server).await;
    set_up(&bus).await;
    let mut events = bus.events();
    let mut subscription = bus.subscribe("plain", Some("crew"), 10).await.unwrap();
    let waiting = tokio::spawn({
        let mut pull = bus.pull(STREAM, CONSUMER, 1, Duration::from_secs(60)).await.unwrap();
        async move { pull.next().await }
    });
    server.pause().unwrap();
    // By missing signs of life; the kernel keeps the connection open.
    next_of(&mut events, BusEvent::Disconnected).await;
    let ended = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "{ended:?}");
    server.resume().unwrap();
    next_of(&mut events, BusEvent::Connected).await;
    publish(&bus, message("case.x", "again")).await;
    assert_eq!(text(&take(&bus).await.message), "again");
    bus.notify(message("plain", "still here")).await.unwrap();
    assert_eq!(text(&subscription.next().await.unwrap().message), "still here");
}

#[tokio::test]
async fn the_limit_of_the_server_counts() {
    let options = NatsOptions { config: "max_payload: 8192".to_owned(), ..NatsOptions::default() };
    let server = Nats::start_with(options).await.unwrap();
    let bus: Arc<dyn Bus> = connect(&server).await;
    set_up(&bus).await;
    assert_eq!(bus.limits().max_message_bytes, 8192);
    let mut events = bus.events();
    let refused = publish_one(&bus, message("case.x", vec![0; 8193])).await;
    assert_eq!(refused, Err(BusError::TooLarge { size: 8193, max: 8192 }));
    assert!(matches!(bus.notify(message("p", vec![0; 9000])).await, Err(BusError::TooLarge { .. })));
    // The largest one passes, headers included, and the connection was never lost.
    let mut largest = message("case.x", Vec::new());
    largest.headers.push("Ditto-Call", "x");
    largest.body = vec![1; 8192 - "NATS/1.0\r\nDitto-Call: x\r\n\r\n".len()].into();
    publish(&bus, largest).await;
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn rights_and_credentials_are_told() {
    // Without credentials one is the boss, which is how the guard sees that JetStream answers.
    let config = "no_auth_user: boss
        authorization { users: [
        { user: boss, password: s3cret-boss },
        { user: worker, password: s3cret-worker, permissions: {
            publish: [\"case.>\", \"$JS.API.CONSUMER.MSG.NEXT.CASE.worker\", \"$JS.API.CONSUMER.INFO.CASE.worker\", \"$JS.ACK.>\"],
            subscribe: [\"inbox.worker.>\", \"cancel.me\"] } } ] }";
    let options = NatsOptions { config: config.to_owned(), ..NatsOptions::default() };
    let server = Nats::start_with(options).await.unwrap();
    let login = |user: &str, password: &str| NatsConfig {
        user: Some(user.to_owned()),
        password: Some(Secret::new(password)),
        request_timeout_ms: 500,
        ..NatsConfig::for_url(server.url())
    };
    let refused = NatsBus::connect(&login("boss", "s3cret-wrong")).await.err().unwrap();
    assert!(matches!(refused, ConnectError::Refused { .. }), "{refused:?}");
    assert!(!format!("{refused} {refused:?}").contains("s3cret"));

    let boss: Arc<dyn Bus> = NatsBus::connect(&login("boss", "s3cret-boss")).await.unwrap();
    set_up(&boss).await;
    let config = NatsConfig {
        inbox_prefix: Some("inbox.worker".to_owned()),
        advisories: false,
        ..login("worker", "s3cret-worker")
    };
    let worker: Arc<dyn Bus> = NatsBus::connect(&config).await.unwrap();
    publish(&worker, message("case.x", "by worker")).await;
    take(&worker).await.acker.ack().await.unwrap();
    until_messages(&boss, 0).await;
    let denied = worker.ensure_stream(&stream()).await;
    assert!(matches!(denied, Err(BusError::Denied(_))), "{denied:?}");
    let denied = publish_one(&worker, message("other.x", "")).await;
    assert!(matches!(denied, Err(BusError::Denied(_))), "{denied:?}");
}

#[tokio::test]
async fn an_absent_server_is_an_error_in_time() {
    let url = format!("nats://user:s3cret@127.0.0.1:{}", free_port().unwrap());
    let config = NatsConfig { connect_retry_ms: 500, ..NatsConfig::for_url(url) };
    let started = Instant::now();
    let error = NatsBus::connect(&config).await.err().unwrap();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1") && !error.to_string().contains("s3cret"), "{error}");
    assert!(started.elapsed() < SOON);
}

#[tokio::test]
async fn a_late_server_is_waited_for() {
    let server = Nats::start().await.unwrap();
    server.stop().unwrap();
    let config = NatsConfig { connect_retry_ms: 20_000, ..NatsConfig::for_url(server.url()) };
    let connecting = tokio::spawn(async move { NatsBus::connect(&config).await });
    tokio::task::yield_now().await;
    server.restart().await.unwrap();
    let bus: Arc<dyn Bus> = connecting.await.unwrap().unwrap();
    set_up(&bus).await;
}

#[tokio::test]
async fn two_connections_see_one_bus() {
    let server = Nats::start().await.unwrap();
    let (one, two): (Arc<dyn Bus>, Arc<dyn Bus>) = (connect(&server).await, connect(&server).await);
    set_up(&one).await;
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { take(&two).await }
    });
    publish(&one, message("case.x", "across")).await;
    let delivery = waiting.await.unwrap();
    assert_eq!(text(&delivery.message), "across");
    delivery.acker.ack().await.unwrap();
    until_messages(&one, 0).await;
}

#[tokio::test]
async fn a_foreign_message_of_broken_bytes_does_no_lasting_harm() {
    let server = Nats::start().await.unwrap();
    let bus = quick(&server).await;
    let mut subscription = bus.subscribe("plain", None, 10).await.unwrap();
    bus.notify(message("plain", "here")).await.unwrap();
    subscription.next().await.unwrap();
    let mut foreign = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    let headers = b"NATS/1.0\r\nOdd: \xff\xfe\r\n\r\n";
    let mut frame = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    frame.extend(format!("HPUB plain {0} {0}\r\n", headers.len()).into_bytes());
    frame.extend(headers);
    frame.extend(b"\r\nPUB _INBOX..bad 0\r\n\r\nPING\r\n");
    foreign.write_all(&frame).await.unwrap();
    // The client library gives up the connection over it; the bus comes back by itself.
    eventually(async || {
        let _ = bus.notify(message("plain", "after")).await;
        std::iter::from_fn(|| subscription.try_next()).any(|received| received.message.body == "after")
    })
    .await;
}

/// An authority and a server certificate of it, as files.
struct Authority {
    dir: TempDir,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let server_key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&server_key, &issuer).unwrap();
        let dir = TempDir::new().unwrap();
        for (name, text) in [("ca", own.pem()), ("cert", server.pem()), ("key", server_key.serialize_pem())] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

#[tokio::test]
async fn tls_needs_the_right_authority() {
    let authority = Authority::new();
    // Plain connections stay possible, which is how the guard sees that JetStream answers.
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}\nallow_non_tls: true",
        authority.path("cert"),
        authority.path("key")
    );
    let server = Nats::start_with(NatsOptions { config: tls, ..NatsOptions::default() }).await.unwrap();
    let trusting = |ca: PathBuf| NatsConfig {
        tls: NatsTls { required: true, ca_file: Some(ca), ..NatsTls::default() },
        ..NatsConfig::for_url(server.url())
    };
    let bus: Arc<dyn Bus> = NatsBus::connect(&trusting(authority.path("ca"))).await.unwrap();
    set_up(&bus).await;
    publish(&bus, message("case.x", "sealed")).await;
    assert_eq!(text(&take(&bus).await.message), "sealed");

    let stranger = Authority::new();
    let refused = NatsBus::connect(&trusting(stranger.path("ca"))).await.err().unwrap();
    assert!(matches!(refused, ConnectError::Tls { .. } | ConnectError::Unreachable { .. }), "{refused:?}");
    let absent = NatsBus::connect(&trusting(authority.path("nothing"))).await.err().unwrap();
    assert!(matches!(absent, ConnectError::Tls { .. }), "{absent:?}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let server = Nats::start().await.unwrap();
    let tls = NatsTls { required: true, ..NatsTls::default() };
    let refused = NatsBus::connect(&NatsConfig { tls, ..NatsConfig::for_url(server.url()) }).await;
    assert!(refused.is_err());
}
