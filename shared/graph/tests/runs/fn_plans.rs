//! Plans written as functions: the journal, what can be caught and what cannot, divergence, misuse.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use ditto_contracts::{Json, RunStatus, WireError};
use ditto_graph::{Event, FnPlan, Graph, GraphFailure, Outlook, Plan, PlanContext, PlanEnd, Progress};

use crate::support::{Driver, START_MS, failed, graph, id, json, name, task, tool, unknown};

fn plan<F, Fut>(run: F) -> FnPlan
where
    F: Fn(PlanContext, Json) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Json, GraphFailure>> + Send + 'static,
{
    let (name, revision) = name("plan");
    FnPlan::new(name, revision, run)
}

fn one(name: &str) -> Graph {
    graph(name, [task("a", &[])])
}

/// Runs `first` once and `second` twice.
fn three() -> FnPlan {
    plan(|cx, input| async move {
        let (first, second) = (one("first"), one("second"));
        let found = cx.graph(&first, input).await?;
        cx.graph(&second, found[&id("a")].clone()).await?;
        let last = cx.graph(&second, json("2")).await?;
        Ok(last[&id("a")].clone())
    })
}

fn graphs(driver: &Driver) -> Vec<&str> {
    let graphs = driver.progress.iter().filter_map(|progress| match progress {
        Progress::Iteration { graph, .. } => Some(graph.as_str()),
        Progress::TaskStarted { .. } | Progress::TaskDone { .. } => None,
    });
    graphs.collect()
}

#[test]
fn a_plan_runs_its_graphs_one_after_another_and_survives_restarts() {
    let mut driver = Driver::begin(three().max_iterations(3), "{}");
    for n in 0..3 {
        driver.restart();
        driver.ok(&format!("{n}/a"), &format!("\"{n}\""));
    }
    assert_eq!((driver.output().as_str(), graphs(&driver)), ("\"2\"", vec!["first", "second", "second"]));
    assert_eq!(driver.boundaries, 3);
}

#[test]
fn the_iteration_limit_cannot_be_caught_and_runs_the_cleanup() {
    struct Cleanup(Arc<AtomicUsize>, PlanContext);
    impl Drop for Cleanup {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.now();
        }
    }
    let mut driver = Driver::begin(three().max_iterations(2), "{}");
    driver.ok("0/a", "1");
    driver.ok("1/a", "1");
    assert_eq!(driver.error(), "failed ITERATION_LIMIT loop iteration limit reached: 2");
    let cleaned = Arc::new(AtomicUsize::new(0));
    let counter = cleaned.clone();
    let endless = plan(move |cx, _| {
        let cleanup = Cleanup(counter.clone(), cx.clone());
        async move {
            let _cleanup = cleanup;
            loop {
                let _ = cx.graph(&one("g"), Json::null()).await;
            }
        }
    });
    let mut driver = Driver::begin(endless.max_iterations(1), "{}");
    driver.doubled = false;
    cleaned.store(0, Ordering::Relaxed);
    driver.settle("0/a", failed("X"));
    assert!(driver.error().starts_with("failed ITERATION_LIMIT"));
    assert_eq!((cleaned.load(Ordering::Relaxed), driver.decided.len()), (1, 1));
}

#[test]
fn a_failed_graph_may_be_caught_after_everything_it_started_has_ended() {
    let catching = plan(|cx, _| async move {
        let risky = graph("risky", [task("a", &[]), task("b", &[]), task("c", &["b"])]);
        match cx.graph(&risky, Json::null()).await {
            Ok(_) => Ok(Json::null()),
            Err(failure) => {
                let text = Json::string(&failure.to_string());
                cx.graph(&one("recovery"), text).await.map(|outputs| outputs[&id("a")].clone())
            }
        }
    });
    let mut driver = Driver::begin(catching, "{}");
    driver.settle("0/a", failed("NO_WORKER_AVAILABLE"));
    assert_eq!(driver.open(), ["0/b"]);
    driver.restart();
    driver.ok("0/b", "1");
    assert_eq!(driver.labels(), ["0/a", "0/b", "1/a"]);
    driver.restart();
    driver.ok("1/a", "\"recovered\"");
    assert_eq!((driver.output().as_str(), graphs(&driver)), ("\"recovered\"", vec!["risky", "recovery"]));
}

