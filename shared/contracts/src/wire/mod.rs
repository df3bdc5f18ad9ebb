//! The messages on the bus: subjects, headers, jobs, results, ledger requests, submissions (receipts contract, §11).

mod headers;
mod job;
pub mod ledger;
mod result;
pub mod subjects;
mod submit;

pub use headers::{Headers, WireFormatError, names};
pub use job::{Job, JobMode, PayloadRef};
pub use result::{ResultBody, ResultMessage};
pub use submit::{SubmitBody, SubmitKind, SubmitReply};

/// The version of the wire contract in `Ditto-Wire`.
pub const WIRE_VERSION: &str = "1";
