//! Messages per second and latency of both buses on this machine: `cargo run --release -p ditto-bus --example
//! throughput`. For comparing, not a test.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use bytes::Bytes;
use ditto_bus::{
    Bus, ConsumerSpec, Message, StreamSpec,
    local::LocalBus,
    nats::{NatsBus, NatsConfig},
};
use ditto_contracts::wire::{Headers, names};
use ditto_test_servers::Nats;
use tokio::task::JoinSet;

const JOBS: &str = "BENCH_JOBS";
const RESULTS: &str = "BENCH_RESULTS";
const CONSUMER: &str = "bench";
const EXPIRES: Duration = Duration::from_secs(5);
const BODY_BYTES: usize = 300;

#[tokio::main]
async fn main() -> Result<()> {
    println!("{:<6} {:<52} {:>12}", "bus", "what", "per second");
    measure("local", LocalBus::new(), 400_000).await?;
    let server = Nats::start().await?;
    let bus = NatsBus::connect(&NatsConfig::for_url(server.url())).await?;
    measure("nats", bus.clone(), 40_000).await?;
    bus.close().await;
    Ok(())
}

async fn measure(name: &str, bus: Arc<dyn Bus>, count: usize) -> Result<()> {
    for (stream, subject) in [(JOBS, "bench.jobs.>"), (RESULTS, "bench.results.>")] {
        let spec = StreamSpec {
            name: stream,
            subjects: vec![subject.to_owned()],
            max_bytes: 1 << 30,
            max_age: Duration::from_secs(86_400),
            max_message_bytes: 512 * 1024,
            duplicate_window: Duration::from_secs(120),
            replicas: 1,
        };
        bus.ensure_stream(&spec).await?;
        let spec = ConsumerSpec {
            stream,
            name: CONSUMER.to_owned(),
            filter_subjects: vec![subject.to_owned()],
            ack_wait: Duration::from_secs(30),
            max_deliver: 20,
            max_ack_pending: 100_000,
        };
        bus.ensure_consumer(&spec).await?;
    }
    let show = |what: &str, n: usize, took: Duration| {
        println!("{name:<6} {what:<52} {:>12.0}", n as f64 / took.as_secs_f64());
    };

    let started = Instant::now();
    for batch in 0..count / 100 {
        let messages = (0..100).map(|n| job("bench.jobs.A", batch * 100 + n)).collect();
        for answer in bus.publish(messages).await {
            answer?;
        }
    }
    show("published, 100 a call, one caller", count, started.elapsed());

    let started = Instant::now();
    drain(&bus, JOBS, count).await?;
    show("pulled and acked, one puller of 64", count, started.elapsed());

    let started = Instant::now();
    steps(&bus, count / 2, 64).await?;
    show("steps (job, request, result), 4 workers, 64 in flight", count / 2, started.elapsed());

    latency(name, &bus).await
}

fn job(subject: &str, n: usize) -> Message {
    let mut headers = Headers::new();
    headers.push(names::MSG_ID, format!("{subject}.{n}"));
    headers.push(names::WIRE, "1");
    headers.push(names::CALL, "01hzzzzzzzzzzzzzzzzzzzzzzz");
    headers.push(names::BUCKET, "20000");
    headers.push(names::LOOP, "01hzzzzzzzzzzzzzzzzzzzzzzy");
    headers.push(names::NODE, "INTERACTION.ACT.TOOL");
    headers.push(names::CLASS, "N");
    headers.push(names::REQUEST_HASH, "0".repeat(64));
    headers.push(names::REPLY, "bench.results.0");
    Message { subject: subject.to_owned(), headers, body: Bytes::from(vec![b'x'; BODY_BYTES]) }
}

async fn drain(bus: &Arc<dyn Bus>, stream: &'static str, count: usize) -> Result<()> {
    let mut seen = 0;
    while seen < count {
        let mut pull = bus.pull(stream, CONSUMER, 64, EXPIRES).await?;
        while let Some(delivery) = pull.next().await? {
            delivery.acker.ack().await?;
            seen += 1;
        }
    }
    Ok(())
}

