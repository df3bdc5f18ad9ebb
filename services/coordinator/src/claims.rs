//! Answers the ledger requests of workers: any coordinator, any worker.

use std::sync::Arc;

use ditto_bus::{Message, Received};
use ditto_contracts::{
    CallUid, ErrorClass, Json, SessionId, WireError, limits,
    wire::{
        Headers, PayloadRef,
        ledger::{
            AnnounceReply, AnnounceRequest, CancelNotice, ClaimReply, ClaimRequest, CloseRequest, GetReply, GetRequest,
            OpenReply, OpenRequest, PutReply, PutRequest, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest,
        },
        names, subjects,
    },
};
use ditto_runtime::fault::{FaultAction, point};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Semaphore, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    core::Core,
    store::{NewSession, SessionRole},
    streams,
};

/// Requests worked on at once; more wait in the subscription.
const CONCURRENT_MAX: usize = 64;
/// Requests that may wait.
const QUEUE_MAX: usize = 65_536;

/// Serves ledger requests until told to stop.
pub(crate) async fn run(core: Core, stop: CancellationToken) {
    let permits = Arc::new(Semaphore::new(CONCURRENT_MAX));
    let mut tasks = JoinSet::new();
    while !stop.is_cancelled() {
        let subscribed = core.bus.subscribe(subjects::LEDGER_ALL, Some(subjects::COORDINATORS), QUEUE_MAX).await;
        let mut requests = match subscribed {
            Ok(requests) => requests,
            Err(error) => {
                warn!(%error, "ledger requests cannot be served now");
                tokio::select! {
                    () = tokio::time::sleep(std::time::Duration::from_millis(500)) => continue,
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
            let core = core.clone();
            tasks.spawn(async move {
                answer(&core, request).await;
                drop(permit);
            });
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn answer(core: &Core, request: Received) {
    let Some(reply) = request.reply else { return };
    let Message { subject, body, .. } = request.message;
    let answer = match subject.as_str() {
        subjects::LEDGER_CLAIM => handle(body, |r| claim(core, r)).await,
        subjects::LEDGER_RENEW => handle(body, |r| renew(core, r)).await,
        subjects::LEDGER_RELEASE => handle(body, |r| release(core, r)).await,
        subjects::LEDGER_OPEN => handle(body, |r| open(core, r)).await,
        subjects::LEDGER_ANNOUNCE => handle(body, |r| announce(core, r)).await,
        subjects::LEDGER_CLOSE => handle(body, |r| close(core, r)).await,
        subjects::LEDGER_PUT => handle(body, |r| put(core, r)).await,
        subjects::LEDGER_GET => handle(body, |r| get(core, r)).await,
        _ => Err(WireError::new(ErrorClass::NotFound, "UNKNOWN_REQUEST", "no such ledger request")),
    };
    let (headers, body) = match answer {
        Ok(Some(body)) => (Headers::new(), body),
        Ok(None) => return,
        Err(error) => {
            debug!(%subject, %error, "ledger request was turned away");
            let mut headers = Headers::new();
            headers.push(names::ERROR, error.code.as_str());
            (headers, serde_json::to_vec(&error).unwrap_or_default())
        }
    };
    if let Err(error) = core.bus.respond(&reply, headers, body.into()).await {
        debug!(%subject, %error, "answer was not sent; the worker asks again");
    }
}

/// Reads the request, runs it, writes the answer. `None`: the answer is lost on purpose (fault tests).
async fn handle<Q, A, F>(body: bytes::Bytes, run: impl FnOnce(Q) -> F) -> Result<Option<Vec<u8>>, WireError>
where
    Q: DeserializeOwned,
    A: Serialize,
    F: Future<Output = Result<Option<A>, WireError>>,
{
    let json = Json::parse(body).map_err(|error| WireError::invalid("BAD_REQUEST", error.to_string()))?;
    let request = json.to().map_err(|error| WireError::invalid("BAD_REQUEST", error.to_string()))?;
    let Some(answer) = run(request).await? else { return Ok(None) };
    serde_json::to_vec(&answer)
        .map(Some)
        .map_err(|error| WireError::new(ErrorClass::Internal, "ANSWER_NOT_WRITTEN", error.to_string()))
}

async fn claim(core: &Core, request: ClaimRequest) -> Result<Option<ClaimReply>, WireError> {
    if request.items.len() > limits::CLAIM_BATCH_MAX {
        return Err(WireError::invalid("BAD_REQUEST", format!("items: at most {} calls", limits::CLAIM_BATCH_MAX)));
    }
    if point("before_claim").await == FaultAction::Drop {
        return Ok(None);
    }
    let answers = core.store.claim(&request.session, &request.items).await?;
    if point("after_claim").await == FaultAction::Drop {
        return Ok(None);
    }
    Ok(Some(ClaimReply { answers }))
}

async fn release(core: &Core, request: ReleaseRequest) -> Result<Option<ReleaseReply>, WireError> {
    let done = core.store.release(&request.session, &request.items).await?;
    Ok(Some(ReleaseReply { done }))
}

async fn renew(core: &Core, request: RenewRequest) -> Result<Option<RenewReply>, WireError> {
    let lease = core.store.session_renew(&request.session, core.worker_ledger_ttl_ms()).await?;
    let calls: Vec<CallUid> = request.held.into_iter().map(|item| item.call).collect();
    let (settled, cancel) =
        if calls.is_empty() { Default::default() } else { core.store.held_review(&request.session, &calls).await? };
    Ok(Some(RenewReply { alive: lease.alive, ttl_ms: core.config.worker_ttl_ms, settled, cancel }))
}

async fn open(core: &Core, request: OpenRequest) -> Result<Option<OpenReply>, WireError> {
    if request.wire != 1 {
        return Err(WireError::invalid(
            "WIRE_VERSION",
            format!("wire: version {} is not served; expected 1", request.wire),
        ));
    }
    streams::check_worker_kind(&request.worker_kind)?;
    let session = NewSession {
        session: request.session,
        role: SessionRole::Worker,
        kind: request.worker_kind,
        name: request.name.chars().take(200).collect(),
        build: request.build.chars().take(100).collect(),
        instance: request.instance,
        ttl_ms: core.worker_ledger_ttl_ms(),
    };
    let replaces = session.instance.is_some();
    let lease = core.store.session_open(&session).await?;
    if replaces {
        // Its predecessor is dead at once; unclaimed calls it had taken wait on the bus for their redelivery, and
        // publishing them again is harmless. Claims are found by the sweeper.
        core.store.dispatch_all().await?;
    }
    if !lease.alive {
        return Err(WireError::new(ErrorClass::Conflict, "SESSION_DEAD", "this session is over; open another"));
    }
    let ttl_ms = core.config.worker_ttl_ms;
    Ok(Some(OpenReply { ttl_ms, margin_ms: (ttl_ms / 5).clamp(50, 3_000) }))
}

async fn announce(core: &Core, request: AnnounceRequest) -> Result<Option<AnnounceReply>, WireError> {
    streams::check_worker_kind(&request.worker_kind)?;
    if request.offers.is_empty() {
        return Err(WireError::invalid("BAD_REQUEST", "offers: expected at least one"));
    }
    let (kind, pool) = (request.worker_kind.as_str(), request.pool.as_ref());
    // Announced first: whoever updates the consumer at the same moment then sees these offers.
    core.store.offers_put(&request.session, kind, pool, &request.offers).await?;
    let consumer = match streams::worker_consumer(core, kind, pool).await {
        Ok(consumer) => consumer,
        Err(error) => {
            core.store.offers_put(&request.session, kind, pool, &[]).await?;
            return Err(error);
        }
    };
    core.read_catalogue().await?;
    let conflicts = request
        .offers
        .iter()
        .filter(|offer| core.catalogue.find(&offer.node, offer.source.as_deref()).is_some_and(|served| served.conflict))
        .map(|offer| format!("{} {}", offer.node, offer.source.as_deref().unwrap_or_default()).trim_end().to_owned())
        .collect::<Vec<_>>();
    if !conflicts.is_empty() {
        warn!(session = %request.session, ?conflicts, "contradictory announcements; the stricter policy rules");
    }
    Ok(Some(AnnounceReply { consumer, conflicts }))
}

async fn close(core: &Core, request: CloseRequest) -> Result<Option<serde_json::Value>, WireError> {
    core.store.session_close(&request.session).await?;
    core.read_catalogue().await?;
    Ok(Some(serde_json::json!({})))
}

fn payload(text: &str) -> Result<PayloadRef, WireError> {
    let payload: PayloadRef =
        text.parse().map_err(|_| WireError::invalid("BAD_REQUEST", "payload: expected <sha256 hex>.<size>"))?;
    if payload.size as usize > limits::VALUE_BYTES_MAX {
        return Err(WireError::invalid(
            ditto_contracts::codes::VALUE_TOO_LARGE,
            format!("payload: {} bytes; at most {}", payload.size, limits::VALUE_BYTES_MAX),
        ));
    }
    Ok(payload)
}

async fn put(core: &Core, request: PutRequest) -> Result<Option<PutReply>, WireError> {
    let payload = payload(&request.payload)?;
    let chunk = data_encoding::BASE64
        .decode(request.chunk.as_bytes())
        .map_err(|_| WireError::invalid("BAD_REQUEST", "chunk: expected base64"))?;
    if chunk.len() > limits::PAYLOAD_CHUNK_BYTES_MAX {
        return Err(WireError::invalid(
            "BAD_REQUEST",
            format!("chunk: at most {} bytes", limits::PAYLOAD_CHUNK_BYTES_MAX),
        ));
    }
    let stored = core.store.payload_put(request.bucket, &payload, request.offset, &chunk).await?;
    Ok(Some(PutReply { stored }))
}

async fn get(core: &Core, request: GetRequest) -> Result<Option<GetReply>, WireError> {
    let payload = payload(&request.payload)?;
    let body = core.store.payload_get(request.bucket, &payload).await?;
    let chunk = body.map(|body| {
        let start = (request.offset as usize).min(body.len());
        let end = (start + limits::PAYLOAD_CHUNK_BYTES_MAX).min(body.len());
        data_encoding::BASE64.encode(&body[start..end])
    });
    Ok(Some(GetReply { chunk }))
}

/// Tells the workers that hold these calls to stop them. Safe to lose: they learn it from their next renewal.
pub(crate) async fn notify_cancels(core: &Core, calls: &[CallUid]) {
    let mut by_session: std::collections::HashMap<SessionId, Vec<CallUid>> = Default::default();
    for call in calls {
        match core.store.receipt_get(call).await {
            Ok(Some(row)) if row.state == ditto_contracts::ReceiptState::Claimed => {
                if let Some(session) = row.session {
                    by_session.entry(session).or_default().push(call.clone());
                }
            }
            Ok(_) => {}
            Err(error) => debug!(%call, %error, "cancel is not announced"),
        }
    }
    for (session, calls) in by_session {
        let Some(kind) = core.catalogue.kind_of(&session) else { continue };
        let Ok(body) = serde_json::to_vec(&CancelNotice { calls }) else { continue };
        let message =
            Message { subject: subjects::cancel(&kind, &session), headers: Headers::new(), body: body.into() };
        if let Err(error) = core.bus.notify(message).await {
            debug!(%session, %error, "cancel is not announced; the session learns it from its next renewal");
        }
    }
}
