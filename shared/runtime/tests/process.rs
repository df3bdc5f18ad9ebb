//! What only a whole process shows: faults that kill it, signals, and telemetry that arrives at a receiver.
//!
//! Each test starts this same executable again, with the name of its part in a variable that [`child`] reads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use ditto_runtime::shutdown::Shutdown;
use ditto_runtime::telemetry::{self, ExportConfig, LogConfig, LogFormat, TelemetryConfig};
use ditto_runtime::{config, fault, metrics};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const PART: &str = "DITTO_TEST_PART";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Not a test of its own: what the started processes run. Without its variable it does nothing.
#[test]
fn child() {
    match std::env::var(PART).as_deref() {
        Ok("fault") => {
            for passing in 1..=3 {
                println!("passing {passing}");
                println!("{:?}", fault::point_now("here"));
            }
        }
        Ok("signals") => tokio::runtime::Runtime::new().unwrap().block_on(async {
            let shutdown = Shutdown::listen().unwrap();
            println!("ready");
            shutdown.token().cancelled().await;
            println!("stopping");
            if std::env::var("HANG").is_ok() {
                std::future::pending::<()>().await;
            }
        }),
        Ok("telemetry") => tokio::runtime::Runtime::new().unwrap().block_on(async {
            let config = TelemetryConfig {
                log: LogConfig { format: LogFormat::Json, ..LogConfig::default() },
                export: ExportConfig {
                    endpoint: std::env::var("ENDPOINT").ok(),
                    shutdown_timeout: config::DurationMs::from_ms(1_000),
                    ..ExportConfig::default()
                },
            };
            let guard = telemetry::init(&config, "ditto-under-test").unwrap();
            let span = tracing::info_span!("node.handle", call_id = "call-77");
            telemetry::set_parent(&span, Some(PARENT), None);
            println!("enabled {}", telemetry::enabled());
            println!("traceparent {:?}", telemetry::inject(&span).0);
            span.in_scope(|| tracing::warn!("a line that is exported"));
            drop(span);
            metrics::meter().u64_counter("ditto.test.calls").build().add(5, &[]);
            assert!(metrics::render().contains("ditto_test_calls_total 5"));
            let start = Instant::now();
            guard.shutdown();
            assert!(start.elapsed() < Duration::from_secs(5), "ending took {:?}", start.elapsed());
        }),
        _ => {}
    }
}

fn start(part: &str, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(PART, part)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn fault_run(spec: &str, log: &Path) -> Child {
    start("fault", &[(fault::VARIABLE, spec), (fault::LOG_VARIABLE, log.to_str().unwrap())])
}

fn wait_for_line(child: &mut Child, line: &str) -> BufReader<std::process::ChildStdout> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut read = String::new();
    while !read.ends_with(&format!("{line}\n")) {
        assert_ne!(lines.read_line(&mut read).unwrap(), 0, "ended without `{line}`: {read}");
    }
    lines
}

#[test]
fn a_fault_does_what_it_says_and_leaves_a_line_before() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("fault.log");

    let killed = fault_run("here:2:kill", &log);
    let id = killed.id();
    let output = killed.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.signal(), Some(9), "{text}");
    assert!(text.contains("passing 2") && !text.contains("passing 3"), "{text}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), format!("here:2:kill {id}\n"));

    let exited = fault_run("elsewhere:1:kill,here:3:exit", &log).wait_with_output().unwrap();
    assert_eq!(exited.status.code(), Some(fault::EXIT_CODE));

    let dropped = fault_run("here:2:drop", &log).wait_with_output().unwrap();
    let text = String::from_utf8(dropped.stdout).unwrap();
    assert!(dropped.status.success(), "{text}");
    assert_eq!(text.matches("\nDrop\n").count(), 1, "{text}");
    assert_eq!(text.matches("\nNone\n").count(), 2, "{text}");
    assert_eq!(std::fs::read_to_string(&log).unwrap().lines().count(), 3);

    let wrong = fault_run("here:2", &log).wait_with_output().unwrap();
    assert_eq!(wrong.status.code(), Some(fault::EXIT_CODE), "a fault that cannot be read must not be ignored");

    let quiet = start("fault", &[]).wait_with_output().unwrap();
    assert!(quiet.status.success());
}

