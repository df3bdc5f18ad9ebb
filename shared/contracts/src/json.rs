//! JSON kept as the bytes that arrived.
//!
//! A [`Json`] is checked once at the edge (grammar, depth, duplicate keys, Unicode) and then copied, sliced and hashed
//! as text. Numbers are never converted, so integers beyond 2^53, `-0` and `1e2` come out as they went in.

use std::{fmt, ops::Range};

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::limits::JSON_DEPTH_MAX;

/// One JSON value as text. Cloning and taking a part of it copies no bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Json(Bytes);

/// Why a text is not acceptable JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason} at {path} (byte {offset})")]
pub struct JsonError {
    /// What is wrong.
    pub reason: String,
    /// Where, as a path from the root such as `$.items[3].name`.
    pub path: String,
    /// Offset in bytes from the start of the text.
    pub offset: usize,
}

/// The kind of a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonKind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number of any size and precision.
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

impl Json {
    /// Checks a text: JSON grammar, nesting at most [`JSON_DEPTH_MAX`], no duplicate keys, strings that are valid
    /// Unicode. White space around the value is dropped, everything else is kept to the byte.
    ///
    /// # Errors
    /// Names the first problem with its path and offset.
    pub fn parse(text: impl Into<Bytes>) -> Result<Self, JsonError> {
        Self::parse_around(text, 0)
    }

    /// The same for a message in which values stand so many levels deep: each of them may still have the full depth.
    ///
    /// # Errors
    /// Names the first problem with its path and offset.
    pub fn parse_around(text: impl Into<Bytes>, levels: usize) -> Result<Self, JsonError> {
        let text: Bytes = text.into();
        let range = {
            let mut scanner = Scanner::new(&text, JSON_DEPTH_MAX + levels);
            scanner.utf8()?;
            scanner.space();
            let start = scanner.at;
            scanner.value()?;
            let end = scanner.at;
            scanner.space();
            if scanner.at != text.len() {
                return Err(scanner.error("unexpected text after the value"));
            }
            start..end
        };
        Ok(Self(text.slice(range)))
    }

    /// Writes a value of our own types.
    ///
    /// # Errors
    /// When the value cannot be written as JSON (a map with keys that are not strings, a failing `Serialize`).
    pub fn from_serialize<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self(serde_json::to_vec(value)?.into()))
    }

    /// Takes text that was checked before, e.g. read back from the ledger. Not checked again.
    pub fn from_checked(text: Bytes) -> Self {
        Self(text)
    }

    /// `null`
    pub fn null() -> Self {
        Self(Bytes::from_static(b"null"))
    }

    /// `{}`
    pub fn empty_object() -> Self {
        Self(Bytes::from_static(b"{}"))
    }

    /// A JSON string with this content.
    pub fn string(text: &str) -> Self {
        let mut out = String::with_capacity(text.len() + 2);
        push_string(&mut out, text);
        Self(out.into())
    }

    /// `true` or `false`
    pub fn bool(value: bool) -> Self {
        Self(Bytes::from_static(if value { b"true" } else { b"false" }))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("null") // always valid: checked by `parse`, or written by serde_json
    }

    /// The text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text as shared bytes, without a copy.
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }

    /// Length of the text in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true: the shortest JSON value has one byte. Exists beside [`Json::len`].
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// SHA-256 of the text.
    pub fn sha256(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }

    /// What kind of value it is.
    pub fn kind(&self) -> JsonKind {
        match self.0.first() {
            Some(b'n') => JsonKind::Null,
            Some(b't' | b'f') => JsonKind::Bool,
            Some(b'"') => JsonKind::String,
            Some(b'[') => JsonKind::Array,
            Some(b'{') => JsonKind::Object,
            _ => JsonKind::Number,
        }
    }

    /// Whether it is `null`.
    pub fn is_null(&self) -> bool {
        self.kind() == JsonKind::Null
    }

    /// Whether it is `true`.
    pub fn is_true(&self) -> bool {
        self.0.as_ref() == b"true"
    }

    /// Reads it as one of our own types.
    ///
    /// # Errors
    /// When the value does not have the shape of `T`; the message names the part that has not, as a path from the root.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.0).map_err(|error| self.named::<T>(error))
    }

    /// The error with the path of what it is about; found by reading again, which only a failure pays for.
    fn named<T: DeserializeOwned>(&self, error: serde_json::Error) -> serde_json::Error {
        let mut deserializer = serde_json::Deserializer::from_slice(&self.0);
        match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
            Err(found) if found.path().iter().next().is_some() => {
                serde::de::Error::custom(format!("$.{}: {error}", found.path()))
            }
            Ok(_) | Err(_) => error,
        }
    }

    /// The content when it is a string.
    pub fn to_text(&self) -> Option<String> {
        (self.kind() == JsonKind::String).then(|| serde_json::from_slice(&self.0).ok()).flatten()
    }

    /// The member of an object, or `None` when it is no object or has no such key.
    pub fn field(&self, name: &str) -> Option<Self> {
        self.members().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The element of an array, or `None` when it is no array or too short.
    pub fn index(&self, n: usize) -> Option<Self> {
        self.elements().nth(n)
    }

    /// The members of an object in their order; empty for anything else.
    pub fn members(&self) -> impl Iterator<Item = (String, Self)> + '_ {
        let mut parts = Parts::new(self, b'{');
        std::iter::from_fn(move || {
            let key = parts.key()?;
            let value = parts.value()?;
            Some((key, value))
        })
    }

    /// The elements of an array in their order; empty for anything else.
    pub fn elements(&self) -> impl Iterator<Item = Self> + '_ {
        let mut parts = Parts::new(self, b'[');
        std::iter::from_fn(move || parts.value())
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Default for Json {
    fn default() -> Self {
        Self::null()
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(self.as_str()).map_err(serde::ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    /// Takes the raw text; the enclosing document must have been checked by [`Json::parse`].
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(Bytes::from(String::from(Box::<str>::from(raw)))))
    }
}

