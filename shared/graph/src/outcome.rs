//! From the outcome of a call to the value of its task, or to its failure. Never turns anything into a success.

use ditto_contracts::{
    ErrorClass, Json, JsonWriter, ReceiptState, WireError, codes,
    interaction::{DeliveryStatus, ExternalResult, ExternalStatus, InteractionError, OutputReceipt},
};

use crate::{
    CallOutcome,
    failure::{error, internal},
    identity::Answer,
};

/// The value of a task, and where the next decision finds it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TaskValue {
    pub(crate) value: Json,
    /// The value is the output in a receipt that no longer changes: it need not be copied into the checkpoint.
    pub(crate) in_receipt: bool,
}

/// What a task is worth when its call ended like this.
///
/// An output that the worker gave is the value, unless it claims a success that the receipt does not confirm. Without
/// one, a result is made from the receipt where the node has a shape for it.
///
/// # Errors
/// The task fails: its handler rejected the call, or the node has no value for such an end.
pub(crate) fn task_value(answer: &Answer, outcome: &CallOutcome) -> Result<TaskValue, WireError> {
    let state = outcome.state;
    match state {
        ReceiptState::Planned | ReceiptState::Claimed => return Err(internal("a call without an outcome was settled")),
        ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Unknown | ReceiptState::Cancelled => {}
    }
    if let Some(output) = &outcome.output
        && (state == ReceiptState::Succeeded || admits_no_success(answer, output))
    {
        // An unknown outcome may still be resolved by evidence; the run keeps what it saw.
        return Ok(TaskValue { value: output.clone(), in_receipt: state != ReceiptState::Unknown });
    }
    if let (ReceiptState::Failed, None, Some(rejection)) = (state, &outcome.output, &outcome.error)
        && is_rejection(rejection.class)
    {
        return Err(rejection.clone());
    }
    let made = |value| Ok(TaskValue { value, in_receipt: false });
    match answer {
        Answer::External { call_id, source, mcp } => made(external(outcome, call_id, source, *mcp)?),
        Answer::Delivery { delivery_id } => made(delivery(outcome, delivery_id)?),
        Answer::Other if state == ReceiptState::Succeeded => made(Json::null()),
        Answer::Other => Err(reason(outcome)),
    }
}

/// Whether a handler refused the call before it did anything.
fn is_rejection(class: ErrorClass) -> bool {
    match class {
        ErrorClass::InvalidInput | ErrorClass::Denied | ErrorClass::NotFound | ErrorClass::Internal => true,
        ErrorClass::Conflict
        | ErrorClass::Unavailable
        | ErrorClass::Timeout
        | ErrorClass::Cancelled
        | ErrorClass::Failed
        | ErrorClass::Unknown => false,
    }
}

/// Whether an output says itself that it is no success. One that says nothing could be taken for one.
fn admits_no_success(answer: &Answer, output: &Json) -> bool {
    let holder = match answer {
        Answer::External { mcp: true, .. } => output.field("result"),
        Answer::External { mcp: false, .. } | Answer::Delivery { .. } | Answer::Other => Some(output.clone()),
    };
    let status = holder.and_then(|holder| holder.field("status")).and_then(|status| status.to_text());
    status.is_some_and(|status| !matches!(status.as_str(), "success" | "succeeded" | "accepted" | "completed" | "ok"))
}

/// Why a call did not succeed. Its class never says more than the receipt knows.
fn reason(outcome: &CallOutcome) -> WireError {
    let (class, code, message) = match outcome.state {
        ReceiptState::Cancelled => (ErrorClass::Cancelled, codes::CANCELLED, "cancelled before it started"),
        ReceiptState::Failed => (ErrorClass::Failed, codes::TASK_FAILED, "the call failed"),
        ReceiptState::Planned | ReceiptState::Claimed | ReceiptState::Succeeded | ReceiptState::Unknown => {
            (ErrorClass::Unknown, codes::OUTCOME_UNKNOWN, "the outcome of the call is unknown")
        }
    };
    let mut reason = outcome.error.clone().unwrap_or_else(|| error(class, code, message));
    if outcome.state == ReceiptState::Unknown {
        reason.class = ErrorClass::Unknown;
        reason.retryable = false;
    } else if reason.class == ErrorClass::Unknown {
        reason.class = class;
    }
    reason
}

