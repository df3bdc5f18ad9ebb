//! Results: published in batches by one task, kept until confirmed, sent again when nobody confirms.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ditto_bus::{Ack, Message};
use ditto_contracts::wire::ResultMessage;
use ditto_runtime::fault;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{ledger::jitter, session::Session};

/// Most results in one publish.
const BATCH_MAX: usize = 128;

/// A result as it is sent, again and again if need be.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Identity; its body's output is left out, `body` has it.
    pub(crate) message: ResultMessage,
    pub(crate) body: Bytes,
    pub(crate) reply: String,
    pub(crate) dispatch_no: u32,
}

impl Sent {
    /// What keeping it costs, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.body.len() + 512
    }

    fn to_message(&self, attempt_no: u32) -> Message {
        let headers = ResultMessage { attempt_no, ..self.message.clone() }.to_headers();
        Message { subject: self.reply.clone(), headers, body: self.body.clone() }
    }
}

/// A result on its way to the bus, with what is given back once the bus has it.
pub(crate) struct Outgoing {
    pub(crate) sent: Arc<Sent>,
    pub(crate) attempt_no: u32,
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// The job to acknowledge afterwards.
    pub(crate) ack: Option<Arc<dyn Ack>>,
}

/// Publishes until the channel is closed or `end`.
pub(crate) async fn run(session: Arc<Session>, mut queue: mpsc::Receiver<Outgoing>, end: CancellationToken) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut waiting: Vec<(Instant, Outgoing)> = Vec::new();
    let mut pause = Duration::from_millis(50);
    loop {
        let due = waiting.iter().map(|(at, _)| *at).min();
        tokio::select! {
            () = end.cancelled() => return,
            n = queue.recv_many(&mut batch, BATCH_MAX) => if n == 0 { return },
            () = sleep_until(due) => {
                let now = Instant::now();
                batch.extend(waiting.extract_if(.., |(at, _)| *at <= now).map(|(_, outgoing)| outgoing).take(BATCH_MAX));
            }
        }
        if batch.is_empty() {
            continue;
        }
        let failed = tokio::select! {
            () = end.cancelled() => return,
            failed = publish(&session, &mut batch) => failed,
        };
        if failed.is_empty() {
            pause = Duration::from_millis(50);
        } else {
            pause = (pause * 2).min(Duration::from_secs(5));
            let at = Instant::now() + jitter(pause);
            waiting.extend(failed.into_iter().map(|outgoing| (at, outgoing)));
        }
    }
}

/// Publishes a batch; returns what the bus does not certainly have.
async fn publish(session: &Session, batch: &mut Vec<Outgoing>) -> Vec<Outgoing> {
    let mut outgoing = Vec::with_capacity(batch.len());
    let mut lost = Vec::new();
    for one in batch.drain(..) {
        // A dropped result behaves as one that the bus stored and then lost.
        if fault::point("worker_before_result").await.is_drop() { lost.push(one) } else { outgoing.push(one) }
    }
    let messages = outgoing.iter().map(|one| one.sent.to_message(one.attempt_no)).collect();
    let answers = session.bus.publish(messages).await;
    let mut failed = Vec::new();
    let mut answers = answers.into_iter();
    let mut acks = Vec::new();
    for mut one in outgoing {
        match answers.next() {
            Some(Ok(_)) => acks.extend(done(session, one)),
            answer => {
                if let Some(Err(error)) = answer {
                    warn!(call = %one.sent.message.call, %error, "a result is not stored yet: sending it again");
                }
                one.attempt_no += 1;
                failed.push(one);
            }
        }
    }
    for one in lost {
        acks.extend(done(session, one));
    }
    fault::point("worker_after_result").await;
    for ack in acks {
        fault::point("worker_before_ack").await;
        if let Err(error) = ack.ack().await {
            debug!(%error, "a job is not acknowledged; it comes again and is dropped");
        }
    }
    failed
}

/// The bus has it: gives the permit back.
fn done(session: &Session, one: Outgoing) -> Option<Arc<dyn Ack>> {
    // Answers to queries are not held: the ledger asks again.
    if !one.sent.message.query {
        session.held.stored(&one.sent);
    }
    drop(one.permit);
    one.ack
}

/// Sends results again that nobody confirmed in time, until `end`.
pub(crate) async fn resend(session: Arc<Session>, queue: mpsc::Sender<Outgoing>, end: CancellationToken) {
    loop {
        // In line before looking, so that a change in between is not missed.
        let mut changed = std::pin::pin!(session.held.changed.notified());
        changed.as_mut().enable();
        let (due, next) = session.held.take_due();
        for (sent, attempt_no) in due {
            debug!(call = %sent.message.call, attempt_no, "a result is unconfirmed: sending it again");
            session.metrics.resent();
            let outgoing = Outgoing { sent, attempt_no, permit: None, ack: None };
            tokio::select! {
                sent = queue.send(outgoing) => if sent.is_err() { return },
                () = end.cancelled() => return,
            }
        }
        tokio::select! {
            () = end.cancelled() => return,
            () = changed => {}
            () = sleep_until(next) => {}
        }
    }
}

/// Until then; for ever without a time.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
