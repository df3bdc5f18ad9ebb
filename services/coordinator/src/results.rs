//! Takes results from this coordinator's shard of the results stream and hands them to the driver in batches.

use std::{sync::Arc, time::Duration};

use ditto_bus::{Ack, BusError, ConsumerSpec, Delivery};
use ditto_contracts::{
    Json, SessionId, Verdict, WireError, codes,
    wire::{ResultBody, ResultMessage, subjects},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    core::Core,
    driver::{DriverSender, Incoming, Msg, ring},
    store::{QueryAnswer, StoreResult},
};

/// Messages asked for at once.
const PULL_MAX: usize = 512;

/// Name of the consumer of a coordinator's shard.
pub(crate) fn consumer_name(session: &SessionId) -> String {
    format!("results_{session}")
}

/// The consumer of one coordinator's shard.
pub(crate) fn consumer(core: &Core, session: &SessionId) -> ConsumerSpec {
    ConsumerSpec {
        stream: subjects::RESULTS_STREAM,
        name: consumer_name(session),
        filter_subjects: vec![subjects::results(session)],
        ack_wait: Duration::from_millis(core.config.ack_wait_ms),
        max_deliver: u32::MAX >> 1,
        max_ack_pending: 65_536,
    }
}

/// Takes what lies in the shard of a coordinator that is gone. With `anew` its consumer is replaced first, so that what
/// it had taken and not acknowledged is here at once and not after `ack_wait`.
pub(crate) async fn drain(core: &Core, driver: &DriverSender, session: &SessionId, anew: bool) -> Result<(), BusError> {
    if anew {
        core.bus.delete_consumer(subjects::RESULTS_STREAM, &consumer_name(session)).await?;
    }
    core.bus.ensure_consumer(&consumer(core, session)).await?;
    let mut pull =
        core.bus.pull(subjects::RESULTS_STREAM, &consumer_name(session), PULL_MAX, Duration::from_millis(200)).await?;
    while let Some(first) = pull.next().await? {
        let mut batch = vec![first];
        while let Some(more) = pull.try_next() {
            batch.push(more);
        }
        take(core, driver, batch).await;
    }
    Ok(())
}

