//! The level-triggered passes over the ledger: whatever was lost on the bus or in memory, one of these finds.
//! Every coordinator runs all of them; guards are repeated inside each update, so two at once are only wasteful.

use std::{collections::HashSet, time::Duration};

use ditto_bus::BusEvent;
use ditto_contracts::{RunId, SessionId, wire::subjects};
use rand::RngExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    core::Core,
    dispatcher::Dispatcher,
    driver::{DriverSender, Msg, ring},
    results,
    store::{Changed, SessionRole, StoreError},
    streams,
};

/// Rows of one pass.
const PAGE: u32 = 500;
/// Dead coordinators that are remembered.
const REOPENED_MAX: usize = 4_096;
/// Owned runs compared with memory in one pass.
const OWNED_MAX: u32 = 100_000;
/// Runs taken over in one pass.
const TAKE_MAX: u32 = 256;

/// What the sweepers need.
pub(crate) struct Sweepers {
    pub(crate) core: Core,
    pub(crate) driver: DriverSender,
    pub(crate) dispatcher: Dispatcher,
    /// Coordinators that may still take their own results.
    pub(crate) live_coordinators: HashSet<SessionId>,
    /// Dead coordinators whose consumer this process has replaced.
    pub(crate) reopened: HashSet<SessionId>,
}

impl Sweepers {
    fn pause(&self, times: u32) -> Duration {
        let base = self.core.config.sweep_period_ms * u64::from(times);
        let jitter = rand::rng().random_range(0..=base / 5);
        Duration::from_millis(base - base / 10 + jitter)
    }

