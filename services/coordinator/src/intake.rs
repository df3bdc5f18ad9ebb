//! Takes submissions, whatever way they come, and makes runs of them: one commit stores the run, its first checkpoint
//! and the receipts of its first calls. The answer is given after that commit.

use std::{sync::Arc, time::Duration};

use ditto_bus::{Delivery, Message, Received};
use ditto_contracts::{
    ErrorClass, Json, LoopName, Namespace, RunId, SubmitKey, WireError, codes, limits,
    wire::{Headers, SubmitBody, SubmitKind, SubmitReply, names, subjects},
};
use ditto_graph::{RunFacts, RunMachine};
use ditto_runtime::telemetry;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Semaphore, oneshot},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, warn};

use crate::{
    core::{Core, RunChanged},
    dispatcher::Backlog,
    driver::{DriverSender, Live, Msg, Planned, StepInput, shared},
    lanes::{Lanes, Verb},
    metrics,
    store::{NewRun, Store, StoreError, StoreResult, Submitted},
};

/// Submissions worked on at once per way in.
const CONCURRENT_MAX: usize = 1_024;

/// What somebody wants to run.
#[derive(Debug, Clone)]
pub struct Submission {
    /// Tenant.
    pub namespace: Namespace,
    /// Node, graph or loop.
    pub kind: SubmitKind,
    /// Definition name or node type.
    pub name: LoopName,
    /// Key, input, revision.
    pub body: SubmitBody,
    /// W3C trace context of the caller.
    pub traceparent: Option<String>,
}

/// The one way in.
#[derive(Clone)]
pub(crate) struct Intake {
    core: Core,
    driver: DriverSender,
    lanes: Lanes<SubmitVerb>,
    backlog: Backlog,
}

impl Intake {
    pub(crate) fn new(core: Core, driver: DriverSender, lanes: Lanes<SubmitVerb>, backlog: Backlog) -> Self {
        Self { core, driver, lanes, backlog }
    }

    /// Stores a run and starts it. Safe to repeat with the same key.
    pub(crate) async fn submit(&self, submission: Submission) -> Result<SubmitReply, WireError> {
        let span = if telemetry::enabled() {
            let span = tracing::info_span!("run.submit", name = %submission.name, run_id = tracing::field::Empty);
            telemetry::set_parent(&span, submission.traceparent.as_deref(), None);
            span
        } else {
            tracing::Span::none()
        };
        let answer = self.store(submission, &span).instrument(span.clone()).await;
        metrics::submitted(match &answer {
            Ok(SubmitReply { duplicate: true, .. }) => "duplicate",
            Ok(_) => "created",
            Err(_) => "refused",
        });
        answer
    }

