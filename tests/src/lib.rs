//! What tests of a whole fleet share.

/// Private PostgreSQL, NATS and Redis servers on free ports.
pub use ditto_test_servers as servers;
