//! Message headers: a small ordered list of ASCII names and values.

use std::{borrow::Cow, str::FromStr};

/// The header names of the wire contract.
pub mod names {
    #![allow(missing_docs)]
    pub const MSG_ID: &str = "Nats-Msg-Id";
    pub const WIRE: &str = "Ditto-Wire";
    pub const CALL: &str = "Ditto-Call";
    pub const BUCKET: &str = "Ditto-Bucket";
    pub const LOOP: &str = "Ditto-Loop";
    pub const NODE: &str = "Ditto-Node";
    pub const CLASS: &str = "Ditto-Class";
    pub const CLAIM: &str = "Ditto-Claim";
    pub const MODE: &str = "Ditto-Mode";
    pub const DISPATCH: &str = "Ditto-Dispatch";
    pub const REQUEST_HASH: &str = "Ditto-Request-Hash";
    pub const PAYLOAD: &str = "Ditto-Payload";
    pub const BUDGET_MS: &str = "Ditto-Budget-Ms";
    pub const REPLY: &str = "Ditto-Reply";
    pub const KEY: &str = "Ditto-Key";
    pub const SUBMIT_KEY: &str = "Ditto-Submit-Key";
    pub const FENCE: &str = "Ditto-Fence";
    pub const TOKEN: &str = "Ditto-Token";
    pub const SESSION: &str = "Ditto-Session";
    pub const ERROR: &str = "Ditto-Error";
    pub const TRACEPARENT: &str = "traceparent";
    pub const TRACESTATE: &str = "tracestate";
}

/// Why a message does not follow the wire contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireFormatError {
    /// A required header is absent.
    #[error("header {0} is missing")]
    Missing(&'static str),
    /// A header has a value of the wrong form.
    #[error("header {name} is not {expected}")]
    Header {
        /// Name of the header.
        name: &'static str,
        /// What was expected.
        expected: &'static str,
    },
    /// The sender speaks another version.
    #[error("wire version is not {}", super::WIRE_VERSION)]
    Version,
    /// The body is not what the contract says.
    #[error("body: {0}")]
    Body(String),
}

/// Headers of one message. Names compare without case, as NATS clients in other languages may write them differently.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Cow<'static, str>, String)>);

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a header under one of the contract's names.
    pub fn push(&mut self, name: &'static str, value: impl Into<String>) -> &mut Self {
        self.0.push((Cow::Borrowed(name), value.into()));
        self
    }

    /// Adds a header as it came from the bus.
    pub fn push_received(&mut self, name: &str, value: impl Into<String>) {
        self.0.push((Cow::Owned(name.to_owned()), value.into()));
    }

    /// Replaces every header of that name.
    pub fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.0.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.push(name, value);
    }

    /// The first value of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }

    /// The value, or [`WireFormatError::Missing`].
    ///
    /// # Errors
    /// When there is none.
    pub fn require(&self, name: &'static str) -> Result<&str, WireFormatError> {
        self.get(name).ok_or(WireFormatError::Missing(name))
    }

    /// The value read as `T`; `Ok(None)` when absent.
    ///
    /// # Errors
    /// When it is there and is no `T`.
    pub fn read<T: FromStr>(&self, name: &'static str, expected: &'static str) -> Result<Option<T>, WireFormatError> {
        match self.get(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| WireFormatError::Header { name, expected }),
        }
    }

    /// The value read as `T`.
    ///
    /// # Errors
    /// When it is absent or no `T`.
    pub fn read_required<T: FromStr>(&self, name: &'static str, expected: &'static str) -> Result<T, WireFormatError> {
        self.read(name, expected)?.ok_or(WireFormatError::Missing(name))
    }

    /// All headers in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(n, v)| (n.as_ref(), v.as_str()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Refuses a message of another wire version.
    ///
    /// # Errors
    /// When `Ditto-Wire` is absent or another version.
    pub fn check_version(&self) -> Result<(), WireFormatError> {
        match self.get(names::WIRE) {
            Some(super::WIRE_VERSION) => Ok(()),
            Some(_) => Err(WireFormatError::Version),
            None => Err(WireFormatError::Missing(names::WIRE)),
        }
    }
}
