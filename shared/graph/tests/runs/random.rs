//! Random graphs, random outcomes, random order, random restarts: what every run must keep however it goes.

use std::{collections::HashSet, sync::Arc};

use ditto_contracts::{ErrorClass, Json, OnUnknown, ReceiptState};
use ditto_graph::{
    CallOutcome, Event, FnPlan, Graph, Outlook, Plan, Progress, PureNodes, Retry, StateLoop, Task, formula,
};
use proptest::prelude::*;

use crate::support::{
    Double, Driver, WINDOW_MS, count, ended, failed, graph, id, json, name, node, path, succeeded, task, unknown,
};

/// One task: which of the earlier ones it needs, and its options.
#[derive(Debug, Clone)]
struct TaskSpec {
    needs: Vec<bool>,
    kind: u8,
    on_unknown: u8,
    retry: bool,
    when: u8,
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Act {
    /// The nth open call settles like this.
    Settle {
        nth: usize,
        how: u8,
    },
    /// Several open calls settle in one decision, the nth first.
    Burst {
        nth: usize,
        size: usize,
        how: u8,
    },
    /// An earlier outcome arrives again.
    Repeat {
        nth: usize,
    },
    Restart,
    Time {
        ms: i64,
    },
    Signal {
        name: bool,
    },
    Cancel,
    Deadline,
}

fn specs() -> impl Strategy<Value = Vec<TaskSpec>> {
    let spec = (prop::collection::vec(prop::bool::weighted(0.3), 12), 0..6u8, 0..4u8, any::<bool>(), 0..6u8)
        .prop_map(|(needs, kind, on_unknown, retry, when)| TaskSpec { needs, kind, on_unknown, retry, when });
    prop::collection::vec(spec, 1..12)
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => (any::<usize>(), 0..12u8).prop_map(|(nth, how)| Act::Settle { nth, how }),
        4 => (any::<usize>(), 2..6usize, 0..12u8).prop_map(|(nth, size, how)| Act::Burst { nth, size, how }),
        3 => any::<usize>().prop_map(|nth| Act::Repeat { nth }),
        3 => Just(Act::Restart),
        2 => prop_oneof![Just(1000), Just(WINDOW_MS as i64)].prop_map(|ms| Act::Time { ms }),
        2 => any::<bool>().prop_map(|name| Act::Signal { name }),
        1 => prop::bool::weighted(0.2).prop_map(|cancel| if cancel { Act::Cancel } else { Act::Restart }),
        1 => prop::bool::weighted(0.1).prop_map(|late| if late { Act::Deadline } else { Act::Restart }),
    ];
    prop::collection::vec(act, 10..120)
}

