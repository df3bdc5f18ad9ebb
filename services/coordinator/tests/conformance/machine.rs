//! The ledger against the transition table: the same random events give the same receipts.

use ditto_contracts::{EffectClass, ReceiptState, Verdict, wire::ledger::ReleaseItem};
use ditto_coordinator::store::{QueryAnswer, Resolution, Step};
use ditto_graph::receipt::{
    Claim, KeyEvidence, QueryAnswer as PureAnswer, Receipt, ReceiptEvent, Reconcile, reconcile_next,
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A small generator, so that a failure repeats.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// One call in the ledger and in the table.
struct Pair<'a> {
    ledger: &'a Ledger,
    owner: SessionId,
    run: RunId,
    version: i64,
    call: CallUid,
    pure: Receipt,
    /// Everybody who ever claimed, with the attempt.
    claims: Vec<(SessionId, ClaimToken, u32)>,
    dead: Vec<SessionId>,
}

impl Pair<'_> {
    fn apply(&mut self, event: &ReceiptEvent) {
        if let Ok(change) = self.pure.apply(event) {
            self.pure = change.receipt;
        }
    }

    /// Some attempt, mostly the last.
    fn held(&self, dice: &mut Dice) -> Option<(SessionId, ClaimToken, u32)> {
        let last = self.claims.len().checked_sub(1)?;
        let at = if dice.roll(4) == 0 { dice.roll(self.claims.len() as u64) as usize } else { last };
        Some(self.claims[at].clone())
    }

    async fn step(&mut self, dice: &mut Dice) -> String {
        let store = self.ledger.store.clone();
        let call = self.call.clone();
        match dice.roll(9) {
            0 | 1 => {
                let (session, token) = (self.ledger.worker().await, ClaimToken::generate());
                let answer = self.ledger.claim(&session, &call, &token).await;
                if let ClaimAnswer::Granted { fence, .. } = answer {
                    self.claims.push((session.clone(), token.clone(), fence));
                }
                self.apply(&ReceiptEvent::Claim { claim: Claim { token, session }, session_alive: true });
                "claim".into()
            }
            2 | 3 => {
                let Some((session, token, fence)) = self.held(dice) else { return "nothing".into() };
                let verdict =
                    [Verdict::Succeeded, Verdict::Failed, Verdict::Unknown, Verdict::Unknown][dice.roll(4) as usize];
                if self.pure.class == EffectClass::ReadOnly && verdict == Verdict::Unknown {
                    return "nothing".into();
                }
                self.ledger.settle(said(&session, &call, &(token.clone(), fence), verdict)).await;
                self.apply(&ReceiptEvent::Answer { fence, token, verdict });
                format!("answer {verdict} of {fence}")
            }
            4 => {
                let Some((session, token, fence)) = self.held(dice) else { return "nothing".into() };
                let unstarted = dice.roll(2) == 0;
                let item = ReleaseItem {
                    bucket: call.bucket(),
                    call,
                    fence,
                    token: token.clone(),
                    unstarted,
                    delay_ms: 0,
                    error: None,
                };
                store.release(&session, &[item]).await.unwrap();
                self.apply(&ReceiptEvent::Release { fence, token, unstarted });
                format!("release of {fence}, unstarted {unstarted}")
            }
            5 => {
                let Some((session, _, _)) = self.held(dice) else { return "nothing".into() };
                store.session_close(&session).await.unwrap();
                self.dead.push(session);
                store.sweep_lost_claims(100).await.unwrap();
                for session in self.dead.clone() {
                    self.apply(&ReceiptEvent::SessionDied { session });
                }
                "lost".into()
            }
            6 => {
                let (answer, pure) = match dice.roll(3) {
                    0 => (QueryAnswer::Absent, PureAnswer::Absent),
                    1 => (QueryAnswer::Applied { output: None }, PureAnswer::Known(KeyEvidence::Applied)),
                    _ => (QueryAnswer::Conflict, PureAnswer::Known(KeyEvidence::Conflict)),
                };
                if !self.pure.query {
                    return "nothing".into();
                }
                store.reconcile(&[(call, answer.clone())]).await.unwrap();
                if let Reconcile::Apply(event) = reconcile_next(&self.pure, self.pure.fence, pure) {
                    self.apply(&event);
                }
                format!("{answer:?}")
            }
            7 => {
                // Rarely: it ends most stories.
                if dice.roll(3) > 0 {
                    return "nothing".into();
                }
                let step = Step { cancels: vec![call], ..step(self.version + 1) };
                let item = next(&self.run, self.version, step);
                assert_eq!(self.ledger.advance(&self.owner, item).await, Advanced::Done);
                self.version += 1;
                self.apply(&ReceiptEvent::CancelAsked);
                "cancel".into()
            }
            _ => {
                let settle_rev = self.pure.settle_rev;
                let another = dice.roll(3) > 0;
                if another {
                    let over = self.pure.claim.as_ref().is_none_or(|claim| self.dead.contains(&claim.session));
                    if self.pure.released {
                        return "nothing".into();
                    }
                    store.receipt_resolve(&call, settle_rev, &Resolution::AnotherAttempt, "ada", "r").await.unwrap();
                    self.apply(&ReceiptEvent::AuthoriseAttempt { settle_rev, session_over: over });
                } else {
                    store.receipt_resolve(&call, settle_rev, &Resolution::Failed, "ada", "r").await.unwrap();
                    self.apply(&ReceiptEvent::Resolve { settle_rev, verdict: Verdict::Failed });
                }
                format!("person, another attempt {another}")
            }
        }
    }

    /// What the limits pass finds without the help of time.
    fn limits(&mut self) {
        if self.pure.state == ReceiptState::Planned && self.pure.cancel_asked {
            self.apply(&ReceiptEvent::CancelAsked);
        }
        if self.pure.state == ReceiptState::Planned && self.pure.fence >= self.pure.max_attempts {
            self.apply(&ReceiptEvent::AttemptsExhausted);
        }
        let stuck = !self.pure.query && !self.pure.can_send_again();
        if self.pure.state == ReceiptState::Unknown && !self.pure.settled && stuck {
            self.apply(&ReceiptEvent::ReconcileExhausted);
        }
    }
}

