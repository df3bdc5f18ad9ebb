//! Runs of graphs, loops and plan functions, driven as a coordinator would drive them.
//!
//! Every decision is made twice: by the machine in memory and by one restored from the checkpoint before it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed; helpers stand outside of test functions"
)]

mod fn_plans;
mod graphs;
mod loops;
mod machine;
mod random;
mod support;
