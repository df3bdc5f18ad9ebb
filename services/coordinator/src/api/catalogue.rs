//! `/v1/catalogue` and `/v1/sessions`: what live workers serve, and which processes there are.

use axum::{
    Json as AxumJson, Router,
    extract::{Path, State},
    routing::{get, post},
};
use ditto_contracts::SessionId;

use super::{
    problem::Problem,
    views::{Page, SessionView},
};
use crate::service::Handle;

pub(super) fn routes() -> Router<Handle> {
    Router::new()
        .route("/v1/catalogue", get(catalogue))
        .route("/v1/sessions", get(sessions))
        .route("/v1/sessions/{session}/end", post(end))
}

async fn catalogue(State(handle): State<Handle>) -> AxumJson<serde_json::Value> {
    let items: Vec<_> = handle
        .catalogue()
        .all()
        .into_iter()
        .map(|served| {
            serde_json::json!({
                "node": served.offer.node,
                "source": served.offer.source,
                "description": served.offer.description,
                "inputSchema": served.offer.input_schema,
                "effects": served.offer.effects,
                "requiresApproval": served.offer.requires_approval,
                "policy": served.policy,
                "pools": served.pools,
                "sessions": served.sessions,
                "conflict": served.conflict,
            })
        })
        .collect();
    AxumJson(serde_json::json!({ "items": items }))
}

async fn sessions(State(handle): State<Handle>) -> Result<AxumJson<Page<SessionView>>, Problem> {
    let rows = handle.store().sessions_list(500).await?;
    Ok(AxumJson(Page { items: rows.into_iter().map(SessionView::from).collect(), next: None }))
}

/// A person declares a session dead; its process stops as soon as it hears of it.
async fn end(
    State(handle): State<Handle>,
    Path(session): Path<String>,
) -> Result<AxumJson<serde_json::Value>, Problem> {
    let session = SessionId::new(session).map_err(|error| Problem::id("session", &error))?;
    if !handle.store().sessions_list(10_000).await?.iter().any(|row| row.session == session) {
        return Err(Problem::not_found(format!("no session {session}; see /v1/sessions")));
    }
    handle.store().session_close(&session).await?;
    Ok(AxumJson(serde_json::json!({ "session": session, "ended": true })))
}
