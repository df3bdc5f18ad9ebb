//! How values of the seam stand in columns, the same for both databases.

use std::{fmt::Display, str::FromStr};

use bytes::Bytes;
use ditto_contracts::{
    CallPolicy, CallUid, ErrorClass, Json, OnUnknown, WireError,
    limits::{INLINE_BYTES_MAX, VALUE_BYTES_MAX},
    wire::PayloadRef,
};
use ditto_sql::{DbFailure, classify, redacted};

use super::{SessionRole, StoreError, StoreResult};

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let text = redacted(&error).to_string();
        match classify(&error) {
            DbFailure::Unavailable | DbFailure::Timeout | DbFailure::Conflict => Self::Unavailable(text),
            DbFailure::Full | DbFailure::ReadOnly => Self::ReadOnly(text),
            DbFailure::Constraint { .. } | DbFailure::BadData => Self::BadItem(text),
            DbFailure::Other => Self::Other(text),
        }
    }
}

/// First pause before a call is looked at again, in milliseconds.
pub(crate) const DISPATCH_FIRST_MS: i64 = 5_000;
/// Longest pause, in milliseconds.
pub(crate) const DISPATCH_MAX_MS: i64 = 300_000;
/// Most dispatches of a class R call.
pub(crate) const DISPATCHES_MAX: i64 = 10;
/// How long a session that only went silent may still hold an attempt, in milliseconds.
pub(crate) const SILENT_MS: i64 = 86_400_000;

/// Pause after dispatch (or query) number `n`, from 1: 5 s, 10 s, 20 s, … 5 min.
pub(crate) fn backoff_ms(n: i64) -> i64 {
    let doublings = u32::try_from((n - 1).clamp(0, 16)).unwrap_or(16);
    (DISPATCH_FIRST_MS << doublings).min(DISPATCH_MAX_MS)
}

/// Pause after dispatch `n` of a call. For an unclaimed one the bus redelivers until its budget is over.
pub(crate) fn dispatch_pause_ms(policy: &CallPolicy, budget_ms: Option<u64>, n: i64) -> i64 {
    if policy.is_claimed() {
        return backoff_ms(n);
    }
    backoff_ms(n).max(ms(budget_ms.unwrap_or(policy.timeout_ms)).saturating_add(DISPATCH_FIRST_MS))
}

/// A duration as a column; one beyond the range is the end of time.
pub(crate) fn ms(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

/// An identity read from a column.
pub(crate) fn id<T: FromStr<Err: Display>>(text: &str) -> StoreResult<T> {
    text.parse().map_err(|error: T::Err| StoreError::Other(format!("stored identity: {error}")))
}

/// An optional identity read from a column.
pub(crate) fn id_opt<T: FromStr<Err: Display>>(text: Option<&str>) -> StoreResult<Option<T>> {
    text.map(id).transpose()
}

/// A closed set's value read from a column.
pub(crate) fn code<T>(value: Option<T>, what: &str) -> StoreResult<T> {
    value.ok_or_else(|| StoreError::Schema(format!("unknown {what}")))
}

/// JSON read from a column: it was checked when it came in.
pub(crate) fn json(bytes: Vec<u8>) -> Json {
    Json::from_checked(Bytes::from(bytes))
}

/// A hash read from a column.
pub(crate) fn hash(bytes: &[u8]) -> StoreResult<[u8; 32]> {
    bytes.try_into().map_err(|_| StoreError::Other("stored hash has another length".into()))
}

/// A pinned policy read from a column.
pub(crate) fn policy(bytes: &[u8]) -> StoreResult<CallPolicy> {
    serde_json::from_slice(bytes).map_err(|error| StoreError::Schema(format!("stored policy: {error}")))
}

/// Our own values as JSON.
pub(crate) fn encode<T: serde::Serialize + ?Sized>(value: &T) -> StoreResult<Json> {
    Json::from_serialize(value).map_err(|error| StoreError::BadItem(error.to_string()))
}

/// A value as it is stored: in its row, or as a payload named there.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Kept {
    /// In the row.
    pub(crate) inline: Option<Json>,
    /// To be stored as a payload in the same transaction (`big`), or stored before.
    pub(crate) reference: Option<PayloadRef>,
    /// The value of `reference` when it must be stored now.
    pub(crate) big: Option<Json>,
}

impl Kept {
    /// Decides by size.
    pub(crate) fn of(value: &Json) -> StoreResult<Self> {
        let size = value.len();
        if size <= INLINE_BYTES_MAX {
            return Ok(Self { inline: Some(value.clone()), ..Self::default() });
        }
        let size = u32::try_from(size).ok().filter(|size| *size as usize <= VALUE_BYTES_MAX);
        let size = size.ok_or_else(|| StoreError::BadItem(format!("value has more than {VALUE_BYTES_MAX} bytes")))?;
        let reference = PayloadRef { digest: value.sha256(), size };
        Ok(Self { inline: None, reference: Some(reference), big: Some(value.clone()) })
    }

