//! State loops: order of evaluation, limits, selection, waiting, and a checkpoint that does not grow.

use std::sync::Arc;

use ditto_contracts::{Json, RunStatus};
use ditto_graph::{
    Event, Outlook, Progress, PureNodes, StateLoop, StateLoopBuilder, StateLoopProblem, Task, Wait, constant, formula,
};

use crate::support::{
    Double, Driver, START_MS, broken, count, failed, graph, id, json, name, node, path, succeeded, task,
};

fn number(n: i64) -> Json {
    json(&n.to_string())
}

/// Counts its state up to `limit` with one call an iteration.
fn counting(limit: i64) -> StateLoopBuilder {
    let (name, revision) = name("count");
    StateLoop::builder(name, revision)
        .initial_state(constant(number(0)))
        .graph(graph("g", [task("a", &[]).input(path("graph"))]), path("state"))
        .update(formula(|scope| Ok(number(count(scope) + 1))))
        .done(formula(move |scope| Ok(Json::bool(count(scope) == limit))))
}

#[test]
fn a_loop_counts_to_three_within_a_limit_of_three() {
    let mut driver = Driver::begin(counting(3).max_iterations(3).build().unwrap(), "{}");
    for n in 0..3 {
        assert_eq!(driver.decided[n].request, number(n as i64));
        driver.ok(&format!("{n}/a"), "null");
    }
    assert_eq!(driver.output(), "3");
    assert_eq!((driver.boundaries, driver.labels()), (3, vec!["0/a", "1/a", "2/a"]));
    let iterations = driver.progress.iter().filter(|p| matches!(p, Progress::Iteration { .. })).count();
    assert_eq!(iterations, 3);
}

#[test]
fn a_loop_that_is_never_done_ends_at_its_limit() {
    for (limit, expected) in [(None, 32), (Some(2), 2), (Some(1), 1)] {
        let builder = counting(-1);
        let builder = limit.map_or(counting(-1), |limit| builder.max_iterations(limit));
        let mut driver = Driver::begin(builder.build().unwrap(), "{}");
        for n in 0..expected {
            driver.ok(&format!("{n}/a"), "null");
        }
        assert_eq!(driver.error(), format!("failed ITERATION_LIMIT loop iteration limit reached: {expected}"));
        assert_eq!(driver.decided.len(), expected);
    }
}

#[test]
fn a_failing_task_ends_the_loop_with_its_error_and_no_update() {
    let mut driver = Driver::begin(counting(3).update(broken("update")).build().unwrap(), "{}");
    driver.settle("0/a", failed("BOOM"));
    assert_eq!((driver.error().as_str(), driver.decided.len()), ("failed BOOM why", 1));
}

#[test]
fn a_failing_expression_ends_the_loop_with_its_path() {
    let two = |select| counting(3).graph(graph("h", []), path("state")).select(select);
    #[rustfmt::skip]
    let table = [
        (counting(3).update(broken("update.x")), "update.x: no such value"),
        (counting(3).done(broken("done")), "done: no such value"),
        (counting(3).done(constant(json("1"))), "done: must be true or false, is 1"),
        (counting(1).output(broken("output")), "output: no such value"),
        (two(broken("select")), "select: no such value"),
        (two(constant(json("\"x\""))), "select: must name a graph of the loop, is \"x\""),
        (two(constant(json("\"g\""))).wait(Wait { duration: Some(constant(json("\"1.5h\""))), ..Wait::default() }), "wait.duration: must be"),
        (counting(3).wait(Wait { until: Some(constant(json("\"soon\""))), ..Wait::default() }), "wait.until: must be"),
    ];
    for (builder, fragment) in table {
        let mut driver = Driver::begin(builder.build().unwrap(), "{}");
        if !driver.decided.is_empty() {
            driver.ok("0/a", "null");
        }
        assert!(driver.error().starts_with(&format!("failed EXPRESSION_FAILED {fragment}")), "{}", driver.error());
    }
    let (name, revision) = name("x");
    let plan = StateLoop::builder(name, revision).graph(graph("g", []), path("state")).initial_state(broken("state"));
    let plan: Arc<dyn ditto_graph::Plan> = Arc::new(plan.build().unwrap());
    let facts = ditto_graph::RunFacts {
        run: ditto_contracts::RunId::new("01M8W7A80000000000000000ZZ").unwrap(),
        namespace: ditto_contracts::Namespace::default_namespace(),
        name: plan.name().clone(),
        revision: plan.revision().clone(),
        input: Json::null(),
    };
    let begun = ditto_graph::RunMachine::begin(plan, &facts, crate::support::options(), START_MS);
    assert_eq!(begun.err().unwrap().message, "state: no such value");
}