fn external(outcome: &CallOutcome, call_id: &str, source: &str, mcp: bool) -> Result<Json, WireError> {
    let status = match outcome.state {
        ReceiptState::Succeeded => ExternalStatus::Success,
        ReceiptState::Failed if is_timeout(outcome) => ExternalStatus::Timeout,
        ReceiptState::Failed => ExternalStatus::Failed,
        ReceiptState::Cancelled => ExternalStatus::Cancelled,
        ReceiptState::Planned | ReceiptState::Claimed | ReceiptState::Unknown => ExternalStatus::Unknown,
    };
    let mut result = ExternalResult::with_error(call_id, source, status, InteractionError::from(reason(outcome)));
    if status == ExternalStatus::Success {
        (result.error, result.content) = (None, Some(Json::null()));
    }
    let result = written(&result)?;
    if !mcp {
        return Ok(result);
    }
    let mut w = JsonWriter::new();
    w.begin_object().key("operation").string("invoke").key("result").value(&result);
    Ok(w.finish())
}

fn delivery(outcome: &CallOutcome, delivery_id: &str) -> Result<Json, WireError> {
    let status = match outcome.state {
        ReceiptState::Succeeded => DeliveryStatus::Accepted,
        ReceiptState::Failed | ReceiptState::Cancelled => DeliveryStatus::Rejected,
        ReceiptState::Planned | ReceiptState::Claimed | ReceiptState::Unknown => DeliveryStatus::Unknown,
    };
    let error = (status != DeliveryStatus::Accepted).then(|| InteractionError::from(reason(outcome)));
    written(&OutputReceipt { delivery_id: delivery_id.into(), status, artifacts: None, error, metadata: None })
}

/// A failed receipt proves that nothing was done, so the caller may read `timeout` and repeat.
fn is_timeout(outcome: &CallOutcome) -> bool {
    outcome.error.as_ref().is_some_and(|error| {
        error.class == ErrorClass::Timeout || matches!(error.code.as_str(), codes::TIMEOUT | codes::DEADLINE_EXCEEDED)
    })
}

