//! `/v1/definitions`: register, validate, list and read loop definitions.

use axum::{
    Json as AxumJson, Router,
    body::Bytes,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use ditto_contracts::{ErrorClass, LoopName, Revision, WireError};
use serde::Deserialize;

use super::{
    page,
    problem::Problem,
    runs::namespace,
    views::{DefinitionView, Page},
};
use crate::{service::Handle, store::DefinitionRow};

/// Largest definition, in bytes.
const SOURCE_BYTES_MAX: usize = 1024 * 1024;

pub(super) fn routes() -> Router<Handle> {
    Router::new()
        .route("/v1/definitions", get(list).post(register))
        .route("/v1/definitions/validate", post(validate))
        .route("/v1/definitions/{name}", get(read))
}

/// Compiles the text of a request; the problems become a 422 that lists them all. Compiling is bounded but may take a second: it runs beside the event loops.
async fn compile(bytes: Bytes) -> Result<(ditto_definition::Definition, String), Box<Response>> {
    let compiled = tokio::task::spawn_blocking(move || compile_here(&bytes)).await;
    compiled.unwrap_or_else(|_| {
        let error = WireError::new(ErrorClass::Internal, "COMPILE_FAILED", "the definition could not be compiled");
        Err(Box::new(Problem::from(error).into_response()))
    })
}

fn compile_here(bytes: &Bytes) -> Result<(ditto_definition::Definition, String), Box<Response>> {
    let invalid = |field, text: String| Box::new(Problem::invalid(field, text).into_response());
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(invalid("body", format!("{} bytes; at most {SOURCE_BYTES_MAX}", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| invalid("body", "expected UTF-8 text".into()))?;
    match ditto_definition::compile(text, "body") {
        Ok(definition) => Ok((definition, text.to_owned())),
        Err(problems) => {
            let body = serde_json::json!({
                "type": "about:blank",
                "title": "Unprocessable Entity",
                "status": 422,
                "code": "DEFINITION_INVALID",
                "detail": format!("the definition has {} problem(s)", problems.len()),
                "problems": problems,
            });
            let headers = [(axum::http::header::CONTENT_TYPE, "application/problem+json")];
            Err(Box::new((StatusCode::UNPROCESSABLE_ENTITY, headers, body.to_string()).into_response()))
        }
    }
}

async fn register(State(handle): State<Handle>, headers: HeaderMap, bytes: Bytes) -> Result<Response, Problem> {
    let namespace = namespace(&headers)?;
    let (definition, source) = match compile(bytes).await {
        Ok(compiled) => compiled,
        Err(response) => return Ok(*response),
    };
    let row = handle.register(&namespace, &definition, source).await?;
    Ok((StatusCode::CREATED, AxumJson(DefinitionView::new(row, false))).into_response())
}

async fn validate(bytes: Bytes) -> Response {
    match compile(bytes).await {
        Ok((definition, _)) => {
            AxumJson(serde_json::json!({ "name": definition.name, "revision": definition.revision })).into_response()
        }
        Err(response) => *response,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListQuery {
    limit: Option<u32>,
    after: Option<String>,
}

async fn list(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Query(query): Query<ListQuery>,
) -> Result<AxumJson<Page<DefinitionView>>, Problem> {
    let limit = page(query.limit)?;
    let after = query.after.map(|t| LoopName::new(t).map_err(|e| Problem::id("after", &e))).transpose()?;
    let mut rows: Vec<DefinitionRow> =
        handle.store().definitions_list(&namespace(&headers)?, after.as_ref(), limit + 1).await?;
    let more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = more.then(|| rows.last().map(|row| row.name.to_string())).flatten();
    Ok(AxumJson(Page { items: rows.into_iter().map(|row| DefinitionView::new(row, false)).collect(), next }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReadQuery {
    revision: Option<String>,
}

async fn read(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(name): Path<String>,
    Query(query): Query<ReadQuery>,
) -> Result<AxumJson<DefinitionView>, Problem> {
    let name = LoopName::new(name).map_err(|error| Problem::id("name", &error))?;
    let revision = query.revision.map(|t| Revision::new(t).map_err(|e| Problem::id("revision", &e))).transpose()?;
    let row = handle
        .store()
        .definition_get(&namespace(&headers)?, &name, revision.as_ref())
        .await?
        .ok_or_else(|| Problem::not_found(format!("no definition {name}")))?;
    Ok(AxumJson(DefinitionView::new(row, true)))
}
