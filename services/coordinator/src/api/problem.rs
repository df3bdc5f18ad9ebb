//! Errors as RFC 9457 problem documents.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use ditto_contracts::{ErrorClass, IdError, WireError};
use serde::Serialize;

use crate::store::StoreError;

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    status: StatusCode,
    error: WireError,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    retryable: bool,
}

impl Problem {
    /// A field of the request is wrong.
    pub(crate) fn invalid(field: &str, problem: impl std::fmt::Display) -> Self {
        WireError::invalid(ditto_contracts::codes::INVALID_INPUT, format!("{field}: {problem}")).into()
    }

    /// An identity in the request is malformed.
    pub(crate) fn id(field: &str, error: &IdError) -> Self {
        Self::invalid(field, error)
    }

    /// What was named does not exist.
    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        WireError::new(ErrorClass::NotFound, "NOT_FOUND", what).into()
    }

    /// It exists in another state.
    pub(crate) fn conflict(code: &str, what: impl Into<String>) -> Self {
        WireError::new(ErrorClass::Conflict, code, what).into()
    }

    /// Try again later.
    pub(crate) fn unavailable(code: &str, what: impl Into<String>) -> Self {
        WireError::new(ErrorClass::Unavailable, code, what).retryable().into()
    }
}

impl From<WireError> for Problem {
    fn from(error: WireError) -> Self {
        let status = match (error.class, error.code.as_str()) {
            (ErrorClass::InvalidInput, ditto_contracts::codes::VALUE_TOO_LARGE) => StatusCode::PAYLOAD_TOO_LARGE,
            (ErrorClass::InvalidInput, _) => StatusCode::UNPROCESSABLE_ENTITY,
            (ErrorClass::Denied, _) => StatusCode::FORBIDDEN,
            (ErrorClass::NotFound, _) => StatusCode::NOT_FOUND,
            (ErrorClass::Conflict | ErrorClass::Unknown | ErrorClass::Cancelled | ErrorClass::Failed, _) => {
                StatusCode::CONFLICT
            }
            (ErrorClass::Unavailable, "BACKLOG_FULL") => StatusCode::TOO_MANY_REQUESTS,
            (ErrorClass::Unavailable, _) => StatusCode::SERVICE_UNAVAILABLE,
            (ErrorClass::Timeout, _) => StatusCode::GATEWAY_TIMEOUT,
            (ErrorClass::Internal, _) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self { status, error }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        tracing::warn!(%error, "ledger did not answer a request");
        WireError::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = Document {
            r#type: "about:blank",
            title: self.status.canonical_reason().unwrap_or("error"),
            status: self.status.as_u16(),
            detail: &self.error.message,
            code: &self.error.code,
            retryable: self.error.retryable,
        };
        let mut response = (self.status, axum::Json(document)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.error.retryable {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}
