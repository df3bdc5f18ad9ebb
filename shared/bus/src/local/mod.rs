//! The bus inside one process: the same streams, pulls and plain messages as JetStream, without a server.
//!
//! It is as forgetful as a bus may be: nothing survives the process. Locks are short and never held across an await;
//! waiting is a wake-up, never a poll; one timer task serves all redeliveries and delays and ends with the bus.

mod ack;
mod bus;
mod consumer;
mod faults;
mod ids;
mod plain;
mod pull;
mod requests;
mod stream;
mod timer;

pub use bus::LocalBus;
pub use faults::Faults;
