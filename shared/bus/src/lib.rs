//! The bus: a doorbell between coordinators and workers. It may lose, repeat, delay or reorder every message; nothing
//! that matters is known only here.
//!
//! Two implementations stand behind one trait and one conformance suite: [`nats`] (JetStream) and [`local`] (in
//! process).

mod bus;
pub mod local;
pub mod nats;
mod sendable;
mod subject;
mod time;

pub use bus::{
    Ack, Bus, BusError, BusEvent, BusLimits, ConsumerSpec, Delivery, Message, Published, Pull, Received, StreamSpec,
    StreamState, Subscription,
};
