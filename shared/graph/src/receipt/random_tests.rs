//! Random orders of events, honest and dishonest: the invariants hold after every step.

use std::collections::BTreeSet;

use ditto_contracts::{CallPolicy, ClaimToken, EffectClass, ReceiptState, SessionId, Verdict};
use proptest::prelude::*;

use super::{Claim, KeyEvidence, Receipt, ReceiptEvent as E};

/// What really happened, kept apart from the receipt's own counters.
struct History {
    claims: Vec<Claim>,
    /// Attempts granted and neither proven unstarted nor answered definitely.
    unresolved: BTreeSet<u32>,
    /// The same, but forgiven by a person who authorised another attempt.
    unforgiven: BTreeSet<u32>,
}

impl History {
    fn claim_of(&self, fence: u32) -> Claim {
        let index = fence.checked_sub(1).and_then(|i| usize::try_from(i).ok());
        index.and_then(|i| self.claims.get(i)).cloned().unwrap_or_else(|| new_claim(9_999))
    }
}

fn new_claim(n: usize) -> Claim {
    Claim { token: ClaimToken::new(format!("t{n}")).unwrap(), session: SessionId::new(format!("s{}", n % 3)).unwrap() }
}

fn policies() -> impl Strategy<Value = CallPolicy> {
    let class = prop_oneof![Just(EffectClass::ReadOnly), Just(EffectClass::Keyed), Just(EffectClass::NonIdempotent)];
    (class, any::<[bool; 4]>(), 1u16..5).prop_map(|(class, [exclusive, skip_claim, query, stored], max_attempts)| {
        CallPolicy {
            class,
            exclusive,
            skip_claim,
            query,
            rejections_stored: stored,
            max_attempts,
            ..CallPolicy::default()
        }
    })
}

/// One event; `pick` chooses it, `back` how many attempts it lags behind, `flag` its truth.
fn event(pick: u8, back: u8, flag: bool, receipt: &Receipt, history: &History) -> E {
    let fence = receipt.fence.saturating_sub(u32::from(back));
    let claim = history.claim_of(fence);
    let verdict = Verdict::ALL[usize::from(pick) % Verdict::ALL.len()];
    let evidence = [KeyEvidence::Applied, KeyEvidence::Refused, KeyEvidence::Conflict, KeyEvidence::InProgress];
    let settle_rev = receipt.settle_rev - i32::from(back);
    match pick / 4 {
        0..=3 => E::Claim { claim: new_claim(history.claims.len()), session_alive: flag || back == 0 },
        4 => E::Claim { claim, session_alive: true },
        5 | 6 => E::Release { fence, token: claim.token, unstarted: flag },
        7..=9 => E::Answer { fence, token: claim.token, verdict },
        10 => E::UnclaimedAnswer { hash_matches: flag, verdict },
        11..=13 => E::SessionDied { session: claim.session },
        14 | 15 => E::ReconcileAbsent { fence },
        16 => E::ReconcileAnswer { answer: evidence[usize::from(pick) % 4] },
        17 => E::ReconcileExhausted,
        18 => E::Resolve { settle_rev, verdict },
        19 | 20 => E::AuthoriseAttempt { settle_rev, session_over: flag || back == 0 },
        21 if back == 2 => E::CancelAsked,
        22 if back == 2 => E::DeadlinePassed,
        23 if back == 2 => E::WindowClosed,
        24 => E::DispatchesExhausted,
        _ => E::AttemptsExhausted,
    }
}