/// A fleet in miniature: a publisher of jobs, workers that claim by request and publish results, one that takes them.
async fn steps(bus: &Arc<dyn Bus>, count: usize, in_flight: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    let mut claims = bus.subscribe("bench.claim", Some("coordinators"), 10_000).await?;
    let coordinator = bus.clone();
    tasks.spawn(async move {
        while let Some(claim) = claims.next().await {
            let reply = claim.reply.context("a claim without a reply subject")?;
            coordinator.respond(&reply, Headers::new(), Bytes::from_static(b"granted")).await?;
        }
        Ok(())
    });
    for _ in 0..4 {
        let bus = bus.clone();
        tasks.spawn(async move {
            loop {
                let mut pull = bus.pull(JOBS, CONSUMER, 16, EXPIRES).await?;
                while let Some(first) = pull.next().await? {
                    let mut batch = vec![first];
                    batch.extend(std::iter::from_fn(|| pull.try_next()));
                    let claim = Message {
                        subject: "bench.claim".to_owned(),
                        headers: Headers::new(),
                        body: Bytes::from(vec![b'c'; 60 * batch.len()]),
                    };
                    bus.request(claim, EXPIRES).await?;
                    for delivery in &batch {
                        delivery.acker.ack().await?;
                    }
                    let results = batch.iter().map(|delivery| job("bench.results.0", delivery.sequence as usize));
                    for answer in bus.publish(results.collect()).await {
                        answer?;
                    }
                }
            }
        });
    }
    let credit = Arc::new(tokio::sync::Semaphore::new(in_flight));
    let (publisher, wanted) = (bus.clone(), credit.clone());
    tasks.spawn(async move {
        let mut sent = 0;
        while sent < count {
            wanted.acquire().await?.forget();
            let mut batch = 1;
            while batch < 64 && sent + batch < count && wanted.try_acquire().map(|permit| permit.forget()).is_ok() {
                batch += 1;
            }
            let jobs = (0..batch).map(|n| job("bench.jobs.B", sent + n)).collect();
            for answer in publisher.publish(jobs).await {
                answer?;
            }
            sent += batch;
        }
        std::future::pending::<Result<()>>().await
    });
    let mut settled = 0;
    while settled < count {
        let mut pull = bus.pull(RESULTS, CONSUMER, 256, EXPIRES).await?;
        while let Some(delivery) = pull.next().await? {
            delivery.acker.ack().await?;
            credit.add_permits(1);
            settled += 1;
            if settled == count {
                break;
            }
        }
        if let Some(ended) = tasks.try_join_next() {
            ended??;
        }
    }
    // A worker that is cancelled while it runs may hold a message: none of what comes next.
    tasks.shutdown().await;
    Ok(())
}

/// From publish to the wake-up of a waiting pull, and one request with its answer.
async fn latency(name: &str, bus: &Arc<dyn Bus>) -> Result<()> {
    const ROUNDS: usize = 1_000;
    let mut woken = Vec::with_capacity(ROUNDS);
    for n in 0..ROUNDS {
        let mut pull = bus.pull(JOBS, CONSUMER, 1, EXPIRES).await?;
        let waiting = tokio::spawn(async move { (pull.next().await, Instant::now()) });
        tokio::task::yield_now().await;
        let started = Instant::now();
        for answer in bus.publish(vec![job("bench.jobs.C", n)]).await {
            answer?;
        }
        let (delivery, at) = waiting.await?;
        delivery?.context("nothing came")?.acker.ack().await?;
        woken.push(at.saturating_duration_since(started));
    }
    let mut served = bus.subscribe("bench.echo", None, 100).await?;
    let echo = bus.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Some(request) = served.next().await {
            if let Some(reply) = request.reply
                && echo.respond(&reply, Headers::new(), request.message.body).await.is_err()
            {
                return;
            }
        }
    });
    let mut answered = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let request =
            Message { subject: "bench.echo".to_owned(), headers: Headers::new(), body: Bytes::from_static(b"x") };
        bus.request(request, EXPIRES).await?;
        answered.push(started.elapsed());
    }
    for (what, mut times) in [("publish to wake-up", woken), ("request and answer", answered)] {
        times.sort_unstable();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
        println!("{name:<6} {what:<52} p50 {:?}, p99 {:?}", at(50), at(99));
    }
    Ok(())
}