pub async fn the_ledger_follows_the_table(ledger: &Ledger) {
    let policies = [
        r(),
        k(),
        k_query(),
        CallPolicy { rejections_stored: false, query: true, ..k() },
        n(),
        CallPolicy { query: true, ..n() },
    ];
    for seed in 0..36u64 {
        let mut dice = Dice(seed * 7919 + 1);
        let policy = CallPolicy { max_attempts: 3, ..policies[seed as usize % policies.len()].clone() };
        let (owner, run, call) = ledger.call(policy.clone()).await;
        let pure = Receipt::planned(&policy);
        let mut pair = Pair { ledger, owner, run, version: 1, call, pure, claims: Vec::new(), dead: Vec::new() };
        let mut story = Vec::new();
        for _ in 0..9 {
            let what = pair.step(&mut dice).await;
            if what == "nothing" {
                continue;
            }
            story.push(what);
            ledger.store.sweep_limits(HOUR, 100).await.unwrap();
            pair.limits();
            let row = ledger.receipt(&pair.call).await;
            let stored =
                (row.state, row.settled_ms.is_some(), row.fence, row.unresolved, row.settle_rev, row.settled_by);
            let pure = &pair.pure;
            let (fence, unresolved) = (pure.fence.cast_signed(), pure.unresolved.cast_signed());
            let table = (pure.state, pure.settled, fence, unresolved, pure.settle_rev, pure.settled_by);
            assert_eq!(stored, table, "class {} seed {seed} after {story:?}", policy.class.as_str());
        }
    }
}