#[test]
fn a_paused_process_goes_on_when_it_is_told_to() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("fault.log");
    let mut child = fault_run("here:1:pause", &log);
    let (_, status) = waitpid(Some(pid(&child)), WaitOptions::UNTRACED).unwrap().unwrap();
    assert_eq!(status.stopping_signal(), Some(Signal::STOP.as_raw()));
    assert!(std::fs::read_to_string(&log).unwrap().starts_with("here:1:pause "));
    kill_process(pid(&child), Signal::CONT).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_first_signal_asks_and_the_second_one_ends_the_process() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut child = start("signals", &[]);
        let mut rest = wait_for_line(&mut child, "ready");
        kill_process(pid(&child), signal).unwrap();
        let mut text = String::new();
        rest.read_to_string(&mut text).unwrap();
        assert!(text.contains("stopping"), "{text}");
        assert!(child.wait().unwrap().success());
    }
    let mut child = start("signals", &[("HANG", "1")]);
    let mut lines = wait_for_line(&mut child, "ready");
    kill_process(pid(&child), Signal::TERM).unwrap();
    let mut line = String::new();
    while !line.ends_with("stopping\n") {
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "{line}");
    }
    kill_process(pid(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// What an OTLP receiver got: path, content type, body.
type Received = Arc<Mutex<Vec<(String, String, Bytes)>>>;

async fn receiver() -> (String, Received) {
    let received = Received::default();
    let take = |State(received): State<Received>, uri: Uri, headers: HeaderMap, body: Bytes| async move {
        let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
        received.lock().unwrap().push((uri.path().to_owned(), kind, body));
    };
    let app = Router::new().fallback(take).with_state(received.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, received)
}

async fn finish(child: Child) -> (bool, String, String) {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn contains(body: &[u8], part: &[u8]) -> bool {
    body.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn traces_logs_and_metrics_arrive_at_an_otlp_receiver() {
    for variable in ["ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"] {
        let (address, received) = receiver().await;
        let (ended_well, out, err) = finish(start("telemetry", &[(variable, &address), ("DITTO_LOG", "warn")])).await;
        assert!(ended_well, "{out}\n{err}");
        assert!(out.contains("enabled true") && out.contains("00-0af7651916cd43dd8448eb211c80319c-"), "{out}");
        assert!(err.contains("\"traceId\":\"0af7651916cd43dd8448eb211c80319c\""), "{err}");
        let received = received.lock().unwrap();
        let trace_id = [0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c];
        for (path, parts) in [
            ("/v1/traces", vec!["node.handle".as_bytes(), b"call-77", b"ditto-under-test", &trace_id]),
            ("/v1/logs", vec![b"a line that is exported", &trace_id]),
            ("/v1/metrics", vec![b"ditto.test.calls"]),
        ] {
            let found = received.iter().any(|(at, kind, body)| {
                at == path && kind == "application/x-protobuf" && parts.iter().all(|part| contains(body, part))
            });
            let paths: Vec<_> = received.iter().map(|(at, kind, body)| (at, kind, body.len())).collect();
            assert!(found, "{variable} {path}: {paths:?}\n{err}");
        }
    }
}

#[tokio::test]
async fn without_an_endpoint_nothing_is_sent_and_a_dead_one_delays_the_end_only_a_little() {
    let (ended_well, out, err) = finish(start("telemetry", &[])).await;
    assert!(ended_well && out.contains("enabled false") && out.contains("traceparent None"), "{out}\n{err}");
    assert!(err.contains("a line that is exported"), "{err}");

    // Accepts connections and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let (ended_well, out, err) = finish(start("telemetry", &[("ENDPOINT", &address)])).await;
    assert!(ended_well, "{out}\n{err}");
}
