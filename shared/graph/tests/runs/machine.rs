//! What every run has: outcomes once, unknown outcomes, cancel, deadline, one end.

use std::sync::Arc;

use ditto_contracts::{ErrorClass, Json, OnUnknown, ReceiptState, RunStatus};
use ditto_graph::{CallOutcome, Event, Outlook, Plan, RunMachine, StateLoop, Task};

use crate::support::{
    Driver, START_MS, WINDOW_MS, ended, failed, graph, json, name, path, succeeded, task, tool, unknown,
};

fn run(tasks: impl IntoIterator<Item = Task>) -> Driver {
    let (name, revision) = name("g");
    Driver::begin(StateLoop::single_graph(name, revision, graph("g", tasks)).build().unwrap(), "{}")
}

fn parked() -> Outlook {
    Outlook::Parked { wake_ms: Some(START_MS + WINDOW_MS as i64), reason: "evidence".into() }
}

#[test]
fn an_outcome_is_taken_in_once_and_only_for_an_open_call() {
    let mut driver = run([task("a", &[]), task("b", &["a"])]);
    let event = driver.settled("0/a", succeeded("1"));
    let Event::CallSettled { call, .. } = &event else { panic!() };
    let open = CallOutcome { state: ReceiptState::Claimed, ..succeeded("1") };
    driver.advance(&[Event::CallSettled { call: call.clone(), outcome: open }]);
    assert_eq!(driver.open(), ["0/a"]);
    driver.advance(&[event.clone(), event.clone()]);
    driver.advance(&[event]);
    let stranger = ditto_contracts::CallUid::new("01M8W7A8000000000000000000").unwrap();
    driver.advance(&[Event::CallSettled { call: stranger, outcome: failed("X") }]);
    assert_eq!(driver.open(), ["0/b"]);
}