    async fn store(&self, submission: Submission, span: &tracing::Span) -> Result<SubmitReply, WireError> {
        let Submission { namespace, kind, name, body, traceparent } = submission;
        let traceparent = if span.is_none() { traceparent } else { telemetry::inject(span).0 };
        if self.backlog.is_full() {
            let error =
                WireError::new(ErrorClass::Unavailable, "BACKLOG_FULL", "the fleet has more work than it may queue");
            return Err(error.retryable());
        }
        if body.input.len() > limits::VALUE_BYTES_MAX {
            return Err(WireError::invalid(
                codes::VALUE_TOO_LARGE,
                format!("input: {} bytes; at most {}", body.input.len(), limits::VALUE_BYTES_MAX),
            ));
        }
        let core = &self.core;
        let plan = core.plans.for_submit(&*core.store, &namespace, kind, &name, body.revision.as_ref()).await?;
        plan.check_input(&body.input).map_err(|problems| WireError::invalid(codes::INVALID_INPUT, join(&problems)))?;
        let now_ms = core.clock.now_ms();
        let run = RunId::generate(now_ms);
        span.record("run_id", run.as_str());
        let facts = RunFacts {
            run: run.clone(),
            namespace: namespace.clone(),
            name: plan.name().clone(),
            revision: plan.revision().clone(),
            input: body.input.clone(),
        };
        let (machine, decision) = RunMachine::begin(plan.clone(), &facts, core.config.run_options(), now_ms)?;
        let deadline_ms = plan.deadline_ms();
        let step = StepInput {
            run: &run,
            machine: &machine,
            decision: &decision,
            catalogue: &core.catalogue,
            unserved_too: false,
            cancelling: false,
            bell: 0,
            deadline_ms: deadline_ms.map(|ms| now_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))),
            deadline_told: false,
            now_ms,
            traceparent: traceparent.as_deref(),
        }
        .plan();
        let first = match step {
            Planned::Step(step) => Some(*step),
            // Stored as it is; whoever takes it up decides once workers are there.
            Planned::Unserved(wanted) => {
                debug!(%run, ?wanted, "no live worker serves this yet");
                None
            }
            Planned::Refused(error) => return Err(error),
        };
        let new = NewRun {
            run: run.clone(),
            namespace: namespace.clone(),
            body_hash: body_hash(kind, &name, &body),
            key: body.key,
            name: plan.name().clone(),
            revision: plan.revision().clone(),
            input: body.input,
            deadline_ms,
            traceparent: traceparent.clone(),
            first,
        };
        let (tx, rx) = oneshot::channel();
        if !self.lanes.send(new, tx).await {
            return Err(stopping());
        }
        let (new, answer) = rx.await.map_err(|_| stopping())?;
        match answer? {
            Submitted::Created => {}
            Submitted::Duplicate { run } => return Ok(SubmitReply { run_id: run, duplicate: true }),
            Submitted::KeyReused { run } => {
                return Err(WireError::new(
                    ErrorClass::Conflict,
                    codes::KEY_REUSED,
                    format!("key: was used for run {run} with another body"),
                ));
            }
        }
        let Some(step) = new.first else {
            let _ = self.driver.send(Msg::TakeUp(run.clone())); // else another coordinator takes it up
            return Ok(SubmitReply { run_id: run, duplicate: false });
        };
        metrics::step_committed();
        if step.status.is_ended() {
            metrics::ended(step.status);
        }
        let changed = RunChanged { run: run.clone(), version: 1, status: step.status, ending: shared(&step.ending) };
        let _ = core.news.send(changed); // nobody may be watching
        if !step.status.is_ended() {
            let live = Live {
                run: run.clone(),
                machine,
                status: step.status,
                epoch: 1,
                version: 1,
                bell: 0,
                signal_seen: 0,
                wake_ms: step.wake_ms,
                deadline_ms: deadline_ms.map(|ms| now_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX))),
                deadline_told: false,
                cancel_told: false,
                traceparent,
                open: step.receipts.iter().map(|r| (r.call.clone(), Some(r.policy.class))).collect(),
                events: Vec::new(),
                results: Vec::new(),
                committing: false,
                reading: None,
                force: false,
                hold: None,
            };
            let _ = self.driver.send(Msg::Adopt(Box::new(live), step.receipts)); // else the next owner dispatches them
        }
        Ok(SubmitReply { run_id: run, duplicate: false })
    }

    /// Serves request–reply submissions until told to stop.
    pub(crate) async fn serve_requests(self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONCURRENT_MAX));
        let mut tasks = JoinSet::new();
        while !stop.is_cancelled() {
            let subscribed =
                self.core.bus.subscribe(subjects::SUBMIT_ALL, Some(subjects::COORDINATORS), 4 * CONCURRENT_MAX).await;
            let mut requests = match subscribed {
                Ok(requests) => requests,
                Err(error) => {
                    warn!(%error, "submissions over the bus cannot be served now");
                    tokio::select! {
                        () = tokio::time::sleep(Duration::from_millis(500)) => continue,
                        () = stop.cancelled() => break,
                    }
                }
            };
            loop {
                let request = tokio::select! {
                    request = requests.next() => request,
                    () = stop.cancelled() => break,
                };
                let Some(request) = request else { break };
                let Ok(permit) = permits.clone().acquire_owned().await else { return };
                while tasks.try_join_next().is_some() {}
                let intake = self.clone();
                tasks.spawn(async move {
                    intake.answer(request).await;
                    drop(permit);
                });
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn answer(&self, request: Received) {
        let answer = match read(&request.message, None) {
            Ok(submission) => self.submit(submission).await,
            Err(error) => Err(error),
        };
        let Some(reply) = request.reply else {
            if let Err(error) = answer {
                warn!(subject = %request.message.subject, %error, "submission without reply subject was turned away");
            }
            return;
        };
        let (headers, body) = match answer {
            Ok(reply) => (Headers::new(), serde_json::to_vec(&reply)),
            Err(error) => {
                let mut headers = Headers::new();
                headers.push(names::ERROR, error.code.as_str());
                (headers, serde_json::to_vec(&serde_json::json!({ "error": error })))
            }
        };
        if let Err(error) = self.core.bus.respond(&reply, headers, body.unwrap_or_default().into()).await {
            debug!(%error, "answer to a submission was not sent");
        }
    }

    /// Takes store-and-forward submissions until told to stop.
    pub(crate) async fn serve_inbox(self, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        while !stop.is_cancelled() {
            let free = CONCURRENT_MAX / 4;
            let opened = tokio::select! {
                opened = self.core.bus.pull(subjects::SUBMIT_STREAM, "coordinators", free, Duration::from_secs(30)) => opened,
                () = stop.cancelled() => break,
            };
            match opened {
                Ok(mut pull) => loop {
                    let next = tokio::select! {
                        next = pull.next() => next,
                        () = stop.cancelled() => break,
                    };
                    let Ok(Some(delivery)) = next else { break };
                    while tasks.len() >= free {
                        tasks.join_next().await;
                    }
                    let intake = self.clone();
                    tasks.spawn(async move { intake.take(delivery).await });
                },
                Err(error) => {
                    debug!(%error, "inbox cannot be pulled now");
                    tokio::select! {
                        () = tokio::time::sleep(Duration::from_millis(500)) => {}
                        () = stop.cancelled() => break,
                    }
                }
            }
            while tasks.try_join_next().is_some() {}
        }
        while tasks.join_next().await.is_some() {}
    }

    async fn take(&self, delivery: Delivery) {
        let answer = match read(&delivery.message, Some(delivery.sequence)) {
            Ok(submission) => self.submit(submission).await,
            Err(error) => Err(error),
        };
        let done = match answer {
            Ok(_) => delivery.acker.ack().await,
            Err(error) if error.retryable => delivery.acker.nak(Duration::from_secs(2)).await,
            Err(error) => {
                warn!(subject = %delivery.message.subject, %error, "stored submission was turned away");
                delivery.acker.term().await
            }
        };
        if let Err(error) = done {
            debug!(%error, "stored submission was not answered; it comes again and its key is known");
        }
    }
}

/// Reads a submission from a message. The body is the input itself when a key comes in the header, else a
/// [`SubmitBody`].
fn read(message: &Message, stored: Option<u64>) -> Result<Submission, WireError> {
    let (namespace, kind, name) = subjects::parse_submit(&message.subject).ok_or_else(|| {
        WireError::invalid(
            codes::INVALID_INPUT,
            "subject: expected ditto.submit.<namespace>.<node|graph|loop>.<name> with names of A-Z a-z 0-9 _ -",
        )
    })?;
    if message.body.len() > limits::VALUE_BYTES_MAX + 4096 {
        return Err(WireError::invalid(codes::VALUE_TOO_LARGE, format!("body: {} bytes", message.body.len())));
    }
    let json = if message.body.is_empty() { Json::empty_object() } else { parse(message.body.clone())? };
    let mut body: SubmitBody =
        json.to().map_err(|error| WireError::invalid(codes::INVALID_INPUT, format!("body: {error}")))?;
    if let Some(key) = message.headers.get(names::SUBMIT_KEY) {
        let key = SubmitKey::new(key)
            .map_err(|error| WireError::invalid(codes::INVALID_INPUT, format!("{}: {error}", names::SUBMIT_KEY)))?;
        body.key = Some(key);
    }
    if stored.is_some() && body.key.is_none() {
        return Err(WireError::invalid(
            codes::INVALID_INPUT,
            "key: required for stored submissions, so that a redelivery is the same run",
        ));
    }
    Ok(Submission {
        namespace,
        kind,
        name,
        body,
        traceparent: message.headers.get(names::TRACEPARENT).map(str::to_owned),
    })
}

fn parse(body: bytes::Bytes) -> Result<Json, WireError> {
    // The input is as deep as a value may be; the message around it adds a level.
    Json::parse_around(body, 1).map_err(|error| WireError::invalid(codes::INVALID_INPUT, format!("body: {error}")))
}

/// What the same key must come with again.
fn body_hash(kind: SubmitKind, name: &LoopName, body: &SubmitBody) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [kind.as_str().as_bytes(), name.as_str().as_bytes()] {
        hash.update(part);
        hash.update([0]);
    }
    hash.update(body.revision.as_ref().map(|r| r.as_str().as_bytes()).unwrap_or_default());
    hash.update([0]);
    hash.update(body.input.as_bytes());
    hash.finalize().into()
}

