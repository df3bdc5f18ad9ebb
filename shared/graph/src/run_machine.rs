//! What every run has, whatever its plan: outcomes taken in once, unknown outcomes, cancel, deadline, one end.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use ditto_contracts::{CallUid, ErrorClass, Json, OnUnknown, ReceiptState, RunStatus, WireError, codes};

use crate::{
    CallOutcome, Checkpoint, Consumed, Decision, Ending, Event, Execution, Outlook, Plan, Progress, References,
    RunFacts, RunOptions,
    ending::{ending, report_unknown, unknown_error},
    envelope::{EndingRecord, Envelope, OpenRecord, ParkedRecord},
    failure::{error, guarded, internal},
};

/// A run in memory: a plan's execution and what is common to all runs.
///
/// Every [`RunMachine::advance`] must be followed by a commit of its decision together with
/// [`RunMachine::checkpoint_json`], or the machine must be dropped and restored.
pub struct RunMachine {
    execution: Box<dyn Execution>,
    options: RunOptions,
    seen: Option<i64>,
    /// Calls decided and not consumed.
    open: BTreeMap<CallUid, OpenCall>,
    /// Those of them whose outcome is unknown while the run waits for evidence.
    parked: BTreeMap<CallUid, Parked>,
    stage: Stage,
}

struct OpenCall {
    on_unknown: OnUnknown,
    label: String,
}

struct Parked {
    until_ms: i64,
    settle_rev: i32,
}

enum Stage {
    /// The plan decides.
    Running,
    /// The plan decides nothing any more; the run ends once nothing is open.
    Ending { ending: Ending, cancelling: bool, unknown: Vec<(CallUid, String)> },
    /// Over.
    Ended { ending: Ending },
}

/// Why the machine itself ends a run.
#[derive(Clone, Copy)]
enum Stop {
    Cancel,
    Deadline,
}

impl RunMachine {
    /// Starts a run and makes its first decision.
    ///
    /// # Errors
    /// When the initial state cannot be computed: the run fails with this.
    pub fn begin(
        plan: Arc<dyn Plan>,
        facts: &RunFacts,
        options: RunOptions,
        now_ms: i64,
    ) -> Result<(Self, Decision), WireError> {
        let execution = guarded(|| plan.begin(facts))??;
        let mut machine = Self {
            execution,
            options,
            seen: None,
            open: BTreeMap::new(),
            parked: BTreeMap::new(),
            stage: Stage::Running,
        };
        let decision = machine.advance(&[], now_ms);
        Ok((machine, decision))
    }

