//! One job, from its delivery to its result.

use std::{
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use ditto_bus::{Ack, Delivery};
use ditto_contracts::{
    CallPolicy, ClaimToken, EffectClass, ErrorClass, Json, Verdict, WireError, check_public_code, check_public_message,
    codes, limits,
    wire::{
        Job, JobMode, ResultBody, ResultMessage,
        ledger::{ClaimAnswer, ClaimItem},
    },
};
use ditto_runtime::{fault, telemetry};
use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span, debug, error, info_span, warn};

use crate::{
    DynHandler, Ending, NodeContext, NodeError, QueryAnswer, Settlement, Standing,
    claims::{Ask, Claimed},
    held::Begin,
    ledger::jitter,
    payload::{self, PayloadError},
    pull::nak,
    releases::{self, Claim},
    results::{Outgoing, Sent},
    session::Session,
    verdict_for,
};

/// Least delay of a job put back because no coordinator answers; up to five times as long.
const AWAY_DELAY: Duration = Duration::from_secs(2);
/// Delay of a job whose request cannot be read now.
const UNREADABLE_DELAY: Duration = Duration::from_secs(2);
/// Delay of a job whose earlier answer is not confirmed yet.
const LATER_DELAY: Duration = Duration::from_millis(500);
/// Why a claim of a session that was declared dead is refused.
const SESSION_DEAD: &str = "SESSION_DEAD";
/// First delay of an attempt that is given back; doubled with every attempt.
const RELEASE_DELAY: Duration = Duration::from_millis(500);
/// Longest such delay.
const RELEASE_DELAY_MAX: Duration = Duration::from_secs(60);

/// Performs a job. The permit is given back when the bus has stored its result, or when nothing is to be sent.
pub(crate) async fn run(session: Arc<Session>, delivery: Delivery, permit: OwnedSemaphorePermit) {
    let job = match Job::from_headers(&delivery.message.headers) {
        Ok(job) => job,
        Err(reason) => {
            error!(sequence = delivery.sequence, %reason, "a job does not follow the wire contract and is not executed");
            session.metrics.job(None, "unreadable");
            return term(&delivery).await;
        }
    };
    let Some(handler) = session.parts.handlers.get(&job.node).cloned() else {
        warn!(call = %job.call, node = %job.node, "a job for a node that is not served here goes back");
        session.metrics.job(None, "not_served");
        return nak(&delivery, session.config.not_served_delay).await;
    };
    match job.mode {
        JobMode::Execute => execute(&session, job, handler, delivery, permit).await,
        JobMode::Query => query(&session, job, handler, delivery, permit).await,
    }
}

/// Why the request of a job cannot be used.
enum NoRequest {
    /// It is not what the job names.
    Altered(String),
    /// It cannot be had now.
    Unavailable(String),
}

async fn read_request(session: &Session, job: &Job, delivery: &Delivery) -> Result<Json, NoRequest> {
    let body = match job.payload {
        None => delivery.message.body.clone(),
        Some(payload) => payload::fetch(session, job.bucket, payload).await.map_err(|error| match error {
            PayloadError::Missing | PayloadError::Unavailable(_) => NoRequest::Unavailable(error.to_string()),
            PayloadError::Altered | PayloadError::TooLarge(_) => NoRequest::Altered(error.to_string()),
        })?,
    };
    if !job.matches(&body) {
        return Err(NoRequest::Altered("the request differs from its hash".into()));
    }
    Json::parse(body).map_err(|error| NoRequest::Altered(error.to_string()))
}

