//! The bus on NATS JetStream.
//!
//! Requests, confirmations and pulls run over pooled inbox subscriptions of this crate instead of the client's own
//! JetStream layer: it keeps no state for what timed out, a pull wakes on the message itself, and replies are read with
//! types that do not depend on how `serde_json` is built.

mod ack;
mod api;
mod bus;
mod config;
mod connect;
mod events;
mod inbox;
mod link;
mod plain;
mod publish;
mod pull;
mod wire;

pub use bus::NatsBus;
pub use config::{NatsConfig, NatsTls, Secret};
pub use connect::ConnectError;
