//! Puts values together as text.

use std::fmt::Write as _;

use super::Json;

/// Appends a JSON string.
pub(super) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c)); // writing to a String cannot fail
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Writes JSON text piece by piece: the hot path's way to put values together without parsing them again.
#[derive(Debug, Default)]
pub struct JsonWriter {
    out: String,
    /// For each open container: whether it already has an entry.
    open: Vec<(char, bool)>,
    after_key: bool,
}

impl JsonWriter {
    /// An empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    fn separate(&mut self) {
        if std::mem::take(&mut self.after_key) {
            return;
        }
        if let Some((_, filled)) = self.open.last_mut() {
            if *filled {
                self.out.push(',');
            }
            *filled = true;
        }
    }

    /// Opens an object.
    pub fn begin_object(&mut self) -> &mut Self {
        self.separate();
        self.out.push('{');
        self.open.push(('}', false));
        self
    }

    /// Opens an array.
    pub fn begin_array(&mut self) -> &mut Self {
        self.separate();
        self.out.push('[');
        self.open.push((']', false));
        self
    }

    /// Closes the innermost container.
    pub fn end(&mut self) -> &mut Self {
        if let Some((close, _)) = self.open.pop() {
            self.out.push(close);
        }
        self
    }

    /// Writes the key of the next member.
    pub fn key(&mut self, name: &str) -> &mut Self {
        self.separate();
        push_string(&mut self.out, name);
        self.out.push(':');
        self.after_key = true;
        self
    }

    /// Writes a value as it is.
    pub fn value(&mut self, value: &Json) -> &mut Self {
        self.separate();
        self.out.push_str(value.as_str());
        self
    }

    /// Writes a string.
    pub fn string(&mut self, text: &str) -> &mut Self {
        self.separate();
        push_string(&mut self.out, text);
        self
    }

    /// Writes an integer.
    pub fn integer(&mut self, value: impl Into<i128>) -> &mut Self {
        self.separate();
        let _ = write!(self.out, "{}", value.into()); // writing to a String cannot fail
        self
    }

    /// Closes what is open and returns the value.
    pub fn finish(mut self) -> Json {
        while !self.open.is_empty() {
            self.end();
        }
        if self.out.is_empty() {
            self.out.push_str("null");
        }
        Json(self.out.into())
    }
}
