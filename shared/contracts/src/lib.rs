//! What crosses a process boundary: identities, JSON values, node results, errors, limits and the wire messages.
//!
//! Nothing here does I/O. Every type that a client or a foreign worker meets is serialised as `camelCase` JSON and has
//! a JSON Schema under `proto/`.

mod error;
mod ids;
pub mod interaction;
mod json;
pub mod limits;
mod observe;
mod policy;
mod sanitise;
mod status;
pub mod wire;

pub use error::{ErrorClass, WireError, codes};
pub use ids::{
    Bucket, CallId, CallUid, ClaimToken, IdError, LoopName, Namespace, NodeType, Pool, Revision, RunId, SessionId,
    SubmitKey, TaskId,
};
pub use json::{Json, JsonError, JsonKind, JsonWriter};
pub use observe::observe;
pub use policy::{CallKind, CallPolicy, EffectClass, OnUnknown};
pub use sanitise::{UnsafeText, check_public_code, check_public_message};
pub use status::{ReceiptState, RunStatus, SettledBy, Verdict};
