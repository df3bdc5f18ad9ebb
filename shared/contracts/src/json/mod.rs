//! JSON kept as the bytes that arrived.
//!
//! A [`Json`] is checked once at the edge (grammar, depth, duplicate keys, Unicode) and then copied, sliced and hashed
//! as text. Numbers are never converted, so integers beyond 2^53, `-0` and `1e2` come out as they went in.

mod scanner;
#[cfg(test)]
mod tests;
mod writer;

use std::fmt;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

pub use self::writer::JsonWriter;
use self::{
    scanner::{Parts, Scanner},
    writer::push_string,
};
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