/// Pulls until told to stop.
pub(crate) async fn run(core: Core, driver: DriverSender, stop: CancellationToken) {
    let name = consumer_name(&core.session);
    let expires = Duration::from_secs(30);
    while !stop.is_cancelled() {
        let opened = tokio::select! {
            opened = core.bus.pull(subjects::RESULTS_STREAM, &name, PULL_MAX, expires) => opened,
            () = stop.cancelled() => return,
        };
        let error = match opened {
            Ok(mut pull) => loop {
                let next = tokio::select! {
                    next = pull.next() => next,
                    () = stop.cancelled() => return,
                };
                match next {
                    Ok(Some(first)) => {
                        let mut batch = vec![first];
                        while let Some(more) = pull.try_next() {
                            batch.push(more);
                        }
                        take(&core, &driver, batch).await;
                    }
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            },
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            if !matches!(error, BusError::Closed) {
                warn!(%error, "results cannot be pulled now");
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(250)) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

async fn take(core: &Core, driver: &DriverSender, batch: Vec<Delivery>) {
    if ditto_runtime::fault::point("before_ingest").await == ditto_runtime::fault::FaultAction::Drop {
        return; // not acknowledged: they come again
    }
    crate::metrics::results_received(batch.len());
    let mut incoming = Vec::with_capacity(batch.len());
    let mut answers = Vec::new();
    for delivery in batch {
        match ResultMessage::parse(&delivery.message.headers, delivery.message.body.clone()) {
            Ok(result) if result.query => answers.push((result, delivery.acker)),
            Ok(result) => match has_output(core, &result).await {
                Ok(true) => incoming.push(Incoming { result, ack: delivery.acker }),
                Ok(false) => {
                    if let Some(item) = unreadable(core, delivery, "the output it names is not stored").await {
                        incoming.push(item);
                    }
                }
                // Not acknowledged: it comes again.
                Err(error) => warn!(call = %result.call, %error, "the output of a result cannot be looked for now"),
            },
            Err(error) => {
                if let Some(item) = unreadable(core, delivery, &error.to_string()).await {
                    incoming.push(item);
                }
            }
        }
    }
    let _ = driver.send(Msg::Results(incoming)); // not acknowledged when the driver has ended: they come again
    if !answers.is_empty() {
        reconcile(core, driver, answers).await;
    }
}

/// Whether an output that is kept as a payload is there. Settled without it, the run could never be read again.
async fn has_output(core: &Core, result: &ResultMessage) -> StoreResult<bool> {
    let Some(reference) = &result.body.output_ref else { return Ok(true) };
    let Ok(payload) = reference.parse() else { return Ok(false) };
    Ok(core.store.payload_get(result.bucket, &payload).await?.is_some())
}

/// What backends said when they were asked by key.
async fn reconcile(core: &Core, driver: &DriverSender, answers: Vec<(ResultMessage, Arc<dyn Ack>)>) {
    let (mut items, mut acks) = (Vec::with_capacity(answers.len()), Vec::with_capacity(answers.len()));
    for (mut result, ack) in answers {
        match whole(core, &mut result).await {
            Ok(()) => {}
            // Not acknowledged: it comes again.
            Err(error) => {
                warn!(call = %result.call, %error, "the output of a query's answer cannot be read now");
                continue;
            }
        }
        items.push((result.call.clone(), query_answer(result.body)));
        acks.push(ack);
    }
    match core.store.reconcile(&items).await {
        Ok(changed) => {
            ring(core, driver, changed.into_iter().flatten().map(|c| (c.run, c.owner)).collect()).await;
            for ack in acks {
                if let Err(error) = ack.ack().await {
                    debug!(%error, "ack of a query's answer was not sent; it comes again and changes nothing");
                }
            }
        }
        // Not acknowledged: they come again.
        Err(error) => warn!(%error, "answers of queries are not recorded now"),
    }
}

/// Puts an output that is kept as a payload back into the answer. One that is not there makes the answer none: the
/// backend is asked again.
async fn whole(core: &Core, result: &mut ResultMessage) -> StoreResult<()> {
    let Some(reference) = result.body.output_ref.take() else { return Ok(()) };
    let stored = match reference.parse() {
        Ok(payload) => core.store.payload_get(result.bucket, &payload).await?,
        Err(_) => None,
    };
    match stored.and_then(|bytes| Json::parse(bytes).ok()) {
        Some(output) => result.body.output = Some(output),
        None => {
            warn!(call = %result.call, "the answer to a query names an output that is not there");
            result.body.verdict = Verdict::Unknown;
            result.body.error = Some(WireError::new(
                ditto_contracts::ErrorClass::Unknown,
                codes::QUERY_UNANSWERED,
                "the output is missing",
            ));
        }
    }
    Ok(())
}

/// Reads the body of a query's result (receipts contract §16).
fn query_answer(body: ResultBody) -> QueryAnswer {
    let code = body.error.as_ref().map(|error| error.code.as_str());
    match (body.verdict, code) {
        (Verdict::Succeeded, _) => QueryAnswer::Applied { output: body.output },
        (Verdict::Unknown, Some(codes::KEY_ABSENT)) => QueryAnswer::Absent,
        (Verdict::Unknown, Some(codes::KEY_IN_PROGRESS)) => QueryAnswer::InProgress,
        (Verdict::Unknown, Some(codes::KEY_CONFLICT)) => QueryAnswer::Conflict,
        (Verdict::Failed, _) => match body.error {
            Some(error) => QueryAnswer::Refused { output: body.output, error },
            None => QueryAnswer::Unanswered,
        },
        (Verdict::Unknown | Verdict::Cancelled, _) => QueryAnswer::Unanswered,
    }
}

/// A result that nobody can read still says that its attempt is over. With readable headers it settles as
/// `RESPONSE_INVALID` (unknown for a claimed call), and what came is kept as evidence; without, it is only counted.
async fn unreadable(core: &Core, delivery: Delivery, reason: &str) -> Option<Incoming> {
    let placeholder = ResultBody {
        verdict: Verdict::Unknown,
        output: None,
        output_ref: None,
        error: Some(WireError::new(
            ditto_contracts::ErrorClass::Unknown,
            codes::RESPONSE_INVALID,
            "the worker's result is unreadable",
        )),
    };
    let parsed = ResultMessage::parse(&delivery.message.headers, placeholder.to_json().to_bytes());
    let Ok(mut result) = parsed else {
        warn!(reason, subject = %delivery.message.subject, "result without readable headers is dropped");
        if let Err(error) = delivery.acker.term().await {
            debug!(%error, "unreadable result is not terminated");
        }
        return None;
    };
    warn!(call = %result.call, reason, "result is unreadable");
    let shown: String = String::from_utf8_lossy(&delivery.message.body).chars().take(4096).collect();
    let detail = Json::from_serialize(&serde_json::json!({ "reason": reason, "body": shown })).unwrap_or_default();
    if let Err(error) = core.store.attempt_log(&result.call, result.fence, &detail).await {
        debug!(call = %result.call, %error, "evidence is not logged");
    }
    if result.fence == 0 {
        result.body.verdict = Verdict::Failed;
    }
    Some(Incoming { result, ack: Arc::clone(&delivery.acker) })
}
