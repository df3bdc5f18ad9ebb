//! What an error of one value says: in words of the file rather than of Rust, and never with a text value in it.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

use super::problem::Place;

/// What to take out before the next try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Culprit {
    Variable(String),
    Path(String),
}

/// Where an error happened.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) path: String,
    pub(super) place: Place,
    pub(super) culprit: Culprit,
}

/// An error of one value; the innermost container fills in the spot.
#[derive(Debug)]
pub(super) struct DeError {
    pub(super) message: String,
    pub(super) missing: Option<&'static str>,
    pub(super) spot: Option<Spot>,
}

impl DeError {
    pub(super) fn at(mut self, spot: impl FnOnce() -> Spot) -> Self {
        self.spot.get_or_insert_with(spot);
        self
    }
}

impl fmt::Display for DeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DeError {}

impl de::Error for DeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { message: message.to_string(), missing: None, spot: None }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {}, found {}", wanted(expected), shown(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {}, found {length} items", wanted(expected)))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format_args!("expected {}, found another text", one_of(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        match nearest(field, expected.iter().copied()) {
            Some(near) => Self::custom(format_args!("unknown key, did you mean `{near}`?")),
            None if expected.is_empty() => Self::custom("unknown key, expected none"),
            None => Self::custom(format_args!("unknown key, expected {}", one_of(expected))),
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { message: "expected a value, found none".into(), missing: Some(field), spot: None }
    }
}

/// `` `a`, `b` or `c` ``, with "one of" in front of more than one.
pub(super) fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [only] => format!("`{only}`"),
        [first @ .., last] => format!("one of `{}` or `{last}`", first.join("`, `")),
    }
}

/// The name that was probably meant.
pub(super) fn nearest<'n>(given: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let close = |name: &&str| distance(given, name) <= 1 + given.len().min(name.len()) / 6;
    names.filter(close).min_by_key(|name| distance(given, name))
}

/// Edits (insert, delete, replace, swap neighbours) between two names; names are short.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = vec![vec![0_usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

/// What a visitor wants, in words of the file rather than of Rust.
fn wanted(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    match text.as_str() {
        "u8" => format!("a whole number from 0 to {}", u8::MAX),
        "u16" => format!("a whole number from 0 to {}", u16::MAX),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, not negative".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "`true` or `false`".into(),
        "a string" | "a borrowed string" => "a text".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        text if text.starts_with("a nonzero u") => "a whole number from 1".into(),
        text if text.starts_with("struct ") => "a mapping".into(),
        text if text.starts_with("enum ") => "a name".into(),
        text => text.to_owned(),
    }
}

/// What was found. A text is never shown: it might be a secret.
fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("`{value}`"),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(value) => format!("the number {value}"),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a mapping".into(),
        Unexpected::Other(what) => what.into(),
        _ => "a text".into(),
    }
}
