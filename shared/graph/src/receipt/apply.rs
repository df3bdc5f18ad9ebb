//! The transition table: one function from receipt and event to the receipt after it.
//!
//! Row numbers are those of `docs/receipts.md`.

use ditto_contracts::{ClaimToken, EffectClass, ReceiptState, SessionId, SettledBy, Verdict, codes};

use super::{Claim, IllegalTransition, Receipt, ReceiptEvent, Refused, decide::refusal_stands};

/// When somebody must look at a receipt again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Due {
    /// As before.
    Keep,
    /// At once.
    Now,
    /// After a pause: the worker's delay, or the backoff of its dispatch number.
    Backoff,
    /// Not any more: it is settled.
    Never,
}

/// What the attempt log gets together with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum AttemptEvent {
    /// The claim that a new one replaced.
    Superseded = 1,
    /// The claim that was given back.
    Released = 2,
    /// A late or fenced-off result.
    Late = 3,
    /// The answer to a query by key.
    QueryAnswer = 4,
    /// Who decided, and why.
    Person = 5,
}

/// A legal transition: the receipt after it, and what must be written in the same transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The receipt afterwards.
    pub receipt: Receipt,
    /// Its next look.
    pub due: Due,
    /// The code to store when the ledger itself decided; `None`: that of the answer, or none.
    pub code: Option<&'static str>,
    /// An entry for the attempt log. [`AttemptEvent::Superseded`] and [`AttemptEvent::Released`] describe the claim
    /// as it was before the change.
    pub log: Option<AttemptEvent>,
    /// Tell the session of the claim to stop the call.
    pub stop_worker: bool,
}

impl Receipt {
    /// The receipt after `event`.
    ///
    /// # Errors
    /// When the table has no row for it. Nothing changes then; [`IllegalTransition::is_evidence`] says whether the
    /// event must still be appended to the attempt log.
    pub fn apply(&self, event: &ReceiptEvent) -> Result<Change, IllegalTransition> {
        match event {
            ReceiptEvent::Claim { claim, session_alive } => self.claimed(claim, *session_alive),
            ReceiptEvent::Release { fence, token, unstarted } => self.released(*fence, token, *unstarted),
            ReceiptEvent::Answer { fence, token, verdict } => self.answered(*fence, token, *verdict),
            ReceiptEvent::UnclaimedAnswer { hash_matches, verdict } => self.answered_unclaimed(*hash_matches, *verdict),
            ReceiptEvent::SessionDied { session } => self.lost(session),
            ReceiptEvent::ReconcileAbsent { fence } => self.sent_again(*fence),
            ReceiptEvent::ReconcileAnswer { answer } => self.evidence(*answer),
            ReceiptEvent::ReconcileExhausted => self.search_ended(),
            ReceiptEvent::Resolve { settle_rev, verdict } => self.resolved(*settle_rev, *verdict),
            ReceiptEvent::AuthoriseAttempt { settle_rev, session_over } => self.authorised(*settle_rev, *session_over),
            ReceiptEvent::CancelAsked => self.cancel_asked(),
            ReceiptEvent::DeadlinePassed => self.deadline_passed(),
            ReceiptEvent::AttemptsExhausted => self.attempts_exhausted(),
            ReceiptEvent::DispatchesExhausted => self.dispatches_exhausted(),
            ReceiptEvent::WindowClosed => self.window_closed(),
        }
        .map_err(|reason| IllegalTransition {
            state: self.state,
            settled: self.settled,
            event: event.kind(),
            reason,
        })
    }

    /// Row 2.
    fn claimed(&self, claim: &Claim, session_alive: bool) -> Result<Change, Refused> {
        let same_token = self.claim.as_ref().is_some_and(|held| held.token == claim.token);
        match self.state {
            ReceiptState::Planned => {
                if same_token {
                    // An echo of a request that was already granted: its worker has given that attempt back or lost it.
                    return Err(Refused::TokenUsed);
                }
                if self.cancel_asked {
                    return Err(Refused::CancelAsked);
                }
                if self.deadline_passed {
                    return Err(Refused::DeadlinePassed);
                }
                if self.fence >= self.max_attempts {
                    return Err(Refused::AttemptsExhausted);
                }
                if self.unresolved > 0 && self.key_may_be_forgotten() {
                    return Err(Refused::WindowClosed);
                }
                if !session_alive {
                    return Err(Refused::SessionDead);
                }
                let mut change = self.changed(Due::Keep);
                change.log = self.claim.as_ref().map(|_| AttemptEvent::Superseded);
                change.receipt.state = ReceiptState::Claimed;
                change.receipt.fence += 1;
                change.receipt.unresolved += 1;
                change.receipt.claim = Some(claim.clone());
                change.receipt.released = false;
                Ok(change)
            }
            ReceiptState::Claimed if same_token => Err(Refused::Repeat),
            ReceiptState::Claimed => Err(Refused::Taken),
            ReceiptState::Unknown if !self.settled => Err(Refused::Taken),
            ReceiptState::Unknown | ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => {
                Err(Refused::Settled)
            }
        }
    }

