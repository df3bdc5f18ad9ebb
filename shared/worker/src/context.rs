//! What a handler knows about the attempt it performs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ditto_contracts::{CallUid, RunId, SessionId};
use tokio_util::sync::CancellationToken;

/// One attempt, as seen by a handler.
#[derive(Debug, Clone)]
pub struct NodeContext {
    pub(crate) call: CallUid,
    pub(crate) run: RunId,
    pub(crate) session: SessionId,
    pub(crate) fence: u32,
    pub(crate) earlier_unresolved: u32,
    pub(crate) key: Arc<str>,
    pub(crate) deadline: Instant,
    pub(crate) cancel: CancellationToken,
    pub(crate) trace: (Option<String>, Option<String>),
}

impl NodeContext {
    /// A context outside a fleet, for tests of handlers and tools.
    pub fn detached(key: &str, budget: Duration) -> Self {
        let run = RunId::generate(0);
        #[expect(clippy::expect_used, reason = "a literal that follows the rule")]
        let id = ditto_contracts::CallId::new("detached").expect("a literal that follows the rule"); // cannot fail
        Self {
            call: CallUid::derive(&run, ditto_contracts::CallKind::Tool, &id),
            run,
            session: SessionId::generate(),
            fence: 1,
            earlier_unresolved: 0,
            key: key.into(),
            deadline: Instant::now() + budget,
            cancel: CancellationToken::new(),
            trace: (None, None),
        }
    }

    /// The call: the same for every attempt.
    pub fn call(&self) -> &CallUid {
        &self.call
    }

    /// Its run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// The session that performs it.
    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Number of the attempt, from 1; 0 for a call that needs no claim.
    pub fn fence(&self) -> u32 {
        self.fence
    }

    /// Earlier attempts whose end is not known.
    pub fn earlier_unresolved(&self) -> u32 {
        self.earlier_unresolved
    }

    /// The idempotency key to send to the backend: the same for every attempt of this call.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// When this attempt is given up.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How long this attempt may still take.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether somebody asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Completes when somebody asks to stop. What was sent stays sent: answer [`crate::NodeError::Cancelled`], or wait
    /// for the answer. A handler that does neither is dropped after a grace period.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// The token behind [`NodeContext::cancelled`], to hand to other libraries.
    pub fn cancellation(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// `traceparent` and `tracestate` for what this attempt sends.
    pub fn trace(&self) -> (Option<&str>, Option<&str>) {
        (self.trace.0.as_deref(), self.trace.1.as_deref())
    }
}
