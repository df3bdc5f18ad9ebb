//! What a call may do to the world, as its registration declares it and its receipt pins it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::stored_enum;

stored_enum! {
    /// What an unresolved attempt allows afterwards. The order is from lax to strict.
    EffectClass {
        /// Executing again changes nothing.
        ReadOnly = 1 "R",
        /// The backend turns the same key into one effect.
        Keyed = 2 "K",
        /// Never send again; the default.
        NonIdempotent = 3 "N",
    }
}

stored_enum! {
    /// What kind of call a receipt is for; part of its identity.
    CallKind {
        /// `INTERACTION.ACT.TOOL`, and every open node type.
        Tool = 1 "tool",
        /// `INTERACTION.ACT.MCP`.
        Mcp = 2 "mcp",
        /// `INTERACTION.OUTPUT`.
        Delivery = 3 "delivery",
        /// `INFER.*`.
        Infer = 4 "infer",
        /// `MEMORY.*`.
        Memory = 5 "memory",
        /// `CONTEXT.*`.
        Context = 6 "context",
    }
}

/// What a run does with a call whose outcome is unknown. None of them turns it into a success or repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "lowercase")]
pub enum OnUnknown {
    /// Wait for evidence or a person.
    #[default]
    Park,
    /// Hand `unknown` to the graph now.
    Surface,
    /// Stop the run.
    Fail,
}

/// The policy of one kind of call: announced by workers, pinned into each receipt when the call is decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct CallPolicy {
    /// Effect class.
    pub class: EffectClass,
    /// Claim although class R, because executing twice costs money or time.
    pub exclusive: bool,
    /// An unclaimed R call is wanted: needs class R, not exclusive, and the worker's own consent.
    pub skip_claim: bool,
    /// The worker can ask the backend by key (`Ditto-Mode: query`).
    pub query: bool,
    /// How long the backend guarantees a key, in milliseconds. `None`: for ever.
    pub key_ttl_ms: Option<u64>,
    /// Expression over `input` that yields the idempotency key; `None`: `ditto:<call_uid>`.
    pub key: Option<String>,
    /// The backend remembers refusals under the key.
    pub rejections_stored: bool,
    /// The tool's own error answer means "did not happen".
    pub error_is_definite: bool,
    /// Most attempts.
    pub max_attempts: u16,
    /// How long one attempt may run, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for CallPolicy {
    /// What holds for a call nobody described: class N, claimed, three attempts (only releases use more than one).
    fn default() -> Self {
        Self {
            class: EffectClass::NonIdempotent,
            exclusive: false,
            skip_claim: false,
            query: false,
            key_ttl_ms: None,
            key: None,
            rejections_stored: false,
            error_is_definite: true,
            max_attempts: 3,
            timeout_ms: 30_000,
        }
    }
}

impl CallPolicy {
    /// Class R, executed without a claim.
    pub fn read_only() -> Self {
        Self { class: EffectClass::ReadOnly, skip_claim: true, max_attempts: 5, ..Self::default() }
    }

    /// Class K.
    pub fn keyed() -> Self {
        Self { class: EffectClass::Keyed, max_attempts: 5, ..Self::default() }
    }

    /// Whether an attempt needs a claim.
    pub fn is_claimed(&self) -> bool {
        self.class != EffectClass::ReadOnly || self.exclusive || !self.skip_claim
    }

    /// The stricter of two contradictory announcements of one call, field by field.
    #[must_use]
    pub fn stricter(&self, other: &Self) -> Self {
        Self {
            class: self.class.max(other.class),
            exclusive: self.exclusive || other.exclusive,
            skip_claim: self.skip_claim && other.skip_claim,
            query: self.query && other.query,
            key_ttl_ms: match (self.key_ttl_ms, other.key_ttl_ms) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            key: if self.key == other.key { self.key.clone() } else { None },
            rejections_stored: self.rejections_stored && other.rejections_stored,
            error_is_definite: self.error_is_definite && other.error_is_definite,
            max_attempts: self.max_attempts.min(other.max_attempts),
            timeout_ms: self.timeout_ms.min(other.timeout_ms),
        }
    }
}
