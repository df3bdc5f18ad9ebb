//! Identities as types, so that two of them cannot be swapped, each checked once at the edge.

use std::{fmt, str::FromStr, sync::Arc};

use rand::RngExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::{limits, policy::CallKind};

/// Why a text is not an identity of this kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {problem}; expected {expected}")]
pub struct IdError {
    /// What was to be read, e.g. `call id`.
    pub kind: &'static str,
    /// What is wrong with it. Never repeats the text itself.
    pub problem: String,
    /// The rule.
    pub expected: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $expected:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
        #[schemars(transparent)]
        pub struct $name(#[schemars(with = "String")] Arc<str>);

        impl $name {
            /// Checks and takes the text.
            ///
            /// # Errors
            /// When the text breaks the rule named in the error.
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                let check: fn(&str) -> Result<(), String> = $check;
                check(text).map_err(|problem| IdError { kind: $kind, problem, expected: $expected })?;
                Ok(Self(Arc::from(text)))
            }
            /// The text.
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, "{}({:?})", stringify!($name), &*self.0) }
        }
        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> { Self::new(text) }
        }
        impl AsRef<str> for $name { fn as_ref(&self) -> &str { &self.0 } }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str(&self.0) }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                Self::new(text.as_ref()).map_err(serde::de::Error::custom)
            }
        }
    };
}

fn length(text: &str, max: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    if text.len() > max {
        return Err(format!("has {} bytes", text.len()));
    }
    Ok(())
}

/// A free identity chosen by a user: any visible text.
fn free_text(text: &str) -> Result<(), String> {
    length(text, limits::ID_BYTES_MAX)?;
    if text.trim().is_empty() {
        return Err("is blank".into());
    }
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(format!("contains the control character U+{:04X}", u32::from(c))),
        None => Ok(()),
    }
}

/// A name that becomes one token of a subject.
fn token(text: &str, max: usize) -> Result<(), String> {
    length(text, max)?;
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))) {
        Some(c) => Err(format!("contains {c:?}")),
        None => Ok(()),
    }
}

fn node_type(text: &str) -> Result<(), String> {
    length(text, 128)?;
    if !text.contains('.') {
        return Err("has no dot".into());
    }
    for part in text.split('.') {
        let mut chars = part.chars();
        if !chars.next().is_some_and(|c| c.is_ascii_uppercase()) {
            return Err("has a part that does not start with an upper-case letter".into());
        }
        if !chars.all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
            return Err("has a part with characters other than A-Z, 0-9 and _".into());
        }
    }
    Ok(())
}

text_id! {
    /// Names a call within its run: a tool call's `call.id`, a delivery's `deliveryId`, or minted by the graph.
    CallId, "call id", "1 to 512 bytes of visible text without control characters", free_text
}
text_id! {
    /// A client's own key for a submission; the same key is the same run for ever.
    SubmitKey, "submit key", "1 to 512 bytes of visible text without control characters", free_text
}
text_id! {
    /// A tenant. Part of every key and query.
    Namespace, "namespace", "1 to 63 of A-Z a-z 0-9 _ -", |t| token(t, 63)
}
text_id! {
    /// The name of a loop, graph or node definition.
    LoopName, "definition name", "1 to 128 of A-Z a-z 0-9 _ - .", |t| {
        length(t, 128)?;
        match t.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))) {
            Some(c) => Err(format!("contains {c:?}")),
            None if t.starts_with('.') || t.ends_with('.') || t.contains("..") => Err("has an empty part".into()),
            None => Ok(()),
        }
    }
}
text_id! {
    /// The hash of a definition in canonical form, or a version chosen for a plan written in Rust.
    Revision, "revision", "1 to 64 of A-Z a-z 0-9 _ -", |t| token(t, 64)
}
text_id! {
    /// Names a task within its graph.
    TaskId, "task id", "1 to 512 bytes of visible text without control characters", free_text
}
text_id! {
    /// A group of worker replicas that share one queue.
    Pool, "pool", "1 to 63 of A-Z a-z 0-9 _ -", |t| token(t, 63)
}
text_id! {
    /// One life of one process.
    SessionId, "session id", "1 to 64 of A-Z a-z 0-9 _ -", |t| token(t, 64)
}
text_id! {
    /// Proof of one granted claim; chosen by the worker before it asks, so that a lost reply can be read back.
    ClaimToken, "claim token", "1 to 64 of A-Z a-z 0-9 _ -", |t| token(t, 64)
}
text_id! {
    /// A dotted operation name such as `INTERACTION.ACT.TOOL`: the subject, the span and the file share it.
    NodeType, "node type", "two or more parts of A-Z 0-9 _ joined by dots, each starting with a letter", node_type
}
text_id! {
    /// One durable execution of a loop: 48 bit creation time and 80 random bit, 26 characters that sort by time.
    RunId, "run id", "26 characters of 0-9 A-Z without I L O U", uid_text
}
text_id! {
    /// One call of one run: a pure function of run, kind and call id, so that deciding again names the same call.
    CallUid, "call uid", "26 characters of 0-9 A-Z without I L O U", uid_text
}

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

fn digit(byte: u8) -> Option<u128> {
    ALPHABET.iter().position(|b| *b == byte).map(|p| p as u128)
}

fn uid_text(text: &str) -> Result<(), String> {
    let bytes = text.as_bytes();
    if bytes.len() != 26 {
        return Err(format!("has {} bytes", bytes.len()));
    }
    if !matches!(bytes[0], b'0'..=b'7') {
        return Err("is out of range".into());
    }
    if bytes.iter().any(|b| digit(*b).is_none()) {
        return Err("contains another character".into());
    }
    Ok(())
}

