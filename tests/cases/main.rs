//! Acceptance cases that need a coordinator with workers, and the register of all cases (`tests/cases.md`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail their test")]

mod architecture;
mod engine;
mod register;
mod results;
mod runs;
mod settings;
