//! The test servers themselves: each starts, answers, keeps its data across a kill, and is gone after its guard.

use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use ditto_test_servers::{Nats, NatsOptions, Postgres, PostgresOptions, Redis};
use sqlx::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long anything here may take: far longer than it does, so that only a fault runs into it.
const BOUND: Duration = Duration::from_secs(30);
/// How long a paused server is listened to: it must stay silent for all of it.
const SILENCE: Duration = Duration::from_millis(200);

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen within {BOUND:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Whether the process exists and still does something.
fn lives(pid: u32) -> bool {
    if !Path::new("/proc/self/stat").exists() {
        return Command::new("sh").args(["-c", &format!("kill -0 {pid}")]).status().unwrap().success();
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

async fn one_text(server: &Postgres, database: &str, sql: &str) -> String {
    let rows = tokio::time::timeout(BOUND, server.query(database, sql)).await.unwrap().unwrap();
    rows.into_iter().flatten().flatten().next().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_what_it_committed_when_it_is_killed() {
    let server = Postgres::start().await.unwrap();
    let url = server.create_database("ledger").await.unwrap();
    assert_eq!(url, format!("postgres://postgres@127.0.0.1:{}/ledger", server.port()));
    assert_eq!(one_text(&server, "ledger", "SHOW fsync").await, "on");
    server.query("ledger", "CREATE TABLE t (n BIGINT); INSERT INTO t VALUES (42)").await.unwrap();
    assert!(server.create_database("ledger").await.is_err(), "a name can be taken once");
    assert!(server.create_database("x; DROP DATABASE ledger").await.is_err(), "a name is never SQL");

    server.kill9().unwrap();
    assert!(!answers(server.port()));
    assert!(server.pid().is_none());
    assert!(server.query("ledger", "SELECT 1").await.is_err());
    server.restart().await.unwrap();
    assert_eq!(server.url(), url.replace("/ledger", "/postgres"), "a restart keeps the port");
    assert_eq!(one_text(&server, "ledger", "SELECT n FROM t").await, "42");

    server.stop().unwrap();
    server.restart().await.unwrap();
    assert_eq!(one_text(&server, "ledger", "SELECT n FROM t").await, "42");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_pauses_with_every_backend_and_goes_on() {
    let server = Postgres::start_with(PostgresOptions::default().set("max_connections", "20")).await.unwrap();
    assert_eq!(one_text(&server, "postgres", "SHOW max_connections").await, "20");
    // A backend that is connected when the pause comes: it must fall silent as well, and answer afterwards.
    let mut connection = sqlx::PgConnection::connect(&server.url()).await.unwrap();
    sqlx::query("CREATE TABLE t AS SELECT 1::BIGINT AS n").execute(&mut connection).await.unwrap();
    server.pause().unwrap();
    let late = sqlx::query_scalar::<_, i64>("SELECT n FROM t").fetch_one(&mut connection);
    tokio::pin!(late);
    assert!(tokio::time::timeout(SILENCE, &mut late).await.is_err(), "a paused backend answered");
    let fresh = server.query("postgres", "SELECT 1");
    assert!(tokio::time::timeout(SILENCE, fresh).await.is_err(), "a paused server answered");
    server.resume().unwrap();
    assert_eq!(tokio::time::timeout(BOUND, late).await.unwrap().unwrap(), 1);

    server.pause().unwrap();
    server.kill9().unwrap();
    server.restart().await.unwrap();
    assert_eq!(one_text(&server, "postgres", "SELECT n FROM t").await, "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_is_gone_with_its_guard_running_paused_or_killed() {
    type Before = fn(&Postgres);
    let cases: [(&str, Before); 3] = [
        ("running", |_| ()),
        ("paused", |server| server.pause().unwrap()),
        ("killed", |server| server.kill9().unwrap()),
    ];
    for (state, before) in cases {
        let server = Postgres::start().await.unwrap();
        let (pid, port) = (server.pid().unwrap(), server.port());
        let dir = server.dir().to_owned();
        assert!(dir.exists());
        before(&server);
        drop(server);
        assert!(!lives(pid), "{state}: the process is there");
        assert!(!answers(port), "{state}: the port answers");
        assert!(!dir.exists(), "{state}: {} is there", dir.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_test_has_a_database_of_its_own() {
    let (one, two) = (Postgres::fresh_database().await.unwrap(), Postgres::fresh_database().await.unwrap());
    assert_ne!(one.url(), two.url());
    assert!(one.url().starts_with("postgres"), "{}", one.url());
}

/// The first line of an HTTP answer.
async fn http_status(url: &str, path: &str) -> String {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    tokio::time::timeout(BOUND, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer.lines().next().unwrap().to_owned()
}

async fn store(url: &str) -> jetstream::Context {
    let client = tokio::time::timeout(BOUND, async_nats::connect(url)).await.unwrap().unwrap();
    jetstream::new(client)
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_keeps_its_streams_when_killed_and_loses_them_when_wiped() {
    let server = Nats::start().await.unwrap();
    let config = || jetstream::stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept.>".to_owned()],
        ..Default::default()
    };
    let context = store(&server.url()).await;
    context.create_stream(config()).await.unwrap();
    context.publish("kept.one", "first".into()).await.unwrap().await.unwrap();

    let url = server.url();
    server.kill9().unwrap();
    assert!(!answers(server.port()));
    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    let stream = store(&url).await.get_stream("KEPT").await.unwrap();
    assert_eq!(stream.get_raw_message(1).await.unwrap().payload, "first");

    server.wipe_and_restart().await.unwrap();
    let context = store(&url).await;
    assert!(context.get_stream("KEPT").await.is_err(), "a wiped server has no streams");
    context.create_stream(config()).await.unwrap();
    let ack = context.publish("kept.one", "again".into()).await.unwrap().await.unwrap();
    assert_eq!(ack.sequence, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_pauses_goes_on_and_is_gone_with_its_guard() {
    let server =
        Nats::start_with(NatsOptions { monitoring: true, config: "max_payload: 4096".to_owned() }).await.unwrap();
    let health = http_status(&server.monitoring_url().unwrap(), "/healthz").await;
    assert_eq!(health, "HTTP/1.1 200 OK");
    let client = async_nats::connect(server.url()).await.unwrap();
    assert_eq!(client.server_info().max_payload, 4096);

    server.pause().unwrap();
    assert!(tokio::time::timeout(SILENCE, client.flush()).await.is_ok(), "a flush only fills the socket");
    assert!(
        tokio::time::timeout(SILENCE, async_nats::connect(server.url())).await.is_err(),
        "a paused server answered"
    );
    server.resume().unwrap();
    tokio::time::timeout(BOUND, async_nats::connect(server.url())).await.unwrap().unwrap();

    let (pid, port) = (server.pid().unwrap(), server.port());
    let dir = server.dir().to_owned();
    server.pause().unwrap();
    drop(server);
    assert!(!lives(pid) && !answers(port) && !dir.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_what_it_confirmed_when_it_is_killed() {
    let server = Redis::start().await.unwrap();
    server.command(&["SET", "key", "two words"]).await.unwrap();
    server.kill9().unwrap();
    assert!(server.command(&["PING"]).await.is_err());
    server.restart().await.unwrap();
    assert_eq!(server.command(&["GET", "key"]).await.unwrap().as_deref(), Some("two words"));

    server.pause().unwrap();
    assert!(tokio::time::timeout(SILENCE, server.command(&["PING"])).await.is_err(), "a paused server answered");
    server.resume().unwrap();
    assert_eq!(server.command(&["PING"]).await.unwrap().as_deref(), Some("PONG"));

    server.wipe_and_restart().await.unwrap();
    assert_eq!(server.command(&["GET", "key"]).await.unwrap(), None);
    assert!(server.command(&["NOT-A-COMMAND"]).await.is_err());
    let (pid, port) = (server.pid().unwrap(), server.port());
    let dir = server.dir().to_owned();
    drop(server);
    assert!(!lives(pid) && !answers(port) && !dir.exists());
}

/// Starts all three servers, prints what identifies them, and then waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn victim() {
    // Runs for real only as the child of the test below.
    let Ok(report) = std::env::var("DITTO_TEST_VICTIM_REPORT") else { return };
    let (postgres, nats, redis) =
        (Postgres::start().await.unwrap(), Nats::start().await.unwrap(), Redis::start().await.unwrap());
    postgres.pause().unwrap();
    let servers = [(postgres.pid(), postgres.dir()), (nats.pid(), nats.dir()), (redis.pid(), redis.dir())];
    let lines = servers.map(|(pid, dir)| format!("{} {}", pid.unwrap(), dir.display()));
    std::fs::write(format!("{report}.new"), lines.join("\n")).unwrap();
    std::fs::rename(format!("{report}.new"), report).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_the_test_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("servers");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "servers::victim"])
        .env("DITTO_TEST_VICTIM_REPORT", &report)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the victim's start", || report.exists()).await;
    let text = std::fs::read_to_string(&report).unwrap();
    let servers: Vec<(u32, PathBuf)> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(pid, dir)| (pid.parse().unwrap(), PathBuf::from(dir)))
        .collect();
    assert!(servers.iter().all(|(pid, dir)| lives(*pid) && dir.exists()));

    child.kill().unwrap();
    child.wait().unwrap();
    until("the end of the servers", || !servers.iter().any(|(pid, _)| lives(*pid))).await;
    until("the end of their directories", || !servers.iter().any(|(_, dir)| dir.exists())).await;
}