#[test]
fn a_cancel_ends_a_plan_that_catches_everything() {
    let stubborn = plan(|cx, _| async move {
        loop {
            let _ = cx.graph(&one("g"), Json::null()).await;
        }
    });
    let mut driver = Driver::begin(stubborn, "{}");
    driver.advance(&[Event::CancelRequested]);
    driver.restart();
    driver.settle("0/a", failed("X"));
    assert_eq!((driver.ending().status, driver.decided.len()), (RunStatus::Cancelled, 1));
}

#[test]
fn an_uncaught_failure_and_a_plan_of_its_own_end_the_run_as_they_say() {
    let mut driver = Driver::begin(three(), "{}");
    driver.settle("0/a", failed("BOOM"));
    assert_eq!(driver.error(), "failed BOOM why");
    let (name, revision) = name("plan");
    let human = FnPlan::new(name, revision, |_, input| async move {
        let error = WireError::invalid("ASK", "which one?");
        Ok::<_, WireError>(PlanEnd::NeedsHuman { output: input, error })
    });
    let driver = Driver::begin(human, "{\"a\":1}");
    assert_eq!(driver.error(), "needs-human ASK which one?");
    assert_eq!(driver.ending().output, Some(json("{\"a\":1}")));
}

/// Sleeps, waits for a signal, looks at the clock.
fn patient() -> FnPlan {
    plan(|cx, _| async move {
        let begun = cx.now();
        cx.sleep(1000).await;
        let slept = cx.now() - begun;
        let late = cx.signal_within("late", 500).await;
        let body = cx.signal("approve").await;
        let text = format!("[{slept},{},{}]", late.unwrap_or_default(), body);
        Ok(Json::parse(text).unwrap_or_default())
    })
}

#[test]
fn time_and_signals_come_from_the_journal_after_a_restart() {
    let mut driver = Driver::begin(patient(), "{}");
    assert_eq!(driver.outlook, Outlook::Parked { wake_ms: Some(START_MS + 1000), reason: "time".into() });
    driver.restart();
    driver.signal(1, "approve", "true");
    driver.after(1001);
    assert_eq!(driver.outlook, Outlook::Parked { wake_ms: Some(START_MS + 1501), reason: "signal late".into() });
    driver.restart();
    driver.after(600);
    assert_eq!(driver.output(), "[1001,null,true]");
}