impl JsonSchema for Json {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "JsonValue".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        true.into()
    }
}

/// Appends a JSON string.
fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                use fmt::Write as _;
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
        use fmt::Write as _;
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

/// Walks the direct parts of a checked container without looking inside them.
struct Parts<'a> {
    json: &'a Json,
    scanner: Option<Scanner<'a>>,
}

impl<'a> Parts<'a> {
    fn new(json: &'a Json, open: u8) -> Self {
        let scanner = (json.0.first() == Some(&open)).then(|| {
            let mut scanner = Scanner::new(&json.0, usize::MAX); // checked when it came in
            scanner.at = 1;
            scanner
        });
        Self { json, scanner }
    }

    fn begin(&mut self) -> Option<u8> {
        let scanner = self.scanner.as_mut()?;
        scanner.space();
        if scanner.peek() == Some(b',') {
            scanner.at += 1;
            scanner.space();
        }
        match scanner.peek() {
            None | Some(b']' | b'}') => None,
            next => next,
        }
    }

    fn key(&mut self) -> Option<String> {
        self.begin()?;
        let scanner = self.scanner.as_mut()?;
        let range = scanner.skip_string();
        let key = decode_key(scanner.text.get(range)?);
        scanner.space();
        scanner.at += 1;
        scanner.space();
        Some(key)
    }

    fn value(&mut self) -> Option<Json> {
        self.begin()?;
        let scanner = self.scanner.as_mut()?;
        let start = scanner.at;
        scanner.skip_value();
        Some(Json(self.json.0.slice(start..scanner.at)))
    }
}

fn decode_key(quoted: &[u8]) -> String {
    if quoted.contains(&b'\\') {
        serde_json::from_slice(quoted).unwrap_or_default()
    } else {
        String::from_utf8_lossy(quoted.get(1..quoted.len() - 1).unwrap_or_default()).into_owned()
    }
}

/// Reads JSON grammar over a byte text. `value` checks; the `skip_…` functions trust what was checked.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    path: Vec<Step>,
    depth_max: usize,
}

enum Step {
    Key(Range<usize>),
    Index(usize),
}

impl<'a> Scanner<'a> {
    fn new(text: &'a [u8], depth_max: usize) -> Self {
        Self { text, at: 0, path: Vec::new(), depth_max }
    }

    fn error(&self, reason: impl Into<String>) -> JsonError {
        let mut path = String::from("$");
        for step in &self.path {
            match step {
                Step::Key(range) => {
                    let key = decode_key(&self.text[range.clone()]);
                    path.push('.');
                    path.extend(key.chars().take(64));
                }
                Step::Index(n) => path.push_str(&format!("[{n}]")),
            }
            if path.len() > 512 {
                path.push('…');
                break;
            }
        }
        JsonError { reason: reason.into(), path, offset: self.at }
    }

