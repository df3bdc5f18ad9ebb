//! `/v1/runs`: submit, list, read, cancel, signal.

use std::time::Duration;

use axum::{
    Json as AxumJson, Router,
    body::Bytes,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use ditto_contracts::{
    Json, LoopName, Namespace, Revision, RunId, RunStatus, SubmitKey,
    wire::{SubmitBody, SubmitKind, SubmitReply},
};
use serde::Deserialize;

use super::{
    page,
    problem::Problem,
    views::{Page, RunView},
};
use crate::{Submission, service::Handle, store::RunFilter};

/// Longest wait for the end of a run in one request.
const WAIT_MAX_MS: u64 = 60_000;

pub(super) fn routes() -> Router<Handle> {
    Router::new()
        .route("/v1/runs", get(list).post(submit))
        .route("/v1/runs/{run}", get(read))
        .route("/v1/runs/{run}/cancel", post(cancel))
        .route("/v1/runs/{run}/signals", post(signal))
}

/// Body of a submission over HTTP.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SubmitRequest {
    #[serde(default)]
    kind: Option<SubmitKind>,
    name: LoopName,
    #[serde(default)]
    input: Json,
    #[serde(default)]
    key: Option<SubmitKey>,
    #[serde(default)]
    revision: Option<Revision>,
}

/// Reads a JSON body with the rules that hold everywhere: depth, duplicate keys, exact numbers.
pub(super) fn body<T: serde::de::DeserializeOwned>(bytes: Bytes) -> Result<T, Problem> {
    // A value in it is as deep as one may be; the body around it adds a level.
    let json = Json::parse_around(bytes, 1).map_err(|error| Problem::invalid("body", error))?;
    json.to().map_err(|error| Problem::invalid("body", error))
}

/// The tenant of a request: header `Ditto-Namespace`, else `default`.
pub(super) fn namespace(headers: &HeaderMap) -> Result<Namespace, Problem> {
    match headers.get("ditto-namespace") {
        None => Ok(Namespace::default_namespace()),
        Some(value) => {
            let text = value.to_str().map_err(|_| Problem::invalid("Ditto-Namespace", "is not ASCII text"))?;
            Namespace::new(text).map_err(|error| Problem::id("Ditto-Namespace", &error))
        }
    }
}

pub(super) fn run_id(text: &str) -> Result<RunId, Problem> {
    RunId::new(text).map_err(|error| Problem::id("run", &error))
}

async fn submit(
    State(handle): State<Handle>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<(StatusCode, AxumJson<SubmitReply>), Problem> {
    let namespace = namespace(&headers)?;
    let request: SubmitRequest = body(bytes)?;
    let mut key = request.key;
    if let Some(value) = headers.get("idempotency-key") {
        let text = value.to_str().map_err(|_| Problem::invalid("Idempotency-Key", "is not ASCII text"))?;
        let header = SubmitKey::new(text).map_err(|error| Problem::id("Idempotency-Key", &error))?;
        if key.as_ref().is_some_and(|key| *key != header) {
            return Err(Problem::invalid("key", "differs from the header Idempotency-Key"));
        }
        key = Some(header);
    }
    let traceparent = headers.get("traceparent").and_then(|v| v.to_str().ok()).map(str::to_owned);
    let submission = Submission {
        namespace,
        kind: request.kind.unwrap_or(SubmitKind::Loop),
        name: request.name,
        body: SubmitBody { key, input: request.input, revision: request.revision },
        traceparent,
    };
    let reply = handle.submit(submission).await?;
    let status = if reply.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, AxumJson(reply)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListQuery {
    status: Option<String>,
    name: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Query(query): Query<ListQuery>,
) -> Result<AxumJson<Page<RunView>>, Problem> {
    let limit = page(query.limit)?;
    let mut statuses = Vec::new();
    for text in query.status.as_deref().unwrap_or_default().split(',').filter(|t| !t.is_empty()) {
        let status = RunStatus::from_text(text).ok_or_else(|| {
            Problem::invalid(
                "status",
                format!(
                    "{text:?} is none of {}",
                    RunStatus::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ")
                ),
            )
        })?;
        statuses.push(status);
    }
    let filter = RunFilter {
        namespace: Some(namespace(&headers)?),
        statuses,
        name: query.name.map(|t| LoopName::new(t).map_err(|e| Problem::id("name", &e))).transpose()?,
        before: query.after.map(|t| RunId::new(t).map_err(|e| Problem::id("after", &e))).transpose()?,
    };
    let mut rows = handle.store().runs_list(&filter, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = more.then(|| rows.last().map(|row| row.run.to_string())).flatten();
    Ok(AxumJson(Page { items: rows.into_iter().map(RunView::from).collect(), next }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReadQuery {
    wait_ms: Option<u64>,
}

/// One run; with `waitMs` the answer comes when it has ended, or after that time.
async fn read(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(run): Path<String>,
    Query(query): Query<ReadQuery>,
) -> Result<AxumJson<RunView>, Problem> {
    let namespace = namespace(&headers)?;
    let run = run_id(&run)?;
    let wait_ms = query.wait_ms.unwrap_or(0);
    if wait_ms > WAIT_MAX_MS {
        return Err(Problem::invalid("waitMs", format!("is {wait_ms}; expected at most {WAIT_MAX_MS}")));
    }
    let row = handle
        .wait_ended(&namespace, &run, Duration::from_millis(wait_ms))
        .await?
        .ok_or_else(|| Problem::not_found(format!("no run {run} in namespace {namespace}")))?;
    Ok(AxumJson(row.into()))
}

async fn cancel(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(run): Path<String>,
) -> Result<AxumJson<RunView>, Problem> {
    let namespace = namespace(&headers)?;
    let run = run_id(&run)?;
    let row = handle
        .cancel(&namespace, &run)
        .await?
        .ok_or_else(|| Problem::not_found(format!("no run {run} in namespace {namespace}")))?;
    Ok(AxumJson(row.into()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SignalRequest {
    name: String,
    #[serde(default)]
    body: Json,
    #[serde(default)]
    request_id: Option<String>,
}

async fn signal(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(run): Path<String>,
    bytes: Bytes,
) -> Result<AxumJson<serde_json::Value>, Problem> {
    let namespace = namespace(&headers)?;
    let run = run_id(&run)?;
    let request: SignalRequest = body(bytes)?;
    // Signals and their request ids are named by the same rule as calls.
    for (field, text) in [("name", Some(&request.name)), ("requestId", request.request_id.as_ref())] {
        if let Some(text) = text {
            ditto_contracts::CallId::new(text).map_err(|error| Problem::id(field, &error))?;
        }
    }
    let n = handle
        .signal(&namespace, &run, &request.name, &request.body, request.request_id.as_deref())
        .await?
        .ok_or_else(|| {
            Problem::conflict("NOT_RUNNING", format!("no run {run} in namespace {namespace} that is not over"))
        })?;
    Ok(AxumJson(serde_json::json!({ "runId": run, "signal": n })))
}
