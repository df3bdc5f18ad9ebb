//! How a run ends that its plan did not end itself, and what every end says about unknown outcomes.

use ditto_contracts::{CallUid, ErrorClass, JsonWriter, RunStatus, WireError, codes};

use crate::{Ending, failure::error};

/// Most calls an error message names.
const NAMED_CALLS_MAX: usize = 5;

pub(crate) fn ending(status: RunStatus, error: WireError) -> Ending {
    Ending { status, output: None, error: Some(error) }
}

pub(crate) fn unknown_error(unknown: &[(CallUid, String)]) -> WireError {
    let message = format!("unknown outcome of {}", named(unknown));
    error(ErrorClass::Unknown, codes::OUTCOME_UNKNOWN, &message)
}

/// `0/pay (01…), …`
fn named(unknown: &[(CallUid, String)]) -> String {
    let shown = unknown.iter().take(NAMED_CALLS_MAX);
    let mut text = shown.map(|(call, label)| format!("{label:.60} ({call})")).collect::<Vec<_>>().join(", ");
    if unknown.len() > NAMED_CALLS_MAX {
        text.push_str(&format!(" and {} more", unknown.len() - NAMED_CALLS_MAX));
    }
    text
}

/// An end must say which effects are unknown: all of them in the output where it is free, some in the message.
pub(crate) fn report_unknown(ending: &mut Ending, unknown: &[(CallUid, String)]) {
    if ending.output.is_none() {
        let mut w = JsonWriter::new();
        w.begin_object().key("unknown").begin_array();
        for (call, label) in unknown {
            w.begin_object().key("call").string(call.as_str()).key("label").string(label).end();
        }
        ending.output = Some(w.finish());
    }
    if let Some(reason) = &mut ending.error
        && reason.code != codes::OUTCOME_UNKNOWN
    {
        let message = format!("{}; unknown outcome of {}", reason.message, named(unknown));
        *reason = WireError { retryable: reason.retryable, ..error(reason.class, &reason.code, &message) };
    }
}
