//! The level-triggered passes over the ledger: whatever was lost on the bus or in memory, one of these finds.
//! Every coordinator runs all of them; guards are repeated inside each update, so two at once are only wasteful.

use std::{collections::HashSet, time::Duration};

use ditto_bus::BusEvent;
use ditto_contracts::{RunId, SessionId, wire::subjects};
use rand::RngExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, trace, warn};

use crate::{
    core::Core,
    dispatcher::Dispatcher,
    driver::{DriverSender, Msg, ring},
    results, streams,
    store::{Changed, SessionRole, StoreError},
};

/// Rows of one pass.
const PAGE: u32 = 500;
/// Owned runs compared with memory in one pass.
const OWNED_MAX: u32 = 100_000;
/// Runs taken over in one pass.
const TAKE_MAX: u32 = 256;

/// What the sweepers need.
pub(crate) struct Sweepers {
    pub(crate) core: Core,
    pub(crate) driver: DriverSender,
    pub(crate) dispatcher: Dispatcher,
    /// Result shards this process takes: its own first, then those of dead coordinators.
    pub(crate) shards: Vec<String>,
    /// Shards that another live coordinator takes.
    pub(crate) adopted_elsewhere: HashSet<String>,
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

    async fn check_streams(&mut self, before: Option<ditto_bus::StreamState>) -> Result<ditto_bus::StreamState, ditto_bus::BusError> {
        let (state, lost) = streams::ensure(&self.core, before).await?;
        self.core.bus.ensure_consumer(&results::consumer(&self.core, &self.shards)).await?;
        if before.is_some() && lost {
            error!("the jobs stream lost its messages; every planned call is published again");
            self.recreate_worker_consumers().await;
            if let Err(error) = self.core.store.dispatch_all().await {
                warn!(%error, "planned calls are not marked due now; they are when their time comes");
            }
        } else if before.is_none() {
            self.recreate_worker_consumers().await;
        }
        Ok(state)
    }

    /// Workers bind to consumers by name; after a loss they must be there again.
    async fn recreate_worker_consumers(&self) {
        let Ok(rows) = self.core.store.offers_live().await else { return };
        let mut seen = HashSet::new();
        for row in rows {
            if seen.insert((row.kind.clone(), row.pool.clone()))
                && let Err(error) = streams::worker_consumer(&self.core, &row.kind, row.pool.as_ref(), std::slice::from_ref(&row.offer)).await
            {
                warn!(kind = row.kind, %error, "consumer is not created again");
            }
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
        if round.is_multiple_of(5) {
            self.adopt_shards(!dead.is_empty() || round.is_multiple_of(50)).await?;
        }
        if round.is_multiple_of(20) {
            let owned = core.store.runs_owned(&core.session, OWNED_MAX).await?;
            let _ = self.driver.send(Msg::Owned(owned)); // the driver ends after the sweepers
        }
        if round.is_multiple_of(300) {
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

    /// Takes over the result shards of dead coordinators, so that results on their way there are not left lying.
    async fn adopt_shards(&mut self, again: bool) -> Result<(), StoreError> {
        if again {
            // Whoever had adopted them may have died since.
            self.adopted_elsewhere.clear();
        }
        for session in self.core.store.sessions_list(1_000).await? {
            if session.role != SessionRole::Coordinator || session.dead_ms.is_none() {
                continue;
            }
            let shard = subjects::results(&session.session);
            if self.shards.contains(&shard) || self.adopted_elsewhere.contains(&shard) {
                continue;
            }
            let name = format!("results_{}", session.session);
            if let Err(error) = self.core.bus.delete_consumer(subjects::RESULTS_STREAM, &name).await {
                debug!(%error, "consumer of a dead coordinator is not removed now");
                continue;
            }
            let mut shards = self.shards.clone();
            shards.push(shard.clone());
            // Refused when another live coordinator adopted it first.
            match self.core.bus.ensure_consumer(&results::consumer(&self.core, &shards)).await {
                Ok(()) => {
                    info!(session = %session.session, "results of a dead coordinator adopted");
                    self.shards = shards;
                }
                Err(error) => {
                    trace!(session = %session.session, %error, "results of a dead coordinator are not adopted here");
                    self.adopted_elsewhere.insert(shard);
                }
            }
        }
        Ok(())
    }
}
