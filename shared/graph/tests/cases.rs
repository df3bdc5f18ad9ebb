//! Acceptance cases of graphs, loops and checkpoints that need no fleet; the number is in the name of the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

#[path = "runs/support.rs"]
#[allow(dead_code, reason = "shared with the tests of runs, which use all of it")]
mod support;

use std::{
    collections::HashSet,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ditto_contracts::{Json, RunStatus};
use ditto_graph::{
    Event, FnPlan, Graph, GraphFailure, GraphProblem, Outlook, Plan, PlanContext, Progress, StateLoop, Task, constant,
    formula,
};

use support::{Driver, count, failed, graph, id, json, name, path, task, tool, unknown};

fn number(n: i64) -> Json {
    json(&n.to_string())
}

fn run_with(concurrency: usize, tasks: impl IntoIterator<Item = Task>) -> Driver {
    let (name, revision) = name("g");
    let plan = StateLoop::single_graph(name, revision, graph("g", tasks)).concurrency(concurrency).build().unwrap();
    Driver::begin(plan, "{}")
}

fn plan<F, Fut>(run: F) -> FnPlan
where
    F: Fn(PlanContext, Json) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Json, GraphFailure>> + Send + 'static,
{
    let (name, revision) = name("plan");
    FnPlan::new(name, revision, run)
}

/// Counts from 0 to the limit; each iteration gets the state as its input.
fn counting(limit: i64) -> StateLoop {
    let (name, revision) = name("count");
    StateLoop::builder(name, revision)
        .initial_state(constant(number(0)))
        .graph(graph("g", [task("a", &[]).input(path("graph"))]), path("state"))
        .update(formula(|scope| Ok(number(count(scope) + 1))))
        .done(formula(move |scope| Ok(Json::bool(count(scope) == limit))))
        .max_iterations(3)
        .build()
        .unwrap()
}

#[test]
fn case_252_duplicates_unknown_dependencies_and_empty_ids_are_refused() {
    let refused = |id: &str, tasks: Vec<Task>| {
        let builder = tasks.into_iter().fold(Graph::builder(id), |builder, task| builder.task(task));
        builder.build().unwrap_err()
    };
    assert!(matches!(&refused("g", vec![task("a", &[]), task("a", &[])])[..], [GraphProblem::TaskId(_)]));
    let dependency = refused("g", vec![task("a", &["b"])]);
    assert!(dependency[0].to_string().contains("unknown graph dependency"), "{dependency:?}");
    assert_eq!(refused("", vec![]).len(), 1);
}

#[test]
fn case_253_two_independent_tasks_run_together_and_the_join_last() {
    let mut driver = run_with(2, [task("a", &[]), task("b", &[]), task("join", &["a", "b"])]);
    assert_eq!(driver.open(), ["0/a", "0/b"]);
    driver.ok("0/b", "1");
    assert_eq!(driver.open(), ["0/a"]);
    driver.ok("0/a", "1");
    assert_eq!(driver.open(), ["0/join"]);
    driver.ok("0/join", "1");
    assert_eq!(driver.labels(), ["0/a", "0/b", "0/join"]);
    assert_eq!(driver.ending().status, RunStatus::Completed);
}

#[test]
fn case_254_the_first_error_ends_a_graph_after_what_runs_has_ended() {
    let mut driver = run_with(2, [task("fails", &[]), task("running", &[]), task("not-started", &[])]);
    driver.settle("0/fails", failed("FIRST"));
    assert!(matches!(driver.outlook, Outlook::Running { .. }), "the running task is awaited");
    driver.ok("0/running", "1");
    assert_eq!(driver.error(), "failed FIRST why");
    assert_eq!(driver.labels(), ["0/fails", "0/running"]);
    assert!(driver.open().is_empty());
}

#[test]
fn case_255_a_task_may_have_the_name_of_anything() {
    let names = ["constructor", "__proto__", "toString"];
    let mut driver = run_with(3, names.map(|name| task(name, &[])));
    for (n, name) in names.iter().enumerate() {
        driver.ok(&format!("0/{name}"), &n.to_string());
    }
    assert_eq!(driver.output(), r#"{"constructor":0,"__proto__":1,"toString":2}"#);
}

#[test]
fn case_261_a_cancel_inside_the_first_task_starts_no_second() {
    let mut driver = run_with(1, [task("a", &[]), task("b", &[])]);
    driver.advance(&[Event::CancelRequested]);
    assert_eq!(driver.cancelled.len(), 1, "the running task is told");
    driver.ok("0/a", "1");
    assert_eq!((driver.ending().status, driver.labels()), (RunStatus::Cancelled, vec!["0/a"]));
}

#[test]
fn case_262_a_result_that_failed_is_data_for_its_dependents() {
    let mut driver = run_with(2, [tool("a", "c", &[]), task("b", &["a"])]);
    driver.settle("c", failed("NO_MATCH"));
    assert_eq!(driver.open(), ["0/b"]);
    let seen = driver.decided[1].request.field("a").unwrap();
    assert_eq!(seen.field("status").unwrap().as_str(), r#""failed""#);
    driver.ok("0/b", "1");
    assert_eq!(driver.ending().status, RunStatus::Completed);
}

#[test]
fn case_279_a_loop_counts_to_three_with_calls_of_its_own_in_each_iteration() {
    let mut driver = Driver::begin(counting(3), "{}");
    for n in 0..3 {
        assert_eq!(driver.decided[n].request, number(n as i64));
        driver.ok(&format!("{n}/a"), "null");
    }
    assert_eq!(driver.output(), "3");
    assert_eq!(driver.decided.iter().map(|call| &call.call).collect::<HashSet<_>>().len(), 3);
}

#[test]
fn case_285_two_runs_of_one_definition_do_not_see_each_other() {
    let shared: Arc<dyn Plan> = Arc::new(counting(3));
    let mut one = Driver::begin_with(shared.clone(), "{}", true);
    let mut two = Driver::begin_with(shared.clone(), "{}", true);
    one.ok("0/a", "null");
    one.ok("1/a", "null");
    two.ok("0/a", "null");
    assert_eq!(
        (one.decided.last().unwrap().request.as_str(), two.decided.last().unwrap().request.as_str()),
        ("2", "1")
    );
    one.ok("2/a", "null");
    two.ok("1/a", "null");
    two.ok("2/a", "null");
    assert_eq!((one.output(), two.output()), ("3".into(), "3".into()));
    assert_eq!(Driver::begin_with(shared, "{}", true).decided[0].request, number(0), "the initial state is as it was");
}

#[test]
fn case_286_the_state_chooses_between_graphs() {
    let (name, revision) = name("alternating");
    let plan = StateLoop::builder(name, revision)
        .initial_state(constant(number(0)))
        .graph(graph("even", [task("e", &[])]), path("state"))
        .graph(graph("odd", [task("o", &[])]), path("state"))
        .select(formula(|scope| Ok(Json::string(if count(scope) % 2 == 0 { "even" } else { "odd" }))))
        .update(formula(|scope| Ok(number(count(scope) + 1))))
        .done(formula(|scope| Ok(Json::bool(count(scope) == 4))))
        .build()
        .unwrap();
    let mut driver = Driver::begin(plan, "{}");
    for label in ["0/e", "1/o", "2/e", "3/o"] {
        driver.ok(label, "null");
    }
    let graphs = driver.progress.iter().filter_map(|progress| match progress {
        Progress::Iteration { graph, .. } => Some(graph.as_str()),
        Progress::TaskStarted { .. } | Progress::TaskDone { .. } => None,
    });
    assert_eq!(graphs.collect::<Vec<_>>(), ["even", "odd", "even", "odd"]);
    assert_eq!((driver.labels(), driver.output()), (vec!["0/e", "1/o", "2/e", "3/o"], "4".into()));
}

#[test]
fn case_291_a_cancelled_plan_that_catches_everything_cleans_up_and_ends() {
    struct Cleanup(Arc<AtomicUsize>);
    impl Drop for Cleanup {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let cleaned = Arc::new(AtomicUsize::new(0));
    let counter = cleaned.clone();
    let stubborn = plan(move |cx, _| {
        let cleanup = Cleanup(counter.clone());
        async move {
            let _cleanup = cleanup;
            loop {
                let _ = cx.graph(&graph("g", [task("a", &[])]), Json::null()).await;
            }
        }
    });
    let mut driver = Driver::begin(stubborn, "{}");
    driver.doubled = false;
    cleaned.store(0, Ordering::Relaxed);
    driver.advance(&[Event::CancelRequested]);
    driver.settle("0/a", failed("CANCELLED"));
    assert_eq!((driver.ending().status, driver.decided.len()), (RunStatus::Cancelled, 1));
    assert_eq!(cleaned.load(Ordering::Relaxed), 1);
}

#[test]
fn case_292_a_step_that_is_stopped_before_it_calls_anything_uses_one_iteration() {
    let catching = |limit| {
        let stopped = plan(|cx, _| async move {
            let stopped = graph("stopped", [task("a", &[]).fail(constant(json("\"STAGE_DEADLINE\"")))]);
            assert!(cx.graph(&stopped, Json::null()).await.is_err());
            let outputs = cx.graph(&graph("next", [task("b", &[])]), Json::null()).await?;
            Ok(outputs[&id("b")].clone())
        });
        Driver::begin(stopped.max_iterations(limit), "{}")
    };
    let mut driver = catching(2);
    assert_eq!(driver.labels(), ["1/b"], "the stopped step made no call");
    driver.ok("1/b", "7");
    assert_eq!(driver.output(), "7");
    assert!(catching(1).error().starts_with("failed ITERATION_LIMIT"));
}

#[test]
fn case_302_a_run_taken_up_again_does_not_repeat_what_is_done() {
    let begin = || run_with(1, [task("a", &[]), task("b", &["a"]), task("c", &["b"])]);
    let mut driver = begin();
    driver.ok("0/a", "1");
    driver.restart();
    driver.ok("0/b", "2");
    driver.restart();
    driver.ok("0/c", "3");
    assert_eq!(driver.labels(), ["0/a", "0/b", "0/c"]);
    let mut straight = begin();
    for (label, output) in [("0/a", "1"), ("0/b", "2"), ("0/c", "3")] {
        straight.ok(label, output);
    }
    assert_eq!(driver.output(), straight.output());
}

#[test]
fn case_304_an_uncertain_task_ends_the_run_with_a_person_and_stays_so() {
    let mut driver = run_with(2, [tool("a", "c", &[]), task("b", &[]), task("after", &["a"])]);
    driver.settle("c", unknown("RESPONSE_LOST"));
    driver.restart();
    driver.ok("0/b", "1");
    assert!(matches!(driver.outlook, Outlook::Parked { .. }), "nothing is under way while it waits for evidence");
    driver.after(support::WINDOW_MS as i64);
    assert!(driver.error().starts_with("needs-human OUTCOME_UNKNOWN unknown outcome of 0/a"), "{}", driver.error());
    driver.restart();
    driver.advance(&[Event::Woke]);
    assert_eq!((driver.ending().status, driver.labels()), (RunStatus::NeedsHuman, vec!["0/a", "0/b"]));
}
