//! With the times a fleet has by default: replicas share the load, a killed coordinator is taken over within 5 s, the
//! calls of a killed worker within 20 s.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ditto_contracts::{EffectClass, ReceiptState};
use ditto_tests::fleet::{Extra, Fleet, Shape};
use serde_json::{Value, json};

/// What is promised for a killed coordinator.
const COORDINATOR_WITHIN: Duration = Duration::from_secs(5);
/// What is promised for a killed worker.
const WORKER_WITHIN: Duration = Duration::from_secs(20);

fn slow_chain(class: char) -> String {
    format!(
        "ditto: 1\nloop: slow-{class}\nstate: {{ index: 0 }}\nmaxIterations: 1000\ngraph:\n  tasks:\n    step:\n      \
         node: TEST.EFFECT.{class}\n      onUnknown: surface\n      \
         with: {{ id: \"${{ input.tag + '-' + string(state.index) }}\", takesMs: \"${{ input.takesMs }}\" }}\n\
         update: {{ index: \"${{ state.index + 1 }}\" }}\ndone: \"${{ state.index == input.steps }}\"\n\
         output: {{ steps: \"${{ state.index }}\" }}\n"
    )
}

/// Submits over the bus, where whichever coordinator is free answers.
async fn submit(bus: &async_nats::Client, name: &str, tag: &str, steps: u64, takes_ms: u64) -> String {
    let input = json!({ "tag": tag, "steps": steps, "takesMs": takes_ms });
    let body = json!({ "key": tag, "input": input }).to_string();
    let answer = bus.request(format!("ditto.submit.default.loop.{name}"), body.into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    answer["runId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The session that a process said it serves with.
fn session_of(log: &str) -> String {
    let line = log.lines().rfind(|line| line.contains("coordinator serves")).unwrap();
    let at = line.find("\"session\"").unwrap() + "\"session\"".len();
    line[at..].split('"').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_coordinator_is_taken_over_within_5_s() {
    let mut fleet = Fleet::start_with(Shape { coordinators: 2, workers: 2 }, &Extra::default_times()).await;
    fleet.register(&slow_chain('K')).await;
    let bus = async_nats::connect(fleet.nats.url()).await.unwrap();
    let mut runs = Vec::new();
    for n in 0..24 {
        runs.push(submit(&bus, "slow-K", &format!("run-{n}"), 150, 100).await);
    }
    let (killed, survivor) = (session_of(&fleet.coordinators[0].log()), session_of(&fleet.coordinators[1].log()));
    let mut owned: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for run in &runs {
        let view = fleet.run(run).await.unwrap();
        owned.entry(view.owner.unwrap().to_string()).or_default().push(run.clone());
    }
    let owners: BTreeSet<&str> = owned.keys().map(String::as_str).collect();
    assert_eq!(owners, BTreeSet::from([killed.as_str(), survivor.as_str()]), "both drive runs: {owned:?}");

    fleet.coordinators[0].kill9();
    let begin = Instant::now();
    let mut before = BTreeMap::new();
    for run in &owned[&killed] {
        before.insert(run.clone(), fleet.run(run).await.unwrap().version);
    }
    let mut waiting = before.clone();
    let mut longest = Duration::ZERO;
    while !waiting.is_empty() {
        for (run, version) in waiting.clone() {
            let view = fleet.run(&run).await.unwrap();
            if view.owner.as_ref().is_some_and(|owner| owner.as_str() == survivor) && view.version > version {
                longest = begin.elapsed();
                waiting.remove(&run);
            }
        }
        assert!(
            begin.elapsed() <= COORDINATOR_WITHIN || waiting.is_empty(),
            "{} of {} runs are not driven on after {:?}\n{}",
            waiting.len(),
            before.len(),
            begin.elapsed(),
            fleet.logs()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("takeover: {} runs of a killed coordinator went on after {longest:.2?}", before.len());
    assert!(longest <= COORDINATOR_WITHIN, "{longest:?}\n{}", fleet.logs());
    for run in &runs {
        let view = fleet.ended(run, Duration::from_secs(90)).await;
        assert_eq!(view.output.unwrap().as_str(), "{\"steps\":150}");
    }
    assert!(fleet.effects.count("K").values().all(|times| *times == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_killed_worker_are_taken_over_within_20_s() {
    let mut fleet = Fleet::start_with(Shape { coordinators: 2, workers: 2 }, &Extra::default_times()).await;
    for class in ['R', 'K', 'N'] {
        fleet.register(&slow_chain(class)).await;
    }
    let bus = async_nats::connect(fleet.nats.url()).await.unwrap();
    let mut runs = BTreeMap::new();
    for class in ['R', 'K', 'N'] {
        for n in 0..8 {
            let tag = format!("{class}-{n}");
            runs.insert(tag.clone(), submit(&bus, &format!("slow-{class}"), &tag, 2, 3_000).await);
        }
    }
    // Both workers hold claimed calls when one of them ends.
    fleet
        .until("every call is in hand", Duration::from_secs(30), async || {
            let claimed = fleet.receipts_in("claimed").await;
            let sessions: BTreeSet<_> = claimed.iter().filter_map(|r| r.session.clone()).collect();
            (claimed.len() == 16 && sessions.len() == 2).then_some(())
        })
        .await;
    fleet.workers[0].kill9();
    let begin = Instant::now();
    let lost = fleet.receipts_in("claimed").await;
    let mut longest = BTreeMap::new();
    let mut waiting: BTreeSet<&String> = runs.keys().collect();
    // Taken over: the first call has ended, or is in the hands of the other worker, or is known to be unknown.
    let dead: BTreeSet<_> = {
        let log = fleet.workers[1].log();
        lost.iter().filter_map(|r| r.session.clone()).filter(|s| !log.contains(s.as_str())).collect()
    };
    while !waiting.is_empty() {
        for tag in waiting.clone() {
            let receipts = fleet.receipts(&runs[tag]).await;
            let first =
                receipts.iter().find(|r| r.request.as_ref().is_some_and(|q| q.as_str().contains("-0\""))).unwrap();
            let taken_over = match first.state {
                // Unclaimed: nobody asks before reading again.
                ReceiptState::Planned => first.class == EffectClass::ReadOnly && first.dispatches > 1,
                ReceiptState::Claimed => first.session.as_ref().is_some_and(|s| !dead.contains(s)),
                ReceiptState::Unknown => first.settled_ms.is_some(),
                _ => true,
            };
            if taken_over {
                longest.insert(&tag[..1], begin.elapsed());
                waiting.remove(tag);
            }
        }
        assert!(
            begin.elapsed() <= WORKER_WITHIN || waiting.is_empty(),
            "{waiting:?} are not taken over after {:?}; so far {longest:?}\n{}",
            begin.elapsed(),
            fleet.logs()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("takeover: calls of a killed worker were taken over after {longest:.2?}");
    for run in runs.values() {
        fleet.ended(run, Duration::from_secs(60)).await;
    }
    for (class, times) in [("K", fleet.effects.count("K")), ("N", fleet.effects.count("N"))] {
        assert!(times.values().all(|times| *times == 1), "{class}: {times:?}");
    }
}
