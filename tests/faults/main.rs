//! Every arrow of the path (receipts contract §9) times every class times kill, pause and lost reply: the crash table
//! (§12) holds, and no run is stuck.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

use std::time::Duration;

use ditto_contracts::{EffectClass, ReceiptState, RunStatus};
use ditto_tests::fleet::{Fleet, Shape};

/// Where a worker can be hit.
const WORKER_POINTS: &[&str] = &[
    "worker_before_claim",
    "worker_after_claim",
    "worker_before_effect",
    "worker_after_effect",
    "worker_before_result",
    "worker_after_result",
    "worker_before_ack",
];
/// Where a coordinator can be hit.
const COORDINATOR_POINTS: &[&str] = &[
    "before_submit",
    "after_submit",
    "before_publish",
    "after_publish",
    "before_claim",
    "after_claim",
    "before_ingest",
    "before_advance",
    "after_advance",
    "before_settle",
    "after_settle",
];
const ACTIONS: &[&str] = &["kill", "pause", "drop"];
const STEPS: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Victim {
    Worker,
    Coordinator,
}

/// Points that a class never passes, so that the fault cannot fire.
fn can_fire(victim: Victim, point: &str, class: char) -> bool {
    match (victim, point) {
        // Unclaimed calls have no claim; their job is acknowledged after the result.
        (_, "worker_before_claim" | "worker_after_claim" | "before_claim" | "after_claim") => class != 'R',
        // Settled on its own only when the owner does not drive the run: not in an undisturbed chain.
        (Victim::Coordinator, "before_settle" | "after_settle") => false,
        _ => true,
    }
}

async fn scenario(fleet: &mut Fleet, victim: Victim, point: &str, action: &str, class: char) {
    let tag = format!("{point}-{action}-{class}");
    // A run is submitted once; every other arrow is hit at its second pass, in the middle of the chain.
    let nth = if point.ends_with("submit") { 1 } else { 2 };
    let _ = std::fs::remove_file(&fleet.fault_log);
    let processes = match victim {
        Victim::Worker => &mut fleet.workers,
        Victim::Coordinator => &mut fleet.coordinators,
    };
    // Only the victim serves, so that the fault hits it; the other one comes back afterwards and takes over.
    for other in &mut processes[1..] {
        other.kill9();
    }
    processes[0].restart(Some(&format!("{point}:{nth}:{action}")));
    let submitting = async {
        let fired = async {
            let log = fleet.fault_log.clone();
            fleet.until(&format!("{tag} fires"), Duration::from_secs(30), async || log.exists().then_some(())).await;
        };
        let submit = fleet.submit_chain(class, &tag, STEPS);
        tokio::pin!(submit, fired);
        tokio::select! {
            run = &mut submit => {
                fired.as_mut().await;
                Some(run)
            }
            () = &mut fired => None,
        }
    };
    let submitted = submitting.await;
    if action == "pause" {
        // Beyond the lease: somebody else takes over, then the sleeper wakes.
        fleet.revive();
        tokio::time::sleep(Duration::from_millis(1_800)).await;
        let process = match victim {
            Victim::Worker => &mut fleet.workers[0],
            Victim::Coordinator => &mut fleet.coordinators[0],
        };
        process.signal("CONT");
    }
    fleet.revive();
    // The same key again is the same run.
    let run = match submitted {
        Some(run) => run,
        None => fleet.submit_chain(class, &tag, STEPS).await,
    };
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    let view = loop {
        fleet.revive();
        if let Some(view) = fleet.run(&run).await.filter(|view| view.status.is_ended()) {
            break view;
        }
        if tokio::time::Instant::now() >= end {
            let (view, receipts) = (fleet.run(&run).await, fleet.receipts(&run).await);
            panic!("{tag}: the run does not end: {view:?}\n{receipts:?}\n{}", fleet.logs());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    check(fleet, &tag, &run, view.status, class).await;
}

async fn check(fleet: &Fleet, tag: &str, run: &str, status: RunStatus, class: char) {
    let receipts = fleet.receipts(run).await;
    let effects = fleet.effects.count(&class.to_string());
    for receipt in &receipts {
        let id = receipt.request.as_ref().and_then(|r| r.field("id")).and_then(|id| id.to_text()).unwrap();
        let happened = effects.get(&id).copied().unwrap_or(0);
        let state = receipt.state;
        if receipt.class != EffectClass::ReadOnly {
            assert!(happened <= 1, "{tag}: {id} happened {happened} times\n{}", fleet.logs());
        }
        match state {
            ReceiptState::Succeeded => assert!(happened >= 1, "{tag}: {id} succeeded without effect"),
            ReceiptState::Failed | ReceiptState::Cancelled => {
                assert!(happened == 0 || class == 'R', "{tag}: {id} is {state} with effect")
            }
            ReceiptState::Unknown => assert_eq!(class, 'N', "{tag}: {id} is unknown, but could be found out"),
            ReceiptState::Planned | ReceiptState::Claimed => panic!("{tag}: {id} is left {state}"),
        }
    }
    if class != 'N' {
        assert_eq!(status, RunStatus::Completed, "{tag}: {receipts:?}\n{}", fleet.logs());
        assert_eq!(receipts.len(), STEPS, "{tag}");
    }
}

async fn matrix(victim: Victim, points: &[&str]) {
    let mut fleet = Fleet::start(Shape { coordinators: 2, workers: 2 }).await;
    for point in points {
        for action in ACTIONS {
            for class in ['R', 'K', 'N'] {
                // For one scenario at a time while something is being looked into.
                let only = std::env::var("DITTO_TEST_ONLY").unwrap_or_default();
                if can_fire(victim, point, class) && format!("{point}-{action}-{class}").contains(&only) {
                    scenario(&mut fleet, victim, point, action, class).await;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hit_at_every_arrow() {
    matrix(Victim::Worker, WORKER_POINTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_hit_at_every_arrow() {
    matrix(Victim::Coordinator, COORDINATOR_POINTS).await;
}
