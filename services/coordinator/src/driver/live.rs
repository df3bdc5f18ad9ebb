//! One run in the memory of its owner.

use std::{collections::HashMap, sync::Arc};

use ditto_bus::Ack;
use ditto_contracts::{CallUid, EffectClass, RunId, RunStatus, SessionId};
use ditto_graph::{Decision, Event, RunMachine};

use crate::store::Settle;

/// A result together with what has to happen once it is in the ledger.
pub(crate) struct Answered {
    /// Acknowledges the message that brought it.
    pub(crate) ack: Option<Arc<dyn Ack>>,
    /// Session that holds the result until it is confirmed; `None` for unclaimed calls.
    pub(crate) confirm: Option<(SessionId, CallUid)>,
}

/// A settlement to be committed and what belongs to it.
pub(crate) type Pending = (Settle, Answered);

/// A decision that waits until workers announce what it needs, or until the wait is over.
pub(crate) struct Hold {
    pub(crate) decision: Decision,
    pub(crate) results: Vec<Pending>,
    pub(crate) until: tokio::time::Instant,
}

/// A run that this process owns and keeps in memory.
pub(crate) struct Live {
    pub(crate) run: RunId,
    pub(crate) machine: RunMachine,
    pub(crate) status: RunStatus,
    pub(crate) epoch: i64,
    pub(crate) version: i64,
    /// Bell up to which news were read.
    pub(crate) bell: i64,
    pub(crate) signal_seen: i64,
    pub(crate) wake_ms: Option<i64>,
    pub(crate) deadline_ms: Option<i64>,
    pub(crate) deadline_told: bool,
    pub(crate) cancel_told: bool,
    pub(crate) traceparent: Option<String>,
    /// Calls decided and not consumed, with their class where this process planned them.
    pub(crate) open: HashMap<CallUid, Option<EffectClass>>,
    /// What happened since the last decision.
    pub(crate) events: Vec<Event>,
    /// Results those events rest on.
    pub(crate) results: Vec<Pending>,
    /// A commit of it is under way.
    pub(crate) committing: bool,
    /// Its news are being read; `Some(true)`: read them again afterwards.
    pub(crate) reading: Option<bool>,
    /// Commit even if nothing happened: the bell moved.
    pub(crate) force: bool,
    pub(crate) hold: Option<Hold>,
}

impl Live {
    /// Whether there is something to decide, and nothing in the way.
    pub(crate) fn is_ready(&self) -> bool {
        !self.committing && (self.force || !self.events.is_empty())
    }

    /// Takes in what the ledger says happened.
    pub(crate) fn tell(&mut self, event: Event) {
        match &event {
            Event::Signal { n, .. } => {
                if *n <= self.signal_seen {
                    return;
                }
                self.signal_seen = *n;
            }
            Event::CancelRequested => {
                if std::mem::replace(&mut self.cancel_told, true) {
                    return;
                }
            }
            Event::DeadlinePassed => {
                if std::mem::replace(&mut self.deadline_told, true) {
                    return;
                }
            }
            Event::CallSettled { call, .. } => {
                let known = |e: &Event| matches!(e, Event::CallSettled { call: other, .. } if other == call);
                if !self.open.contains_key(call) || self.events.iter().any(known) {
                    return;
                }
            }
            Event::Woke => {}
        }
        self.events.push(event);
    }
}
