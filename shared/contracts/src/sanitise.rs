//! Which error codes and texts may leave a worker (interaction contract, section 7).

use crate::limits::{ERROR_CODE_CHARS_MAX, ERROR_MESSAGE_CHARS_MAX};

/// Why an error text may not be published. Never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unsafe interaction error {part}: {reason}")]
pub struct UnsafeText {
    /// `code` or `message`.
    pub part: &'static str,
    /// The rule it breaks.
    pub reason: &'static str,
}

/// Checks an error code.
///
/// # Errors
/// When it is empty, too long or has other characters than `A-Z a-z 0-9 _ . -`.
pub fn check_public_code(code: &str) -> Result<(), UnsafeText> {
    let refuse = |reason| Err(UnsafeText { part: "code", reason });
    if code.is_empty() {
        return refuse("empty");
    }
    if code.chars().count() > ERROR_CODE_CHARS_MAX {
        return refuse("longer than 64 characters");
    }
    if !code.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-')) {
        return refuse("characters other than A-Z a-z 0-9 _ . -");
    }
    Ok(())
}

/// Checks an error message.
///
/// # Errors
/// When it is empty, too long, or carries control characters, credentials, absolute paths or stack frames.
pub fn check_public_message(message: &str) -> Result<(), UnsafeText> {
    let refuse = |reason| Err(UnsafeText { part: "message", reason });
    if message.is_empty() {
        return refuse("empty");
    }
    if message.chars().count() > ERROR_MESSAGE_CHARS_MAX {
        return refuse("longer than 512 characters");
    }
    if message.chars().any(|c| c < ' ') {
        return refuse("control character");
    }
    Ok(())
}
