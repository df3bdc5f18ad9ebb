//! `ditto dev` and the commands that talk to it.

use crate::support::{Place, example};

const TWO: &str = r#"{"paths":["a.txt","b.txt"]}"#;

#[test]
fn a_run_that_waits_for_a_person_is_kept_and_answered_later() {
    let place = Place::with_file_sink();
    let said = place.ditto(&["run", &example("approval.yaml"), "--input", r#"{"path":"a.txt"}"#]).expect(4);
    assert!(said.err.contains("runs signal") && said.out.is_empty(), "{said:?}");
    assert!(place.deliveries().is_empty());

    let dev = place.dev(&[]);
    let server = ["--server", dev.url.as_str()];
    let with = |arguments: &[&str]| place.ditto(&[arguments, &server].concat());
    let parked = with(&["runs", "ls", "--status", "parked", "--json"]).expect(0).json();
    let run = parked["items"][0]["runId"].as_str().unwrap().to_owned();
    let signal = ["runs", "signal", &run, "decision", r#"{"approve":true,"by":"alex"}"#, "--request-id", "1"];
    with(&signal).expect(0);
    let said = with(&["runs", "wait", &run]).expect(0);
    assert_eq!(said.out, "{\"delivered\":true,\"decision\":{\"approve\":true,\"by\":\"alex\"}}\n");
    assert_eq!(place.deliveries().len(), 1);
    assert_eq!(dev.stop(), Some(0));
}

#[test]
fn a_folder_has_one_process_which_is_named() {
    let place = Place::new();
    let dev = place.dev(&[]);
    let said = place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", TWO]).expect(7);
    assert!(said.err.contains(&format!("in use by process {} (ditto dev)", dev.pid())), "{}", said.err);
    place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", TWO, "--data-dir", "other"]).expect(0);
    assert_eq!(dev.stop(), Some(0));
    place.ditto(&["run", &example("read-and-deliver.yaml"), "--input", TWO]).expect(0);
}

#[test]
fn work_is_submitted_followed_and_inspected() {
    let place = Place::new();
    let dev = place.dev(&[&example("branching.yaml")]);
    let server = ["--server", dev.url.as_str()];
    let with = |arguments: &[&str]| place.ditto(&[arguments, &server].concat());
    let file = example("read-and-deliver.yaml");

    let said = with(&["submit", &file, "--input", TWO, "--key", "k", "--wait"]).expect(0);
    assert_eq!(said.out, "{\"delivered\":2}\n");
    assert!(said.err.contains("1/output") && said.err.contains("completed after"), "{}", said.err);
    let run = with(&["submit", "read-and-deliver", "--input", TWO, "--json"]).expect(0).json();
    let id = run["runId"].as_str().unwrap();
    assert_eq!(with(&["runs", "wait", id]).expect(0).out, "{\"delivered\":2}\n");
    let failed = with(&["submit", "branching", "--input", r#"{"paths":["a.txt"],"maxChars":1}"#, "--wait"]).expect(1);
    assert!(failed.err.contains("TEXT_TOO_LONG"), "{}", failed.err);
    let call = r#"{"call":{"id":"1","name":"read_text","arguments":{"path":"a.txt"}}}"#;
    let node = with(&["submit", "INTERACTION.ACT.TOOL", "--kind", "node", "--input", call, "--wait"]).expect(0);
    assert_eq!(node.json()["content"], "hello\n");

    let shown = with(&["runs", "show", id]).expect(0);
    assert!(shown.out.contains("completed") && shown.out.contains("INTERACTION.OUTPUT"), "{}", shown.out);
    for arguments in [
        &["runs", "ls"][..],
        &["runs", "show", id],
        &["receipts", "ls", "--run", id],
        &["definitions", "ls"],
        &["definitions", "show", "branching"],
        &["tools", "ls"],
        &["sessions", "ls"],
        &["runs", "cancel", id],
    ] {
        let human = with(arguments).expect(0);
        assert!(!human.out.is_empty() && !human.out.contains('\x1b'), "{human:?}");
        assert!(human.out.lines().all(|line| line == line.trim_end()), "{}", human.out);
        with(&[arguments, &["--json"]].concat()).expect(0).json();
    }
    let events = with(&["runs", "events", id, "--json"]).expect(0);
    let events: Vec<serde_json::Value> = events.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.last().unwrap()["event"], "ended");
    let source = with(&["definitions", "show", "branching"]).expect(0).out;
    assert_eq!(source, std::fs::read_to_string(example("branching.yaml")).unwrap());
}

#[test]
fn refusals_are_one_line_with_the_field() {
    let place = Place::new();
    let dev = place.dev(&[&example("read-and-deliver.yaml")]);
    let server = ["--server", dev.url.as_str()];
    let with = |arguments: &[&str]| place.ditto(&[arguments, &server].concat());
    #[rustfmt::skip]
    let table: [(&[&str], &str); 6] = [
        (&["submit", "nothing"],                                               "no definition nothing"),
        (&["submit", "read-and-deliver", "--input", r#"{"paths":[]}"#],        "input.paths"),
        (&["runs", "show", "01M8PTMZWXFV6T7W1K658EQDGH"],                      "no run 01M8PTMZWXFV6T7W1K658EQDGH"),
        (&["runs", "ls", "--limit", "0"],                                      "limit: is 0; expected 1 to 500"),
        (&["runs", "show", "x"],                                               "run id has 1 bytes"),
        (&["runs", "ls", "--status", "lost"],                                  "expected one of queued"),
    ];
    for (arguments, fragment) in table {
        let said = with(arguments).expect(2);
        assert!(said.err.contains(fragment), "{fragment} in {}", said.err);
    }
    // Another tenant sees nothing of it.
    let other = with(&["submit", "read-and-deliver", "--namespace", "other", "--input", TWO]).expect(2);
    assert!(other.err.contains("namespace other"), "{}", other.err);
    drop(dev);
    let away = place.ditto(&["runs", "ls", "--server", "http://127.0.0.1:9"]).expect(7);
    assert!(
        away.err.contains("cannot reach the server at http://127.0.0.1:9") && away.err.contains("ditto dev"),
        "{}",
        away.err
    );
}

#[test]
fn a_page_of_another_site_cannot_use_the_api() {
    use std::io::{Read as _, Write as _};
    let place = Place::new();
    let dev = place.dev(&[]);
    let address = dev.url.strip_prefix("http://").unwrap();
    let ask = |host: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET /v1/runs HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask(address).starts_with("HTTP/1.1 200"));
    assert!(ask("evil.example").starts_with("HTTP/1.1 403"));
}