    /// Takes a run up again. `outcomes` holds the receipt of every kept call of [`RunMachine::references`]; outcomes
    /// of open calls are given to [`RunMachine::advance`] afterwards.
    ///
    /// # Errors
    /// When the checkpoint is not one of this plan's, an outcome is missing, or (`PLAN_DIVERGED`) the program is not
    /// the one that wrote it. The run itself is unharmed: another build may be able to drive it.
    pub fn restore(
        plan: Arc<dyn Plan>,
        facts: &RunFacts,
        options: RunOptions,
        checkpoint: &Json,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<Self, WireError> {
        let envelope = Envelope::read(checkpoint)?;
        let stage = match envelope.ending {
            None => Stage::Running,
            Some(EndingRecord { ending, over: true, .. }) => Stage::Ended { ending },
            Some(EndingRecord { ending, cancelling, unknown, .. }) => Stage::Ending { ending, cancelling, unknown },
        };
        let execution: Box<dyn Execution> = match stage {
            Stage::Ending { .. } | Stage::Ended { .. } => Box::new(Nothing),
            Stage::Running => {
                if plan.revision() != &facts.revision {
                    let message =
                        format!("the run is of revision {}, this plan is {}", facts.revision, plan.revision());
                    return Err(error(ErrorClass::Conflict, codes::PLAN_DIVERGED, &message));
                }
                let open = envelope.open.iter().map(|open| open.call.clone()).collect();
                let checkpoint = Checkpoint { open, kept: envelope.kept, body: envelope.plan };
                guarded(|| plan.restore(facts, &checkpoint, outcomes))??
            }
        };
        let parked = envelope.parked.into_iter();
        let parked = parked.map(|p| (p.call, Parked { until_ms: p.until_ms, settle_rev: p.settle_rev })).collect();
        let open = envelope.open.into_iter();
        let open = open.map(|o| (o.call, OpenCall { on_unknown: o.on_unknown, label: o.label })).collect();
        Ok(Self { execution, options, seen: envelope.seen, open, parked, stage })
    }

    /// The calls whose receipts must be read to restore this checkpoint, each once.
    ///
    /// # Errors
    /// When it is no checkpoint of a run, or of a format this build does not know.
    pub fn references(checkpoint: &Json) -> Result<References, WireError> {
        Ok(Envelope::read(checkpoint)?.references())
    }

    /// How the run ended, if it has.
    pub fn ending(&self) -> Option<&Ending> {
        match &self.stage {
            Stage::Ended { ending } => Some(ending),
            Stage::Running | Stage::Ending { .. } => None,
        }
    }

    /// Whether no new call will be made: the run has ended or waits for its open calls to do so.
    pub fn is_ending(&self) -> bool {
        !matches!(self.stage, Stage::Running)
    }

    /// Takes events in, in their order, and decides what to do next. Events about nothing open are ignored, and so is
    /// everything after the end: the outlook then is the end again, with nothing to do.
    pub fn advance(&mut self, events: &[Event], now_ms: i64) -> Decision {
        let mut decision = Decision::waiting();
        if let Stage::Ended { ending } = &self.stage {
            decision.outlook = Outlook::Ended(ending.clone());
            return decision;
        }
        let stop = events.iter().find_map(|event| match event {
            Event::CancelRequested => Some(Stop::Cancel),
            Event::DeadlinePassed => Some(Stop::Deadline),
            Event::CallSettled { .. } | Event::Signal { .. } | Event::Woke => None,
        });
        if let Some(stop) = stop {
            self.stop(stop, &mut decision);
        }
        let mut batch = Vec::new();
        for event in events {
            match event {
                Event::CallSettled { call, outcome } => self.settle(call, outcome, now_ms, &mut batch, &mut decision),
                Event::Signal { n, .. } => {
                    if self.seen.is_none_or(|seen| seen < *n) {
                        self.seen = Some(*n);
                        decision.signal_seen = Some(*n);
                        batch.push(event.clone());
                    }
                }
                Event::Woke => batch.push(Event::Woke),
                Event::CancelRequested | Event::DeadlinePassed => {}
            }
        }
        decision.outlook = match self.stage {
            Stage::Running => self.decide(&batch, now_ms, &mut decision),
            Stage::Ending { .. } | Stage::Ended { .. } => self.wind_down(&mut decision),
        };
        decision
    }

    /// The run as it must be stored with the last decision. [`RunMachine::restore`] of it behaves as this machine.
    pub fn checkpoint_json(&self) -> Json {
        let mut envelope = Envelope {
            seen: self.seen,
            open: Vec::new(),
            kept: Vec::new(),
            parked: Vec::new(),
            ending: None,
            plan: Json::null(),
        };
        let record = |(call, open): (&CallUid, &OpenCall)| OpenRecord {
            call: call.clone(),
            on_unknown: open.on_unknown,
            label: open.label.clone(),
        };
        match &self.stage {
            Stage::Running => {
                let checkpoint = self.execution.checkpoint();
                let open = checkpoint.open.iter().filter_map(|call| self.open.get_key_value(call));
                envelope.open = open.map(record).collect();
                envelope.kept = checkpoint.kept;
                envelope.plan = checkpoint.body;
            }
            Stage::Ending { ending, cancelling, unknown } => {
                envelope.open = self.open.iter().map(record).collect();
                envelope.ending = Some(EndingRecord {
                    ending: ending.clone(),
                    cancelling: *cancelling,
                    over: false,
                    unknown: unknown.clone(),
                });
            }
            Stage::Ended { ending } => {
                envelope.ending =
                    Some(EndingRecord { ending: ending.clone(), cancelling: false, over: true, unknown: Vec::new() });
            }
        }
        let parked = self.parked.iter();
        envelope.parked = parked
            .map(|(call, Parked { until_ms, settle_rev })| ParkedRecord {
                call: call.clone(),
                until_ms: *until_ms,
                settle_rev: *settle_rev,
            })
            .collect();
        envelope.write()
    }

    /// Takes one outcome in: hands it to the plan, parks it, or notes it while the run ends.
    fn settle(
        &mut self,
        call: &CallUid,
        outcome: &CallOutcome,
        now_ms: i64,
        batch: &mut Vec<Event>,
        decision: &mut Decision,
    ) {
        let is_unknown = match outcome.state {
            ReceiptState::Planned | ReceiptState::Claimed => return,
            ReceiptState::Unknown => true,
            ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => false,
        };
        let Some(open) = self.open.get(call) else { return };
        if let (Stage::Running, true, OnUnknown::Park) = (&self.stage, is_unknown, open.on_unknown) {
            let window = i64::try_from(self.options.reconcile_window_ms).unwrap_or(i64::MAX);
            let until_ms = self.parked.get(call).map_or(now_ms.saturating_add(window), |parked| parked.until_ms);
            self.parked.insert(call.clone(), Parked { until_ms, settle_rev: outcome.settle_rev });
            return;
        }
        self.parked.remove(call);
        let Some(OpenCall { on_unknown, label }) = self.open.remove(call) else { return };
        decision.consumed.push(Consumed { call: call.clone(), state: outcome.state, settle_rev: outcome.settle_rev });
        match (&mut self.stage, is_unknown, on_unknown) {
            (Stage::Ending { unknown, .. }, true, _) => unknown.push((call.clone(), label)),
            (Stage::Ending { .. } | Stage::Ended { .. }, ..) => {}
            (Stage::Running, true, OnUnknown::Fail) => {
                let unknown = vec![(call.clone(), label)];
                let ending = ending(RunStatus::Failed, unknown_error(&unknown));
                self.begin_ending(ending, unknown, decision);
            }
            (Stage::Running, ..) => {
                batch.push(Event::CallSettled { call: call.clone(), outcome: outcome.clone() });
            }
        }
    }

    /// Cancel or deadline: no new calls, open ones are to be cancelled.
    fn stop(&mut self, stop: Stop, decision: &mut Decision) {
        if let Stage::Running = self.stage {
            let (status, error) = match stop {
                Stop::Cancel => {
                    (RunStatus::Cancelled, error(ErrorClass::Cancelled, codes::CANCELLED, "the run was cancelled"))
                }
                Stop::Deadline => {
                    let message = "the deadline of the run has passed";
                    (RunStatus::Failed, error(ErrorClass::Failed, codes::DEADLINE_EXCEEDED, message))
                }
            };
            self.begin_ending(ending(status, error), Vec::new(), decision);
        }
        if let Stage::Ending { cancelling, .. } = &mut self.stage
            && !std::mem::replace(cancelling, true)
        {
            decision.cancels.extend(self.open.keys().cloned());
        }
    }

    /// From here on the plan is not asked any more. Calls that wait for evidence are taken in as unknown.
    fn begin_ending(&mut self, ending: Ending, mut unknown: Vec<(CallUid, String)>, decision: &mut Decision) {
        for (call, Parked { settle_rev, .. }) in std::mem::take(&mut self.parked) {
            let Some(open) = self.open.remove(&call) else { continue };
            decision.consumed.push(Consumed { call: call.clone(), state: ReceiptState::Unknown, settle_rev });
            unknown.push((call, open.label));
        }
        self.stage = Stage::Ending { ending, cancelling: false, unknown };
        self.execution = Box::new(Nothing);
    }

    /// Asks the plan.
    fn decide(&mut self, batch: &[Event], now_ms: i64, decision: &mut Decision) -> Outlook {
        let execution = &mut self.execution;
        let made = match guarded(|| execution.advance(batch, now_ms)) {
            Ok(made) => made,
            Err(panicked) => {
                self.begin_ending(ending(RunStatus::Failed, panicked), Vec::new(), decision);
                return self.wind_down(decision);
            }
        };
        decision.boundary = made.boundary;
        decision.progress = made.progress;
        let outlook = match made.outlook {
            Outlook::Ended(ending) => {
                // Nothing of this decision is sent: the plan is over.
                let unsent: HashSet<&str> = made.calls.iter().map(|call| call.label.as_str()).collect();
                let is_sent = |entry: &Progress| !matches!(entry, Progress::TaskStarted { label, .. } if unsent.contains(label.as_str()));
                decision.progress.retain(is_sent);
                self.begin_ending(ending, Vec::new(), decision);
                return self.wind_down(decision);
            }
            outlook @ (Outlook::Running { .. } | Outlook::Parked { .. }) => outlook,
        };
        for intent in made.calls {
            let (on_unknown, label) = (intent.on_unknown, intent.label.clone());
            self.open.insert(intent.call.clone(), OpenCall { on_unknown, label });
            decision.calls.push(intent);
        }
        decision.cancels.extend(made.cancels.into_iter().filter(|call| self.open.contains_key(call)));
        self.outlook(outlook, now_ms, decision)
    }

    /// What the run waits for, given what the plan waits for.
    fn outlook(&mut self, plan: Outlook, now_ms: i64, decision: &mut Decision) -> Outlook {
        let in_flight = self.open.len() > self.parked.len();
        let (plan_wake_ms, plan_reason) = match plan {
            Outlook::Running { wake_ms } => (wake_ms, None),
            Outlook::Parked { wake_ms, reason } => (wake_ms, Some(reason)),
            Outlook::Ended(_) => (None, None),
        };
        if in_flight {
            return Outlook::Running { wake_ms: plan_wake_ms };
        }
        let until_ms = self.parked.values().map(|parked| parked.until_ms).min();
        match (until_ms, plan_reason) {
            (Some(until_ms), _) if until_ms <= now_ms => {
                self.begin_ending(ending(RunStatus::NeedsHuman, internal("")), Vec::new(), decision);
                if let Stage::Ending { ending, unknown, .. } = &mut self.stage {
                    ending.error = Some(unknown_error(unknown));
                }
                self.wind_down(decision)
            }
            (Some(until_ms), reason) => Outlook::Parked {
                wake_ms: Some(plan_wake_ms.map_or(until_ms, |wake_ms| wake_ms.min(until_ms))),
                reason: reason.map_or_else(|| "evidence".into(), |reason| format!("evidence, {reason}")),
            },
            (None, Some(reason)) => Outlook::Parked { wake_ms: plan_wake_ms, reason },
            (None, None) if plan_wake_ms.is_some() => Outlook::Running { wake_ms: plan_wake_ms },
            (None, None) => {
                let error = internal("the plan waits for nothing");
                self.begin_ending(ending(RunStatus::Failed, error), Vec::new(), decision);
                self.wind_down(decision)
            }
        }
    }

    /// Ends the run if nothing is open.
    fn wind_down(&mut self, decision: &mut Decision) -> Outlook {
        decision.calls.clear();
        match &mut self.stage {
            Stage::Ending { ending, unknown, .. } if self.open.is_empty() => {
                let mut ending = ending.clone();
                if !unknown.is_empty() {
                    report_unknown(&mut ending, unknown);
                }
                self.stage = Stage::Ended { ending: ending.clone() };
                Outlook::Ended(ending)
            }
            Stage::Ended { ending } => Outlook::Ended(ending.clone()),
            Stage::Ending { .. } | Stage::Running => Outlook::Running { wake_ms: None },
        }
    }
}

/// The execution of a run whose plan is not asked any more.
struct Nothing;

impl Execution for Nothing {
    fn advance(&mut self, _: &[Event], _: i64) -> Decision {
        Decision::waiting()
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint { open: Vec::new(), kept: Vec::new(), body: Json::null() }
    }
}
