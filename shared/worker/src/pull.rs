//! Pulling jobs: a permit first, then a message. A message that is here is worked on at once; none waits in a buffer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ditto_bus::{BusError, Delivery};
use ditto_contracts::wire::subjects::JOBS_STREAM;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tracing::{debug, error, warn};

use crate::{job, ledger::jitter, session::Session};

/// What all pulling tasks of a session share.
pub(crate) struct Intake {
    permits: Arc<Semaphore>,
    /// Messages that open pulls may still bring.
    wanted: AtomicUsize,
    /// Another pull is opened only below this, so that pulls are few and large.
    low: usize,
    lower: Notify,
}

impl Intake {
    pub(crate) fn new(concurrency: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(concurrency)),
            wanted: AtomicUsize::new(0),
            low: (concurrency / 2).max(1),
            lower: Notify::new(),
        }
    }

    /// Waits until open pulls want little.
    async fn is_low(&self) {
        loop {
            let mut lower = std::pin::pin!(self.lower.notified());
            lower.as_mut().enable();
            if self.wanted.load(Ordering::SeqCst) < self.low {
                return;
            }
            lower.await;
        }
    }

    fn less(&self, n: usize) {
        if self.wanted.fetch_sub(n, Ordering::SeqCst) - n < self.low {
            self.lower.notify_waiters();
        }
    }
}

/// Permits that wait in an open pull.
struct Waiting<'a> {
    intake: &'a Intake,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Waiting<'_> {
    fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        let permit = self.permits.pop()?;
        self.intake.less(1);
        Some(permit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let left = self.permits.len();
        self.permits.clear();
        if left > 0 {
            self.intake.less(left);
        }
    }
}

/// One of the pulling tasks. It takes the free permits, opens a pull for so many, and starts each job as it comes; once
/// that pull wants little, permits that have become free are taken by the next one. Ends when the session stops and its
/// jobs are done.
pub(crate) async fn run(session: Arc<Session>, intake: Arc<Intake>) {
    let mut jobs = JoinSet::new();
    let mut failures = 0_u32;
    loop {
        reap(&mut jobs);
        let Some(waiting) = free_permits(&session, &intake).await else { break };
        match pull(&session, waiting, &mut jobs).await {
            Ok(()) => failures = 0,
            Err(failure) => {
                if matches!(failure, BusError::Missing(_)) {
                    session.announce_again.notify_one();
                }
                if failures == 0 {
                    warn!(error = %failure, "jobs cannot be pulled: trying again");
                }
                failures = failures.saturating_add(1);
                let pause = jitter(Duration::from_millis(50 << failures.min(5)));
                tokio::select! {
                    () = session.stop.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }
    while let Some(ended) = jobs.join_next().await {
        report(ended);
    }
}

/// At least one permit, and what else is free; `None` once the session stops.
async fn free_permits<'a>(session: &Session, intake: &'a Intake) -> Option<Waiting<'a>> {
    let ready = async {
        loop {
            intake.is_low().await;
            session.gate.opened().await;
            session.lease.ready().await.ok()?;
            let permit = intake.permits.clone().acquire_owned().await.ok()?;
            // Another task may have opened a pull meanwhile.
            if intake.wanted.load(Ordering::SeqCst) < intake.low {
                return Some(permit);
            }
        }
    };
    let first = tokio::select! {
        biased;
        () = session.stop.cancelled() => return None,
        permit = ready => permit?,
    };
    let mut permits = vec![first];
    while let Ok(permit) = intake.permits.clone().try_acquire_owned() {
        permits.push(permit);
    }
    intake.wanted.fetch_add(permits.len(), Ordering::SeqCst);
    Some(Waiting { intake, permits })
}

async fn pull(session: &Arc<Session>, mut waiting: Waiting<'_>, jobs: &mut JoinSet<()>) -> Result<(), BusError> {
    let consumer = session.consumer();
    let mut pull = session.bus.pull(JOBS_STREAM, &consumer, waiting.permits.len(), session.config.pull_expires).await?;
    loop {
        tokio::select! {
            biased;
            () = session.stop.cancelled() => break,
            () = session.gate.closed() => break,
            next = pull.next() => {
                let Some(delivery) = next? else { return Ok(()) };
                start(session, delivery, &mut waiting, jobs).await;
            }
        }
        // What else is here already costs no round trip.
        while !waiting.permits.is_empty() {
            let Some(delivery) = pull.try_next() else { break };
            start(session, delivery, &mut waiting, jobs).await;
        }
        reap(jobs);
        if waiting.permits.is_empty() {
            return Ok(());
        }
    }
    // A pull that is dropped gives back what it holds.
    Ok(())
}

async fn start(session: &Arc<Session>, delivery: Delivery, waiting: &mut Waiting<'_>, jobs: &mut JoinSet<()>) {
    match waiting.take() {
        Some(permit) => {
            jobs.spawn(job::run(session.clone(), delivery, permit));
        }
        // More than was asked for: not ours to hold.
        None => nak(&delivery, Duration::ZERO).await,
    }
}

/// Puts a job back; failing to is safe.
pub(crate) async fn nak(delivery: &Delivery, delay: Duration) {
    if let Err(error) = delivery.acker.nak(delay).await {
        debug!(%error, "a job is not put back; it comes again after its wait");
    }
}

fn reap(jobs: &mut JoinSet<()>) {
    while let Some(ended) = jobs.try_join_next() {
        report(ended);
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(failure) = ended
        && failure.is_panic()
    {
        error!(error = %failure, "a job ended by a defect of the worker; its call stays held by the session");
    }
}