/// The request and the policy of this worker for it; `None` when the job was answered already.
async fn prepare(
    session: &Session,
    job: &Job,
    handler: &dyn DynHandler,
    delivery: &Delivery,
) -> Option<(Json, CallPolicy)> {
    let request = match read_request(session, job, delivery).await {
        Ok(request) => request,
        Err(NoRequest::Altered(reason)) => {
            error!(call = %job.call, reason, "a job was altered and is not executed");
            session.metrics.job(Some(&job.node), "altered");
            term(delivery).await;
            return None;
        }
        Err(NoRequest::Unavailable(reason)) => {
            warn!(call = %job.call, reason, "the request of a job cannot be read now");
            session.metrics.job(Some(&job.node), "request_unavailable");
            nak(delivery, jitter(UNREADABLE_DELAY)).await;
            return None;
        }
    };
    match handler.policy_of(&request) {
        Some(policy) => Some((request, policy)),
        None => {
            warn!(call = %job.call, node = %job.node, "a job for something that is not served here goes back");
            session.metrics.job(Some(&job.node), "not_served");
            nak(delivery, session.config.not_served_delay).await;
            None
        }
    }
}

/// The right to start.
struct Attempt {
    claim: Option<Claim>,
    policy: CallPolicy,
    key: String,
    earlier_unresolved: u32,
    budget_ms: Option<u64>,
}

impl Attempt {
    fn fence(&self) -> u32 {
        self.claim.as_ref().map_or(0, |claim| claim.fence)
    }
}

async fn execute(
    session: &Arc<Session>,
    job: Job,
    handler: Arc<dyn DynHandler>,
    delivery: Delivery,
    permit: OwnedSemaphorePermit,
) {
    let cancel = match session.held.begin(&job.call, job.bucket, job.dispatch_no) {
        Begin::Started(cancel) => cancel,
        Begin::InHand => {
            debug!(call = %job.call, "a job for a call that is in hand is dropped");
            session.metrics.job(Some(&job.node), "duplicate");
            return ack(&delivery.acker).await;
        }
        Begin::Later => {
            session.metrics.job(Some(&job.node), "later");
            return nak(&delivery, LATER_DELAY).await;
        }
    };
    let Some((request, own)) = prepare(session, &job, handler.as_ref(), &delivery).await else {
        return session.held.drop_call(&job.call);
    };
    // Skipped only when the job and this worker's own registration both say so; the stricter wins.
    let unclaimed = !job.claim && job.class == EffectClass::ReadOnly && !own.is_claimed();
    let attempt = if unclaimed {
        let key = format!("ditto:{}", job.call);
        Attempt { claim: None, policy: own, key, earlier_unresolved: 0, budget_ms: job.budget_ms }
    } else {
        match claim(session, &job, &delivery).await {
            Some(attempt) => attempt,
            None => return,
        }
    };
    let started = begin(session, &attempt, &cancel).await;
    let outcome = if started {
        fault::point("worker_before_effect").await;
        let outcome = perform(session, &job, handler.as_ref(), &request, &attempt, &delivery, cancel.clone()).await;
        fault::point("worker_after_effect").await;
        outcome
    } else {
        let error = WireError::new(ErrorClass::Cancelled, codes::CANCELLED, "stopped before it was started");
        Outcome { ending: Ending::NeverStarted, output: None, error: Some(error), delay: None }
    };
    settle(session, job, attempt, outcome, delivery, permit, cancel.is_cancelled()).await;
}