#[test]
fn the_graph_of_an_iteration_is_chosen_by_the_state() {
    let (name, revision) = name("two");
    let input = formula(|scope| Ok(scope.input.clone()));
    let plan = StateLoop::builder(name, revision)
        .initial_state(constant(number(0)))
        .graph(graph("even", [task("e", &[])]), input.clone())
        .graph(graph("odd", [task("o", &[])]), input)
        .select(formula(|scope| Ok(Json::string(if count(scope) % 2 == 0 { "even" } else { "odd" }))))
        .update(formula(|scope| Ok(number(count(scope) + 1))))
        .done(formula(|scope| Ok(Json::bool(count(scope) == 3))))
        .output(formula(|scope| Ok(scope.tasks.get(&id("e")).cloned().unwrap_or_default())))
        .build()
        .unwrap();
    let mut driver = Driver::begin(plan, "{}");
    driver.ok("0/e", "1");
    driver.ok("1/o", "2");
    driver.ok("2/e", "3");
    assert_eq!(driver.output(), "3");
}

#[test]
fn a_loop_that_cannot_run_is_refused_with_all_reasons() {
    let (name, revision) = name("x");
    let problems = StateLoop::builder(name.clone(), revision.clone())
        .max_iterations(0)
        .concurrency(0)
        .wait(Wait::default())
        .build()
        .err()
        .unwrap();
    use StateLoopProblem as P;
    assert_eq!(problems, [P::Concurrency, P::NoGraph, P::MaxIterations, P::EmptyWait]);
    assert!(P::MaxIterations.to_string().contains("positive integer"));
    let twice =
        StateLoop::builder(name, revision).graph(graph("g", []), path("state")).graph(graph("g", []), path("state"));
    assert_eq!(twice.build().err().unwrap(), [P::DuplicateGraph("g".into())]);
}

/// Waits for `approve` or ten minutes between iterations, and ends once it was approved.
fn approval() -> StateLoop {
    counting(0)
        .done(formula(|scope| Ok(Json::bool(!scope.signal.is_null()))))
        .output(path("signal"))
        .wait(Wait { signal: Some("approve".into()), duration: Some(constant(json("\"10m\""))), ..Wait::default() })
        .build()
        .unwrap()
}

