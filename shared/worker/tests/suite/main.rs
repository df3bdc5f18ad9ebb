//! The worker against a scripted ledger on the bus in process.

mod claims;
mod ends;
mod ledger;
mod lease;
mod support;
mod values;