fn written<T: serde::Serialize>(value: &T) -> Result<Json, WireError> {
    Json::from_serialize(value).map_err(|problem| internal(&problem.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReceiptState::{Cancelled, Failed, Succeeded, Unknown};

    const OK: &str = r#"{"status":"success"}"#;
    const BAD: &str = r#"{"status":"failed"}"#;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    fn outcome(state: ReceiptState, output: Option<&str>, error: Option<(ErrorClass, &str)>) -> CallOutcome {
        let error = error.map(|(class, code)| WireError::new(class, code, "why").retryable());
        CallOutcome { state, settle_rev: 1, output: output.map(json), error }
    }

    fn tool() -> Answer {
        Answer::External { call_id: "c".into(), source: "pay".into(), mcp: false }
    }

    fn mcp() -> Answer {
        Answer::External { call_id: "c".into(), source: "s:pay".into(), mcp: true }
    }

    fn sink() -> Answer {
        Answer::Delivery { delivery_id: "d".into() }
    }

    /// Status and error code of a value, or `!code` of a failure.
    fn shown(answer: &Answer, outcome: &CallOutcome) -> String {
        match task_value(answer, outcome) {
            Err(error) => format!("!{}", error.code),
            Ok(TaskValue { value, .. }) => {
                let holder = value.field("result").unwrap_or(value.clone());
                let status = holder.field("status").and_then(|s| s.to_text()).unwrap_or(value.to_string());
                match holder.field("error").and_then(|e| e.field("code")).and_then(|c| c.to_text()) {
                    Some(code) => format!("{status} {code}"),
                    None => status,
                }
            }
        }
    }

    #[test]
    fn each_end_of_a_call_has_the_value_of_the_table() {
        let none = None;
        let fail = |code| Some((ErrorClass::Failed, code));
        #[rustfmt::skip]
        let table = [
            // answer  state      output       error                                        value
            (tool(),   Succeeded, Some(OK),    none,                                        "success"),
            (tool(),   Succeeded, None,        none,                                        "success"),
            (tool(),   Failed,    Some(BAD),   fail("X"),                                   "failed"),
            (tool(),   Failed,    Some(OK),    fail("X"),                                   "failed X"),
            (tool(),   Failed,    Some("7"),   fail("X"),                                   "failed X"),
            (tool(),   Failed,    None,        fail("POISONED"),                            "failed POISONED"),
            (tool(),   Failed,    None,        fail("DEADLINE_EXCEEDED"),                   "timeout DEADLINE_EXCEEDED"),
            (tool(),   Failed,    None,        Some((ErrorClass::Timeout, "T")),            "timeout T"),
            (tool(),   Failed,    None,        Some((ErrorClass::Unavailable, "NO_WORKER_AVAILABLE")), "failed NO_WORKER_AVAILABLE"),
            (tool(),   Failed,    None,        Some((ErrorClass::InvalidInput, "INVALID_ARGUMENTS")), "!INVALID_ARGUMENTS"),
            (tool(),   Failed,    None,        Some((ErrorClass::Denied, "PERMISSION_DENIED")), "!PERMISSION_DENIED"),
            (tool(),   Failed,    None,        Some((ErrorClass::NotFound, "UNKNOWN_TOOL")), "!UNKNOWN_TOOL"),
            (tool(),   Failed,    None,        Some((ErrorClass::Internal, "I")),           "!I"),
            (tool(),   Failed,    Some(BAD),   Some((ErrorClass::InvalidInput, "I")),       "failed"),
            (tool(),   Cancelled, None,        none,                                        "cancelled CANCELLED"),
            (tool(),   Unknown,   None,        Some((ErrorClass::Timeout, "TIMEOUT")),      "unknown TIMEOUT"),
            (tool(),   Unknown,   None,        none,                                        "unknown OUTCOME_UNKNOWN"),
            (tool(),   Unknown,   Some(OK),    none,                                        "unknown OUTCOME_UNKNOWN"),
            (tool(),   Unknown,   Some(r#"{"status":"unknown"}"#), none,                    "unknown"),
            (mcp(),    Unknown,   None,        fail("RESPONSE_LOST"),                       "unknown RESPONSE_LOST"),
            (mcp(),    Failed,    None,        fail("X"),                                   "failed X"),
            (mcp(),    Failed,    Some(r#"{"operation":"invoke","result":{"status":"failed"}}"#), fail("X"), "failed"),
            (mcp(),    Unknown,   Some(r#"{"operation":"invoke","result":{"status":"success"}}"#), none, "unknown OUTCOME_UNKNOWN"),
            (sink(),   Succeeded, None,        none,                                        "accepted"),
            (sink(),   Failed,    None,        fail("FULL"),                                "rejected FULL"),
            (sink(),   Cancelled, None,        none,                                        "rejected CANCELLED"),
            (sink(),   Unknown,   None,        fail("WORKER_LOST"),                         "unknown WORKER_LOST"),
            (sink(),   Unknown,   Some(r#"{"status":"accepted"}"#), none,                   "unknown OUTCOME_UNKNOWN"),
            (sink(),   Failed,    None,        Some((ErrorClass::Denied, "D")),             "!D"),
            (Answer::Other, Succeeded, Some("null"), none,                                  "null"),
            (Answer::Other, Succeeded, None,   none,                                        "null"),
            (Answer::Other, Failed,    None,   none,                                        "!TASK_FAILED"),
            (Answer::Other, Failed,    Some(BAD), none,                                     "failed"),
            (Answer::Other, Failed,    Some("[1]"), fail("X"),                              "!X"),
            (Answer::Other, Cancelled, None,   none,                                        "!CANCELLED"),
            (Answer::Other, Unknown,   None,   fail("WORKER_LOST"),                         "!WORKER_LOST"),
            (Answer::Other, Unknown,   Some(OK), none,                                      "!OUTCOME_UNKNOWN"),
        ];
        for (answer, state, output, error, expected) in table {
            let outcome = outcome(state, output, error);
            assert_eq!(shown(&answer, &outcome), expected, "{answer:?} {outcome:?}");
        }
    }

    #[test]
    fn an_unknown_outcome_is_never_retryable_and_keeps_its_class() {
        let lost = outcome(Unknown, None, Some((ErrorClass::Failed, "RESPONSE_LOST")));
        let failure = task_value(&Answer::Other, &lost).unwrap_err();
        assert_eq!((failure.class, failure.retryable), (ErrorClass::Unknown, false));
        let value = task_value(&tool(), &lost).unwrap().value;
        assert!(value.as_str().contains(r#""retryable":false"#), "{value}");
    }

    #[test]
    fn only_outputs_that_cannot_change_stay_in_their_receipt() {
        let kept = |state, text| task_value(&tool(), &outcome(state, Some(text), None)).unwrap().in_receipt;
        assert!(kept(Succeeded, OK) && kept(Failed, BAD));
        assert!(!kept(Unknown, r#"{"status":"unknown"}"#));
    }
}
