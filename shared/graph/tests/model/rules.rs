//! The rules under test, and the nine ways to break them.
//!
//! Every method of [`Rules`] calls the real function. A mutant overrides one of them by changing what goes into or comes
//! out of the real function; none repeats its logic.

use ditto_contracts::{EffectClass, Verdict};
use ditto_graph::receipt::{
    AnswerKind, AttemptEnd, Change, IllegalTransition, QueryAnswer, Receipt, ReceiptEvent, Reconcile, reconcile_next,
    verdict_for,
};

use super::world::{Coordinator, World};

/// What the parties of the protocol decide by.
pub(crate) trait Rules {
    /// The ledger.
    fn apply(&self, receipt: &Receipt, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        receipt.apply(event)
    }
    /// A worker that saw an attempt end.
    fn verdict(&self, answer: AnswerKind, receipt: &Receipt, earlier_unresolved: u32) -> AttemptEnd {
        verdict_for(answer, receipt.class, earlier_unresolved, receipt.rejections_stored, true)
    }
    /// The coordinator that got the answer to a query.
    fn reconcile(&self, receipt: &Receipt, asked_fence: u32, answer: QueryAnswer) -> Reconcile {
        reconcile_next(receipt, asked_fence, answer)
    }
    /// A worker that received a job: whether it may start without a claim.
    fn may_skip_claim(&self, receipt: &Receipt) -> bool {
        !receipt.exclusive
    }
    /// The ledger's guard of every write to a loop: epoch and version of the writer are the current ones.
    fn may_advance(&self, writer: Coordinator, world: &World) -> bool {
        writer.epoch == world.epoch && writer.version == world.version
    }
}

/// The rules as they are.
pub(crate) struct Real;
impl Rules for Real {}

/// Execute without claim.
pub(crate) struct NoClaim;
impl Rules for NoClaim {
    fn may_skip_claim(&self, _: &Receipt) -> bool {
        true
    }
}

/// Loop writes are not compared with epoch and version.
pub(crate) struct UnfencedLoop;
impl Rules for UnfencedLoop {
    fn may_advance(&self, writer: Coordinator, _: &World) -> bool {
        writer.epoch > 0
    }
}

/// The lost claim of an N call is put back to the queue, as that of a read would be.
pub(crate) struct RequeueLost;
impl Rules for RequeueLost {
    fn apply(&self, receipt: &Receipt, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        match event {
            ReceiptEvent::SessionDied { .. } => {
                let as_read = Receipt { class: EffectClass::ReadOnly, ..receipt.clone() };
                let mut change = as_read.apply(event)?;
                change.receipt.class = receipt.class;
                Ok(change)
            }
            other => receipt.apply(other),
        }
    }
}

/// A lost claim is recorded as failed, as if its worker had reported a refusal.
pub(crate) struct LostIsFailed;
impl Rules for LostIsFailed {
    fn apply(&self, receipt: &Receipt, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        match (event, &receipt.claim) {
            (ReceiptEvent::SessionDied { .. }, Some(claim)) => receipt.apply(&ReceiptEvent::Answer {
                fence: receipt.fence,
                token: claim.token.clone(),
                verdict: Verdict::Failed,
            }),
            (other, _) => receipt.apply(other),
        }
    }
}

/// A timeout is recorded as failed, as a refusal would be.
pub(crate) struct TimeoutIsFailed;
impl Rules for TimeoutIsFailed {
    fn verdict(&self, answer: AnswerKind, receipt: &Receipt, earlier_unresolved: u32) -> AttemptEnd {
        let answer = if answer == AnswerKind::TimedOut { AnswerKind::Refused } else { answer };
        Real.verdict(answer, receipt, earlier_unresolved)
    }
}

/// A result settles whatever attempt is current.
pub(crate) struct UnfencedSettle;
impl Rules for UnfencedSettle {
    fn apply(&self, receipt: &Receipt, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        match (event, &receipt.claim) {
            (ReceiptEvent::Answer { verdict, .. }, Some(claim)) => receipt.apply(&ReceiptEvent::Answer {
                fence: receipt.fence,
                token: claim.token.clone(),
                verdict: *verdict,
            }),
            (other, _) => receipt.apply(other),
        }
    }
}

/// A backend that does not know the key is taken for one that refused.
pub(crate) struct AbsentIsFailed;
impl Rules for AbsentIsFailed {
    fn reconcile(&self, receipt: &Receipt, asked_fence: u32, answer: QueryAnswer) -> Reconcile {
        let answer = match answer {
            QueryAnswer::Absent => QueryAnswer::Known(ditto_graph::receipt::KeyEvidence::Refused),
            known => known,
        };
        Real.reconcile(receipt, asked_fence, answer)
    }
}

/// A cancel ignores that an earlier attempt is unresolved.
pub(crate) struct CancelUnresolved;
impl Rules for CancelUnresolved {
    fn apply(&self, receipt: &Receipt, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        match event {
            ReceiptEvent::CancelAsked => Receipt { unresolved: 0, ..receipt.clone() }.apply(event),
            other => receipt.apply(other),
        }
    }
}

/// A refusal on a retry is trusted although the backend does not store refusals.
pub(crate) struct TrustRefusal;
impl Rules for TrustRefusal {
    fn apply(&self, receipt: &Receipt, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        let trusting = Receipt { rejections_stored: true, ..receipt.clone() };
        let mut change = trusting.apply(event)?;
        change.receipt.rejections_stored = receipt.rejections_stored;
        Ok(change)
    }
    fn verdict(&self, answer: AnswerKind, receipt: &Receipt, earlier_unresolved: u32) -> AttemptEnd {
        let trusting = Receipt { rejections_stored: true, ..receipt.clone() };
        Real.verdict(answer, &trusting, earlier_unresolved)
    }
}
