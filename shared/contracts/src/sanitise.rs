//! Which error codes and texts may leave a worker (interaction contract, section 7).
//!
//! Two rules differ from the reference on purpose. `sk-` counts at the start of a word only, so that `task-1` and
//! `disk-0` are fine. And more credentials are refused: JSON web tokens, NATS seeds, PEM blocks, `Authorization`
//! values and addresses with user information.

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
    if has_credential(message) {
        return refuse("credential");
    }
    if has_absolute_path(message) {
        return refuse("absolute path");
    }
    if has_stack_frame(message) {
        return refuse("stack frame");
    }
    Ok(())
}

/// What follows each place where a word begins.
fn word_starts(text: &str) -> impl Iterator<Item = &str> {
    let mut before = None;
    text.char_indices().filter_map(move |(at, c)| {
        let begins = !before.is_some_and(|b: char| b.is_alphanumeric() || b == '_');
        before = Some(c);
        begins.then(|| &text[at..])
    })
}

/// What follows `prefix`, compared without case; the prefix is ASCII.
fn after<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let head = text.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

fn starts_with(text: &str, of: impl Fn(char) -> bool) -> bool {
    text.chars().next().is_some_and(of)
}

fn has_credential(text: &str) -> bool {
    text.contains("-----BEGIN")
        || has_user_information(text)
        || word_starts(text).any(|word| {
            after(word, "bearer").is_some_and(|rest| starts_with(rest, char::is_whitespace))
                || after(word, "sk-").is_some_and(|rest| starts_with(rest, |c| c.is_ascii_alphanumeric()))
                || after(word, "authorization")
                    .is_some_and(|rest| starts_with(rest.trim_start(), |c| c == ':' || c == '='))
                || is_web_token(word)
                || is_nats_seed(word)
        })
}

/// `eyJ….…`: the first two parts of a JSON web token; NATS user tokens are such.
fn is_web_token(word: &str) -> bool {
    let part = |text: &str| text.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')).count();
    word.starts_with("eyJ") && {
        let first = part(word);
        first >= 10 && word[first..].strip_prefix('.').is_some_and(|rest| part(rest) >= 4)
    }
}

/// A seed of an nkey: `S`, a kind, and 56 characters of base32.
fn is_nats_seed(word: &str) -> bool {
    let length = word.bytes().take_while(|b| matches!(b, b'A'..=b'Z' | b'2'..=b'7')).count();
    length >= 58 && word.starts_with('S')
}

/// `scheme://user:password@host`.
fn has_user_information(text: &str) -> bool {
    text.match_indices("://").any(|(at, found)| {
        let rest = &text[at + found.len()..];
        let end = rest.find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#')).unwrap_or(rest.len());
        rest[..end].contains('@')
    })
}

/// What follows each place where a path would begin: the start, or after white space, `(`, `"` or `'`.
fn path_starts(text: &str) -> impl Iterator<Item = &str> {
    let mut before = None;
    text.char_indices().filter_map(move |(at, c)| {
        let begins = before.is_none_or(|b: char| b.is_whitespace() || matches!(b, '(' | '"' | '\''));
        before = Some(c);
        begins.then(|| &text[at..])
    })
}

fn has_absolute_path(text: &str) -> bool {
    path_starts(text).any(|rest| {
        let mut chars = rest.chars();
        match (chars.next(), chars.next(), chars.next()) {
            (Some(drive), Some(':'), Some('/' | '\\')) if drive.is_ascii_alphabetic() => true,
            (Some('\\'), Some('\\'), _) => {
                let host = rest[2..].find(['\\', '/']);
                host.is_some_and(|end| end > 0 && !rest[2..2 + end].contains(char::is_whitespace))
            }
            (Some('/'), Some(next), _) => next != '/' && !next.is_whitespace(),
            _ => false,
        }
    })
}

/// Endings of files that stack traces name.
const SCRIPTS: &[&str] = &["js", "mjs", "cjs", "jsx", "ts", "mts", "cts", "tsx", "rs", "py", "go"];

