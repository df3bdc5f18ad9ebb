//! Tests that need more than one crate: real servers, real processes, a whole fleet. One module per subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

mod chaos;
mod clients;
mod embedded_kill;
mod long_loop;
mod servers;
mod takeover;
mod traces;
mod values;