    fn utf8(&mut self) -> Result<(), JsonError> {
        if let Err(error) = std::str::from_utf8(self.text) {
            self.at = error.valid_up_to();
            return Err(self.error("invalid UTF-8"));
        }
        Ok(())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            None => Err(self.error("unexpected end")),
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => self.string().map(drop),
            Some(b't') => self.word(b"true"),
            Some(b'f') => self.word(b"false"),
            Some(b'n') => self.word(b"null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.error("expected a JSON value")),
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.error("expected a JSON value"))
        }
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if start == self.at { Err(self.error("expected a digit")) } else { Ok(()) }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// One string with its quotes; returns its range.
    fn string(&mut self) -> Result<Range<usize>, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                None => return Err(self.error("unexpected end in a string")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(start..self.at);
                }
                Some(b'\\') => self.escape()?,
                Some(0..=0x1f) => return Err(self.error("control character in a string")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => {
                let unit = self.hex(self.at + 2)?;
                match unit {
                    0xd800..=0xdbff => {
                        let low = (self.text.get(self.at + 6..self.at + 8) == Some(b"\\u"))
                            .then(|| self.hex(self.at + 8))
                            .transpose()?;
                        if !matches!(low, Some(0xdc00..=0xdfff)) {
                            return Err(self.error("lone surrogate in a string"));
                        }
                        self.at += 12;
                    }
                    0xdc00..=0xdfff => return Err(self.error("lone surrogate in a string")),
                    _ => self.at += 6,
                }
                Ok(())
            }
            _ => Err(self.error("invalid escape in a string")),
        }
    }

    fn hex(&self, at: usize) -> Result<u16, JsonError> {
        self.text
            .get(at..at + 4)
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u16::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.error("invalid escape in a string"))
    }

    fn enter(&mut self) -> Result<(), JsonError> {
        if self.path.len() >= self.depth_max {
            return Err(self.error(format!("nested deeper than {}", self.depth_max)));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self) -> Result<(), JsonError> {
        self.enter()?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        for n in 0.. {
            self.path.push(Step::Index(n));
            self.space();
            self.value()?;
            self.path.pop();
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    break;
                }
                None => return Err(self.error("unexpected end in an array")),
                Some(_) => return Err(self.error("expected , or ]")),
            }
        }
        Ok(())
    }

    fn object(&mut self) -> Result<(), JsonError> {
        self.enter()?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        let mut keys = Keys::default();
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key in double quotes"));
            }
            let key = self.string()?;
            self.path.push(Step::Key(key.clone()));
            if !keys.insert(self.text, key) {
                return Err(self.error("duplicate key"));
            }
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.error("expected :"));
            }
            self.at += 1;
            self.space();
            self.value()?;
            self.path.pop();
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                None => return Err(self.error("unexpected end in an object")),
                Some(_) => return Err(self.error("expected , or }")),
            }
        }
    }

    fn skip_string(&mut self) -> Range<usize> {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += 1;
            match byte {
                b'"' => break,
                b'\\' => self.at += 1,
                _ => {}
            }
        }
        start..self.at
    }

    fn skip_value(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.skip_string();
                    if depth == 0 {
                        return;
                    }
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => {
                    if depth == 0 {
                        return;
                    }
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        return;
                    }
                }
                b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return,
                _ => {}
            }
            self.at += 1;
        }
    }
}

/// The keys seen in one object. Most objects are small: a list is faster than a set, until it is not.
#[derive(Default)]
struct Keys {
    few: Vec<Range<usize>>,
    many: Option<std::collections::HashSet<String>>,
}