fn encode(value: u128) -> String {
    (0..26).map(|i| char::from(ALPHABET[((value >> (125 - 5 * i)) & 31) as usize])).collect()
}

fn created_ms(text: &str) -> i64 {
    let high = text.bytes().take(10).fold(0u128, |acc, b| (acc << 5) | digit(b).unwrap_or(0));
    i64::try_from(high).unwrap_or(i64::MAX)
}

/// The UTC day a run was created, in days since 1970: part of every ledger key, so that a day can be dropped at once.
pub type Bucket = i32;

fn bucket_of(created_ms: i64) -> Bucket {
    i32::try_from(created_ms.div_euclid(86_400_000)).unwrap_or(i32::MAX)
}

impl RunId {
    /// A new identity for a run created at this ledger time (milliseconds since 1970).
    pub fn generate(now_ms: i64) -> Self {
        let random: u128 = rand::rng().random::<u128>() >> 48;
        Self(encode((time_bits(now_ms) << 80) | random).into())
    }

    /// The day this run belongs to.
    pub fn bucket(&self) -> Bucket {
        bucket_of(created_ms(&self.0))
    }

    /// When it was created, in milliseconds since 1970 by the ledger's clock.
    pub fn created_ms(&self) -> i64 {
        created_ms(&self.0)
    }
}

impl CallUid {
    /// The identity of a call: the creation time of its run and 80 bit of SHA-256 over run, kind and call id.
    pub fn derive(run: &RunId, kind: CallKind, call: &CallId) -> Self {
        let mut hash = Sha256::new();
        hash.update(run.as_str());
        hash.update(kind.code().to_be_bytes());
        hash.update(call.as_str());
        let digest = hash.finalize();
        let low = digest[..10].iter().fold(0u128, |acc, b| (acc << 8) | u128::from(*b));
        Self(encode((time_bits(run.created_ms()) << 80) | low).into())
    }

    /// The day its run belongs to.
    pub fn bucket(&self) -> Bucket {
        bucket_of(created_ms(&self.0))
    }
}

fn time_bits(ms: i64) -> u128 {
    (ms.max(0) as u128) & ((1 << 48) - 1)
}

fn random_token() -> String {
    let random: u128 = rand::rng().random();
    encode(random >> 3)
}

impl SessionId {
    /// A fresh random identity.
    pub fn generate() -> Self {
        Self(random_token().into())
    }
}

impl ClaimToken {
    /// A fresh random token.
    pub fn generate() -> Self {
        Self(random_token().into())
    }
}

impl Namespace {
    /// The namespace of clients that name none.
    pub fn default_namespace() -> Self {
        Self(Arc::from("default"))
    }
}

/// The node types that Ditto itself knows by name.
impl NodeType {
    /// Runs one registered tool.
    pub const ACT_TOOL: &'static str = "INTERACTION.ACT.TOOL";
    /// Talks to MCP servers.
    pub const ACT_MCP: &'static str = "INTERACTION.ACT.MCP";
    /// Turns an external result into a tool message; pure.
    pub const OBSERVE: &'static str = "INTERACTION.OBSERVE";
    /// Hands a message to a sink.
    pub const OUTPUT: &'static str = "INTERACTION.OUTPUT";

    /// The kind of the calls of this node, part of their identity.
    pub fn call_kind(&self) -> CallKind {
        match self.as_str() {
            Self::ACT_MCP => CallKind::Mcp,
            Self::OUTPUT => CallKind::Delivery,
            text if text.starts_with("INFER.") => CallKind::Infer,
            text if text.starts_with("MEMORY.") => CallKind::Memory,
            text if text.starts_with("CONTEXT.") => CallKind::Context,
            _ => CallKind::Tool,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_keeps_its_time_and_sorts_by_it() {
        let (a, b) = (RunId::generate(1_796_000_000_000), RunId::generate(1_796_000_000_001));
        assert_eq!(a.created_ms(), 1_796_000_000_000);
        assert_eq!(a.bucket(), 20_787);
        assert!(a < b, "{a} {b}");
        assert_eq!(RunId::new(a.as_str()), Ok(a));
    }

    #[test]
    fn a_call_uid_is_a_function_of_run_kind_and_call_id() {
        let run = RunId::generate(1_796_000_000_000);
        let id = CallId::new("read:0").unwrap();
        let uid = CallUid::derive(&run, CallKind::Tool, &id);
        assert_eq!(uid, CallUid::derive(&run, CallKind::Tool, &id));
        assert_ne!(uid, CallUid::derive(&run, CallKind::Delivery, &id));
        assert_eq!(uid.bucket(), run.bucket());
    }

    #[test]
    fn ids_are_refused_with_the_reason_and_without_the_text() {
        let table = [
            (CallId::new("").map(drop), "is empty"),
            (CallId::new(" ").map(drop), "is blank"),
            (CallId::new("a\0b").map(drop), "U+0000"),
            (CallId::new("x".repeat(100 * 1024)).map(drop), "102400 bytes"),
            (Namespace::new("a.b").map(drop), "contains '.'"),
            (Namespace::new("*").map(drop), "contains '*'"),
            (Pool::new(">").map(drop), "contains '>'"),
            (NodeType::new("TOOL").map(drop), "has no dot"),
            (NodeType::new("A..B").map(drop), "upper-case letter"),
            (NodeType::new("ACT.pool.x").map(drop), "upper-case letter"),
            (RunId::new("x").map(drop), "has 1 bytes"),
            (LoopName::new("a..b").map(drop), "empty part"),
        ];
        for (result, fragment) in table {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(fragment), "{text}");
        }
        assert!(CallId::new("読む/..%2F*>").is_ok());
    }
}
