//! The session's lease: renewed in time, watched on the monotonic clock, and never trusted after a pause.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ditto_contracts::wire::{
    ledger::{OpenReply, RenewReply, RenewRequest},
    subjects,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    gate::LEDGER_AWAY,
    ledger::{LedgerError, jitter},
    session::Session,
};

/// Most held calls in one renewal; more go into further ones.
const HELD_PAGE: usize = 2_000;

/// The session is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost;

/// How long effects may be started.
#[derive(Debug)]
pub(crate) struct Lease {
    start: Instant,
    ttl_ms: AtomicU64,
    margin: Duration,
    /// Milliseconds after `start` from which nothing may be started.
    valid_until_ms: AtomicU64,
    /// When the watch last ran; a gap means that the process was paused.
    tick_ms: AtomicU64,
    must_renew: AtomicBool,
    renew_now: Notify,
    renewed: watch::Sender<u64>,
    dead: CancellationToken,
}

impl Lease {
    /// A lease that was asked for at `sent`.
    pub(crate) fn new(reply: &OpenReply, sent: Instant) -> Self {
        let margin = Duration::from_millis(reply.margin_ms.min(reply.ttl_ms / 2));
        let lease = Self {
            start: sent,
            ttl_ms: AtomicU64::new(reply.ttl_ms),
            margin,
            valid_until_ms: AtomicU64::new(0),
            tick_ms: AtomicU64::new(0),
            must_renew: AtomicBool::new(false),
            renew_now: Notify::new(),
            renewed: watch::Sender::new(0),
            dead: CancellationToken::new(),
        };
        lease.extend(sent, reply.ttl_ms);
        lease
    }

    fn at_ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    fn extend(&self, sent: Instant, ttl_ms: u64) {
        let margin_ms = u64::try_from(self.margin.as_millis()).unwrap_or(u64::MAX);
        self.ttl_ms.store(ttl_ms, Ordering::Relaxed);
        self.tick_ms.store(self.at_ms(Instant::now()), Ordering::Relaxed);
        self.valid_until_ms.store(self.at_ms(sent) + ttl_ms.saturating_sub(margin_ms), Ordering::Relaxed);
        self.must_renew.store(false, Ordering::Release);
        self.renewed.send_modify(|n| *n += 1);
    }

    /// A pause longer than this calls for a renewal.
    fn pause_limit(&self) -> Duration {
        self.margin.max(Duration::from_millis(100))
    }

    fn tick_period(&self) -> Duration {
        self.pause_limit() / 4
    }

    /// Notes that the process runs; says whether it had been paused.
    fn tick(&self) -> bool {
        let now = self.at_ms(Instant::now());
        let last = self.tick_ms.swap(now, Ordering::Relaxed);
        let paused = u128::from(now.saturating_sub(last)) > self.pause_limit().as_millis();
        if paused {
            self.must_renew.store(true, Ordering::Release);
        }
        paused
    }

    fn is_fresh(&self) -> bool {
        let now = self.at_ms(Instant::now());
        let gap = now.saturating_sub(self.tick_ms.load(Ordering::Relaxed));
        now < self.valid_until_ms.load(Ordering::Relaxed)
            && u128::from(gap) <= self.pause_limit().as_millis()
            && !self.must_renew.load(Ordering::Acquire)
    }

    /// Returns when an effect may be started; at once while the lease is fresh.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn ready(&self) -> Result<(), Lost> {
        if self.is_fresh() && !self.dead.is_cancelled() {
            return Ok(());
        }
        let mut renewed = self.renewed.subscribe();
        loop {
            if self.dead.is_cancelled() {
                return Err(Lost);
            }
            if self.is_fresh() {
                return Ok(());
            }
            self.must_renew.store(true, Ordering::Release);
            self.renew_now.notify_one();
            tokio::select! {
                () = self.dead.cancelled() => return Err(Lost),
                _ = renewed.changed() => {}
            }
        }
    }

    /// Asks for a renewal, as a probe whether a coordinator answers.
    pub(crate) fn renew_soon(&self) {
        self.renew_now.notify_one();
    }

    /// Cancelled when the session was declared dead.
    pub(crate) fn dead(&self) -> &CancellationToken {
        &self.dead
    }
}

/// Renews every third of the ttl and reports what is held, until `end` or until the session is dead.
pub(crate) async fn keep(session: Arc<Session>, end: CancellationToken) {
    let lease = &session.lease;
    let third = || Duration::from_millis(lease.ttl_ms.load(Ordering::Relaxed) / 3).max(Duration::from_millis(10));
    let mut next = tokio::time::Instant::now() + third();
    let mut ticks = tokio::time::interval(lease.tick_period());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = lease.dead.cancelled() => return,
            _ = ticks.tick() => {
                if !lease.tick() {
                    continue;
                }
                info!("the process was paused: renewing before anything is started");
            }
            () = lease.renew_now.notified() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        let outcome = tokio::select! {
            () = end.cancelled() => return,
            outcome = renew(&session) => outcome,
        };
        next = match outcome {
            Ok(()) => {
                if session.gate.set(LEDGER_AWAY, false) {
                    info!("a coordinator answers again");
                }
                session.health(true, "");
                tokio::time::Instant::now() + third()
            }
            Err(error) => {
                if error == LedgerError::Away && session.gate.set(LEDGER_AWAY, true) {
                    warn!("no coordinator answers: nothing is pulled until one does");
                }
                session.health(false, "no coordinator answers");
                // Bounded below, so that a caller who waits in `ready` does not make a busy loop.
                let pause = jitter(third().min(Duration::from_millis(500)));
                tokio::select! {
                    () = end.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                lease.tick();
                tokio::time::Instant::now()
            }
        };
    }
}

/// One renewal with everything that is held long enough, in pages.
async fn renew(session: &Session) -> Result<(), LedgerError> {
    let lease = &session.lease;
    session.metrics.held(session.held.len(), session.held.bytes());
    let held = session.held.older_than(session.config.resend_after);
    let mut pages: Vec<_> = held.chunks(HELD_PAGE).map(<[_]>::to_vec).collect();
    if pages.is_empty() {
        pages.push(Vec::new());
    }
    for held in pages {
        let third = Duration::from_millis(lease.ttl_ms.load(Ordering::Relaxed) / 3);
        let timeout = session.config.request_timeout.min(third.max(Duration::from_millis(50)));
        let request = RenewRequest { session: session.id.clone(), held };
        let sent = Instant::now();
        let reply: RenewReply = session.ledger.ask(subjects::LEDGER_RENEW, &request, timeout).await?;
        if !reply.alive {
            warn!("the session was declared dead: no effect is started any more");
            session.health(false, "the session is over");
            lease.dead.cancel();
            return Ok(());
        }
        lease.extend(sent, reply.ttl_ms);
        for call in &reply.settled {
            session.confirm(call);
        }
        for call in &reply.cancel {
            session.held.cancel(call);
        }
    }
    Ok(())
}
