//! What the transition table decides about one receipt, put into columns.

use ditto_contracts::{ErrorClass, ReceiptState as State, Verdict, WireError, codes};
use ditto_graph::receipt::{Change, Due, IllegalTransition, ReceiptEvent as Event, Refused};

use super::receipt::{Said, Stored};
use crate::store::rows;

/// What a worker's settlement did to a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settlement {
    /// It changed the receipt.
    Applied,
    /// The very same stands there.
    Same,
    /// It matches no row of the table.
    NoMatch,
}

impl Stored {
    /// Applies an event. `said` is the outcome that comes with it, `pause_ms` what a backoff means here.
    pub(super) fn apply(
        &mut self,
        event: &Event,
        said: Said,
        pause_ms: i64,
        now: i64,
    ) -> Result<Change, IllegalTransition> {
        let change = self.pure.apply(event)?;
        let (before, after) = (&self.pure, &change.receipt);
        match change.due {
            Due::Keep | Due::Never => {}
            Due::Now => self.due_ms = now,
            Due::Backoff => self.due_ms = now.saturating_add(pause_ms),
        }
        if after.settle_rev != before.settle_rev {
            self.settled_ms = after.settled.then_some(now);
            let error = change.code.map(|code| ledger_error(after.state, code));
            self.said = Some(Said { error: error.or(said.error), output: said.output });
        }
        if after.state == State::Unknown {
            self.unknown_ms.get_or_insert(now);
        }
        if after.max_attempts != before.max_attempts {
            // A person's new attempt begins afresh, with as much time as the call had at first.
            self.unknown_ms = None;
            self.reconcile_no = 0;
            self.deadline_ms = self.deadline_ms.map(|end| now.saturating_add((end - self.created_ms).max(0)));
        }
        if after.fence != before.fence {
            self.claimed_ms = Some(now);
            self.first_claim_ms.get_or_insert(now);
        }
        self.pure = after.clone();
        Ok(change)
    }

    /// Rows 4, 5, 8 and 9 by a worker.
    pub(super) fn settle(&mut self, event: &Event, verdict: Verdict, said: Said, now: i64) -> Settlement {
        match self.apply(event, said, 0, now) {
            Ok(_) => Settlement::Applied,
            Err(IllegalTransition { reason: Refused::Repeat, .. }) => Settlement::Same,
            Err(_) if self.pure.state == State::from(verdict) && self.repeats(event) => Settlement::Same,
            Err(_) => Settlement::NoMatch,
        }
    }

    /// Whether a worker's event names the attempt that stands.
    fn repeats(&self, event: &Event) -> bool {
        match event {
            Event::Answer { fence, token, .. } => {
                self.pure.fence == *fence && self.token() == Some(token.as_str()) && self.pure.settled
            }
            _ => false,
        }
    }

    /// Rows 10, 11 and 12; `false`: no limit is reached.
    pub(super) fn limit(&mut self, reconcile_window_ms: i64, now: i64) -> bool {
        let pure = &self.pure;
        let searched = self.unknown_ms.unwrap_or(self.created_ms).saturating_add(reconcile_window_ms) <= now;
        let dispatched = pure.class == ditto_contracts::EffectClass::ReadOnly
            && self.dispatch_no >= rows::DISPATCHES_MAX
            && self.due_ms <= now;
        let event = match pure.state {
            State::Planned if pure.cancel_asked => Event::CancelAsked,
            State::Planned if pure.deadline_passed => Event::DeadlinePassed,
            State::Planned if pure.fence >= pure.max_attempts => Event::AttemptsExhausted,
            State::Planned if dispatched => Event::DispatchesExhausted,
            State::Planned if !pure.window_open && pure.unresolved > 0 => Event::WindowClosed,
            State::Unknown if !pure.settled && (searched || !pure.query && !pure.can_send_again()) => {
                Event::ReconcileExhausted
            }
            State::Planned | State::Claimed | State::Unknown | State::Succeeded | State::Failed | State::Cancelled => {
                return false;
            }
        };
        self.apply(&event, Said::default(), 0, now).is_ok()
    }

    /// Fails a planned call that nobody serves: its dispatches lead nowhere.
    pub(super) fn unserved(&mut self, now: i64) -> bool {
        let done = self.apply(&Event::DispatchesExhausted, Said::default(), 0, now).is_ok();
        if done && self.pure.state == State::Failed {
            let error =
                WireError::new(ErrorClass::Unavailable, codes::NO_WORKER_AVAILABLE, "no live worker serves this call");
            self.said = Some(Said { error: Some(error.retryable()), ..Said::default() });
        }
        done
    }
}

/// The error of an outcome that the ledger decided itself.
fn ledger_error(state: State, code: &str) -> WireError {
    let class = match state {
        State::Cancelled => ErrorClass::Cancelled,
        State::Unknown => ErrorClass::Unknown,
        State::Planned | State::Claimed | State::Succeeded | State::Failed if code == codes::DEADLINE_EXCEEDED => {
            ErrorClass::Timeout
        }
        State::Planned | State::Claimed | State::Succeeded | State::Failed => ErrorClass::Failed,
    };
    let message = match code {
        codes::CANCELLED => "cancelled before it started",
        codes::CANCELLED_IN_FLIGHT => "cancelled while an attempt was in doubt",
        codes::DEADLINE_EXCEEDED => "the deadline passed before it started",
        codes::TIMEOUT => "the deadline passed while an attempt was in doubt",
        codes::POISONED => "every attempt lost its worker",
        codes::ATTEMPTS_EXHAUSTED => "all attempts are used up",
        codes::KEY_WINDOW_CLOSED => "the backend no longer guarantees the key",
        codes::KEY_CONFLICT => "the backend knows the key with another request",
        codes::WORKER_LOST => "the worker was lost while it held the call",
        codes::RECONCILE_EXHAUSTED => "no evidence arrived in time",
        _ => "decided by the ledger",
    };
    WireError::new(class, code, message)
}