    /// Row 3; row 6 for a read that a worker gives up.
    fn released(&self, fence: u32, token: &ClaimToken, unstarted: bool) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Claimed => {
                self.check_holder(fence, token)?;
                if !unstarted && self.class != EffectClass::ReadOnly {
                    return Err(Refused::NoProof);
                }
                let mut change = self.changed(Due::Backoff);
                change.log = Some(AttemptEvent::Released);
                change.receipt.state = ReceiptState::Planned;
                if unstarted {
                    change.receipt.unresolved = self.unresolved.saturating_sub(1);
                    change.receipt.released = true;
                }
                Ok(change)
            }
            ReceiptState::Planned | ReceiptState::Unknown => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    /// Rows 4 and 5; 8 and 9 for a late answer.
    fn answered(&self, fence: u32, token: &ClaimToken, verdict: Verdict) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Claimed => {
                self.check_holder(fence, token)?;
                match self.admitted(verdict) {
                    Verdict::Unknown => Ok(self.in_doubt(SettledBy::Worker, None)),
                    known @ (Verdict::Succeeded | Verdict::Failed | Verdict::Cancelled) => {
                        Ok(self.known(known.into(), SettledBy::Worker, None))
                    }
                }
            }
            ReceiptState::Planned => {
                self.check_late(fence, token, verdict)?;
                match (self.class, self.admitted(verdict)) {
                    (_, Verdict::Succeeded) => Ok(self.late(ReceiptState::Succeeded)),
                    (EffectClass::ReadOnly | EffectClass::Keyed, Verdict::Failed) => {
                        Ok(self.late(ReceiptState::Failed))
                    }
                    // A person has authorised the next attempt: a refusal of the last one does not take that back.
                    (EffectClass::NonIdempotent, Verdict::Failed) => Err(Refused::NoProof),
                    (_, Verdict::Unknown | Verdict::Cancelled) => Err(Refused::NoProof),
                }
            }
            ReceiptState::Unknown => {
                self.check_late(fence, token, verdict)?;
                match self.admitted(verdict) {
                    known @ (Verdict::Succeeded | Verdict::Failed) => Ok(self.late(known.into())),
                    Verdict::Unknown => Err(Refused::Repeat),
                    Verdict::Cancelled => Err(Refused::NoProof),
                }
            }
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => {
                let repeat = self.check_holder(fence, token).is_ok() && self.state == verdict.into();
                Err(if repeat { Refused::Repeat } else { self.already(verdict) })
            }
        }
    }

    /// Row 9 for a read that was not claimed.
    fn answered_unclaimed(&self, hash_matches: bool, verdict: Verdict) -> Result<Change, Refused> {
        if self.class != EffectClass::ReadOnly || self.exclusive {
            return Err(Refused::WrongClass);
        }
        if !hash_matches {
            return Err(Refused::WrongRequest);
        }
        match self.state {
            ReceiptState::Planned if self.fence > 0 => Err(Refused::StaleFence),
            ReceiptState::Planned => match verdict {
                Verdict::Succeeded => Ok(self.known(ReceiptState::Succeeded, SettledBy::Worker, None)),
                Verdict::Failed | Verdict::Unknown => Ok(self.known(ReceiptState::Failed, SettledBy::Worker, None)),
                // Only a cancel of the call itself makes it cancelled; a worker that stops gives its job back instead.
                Verdict::Cancelled => Err(Refused::NoProof),
            },
            ReceiptState::Claimed | ReceiptState::Unknown => Err(Refused::StaleFence),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => {
                Err(if self.state == verdict.into() { Refused::Repeat } else { self.already(verdict) })
            }
        }
    }

    /// Row 5 for K and N, row 6 for R.
    fn lost(&self, session: &SessionId) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Claimed => {
                if self.claim.as_ref().is_none_or(|held| held.session != *session) {
                    return Err(Refused::NotHolder);
                }
                Ok(self.in_doubt(SettledBy::Sweeper, Some(codes::WORKER_LOST)))
            }
            ReceiptState::Planned | ReceiptState::Unknown => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    pub(super) fn changed(&self, due: Due) -> Change {
        Change { receipt: self.clone(), due, code: None, log: None, stop_worker: false }
    }

    fn settled_as(&self, state: ReceiptState, by: SettledBy, code: Option<&'static str>) -> Change {
        let mut change = self.changed(Due::Never);
        change.code = code;
        change.receipt.state = state;
        change.receipt.settled = true;
        change.receipt.settled_by = Some(by);
        change.receipt.settle_rev = self.settle_rev.saturating_add(1);
        change
    }

    /// Settles with an outcome that is certain: nothing stays unresolved.
    pub(super) fn known(&self, state: ReceiptState, by: SettledBy, code: Option<&'static str>) -> Change {
        let mut change = self.settled_as(state, by, code);
        change.receipt.unresolved = 0;
        change
    }

    fn late(&self, state: ReceiptState) -> Change {
        self.known(state, SettledBy::LateResult, None)
    }

    pub(super) fn unknown(&self, by: SettledBy, code: &'static str) -> Change {
        self.settled_as(ReceiptState::Unknown, by, Some(code))
    }

    /// The current attempt ended without an answer: R runs again, K is asked for, N stays unknown.
    fn in_doubt(&self, by: SettledBy, code: Option<&'static str>) -> Change {
        match self.class {
            EffectClass::ReadOnly => {
                let mut change = self.changed(Due::Backoff);
                change.receipt.state = ReceiptState::Planned;
                change
            }
            EffectClass::Keyed => {
                let mut change = self.changed(Due::Now);
                change.code = code;
                change.receipt.state = ReceiptState::Unknown;
                change.receipt.settle_rev = self.settle_rev.saturating_add(1);
                change
            }
            EffectClass::NonIdempotent => self.settled_as(ReceiptState::Unknown, by, code),
        }
    }

    /// What the ledger makes of a worker's verdict. Workers decide by [`super::verdict_for`]; one that does not (foreign,
    /// older) cannot make certain what is not: reads are never unknown, effects never cancelled or wrongly refused.
    fn admitted(&self, verdict: Verdict) -> Verdict {
        match (self.class, verdict) {
            (EffectClass::ReadOnly, Verdict::Unknown) => Verdict::Failed,
            (EffectClass::ReadOnly, Verdict::Succeeded | Verdict::Failed | Verdict::Cancelled) => verdict,
            (EffectClass::Keyed | EffectClass::NonIdempotent, Verdict::Succeeded) => Verdict::Succeeded,
            (EffectClass::Keyed | EffectClass::NonIdempotent, Verdict::Failed) => {
                let others = self.unresolved.saturating_sub(1);
                if refusal_stands(self.class, self.rejections_stored, others) {
                    Verdict::Failed
                } else {
                    Verdict::Unknown
                }
            }
            (EffectClass::Keyed | EffectClass::NonIdempotent, Verdict::Unknown | Verdict::Cancelled) => {
                Verdict::Unknown
            }
        }
    }

    /// Checks a late answer: of an attempt that was given back as unstarted, only a success is believed.
    fn check_late(&self, fence: u32, token: &ClaimToken, verdict: Verdict) -> Result<(), Refused> {
        self.check_holder(fence, token)?;
        if self.released && verdict != Verdict::Succeeded { Err(Refused::NoProof) } else { Ok(()) }
    }

    fn check_holder(&self, fence: u32, token: &ClaimToken) -> Result<(), Refused> {
        if fence != self.fence {
            return Err(Refused::StaleFence);
        }
        match &self.claim {
            Some(held) if held.token == *token => Ok(()),
            Some(_) | None => Err(Refused::NotHolder),
        }
    }

    /// Why evidence for `verdict` does not change a known outcome.
    pub(super) fn already(&self, verdict: Verdict) -> Refused {
        let contradicts = verdict != Verdict::Unknown && self.state != verdict.into();
        if contradicts && self.settled_by == Some(SettledBy::Person) {
            Refused::ContradictsPerson
        } else {
            Refused::Settled
        }
    }
}
