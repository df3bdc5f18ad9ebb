//! The bus on NATS JetStream.
//!
//! Requests, confirmations and pulls run over pooled inbox subscriptions of this crate instead of the client's own
//! JetStream layer: it keeps no state for what timed out, a pull wakes on the message itself, and replies are read with
//! types that do not depend on how `serde_json` is built.
//!
//! Known limit of the client library: a message whose headers are not UTF-8 makes it drop the connection. The bus
//! reconnects, and a stored message of that kind is gone once its deliveries are used up.

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