#[test]
fn a_signal_ends_a_wait_and_is_in_scope_in_the_next_iteration() {
    let mut driver = Driver::begin(approval(), "{}");
    driver.ok("0/a", "null");
    let parked = Outlook::Parked { wake_ms: Some(START_MS + 600_000), reason: "signal approve".into() };
    assert_eq!(driver.outlook, parked);
    driver.restart();
    driver.signal(4, "other", "1");
    assert_eq!(driver.outlook, parked);
    driver.signal(5, "approve", r#"{"by":"ana"}"#);
    driver.restart();
    driver.ok("1/a", "null");
    assert_eq!(driver.output(), r#"{"by":"ana"}"#);
}

#[test]
fn a_signal_that_comes_early_is_kept_and_time_ends_a_wait_with_null() {
    let mut driver = Driver::begin(approval(), "{}");
    driver.ok("0/a", "null");
    driver.after(600_000);
    assert_eq!(driver.open(), ["1/a"]);
    driver.signal(1, "approve", "1");
    driver.signal(1, "approve", "2");
    driver.restart();
    driver.ok("1/a", "null");
    driver.ok("2/a", "null");
    assert_eq!(driver.output(), "1");
}

#[test]
fn a_signal_told_twice_ends_one_wait_only() {
    let wait = Wait { signal: Some("go".into()), ..Wait::default() };
    let mut driver = Driver::begin(counting(3).wait(wait).build().unwrap(), "{}");
    driver.ok("0/a", "null");
    driver.signal(7, "go", "1");
    driver.signal(7, "go", "1");
    driver.restart();
    driver.signal(6, "go", "1");
    driver.ok("1/a", "null");
    assert_eq!(driver.outlook, Outlook::Parked { wake_ms: None, reason: "signal go".into() });
    driver.signal(8, "go", "1");
    assert_eq!(driver.open(), ["2/a"]);
}

#[test]
fn a_wait_may_be_for_time_only_or_not_at_all() {
    let wait = |wait| Driver::begin(counting(2).wait(wait).build().unwrap(), "{}");
    let mut driver = wait(Wait { until: Some(path("input.at")), ..Wait::default() });
    driver.ok("0/a", "null");
    assert_eq!(driver.error(), "failed EXPRESSION_FAILED input.at: no such value");
    let mut driver = wait(Wait { until: Some(constant(json("1"))), ..Wait::default() });
    driver.ok("0/a", "null");
    assert_eq!(driver.open(), ["1/a"], "a time that has passed");
    let mut driver = wait(Wait { duration: Some(constant(json("null"))), ..Wait::default() });
    driver.ok("0/a", "null");
    assert_eq!(driver.open(), ["1/a"], "no wait");
    let mut driver = wait(Wait {
        when: Some(constant(Json::bool(false))),
        duration: Some(constant(json("1000"))),
        ..Wait::default()
    });
    driver.ok("0/a", "null");
    assert_eq!(driver.open(), ["1/a"], "not wanted");
    let mut driver = wait(Wait { duration: Some(constant(json("9223372036854775807"))), ..Wait::default() });
    driver.ok("0/a", "null");
    assert_eq!(driver.outlook, Outlook::Parked { wake_ms: Some(i64::MAX), reason: "time".into() });
}

#[test]
fn a_loop_without_calls_is_committed_now_and_then() {
    let pure = Arc::new(PureNodes::new().with(Arc::new(Double(node("TEST.DOUBLE")))));
    let (name, revision) = name("pure");
    let double = Task::new(id("d"), node("TEST.DOUBLE")).input(path("graph"));
    let plan = StateLoop::builder(name, revision)
        .initial_state(constant(number(0)))
        .graph(graph("g", [double]), path("state"))
        .update(formula(|scope| Ok(number(count(scope) + 1))))
        .done(formula(|scope| Ok(Json::bool(count(scope) == 2500))))
        .max_iterations(10_000)
        .pure_nodes(pure)
        .build()
        .unwrap();
    let mut driver = Driver::begin(plan, "{}");
    let mut decisions = 1;
    while let Outlook::Running { wake_ms } = driver.outlook {
        assert_eq!(wake_ms, Some(START_MS));
        driver.after(0);
        decisions += 1;
    }
    assert_eq!((driver.output().as_str(), decisions), ("2500", 3));
}

#[test]
fn a_hundred_thousand_iterations_leave_a_checkpoint_as_small_as_the_first() {
    let limit = 100_000;
    let plan = Arc::new(counting(limit).max_iterations(limit as u64).build().unwrap());
    let mut driver = Driver::begin_with(plan, "{}", false);
    let first = driver.checkpoint().len();
    for n in 0..limit {
        let label = format!("{n}/a");
        let outcome = succeeded("{\"some\":\"output\"}");
        let call = driver.decided.last().unwrap().call.clone();
        driver.settled(&label, outcome.clone());
        driver.advance(&[Event::CallSettled { call, outcome }]);
        if n % 9_999 == 0 && n + 1 < limit {
            let checkpoint = driver.checkpoint();
            let references = ditto_graph::RunMachine::references(&checkpoint).unwrap();
            // Restoring reads one open call and nothing else, however long the run is.
            assert_eq!((references.open.len(), references.kept.len()), (1, 0));
            assert!(checkpoint.len() <= first + 20, "{} bytes in iteration {n}, {first} at first", checkpoint.len());
            driver.restart();
        }
    }
    assert_eq!(driver.ending().status, RunStatus::Completed);
    assert_eq!(driver.output(), limit.to_string());
}
