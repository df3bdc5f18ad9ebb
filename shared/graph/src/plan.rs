//! The interface between a program (declarative or Rust) and whatever drives it.
//!
//! A [`Plan`] is a registered, versioned program. An [`Execution`] is one run of it in memory. `RunMachine` puts
//! around it what every run has: cancel, deadline, unknown outcomes.

use std::collections::HashMap;

use ditto_contracts::{
    CallId, CallKind, CallUid, Json, LoopName, Namespace, NodeType, OnUnknown, Pool, ReceiptState, Revision, RunId,
    RunStatus, WireError,
};

/// What does not change in the life of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFacts {
    /// The run.
    pub run: RunId,
    /// Its tenant.
    pub namespace: Namespace,
    /// The definition.
    pub name: LoopName,
    /// The revision it started with.
    pub revision: Revision,
    /// Its input.
    pub input: Json,
}

/// Limits the driver gives to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOptions {
    /// How long a run waits for evidence of an unknown outcome before it ends `needs-human`, in milliseconds.
    pub reconcile_window_ms: u64,
}

/// A node that the coordinator may evaluate inside a decision, because its output is a pure function of its input.
pub trait PureNode: Send + Sync {
    /// Its type.
    fn node(&self) -> &NodeType;
    /// Its output.
    ///
    /// # Errors
    /// When the input breaks the node's contract.
    fn evaluate(&self, input: &Json) -> Result<Json, WireError>;
}

/// A registered, versioned program.
pub trait Plan: Send + Sync {
    /// Its name.
    fn name(&self) -> &LoopName;
    /// Its revision: equal revisions behave equally.
    fn revision(&self) -> &Revision;
    /// How long a run may take, in milliseconds.
    fn deadline_ms(&self) -> Option<u64> {
        None
    }
    /// Checks an input against the schema; one line per problem, each naming the field and what was expected.
    ///
    /// # Errors
    /// All problems.
    fn check_input(&self, input: &Json) -> Result<(), Vec<String>>;
    /// Starts a run. The first [`Execution::advance`] gets no events and makes the first decision.
    ///
    /// # Errors
    /// When the initial state cannot be computed.
    fn begin(&self, facts: &RunFacts) -> Result<Box<dyn Execution>, WireError>;
    /// Takes a run up again from its checkpoint. `outcomes` holds every kept call of the checkpoint.
    ///
    /// # Errors
    /// When the checkpoint is not one of this plan's.
    fn restore(
        &self,
        facts: &RunFacts,
        checkpoint: &Checkpoint,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<Box<dyn Execution>, WireError>;
}

/// One run of a plan in memory. Deterministic: the same checkpoint and events give the same decision.
///
/// `RunMachine` gives it every outcome at most once and only for open calls, and fills in what was consumed: an
/// execution leaves [`Decision::consumed`] and [`Decision::signal_seen`] empty. A decision that ends the run makes no
/// calls.
pub trait Execution: Send {
    /// Takes events in order and decides what to do next. Events that concern nothing open are ignored.
    fn advance(&mut self, events: &[Event], now_ms: i64) -> Decision;
    /// What the next decision needs. [`Plan::restore`] of it behaves as this execution does.
    fn checkpoint(&self) -> Checkpoint;
}

/// Everything the next decision needs, as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Calls decided and not yet consumed, in an order the body relies on; a call may be listed more than once.
    pub open: Vec<CallUid>,
    /// Calls consumed whose outputs the next decisions still read from their receipts.
    pub kept: Vec<CallUid>,
    /// The plan's own state.
    pub body: Json,
}

/// The calls whose receipts must be read to take a run up again.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct References {
    /// Decided, not consumed.
    pub open: Vec<CallUid>,
    /// Consumed, output still needed.
    pub kept: Vec<CallUid>,
}

