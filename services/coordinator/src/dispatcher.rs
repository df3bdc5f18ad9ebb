//! Publishes jobs, pipelined. Only what a confirmed commit planned comes here; a publish that fails or is never
//! confirmed needs nothing more, because the dispatch sweeper finds the receipt due and publishes it again.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use ditto_bus::{Bus, BusError, Message};
use ditto_contracts::{
    CallUid, RunId, SessionId, limits,
    wire::{Job, JobMode, PayloadRef, subjects},
};
use tokio::{sync::mpsc, task::JoinSet};
use tracing::{debug, warn};

use crate::store::{DueJob, NewReceipt};

/// Most publish batches under way at once.
const BATCHES_MAX: usize = 4;
/// How long a full jobs stream turns submissions away; a publish that is confirmed ends it at once.
const FULL_FOR: Duration = Duration::from_secs(2);
/// Most jobs that wait to be published.
const QUEUE_MAX: usize = 65_536;
/// Most jobs in one publish batch.
const BATCH_MAX: usize = 256;

/// Sends jobs to the publisher task.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    tx: mpsc::Sender<Message>,
    reply: Arc<str>,
    full: Backlog,
}

impl Dispatcher {
    /// Starts the publisher in `tasks`; it ends when every handle is gone.
    pub(crate) fn start(tasks: &mut JoinSet<()>, bus: Arc<dyn Bus>, shard: &SessionId) -> Self {
        let (tx, rx) = mpsc::channel(QUEUE_MAX);
        let full = Backlog::default();
        tasks.spawn(publish(bus, rx, full.clone()));
        Self { tx, reply: subjects::results(shard).into(), full }
    }

    /// Whether the jobs stream takes no more.
    pub(crate) fn backlog(&self) -> Backlog {
        self.full.clone()
    }

    /// Publishes the first dispatch of a receipt that was planned in this process.
    pub(crate) fn planned(&self, run: &RunId, receipt: NewReceipt) {
        let inline = receipt.request.len() <= limits::INLINE_BYTES_MAX;
        let payload = (!inline).then(|| PayloadRef {
            digest: receipt.request_hash,
            size: u32::try_from(receipt.request.len()).unwrap_or(u32::MAX),
        });
        let job = Job {
            bucket: receipt.call.bucket(),
            run: run.clone(),
            class: receipt.policy.class,
            claim: receipt.policy.is_claimed(),
            mode: JobMode::Execute,
            dispatch_no: 1,
            request_hash: receipt.request_hash,
            payload,
            budget_ms: receipt.budget_ms,
            reply: self.reply.to_string(),
            key: None,
            traceparent: receipt.traceparent,
            tracestate: None,
            call: receipt.call,
            node: receipt.node,
        };
        let body = if inline { receipt.request.to_bytes() } else { Bytes::new() };
        self.send(job, receipt.pool.as_ref(), body);
    }

    /// Publishes a job that a sweeper found due.
    pub(crate) fn due(&self, due: DueJob) {
        let job = Job {
            bucket: due.call.bucket(),
            call: due.call,
            run: due.run,
            class: due.policy.class,
            claim: due.policy.is_claimed(),
            node: due.node,
            mode: if due.query { JobMode::Query } else { JobMode::Execute },
            dispatch_no: due.dispatch_no,
            request_hash: due.request_hash,
            payload: due.request_ref,
            budget_ms: due.budget_ms,
            reply: self.reply.to_string(),
            key: due.query.then_some(due.idem_key),
            traceparent: due.traceparent,
            tracestate: None,
        };
        let body = due.request.map(|json| json.to_bytes()).unwrap_or_default();
        self.send(job, due.pool.as_ref(), body);
    }

    /// Never waits: a job that finds no place here is published when the sweeper finds it due.
    fn send(&self, job: Job, pool: Option<&ditto_contracts::Pool>, body: Bytes) {
        let message = Message { subject: subjects::jobs(&job.node, pool), headers: job.to_headers(), body };
        if self.tx.try_send(message).is_err() {
            debug!(call = %job.call, "publisher is full or has ended; the job is published when it is found due");
        }
    }
}

/// Remembers that the jobs stream was full a moment ago: new work is turned away until it takes jobs again.
#[derive(Clone, Default)]
pub(crate) struct Backlog {
    full_at: Arc<Mutex<Option<Instant>>>,
}

impl Backlog {
    fn saw(&self, full: bool) {
        let mut at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        *at = full.then(Instant::now);
    }

    pub(crate) fn is_full(&self) -> bool {
        let at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.elapsed() < FULL_FOR)
    }
}

async fn publish(bus: Arc<dyn Bus>, mut rx: mpsc::Receiver<Message>, backlog: Backlog) {
    let mut batches: JoinSet<()> = JoinSet::new();
    loop {
        let mut batch = Vec::new();
        if rx.recv_many(&mut batch, BATCH_MAX).await == 0 {
            break;
        }
        while batches.len() >= BATCHES_MAX {
            batches.join_next().await;
        }
        while batches.try_join_next().is_some() {}
        let (bus, backlog) = (bus.clone(), backlog.clone());
        batches.spawn(async move {
            if ditto_runtime::fault::point("before_publish").await == ditto_runtime::fault::FaultAction::Drop {
                return;
            }
            let count = batch.len();
            let failures: Vec<BusError> = bus.publish(batch).await.into_iter().filter_map(Result::err).collect();
            backlog.saw(failures.iter().any(|error| matches!(error, BusError::Full)));
            crate::metrics::jobs_published(count - failures.len(), failures.len());
            if let Some(error) = failures.first() {
                warn!(%error, failed = failures.len(), count, "jobs were not confirmed; they are published again when due");
            }
            ditto_runtime::fault::point("after_publish").await;
        });
    }
    while batches.join_next().await.is_some() {}
}

/// A call that a doorbell names, for [`subjects::wake`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WakeNotice {
    /// Runs with an unread bell.
    pub(crate) runs: Vec<RunId>,
    /// Calls that changed, for logs.
    #[serde(default)]
    pub(crate) calls: Vec<CallUid>,
}