    /// Runs all passes until told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut round: u32 = 0;
        let mut events = self.core.bus.events();
        let mut jobs_state = None;
        let mut check_streams = true;
        loop {
            if check_streams {
                match self.check_streams(jobs_state).await {
                    Ok(state) => {
                        jobs_state = Some(state);
                        check_streams = false;
                    }
                    Err(error) => warn!(%error, "streams cannot be checked now"),
                }
            }
            if let Err(error) = self.pass(round).await {
                warn!(%error, "a pass over the ledger failed; the next one repeats it");
            }
            round = round.wrapping_add(1);
            // Cheap beside the rest, and finds a stream that vanished without a reconnect.
            check_streams |= round.is_multiple_of(5);
            let sleep = tokio::time::sleep(self.pause(1));
            tokio::pin!(sleep);
            loop {
                tokio::select! {
                    () = &mut sleep => break,
                    event = events.recv() => match event {
                        Ok(BusEvent::Connected) => {
                            check_streams = true;
                            break;
                        }
                        Ok(BusEvent::MaxDeliveries { stream, consumer, sequence }) => {
                            warn!(stream, consumer, sequence, "a message used up its deliveries; the ledger publishes its call again");
                        }
                        Ok(BusEvent::Disconnected) => warn!("bus is disconnected"),
                        Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => check_streams = true,
                        Err(tokio::sync::broadcast::error::RecvError::Closed) => {
                            (&mut sleep).await;
                            break;
                        }
                    },
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    async fn check_streams(
        &mut self,
        before: Option<ditto_bus::StreamState>,
    ) -> Result<ditto_bus::StreamState, ditto_bus::BusError> {
        let (state, lost) = streams::ensure(&self.core, before).await?;
        self.core.bus.ensure_consumer(&results::consumer(&self.core, &self.core.session)).await?;
        self.ensure_worker_consumers().await;
        if before.is_some() && lost {
            error!("the jobs stream lost its messages; every planned call is published again");
            if let Err(error) = self.core.store.dispatch_all().await {
                warn!(%error, "planned calls are not marked due now; they are when their time comes");
            }
        }
        Ok(state)
    }

    /// Workers bind to consumers by name: they must be there and take what was announced.
    async fn ensure_worker_consumers(&self) {
        if let Err(error) = streams::ensure_worker_consumers(&self.core).await {
            warn!(%error, "the consumers of workers are not looked at now");
        }
    }

    async fn pass(&mut self, round: u32) -> Result<(), StoreError> {
        let core = self.core.clone();
        let grace = Duration::from_millis(core.config.session_grace_ms);
        let dead = core.store.sessions_expire(grace).await?;
        for session in &dead {
            warn!(%session, "session declared dead");
        }
        while self.changed(core.store.sweep_lost_claims(PAGE).await?).await {}
        if !dead.is_empty() {
            // Unclaimed calls of a dead worker wait on the bus for their redelivery; publishing again is harmless.
            core.store.dispatch_all().await?;
        }
        core.read_catalogue().await?;
        loop {
            let due = core.store.runs_due(&core.session, TAKE_MAX).await?;
            let full = due.taken.len() >= TAKE_MAX as usize;
            if !due.mine.is_empty() || !due.taken.is_empty() {
                if !due.taken.is_empty() {
                    info!(taken = due.taken.len(), "runs without a live owner taken over");
                    // What their last owner planned it may not have published.
                    let runs: Vec<RunId> = due.taken.iter().map(|run| run.run.clone()).collect();
                    core.store.dispatch_runs(&runs).await?;
                }
                let _ = self.driver.send(Msg::Due(due)); // the driver ends after the sweepers
            }
            if !full {
                break;
            }
        }
        loop {
            let jobs = core.store.sweep_dispatch(PAGE).await?;
            let full = jobs.len() >= PAGE as usize;
            for job in jobs {
                debug!(call = %job.call, dispatch = job.dispatch_no, "publishing again");
                self.dispatcher.due(job);
            }
            if !full {
                break;
            }
        }
        for job in core.store.sweep_reconcile(PAGE).await? {
            debug!(call = %job.call, query = job.query, "reconciling");
            self.dispatcher.due(job);
        }
        let window = Duration::from_millis(core.config.reconcile_window_ms);
        while self.changed(core.store.sweep_limits(window, PAGE).await?).await {}
        let wait = Duration::from_millis(core.config.worker_wait_ms);
        while self.changed(core.store.sweep_unserved(wait, PAGE).await?).await {}
        if round.is_multiple_of(5) || !dead.is_empty() {
            let sessions = core.store.sessions_list(1_000).await?;
            let live = sessions.iter().filter(|s| s.role == SessionRole::Coordinator && s.dead_ms.is_none());
            self.live_coordinators = live.map(|s| s.session.clone()).collect();
            self.drain_dead_shards().await;
        }
        if round.is_multiple_of(20) {
            let owned = core.store.runs_owned(&core.session, OWNED_MAX).await?;
            let _ = self.driver.send(Msg::Owned(owned)); // the driver ends after the sweepers
        }
        if round.is_multiple_of(300) {
            self.forget_old_shards().await?;
            let retention = Duration::from_millis(core.config.retention_ms);
            for _ in 0..20 {
                if !core.store.sweep_retention(retention).await? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Rings the bells of what a pass changed. `true`: the page was full, repeat the pass.
    async fn changed(&self, changed: Vec<Changed>) -> bool {
        let full = changed.len() >= PAGE as usize;
        let rung: Vec<(RunId, Option<SessionId>)> = changed
            .into_iter()
            .map(|c| {
                info!(call = %c.call, run = %c.run, state = %c.state, settled = c.settled, "receipt changed by the sweeper");
                (c.run, c.owner)
            })
            .collect();
        ring(&self.core, &self.driver, rung).await;
        full
    }

    /// Removes consumers of coordinators whose messages the stream has dropped by now.
    async fn forget_old_shards(&self) -> Result<(), StoreError> {
        let before_ms = self.core.clock.now_ms() - i64::try_from(2 * streams::MAX_AGE.as_millis()).unwrap_or(i64::MAX);
        for session in self.core.store.sessions_list(1_000).await? {
            if session.role == SessionRole::Coordinator && session.dead_ms.is_some_and(|dead_ms| dead_ms < before_ms) {
                let name = results::consumer_name(&session.session);
                if let Err(error) = self.core.bus.delete_consumer(subjects::RESULTS_STREAM, &name).await {
                    debug!(%name, %error, "old consumer is not removed now");
                }
            }
        }
        Ok(())
    }

    /// Takes what lies in the result shards of dead coordinators. Any coordinator may, also several at once.
    async fn drain_dead_shards(&mut self) {
        let waiting = match self.core.bus.stream_subjects(subjects::RESULTS_STREAM, subjects::RESULTS_ALL).await {
            Ok(waiting) => waiting,
            Err(error) => {
                debug!(%error, "result shards are not looked at now");
                return;
            }
        };
        let own = subjects::results(&self.core.session);
        for (shard, messages) in waiting {
            if shard == own {
                continue;
            }
            let owner = shard.rsplit('.').next().and_then(|token| SessionId::new(token).ok());
            let Some(owner) = owner.filter(|owner| !self.live_coordinators.contains(owner)) else { continue };
            info!(session = %owner, messages, "taking results addressed to a dead coordinator");
            if self.reopened.len() >= REOPENED_MAX {
                self.reopened.clear(); // replacing one again costs a round trip, nothing more
            }
            let anew = self.reopened.insert(owner.clone());
            if let Err(error) = results::drain(&self.core, &self.driver, &owner, anew).await {
                debug!(session = %owner, %error, "results of a dead coordinator are not taken now");
            }
        }
    }
}