/// Something that happened to a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A call has an outcome.
    CallSettled {
        /// The call.
        call: CallUid,
        /// Its outcome.
        outcome: CallOutcome,
    },
    /// A signal arrived.
    Signal {
        /// Its number in the run, ascending.
        n: i64,
        /// Its name.
        name: String,
        /// Its body.
        body: Json,
    },
    /// The time a run asked to be woken at has come.
    Woke,
    /// Somebody asked to cancel the run.
    CancelRequested,
    /// The deadline of the run has passed.
    DeadlinePassed,
}

/// How a call ended, as its receipt says. Large outputs are already resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct CallOutcome {
    /// Settled state.
    pub state: ReceiptState,
    /// Number of the settlement.
    pub settle_rev: i32,
    /// The node's output, if the worker gave one.
    pub output: Option<Json>,
    /// Why, if it did not succeed.
    pub error: Option<WireError>,
}

/// A call that is to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct CallIntent {
    /// Its identity.
    pub call: CallUid,
    /// Part of its identity.
    pub kind: CallKind,
    /// Part of its identity.
    pub call_id: CallId,
    /// What to execute.
    pub node: NodeType,
    /// The tool, `server:tool` or sink within the node.
    pub source: Option<String>,
    /// Queue, if the definition names one.
    pub pool: Option<Pool>,
    /// The node's input, to the byte.
    pub request: Json,
    /// How long one attempt may run, in milliseconds, if the definition says so.
    pub timeout_ms: Option<u64>,
    /// The definition declares a retry: refused for class N.
    pub retry: bool,
    /// Not to be started before this many milliseconds from now (retry pause).
    pub delay_ms: u64,
    /// `iteration/task`, for people.
    pub label: String,
    /// What the run does with an unknown outcome.
    pub on_unknown: OnUnknown,
}

/// An outcome that a checkpoint took in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumed {
    /// The call.
    pub call: CallUid,
    /// In this state.
    pub state: ReceiptState,
    /// At this settlement.
    pub settle_rev: i32,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Calls to make: their receipts are written with the checkpoint, before anything is sent.
    pub calls: Vec<CallIntent>,
    /// Open calls to cancel.
    pub cancels: Vec<CallUid>,
    /// Outcomes taken in.
    pub consumed: Vec<Consumed>,
    /// Highest signal taken in.
    pub signal_seen: Option<i64>,
    /// What the run waits for, or how it ended.
    pub outlook: Outlook,
    /// An iteration ended with this decision: its checkpoint is kept for forks.
    pub boundary: bool,
    /// What people watching want to know.
    pub progress: Vec<Progress>,
}

impl Decision {
    /// A decision that does nothing and waits.
    pub fn waiting() -> Self {
        Self {
            calls: Vec::new(),
            cancels: Vec::new(),
            consumed: Vec::new(),
            signal_seen: None,
            outlook: Outlook::Running { wake_ms: None },
            boundary: false,
            progress: Vec::new(),
        }
    }
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum Outlook {
    /// Calls are open.
    Running {
        /// Also to be woken at this time (milliseconds since 1970, ledger clock).
        wake_ms: Option<i64>,
    },
    /// Nothing is in flight: waits for a signal, a time or evidence, and needs no memory.
    Parked {
        /// To be woken at this time at the latest.
        wake_ms: Option<i64>,
        /// For people: `signal approve`, `time`, `evidence`.
        reason: String,
    },
    /// It is over.
    Ended(Ending),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// An ended status.
    pub status: RunStatus,
    /// Its output.
    pub output: Option<Json>,
    /// Why, unless completed.
    pub error: Option<WireError>,
}

/// One thing people watching a run see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// An iteration began.
    Iteration {
        /// From 0.
        iteration: u64,
        /// The graph it runs.
        graph: String,
    },
    /// A task was decided.
    TaskStarted {
        /// `iteration/task`.
        label: String,
        /// Its node.
        node: NodeType,
    },
    /// A task has its output.
    TaskDone {
        /// `iteration/task`.
        label: String,
        /// `succeeded`, `failed`, `unknown`, `cancelled`, `skipped`.
        status: String,
        /// Error code, unless succeeded.
        code: Option<String>,
    },
}
