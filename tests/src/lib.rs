//! What tests of a whole fleet share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

/// Private PostgreSQL, NATS and Redis servers on free ports.
pub use ditto_test_servers as servers;

pub mod effects;
pub mod fleet;
pub mod process;
