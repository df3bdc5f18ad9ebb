//! Claims, batched by one task: while one request is in flight the next batch collects.

use std::{sync::Arc, time::Duration};

use ditto_contracts::{
    limits::CLAIM_BATCH_MAX,
    wire::{
        ledger::{ClaimAnswer, ClaimItem, ClaimReply, ClaimRequest},
        subjects,
    },
};
use ditto_runtime::fault;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    gate::LEDGER_AWAY,
    ledger::{LedgerError, jitter},
    session::Session,
};

/// One claim that is asked for.
pub(crate) struct Ask {
    pub(crate) item: ClaimItem,
    pub(crate) answer: oneshot::Sender<Claimed>,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Claimed {
    /// The ledger answered.
    Answered(Box<ClaimAnswer>),
    /// No coordinator was there: certainly not claimed.
    Away,
}

/// Asks until the channel is closed or `end`. A claim that may have been granted is repeated with its token until the
/// ledger has answered.
pub(crate) async fn run(session: Arc<Session>, mut asks: mpsc::Receiver<Ask>, end: CancellationToken) {
    let mut batch = Vec::with_capacity(CLAIM_BATCH_MAX);
    loop {
        let received = tokio::select! {
            n = asks.recv_many(&mut batch, CLAIM_BATCH_MAX) => n,
            () = end.cancelled() => 0,
        };
        if received == 0 {
            return;
        }
        tokio::select! {
            () = settle(&session, &mut batch) => {}
            () = end.cancelled() => return,
        }
    }
}

/// Asks for one batch until every claim in it has an answer.
async fn settle(session: &Session, batch: &mut Vec<Ask>) {
    let request =
        ClaimRequest { session: session.id.clone(), items: batch.iter().map(|ask| ask.item.clone()).collect() };
    let mut tried = false;
    loop {
        fault::point("worker_before_claim").await;
        let reply: Result<ClaimReply, LedgerError> =
            session.ledger.ask(subjects::LEDGER_CLAIM, &request, session.config.request_timeout).await;
        let lost = fault::point("worker_after_claim").await.is_drop();
        match reply {
            Ok(reply) if !lost && reply.answers.len() == batch.len() => {
                session.gate.set(LEDGER_AWAY, false);
                for (ask, answer) in batch.drain(..).zip(reply.answers) {
                    session.metrics.claimed(&answer);
                    // Whoever asked may have been cut off at the end of the drain; the session ends with it.
                    let _ = ask.answer.send(Claimed::Answered(Box::new(answer)));
                }
                return;
            }
            Err(LedgerError::Away) if !tried => {
                if session.gate.set(LEDGER_AWAY, true) {
                    warn!("no coordinator answers claims: nothing is pulled until one does");
                }
                session.lease.renew_soon();
                for ask in batch.drain(..) {
                    let _ = ask.answer.send(Claimed::Away); // as above
                }
                return;
            }
            Ok(_) => debug!("the answer to a claim was lost: asking again with the same tokens"),
            Err(error) => {
                debug!(%error, "a claim has no answer yet: asking again with the same tokens");
                // At once after a timeout, which was a pause already.
                if !matches!(error, LedgerError::Maybe(_)) {
                    tokio::time::sleep(jitter(Duration::from_millis(250))).await;
                } else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
        tried = true;
    }
}
