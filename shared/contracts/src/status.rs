//! The closed sets of states that appear in the ledger, on the wire and in the API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! stored_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
        #[repr(i16)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant = $value),+ }

        impl $name {
            /// Every value, in the order of the stored numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The number stored in the ledger.
            pub const fn code(self) -> i16 { self as i16 }
            /// The value for a stored number; `None` for a number this build does not know.
            pub const fn from_code(code: i16) -> Option<Self> {
                match code { $($value => Some(Self::$variant),)+ _ => None }
            }
            /// The text used on the wire and in the API.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
            /// The value for its text.
            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
    };
}
pub(crate) use stored_enum;

stored_enum! {
    /// Where one call stands, as stored in its receipt.
    ReceiptState {
        /// Decided and stored; nobody may start it yet.
        Planned = 1 "planned",
        /// One attempt was granted.
        Claimed = 2 "claimed",
        /// Evidence says the action happened.
        Succeeded = 3 "succeeded",
        /// Proof says the action did not happen and cannot happen any more.
        Failed = 4 "failed",
        /// It may have happened; settled only when `settled_ms` is set.
        Unknown = 5 "unknown",
        /// Cancelled before anything was sent.
        Cancelled = 6 "cancelled",
    }
}

stored_enum! {
    /// Who settled a receipt.
    SettledBy {
        /// The worker that held the claim.
        Worker = 1 "worker",
        /// A result that arrived after the claim was given up.
        LateResult = 2 "late_result",
        /// A query by key at the backend.
        Query = 3 "query",
        /// A named person.
        Person = 4 "person",
        /// A sweeper of the coordinator.
        Sweeper = 5 "sweeper",
    }
}

stored_enum! {
    /// Where a run stands.
    RunStatus {
        /// Accepted, not yet driven.
        Queued = 1 "queued",
        /// A coordinator drives it.
        Running = 2 "running",
        /// Waiting for a signal, a time or evidence; holds no memory.
        Parked = 3 "parked",
        /// A cancel was asked for; waits until nothing of it is in flight.
        Cancelling = 4 "cancelling",
        /// Ended as defined.
        Completed = 5 "completed",
        /// Ended before its goal, with a usable part.
        Partial = 6 "partial",
        /// Ended with an error.
        Failed = 7 "failed",
        /// Ended because only a person can decide how to go on.
        NeedsHuman = 8 "needs-human",
        /// Ended by a cancel. Does not mean undone.
        Cancelled = 9 "cancelled",
    }
}

impl RunStatus {
    /// Whether the run is over.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Partial | Self::Failed | Self::NeedsHuman | Self::Cancelled)
    }
}

stored_enum! {
    /// What one attempt amounts to, decided where the answer was seen.
    Verdict {
        /// A valid success answer for this call.
        Succeeded = 3 "succeeded",
        /// A definite refusal: it did not happen.
        Failed = 4 "failed",
        /// Anything else after the first byte, for K and N.
        Unknown = 5 "unknown",
        /// Cancelled without effect (class R).
        Cancelled = 6 "cancelled",
    }
}

impl From<Verdict> for ReceiptState {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Succeeded => Self::Succeeded,
            Verdict::Failed => Self::Failed,
            Verdict::Unknown => Self::Unknown,
            Verdict::Cancelled => Self::Cancelled,
        }
    }
}
