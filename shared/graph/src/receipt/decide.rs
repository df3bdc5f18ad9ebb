//! Decisions around a receipt: what an answer amounts to, what callers see, when to try and ask again.

use ditto_contracts::{
    EffectClass, ReceiptState, Verdict, codes,
    interaction::{DeliveryStatus, ExternalStatus},
};

use super::{KeyEvidence, Receipt, ReceiptEvent};

/// First pause before a job is published again, in milliseconds.
pub const DISPATCH_BACKOFF_MIN_MS: u64 = 5_000;
/// Longest pause before a job is published again, in milliseconds.
pub const DISPATCH_BACKOFF_MAX_MS: u64 = 300_000;

/// How one attempt ended, as the worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AnswerKind {
    /// Arguments, permission or an unknown tool: refused on our side, nothing was sent.
    NothingSent,
    /// Name resolution, connect or TLS failed, or the attempt was stopped before: no request byte was written.
    NotReached,
    /// A valid success answer for this call.
    Success,
    /// A refusal that the backend's contract lists as definite.
    Refused,
    /// The tool's own error answer (`status: failed`, MCP `isError`).
    ToolError,
    /// Throttled, and the contract says that means "not executed".
    Throttled,
    /// 5xx, 408, 409 "in progress", an error of a gateway.
    BackendError,
    /// Reset, stream or transport closed, child process died, session re-created: after the first byte.
    Lost,
    /// Time ran out after the first byte.
    TimedOut,
    /// Cancelled after the first byte.
    Cancelled,
    /// An answer that is unreadable, too large, breaks its contract or names another call.
    Unreadable,
    /// The code of the tool panicked.
    Panicked,
}

/// What the worker does with an ended attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptEnd {
    /// Report this verdict.
    Report {
        /// The verdict.
        verdict: Verdict,
        /// The error code to report; `None`: the answer's own.
        code: Option<&'static str>,
    },
    /// Give the attempt back as unstarted; it is tried again after a pause while attempts last.
    Release,
}

/// Whether a definite refusal proves that the action did not and will not happen, given the number of earlier attempts
/// whose end is not known: any of them may still arrive at the backend and succeed.
pub const fn refusal_stands(class: EffectClass, rejections_stored: bool, earlier_unresolved: u32) -> bool {
    match class {
        EffectClass::ReadOnly => true,
        // The stored refusal also answers whatever arrives later under this key.
        EffectClass::Keyed => rejections_stored || earlier_unresolved == 0,
        EffectClass::NonIdempotent => earlier_unresolved == 0,
    }
}

/// What one ended attempt amounts to. Decided in the worker, before the result is sent.
///
/// `earlier_unresolved` is the ledger's count when it granted the claim (0 for an unclaimed read). A read whose answer
/// was lost is failed, not tried again: repeating it is the definition's decision (`retry`).
pub const fn verdict_for(
    answer: AnswerKind,
    class: EffectClass,
    earlier_unresolved: u32,
    rejections_stored: bool,
    error_is_definite: bool,
) -> AttemptEnd {
    const fn report(verdict: Verdict, code: Option<&'static str>) -> AttemptEnd {
        AttemptEnd::Report { verdict, code }
    }
    /// Nobody knows whether it happened; for a read that does not matter.
    const fn ambiguous(class: EffectClass, code: Option<&'static str>) -> AttemptEnd {
        match class {
            EffectClass::ReadOnly => report(Verdict::Failed, code),
            EffectClass::Keyed | EffectClass::NonIdempotent => report(Verdict::Unknown, code),
        }
    }
    const fn refused(stands: bool) -> AttemptEnd {
        if stands { report(Verdict::Failed, None) } else { report(Verdict::Unknown, Some(codes::RESPONSE_LOST)) }
    }
    match answer {
        AnswerKind::Success => report(Verdict::Succeeded, None),
        AnswerKind::NotReached | AnswerKind::Throttled => AttemptEnd::Release,
        // The backend has not seen this attempt, so it cannot have stored a refusal that would stop an earlier one.
        AnswerKind::NothingSent => refused(refusal_stands(class, false, earlier_unresolved)),
        AnswerKind::Refused => refused(refusal_stands(class, rejections_stored, earlier_unresolved)),
        AnswerKind::ToolError if error_is_definite => {
            refused(refusal_stands(class, rejections_stored, earlier_unresolved))
        }
        AnswerKind::ToolError => ambiguous(class, None),
        AnswerKind::BackendError => match class {
            EffectClass::ReadOnly => report(Verdict::Failed, None),
            EffectClass::Keyed | EffectClass::NonIdempotent => report(Verdict::Unknown, Some(codes::RESPONSE_LOST)),
        },
        AnswerKind::Lost => ambiguous(class, Some(codes::RESPONSE_LOST)),
        AnswerKind::TimedOut => ambiguous(class, Some(codes::TIMEOUT)),
        AnswerKind::Cancelled => match class {
            EffectClass::ReadOnly => report(Verdict::Cancelled, Some(codes::CANCELLED)),
            EffectClass::Keyed | EffectClass::NonIdempotent => {
                report(Verdict::Unknown, Some(codes::CANCELLED_IN_FLIGHT))
            }
        },
        AnswerKind::Unreadable => ambiguous(class, Some(codes::RESPONSE_INVALID)),
        AnswerKind::Panicked => ambiguous(class, Some(codes::PANICKED)),
    }
}