/// Claims the call; `None` when the job was answered and there is nothing to do here.
async fn claim(session: &Session, job: &Job, delivery: &Delivery) -> Option<Attempt> {
    let cut_off = async {
        tokio::select! {
            () = session.cut.cancelled() => {}
            () = session.lease.dead().cancelled() => {}
        }
    };
    tokio::select! {
        biased;
        ready = session.lease.ready() => if ready.is_err() {
            session.held.drop_call(&job.call);
            nak(delivery, Duration::ZERO).await;
            return None;
        },
        () = session.cut.cancelled() => {
            session.held.drop_call(&job.call);
            nak(delivery, Duration::ZERO).await;
            return None;
        }
    }
    let token = ClaimToken::generate();
    let item = ClaimItem { bucket: job.bucket, call: job.call.clone(), token: token.clone() };
    let (answer, answered) = oneshot::channel();
    let asked = async {
        session.asks.send(Ask { item, answer }).await.ok()?;
        answered.await.ok()
    };
    let answer = tokio::select! {
        answer = asked => answer?,
        // The claim may be granted: the call stays held, and the ledger decides when the session ends.
        () = cut_off => return None,
    };
    let answer = match answer {
        Claimed::Answered(answer) => *answer,
        Claimed::Away => {
            session.metrics.job(Some(&job.node), "ledger_away");
            session.held.drop_call(&job.call);
            nak(delivery, jitter(AWAY_DELAY) + jitter(AWAY_DELAY) + jitter(AWAY_DELAY / 2)).await;
            return None;
        }
    };
    match answer {
        ClaimAnswer::Granted { fence, earlier_unresolved, key, request_hash, policy, budget_ms } => {
            session.held.granted(&job.call, fence);
            let claim = Claim { bucket: job.bucket, call: job.call.clone(), fence, token };
            if request_hash != HEXLOWER.encode(&job.request_hash) {
                error!(call = %job.call, "a job differs from its receipt and is not executed");
                session.metrics.job(Some(&job.node), "altered");
                term(delivery).await;
                releases::release(session, &claim, true, Duration::ZERO, None).await;
                session.held.drop_call(&job.call);
                return None;
            }
            fault::point("worker_before_ack").await;
            ack(&delivery.acker).await;
            Some(Attempt { claim: Some(claim), policy, key, earlier_unresolved, budget_ms })
        }
        // Only this session is over: the call is still to be done, and this delivery is its doorbell.
        ClaimAnswer::Refused { reason } if reason == SESSION_DEAD => {
            debug!(call = %job.call, "a job goes back: this session is over");
            session.metrics.job(Some(&job.node), "session_dead");
            session.held.drop_call(&job.call);
            nak(delivery, Duration::ZERO).await;
            None
        }
        ClaimAnswer::Settled { .. } | ClaimAnswer::Taken | ClaimAnswer::Refused { .. } => {
            let outcome = match answer {
                ClaimAnswer::Settled { .. } => "settled",
                ClaimAnswer::Taken => "taken",
                _ => "refused",
            };
            debug!(call = %job.call, outcome, "a job is not ours to execute");
            session.metrics.job(Some(&job.node), outcome);
            session.held.drop_call(&job.call);
            ack(&delivery.acker).await;
            None
        }
        ClaimAnswer::Missing => {
            error!(call = %job.call, "a job without a receipt is not executed");
            session.metrics.job(Some(&job.node), "missing");
            session.held.drop_call(&job.call);
            term(delivery).await;
            None
        }
    }
}

/// Whether the effect may be started now.
async fn begin(session: &Session, attempt: &Attempt, cancel: &CancellationToken) -> bool {
    // The death of the session counts for claimed calls; reading again is harmless, but its result is of no use either.
    let ready = tokio::select! {
        biased;
        ready = session.lease.ready() => ready.is_ok(),
        () = cancel.cancelled() => false,
        () = session.stop.cancelled() => false,
    };
    ready && !cancel.is_cancelled() && !session.stop.is_cancelled() && attempt.budget_ms != Some(0)
}

/// How an attempt ended, before it is judged.
struct Outcome {
    ending: Ending,
    output: Option<Json>,
    error: Option<WireError>,
    delay: Option<Duration>,
}

impl Outcome {
    fn failed(ending: Ending, class: ErrorClass, code: &str, message: &str) -> Self {
        Self { ending, output: None, error: Some(WireError::new(class, code, message)), delay: None }
    }
}

impl From<Result<Json, NodeError>> for Outcome {
    fn from(result: Result<Json, NodeError>) -> Self {
        let (ending, output, error, delay) = match result {
            Ok(output) => (Ending::Succeeded, Some(output), None, None),
            Err(NodeError::NotSent(error)) => (Ending::NotSent, None, Some(error), None),
            Err(NodeError::NoByteSent(error)) => (Ending::NoByteSent, None, Some(error), None),
            Err(NodeError::Throttled { delay, error }) => (Ending::Throttled, None, Some(error), Some(delay)),
            Err(NodeError::Refused { output, error }) => (Ending::Refused, output, Some(error), None),
            Err(NodeError::Ambiguous { output, error }) => (Ending::Ambiguous, output, Some(error), None),
            Err(NodeError::Cancelled { output, error }) => (Ending::Cancelled, output, Some(error), None),
            Err(NodeError::Invalid(error)) => (Ending::Invalid, None, Some(error), None),
        };
        Self { ending, output, error, delay }
    }
}