    /// For a value that may be absent.
    pub(crate) fn of_opt(value: Option<&Json>) -> StoreResult<Self> {
        value.map_or_else(|| Ok(Self::default()), Self::of)
    }
}

/// The calls a checkpoint names: as a run machine wrote it, or plain lists in `open` and `kept`, which may be absent.
pub(crate) fn checkpoint_calls(checkpoint: &Json) -> Vec<CallUid> {
    // The run machine shortens the ids by what they share.
    if let Ok(references) = ditto_graph::RunMachine::references(checkpoint) {
        return references.open.into_iter().chain(references.kept).collect();
    }
    let mut calls = Vec::new();
    for name in ["open", "kept"] {
        let Some(list) = checkpoint.field(name) else { continue };
        calls.extend(list.elements().filter_map(|item| item.to_text()).filter_map(|text| CallUid::new(text).ok()));
    }
    calls
}

/// The number of a role.
pub(crate) const fn role_code(role: SessionRole) -> i16 {
    match role {
        SessionRole::Coordinator => 1,
        SessionRole::Worker => 2,
    }
}

/// The role of a number.
pub(crate) const fn role_from(code: i16) -> Option<SessionRole> {
    match code {
        1 => Some(SessionRole::Coordinator),
        2 => Some(SessionRole::Worker),
        _ => None,
    }
}

/// The number of a rule for unknown outcomes.
pub(crate) const fn on_unknown_code(on_unknown: OnUnknown) -> i16 {
    match on_unknown {
        OnUnknown::Park => 1,
        OnUnknown::Surface => 2,
        OnUnknown::Fail => 3,
    }
}

/// The text of an event number of the attempt log.
pub(crate) fn event_text(code: i16) -> &'static str {
    match code {
        1 => "superseded",
        2 => "released",
        3 => "late",
        4 => "query",
        5 => "person",
        _ => "other",
    }
}

/// The text of an error class.
pub(crate) const fn class_text(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::InvalidInput => "invalid_input",
        ErrorClass::Denied => "denied",
        ErrorClass::NotFound => "not_found",
        ErrorClass::Conflict => "conflict",
        ErrorClass::Unavailable => "unavailable",
        ErrorClass::Timeout => "timeout",
        ErrorClass::Cancelled => "cancelled",
        ErrorClass::Failed => "failed",
        ErrorClass::Unknown => "unknown",
        ErrorClass::Internal => "internal",
    }
}

/// The error class of a text; one that this build does not know is internal.
pub(crate) fn class_from(text: &str) -> ErrorClass {
    match text {
        "invalid_input" => ErrorClass::InvalidInput,
        "denied" => ErrorClass::Denied,
        "not_found" => ErrorClass::NotFound,
        "conflict" => ErrorClass::Conflict,
        "unavailable" => ErrorClass::Unavailable,
        "timeout" => ErrorClass::Timeout,
        "cancelled" => ErrorClass::Cancelled,
        "failed" => ErrorClass::Failed,
        "unknown" => ErrorClass::Unknown,
        _ => ErrorClass::Internal,
    }
}

/// An error from its four columns.
pub(crate) fn error(
    class: Option<String>,
    code: Option<String>,
    message: Option<String>,
    retryable: Option<bool>,
) -> Option<WireError> {
    Some(WireError {
        class: class_from(&class?),
        code: code?,
        message: message.unwrap_or_default(),
        retryable: retryable.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let pauses: Vec<i64> = (1..=8).map(backoff_ms).collect();
        assert_eq!(pauses, [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]);
        assert_eq!(backoff_ms(i64::MAX), DISPATCH_MAX_MS);
        let unclaimed = CallPolicy::read_only();
        assert_eq!(dispatch_pause_ms(&unclaimed, Some(60_000), 1), 65_000);
        assert_eq!(dispatch_pause_ms(&CallPolicy::keyed(), Some(60_000), 1), 5_000);
    }

    #[test]
    fn every_error_class_survives_its_text() {
        for text in [
            "invalid_input",
            "denied",
            "not_found",
            "conflict",
            "unavailable",
            "timeout",
            "cancelled",
            "failed",
            "unknown",
            "internal",
        ] {
            assert_eq!(class_text(class_from(text)), text);
        }
    }

    #[test]
    fn a_checkpoint_names_its_calls() {
        let uid = "0".repeat(26);
        let checkpoint = Json::parse(format!(r#"{{"open":["{uid}","no uid"],"kept":["{uid}"],"body":1}}"#)).unwrap();
        assert_eq!(checkpoint_calls(&checkpoint).len(), 2);
        assert!(checkpoint_calls(&Json::null()).is_empty());
    }
}
