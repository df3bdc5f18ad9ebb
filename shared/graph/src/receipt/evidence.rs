//! The search for evidence and the decisions of a person: rows 7, 8, 12 and 13.

use ditto_contracts::{EffectClass, ReceiptState, SettledBy, Verdict, codes};

use super::{AttemptEvent, Change, Due, KeyEvidence, Receipt, Refused};

impl Receipt {
    /// Row 7.
    pub(super) fn sent_again(&self, fence: u32) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Unknown if self.settled => Err(Refused::Settled),
            ReceiptState::Unknown => {
                if self.class != EffectClass::Keyed {
                    return Err(Refused::WrongClass);
                }
                if fence != self.fence {
                    return Err(Refused::StaleFence);
                }
                if !self.window_open {
                    return Err(Refused::WindowClosed);
                }
                if self.fence >= self.max_attempts {
                    return Err(Refused::AttemptsExhausted);
                }
                if self.deadline_passed {
                    return Err(Refused::DeadlinePassed);
                }
                if self.cancel_asked {
                    return Err(Refused::CancelAsked);
                }
                let mut change = self.changed(Due::Now);
                change.log = Some(AttemptEvent::QueryAnswer);
                change.receipt.state = ReceiptState::Planned;
                Ok(change)
            }
            ReceiptState::Planned | ReceiptState::Claimed => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    /// Row 8 for a query; a conflict ends the search, `in progress` prolongs it.
    pub(super) fn evidence(&self, answer: KeyEvidence) -> Result<Change, Refused> {
        match self.class {
            EffectClass::ReadOnly => return Err(Refused::WrongClass),
            EffectClass::Keyed | EffectClass::NonIdempotent if !self.query => return Err(Refused::WrongClass),
            EffectClass::Keyed | EffectClass::NonIdempotent => {}
        }
        match self.state {
            ReceiptState::Unknown => {
                let mut change = match (answer, self.class) {
                    (KeyEvidence::Applied, _) => self.known(ReceiptState::Succeeded, SettledBy::Query, None),
                    (KeyEvidence::Refused, EffectClass::Keyed) if self.rejections_stored => {
                        self.known(ReceiptState::Failed, SettledBy::Query, None)
                    }
                    (KeyEvidence::Conflict, EffectClass::Keyed) if !self.settled => {
                        self.unknown(SettledBy::Query, codes::KEY_CONFLICT)
                    }
                    (KeyEvidence::InProgress, EffectClass::Keyed) if !self.settled => self.changed(Due::Backoff),
                    (KeyEvidence::Refused | KeyEvidence::Conflict | KeyEvidence::InProgress, _) => {
                        return Err(Refused::NoProof);
                    }
                };
                change.log = Some(AttemptEvent::QueryAnswer);
                Ok(change)
            }
            ReceiptState::Planned | ReceiptState::Claimed => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(match answer {
                KeyEvidence::Applied => self.already(Verdict::Succeeded),
                KeyEvidence::Refused => self.already(Verdict::Failed),
                KeyEvidence::Conflict | KeyEvidence::InProgress => Refused::Settled,
            }),
        }
    }

    /// Row 12.
    pub(super) fn search_ended(&self) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Unknown if self.settled => Err(Refused::Settled),
            ReceiptState::Unknown => {
                let code = if self.cancel_asked {
                    codes::CANCELLED_IN_FLIGHT
                } else if !self.window_open {
                    codes::KEY_WINDOW_CLOSED
                } else if self.deadline_passed {
                    codes::TIMEOUT
                } else if self.fence >= self.max_attempts {
                    codes::ATTEMPTS_EXHAUSTED
                } else {
                    codes::RECONCILE_EXHAUSTED
                };
                Ok(self.unknown(SettledBy::Sweeper, code))
            }
            ReceiptState::Planned | ReceiptState::Claimed => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    /// Row 8 for a person.
    pub(super) fn resolved(&self, settle_rev: i32, verdict: Verdict) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Unknown => {
                if settle_rev != self.settle_rev {
                    return Err(Refused::StaleSettlement);
                }
                match verdict {
                    Verdict::Succeeded | Verdict::Failed => {
                        let mut change = self.known(verdict.into(), SettledBy::Person, None);
                        change.log = Some(AttemptEvent::Person);
                        Ok(change)
                    }
                    Verdict::Unknown | Verdict::Cancelled => Err(Refused::NoProof),
                }
            }
            ReceiptState::Planned | ReceiptState::Claimed => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    /// Row 13.
    pub(super) fn authorised(&self, settle_rev: i32, session_over: bool) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Unknown if self.settled => {
                if settle_rev != self.settle_rev {
                    return Err(Refused::StaleSettlement);
                }
                if !session_over {
                    return Err(Refused::SessionNotOver);
                }
                if self.cancel_asked {
                    return Err(Refused::CancelAsked);
                }
                if self.key_may_be_forgotten() {
                    return Err(Refused::WindowClosed);
                }
                let mut change = self.changed(Due::Now);
                change.log = Some(AttemptEvent::Person);
                change.receipt.state = ReceiptState::Planned;
                change.receipt.settled = false;
                change.receipt.settled_by = None;
                change.receipt.max_attempts = self.max_attempts.saturating_add(1);
                // That person sets a new deadline.
                change.receipt.deadline_passed = false;
                change.receipt.settle_rev = self.settle_rev.saturating_add(1);
                Ok(change)
            }
            ReceiptState::Unknown | ReceiptState::Planned | ReceiptState::Claimed => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }
}
