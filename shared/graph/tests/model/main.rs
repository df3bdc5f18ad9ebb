//! Explicit-state check of the receipt protocol over the real transition table and the real decisions.
//!
//! Two coordinators with epochs, two workers, a bus that loses and repeats, claims and requests that arrive after their
//! sender died, commits whose reply is lost, leases that end at any moment, crashes everywhere, a search by key with
//! answers of any age, cancel, deadline, closing key window, used-up attempts, a person who permits one attempt more. No
//! notion of time. Verdicts of a person are not part of it: they may be wrong.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may stop where it fails")]

mod rules;
mod search;
mod steps;
mod world;

use ditto_contracts::{CallPolicy, ReceiptState};

use rules::Rules;
use search::search;
use world::{Cast, World};

const MOST_STATES: usize = 6_000_000;

fn read() -> CallPolicy {
    CallPolicy::read_only()
}

fn keyed(query: bool, rejections_stored: bool) -> CallPolicy {
    CallPolicy { query, rejections_stored, ..CallPolicy::keyed() }
}

fn non_idempotent() -> CallPolicy {
    CallPolicy { query: true, ..CallPolicy::default() }
}

/// No violation, every state that can be reached can still finish, and just these outcomes can.
fn assert_safe(name: &str, cast: &Cast, symmetric: bool, outcomes: &[ReceiptState]) {
    let found = search(cast, &rules::Real, symmetric, "", MOST_STATES);
    println!("{name}: {} states, {} steps, {:.1} s", found.states, found.steps, found.took.as_secs_f64());
    if let Some((why, trace)) = found.violation {
        panic!("{name}: {why} after\n  {}", trace.join("\n  "));
    }
    assert_eq!(found.stuck.0, 0, "{name}: can never finish: {:?}", found.stuck.1);
    assert_eq!(Vec::from_iter(found.outcomes), outcomes, "{name}");
}

const KNOWN: [ReceiptState; 3] = [ReceiptState::Succeeded, ReceiptState::Failed, ReceiptState::Cancelled];
const ALL: [ReceiptState; 4] =
    [ReceiptState::Succeeded, ReceiptState::Failed, ReceiptState::Unknown, ReceiptState::Cancelled];

/// The broken rule is noticed: the invariant `wanted` does not hold any more.
fn assert_caught(name: &str, policy: CallPolicy, rules: &impl Rules, wanted: &str) {
    let found = search(&Cast::new(policy, 3, false), rules, false, wanted, MOST_STATES);
    let Some((why, trace)) = found.violation else {
        panic!("{name}: not noticed in {} states", found.states);
    };
    println!("{name}: {why} ({} states, {:.1} s)\n  {}", found.states, found.took.as_secs_f64(), trace.join("\n  "));
}

#[test]
fn class_r_is_safe_and_can_always_finish() {
    assert_safe("R", &Cast::new(read(), 3, false), true, &KNOWN);
}

#[test]
fn class_k_is_safe_and_can_always_finish() {
    assert_safe("K, refusals stored", &Cast::new(keyed(true, true), 3, false), true, &ALL);
}

#[test]
fn class_k_without_stored_refusals_is_safe_and_can_always_finish() {
    assert_safe("K, refusals not stored", &Cast::new(keyed(true, false), 3, false), true, &ALL);
}

#[test]
fn class_k_without_a_query_is_safe_and_can_always_finish() {
    assert_safe("K, no query, refusals not stored", &Cast::new(keyed(false, false), 3, false), true, &ALL);
}

#[test]
fn class_n_is_safe_and_can_always_finish() {
    assert_safe("N", &Cast::new(non_idempotent(), 3, false), true, &ALL);
    // Without the shortcuts of `World::canonical`: the same answer.
    assert_safe("N, every state by its own name", &Cast::new(non_idempotent(), 3, false), false, &ALL);
}

#[test]
fn class_n_stays_safe_when_a_person_authorises_another_attempt() {
    assert_safe("N, one attempt authorised", &Cast::new(non_idempotent(), 2, true), true, &ALL);
}

#[test]
fn class_k_stays_safe_when_a_person_authorises_another_attempt() {
    assert_safe("K, refusals not stored, one attempt authorised", &Cast::new(keyed(true, false), 1, true), true, &ALL);
}

#[test]
fn executing_without_a_claim_is_caught() {
    assert_caught("execute without claim", non_idempotent(), &rules::NoClaim, "I7");
}

#[test]
fn an_unfenced_loop_write_is_caught() {
    assert_caught("unfenced loop write", keyed(true, true), &rules::UnfencedLoop, "I17");
}

#[test]
fn requeueing_a_lost_claim_of_class_n_is_caught() {
    assert_caught("re-queue an expired N claim", non_idempotent(), &rules::RequeueLost, "I7");
}

#[test]
fn taking_a_lost_claim_for_failed_is_caught() {
    assert_caught("expired claim = failed", non_idempotent(), &rules::LostIsFailed, "I12");
}

#[test]
fn taking_a_timeout_for_failed_is_caught() {
    assert_caught("timeout = failed", non_idempotent(), &rules::TimeoutIsFailed, "I12");
}

#[test]
fn an_unfenced_settle_is_caught() {
    assert_caught("unfenced settle", keyed(true, true), &rules::UnfencedSettle, "I12");
}

#[test]
fn taking_an_unknown_key_for_failed_is_caught() {
    assert_caught("absent = failed", keyed(true, true), &rules::AbsentIsFailed, "I12");
}

#[test]
fn cancelling_after_an_unresolved_attempt_is_caught() {
    assert_caught("cancel after an unresolved attempt", keyed(true, true), &rules::CancelUnresolved, "I12");
}

#[test]
fn trusting_a_refusal_that_is_not_stored_is_caught() {
    assert_caught("trust a refusal on a retry", keyed(true, false), &rules::TrustRefusal, "I12");
}

#[test]
fn states_survive_packing() {
    let cast = Cast::new(keyed(true, true), 2, true);
    let mut steps = steps::Steps { cast: &cast, rules: &rules::Real, next: Vec::new() };
    let mut worlds = vec![World::START];
    for _ in 0..5 {
        let mut reached = Vec::new();
        for world in &worlds {
            assert_eq!(World::unpack(world.pack()), *world);
            steps.expand(world);
            reached.extend(steps.next.iter().map(|(_, next)| *next));
        }
        worlds = reached;
    }
    assert!(worlds.len() > 100);
}
