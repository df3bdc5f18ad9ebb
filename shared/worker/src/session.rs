//! One session: opened, announced, served, drained and closed.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use ditto_bus::{Bus, Subscription};
use ditto_contracts::{
    CallUid, NodeType, Pool, SessionId,
    wire::{
        ledger::{AnnounceReply, AnnounceRequest, CloseRequest, OpenReply, OpenRequest},
        subjects,
    },
};
use ditto_runtime::health::HealthPart;
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    DynHandler, WorkerConfig, WorkerError, claims,
    gate::Gate,
    held::Held,
    lease::{self, Lease},
    ledger::{Ledger, jitter},
    metrics::Metrics,
    notices, pull, results,
};

/// Claims and results that may wait for their task.
const QUEUE: usize = 1_024;
/// How long handlers that were cut off, and their results, may take after the drain time.
const CUT_GRACE: Duration = Duration::from_secs(2);
/// The wire version this worker speaks.
const WIRE: u32 = 1;

/// What a worker is, apart from any session.
pub(crate) struct Parts {
    pub(crate) kind: String,
    pub(crate) pool: Option<Pool>,
    pub(crate) handlers: HashMap<NodeType, Arc<dyn DynHandler>>,
    /// In the order they were given, which is the order of the announcement.
    pub(crate) order: Vec<Arc<dyn DynHandler>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) health: Option<HealthPart>,
}

/// Everything the tasks of one session share.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) ledger: Ledger,
    pub(crate) config: WorkerConfig,
    pub(crate) parts: Arc<Parts>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lease: Lease,
    pub(crate) gate: Arc<Gate>,
    pub(crate) held: Held,
    pub(crate) asks: mpsc::Sender<claims::Ask>,
    pub(crate) results: mpsc::Sender<results::Outgoing>,
    pub(crate) announce_again: Notify,
    /// Take nothing more.
    pub(crate) stop: CancellationToken,
    /// The drain time is over: handlers are cut off.
    pub(crate) cut: CancellationToken,
    consumer: RwLock<Arc<str>>,
}

impl Session {
    /// The durable consumer to pull from.
    pub(crate) fn consumer(&self) -> Arc<str> {
        self.consumer.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// The outcome of this call is settled.
    pub(crate) fn confirm(&self, call: &CallUid) {
        if !self.held.confirm(call) {
            debug!(%call, "a confirmation for a call that is not held, or still under way");
        }
    }

    /// Shows whether this session serves.
    pub(crate) fn health(&self, up: bool, reason: &str) {
        if let Some(part) = &self.parts.health {
            if up && !self.stop.is_cancelled() { part.up() } else { part.down(reason) }
        }
    }
}

/// Opens a session, serves it until `shutdown` or until it is lost, drains and closes it.
pub(crate) async fn run(
    parts: Arc<Parts>,
    config: WorkerConfig,
    bus: Arc<dyn Bus>,
    shutdown: CancellationToken,
) -> Result<(), WorkerError> {
    let ledger = Ledger::new(bus.clone());
    let opened = tokio::select! {
        () = shutdown.cancelled() => return Ok(()),
        opened = open(&parts, &config, &ledger, bus.as_ref()) => opened,
    };
    let (asks, ask_queue) = mpsc::channel(QUEUE);
    let (results, result_queue) = mpsc::channel(QUEUE);
    let gate = Arc::new(Gate::new());
    let held = Held::new(gate.clone(), config.held_bytes_max, config.resend_after);
    let session = Arc::new(Session {
        id: opened.id,
        bus,
        ledger,
        metrics: parts.metrics.clone(),
        parts,
        lease: opened.lease,
        gate,
        held,
        asks,
        results: results.clone(),
        announce_again: Notify::new(),
        stop: CancellationToken::new(),
        cut: CancellationToken::new(),
        consumer: RwLock::new(opened.consumer.into()),
        config,
    });

    let end = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(lease::keep(session.clone(), end.clone()));
    tasks.spawn(claims::run(session.clone(), ask_queue, end.clone()));
    tasks.spawn(results::run(session.clone(), result_queue, end.clone()));
    tasks.spawn(results::resend(session.clone(), results, end.clone()));
    tasks.spawn(notices::listen(session.clone(), opened.cancels, opened.confirms, end.clone()));
    tasks.spawn(announcing(session.clone(), end.clone()));

    let intake = Arc::new(pull::Intake::new(session.config.concurrency));
    let mut pullers = JoinSet::new();
    for _ in 0..session.config.pulls {
        pullers.spawn(pull::run(session.clone(), intake.clone()));
    }
    session.health(true, "");
    info!(session = %session.id, kind = session.parts.kind, consumer = &*session.consumer(), "worker serves");

    let lost = session.lease.dead().clone();
    let outcome = loop {
        tokio::select! {
            () = shutdown.cancelled() => break Ok(()),
            () = lost.cancelled() => break Err(WorkerError::SessionLost),
            Some(ended) = pullers.join_next() => {
                if lost.is_cancelled() {
                    continue;
                }
                warn!(failure = ?ended.err().map(|error| error.to_string()), "a pulling task ended");
                break Err(WorkerError::Task);
            }
            Some(ended) = tasks.join_next() => {
                if lost.is_cancelled() {
                    continue;
                }
                warn!(failure = ?ended.err().map(|error| error.to_string()), "a task of the session ended");
                break Err(WorkerError::Task);
            }
        }
    };
    let drained = drain(&session, &mut pullers).await;
    end.cancel();
    ditto_runtime::shutdown::drain(&mut tasks, CUT_GRACE).await;
    if !lost.is_cancelled() {
        close(&session).await;
    }
    info!(session = %session.id, left = drained, "worker stopped");
    match outcome {
        Ok(()) if drained > 0 => Err(WorkerError::DrainTimeout { left: drained }),
        outcome => outcome,
    }
}

struct Opened {
    id: SessionId,
    lease: Lease,
    consumer: String,
    cancels: Box<dyn Subscription>,
    confirms: Box<dyn Subscription>,
}

/// Opens and announces, as often as it takes.
///
/// Each try is a session of its own: one whose reply was lost may have expired before the next try, and a session that
/// was declared dead stays dead. What an earlier try opened expires by itself; it holds nothing.
async fn open(parts: &Parts, config: &WorkerConfig, ledger: &Ledger, bus: &dyn Bus) -> Opened {
    let mut pause = Duration::from_millis(50);
    let mut told = false;
    loop {
        match try_open(parts, config, ledger, bus, SessionId::generate()).await {
            Ok(opened) => return opened,
            Err(error) => {
                if let Some(part) = &parts.health {
                    part.down("no session yet");
                }
                if !told {
                    warn!(error, "no session yet: trying again");
                    told = true;
                }
                tokio::time::sleep(jitter(pause)).await;
                pause = (pause * 2).min(Duration::from_secs(2));
            }
        }
    }
}

async fn try_open(
    parts: &Parts,
    config: &WorkerConfig,
    ledger: &Ledger,
    bus: &dyn Bus,
    id: SessionId,
) -> Result<Opened, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let request = OpenRequest {
        session: id.clone(),
        worker_kind: parts.kind.clone(),
        name: config.name.clone(),
        build: config.build.clone(),
        instance: config.instance.clone(),
        wire: WIRE,
    };
    let sent = Instant::now();
    let reply: OpenReply =
        ledger.ask(subjects::LEDGER_OPEN, &request, config.request_timeout).await.map_err(|error| text(&error))?;
    // Listening before anything is announced: no notice for a call of this session can be missed.
    let cancels = bus
        .subscribe(&subjects::cancel(&parts.kind, &id), None, notices::CAPACITY)
        .await
        .map_err(|error| text(&error))?;
    let confirms = bus
        .subscribe(&subjects::confirm(&parts.kind, &id), None, notices::CAPACITY)
        .await
        .map_err(|error| text(&error))?;
    let consumer = announce(parts, config, ledger, &id).await?;
    Ok(Opened { id, lease: Lease::new(&reply, sent), consumer, cancels, confirms })
}

