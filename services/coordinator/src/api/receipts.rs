//! `/v1/receipts`: what is known about each call, and how a person decides about an unknown one.

use axum::{
    Json as AxumJson, Router,
    body::Bytes,
    extract::{Path, Query, State},
    http::HeaderMap,
    routing::{get, post},
};
use ditto_contracts::{CallUid, Json, ReceiptState, RunId};
use serde::Deserialize;

use super::{
    page,
    problem::Problem,
    runs::{body, namespace, run_id},
    views::{Page, ReceiptDetail, ReceiptView},
};
use crate::{
    service::Handle,
    store::{ReceiptFilter, Resolution, Resolved},
};

pub(super) fn routes() -> Router<Handle> {
    Router::new()
        .route("/v1/receipts", get(list))
        .route("/v1/runs/{run}/receipts", get(of_run))
        .route("/v1/receipts/{call}", get(read))
        .route("/v1/receipts/{call}/resolve", post(resolve))
}

fn call_uid(text: &str) -> Result<CallUid, Problem> {
    CallUid::new(text).map_err(|error| Problem::id("call", &error))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListQuery {
    run: Option<String>,
    state: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn list(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Query(query): Query<ListQuery>,
) -> Result<AxumJson<Page<ReceiptView>>, Problem> {
    let run = query.run.as_deref().map(run_id).transpose()?;
    rows(&handle, &headers, run, query.state.as_deref(), query.limit, query.after).await
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OfRunQuery {
    state: Option<String>,
    limit: Option<u32>,
    after: Option<String>,
}

async fn of_run(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(run): Path<String>,
    Query(query): Query<OfRunQuery>,
) -> Result<AxumJson<Page<ReceiptView>>, Problem> {
    let run = run_id(&run)?;
    let namespace = namespace(&headers)?;
    if handle.store().run_get(Some(&namespace), &run).await?.is_none() {
        return Err(Problem::not_found(format!("no run {run} in namespace {namespace}")));
    }
    rows(&handle, &headers, Some(run), query.state.as_deref(), query.limit, query.after).await
}

async fn rows(
    handle: &Handle,
    headers: &HeaderMap,
    run: Option<RunId>,
    state: Option<&str>,
    limit: Option<u32>,
    after: Option<String>,
) -> Result<AxumJson<Page<ReceiptView>>, Problem> {
    let limit = page(limit)?;
    let mut states = Vec::new();
    for text in state.unwrap_or_default().split(',').filter(|t| !t.is_empty()) {
        let state = ReceiptState::from_text(text).ok_or_else(|| {
            let known: Vec<_> = ReceiptState::ALL.iter().map(|s| s.as_str()).collect();
            Problem::invalid("state", format!("{text:?} is none of {}", known.join(", ")))
        })?;
        states.push(state);
    }
    let filter = ReceiptFilter {
        run,
        namespace: Some(namespace(headers)?),
        states,
        after: after.as_deref().map(|text| CallUid::new(text).map_err(|e| Problem::id("after", &e))).transpose()?,
    };
    let mut rows = handle.store().receipts_list(&filter, limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = more.then(|| rows.last().map(|row| row.call.to_string())).flatten();
    Ok(AxumJson(Page { items: rows.into_iter().map(ReceiptView::from).collect(), next }))
}

/// The receipt if it belongs to a run of this namespace.
async fn find(handle: &Handle, headers: &HeaderMap, call: &CallUid) -> Result<crate::store::ReceiptRow, Problem> {
    let namespace = namespace(headers)?;
    let missing = || Problem::not_found(format!("no receipt {call} in namespace {namespace}"));
    let row = handle.store().receipt_get(call).await?.ok_or_else(missing)?;
    handle.store().run_get(Some(&namespace), &row.run).await?.ok_or_else(missing)?;
    Ok(row)
}

async fn read(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(call): Path<String>,
) -> Result<AxumJson<ReceiptDetail>, Problem> {
    let call = call_uid(&call)?;
    let row = find(&handle, &headers, &call).await?;
    let log = handle.store().attempts_list(&call, 200).await?;
    let policy = row.policy.clone();
    Ok(AxumJson(ReceiptDetail { receipt: row.into(), policy, log: log.into_iter().map(Into::into).collect() }))
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Decision {
    Succeeded,
    Failed,
    #[serde(rename = "another-attempt")]
    AnotherAttempt,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResolveRequest {
    verdict: Decision,
    settle_rev: i32,
    who: String,
    reason: String,
    #[serde(default)]
    output: Option<Json>,
}

async fn resolve(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(call): Path<String>,
    bytes: Bytes,
) -> Result<AxumJson<ReceiptView>, Problem> {
    let call = call_uid(&call)?;
    let request: ResolveRequest = body(bytes)?;
    for (field, text) in [("who", &request.who), ("reason", &request.reason)] {
        if text.trim().is_empty() || text.len() > 2_000 {
            return Err(Problem::invalid(field, "expected 1 to 2000 bytes of text"));
        }
    }
    find(&handle, &headers, &call).await?;
    let resolution = match request.verdict {
        Decision::Succeeded => Resolution::Succeeded { output: request.output },
        Decision::Failed => Resolution::Failed,
        Decision::AnotherAttempt => Resolution::AnotherAttempt,
    };
    match handle.resolve(&call, request.settle_rev, &resolution, &request.who, &request.reason).await? {
        Resolved::Done(_) => {}
        Resolved::Conflict { settle_rev, state } => {
            return Err(Problem::conflict(
                "SETTLED_MEANWHILE",
                format!(
                    "settleRev: {} was seen, but {state} at revision {settle_rev} stands; look again",
                    request.settle_rev
                ),
            ));
        }
        Resolved::NotUnknown { state } => {
            return Err(Problem::conflict(
                "NOT_UNKNOWN",
                format!("the receipt is {state}; only an unknown outcome is decided by a person"),
            ));
        }
        Resolved::SessionMayLive => {
            return Err(Problem::conflict(
                "SESSION_MAY_LIVE",
                "the worker of the earlier attempt may still be running; end its session first (ditto sessions end), or wait a day",
            ));
        }
        Resolved::Missing => return Err(Problem::not_found(format!("no receipt {call}"))),
    }
    Ok(AxumJson(find(&handle, &headers, &call).await?.into()))
}