/// Calls the handler, once, with everything that may end it earlier.
async fn perform(
    session: &Session,
    job: &Job,
    handler: &dyn DynHandler,
    request: &Json,
    attempt: &Attempt,
    delivery: &Delivery,
    cancel: CancellationToken,
) -> Outcome {
    let (cx, span) = context(session, job, attempt, cancel.clone());
    let begun = Instant::now();
    session.metrics.started();
    let work = AssertUnwindSafe(handler.handle(&cx, request)).catch_unwind().instrument(span);
    let give_up = async {
        cancel.cancelled().await;
        tokio::time::sleep(session.config.cancel_grace).await;
    };
    let outcome = tokio::select! {
        biased;
        result = work => match result {
            Ok(result) => Outcome::from(result),
            Err(_) => {
                error!(call = %job.call, node = %job.node, "the code of a handler panicked");
                Outcome::failed(Ending::Ambiguous, ErrorClass::Unknown, codes::PANICKED, "the code of the node panicked")
            }
        },
        () = tokio::time::sleep_until(cx.deadline.into()) => {
            Outcome::failed(Ending::Ambiguous, ErrorClass::Timeout, codes::TIMEOUT, "no answer within the time of the call")
        }
        () = give_up => Outcome::from(Err(NodeError::cancelled_in_flight())),
        () = session.cut.cancelled() => {
            Outcome::failed(Ending::Stopped, ErrorClass::Unknown, codes::WORKER_LOST, "the worker stopped before the answer")
        }
        // An unclaimed job is the bus's until its result is stored.
        () = keep_alive(delivery, session.config.ack_wait / 3), if attempt.claim.is_none() => {
            Outcome::failed(Ending::Stopped, ErrorClass::Internal, codes::WORKER_LOST, "the job was lost")
        }
    };
    // Whatever the handler started elsewhere learns that nobody waits any more.
    cancel_if_dropped(&outcome, &cancel);
    session.metrics.ended(&job.node, begun.elapsed().as_secs_f64());
    outcome
}

fn cancel_if_dropped(outcome: &Outcome, cancel: &CancellationToken) {
    if outcome.ending == Ending::Stopped || outcome.error.as_ref().is_some_and(|e| e.code == codes::TIMEOUT) {
        cancel.cancel();
    }
}

/// Says `in progress` for ever.
async fn keep_alive(delivery: &Delivery, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        if let Err(error) = delivery.acker.in_progress().await {
            debug!(%error, "a running job is not extended");
        }
    }
}

fn context(session: &Session, job: &Job, attempt: &Attempt, cancel: CancellationToken) -> (NodeContext, Span) {
    let budget_ms = attempt.budget_ms.unwrap_or(u64::MAX).min(attempt.policy.timeout_ms);
    let (span, trace) = if telemetry::enabled() {
        let span = info_span!("node.handle", node = %job.node, call_id = %job.call, loop_id = %job.run, attempt = attempt.fence());
        telemetry::set_parent(&span, job.traceparent.as_deref(), job.tracestate.as_deref());
        let trace = telemetry::inject(&span);
        (span, trace)
    } else {
        (Span::none(), (job.traceparent.clone(), job.tracestate.clone()))
    };
    let cx = NodeContext {
        call: job.call.clone(),
        run: job.run.clone(),
        session: session.id.clone(),
        fence: attempt.fence(),
        earlier_unresolved: attempt.earlier_unresolved,
        key: attempt.key.as_str().into(),
        // A day is longer than any attempt may take, and far from any overflow.
        deadline: Instant::now() + Duration::from_millis(budget_ms.min(86_400_000)),
        cancel,
        trace,
    };
    (cx, span)
}

