//! What one task asks for: its request, whether it stops on purpose, how long it pauses before another attempt.

use ditto_contracts::{ErrorClass, Json, WireError, codes, limits::ERROR_CODE_CHARS_MAX};
use sha2::{Digest as _, Sha256};

use crate::{
    Scope, Task,
    failure::{check_size, error, expression},
    graph_run::GraphCx,
    identity::{CallIdentity, identify},
};

/// Longest pause before another attempt, in milliseconds.
const BACKOFF_MS_MAX: u64 = 86_400_000;

/// Tells requests of one call id apart; the ledger compares them in full.
pub(crate) type RequestHash = [u8; 16];

pub(crate) fn request_hash(task: &Task, request: &Json) -> RequestHash {
    let mut hash = Sha256::new();
    hash.update(task.node.as_str());
    hash.update([0]);
    hash.update(request.as_bytes());
    let digest = hash.finalize();
    let mut short = [0; 16];
    short.copy_from_slice(&digest[..16]);
    short
}

/// What a task asks for, and which call that is.
pub(crate) fn request(task: &Task, scope: &Scope<'_>, cx: &GraphCx<'_>) -> Result<(Json, CallIdentity), WireError> {
    let request = task.input.evaluate(scope)?;
    check_size(&format!("task {}: input", task.id), request.len())?;
    let identity = identify(&task.node, &request, cx.run.iteration, &task.id)?;
    Ok((request, identity))
}

/// The failure that a `fail` expression asks for.
pub(crate) fn on_purpose(task: &Task, value: &Json) -> Result<Option<WireError>, WireError> {
    if value.is_null() {
        return Ok(None);
    }
    let Some(text) = value.to_text() else {
        return Err(expression(&format!("{}.fail", task.id), "must be text: the error code, or empty"));
    };
    if text.is_empty() {
        return Ok(None);
    }
    let is_code = text.len() <= ERROR_CODE_CHARS_MAX
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
    let code = if is_code { text.as_str() } else { codes::TASK_FAILED };
    Ok(Some(error(ErrorClass::Failed, code, &format!("task {} stopped: {text}", task.id))))
}

pub(crate) fn pause_ms(task: &Task, attempt: u16) -> u64 {
    match task.retry {
        Some(retry) if attempt > 1 => {
            let doublings = u32::from(attempt - 2).min(63);
            retry.backoff_ms.saturating_mul(1 << doublings).min(BACKOFF_MS_MAX)
        }
        _ => 0,
    }
}