fn build(specs: &[TaskSpec]) -> Graph {
    graph(
        "g",
        specs.iter().enumerate().map(|(i, spec)| {
            let needs: Vec<String> = (0..i).filter(|n| spec.needs[*n]).map(|n| format!("t{n}")).collect();
            let needs: Vec<&str> = needs.iter().map(String::as_str).collect();
            let mut made = match spec.kind {
                // A pure task, a tool task with an id of its own, and open node types.
                0 => Task::new(id(&format!("t{i}")), node("TEST.DOUBLE"))
                    .needs(needs.iter().map(|need| id(need)))
                    .input(formula(move |scope| Ok(json(&(scope.tasks.len() + i).to_string())))),
                1 => Task::new(id(&format!("t{i}")), node("INTERACTION.ACT.TOOL"))
                    .needs(needs.iter().map(|need| id(need)))
                    .input(formula(move |scope| {
                        let id = format!("call {i} of {}", scope.run.iteration);
                        Ok(json(&format!(r#"{{"call":{{"id":"{id}","name":"pay","arguments":{{}}}}}}"#)))
                    })),
                _ => task(&format!("t{i}"), &needs),
            };
            made = made.on_unknown(match spec.on_unknown {
                0 => OnUnknown::Surface,
                1 => OnUnknown::Fail,
                _ => OnUnknown::Park,
            });
            if spec.retry {
                made = made.retry(Retry { max_attempts: 3, backoff_ms: 10 });
            }
            if spec.when == 0 {
                made = made.when(formula(|scope| Ok(Json::bool(scope.tasks.len() % 2 == 0))));
            }
            made
        }),
    )
}

fn pure() -> Arc<PureNodes> {
    Arc::new(PureNodes::new().with(Arc::new(Double(node("TEST.DOUBLE")))))
}

fn loop_plan(graph: Graph) -> Arc<dyn Plan> {
    let (name, revision) = name("random");
    let plan = StateLoop::builder(name, revision)
        .initial_state(formula(|_| Ok(json("0"))))
        .graph(graph, path("state"))
        .update(formula(|scope| Ok(json(&(count(scope) + 1).to_string()))))
        .done(formula(|scope| Ok(Json::bool(count(scope) >= 3))))
        .wait(ditto_graph::Wait {
            when: Some(formula(|scope| Ok(Json::bool(count(scope) == 2)))),
            signal: Some("go".into()),
            duration: Some(formula(|_| Ok(json("1000")))),
            ..Default::default()
        })
        .concurrency(3)
        .pure_nodes(pure())
        .build();
    Arc::new(plan.unwrap())
}

fn fn_plan(graph: Graph) -> Arc<dyn Plan> {
    let (name, revision) = name("random");
    let plan = FnPlan::new(name, revision, move |cx, input| {
        let graph = graph.clone();
        async move {
            let begun = cx.now();
            let first = cx.graph(&graph, input).await;
            cx.sleep(10).await;
            let body = cx.signal_within("go", 1000).await;
            let input = Json::string(&format!("{} {body:?} {}", cx.now() - begun, first.is_ok()));
            cx.graph(&graph, input).await.map(|outputs| json(&outputs.len().to_string()))
        }
    });
    Arc::new(plan.pure_nodes(pure()))
}

fn outcome(how: u8) -> CallOutcome {
    match how {
        0 => failed("BOOM"),
        1 => unknown("RESPONSE_LOST"),
        2 => ended(ReceiptState::Cancelled, ErrorClass::Cancelled, "CANCELLED"),
        3 => CallOutcome { output: Some(json(r#"{"status":"failed"}"#)), ..failed("BOOM") },
        4 => ended(ReceiptState::Failed, ErrorClass::Denied, "PERMISSION_DENIED"),
        _ => succeeded(r#"{"status":"success","n":123456789012345678901}"#),
    }
}

/// Plays the acts, then settles what is left until the run ends. The driver holds the rules.
fn play(plan: Arc<dyn Plan>, specs: &[TaskSpec], acts: &[Act]) -> Driver {
    let mut driver = Driver::begin_with(plan, "{}", true);
    let mut repeats: Vec<Event> = Vec::new();
    let mut signals = 0;
    for act in acts {
        let open = driver.open_ids();
        match act {
            Act::Settle { nth, how } if !open.is_empty() => {
                let event = driver.settled(&open[nth % open.len()], outcome(*how));
                repeats.push(event.clone());
                driver.advance(&[event]);
            }
            Act::Burst { nth, size, how } if !open.is_empty() => {
                let from = nth % open.len();
                let chosen: Vec<&String> = open.iter().cycle().skip(from).take((*size).min(open.len())).collect();
                let events: Vec<Event> = chosen.iter().map(|id| driver.settled(id, outcome(*how))).collect();
                repeats.extend(events.iter().cloned());
                driver.advance(&events);
            }
            Act::Settle { .. } | Act::Burst { .. } => drop(driver.after(1)),
            Act::Repeat { nth } => {
                // An outcome of a call that is still open may only be the one its receipt holds.
                let known: Vec<Event> = repeats.iter().filter(|event| driver.holds(event)).cloned().collect();
                if !known.is_empty() {
                    driver.advance(&[known[nth % known.len()].clone()]);
                }
            }
            Act::Restart => driver.restart(),
            Act::Time { ms } => drop(driver.after(*ms)),
            Act::Signal { name } => {
                signals += 1;
                driver.signal(signals, if *name { "go" } else { "other" }, "1");
            }
            Act::Cancel => drop(driver.advance(&[Event::CancelRequested])),
            Act::Deadline => drop(driver.advance(&[Event::DeadlinePassed])),
        }
        check_order(&driver, specs);
    }
    for _ in 0..1000 {
        if let Outlook::Ended(_) = driver.outlook {
            break;
        }
        match driver.open_ids().first() {
            Some(id) => drop(driver.ok(&id.clone(), r#"{"status":"success"}"#)),
            None => drop(driver.after(WINDOW_MS as i64)),
        }
        check_order(&driver, specs);
    }
    driver.ending();
    check_progress(&driver, specs);
    driver
}

/// What watchers see keeps the order, too: a task starts once, after everything it needs is done.
fn check_progress(driver: &Driver, specs: &[TaskSpec]) {
    let mut done = HashSet::new();
    let mut started = HashSet::new();
    for entry in &driver.progress {
        match entry {
            Progress::Iteration { .. } => {}
            Progress::TaskDone { label, .. } => assert!(done.insert(label.clone()), "{label} was done twice"),
            Progress::TaskStarted { label, .. } => {
                assert!(started.insert(label.clone()), "{label} started twice");
                let (iteration, task) = label.split_once("/t").unwrap();
                let i: usize = task.parse().unwrap();
                for n in (0..i).filter(|n| specs[i].needs[*n]) {
                    assert!(done.contains(&format!("{iteration}/t{n}")), "{label} started before t{n} was done");
                }
            }
        }
    }
}

/// No call of a task is decided before its dependencies are done, skipped or evaluated: none of theirs is open.
fn check_order(driver: &Driver, specs: &[TaskSpec]) {
    let open: HashSet<String> = driver.open().into_iter().collect();
    for label in &open {
        let (iteration, task) = label.split_once("/t").unwrap();
        let i: usize = task.parse().unwrap();
        for n in (0..i).filter(|n| specs[i].needs[*n]) {
            assert!(!open.contains(&format!("{iteration}/t{n}")), "{label} was decided before t{n} was done");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_state_loop_keeps_the_rules(specs in specs(), acts in acts()) {
        play(loop_plan(build(&specs)), &specs, &acts);
    }

    #[test]
    fn a_plan_function_keeps_the_rules(specs in specs(), acts in acts()) {
        play(fn_plan(build(&specs)), &specs, &acts);
    }

    #[test]
    fn the_order_of_successes_does_not_change_the_result(specs in specs(), order in prop::collection::vec(any::<usize>(), 1..40)) {
        let tame: Vec<TaskSpec> = specs.iter().map(|spec| TaskSpec { on_unknown: 3, ..spec.clone() }).collect();
        let shuffled: Vec<Act> = order.iter().map(|nth| Act::Settle { nth: *nth, how: 11 }).collect();
        let (one, two) = (play(loop_plan(build(&tame)), &tame, &shuffled), play(loop_plan(build(&tame)), &tame, &[]));
        prop_assert_eq!(one.output(), two.output());
        let requests = |driver: &Driver| {
            let mut seen: Vec<String> =
                driver.decided.iter().map(|call| format!("{} {}", call.call, call.label)).collect();
            seen.sort();
            seen
        };
        prop_assert_eq!(requests(&one), requests(&two));
    }
}
