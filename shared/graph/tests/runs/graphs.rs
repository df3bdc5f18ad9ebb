//! Graphs: order, concurrency, skipping, failing, retries, identities, pure nodes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use ditto_contracts::{CallKind, ErrorClass, JsonWriter, NodeType, ReceiptState, limits::GRAPH_TASKS_MAX};
use ditto_graph::{Graph, Progress, PureNodes, Retry, StateLoop, Task, constant, formula};

use crate::support::{
    Double, Driver, broken, ended, failed, graph, id, json, name, node, path, succeeded, task, tool, unknown,
};

fn single(graph: Graph) -> StateLoop {
    let (name, revision) = name("g");
    StateLoop::single_graph(name, revision, graph).build().unwrap()
}

fn run(tasks: impl IntoIterator<Item = Task>) -> Driver {
    Driver::begin(single(graph("g", tasks)), "{}")
}

#[test]
fn an_empty_graph_ends_with_nothing() {
    assert_eq!(run([]).output(), "{}");
}

#[test]
fn a_join_sees_only_what_it_declared_and_runs_last() {
    let mut driver = run([task("a", &[]), task("b", &[]), task("c", &[]), task("join", &["b", "a"])]);
    assert_eq!(driver.labels(), ["0/a", "0/b", "0/c"]);
    driver.ok("0/b", "2");
    driver.ok("0/a", "1");
    assert_eq!(driver.decided.last().unwrap().request, json(r#"{"b":2,"a":1}"#));
    driver.ok("0/join", "null");
    driver.ok("0/c", "18446744073709551616");
    assert_eq!(driver.output(), r#"{"a":1,"b":2,"c":18446744073709551616,"join":null}"#);
}

#[test]
fn concurrency_limits_the_open_tasks_in_declaration_order() {
    let (name, revision) = name("g");
    let tasks = [task("a", &[]), task("b", &[]), task("c", &[]), task("join", &["a", "b", "c"])];
    let plan = StateLoop::single_graph(name, revision, graph("g", tasks)).concurrency(2).build().unwrap();
    let mut driver = Driver::begin(plan, "{}");
    assert_eq!(driver.open(), ["0/a", "0/b"]);
    driver.ok("0/b", "1");
    assert_eq!(driver.open(), ["0/a", "0/c"]);
    driver.ok("0/a", "1");
    assert_eq!(driver.open(), ["0/c"]);
    driver.ok("0/c", "1");
    driver.ok("0/join", "1");
    assert_eq!(driver.labels(), ["0/a", "0/b", "0/c", "0/join"]);
    driver.ending();
}

#[test]
fn the_first_error_stops_admission_and_waits_for_what_is_open() {
    let (name, revision) = name("g");
    let tasks = [task("fails", &[]), task("running", &[]), task("later", &[])];
    let plan = StateLoop::single_graph(name, revision, graph("g", tasks)).concurrency(2).build().unwrap();
    let mut driver = Driver::begin(plan, "{}");
    driver.settle("0/fails", failed("FIRST"));
    assert_eq!(driver.open(), ["0/running"]);
    driver.restart();
    driver.settle("0/running", failed("SECOND"));
    assert_eq!(driver.error(), "failed FIRST why");
    assert_eq!(driver.labels(), ["0/fails", "0/running"]);
}

#[test]
fn a_value_that_says_failed_is_data() {
    let mut driver = run([tool("a", "c", &[]), task("constructor", &["a"])]);
    assert_eq!(driver.decided[0].source.as_deref(), Some("pay"));
    driver.settle("0/a", failed("TOOL_FAILED"));
    let seen = driver.decided.last().unwrap().request.field("a").unwrap();
    assert_eq!(seen.field("status").unwrap().as_str(), r#""failed""#);
    driver.ok("0/constructor", "1");
    assert!(driver.output().ends_with(r#""constructor":1}"#));
}

#[test]
fn a_skipped_task_is_null_for_its_dependents() {
    let tasks = [task("a", &[]), task("b", &["a"]).when(path("a.go")), task("c", &["b"])];
    let mut driver = run(tasks);
    driver.ok("0/a", r#"{"go":false}"#);
    assert_eq!(driver.decided.last().unwrap().request, json(r#"{"b":null}"#));
    assert!(driver.progress.iter().any(|p| matches!(p, Progress::TaskDone { status, .. } if status == "skipped")));
    driver.ok("0/c", "3");
    assert_eq!(driver.output(), r#"{"a":{"go":false},"b":null,"c":3}"#);
}

#[test]
fn fail_stops_a_task_before_anything_is_sent() {
    #[rustfmt::skip]
    let table = [
        (r#""""#, None), ("null", None),
        (r#""NOT_APPROVED""#, Some("failed NOT_APPROVED task b stopped: NOT_APPROVED")),
        (r#""no, thanks""#, Some("failed TASK_FAILED task b stopped: no, thanks")),
        ("7", Some("failed EXPRESSION_FAILED b.fail: must be text: the error code, or empty")),
    ];
    for (value, expected) in table {
        let mut driver = run([task("a", &[]), task("b", &["a"]).fail(constant(json(value)))]);
        driver.ok("0/a", "1");
        match expected {
            Some(expected) => assert_eq!((driver.error().as_str(), driver.labels()), (expected, vec!["0/a"])),
            None => assert_eq!(driver.labels(), ["0/a", "0/b"]),
        }
    }
}

#[test]
fn a_broken_expression_fails_the_run_with_its_path() {
    for task in [
        task("a", &[]).input(broken("tasks.a.with")),
        task("a", &[]).when(broken("tasks.a.with")),
        task("a", &[]).fail(broken("tasks.a.with")),
    ] {
        let driver = run([task]);
        assert_eq!(driver.error(), "failed EXPRESSION_FAILED tasks.a.with: no such value");
        assert!(driver.decided.is_empty());
    }
}

#[test]
fn a_retry_is_a_new_call_with_the_same_request_and_a_longer_pause() {
    let retry = Retry { max_attempts: 3, backoff_ms: 100 };
    let mut driver = run([tool("a", "c", &[]).retry(retry)]);
    assert!(driver.decided[0].retry);
    driver.settle("c", failed("X"));
    driver.restart();
    driver.settle("c~2", failed("X"));
    let seen: Vec<_> = driver.decided.iter().map(|call| (call.call_id.as_str(), call.delay_ms)).collect();
    assert_eq!(seen, [("c", 0), ("c~2", 100), ("c~3", 200)]);
    assert!(driver.decided.iter().all(|call| call.request == driver.decided[0].request && call.label == "0/a"));
    driver.settle("c~3", failed("LAST"));
    let output = json(&driver.output()).field("a").unwrap();
    assert_eq!(output.field("callId").unwrap().as_str(), r#""c""#);
    assert_eq!(output.field("error").unwrap().field("code").unwrap().as_str(), r#""LAST""#);
}

#[test]
fn only_a_definite_failure_that_may_change_is_tried_again() {
    let retry = Retry { max_attempts: 3, backoff_ms: u64::MAX };
    for outcome in [
        unknown("TIMEOUT"),
        ended(ReceiptState::Cancelled, ErrorClass::Cancelled, "CANCELLED"),
        ended(ReceiptState::Failed, ErrorClass::InvalidInput, "INVALID_ARGUMENTS"),
        ended(ReceiptState::Failed, ErrorClass::Denied, "PERMISSION_DENIED"),
    ] {
        let mut driver = run([task("a", &[]).retry(retry).on_unknown(ditto_contracts::OnUnknown::Surface)]);
        driver.settle("0/a", outcome.clone());
        assert_eq!(driver.decided.len(), 1, "{outcome:?}");
        driver.ending();
    }
    let mut driver = run([task("a", &[]).retry(retry)]);
    driver.settle("0/a", failed("X"));
    assert_eq!(driver.decided[1].delay_ms, 86_400_000);
}

#[test]
fn a_bad_identity_fails_the_task_and_sends_nothing() {
    let bad = Task::new(id("a"), node(NodeType::OUTPUT)).input(constant(json(r#"{"message":{}}"#)));
    let driver = run([bad]);
    assert_eq!(driver.error(), "failed INVALID_INPUT task a: deliveryId must be nonempty text, found nothing");
    assert!(driver.decided.is_empty());
    let long = run([tool("a", &"x".repeat(511), &[]).retry(Retry { max_attempts: 2, backoff_ms: 0 })]);
    let mut long = long;
    let label = "x".repeat(511);
    long.settle(&label, failed("X"));
    assert!(long.error().contains("attempt 2: call id has 513 bytes"), "{}", long.error());
}

#[test]
fn one_call_id_with_two_requests_fails_the_run_and_sends_nothing() {
    let other = Task::new(id("b"), node(NodeType::ACT_TOOL))
        .input(constant(json(r#"{"call":{"id":"c","name":"pay","arguments":{"cents":2}}}"#)));
    let driver = run([tool("a", "c", &[]), other.clone()]);
    assert!(driver.error().starts_with("failed CALL_ID_REUSED task b: call id c"), "{}", driver.error());
    assert!(driver.decided.is_empty());
    // The first one is open already: it is awaited.
    let mut driver = run([tool("a", "c", &[]), task("x", &[]), other.needs([id("x")])]);
    driver.ok("0/x", "1");
    assert_eq!(driver.open(), ["0/a"]);
    driver.ok("c", "1");
    assert!(driver.error().starts_with("failed CALL_ID_REUSED"));
}

#[test]
fn tasks_that_ask_for_the_very_same_call_share_it() {
    let mut driver = run([tool("a", "c", &[]), tool("b", "c", &[]), task("join", &["a", "b"])]);
    assert_eq!((driver.decided.len(), driver.decided[0].kind), (1, CallKind::Tool));
    driver.ok("c", r#"{"status":"success"}"#);
    assert_eq!(driver.labels(), ["0/a", "0/join"]);
    driver.ok("0/join", "0");
    driver.ending();
}

#[test]
fn pure_nodes_are_evaluated_inside_the_decision() {
    let pure = Arc::new(PureNodes::new().with(Arc::new(Double(node("TEST.DOUBLE")))));
    let double =
        |name: &str, need: &'static str| Task::new(id(name), node("TEST.DOUBLE")).needs([id(need)]).input(path(need));
    let begin = || {
        let (name, revision) = name("g");
        let tasks = [task("a", &[]), double("b", "a"), double("c", "b"), task("d", &["c"])];
        let plan = StateLoop::single_graph(name, revision, graph("g", tasks)).pure_nodes(pure.clone());
        Driver::begin(plan.build().unwrap(), "{}")
    };
    let mut driver = begin();
    driver.ok("0/a", "3");
    assert_eq!(driver.labels(), ["0/a", "0/d"]);
    assert_eq!(driver.decided[1].request, json(r#"{"c":12}"#));
    driver.restart();
    driver.ok("0/d", "0");
    assert_eq!(driver.output(), r#"{"a":3,"b":6,"c":12,"d":0}"#);
    let mut driver = begin();
    driver.ok("0/a", "true");
    assert_eq!(driver.error(), "failed INVALID_INPUT not a number: true");
}

#[test]
fn a_single_node_is_a_run_with_the_nodes_own_output() {
    let plan = StateLoop::single_node(node("MEMORY.GET")).unwrap().build().unwrap();
    let mut driver = Driver::begin(plan, r#"{"ids":["a"]}"#);
    assert_eq!((driver.decided[0].kind, driver.decided[0].request.as_str()), (CallKind::Memory, r#"{"ids":["a"]}"#));
    driver.ok("0/node", r#"{"status":"failed"}"#);
    assert_eq!(driver.output(), r#"{"status":"failed"}"#);
}

#[test]
fn the_values_of_a_run_pass_through_to_the_byte() {
    let plan = StateLoop::single_node(node("TEST.ECHO")).unwrap().build().unwrap();
    let text = r#"{"b":1e2,"a":-0,"n":123456789012345678901234567890,"s":"\u0000 \ud83d\udee1"}"#;
    let mut driver = Driver::begin(plan, text);
    assert_eq!(driver.decided[0].request.as_str(), text);
    driver.ok("0/node", text);
    assert_eq!(driver.output(), text);
}

/// Counts how often the inputs of a graph are computed.
fn counted(count: &Arc<AtomicUsize>, task: Task) -> Task {
    let count = count.clone();
    task.input(formula(move |scope| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut w = JsonWriter::new();
        w.integer(scope.tasks.len() as u64);
        Ok(w.finish())
    }))
}

#[test]
fn a_large_graph_costs_what_changes() {
    let count = Arc::new(AtomicUsize::new(0));
    let names: Vec<String> = (0..GRAPH_TASKS_MAX - 1).map(|n| format!("t{n}")).collect();
    let tasks = names.iter().map(|name| counted(&count, Task::new(id(name), node("TEST.WORK"))));
    let all = names.iter().map(|name| id(name));
    let join = counted(&count, Task::new(id("join"), node("TEST.WORK")).needs(all));
    let plan = Arc::new(single(graph("wide", tasks.chain([join]))));
    let mut driver = Driver::begin_with(plan, "{}", false);
    assert_eq!(driver.decided.len(), GRAPH_TASKS_MAX - 1);
    // One event a decision, and no checkpoint: only the work of the decision itself.
    for name in &names {
        let event = driver.settled(&format!("0/{name}"), succeeded("{}"));
        driver.advance(&[event]);
    }
    assert_eq!(driver.decided.last().unwrap().request.as_str(), (GRAPH_TASKS_MAX - 1).to_string());
    assert_eq!(count.load(Ordering::Relaxed), GRAPH_TASKS_MAX);
    let checkpoint = driver.checkpoint();
    assert!(checkpoint.len() < 40 * GRAPH_TASKS_MAX, "{} bytes", checkpoint.len());
    driver.restart();
    driver.ok("0/join", "1");
    driver.ending();
}

#[test]
fn a_fan_out_is_taken_in_by_one_decision() {
    let names: Vec<String> = (0..500).map(|n| format!("t{n}")).collect();
    let needs: Vec<&str> = names.iter().map(String::as_str).collect();
    let tasks = needs.iter().map(|name| task(name, &[])).chain([task("join", &needs)]);
    let mut driver = run(tasks);
    let events: Vec<_> = names.iter().map(|name| driver.settled(&format!("0/{name}"), succeeded("1"))).collect();
    driver.advance(&events);
    assert_eq!(driver.open(), ["0/join"]);
    assert!(driver.checkpoint().len() < 16 * 1024, "{} bytes", driver.checkpoint().len());
}