impl Keys {
    fn insert(&mut self, text: &[u8], key: Range<usize>) -> bool {
        if let Some(many) = &mut self.many {
            return many.insert(decode_key(&text[key]));
        }
        let new = &text[key.clone()];
        let repeated = self.few.iter().any(|old| {
            let old = &text[old.clone()];
            old == new || ((old.contains(&b'\\') || new.contains(&b'\\')) && decode_key(old) == decode_key(new))
        });
        self.few.push(key);
        if self.few.len() > 16 {
            self.many = Some(self.few.drain(..).map(|range| decode_key(&text[range])).collect());
        }
        !repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_full_depth_inside_a_message() {
        let message = |depth: usize| format!("{{\"output\":{}}}", nested(depth));
        assert!(Json::parse(message(JSON_DEPTH_MAX)).is_err());
        let json = Json::parse_around(message(JSON_DEPTH_MAX), 1).unwrap();
        assert_eq!(json.field("output").unwrap().as_str(), nested(JSON_DEPTH_MAX));
        assert!(Json::parse_around(message(JSON_DEPTH_MAX + 1), 1).is_err());
    }

    #[test]
    fn what_has_another_shape_is_named() {
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "only read")]
        struct Inner {
            number: u8,
            value: Json,
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "only read")]
        struct Outer {
            items: Vec<Inner>,
        }
        let json = Json::parse(r#"{"items":[{"number":1,"value":1e400},{"number":"x","value":{}}]}"#).unwrap();
        let error = json.to::<Outer>().unwrap_err().to_string();
        assert!(error.starts_with("$.items[1].number: invalid type: string"), "{error}");
        let json = Json::parse("[]").unwrap();
        assert!(!json.to::<Inner>().unwrap_err().to_string().starts_with("$."));
    }

    fn nested(depth: usize) -> String {
        "[".repeat(depth) + &"]".repeat(depth)
    }

    #[test]
    fn accepted_values_keep_their_bytes() {
        for text in [
            "0",
            "-0",
            "1e400",
            "1e2",
            "9007199254740993",
            "18446744073709551616",
            "0.10",
            "\"\\u0000\"",
            "\"🛡\"",
            "\"\\ud83d\\udee1\"",
            "{\"b\":1,\"a\":[ 1 , 2 ]}",
            "[]",
            "{}",
            "null",
            "true",
            "{\"$serde_json::private::Number\":\"1\"}",
        ] {
            assert_eq!(Json::parse(text).map(|j| j.to_string()), Ok(text.into()));
        }
        assert!(Json::parse(nested(128)).is_ok());
        assert_eq!(Json::parse(" 1 \n").unwrap().as_str(), "1");
    }

    #[test]
    fn refused_values_name_reason_and_path() {
        let table = [
            ("", "unexpected end at $"),
            ("{} {}", "unexpected text after the value"),
            ("\u{feff}1", "expected a JSON value"),
            ("[1,]", "expected a JSON value at $[1]"),
            ("{\"a\":1,\"\\u0061\":2}", "duplicate key at $.a"),
            ("{\"x\":{\"y\":[0,\"\\ud800\"]}}", "lone surrogate in a string at $.x.y[1]"),
            ("\"\\udc00\"", "lone surrogate"),
            ("\"\\ud800x\"", "lone surrogate"),
            ("\"a\nb\"", "control character"),
            ("01", "unexpected text"),
            ("1.", "expected a digit"),
            ("{a:1}", "expected a key"),
            ("tru", "expected a JSON value"),
            ("\"\\u12G4\"", "invalid escape"),
            ("\"\\u+123\"", "invalid escape"),
        ];
        for (text, fragment) in table {
            let error = Json::parse(text).unwrap_err().to_string();
            assert!(error.contains(fragment), "{text}: {error}");
        }
        assert!(Json::parse(nested(129)).unwrap_err().reason.contains("deeper than 128"));
        assert!(Json::parse(nested(10_000)).is_err());
        assert_eq!(Json::parse(vec![b'"', 0xff, b'"']).unwrap_err().offset, 1);
        let many: String = (0..40).map(|n| format!("\"k{n}\":{n},")).collect();
        assert!(Json::parse(format!("{{{many}\"k7\":0}}")).unwrap_err().reason.contains("duplicate key"));
    }

    #[test]
    fn parts_are_slices_of_the_same_text() {
        let json = Json::parse(r#"{ "a" : [ 1e2, {"x":"]}"} , "s" ], "n":null, "q\"" : -0 }"#).unwrap();
        assert_eq!(json.field("a").unwrap().index(0).unwrap().as_str(), "1e2");
        assert_eq!(json.field("a").unwrap().index(1).unwrap().field("x").unwrap().to_text().unwrap(), "]}");
        assert_eq!(json.field("a").unwrap().elements().count(), 3);
        assert_eq!(json.field("q\"").unwrap().as_str(), "-0");
        assert!(json.field("n").unwrap().is_null());
        assert!(json.field("zz").is_none() && json.index(0).is_none());
        assert_eq!(Json::parse("[]").unwrap().elements().count(), 0);
    }

    #[test]
    fn a_writer_puts_values_together() {
        let mut writer = JsonWriter::new();
        writer.begin_object().key("a").begin_array().integer(1).string("x\"\u{1}").end();
        writer.key("b").value(&Json::parse("1e2").unwrap()).key("c").begin_object();
        assert_eq!(writer.finish().as_str(), r#"{"a":[1,"x\"\u0001"],"b":1e2,"c":{}}"#);
    }

    #[test]
    fn values_travel_inside_our_types_unchanged() {
        #[derive(Serialize, Deserialize)]
        struct Holder {
            value: Json,
        }
        let text = r#"{"value":{"b":1e2,"a":18446744073709551616}}"#;
        let holder: Holder = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&holder).unwrap(), text);
    }
}