/// Says what the attempt amounts to, or gives it back.
async fn settle(
    session: &Session,
    job: Job,
    attempt: Attempt,
    outcome: Outcome,
    delivery: Delivery,
    permit: OwnedSemaphorePermit,
    cancelled: bool,
) {
    let number = if attempt.claim.is_some() { u64::from(attempt.fence()) } else { delivery.delivery_count };
    let standing = Standing::of(&attempt.policy, number, attempt.earlier_unresolved);
    let settlement = match verdict_for(outcome.ending, &standing) {
        // A cancelled unclaimed call would only come again to be cancelled again.
        Settlement::Release { unstarted: true } if cancelled && attempt.claim.is_none() => {
            Settlement::Settle(Verdict::Cancelled)
        }
        settlement => settlement,
    };
    match settlement {
        Settlement::Release { unstarted } => {
            session.metrics.job(Some(&job.node), "released");
            session.metrics.released();
            let shift = u32::try_from(number.saturating_sub(1).min(7)).unwrap_or(7);
            let delay = match outcome.ending {
                Ending::NeverStarted | Ending::Stopped => Duration::ZERO,
                _ => outcome.delay.unwrap_or(RELEASE_DELAY * (1 << shift)).min(RELEASE_DELAY_MAX),
            };
            match &attempt.claim {
                Some(claim) => {
                    let error = outcome.error.map(public);
                    let done = releases::release(session, claim, unstarted, delay, error).await;
                    debug!(call = %job.call, fence = claim.fence, done, "an attempt was given back");
                }
                None => nak(&delivery, delay).await,
            }
            session.held.drop_call(&job.call);
        }
        Settlement::Settle(verdict) => {
            session.metrics.job(Some(&job.node), verdict.as_str());
            let output = outcome.output.filter(|_| output_agrees(outcome.ending, verdict));
            let error = (verdict != Verdict::Succeeded).then(|| explain(verdict, outcome.error));
            if verdict == Verdict::Unknown {
                warn!(call = %job.call, node = %job.node, error = ?error.as_ref().map(ToString::to_string), "the outcome of a call is unknown");
            }
            let body = body(session, &job, verdict, output, error).await;
            let ack = attempt.claim.is_none().then(|| delivery.acker.clone());
            let (fence, token) = match attempt.claim {
                Some(claim) => (claim.fence, Some(claim.token)),
                None => (0, None),
            };
            send(session, job, fence, token, false, body, ack, permit).await;
        }
    }
}

/// Whether the node's own output says the same as the verdict. One that contradicts it is not passed on.
fn output_agrees(ending: Ending, verdict: Verdict) -> bool {
    match verdict {
        Verdict::Succeeded => true,
        Verdict::Failed => ending == Ending::Refused,
        Verdict::Unknown | Verdict::Cancelled => matches!(ending, Ending::Ambiguous | Ending::Cancelled),
    }
}

/// The error of a verdict: its class agrees with the verdict, and its texts may be published.
fn explain(verdict: Verdict, error: Option<WireError>) -> WireError {
    let mut error =
        error.unwrap_or_else(|| WireError::new(ErrorClass::Internal, codes::RESPONSE_LOST, "no reason was given"));
    match verdict {
        Verdict::Unknown => {
            error.class = ErrorClass::Unknown;
            error.retryable = false;
        }
        Verdict::Failed if error.class == ErrorClass::Unknown => {
            error.class = if error.code == codes::TIMEOUT { ErrorClass::Timeout } else { ErrorClass::Failed };
        }
        Verdict::Cancelled => error.class = ErrorClass::Cancelled,
        Verdict::Failed | Verdict::Succeeded => {}
    }
    public(error)
}

/// The same error with texts that may leave the worker.
fn public(mut error: WireError) -> WireError {
    if check_public_code(&error.code).is_err() {
        error.code = codes::UNSAFE_ERROR.into();
    }
    if let Err(reason) = check_public_message(&error.message) {
        error.message = reason.to_string();
    }
    error
}

async fn body(
    session: &Session,
    job: &Job,
    verdict: Verdict,
    output: Option<Json>,
    error: Option<WireError>,
) -> ResultBody {
    let mut body = ResultBody { verdict, output, output_ref: None, error };
    if let Some(output) = body.output.take_if(|output| output.len() > limits::INLINE_BYTES_MAX) {
        body.output_ref = Some(payload::store(session, job.bucket, &output).await.to_string());
    }
    body
}