fn has_stack_frame(text: &str) -> bool {
    let mut before = None;
    text.char_indices().any(|(at, c)| {
        let begins = before.is_none_or(char::is_whitespace);
        before = Some(c);
        begins && after(&text[at..], "at").is_some_and(is_frame)
    })
}

/// `[async] [name (]file.ext:line[:column]` after the word `at`.
fn is_frame(rest: &str) -> bool {
    let trimmed = rest.trim_start();
    if trimmed.len() == rest.len() {
        return false;
    }
    let rest = match after(trimmed, "async") {
        Some(rest) if starts_with(rest, char::is_whitespace) => rest.trim_start(),
        _ => trimmed,
    };
    let location = |text: &str| {
        let end = text.find(|c: char| c.is_whitespace() || c == ')').unwrap_or(text.len());
        is_location(&text[..end])
    };
    location(rest) || rest.find('(').is_some_and(|open| location(&rest[open + 1..]))
}

fn is_location(text: &str) -> bool {
    let text = text.trim_end_matches([',', '.', ';']);
    SCRIPTS.iter().any(|ending| {
        text.match_indices(&format!(".{ending}:")).any(|(at, found)| {
            let mut numbers = text[at + found.len()..].split(':');
            at > 0
                && numbers.clone().count() <= 2
                && numbers.all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_126_128_harmless_messages_are_published() {
        let longest = "m".repeat(512);
        for message in [
            "Retry at 12:30",
            longest.as_str(),
            "task-1 and disk-0 are busy",
            "see https://example.com/path for more",
            "a / b, and // too",
            "risk- free",
            "authorization failed",
            "at home",
            "look at file.ts",
            "looked at main.rs for 3:4",
            "version 1.2.3 at 10:20:30",
            "input $.items[3].name: expected a string",
            "größer als 5 🛡",
        ] {
            assert_eq!(check_public_message(message), Ok(()), "{message}");
        }
    }

    #[test]
    fn case_127_unsafe_messages_are_refused() {
        let seed = format!("seed S{}", "UAA2".repeat(15));
        let long = "m".repeat(513);
        #[rustfmt::skip]
        let table = [
            ("", "empty"),
            (long.as_str(), "longer than 512 characters"),
            ("a\nb", "control character"),
            ("a\rb", "control character"),
            ("a\u{1b}[0m", "control character"),
            ("sk-abc", "credential"),
            ("key SK-1", "credential"),
            ("(sk-live-1)", "credential"),
            ("bearer x", "credential"),
            ("the bearer of this", "credential"),
            ("token: BEARER\u{a0}x", "credential"),
            ("Authorization: Basic abc", "credential"),
            ("authorization = abc", "credential"),
            ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx", "credential"),
            ("-----BEGIN NATS USER JWT-----", "credential"),
            (seed.as_str(), "credential"),
            ("nats://user:secret@host:4222 is away", "credential"),
            ("C:/x", "absolute path"),
            ("at c:\\x", "absolute path"),
            ("see \\\\host\\share", "absolute path"),
            ("/etc/passwd", "absolute path"),
            ("no file (/x)", "absolute path"),
            ("no file '/x'", "absolute path"),
            ("route /crm", "absolute path"),
            ("at name (file.ts:42:7)", "stack frame"),
            ("x at async run (a.mjs:1)", "stack frame"),
            ("x at file.js:10:2", "stack frame"),
            ("failed at src/main.rs:10:2.", "stack frame"),
        ];
        for (message, reason) in table {
            assert_eq!(check_public_message(message).map_err(|error| error.reason), Err(reason), "{message}");
        }
    }

    #[test]
    fn case_129_codes_are_checked() {
        for code in ["A B", "", "é", "a/b"] {
            assert!(check_public_code(code).is_err(), "{code}");
        }
        assert!(check_public_code(&"A".repeat(65)).is_err());
        assert_eq!(check_public_code("A_b.c-1"), Ok(()));
        assert_eq!(check_public_code(&"A".repeat(64)), Ok(()));
    }
}
