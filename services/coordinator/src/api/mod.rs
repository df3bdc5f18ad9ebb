//! HTTP under `/v1`: submit, watch, inspect and steer runs. Errors are RFC 9457 problem documents.

mod catalogue;
mod definitions;
mod endings;
mod events;
mod problem;
mod receipts;
mod runs;
pub mod views;

use axum::{Json as AxumJson, Router, extract::DefaultBodyLimit, routing::get};
use ditto_contracts::limits;

pub use problem::Problem;

use crate::service::Handle;

/// Most rows of one page.
const PAGE_MAX: u32 = 500;
/// Rows of a page when the caller names no limit.
const PAGE_DEFAULT: u32 = 50;

/// The routes of a coordinator.
pub fn router(handle: Handle) -> Router {
    Router::new()
        .merge(runs::routes())
        .merge(events::routes())
        .merge(endings::routes())
        .merge(receipts::routes())
        .merge(definitions::routes())
        .merge(catalogue::routes())
        .route("/v1/version", get(version))
        .route("/livez", get(live))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .fallback(|| async {
            Problem::not_found("no such resource; see /v1/runs, /v1/receipts, /v1/definitions, /v1/catalogue")
        })
        .layer(DefaultBodyLimit::max(limits::VALUE_BYTES_MAX + 64 * 1024))
        .with_state(handle)
}

async fn version() -> AxumJson<serde_json::Value> {
    AxumJson(serde_json::json!({ "name": "ditto", "version": env!("CARGO_PKG_VERSION"), "wire": 1 }))
}

async fn live() -> &'static str {
    "ok\n"
}

async fn ready(axum::extract::State(handle): axum::extract::State<Handle>) -> Result<&'static str, Problem> {
    if !handle.is_ready() {
        return Err(Problem::unavailable("NOT_READY", "the coordinator does not serve yet, or is stopping"));
    }
    handle
        .store()
        .now_ms()
        .await
        .map_err(|_| Problem::unavailable("LEDGER_UNAVAILABLE", "the ledger does not answer"))?;
    Ok("ok\n")
}

async fn metrics(axum::extract::State(handle): axum::extract::State<Handle>) -> String {
    let mut text = ditto_runtime::metrics::render();
    if let Ok(counts) = handle.store().counts().await {
        text.push_str(&views::counts_text(&counts));
    }
    text
}

/// A page size from a query.
fn page(limit: Option<u32>) -> Result<u32, Problem> {
    match limit {
        None => Ok(PAGE_DEFAULT),
        Some(n) if (1..=PAGE_MAX).contains(&n) => Ok(n),
        Some(n) => Err(Problem::invalid("limit", format!("is {n}; expected 1 to {PAGE_MAX}"))),
    }
}