#[expect(clippy::too_many_arguments, reason = "each belongs to one result and none can be swapped for another")]
async fn send(
    session: &Session,
    job: Job,
    fence: u32,
    token: Option<ClaimToken>,
    query: bool,
    mut body: ResultBody,
    ack: Option<Arc<dyn Ack>>,
    permit: OwnedSemaphorePermit,
) {
    let bytes: Bytes = body.to_json().to_bytes();
    body.output = None;
    let message = ResultMessage {
        call: job.call,
        bucket: job.bucket,
        run: job.run,
        fence,
        token,
        session: session.id.clone(),
        request_hash: job.request_hash,
        dispatch_no: job.dispatch_no,
        attempt_no: 1,
        query,
        traceparent: job.traceparent,
        body,
    };
    let sent = Arc::new(Sent { message, body: bytes, reply: job.reply, dispatch_no: job.dispatch_no });
    if fence > 0 {
        session.held.keep(&sent);
    }
    let outgoing = Outgoing { sent, attempt_no: 1, permit: Some(permit), ack };
    if session.results.send(outgoing).await.is_err() {
        warn!("a result is not sent: the session has ended");
    }
}

/// Asks the backend by key. Has no effect and is not held: the ledger asks again.
async fn query(
    session: &Arc<Session>,
    job: Job,
    handler: Arc<dyn DynHandler>,
    delivery: Delivery,
    permit: OwnedSemaphorePermit,
) {
    let Some((request, policy)) = prepare(session, &job, handler.as_ref(), &delivery).await else { return };
    let attempt = Attempt {
        claim: None,
        key: job.key.clone().unwrap_or_else(|| format!("ditto:{}", job.call)),
        earlier_unresolved: 0,
        budget_ms: job.budget_ms,
        policy,
    };
    let (cx, span) = context(session, &job, &attempt, CancellationToken::new());
    let work = AssertUnwindSafe(handler.query(&cx, &request)).catch_unwind().instrument(span);
    let answer = tokio::select! {
        biased;
        answer = work => answer.unwrap_or(QueryAnswer::Unanswered),
        () = tokio::time::sleep_until(cx.deadline.into()) => QueryAnswer::Unanswered,
        () = session.cut.cancelled() => return nak(&delivery, Duration::ZERO).await,
        () = keep_alive(&delivery, session.config.ack_wait / 3) => QueryAnswer::Unanswered,
    };
    let unknown =
        |code: &str, message: &str| (Verdict::Unknown, None, Some(WireError::new(ErrorClass::Unknown, code, message)));
    let (verdict, output, error) = match answer {
        QueryAnswer::Applied(output) => (Verdict::Succeeded, Some(output), None),
        QueryAnswer::Conflict => unknown(codes::KEY_CONFLICT, "the key is known with another request"),
        QueryAnswer::Refused { output, error } if attempt.policy.rejections_stored => {
            (Verdict::Failed, output, Some(explain(Verdict::Failed, Some(error))))
        }
        // A refusal that is not remembered under the key says nothing about the attempt that is asked about.
        QueryAnswer::Refused { .. } | QueryAnswer::Unanswered => {
            unknown(codes::QUERY_UNANSWERED, "the backend could not be asked")
        }
        QueryAnswer::InProgress => unknown(codes::KEY_IN_PROGRESS, "the backend is still working on it"),
        QueryAnswer::Absent => unknown(codes::KEY_ABSENT, "the backend does not know the key"),
    };
    session.metrics.job(Some(&job.node), "queried");
    let body = body(session, &job, verdict, output, error).await;
    let ack = Some(delivery.acker.clone());
    send(session, job, 0, None, true, body, ack, permit).await;
}

async fn ack(acker: &Arc<dyn Ack>) {
    if let Err(error) = acker.ack().await {
        debug!(%error, "a job is not acknowledged; it comes again and is dropped");
    }
}

async fn term(delivery: &Delivery) {
    if let Err(error) = delivery.acker.term().await {
        debug!(%error, "a job is not ended; it comes again");
    }
}
