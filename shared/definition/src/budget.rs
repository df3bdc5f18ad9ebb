//! `maxCalls`: a run that would make one call too many ends instead, before anything of that decision is sent.

use std::{collections::HashMap, sync::Arc};

use ditto_contracts::{CallUid, ErrorClass, Json, JsonWriter, LoopName, Revision, RunStatus, WireError, codes};
use ditto_graph::{CallOutcome, Checkpoint, Decision, Ending, Event, Execution, Outlook, Plan, RunFacts};

/// Error code of a run that used up its calls.
pub const CALL_LIMIT: &str = "CALL_LIMIT";

/// A plan whose runs may make so many calls.
pub(crate) struct Budgeted {
    pub(crate) plan: Arc<dyn Plan>,
    pub(crate) max_calls: u64,
}

impl Plan for Budgeted {
    fn name(&self) -> &LoopName {
        self.plan.name()
    }

    fn revision(&self) -> &Revision {
        self.plan.revision()
    }

    fn deadline_ms(&self) -> Option<u64> {
        self.plan.deadline_ms()
    }

    fn check_input(&self, input: &Json) -> Result<(), Vec<String>> {
        self.plan.check_input(input)
    }

    fn begin(&self, facts: &RunFacts) -> Result<Box<dyn Execution>, WireError> {
        Ok(Box::new(Counted { execution: self.plan.begin(facts)?, made: 0, max: self.max_calls }))
    }

    fn restore(
        &self,
        facts: &RunFacts,
        checkpoint: &Checkpoint,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<Box<dyn Execution>, WireError> {
        let read = || {
            let made = checkpoint.body.field("calls")?.to::<u64>().ok()?;
            Some((made, checkpoint.body.field("plan")?))
        };
        let (made, body) = read().ok_or_else(|| {
            WireError::new(ErrorClass::Internal, codes::PLAN_DIVERGED, "the checkpoint does not count its calls")
        })?;
        let checkpoint = Checkpoint { body, ..checkpoint.clone() };
        let execution = self.plan.restore(facts, &checkpoint, outcomes)?;
        Ok(Box::new(Counted { execution, made, max: self.max_calls }))
    }
}

struct Counted {
    execution: Box<dyn Execution>,
    /// Calls decided so far.
    made: u64,
    max: u64,
}

impl Execution for Counted {
    fn advance(&mut self, events: &[Event], now_ms: i64) -> Decision {
        let mut decision = self.execution.advance(events, now_ms);
        self.made = self.made.saturating_add(decision.calls.len() as u64);
        if self.made > self.max && !matches!(decision.outlook, Outlook::Ended(_)) {
            let message = format!("call limit reached: {}", self.max);
            let error = Some(WireError::new(ErrorClass::Failed, CALL_LIMIT, message));
            // An ended plan sends nothing of its last decision.
            decision.outlook = Outlook::Ended(Ending { status: RunStatus::Failed, output: None, error });
        }
        decision
    }

    fn checkpoint(&self) -> Checkpoint {
        let checkpoint = self.execution.checkpoint();
        let mut writer = JsonWriter::new();
        writer.begin_object().key("calls").integer(self.made).key("plan").value(&checkpoint.body);
        Checkpoint { body: writer.finish(), ..checkpoint }
    }
}