fn check(before: &Receipt, event: &E, after: &Receipt, history: &mut History) {
    let class = before.class;
    let effectful = class != EffectClass::ReadOnly;
    match event {
        E::Claim { claim, .. } => {
            assert!(class != EffectClass::NonIdempotent || history.unforgiven.is_empty(), "I7: claimed again");
            history.claims.push(claim.clone());
            history.unresolved.insert(after.fence);
            history.unforgiven.insert(after.fence);
        }
        E::Release { fence, unstarted: true, .. } => {
            history.unresolved.remove(fence);
            history.unforgiven.remove(fence);
        }
        E::AuthoriseAttempt { .. } => history.unforgiven.clear(),
        E::Release { .. }
        | E::Answer { .. }
        | E::UnclaimedAnswer { .. }
        | E::SessionDied { .. }
        | E::ReconcileAbsent { .. }
        | E::ReconcileAnswer { .. }
        | E::ReconcileExhausted
        | E::Resolve { .. }
        | E::CancelAsked
        | E::DeadlinePassed
        | E::AttemptsExhausted
        | E::DispatchesExhausted
        | E::WindowClosed => {}
    }
    let changed = (before.state, before.settled) != (after.state, after.settled);
    let by_person = matches!(event, E::Resolve { .. });
    let by_time = matches!(
        event,
        E::SessionDied { .. }
            | E::DeadlinePassed
            | E::AttemptsExhausted
            | E::DispatchesExhausted
            | E::WindowClosed
            | E::ReconcileExhausted
    );

    if changed && after.state == ReceiptState::Succeeded {
        let evidence = match event {
            E::Answer { fence, token, verdict } => {
                *fence == before.fence && history.claim_of(*fence).token == *token && *verdict == Verdict::Succeeded
            }
            E::UnclaimedAnswer { hash_matches, verdict } => *hash_matches && *verdict == Verdict::Succeeded,
            E::ReconcileAnswer { answer } => *answer == KeyEvidence::Applied,
            E::Resolve { verdict, .. } => *verdict == Verdict::Succeeded,
            _ => false,
        };
        assert!(evidence, "I11: succeeded by {event:?}");
    }
    if changed && effectful && matches!(after.state, ReceiptState::Failed | ReceiptState::Cancelled) && !by_person {
        let proof = match event {
            E::Answer { fence, .. } => {
                let others = history.unresolved.iter().any(|f| f != fence);
                !others || (class == EffectClass::Keyed && before.rejections_stored)
            }
            E::ReconcileAnswer { answer } => *answer == KeyEvidence::Refused && before.rejections_stored,
            _ => history.unresolved.is_empty(),
        };
        assert!(proof, "I12: {} by {event:?} with {:?} unresolved", after.state, history.unresolved);
    }
    if changed && by_time && effectful {
        if !history.unresolved.is_empty() {
            assert!(matches!(after.state, ReceiptState::Unknown), "I13: {event:?} made it {}", after.state);
        }
        assert!(after.state != ReceiptState::Planned, "I13: {event:?} made it claimable again");
    }
    if changed && before.settled {
        assert_eq!(before.state, ReceiptState::Unknown, "I14: {event:?} changed a known outcome");
        assert!(!by_time && *event != E::CancelAsked, "I14: {event:?} changed a settled outcome");
        assert!(after.settle_rev > before.settle_rev, "I14: {event:?} left no trace");
    }
    if changed && after.settled {
        assert!(after.settle_rev > before.settle_rev, "{event:?} settled without a number");
    }
    if before.settled {
        assert!(after.settle_rev >= before.settle_rev);
    }

    // What a stored row must always satisfy.
    assert!(after.unresolved <= after.fence, "{after:?}");
    assert!(after.fence <= after.max_attempts, "{after:?}");
    assert_eq!(usize::try_from(after.fence).unwrap(), history.claims.len());
    assert_eq!(after.claim.is_some(), after.fence > 0);
    let known = matches!(after.state, ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled);
    if known {
        assert!(after.settled && after.unresolved == 0);
    } else {
        assert_eq!(usize::try_from(after.unresolved).unwrap(), history.unresolved.len(), "{event:?}");
    }
    assert_eq!(after.settled_by.is_some(), after.settled);
    match after.state {
        ReceiptState::Planned | ReceiptState::Claimed => assert!(!after.settled),
        ReceiptState::Unknown => {
            assert!(effectful, "a read is never unknown");
            assert!(after.settled || class == EffectClass::Keyed, "an N call is searched for");
        }
        ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_step(
        policy in policies(),
        steps in prop::collection::vec((0u8..104, 0u8..3, any::<bool>()), 1..60),
    ) {
        let mut receipt = Receipt::planned(&policy);
        let mut history = History { claims: Vec::new(), unresolved: BTreeSet::new(), unforgiven: BTreeSet::new() };
        for (pick, back, flag) in steps {
            // Most events concern the current attempt.
            let event = event(pick, if flag { 0 } else { back }, flag, &receipt, &history);
            if let Ok(change) = receipt.apply(&event) {
                check(&receipt, &event, &change.receipt, &mut history);
                receipt = change.receipt;
            }
        }
    }
}