/// What a settled receipt says to the outside, for tool calls and for deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicStatus {
    /// Status of an external result.
    pub external: ExternalStatus,
    /// Status of a delivery.
    pub delivery: DeliveryStatus,
}

/// The public status of a receipt; `None` while it is planned or claimed.
///
/// `timeout` promises that nothing was done: only for reads, and for calls no attempt of which was ever granted.
pub fn public_status(
    state: ReceiptState,
    code: Option<&str>,
    class: EffectClass,
    ever_claimed: bool,
) -> Option<PublicStatus> {
    let (external, delivery) = match state {
        ReceiptState::Planned | ReceiptState::Claimed => return None,
        ReceiptState::Succeeded => (ExternalStatus::Success, DeliveryStatus::Accepted),
        ReceiptState::Failed => {
            let too_late = matches!(code, Some(codes::TIMEOUT | codes::DEADLINE_EXCEEDED));
            let nothing_done = class == EffectClass::ReadOnly || !ever_claimed;
            let external = if too_late && nothing_done { ExternalStatus::Timeout } else { ExternalStatus::Failed };
            (external, DeliveryStatus::Rejected)
        }
        ReceiptState::Cancelled => (ExternalStatus::Cancelled, DeliveryStatus::Rejected),
        ReceiptState::Unknown => (ExternalStatus::Unknown, DeliveryStatus::Unknown),
    };
    Some(PublicStatus { external, delivery })
}

/// Whether the backend may have forgotten the key: nine tenths of its promise have passed since the first claim.
/// All times in milliseconds of the ledger's clock; no time to live: never.
pub fn key_window_closed(first_claim_ms: Option<i64>, ttl_ms: Option<u64>, now_ms: i64) -> bool {
    let (Some(first), Some(ttl)) = (first_claim_ms, ttl_ms) else { return false };
    let usable = i64::try_from(ttl - ttl.div_ceil(10)).unwrap_or(i64::MAX);
    now_ms >= first.saturating_add(usable)
}

/// The pause before a job is published again, in milliseconds, after its `dispatch_no`-th publication (from 1): 5 s,
/// 10 s, … 5 min. The caller adds jitter.
pub fn dispatch_backoff_ms(dispatch_no: u32) -> u64 {
    let doublings = dispatch_no.saturating_sub(1).min(16);
    (DISPATCH_BACKOFF_MIN_MS << doublings).min(DISPATCH_BACKOFF_MAX_MS)
}

