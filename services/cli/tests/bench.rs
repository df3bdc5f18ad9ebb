//! `ditto bench --quick` runs every workload and yields a number for every figure. Never a timed test: nothing here
//! looks at how large a number is.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails loudly")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Command, Stdio},
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