#[test]
fn an_unknown_outcome_waits_for_evidence_while_the_rest_goes_on() {
    let mut driver = run([tool("pay", "c", &[]), task("b", &[]), task("c", &["b"]), task("end", &["pay"])]);
    driver.settle("c", unknown("RESPONSE_LOST"));
    assert_eq!(driver.outlook, Outlook::Running { wake_ms: None });
    driver.now_ms += 1000;
    driver.ok("0/b", "1");
    driver.ok("0/c", "1");
    assert_eq!(driver.outlook, parked());
    driver.restart();
    // The same unknown outcome again does not lengthen the wait.
    driver.settle("c", unknown("RESPONSE_LOST"));
    assert_eq!(driver.outlook, parked());
    driver.settle("c", CallOutcome { settle_rev: 2, ..succeeded(r#"{"status":"success"}"#) });
    assert_eq!(driver.open(), ["0/end"]);
    driver.ok("0/end", "1");
    assert!(driver.output().contains(r#""pay":{"status":"success"}"#));
}

#[test]
fn without_evidence_a_person_is_needed() {
    let mut driver = run([tool("pay", "c", &[]), task("end", &["pay"])]);
    driver.settle("c", unknown("WORKER_LOST"));
    driver.after(WINDOW_MS as i64 - 1);
    assert_eq!(driver.outlook, parked());
    driver.restart();
    driver.after(1);
    let call = driver.decided[0].call.clone();
    assert_eq!(driver.error(), format!("needs-human OUTCOME_UNKNOWN unknown outcome of 0/pay ({call})"));
    let output = driver.ending().output.clone().unwrap();
    assert_eq!(output, json(&format!(r#"{{"unknown":[{{"call":"{call}","label":"0/pay"}}]}}"#)));
    driver.settle("c", succeeded("1"));
    assert_eq!(driver.ending().status, RunStatus::NeedsHuman);
}

#[test]
fn surface_hands_unknown_to_the_graph_and_fail_stops_the_run() {
    let mut driver = run([tool("pay", "c", &[]).on_unknown(OnUnknown::Surface), task("end", &["pay"])]);
    driver.settle("c", unknown("RESPONSE_LOST"));
    driver.restart();
    let seen = driver.decided[1].request.field("pay").unwrap();
    assert_eq!(seen.field("status").unwrap().as_str(), r#""unknown""#);

    let mut driver = run([tool("pay", "c", &[]).on_unknown(OnUnknown::Fail), task("b", &[])]);
    driver.settle("c", unknown("RESPONSE_LOST"));
    assert_eq!(driver.open(), ["0/b"]);
    driver.restart();
    driver.ok("0/b", "1");
    assert!(driver.error().starts_with("failed OUTCOME_UNKNOWN unknown outcome of 0/pay"), "{}", driver.error());
}

#[test]
fn an_output_seen_as_unknown_is_not_rewritten_by_later_evidence() {
    let tasks = [tool("pay", "c", &[]).on_unknown(OnUnknown::Surface), task("b", &[]), task("end", &["pay", "b"])];
    let mut driver = run(tasks);
    let surfaced = CallOutcome { output: Some(json(r#"{"status":"unknown"}"#)), ..unknown("RESPONSE_LOST") };
    driver.settle("c", surfaced);
    driver.settle("c", succeeded(r#"{"status":"success"}"#));
    driver.restart();
    driver.ok("0/b", "1");
    assert_eq!(driver.decided[2].request, json(r#"{"pay":{"status":"unknown"},"b":1}"#));
}

#[test]
fn a_cancel_waits_until_nothing_is_open_and_lists_what_is_unknown() {
    let mut driver = run([tool("pay", "c", &[]), task("b", &[]), task("end", &["b"])]);
    driver.advance(&[Event::CancelRequested]);
    assert_eq!(driver.cancelled.len(), 2);
    driver.restart();
    driver.advance(&[Event::CancelRequested, Event::DeadlinePassed]);
    assert_eq!((driver.cancelled.len(), &driver.outlook), (2, &Outlook::Running { wake_ms: None }));
    driver.ok("0/b", "1");
    assert_eq!(driver.open(), ["0/pay"]);
    driver.settle("c", unknown("CANCELLED_IN_FLIGHT"));
    let expected = "cancelled CANCELLED the run was cancelled; unknown outcome of 0/pay (";
    assert!(driver.error().starts_with(expected), "{}", driver.error());
    assert!(driver.ending().output.as_ref().unwrap().as_str().contains("0/pay"));
    driver.restart();
    driver.advance(&[Event::CancelRequested, Event::Woke]);
    assert_eq!(driver.ending().status, RunStatus::Cancelled);
}

#[test]
fn a_cancel_beats_the_outcomes_that_came_with_it() {
    let mut driver = run([task("a", &[])]);
    let event = driver.settled("0/a", succeeded("1"));
    driver.advance(&[event, Event::CancelRequested]);
    assert_eq!(driver.error(), "cancelled CANCELLED the run was cancelled");
}

#[test]
fn a_parked_run_is_cancelled_at_once() {
    let mut driver = run([tool("pay", "c", &[]), task("end", &["pay"])]);
    driver.settle("c", unknown("RESPONSE_LOST"));
    driver.restart();
    driver.advance(&[Event::CancelRequested]);
    assert!(driver.error().contains("cancelled; unknown outcome of 0/pay"), "{}", driver.error());
    assert!(driver.cancelled.is_empty());
}

#[test]
fn a_passed_deadline_ends_the_run_as_failed() {
    let mut driver = run([task("a", &[]), task("b", &["a"])]);
    driver.advance(&[Event::DeadlinePassed]);
    assert_eq!(driver.cancelled.len(), 1);
    driver.settle("0/a", ended(ReceiptState::Cancelled, ErrorClass::Cancelled, "CANCELLED"));
    assert_eq!(driver.error(), "failed DEADLINE_EXCEEDED the deadline of the run has passed");
}

#[test]
fn a_failed_run_does_not_wait_for_evidence_it_cannot_use() {
    let mut driver = run([tool("pay", "c", &[]), task("b", &[])]);
    driver.settle("c", unknown("RESPONSE_LOST"));
    driver.settle("0/b", failed("BOOM"));
    assert!(driver.error().starts_with("failed BOOM why; unknown outcome of 0/pay"), "{}", driver.error());
}

#[test]
fn a_cancel_hastens_a_run_that_fails_and_does_not_change_its_end() {
    let mut driver = run([task("a", &[]), task("b", &[])]);
    driver.settle("0/a", failed("BOOM"));
    driver.advance(&[Event::CancelRequested]);
    assert_eq!(driver.cancelled.len(), 1);
    driver.ok("0/b", "1");
    assert_eq!(driver.error(), "failed BOOM why");
}

#[test]
fn a_checkpoint_of_another_kind_is_refused() {
    let driver = run([task("a", &[])]);
    let restore = |plan: &Arc<dyn Plan>| driver.restored(plan).err().unwrap();
    let (loop_name, _) = name("g");
    let other = |revision: &str, tasks: Vec<Task>| -> Arc<dyn Plan> {
        let revision = ditto_contracts::Revision::new(revision).unwrap();
        Arc::new(StateLoop::single_graph(loop_name.clone(), revision, graph("g", tasks)).build().unwrap())
    };
    assert_eq!(restore(&other("2", vec![task("a", &[])])).code, "PLAN_DIVERGED");
    let shape = restore(&other("1", vec![task("a", &[]), task("b", &[])]));
    assert!(shape.message.contains("is of graph g with 1 tasks, not of g with 2"), "{shape}");
    for text in ["{}", "7", r#"{"format":9,"at":"","open":[],"kept":[],"parked":[],"plan":null}"#] {
        assert!(RunMachine::references(&json(text)).is_err(), "{text}");
    }
    let checkpoint = driver.checkpoint();
    assert!(checkpoint.as_str().starts_with(r#"{"format":1,"#), "{checkpoint}");
}

#[test]
fn a_panic_in_a_plan_ends_its_run_and_not_the_driver() {
    let panicking = task("b", &["a"]).input(ditto_graph::formula(|_| panic!("on purpose")));
    let mut driver = run([task("a", &[]), task("c", &[]), panicking]);
    driver.ok("0/a", "1");
    assert_eq!(driver.open(), ["0/c"]);
    driver.ok("0/c", "1");
    assert_eq!(driver.error(), "failed PANICKED the code of the plan panicked");
}

#[test]
fn what_would_not_fit_into_a_checkpoint_ends_the_run() {
    let large = format!("\"{}\"", "x".repeat(ditto_contracts::limits::VALUE_BYTES_MAX));
    let mut driver = run([task("a", &[]), task("b", &["a"])]);
    driver.ok("0/a", &large);
    assert!(driver.error().starts_with("failed VALUE_TOO_LARGE task b: input has 8388"), "{}", driver.error());
    let (name, revision) = name("g");
    let plan =
        StateLoop::builder(name, revision).graph(graph("g", [task("a", &[])]), path("input")).update(path("a")).build();
    let mut driver = Driver::begin(plan.unwrap(), "{}");
    driver.ok("0/a", &large);
    assert!(driver.error().starts_with("failed VALUE_TOO_LARGE update: the state has"), "{}", driver.error());
}

#[test]
fn a_missing_output_is_an_error_and_no_null() {
    let mut driver = run([task("a", &[]), task("b", &["a"])]);
    driver.ok("0/a", "null");
    let checkpoint = driver.checkpoint();
    assert_eq!(RunMachine::references(&checkpoint).unwrap().kept.len(), 1);
    let (name, revision) = name("g");
    let tasks = [task("a", &[]), task("b", &["a"]).input(path("a"))];
    let plan: Arc<dyn Plan> = Arc::new(StateLoop::single_graph(name, revision, graph("g", tasks)).build().unwrap());
    let facts = ditto_graph::RunFacts {
        run: ditto_contracts::RunId::new("01M8W7A80000000000000000ZZ").unwrap(),
        namespace: ditto_contracts::Namespace::default_namespace(),
        name: plan.name().clone(),
        revision: plan.revision().clone(),
        input: Json::null(),
    };
    let restored = RunMachine::restore(plan, &facts, crate::support::options(), &checkpoint, &Default::default());
    assert!(restored.err().unwrap().message.contains("is missing"));
}
