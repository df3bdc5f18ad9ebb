//! The coordinator: runs loops and keeps their checkpoints and receipts.

pub mod store;