/// The answer to a query by key, or its absence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueryAnswer {
    /// The backend knows the key.
    Known(KeyEvidence),
    /// The backend does not know the key. Not a failure: an earlier request may still be on its way.
    Absent,
    /// No answer.
    NoAnswer,
}

/// How the search for evidence begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReconcileStart {
    /// Send a query job.
    Ask,
    /// Nothing to ask: apply this.
    Apply(ReceiptEvent),
    /// Nothing to search for.
    Nothing,
}

/// What follows from an answer to a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconcile {
    /// Apply this.
    Apply(ReceiptEvent),
    /// Ask again after a pause, until the time for it is used up.
    AskAgain,
    /// Nothing.
    Nothing,
}

/// What to do with a receipt that is unknown and due.
pub fn reconcile_start(receipt: &Receipt) -> ReconcileStart {
    match (receipt.class, receipt.state, receipt.settled) {
        (EffectClass::Keyed, ReceiptState::Unknown, false) if receipt.query => ReconcileStart::Ask,
        (EffectClass::Keyed, ReceiptState::Unknown, false) => ReconcileStart::Apply(if receipt.can_send_again() {
            ReceiptEvent::ReconcileAbsent { fence: receipt.fence }
        } else {
            ReceiptEvent::ReconcileExhausted
        }),
        (EffectClass::Keyed, _, _) | (EffectClass::ReadOnly | EffectClass::NonIdempotent, _, _) => {
            ReconcileStart::Nothing
        }
    }
}

/// What to do with the answer to a query that was put when the latest attempt was `asked_fence`.
pub fn reconcile_next(receipt: &Receipt, asked_fence: u32, answer: QueryAnswer) -> Reconcile {
    let evidence = |answer| Reconcile::Apply(ReceiptEvent::ReconcileAnswer { answer });
    match (receipt.state, receipt.class) {
        (ReceiptState::Unknown, EffectClass::Keyed) => {}
        // Only a hit says something, whatever the class of the others.
        (ReceiptState::Unknown, EffectClass::NonIdempotent) => {
            return match answer {
                QueryAnswer::Known(KeyEvidence::Applied) => evidence(KeyEvidence::Applied),
                QueryAnswer::Known(KeyEvidence::Refused | KeyEvidence::Conflict | KeyEvidence::InProgress)
                | QueryAnswer::Absent
                | QueryAnswer::NoAnswer => Reconcile::Nothing,
            };
        }
        (ReceiptState::Unknown, EffectClass::ReadOnly)
        | (
            ReceiptState::Planned
            | ReceiptState::Claimed
            | ReceiptState::Succeeded
            | ReceiptState::Failed
            | ReceiptState::Cancelled,
            EffectClass::ReadOnly | EffectClass::Keyed | EffectClass::NonIdempotent,
        ) => return Reconcile::Nothing,
    }
    let again = if receipt.settled { Reconcile::Nothing } else { Reconcile::AskAgain };
    match answer {
        QueryAnswer::Known(KeyEvidence::Applied) => evidence(KeyEvidence::Applied),
        QueryAnswer::Known(KeyEvidence::Refused) if receipt.rejections_stored => evidence(KeyEvidence::Refused),
        QueryAnswer::Known(KeyEvidence::Refused) => again,
        QueryAnswer::Known(known @ (KeyEvidence::Conflict | KeyEvidence::InProgress)) if !receipt.settled => {
            evidence(known)
        }
        QueryAnswer::Known(KeyEvidence::Conflict | KeyEvidence::InProgress) => Reconcile::Nothing,
        QueryAnswer::Absent if receipt.settled => Reconcile::Nothing,
        QueryAnswer::Absent if receipt.can_send_again() && asked_fence == receipt.fence => {
            Reconcile::Apply(ReceiptEvent::ReconcileAbsent { fence: asked_fence })
        }
        // Whoever cancelled does not want to wait for the whole window.
        QueryAnswer::Absent if receipt.cancel_asked => Reconcile::Apply(ReceiptEvent::ReconcileExhausted),
        QueryAnswer::Absent | QueryAnswer::NoAnswer => again,
    }
}
