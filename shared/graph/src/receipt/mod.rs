//! The life of one call as pure rules: what a receipt may become, and what an answer or a limit amounts to.
//!
//! [`Receipt::apply`] is the only way a receipt changes; the ledger's statements carry the same guards. Events are
//! level-triggered: offering one again is harmless, it is applied again or refused.

mod apply;
mod decide;
mod event;
mod evidence;
mod limits;
mod state;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod table_tests;

pub use apply::{AttemptEvent, Change, Due};
pub use decide::{
    AnswerKind, AttemptEnd, DISPATCH_BACKOFF_MAX_MS, DISPATCH_BACKOFF_MIN_MS, PublicStatus, QueryAnswer, Reconcile,
    ReconcileStart, dispatch_backoff_ms, key_window_closed, public_status, reconcile_next, reconcile_start,
    refusal_stands, verdict_for,
};
pub use event::{EventKind, IllegalTransition, KeyEvidence, ReceiptEvent, Refused};
pub use state::{Claim, Receipt};
