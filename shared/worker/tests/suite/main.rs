//! The worker against a scripted ledger on the bus in process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod claims;
mod ends;
mod lease;
mod ledger;
mod support;
mod values;
