//! Cancel, deadline and everything that is used up: rows 10, 11 and 12.

use ditto_contracts::{EffectClass, ReceiptState, SettledBy, codes};

use super::{Change, Due, Receipt, Refused};

/// Why a planned call is not to be started any more.
#[derive(Clone, Copy)]
enum Stop {
    Cancel,
    Deadline,
    Attempts,
    Dispatches,
    Window,
}

impl Receipt {
    /// Rows 10 and 11 for a cancel; a running attempt is told, a searched-for one is not sent again.
    pub(super) fn cancel_asked(&self) -> Result<Change, Refused> {
        let mut change = match self.state {
            ReceiptState::Planned => self.stopped(Stop::Cancel),
            ReceiptState::Claimed => Change { stop_worker: true, ..self.changed(Due::Keep) },
            ReceiptState::Unknown if self.settled => return Err(Refused::Settled),
            ReceiptState::Unknown => self.changed(Due::Keep),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => return Err(Refused::Settled),
        };
        change.receipt.cancel_asked = true;
        Ok(change)
    }

    /// Rows 10 and 11 for the deadline; row 12 where nothing can be asked.
    pub(super) fn deadline_passed(&self) -> Result<Change, Refused> {
        let mut change = match self.state {
            ReceiptState::Planned => self.stopped(Stop::Deadline),
            ReceiptState::Claimed => self.changed(Due::Keep),
            ReceiptState::Unknown if self.settled => return Err(Refused::Settled),
            ReceiptState::Unknown if self.query => self.changed(Due::Keep),
            ReceiptState::Unknown => self.unknown(SettledBy::Sweeper, codes::TIMEOUT),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => return Err(Refused::Settled),
        };
        change.receipt.deadline_passed = true;
        Ok(change)
    }

    /// Rows 10 and 11 for attempts; row 12 where nothing can be asked.
    pub(super) fn attempts_exhausted(&self) -> Result<Change, Refused> {
        if self.fence < self.max_attempts {
            return Err(Refused::AttemptsRemain);
        }
        match self.state {
            ReceiptState::Planned => Ok(self.stopped(Stop::Attempts)),
            ReceiptState::Claimed => Err(Refused::WrongState),
            ReceiptState::Unknown if self.settled => Err(Refused::Settled),
            ReceiptState::Unknown if self.query => Err(Refused::CanStillAsk),
            ReceiptState::Unknown => Ok(self.unknown(SettledBy::Sweeper, codes::ATTEMPTS_EXHAUSTED)),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    /// Rows 10 and 11 for dispatches.
    pub(super) fn dispatches_exhausted(&self) -> Result<Change, Refused> {
        match self.state {
            ReceiptState::Planned => Ok(self.stopped(Stop::Dispatches)),
            ReceiptState::Claimed | ReceiptState::Unknown => Err(Refused::WrongState),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => Err(Refused::Settled),
        }
    }

    /// The key window: no attempt after an unresolved one, and row 12 where nothing can be asked.
    pub(super) fn window_closed(&self) -> Result<Change, Refused> {
        if self.class != EffectClass::Keyed {
            return Err(Refused::WrongClass);
        }
        let mut change = match self.state {
            ReceiptState::Planned if self.unresolved > 0 => self.stopped(Stop::Window),
            ReceiptState::Planned | ReceiptState::Claimed => self.changed(Due::Keep),
            ReceiptState::Unknown if self.settled => return Err(Refused::Settled),
            ReceiptState::Unknown if self.query => self.changed(Due::Keep),
            ReceiptState::Unknown => self.unknown(SettledBy::Sweeper, codes::KEY_WINDOW_CLOSED),
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => return Err(Refused::Settled),
        };
        change.receipt.window_open = false;
        Ok(change)
    }

    /// Rows 10 and 11: over without an effect if no attempt is unresolved, else unknown.
    fn stopped(&self, stop: Stop) -> Change {
        if self.class == EffectClass::ReadOnly || self.unresolved == 0 {
            let (state, code) = match stop {
                Stop::Cancel => (ReceiptState::Cancelled, codes::CANCELLED),
                Stop::Deadline => (ReceiptState::Failed, codes::DEADLINE_EXCEEDED),
                Stop::Attempts if self.unresolved > 0 => (ReceiptState::Failed, codes::POISONED),
                Stop::Attempts | Stop::Dispatches => (ReceiptState::Failed, codes::ATTEMPTS_EXHAUSTED),
                Stop::Window => (ReceiptState::Failed, codes::KEY_WINDOW_CLOSED),
            };
            self.known(state, SettledBy::Sweeper, Some(code))
        } else {
            let code = match stop {
                Stop::Cancel => codes::CANCELLED_IN_FLIGHT,
                Stop::Deadline => codes::TIMEOUT,
                Stop::Attempts | Stop::Dispatches => codes::ATTEMPTS_EXHAUSTED,
                Stop::Window => codes::KEY_WINDOW_CLOSED,
            };
            self.unknown(SettledBy::Sweeper, code)
        }
    }
}