async fn announce(parts: &Parts, config: &WorkerConfig, ledger: &Ledger, id: &SessionId) -> Result<String, String> {
    let request = AnnounceRequest {
        session: id.clone(),
        worker_kind: parts.kind.clone(),
        pool: parts.pool.clone(),
        offers: parts.order.iter().flat_map(|handler| handler.offers()).collect(),
    };
    let reply: AnnounceReply = ledger
        .ask(subjects::LEDGER_ANNOUNCE, &request, config.request_timeout)
        .await
        .map_err(|error| error.to_string())?;
    for conflict in &reply.conflicts {
        warn!(conflict, "an offer contradicts another worker's: the stricter policy rules");
    }
    Ok(reply.consumer)
}

/// Announces again whenever what is served changes, or the consumer is gone.
async fn announcing(session: Arc<Session>, end: CancellationToken) {
    let mut changes = JoinSet::new();
    for mut receiver in session.parts.order.iter().filter_map(|handler| handler.changes()) {
        let session = session.clone();
        changes.spawn(async move {
            receiver.mark_unchanged();
            while receiver.changed().await.is_ok() {
                session.announce_again.notify_one();
            }
        });
    }
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            () = session.announce_again.notified() => {}
        }
        match announce(&session.parts, &session.config, &session.ledger, &session.id).await {
            Ok(consumer) => {
                *session.consumer.write().unwrap_or_else(std::sync::PoisonError::into_inner) = consumer.into();
            }
            Err(error) => {
                debug!(error, "announcing again");
                session.announce_again.notify_one();
            }
        }
        tokio::select! {
            () = end.cancelled() => return,
            () = tokio::time::sleep(jitter(Duration::from_millis(50))) => {}
        }
    }
}

/// Stops pulling and lets the work in hand end; returns how many calls were cut off or have no stored result.
async fn drain(session: &Arc<Session>, pullers: &mut JoinSet<()>) -> usize {
    session.health(false, "stopping");
    session.stop.cancel();
    let deadline = tokio::time::Instant::now() + session.config.drain;
    let finish = async |pullers: &mut JoinSet<()>| while pullers.join_next().await.is_some() {};
    let mut cut_off = 0;
    if tokio::time::timeout_at(deadline, finish(pullers)).await.is_err() {
        cut_off = session.held.unfinished();
        warn!(calls = cut_off, "the drain time is over: handlers are cut off");
        session.cut.cancel();
        if tokio::time::timeout(CUT_GRACE, finish(pullers)).await.is_err() {
            pullers.shutdown().await;
        }
    }
    // What the bus stored is safe with it; a confirmation keeps the end of this session from being taken for a loss.
    let confirmed = deadline.max(tokio::time::Instant::now() + CUT_GRACE.min(session.config.drain));
    let emptied = async {
        tokio::select! {
            () = session.held.emptied() => {}
            // Nobody confirms a session that is over.
            () = session.lease.dead().cancelled() => {}
        }
    };
    let _ = tokio::time::timeout_at(confirmed, emptied).await; // the count says it
    session.held.unfinished().max(cut_off)
}

async fn close(session: &Session) {
    let request = CloseRequest { session: session.id.clone() };
    let timeout = session.config.request_timeout;
    match session.ledger.ask::<_, serde_json::Value>(subjects::LEDGER_CLOSE, &request, timeout).await {
        Ok(_) => {}
        Err(error) => debug!(%error, "the session is not closed; it ends with its lease"),
    }
}