#[test]
fn an_unknown_outcome_parks_a_plan_like_any_run() {
    let paying = plan(|cx, _| async move {
        let outputs = cx.graph(&graph("g", [tool("pay", "c", &[])]), Json::null()).await?;
        Ok(outputs[&id("pay")].clone())
    });
    let mut driver = Driver::begin(paying, "{}");
    driver.settle("c", unknown("RESPONSE_LOST"));
    driver.restart();
    driver.ok("c", r#"{"status":"success"}"#);
    assert_eq!(driver.output(), r#"{"status":"success"}"#);
}

#[test]
fn a_changed_program_is_refused_with_what_changed() {
    let original = || {
        plan(|cx, _| async move {
            cx.now();
            cx.graph(&one("read"), json("1")).await?;
            cx.graph(&one("write"), json("2")).await?;
            Ok(Json::null())
        })
    };
    let mut driver = Driver::begin(original(), "{}");
    driver.ok("0/a", "1");
    assert!(driver.restored(&(Arc::new(original()) as Arc<dyn Plan>)).is_ok());
    #[rustfmt::skip]
    let table: [(FnPlan, &str, &str); 8] = [
        (plan(|cx, _| async move { cx.graph(&one("read"), json("1")).await?; Ok(Json::null()) }), "entry 0 of the journal: recorded the time, asked for graph read (shape ", ""),
        (plan(|cx, _| async move { cx.now(); cx.graph(&one("other"), json("1")).await?; Ok(Json::null()) }), "entry 1 of the journal: recorded graph read (shape ", "asked for graph other"),
        (plan(|cx, _| async move { cx.now(); cx.graph(&one("read"), json("7")).await?; Ok(Json::null()) }), "entry 1 of the journal: recorded graph read", "input "),
        (plan(|cx, _| async move { cx.now(); cx.graph(&graph("read", [task("b", &[])]), json("1")).await?; Ok(Json::null()) }), "entry 1 ", "shape "),
        (plan(|cx, _| async move { cx.now(); cx.graph(&one("read"), json("1")).await?; cx.sleep(5).await; Ok(Json::null()) }), "entry 2 of the journal: recorded graph write", "asked for sleep of 5 ms"),
        (plan(|cx, _| async move { cx.now(); cx.graph(&one("read"), json("1")).await?; cx.now(); Ok(Json::null()) }), "entry 2 of the journal: recorded graph write", "asked for the time"),
        (plan(|cx, _| async move { cx.now(); cx.graph(&one("read"), json("1")).await?; Ok(Json::null()) }), "entry 2 of the journal: recorded graph write", "asked for nothing more"),
        (plan(|_, _| async move { Ok(Json::null()) }), "entry 0 of the journal: recorded ", "asked for "),
    ];
    for (changed, begins, contains) in table {
        let changed: Arc<dyn Plan> = Arc::new(changed);
        let error = driver.restored(&changed).err().unwrap();
        assert_eq!(error.code, "PLAN_DIVERGED", "{error}");
        assert!(error.message.starts_with(begins) && error.message.contains(contains), "{error}");
    }
}

#[test]
fn misuse_ends_the_run_with_a_reason() {
    let panicking = plan(|cx, _| async move {
        cx.sleep(0).await;
        panic!("on purpose");
    });
    assert_eq!(Driver::begin(panicking, "{}").error(), "failed PANICKED the code of the plan panicked");
    let foreign = plan(|_, _| async move {
        std::future::pending::<()>().await;
        Ok(Json::null())
    });
    assert!(Driver::begin(foreign, "{}").error().contains("awaits something that is not a step"));
    let given_up = plan(|cx, _| async move {
        {
            let mut step = Box::pin(cx.sleep(1000));
            std::future::poll_fn(|task| {
                assert!(step.as_mut().poll(task).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
        cx.graph(&one("g"), Json::null()).await?;
        Ok(Json::null())
    });
    let driver = Driver::begin(given_up, "{}");
    assert!(driver.error().contains("while another step was not awaited to its end"), "{}", driver.error());
    let (name, revision) = name("plan");
    assert!(ditto_contracts::LoopName::new(" ").is_err());
    let endless = FnPlan::new(name, revision, |cx: PlanContext, _| async move {
        loop {
            cx.sleep(0).await;
        }
        #[expect(unreachable_code, reason = "gives the endless plan its type")]
        Ok::<Json, WireError>(Json::null())
    });
    assert!(Driver::begin(endless, "{}").error().contains("iteration limit reached"));
}

#[test]
fn a_panicking_destructor_does_not_reach_the_driver() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let bomb = plan(|cx, _| async move {
        let _bomb = Bomb;
        cx.graph(&one("g"), Json::null()).await?;
        Ok(Json::null())
    });
    let mut driver = Driver::begin(bomb, "{}");
    driver.advance(&[Event::CancelRequested]);
    driver.ok("0/a", "1");
    assert_eq!(driver.ending().status, RunStatus::Cancelled);
}