/// Many problems in one message of bounded length.
fn join(problems: &[String]) -> String {
    let mut text = String::new();
    for problem in problems {
        if text.len() + problem.len() > 480 {
            text.push_str("; …");
            break;
        }
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.extend(problem.chars().take(400));
    }
    text
}

fn stopping() -> WireError {
    WireError::new(ErrorClass::Unavailable, "STOPPING", "this coordinator is stopping; submit again").retryable()
}

/// T1 for new runs.
pub(crate) struct SubmitVerb {
    pub(crate) session: ditto_contracts::SessionId,
}

impl Verb for SubmitVerb {
    type Item = NewRun;
    type Answer = Submitted;
    type Context = oneshot::Sender<(NewRun, StoreResult<Submitted>)>;
    type Key = (Namespace, String);

    const NAME: &'static str = "submit";

    fn key(item: &NewRun) -> Self::Key {
        let own = item.key.as_ref().map_or(item.run.as_str(), SubmitKey::as_str);
        (item.namespace.clone(), own.to_owned())
    }

    async fn run(&self, store: &dyn Store, items: &[NewRun]) -> StoreResult<Vec<Submitted>> {
        use ditto_runtime::fault::{FaultAction, point};
        if point("before_submit").await == FaultAction::Drop {
            return Err(StoreError::Unavailable("fault before the commit".into()));
        }
        let answers = store.submit(&self.session, items).await?;
        if point("after_submit").await == FaultAction::Drop {
            return Err(StoreError::Unavailable("fault after the commit".into()));
        }
        Ok(answers)
    }

    async fn deliver(&self, answers: Vec<(NewRun, Self::Context, StoreResult<Submitted>)>) {
        for (run, waiter, answer) in answers {
            let created = matches!(answer, Ok(Submitted::Created)) && run.first.is_some();
            let id = run.run.clone();
            if waiter.send((run, answer)).is_err() && created {
                // The caller went away; the run is durable and owned by this session, which does not drive it.
                warn!(run = %id, "submitter went away before the answer");
            }
        }
    }
}
