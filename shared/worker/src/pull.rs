//! Pulling jobs: a permit first, then a message. A message that is here is worked on at once; none waits in a buffer.

use std::{sync::Arc, time::Duration};

use ditto_bus::{BusError, Delivery};
use ditto_contracts::wire::subjects::JOBS_STREAM;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
};
use tracing::{debug, error, warn};

use crate::{job, ledger::jitter, session::Session};

/// One of the pulling tasks. It takes the free permits, opens a pull for so many, and starts each job as it comes; while
/// it waits, permits that become free are taken by the next one. Ends when the session stops and its jobs are done.
pub(crate) async fn run(session: Arc<Session>, permits: Arc<Semaphore>) {
    let mut jobs = JoinSet::new();
    let mut failures = 0_u32;
    loop {
        reap(&mut jobs);
        let Some(taken) = free_permits(&session, &permits).await else { break };
        match pull(&session, taken, &mut jobs).await {
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
async fn free_permits(session: &Session, permits: &Arc<Semaphore>) -> Option<Vec<OwnedSemaphorePermit>> {
    let ready = async {
        session.gate.opened().await;
        session.lease.ready().await.ok()?;
        permits.clone().acquire_owned().await.ok()
    };
    let first = tokio::select! {
        biased;
        () = session.stop.cancelled() => return None,
        permit = ready => permit?,
    };
    let mut taken = vec![first];
    while let Ok(permit) = permits.clone().try_acquire_owned() {
        taken.push(permit);
    }
    Some(taken)
}

async fn pull(
    session: &Arc<Session>,
    mut permits: Vec<OwnedSemaphorePermit>,
    jobs: &mut JoinSet<()>,
) -> Result<(), BusError> {
    let consumer = session.consumer();
    let mut pull = session.bus.pull(JOBS_STREAM, &consumer, permits.len(), session.config.pull_expires).await?;
    loop {
        tokio::select! {
            biased;
            () = session.stop.cancelled() => break,
            () = session.gate.closed() => break,
            next = pull.next() => {
                let Some(delivery) = next? else { return Ok(()) };
                start(session, delivery, &mut permits, jobs).await;
            }
        }
        // What else is here already costs no round trip.
        while !permits.is_empty() {
            let Some(delivery) = pull.try_next() else { break };
            start(session, delivery, &mut permits, jobs).await;
        }
        reap(jobs);
        if permits.is_empty() {
            return Ok(());
        }
    }
    // A pull that is dropped gives back what it holds.
    Ok(())
}

async fn start(
    session: &Arc<Session>,
    delivery: Delivery,
    permits: &mut Vec<OwnedSemaphorePermit>,
    jobs: &mut JoinSet<()>,
) {
    match permits.pop() {
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
