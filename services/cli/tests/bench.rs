//! `ditto bench --quick` runs every workload and yields a number for every figure. Never a timed test: nothing here
//! looks at how large a number is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// Figures that the kernel may refuse to give, as in a container.
const MAY_BE_ABSENT: [&str; 2] = ["flushesPerStep", "writtenKibPerStep"];

fn bench(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_ditto")).arg("bench").args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every leaf below a workload is a number.
fn numbers(path: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            assert!(!members.is_empty(), "{path} is empty");
            for (name, member) in members {
                if !MAY_BE_ABSENT.contains(&name.as_str()) {
                    numbers(&format!("{path}.{name}"), member);
                }
            }
        }
        Value::Number(_) => {}
        other => panic!("{path} is {other}"),
    }
}

fn complete(report: &Value, processes: &[&str], settings: &[&str]) {
    assert_eq!(report["quick"], true);
    assert!(report["machine"]["fdatasyncP50Us"].is_number() && report["machine"]["cores"].is_number(), "{report}");
    let variants = report["variants"].as_array().unwrap();
    assert_eq!(variants.iter().map(|v| v["class"].as_str().unwrap()).collect::<Vec<_>>(), ["R", "K"]);
    for variant in variants {
        for workload in ["w1", "w2", "w3", "w4", "w5", "w6"] {
            numbers(workload, &variant[workload]);
        }
        for setting in settings {
            assert!(variant["settings"][setting].is_string(), "{setting}: {}", variant["settings"]);
        }
        for process in processes {
            assert!(variant["w2"]["cost"]["cpuSPer1000"][process].is_object(), "{process}: {variant}");
            assert!(variant["w6"]["pssKib"][process].is_number(), "{process}: {variant}");
        }
        for (_, killed) in variant["w5"].as_object().unwrap() {
            // A keyed effect happens once, whatever is killed.
            assert!(variant["class"] == "R" || killed["repeats"]["max"] == 0.0, "{variant}");
        }
    }
}

#[test]
fn embedded() {
    let report = bench(&["--quick", "--embedded", "--json"]);
    complete(&report, &["engine"], &["ledger.version", "ledger.synchronous"]);
}

#[test]
fn fleet() {
    let report = bench(&["--quick", "--fleet", "--json"]);
    let settings = [
        "ledger.server_version",
        "ledger.fsync",
        "ledger.synchronous_commit",
        "nats.version",
        "jetstream.storage",
        "jetstream.sync_interval",
    ];
    complete(&report, &["coordinator", "worker", "postgres", "nats"], &settings);
}

/// A process that ends with the test.
struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

fn part(arguments: &[&str], effects: &std::path::Path) -> Part {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ditto"));
    command
        .args(arguments)
        .env("EFFECTS", effects)
        .env("DITTO_LOG", "warn")
        .env_remove("DITTO_CONFIG")
        .current_dir(effects.parent().unwrap());
    Part(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

/// Opens the stream of ends once the coordinator is there.
fn endings(address: &str) -> impl Iterator<Item = String> + use<> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    write!(stream, "GET /v1/endings HTTP/1.0\r\nhost: {address}\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains(" 200 "));
    assert!(lines.any(|line| line.is_empty()), "the head ends");
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_submits_over_nats_and_the_ends_are_told() {
    let nats = ditto_test_servers::Nats::start().await.unwrap();
    let address = format!("127.0.0.1:{}", ditto_test_servers::free_port().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let effects = dir.path().join("effects");
    let ledger = format!("sqlite:{}", dir.path().join("ledger.db").display());
    let _coordinator =
        part(&["coordinator", "--ledger", &ledger, "--nats", &nats.url(), "--listen", &address], &effects);
    let _worker = part(&["bench", "worker", "--nats", &nats.url()], &effects);
    let mut ends = endings(&address);

    let mut client = Command::new(env!("CARGO_BIN_EXE_ditto"))
        .args(["bench", "client", "--server", &format!("http://{address}"), "--nats", &nats.url()])
        .env("EFFECTS", &effects)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    writeln!(input, r#"{{"op":"run","kind":"chain","runs":3,"conc":2,"n":2,"tag":"a","class":"K"}}"#).unwrap();
    writeln!(input, r#"{{"op":"submit","kind":"fanout","runs":1,"conc":1,"n":5,"tag":"b","class":"R"}}"#).unwrap();
    drop(input);
    let answers: Vec<Value> = BufReader::new(client.stdout.take().unwrap())
        .lines()
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(client.wait().unwrap().success());
    assert_eq!(answers[0]["ready"], true);
    assert_eq!((answers[1]["ok"].clone(), answers[1]["run_us"].as_array().unwrap().len()), (true.into(), 3));
    assert_eq!((answers[2]["ok"].clone(), answers[2]["run_us"].as_array().unwrap().len()), (true.into(), 1));

    let mut told = 0;
    while told < 4 {
        let line = ends.next().unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            for end in serde_json::from_str::<Value>(data).unwrap().as_array().unwrap() {
                assert_eq!(end["status"], "completed");
                told += 1;
            }
        }
    }
    let text = std::fs::read_to_string(&effects).unwrap();
    let (done, steps): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.contains(" done "));
    assert_eq!((done.len(), steps.len()), (3, 3 * 2 + 5), "{text}");
}

#[test]
fn the_client_answers_every_line_and_ends_with_its_input() {
    let mut client = Command::new(env!("CARGO_BIN_EXE_ditto"))
        .args(["bench", "client", "--server", "http://127.0.0.1:9"])
        .env_remove("EFFECTS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = client.stdin.take().unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let mut answer = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(answer(), json!({ "ready": true }));
    for line in ["nonsense", r#"{"op":"run","kind":"chain","runs":1,"conc":1,"n":1,"tag":"a b","class":"R"}"#] {
        writeln!(input, "{line}").unwrap();
        assert_eq!(answer()["ok"], false);
    }
    drop(input);
    assert!(client.wait().unwrap().success());
}
