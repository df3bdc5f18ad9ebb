//! Clients and workers that know only the published wire: the plain NATS client for Python submits, and a Python worker
//! of a page serves a node.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use ditto_contracts::{ReceiptState, RunStatus, SettledBy};
use ditto_tests::{
    fleet::{Fleet, Shape},
    process::{Process, Spec, text},
};
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(60);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// Where the NATS client for Python is: named by `cargo xtask test`, else where `cargo xtask setup` put it.
fn python_path() -> String {
    if let Ok(path) = std::env::var("DITTO_TEST_PYTHONPATH") {
        return path;
    }
    let test = std::env::current_exe().unwrap();
    let found = test.ancestors().map(|dir| dir.join("test-servers/python")).find(|dir| dir.is_dir());
    text(&found.expect("no NATS client for Python: cargo xtask setup"))
}

fn python(name: &str, arguments: &[&str]) -> String {
    let output = Command::new("python3")
        .arg(script(name))
        .args(arguments)
        .env("PYTHONPATH", python_path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Submits by request and reply; answers the error code, if any, and the body.
fn submit(fleet: &Fleet, subject: &str, body: &str, headers: &[&str]) -> (Option<String>, Value) {
    let url = fleet.nats.url();
    let arguments: Vec<&str> = [url.as_str(), subject, body].into_iter().chain(headers.iter().copied()).collect();
    let answer: Value = serde_json::from_str(&python("submit.py", &arguments)).unwrap();
    let code = answer["headers"]["Ditto-Error"].as_str().map(str::to_owned);
    (code, serde_json::from_str(answer["body"].as_str().unwrap()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn python_submits_by_request_and_reply() {
    let fleet = Fleet::start(Shape { coordinators: 1, workers: 1 }).await;
    let subject = "ditto.submit.default.node.TEST.EFFECT.N";
    let body = json!({ "key": "order-7", "input": { "id": "seven" } }).to_string();
    let (code, first) = submit(&fleet, subject, &body, &[]);
    assert_eq!((code, &first["duplicate"]), (None, &json!(false)), "{first}");
    let (code, second) = submit(&fleet, subject, &body, &[]);
    assert_eq!((code, &second["duplicate"]), (None, &json!(true)), "{second}");
    assert_eq!(first["runId"], second["runId"]);
    let (_, by_header) =
        submit(&fleet, subject, &json!({ "input": { "id": "seven" } }).to_string(), &["Ditto-Submit-Key=order-7"]);
    assert_eq!((&by_header["runId"], &by_header["duplicate"]), (&first["runId"], &json!(true)));
    let run = fleet.ended(first["runId"].as_str().unwrap(), WITHIN).await;
    assert_eq!(run.status, RunStatus::Completed, "{run:?}");
    assert_eq!(fleet.effects.count("N"), [("seven".to_owned(), 1)].into());

    let graph = json!({ "key": "chain", "input": { "tag": "py", "steps": 3 } }).to_string();
    let (_, reply) = submit(&fleet, "ditto.submit.default.loop.chain-K", &graph, &[]);
    fleet.ended(reply["runId"].as_str().unwrap(), WITHIN).await;
    assert_eq!(fleet.effects.count("K").len(), 3);

    // Whatever is wrong is named.
    let long = format!("{{\"key\":\"{}\",\"input\":{{}}}}", "k".repeat(100 * 1024));
    let deep = format!("{{\"input\":{}{}}}", "[".repeat(129), "]".repeat(129));
    #[rustfmt::skip]
    let table: &[(&str, &str, &[&str], &str, &str)] = &[
        (subject, "{", &[], "INVALID_INPUT", "body: "),
        (subject, "{\"input\":{\"id\":\"x\",\"id\":\"y\"}}", &[], "INVALID_INPUT", "$.input.id"),
        (subject, "{\"input\":{\"id\":\"\\ud800\"}}", &[], "INVALID_INPUT", "$.input.id"),
        (subject, &deep, &[], "INVALID_INPUT", "$.input"),
        (subject, "{\"inputs\":{}}", &[], "INVALID_INPUT", "inputs"),
        (subject, "{\"key\":\"\",\"input\":{}}", &[], "INVALID_INPUT", "key"),
        (subject, "{\"key\":7,\"input\":{}}", &[], "INVALID_INPUT", "key"),
        (subject, "{\"key\":\"a\\u0000b\",\"input\":{}}", &[], "INVALID_INPUT", "key"),
        (subject, &long, &[], "INVALID_INPUT", "key"),
        (subject, &body, &["Ditto-Submit-Key= "], "INVALID_INPUT", "Submit-Key"),
        (subject, "{\"key\":\"order-7\",\"input\":{\"id\":\"eight\"}}", &[], "KEY_REUSED", "key"),
        ("ditto.submit.default.node.TEST", "{}", &[], "INVALID_INPUT", "name: "),
        ("ditto.submit.default.nodes.TEST.EFFECT.N", "{}", &[], "INVALID_INPUT", "subject"),
        ("ditto.submit.default.loop", "{}", &[], "INVALID_INPUT", "subject"),
        ("ditto.submit.default", "{}", &[], "INVALID_INPUT", "subject"),
        ("ditto.submit.a%b.loop.x", "{}", &[], "INVALID_INPUT", "subject"),
        ("ditto.submit.default.loop.nobody", "{}", &[], "DEFINITION_NOT_FOUND", "nobody"),
        ("ditto.submit.default.loop.caf\u{e9}", "{}", &[], "INVALID_INPUT", "subject"),
    ];
    let mut problems = Vec::new();
    let before = fleet.get("/v1/runs?limit=500").await.unwrap()["items"].as_array().unwrap().len();
    for (subject, body, headers, code, fragment) in table {
        let (found, answer) = submit(&fleet, subject, body, headers);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        if found.as_deref() != Some(*code) || !message.contains(fragment) {
            let shown: String = format!("{subject} {body}").chars().take(120).collect();
            problems.push(format!("{shown}: expected {code} about {fragment}, found {found:?} {answer}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    let after = fleet.get("/v1/runs?limit=500").await.unwrap()["items"].as_array().unwrap().len();
    assert_eq!(before, after, "what is refused leaves no run");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_stores_submissions_while_no_coordinator_is_up() {
    let mut fleet = Fleet::start(Shape { coordinators: 1, workers: 1 }).await;
    fleet.coordinators[0].kill9();
    let url = fleet.nats.url();
    let inbox = "ditto.inbox.default.node.TEST.EFFECT.N";
    let good = json!({ "key": "later", "input": { "id": "later" } }).to_string();
    let no_key = json!({ "input": { "id": "no-key" } }).to_string();
    let stored = python(
        "inbox.py",
        &[&url, inbox, &good, inbox, &good, inbox, &no_key, inbox, "{", "ditto.inbox.default.x.y", &good],
    );
    assert_eq!(stored.lines().collect::<Vec<_>>(), ["DITTO_SUBMIT"; 5]);

    fleet.coordinators[0].restart(None);
    let log = || fleet.coordinators[0].log();
    fleet
        .until("stored submissions are answered", WITHIN, async || {
            let refused = log().matches("stored submission was turned away").count();
            let done = fleet.effects.count("N").contains_key("later");
            (done && refused == 3).then_some(())
        })
        .await;
    assert!(log().contains("key: required for stored submissions"), "the missing field is named");
    let runs = fleet.get("/v1/runs?limit=500").await.unwrap();
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "the same key twice is one run: {runs}");
    let run = fleet.ended(runs["items"][0]["runId"].as_str().unwrap(), WITHIN).await;
    assert_eq!(run.status, RunStatus::Completed);
    assert_eq!(fleet.effects.count("N"), [("later".to_owned(), 1)].into());
}

fn worker(fleet: &Fleet, class: char) -> Process {
    let effects = fleet.dir().join(format!("python-{class}"));
    let arguments = [text(&script("worker.py")), fleet.nats.url(), node(class), class.into(), text(&effects)];
    let spec = Spec {
        name: format!("python-{class}"),
        program: "python3".into(),
        arguments: arguments.to_vec(),
        environment: vec![("PYTHONPATH".into(), python_path())],
        log: fleet.dir().join(format!("python-{class}.log")),
    };
    Process::start(spec, None)
}

fn node(class: char) -> String {
    format!("TEST.PYTHON.{class}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_worker_serves_a_node_and_is_killed_after_its_effect() {
    let fleet = Fleet::start(Shape { coordinators: 2, workers: 0 }).await;
    let mut workers = ['N', 'K'].map(|class| worker(&fleet, class));
    let logs = |workers: &[Process]| workers.iter().map(Process::log).collect::<String>();
    fleet
        .until("the Python workers serve", WITHIN, async || {
            let catalogue = fleet.get("/v1/catalogue").await?;
            (catalogue["items"].as_array()?.len() == 2).then_some(())
        })
        .await;
    let effects = |class: char| {
        let text = std::fs::read_to_string(fleet.dir().join(format!("python-{class}"))).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let begin = async |class: char, input: Value| {
        let body = json!({ "kind": "node", "name": node(class), "input": input });
        let (status, answer) = fleet.post("/v1/runs", &body).await;
        assert!(status.is_success(), "{answer}");
        answer["runId"].as_str().unwrap().to_owned()
    };
    for class in ['N', 'K'] {
        let run = begin(class, json!({ "id": "fine" })).await;
        let view = fleet.ended(&run, WITHIN).await;
        assert_eq!(view.status, RunStatus::Completed, "{view:?}\n{}", logs(&workers));
        assert_eq!(view.output.unwrap().field("doneBy").and_then(|by| by.to_text()).as_deref(), Some("python"));
    }
    assert_eq!((effects('N').len(), effects('K').len()), (1, 1));

    for (n, class) in ['N', 'K'].into_iter().enumerate() {
        let run = begin(class, json!({ "id": "killed", "die": true })).await;
        fleet.until("the worker is dead", WITHIN, async || (effects(class).len() == 2).then_some(())).await;
        fleet.until("it ended", WITHIN, async || (!workers[n].is_running()).then_some(())).await;
        workers[n] = worker(&fleet, class);
        let receipt = fleet
            .until("the call is settled", WITHIN, async || {
                fleet.receipts(&run).await.into_iter().find(|receipt| receipt.settled_ms.is_some())
            })
            .await;
        match class {
            'N' => assert_eq!(receipt.state, ReceiptState::Unknown, "{receipt:?}"),
            _ => {
                assert_eq!(receipt.state, ReceiptState::Succeeded, "{receipt:?}\n{}", logs(&workers));
                assert_eq!(receipt.settled_by, Some(SettledBy::Query));
                assert_eq!(fleet.ended(&run, WITHIN).await.status, RunStatus::Completed);
            }
        }
        assert_eq!(effects(class).len(), 2, "done once more after the kill");
    }
}
