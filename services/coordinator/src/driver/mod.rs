//! Drives runs: one event loop per process, many runs in memory. It owns no truth; whatever it holds can be dropped at
//! any moment and read again from the ledger.
//!
//! Per run there is at most one commit under way. What happens meanwhile is collected and decided together afterwards,
//! so a fan-in of hundreds of results is a handful of commits.

mod commit;
mod confirms;
mod live;
mod step;
mod takeup;

use std::{
    collections::{BinaryHeap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ditto_bus::Ack;
use ditto_contracts::{CallUid, EffectClass, ReceiptState, RunId, RunStatus, Verdict, wire::ResultMessage};
use ditto_graph::{CallOutcome, Event};
use ditto_runtime::telemetry;
use tokio::{sync::mpsc, task::JoinSet, time::Instant};
use tracing::{debug, warn};

pub(crate) use commit::{AdvanceContext, AdvanceVerb, SettleVerb, ring};
pub(crate) use confirms::Confirms;
pub(crate) use live::{Answered, Live};
pub(crate) use step::{Planned, StepInput, shared};

use crate::{
    core::{Core, RunChanged},
    dispatcher::Dispatcher,
    lanes::Lanes,
    store::{Advance, Advanced, DueRuns, LoadedRun, NewReceipt, RunNews, Settle, StoreError, StoreResult},
};
use live::{Hold, Pending};

/// A result that came in, not yet in the ledger.
pub(crate) struct Incoming {
    pub(crate) result: ResultMessage,
    pub(crate) ack: Arc<dyn Ack>,
}

/// What the driver is told.
pub(crate) enum Msg {
    /// A run that was just created by this process, with the receipts its first commit planned.
    Adopt(Box<Live>, Vec<NewReceipt>),
    /// A run that was read back and restored.
    Restored(Box<Live>),
    /// Take this run up if nobody has it.
    TakeUp(RunId),
    /// Read this run, which is owned but not in memory, again.
    Retake(RunId),
    /// Results from the bus.
    Results(Vec<Incoming>),
    /// Answers to commits.
    Committed(Vec<(Advance, AdvanceContext, StoreResult<Advanced>)>),
    /// What a pass over the runs found.
    Due(DueRuns),
    /// Every run this session owns, as the ledger says.
    Owned(Vec<RunId>),
    /// Somebody rang these runs' bells.
    Wake(Vec<RunId>),
    /// News of an owned run.
    News(RunId, StoreResult<Option<RunNews>>),
    /// Workers came or went.
    CatalogueChanged,
    /// Give the runs back and end.
    Drain,
}

/// Tells the driver something. Never waits: what is in flight is bounded by the runs in memory and by the bus.
pub(crate) type DriverSender = mpsc::UnboundedSender<Msg>;

/// Starts what is needed around the driver and runs it until it is told to drain.
pub(crate) struct Driver {
    core: Core,
    tx: DriverSender,
    live: HashMap<RunId, Live>,
    dirty: HashSet<RunId>,
    /// Runs whose wake time comes soon, earliest first.
    alarms: BinaryHeap<std::cmp::Reverse<(Instant, RunId)>>,
    advance: Lanes<AdvanceVerb>,
    settle: Lanes<SettleVerb>,
    dispatcher: Dispatcher,
    tasks: JoinSet<()>,
    confirms: Confirms,
    /// Owned runs that were not in memory at the last look.
    missing: HashSet<RunId>,
    draining: bool,
}

/// A wake time further away than this is left to the sweeper.
const ALARM_HORIZON: Duration = Duration::from_secs(5);

impl Driver {
    pub(crate) fn new(
        core: Core,
        tx: DriverSender,
        advance: Lanes<AdvanceVerb>,
        settle: Lanes<SettleVerb>,
        dispatcher: Dispatcher,
    ) -> Self {
        Self {
            core,
            tx,
            live: HashMap::new(),
            dirty: HashSet::new(),
            alarms: BinaryHeap::new(),
            advance,
            settle,
            dispatcher,
            tasks: JoinSet::new(),
            confirms: Confirms::default(),
            missing: HashSet::new(),
            draining: false,
        }
    }

    /// Runs until [`Msg::Drain`] has been worked off.
    pub(crate) async fn run(mut self, mut rx: mpsc::UnboundedReceiver<Msg>) {
        let mut inbox = Vec::new();
        loop {
            let alarm = self.alarms.peek().map(|a| a.0.0);
            tokio::select! {
                n = rx.recv_many(&mut inbox, 256) => {
                    if n == 0 { break; }
                }
                () = async { match alarm { Some(at) => tokio::time::sleep_until(at).await, None => std::future::pending().await } } => {
                    self.ring_alarms();
                }
            }
            for msg in inbox.drain(..) {
                self.handle(msg).await;
            }
            self.decide().await;
            self.confirms.send(&self.core).await;
            while self.tasks.try_join_next().is_some() {}
            if self.draining && self.live.values().all(|live| !live.committing) {
                break;
            }
        }
        let runs: Vec<RunId> = self.live.into_keys().collect();
        if !runs.is_empty() {
            debug!(runs = runs.len(), "giving runs back");
            for page in runs.chunks(500) {
                if let Err(error) = self.core.store.runs_yield(&self.core.session, page).await {
                    warn!(%error, "runs are not given back; they are taken over when this session has expired");
                }
            }
        }
    }

    async fn handle(&mut self, msg: Msg) {
        match msg {
            Msg::Adopt(live, receipts) => {
                for receipt in receipts {
                    self.dispatch(&live.run, receipt);
                }
                self.set_alarm(&live.run, live.wake_ms);
                self.insert(*live);
            }
            Msg::Restored(live) => self.insert(*live),
            Msg::TakeUp(run) => self.take_up(run),
            Msg::Retake(run) => self.retake(run),
            Msg::Results(results) => {
                for incoming in results {
                    self.result(incoming).await;
                }
            }
            Msg::Committed(answers) => {
                for (advance, context, answer) in answers {
                    self.committed(advance, context, answer).await;
                }
            }
            Msg::Due(due) => {
                for run in due.mine {
                    self.read_news(&run);
                }
                for loaded in due.taken {
                    self.restore(loaded);
                }
            }
            Msg::Owned(runs) => self.compare(runs),
            Msg::Wake(runs) => {
                for run in runs {
                    if self.live.contains_key(&run) {
                        self.read_news(&run);
                    } else {
                        self.take_up(run);
                    }
                }
            }
            Msg::News(run, news) => self.news(&run, news),
            Msg::CatalogueChanged => {
                for (run, live) in &self.live {
                    if live.hold.is_some() {
                        self.dirty.insert(run.clone());
                    }
                }
            }
            Msg::Drain => self.draining = true,
        }
    }

    fn insert(&mut self, live: Live) {
        let run = live.run.clone();
        if self.live.get(&run).is_some_and(|known| known.epoch >= live.epoch) {
            return; // an older ownership of the same run: its first commit would change nothing
        }
        if live.is_ready() || live.hold.is_some() {
            self.dirty.insert(run.clone());
        }
        self.live.insert(run, live);
    }

    /// A result of a run that is in memory becomes part of its next commit; any other is settled on its own.
    async fn result(&mut self, incoming: Incoming) {
        let Incoming { result, ack } = incoming;
        let confirm = (result.fence > 0).then(|| (result.session.clone(), result.call.clone()));
        let answered = Answered { ack: Some(ack), confirm };
        let settle = Settle {
            call: result.call,
            fence: result.fence,
            token: result.token,
            session: result.session,
            request_hash: result.request_hash,
            verdict: result.body.verdict,
            output: result.body.output,
            output_ref: result.body.output_ref.and_then(|text| text.parse().ok()),
            error: result.body.error,
        };
        if let Some(live) = self.live.get_mut(&result.run)
            && let Some(class) = live.open.get(&settle.call).copied()
            && settle.output_ref.is_none()
            && !self.draining
            && settles_now(class, settle.verdict)
            && !live.results.iter().any(|(other, _)| other.call == settle.call)
        {
            let outcome = CallOutcome {
                state: ReceiptState::from(settle.verdict),
                settle_rev: 1,
                output: settle.output.clone(),
                error: settle.error.clone(),
            };
            live.tell(Event::CallSettled { call: settle.call.clone(), outcome });
            live.results.push((settle, answered));
            self.dirty.insert(result.run);
        } else {
            self.settle.send(settle, answered).await;
        }
    }

    fn take_up(&mut self, run: RunId) {
        if self.draining || self.live.contains_key(&run) {
            return;
        }
        let (store, session, tx) = (self.core.store.clone(), self.core.session.clone(), self.tx.clone());
        self.tasks.spawn(async move {
            match store.run_take(&session, &run).await {
                Ok(Some(loaded)) => drop(tx.send(Msg::Due(DueRuns { mine: Vec::new(), taken: vec![loaded] }))),
                Ok(None) => {}
                Err(error) => debug!(%run, %error, "run is not taken up now; the sweeper tries again"),
            }
        });
    }

    fn restore(&mut self, loaded: LoadedRun) {
        if self.draining {
            return;
        }
        let (core, tx, advance) = (self.core.clone(), self.tx.clone(), self.advance.clone());
        self.tasks.spawn(async move { takeup::restore(core, loaded, tx, advance).await });
    }

    /// Reads what the bell of an owned run rang for.
    fn read_news(&mut self, run: &RunId) {
        let Some(live) = self.live.get_mut(run) else {
            // Owned by this session, but dropped from memory: take it up anew.
            self.retake(run.clone());
            return;
        };
        if let Some(again) = &mut live.reading {
            *again = true;
            return;
        }
        live.reading = Some(false);
        let open: Vec<CallUid> = live.open.keys().cloned().collect();
        let (store, tx, run, seen) = (self.core.store.clone(), self.tx.clone(), run.clone(), live.signal_seen);
        self.tasks.spawn(async move {
            let news = store.run_news(&run, &open, seen).await;
            let _ = tx.send(Msg::News(run, news)); // the driver ends only after its tasks
        });
    }

    fn news(&mut self, run: &RunId, news: StoreResult<Option<RunNews>>) {
        let Some(live) = self.live.get_mut(run) else { return };
        let again = live.reading.take().unwrap_or(false);
        match news {
            Ok(Some(news)) => {
                self.core.clock.heard(news.now_ms);
                if news.bell > live.bell {
                    live.bell = news.bell;
                    live.force = true;
                }
                for (call, outcome) in news.settled {
                    live.tell(Event::CallSettled { call, outcome });
                }
                for signal in news.signals {
                    live.tell(Event::Signal { n: signal.n, name: signal.name, body: signal.body });
                }
                if news.cancel_asked {
                    live.tell(Event::CancelRequested);
                }
                if live.deadline_ms.is_some_and(|at_ms| at_ms <= news.now_ms) {
                    live.tell(Event::DeadlinePassed);
                }
                if live.wake_ms.is_some_and(|at_ms| at_ms <= news.now_ms) {
                    live.tell(Event::Woke);
                    live.force = true;
                }
                if live.is_ready() {
                    self.dirty.insert(run.clone());
                }
            }
            Ok(None) => {
                self.live.remove(run);
            }
            Err(error) => debug!(%run, %error, "news are not read now; the poll tries again"),
        }
        if again {
            self.read_news(run);
        }
    }

    /// Decides every run to which something happened, and queues the commits.
    async fn decide(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        for run in dirty {
            let Some(mut live) = self.live.remove(&run) else { continue };
            if let Some((advance, answered)) = self.decide_one(&mut live) {
                live.committing = true;
                self.advance.send(advance, AdvanceContext { answered }).await;
            }
            self.live.insert(run, live);
        }
    }

    /// One decision; `None` when it has to wait.
    fn decide_one(&mut self, live: &mut Live) -> Option<(Advance, Vec<Answered>)> {
        if live.committing || self.draining {
            return None;
        }
        let now_ms = self.core.clock.now_ms();
        let mut held_until = None;
        let (decision, results, unserved_too) = match live.hold.take() {
            Some(hold) => {
                let over = hold.until <= Instant::now()
                    || live.events.iter().any(|e| matches!(e, Event::CancelRequested | Event::DeadlinePassed));
                held_until = Some(hold.until);
                (hold.decision, hold.results, over)
            }
            None if live.is_ready() => {
                let events = std::mem::take(&mut live.events);
                let decision = live.machine.advance(&events, now_ms);
                (decision, std::mem::take(&mut live.results), false)
            }
            None => return None,
        };
        for intent in &decision.calls {
            live.open.insert(intent.call.clone(), None);
        }
        for consumed in &decision.consumed {
            live.open.remove(&consumed.call);
        }
        let trace = step_trace(live);
        let input = StepInput {
            run: &live.run,
            machine: &live.machine,
            decision: &decision,
            catalogue: &self.core.catalogue,
            unserved_too,
            cancelling: live.cancel_told,
            bell: live.bell,
            deadline_ms: live.deadline_ms,
            deadline_told: live.deadline_told,
            now_ms,
            traceparent: trace.as_deref().or(live.traceparent.as_deref()),
        };
        let step = match input.plan() {
            Planned::Step(step) => *step,
            Planned::Unserved(wanted) => {
                let until = held_until.unwrap_or_else(|| {
                    debug!(run = %live.run, ?wanted, "no live worker serves this yet");
                    Instant::now() + Duration::from_millis(self.core.config.worker_wait_ms)
                });
                // The same alarm again is harmless: it finds the hold gone, or rings for it once more.
                self.alarms.push(std::cmp::Reverse((until, live.run.clone())));
                live.hold = Some(Hold { decision, results, until });
                return None;
            }
            Planned::Refused(error) => self.end_step(live, step::refused(error)),
        };
        live.force = false;
        for receipt in &step.receipts {
            live.open.insert(receipt.call.clone(), Some(receipt.policy.class));
        }
        let (settles, answered) = results.into_iter().unzip();
        let item = Advance { run: live.run.clone(), epoch: live.epoch, version: live.version, settles, step };
        Some((item, answered))
    }

    /// The step that ends a run from outside its plan.
    fn end_step(&self, live: &Live, ending: ditto_graph::Ending) -> crate::store::Step {
        crate::store::Step {
            checkpoint: live.machine.checkpoint_json(),
            boundary: false,
            receipts: Vec::new(),
            cancels: live.open.keys().cloned().collect(),
            status: ending.status,
            wake_ms: None,
            signal_seen: None,
            bell_seen: live.bell,
            ending: Some(ending),
            progress: None,
        }
    }

    async fn committed(&mut self, advance: Advance, context: AdvanceContext, answer: StoreResult<Advanced>) {
        if self.live.get(&advance.run).is_none_or(|live| live.epoch != advance.epoch) {
            // Taken up anew meanwhile: what this commit did, the new life has read or will be told.
            match answer {
                Ok(Advanced::Done) => self.answer(context.answered).await,
                _ => self.settle_apart(advance.settles.into_iter().zip(context.answered)).await,
            }
            return;
        }
        match answer {
            Ok(Advanced::Done) => self.advanced(advance, context).await,
            Ok(Advanced::Lost) => {
                debug!(run = %advance.run, "another coordinator drives this run now");
                self.drop_run(&advance.run);
                self.settle_apart(advance.settles.into_iter().zip(context.answered)).await;
            }
            Ok(Advanced::Stale) => {
                debug!(run = %advance.run, "a result did not apply, reading the run again");
                self.drop_run(&advance.run);
                self.settle_apart(advance.settles.into_iter().zip(context.answered)).await;
                self.retake(advance.run);
            }
            Ok(Advanced::CallIdReused { call }) => {
                warn!(run = %advance.run, %call, "call id was used before with another request");
                self.end_instead(
                    advance,
                    context,
                    ditto_contracts::WireError::new(
                        ditto_contracts::ErrorClass::Conflict,
                        ditto_contracts::codes::CALL_ID_REUSED,
                        "a call id was used before in this run with another request",
                    ),
                )
                .await;
            }
            Err(error) => {
                warn!(run = %advance.run, %error, "run could not be committed");
                if error.is_transient() {
                    self.drop_run(&advance.run);
                    return;
                }
                self.end_instead(advance, context, error.into()).await;
            }
        }
    }

    async fn end_instead(&mut self, mut advance: Advance, context: AdvanceContext, error: ditto_contracts::WireError) {
        let Some(live) = self.live.get_mut(&advance.run) else { return };
        if advance.step.ending.is_some() && advance.step.receipts.is_empty() {
            // Even the ending is refused: leave it to the next owner, with a fresh look at the ledger.
            let run = advance.run.clone();
            self.drop_run(&run);
            self.settle_apart(advance.settles.into_iter().zip(context.answered)).await;
            return;
        }
        for receipt in &advance.step.receipts {
            live.open.remove(&receipt.call);
        }
        let live = &self.live[&advance.run];
        advance.step = self.end_step(live, step::refused(error));
        self.advance.send(advance, context).await;
    }

    async fn advanced(&mut self, advance: Advance, context: AdvanceContext) {
        let Advance { run, step, .. } = advance;
        self.answer(context.answered).await;
        for receipt in step.receipts {
            self.dispatch(&run, receipt);
        }
        let cancels = !step.cancels.is_empty();
        let Some(live) = self.live.get_mut(&run) else { return };
        live.version += 1;
        live.committing = false;
        live.status = step.status;
        live.wake_ms = step.wake_ms;
        crate::metrics::step_committed();
        if step.status.is_ended() {
            crate::metrics::ended(step.status);
        }
        let changed =
            RunChanged { run: run.clone(), version: live.version, status: step.status, ending: shared(&step.ending) };
        let _ = self.core.news.send(changed); // nobody may be watching
        if cancels {
            self.notify_cancels(step.cancels);
        }
        if step.status.is_ended() || step.status == RunStatus::Parked {
            if let Some(live) = self.live.remove(&run) {
                // What came in during the last commit belongs to receipts, not to this memory.
                let rung = live.reading.is_some() || !live.events.is_empty();
                self.settle_apart(live.results).await;
                if step.status == RunStatus::Parked && rung {
                    self.take_up(run.clone());
                }
            }
            self.set_alarm(&run, step.wake_ms);
            return;
        }
        self.set_alarm(&run, step.wake_ms);
        if self.live.get(&run).is_some_and(Live::is_ready) {
            self.dirty.insert(run);
        }
    }

    /// Acknowledges and confirms results that are in the ledger.
    async fn answer(&mut self, answered: Vec<Answered>) {
        for answered in answered {
            self.confirms.settled(answered).await;
        }
    }

    /// Takes up runs that this session owns and nobody drives: missing at two looks in a row, so that a run on its way
    /// into memory is left alone.
    fn compare(&mut self, owned: Vec<RunId>) {
        let missing: HashSet<RunId> = owned.into_iter().filter(|run| !self.live.contains_key(run)).collect();
        for run in missing.intersection(&self.missing).cloned().collect::<Vec<_>>() {
            warn!(%run, "owned run is not in memory, taking it up again");
            self.retake(run);
        }
        self.missing = missing;
    }

    fn dispatch(&mut self, run: &RunId, receipt: NewReceipt) {
        if receipt.delay_ms == 0 {
            self.dispatcher.planned(run, receipt);
        }
    }

    fn drop_run(&mut self, run: &RunId) {
        self.dirty.remove(run);
        if let Some(live) = self.live.remove(run)
            && !live.results.is_empty()
        {
            let settle = self.settle.clone();
            self.tasks.spawn(async move { settle_apart(&settle, live.results).await });
        }
    }

    fn retake(&mut self, run: RunId) {
        if self.draining {
            return;
        }
        let (store, session, tx) = (self.core.store.clone(), self.core.session.clone(), self.tx.clone());
        self.tasks.spawn(async move {
            let taken = async {
                store.runs_yield(&session, std::slice::from_ref(&run)).await?;
                let taken = store.run_take(&session, &run).await?;
                if taken.is_some() {
                    store.dispatch_runs(std::slice::from_ref(&run)).await?;
                }
                Ok::<_, StoreError>(taken)
            };
            match taken.await {
                Ok(Some(loaded)) => drop(tx.send(Msg::Due(DueRuns { mine: Vec::new(), taken: vec![loaded] }))),
                Ok(None) => {}
                Err(error) => {
                    debug!(%run, %error, "run is not read again now, trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    let _ = tx.send(Msg::Retake(run)); // a driver that has ended gives its runs back itself
                }
            }
        });
    }

    async fn settle_apart(&mut self, results: impl IntoIterator<Item = Pending>) {
        settle_apart(&self.settle, results).await;
    }

    fn set_alarm(&mut self, run: &RunId, wake_ms: Option<i64>) {
        if let Some(wake_ms) = wake_ms {
            let wait = self.core.clock.until(wake_ms);
            if wait <= ALARM_HORIZON {
                self.alarms.push(std::cmp::Reverse((Instant::now() + wait + Duration::from_millis(1), run.clone())));
            }
        }
    }

    fn ring_alarms(&mut self) {
        let now = Instant::now();
        while let Some(std::cmp::Reverse((at, _))) = self.alarms.peek()
            && *at <= now
        {
            let Some(std::cmp::Reverse((_, run))) = self.alarms.pop() else { break };
            match self.live.get(&run) {
                Some(live) if live.hold.is_some() => drop(self.dirty.insert(run)),
                Some(_) => self.read_news(&run),
                None => self.take_up(run),
            }
        }
    }

    fn notify_cancels(&mut self, calls: Vec<CallUid>) {
        let core = self.core.clone();
        self.tasks.spawn(async move { crate::claims::notify_cancels(&core, &calls).await });
    }
}

/// A span for one decision, child of the submission; its context goes into the receipts and from there to the workers.
fn step_trace(live: &Live) -> Option<String> {
    if !telemetry::enabled() {
        return None;
    }
    let span = tracing::info_span!("loop.step", run_id = %live.run, version = live.version);
    telemetry::set_parent(&span, live.traceparent.as_deref(), None);
    telemetry::inject(&span).0
}

/// Settles results of a run that is not driven here (any more).
async fn settle_apart(lanes: &Lanes<SettleVerb>, results: impl IntoIterator<Item = Pending>) {
    for (settle, answered) in results {
        lanes.send(settle, answered).await;
    }
}

/// Whether this verdict settles the call; an unknown keyed call stays open for reconciliation.
fn settles_now(class: Option<EffectClass>, verdict: Verdict) -> bool {
    verdict != Verdict::Unknown || class == Some(EffectClass::NonIdempotent)
}
