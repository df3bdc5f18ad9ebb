//! Private, real servers for tests: [`Postgres`], [`Nats`] and [`Redis`], each in its own directory on its own port.
//!
//! # What a guard promises
//! A started server is ready: it has answered a request in its own protocol. It keeps its port and its data across
//! [`kill9`](Nats::kill9) and [`restart`](Nats::restart). When its guard is dropped the server and its directory are
//! gone. When the test process itself is killed, even with `SIGKILL`, they are gone a moment later: a small watcher
//! process outlives the test process and cleans up after it.
//!
//! # Which server a test should take
//! - A test that kills, pauses or wipes a server starts its own: `Postgres::start()`, `Nats::start()`,
//!   `Redis::start()`. NATS and Redis take a few hundredths of a second; PostgreSQL takes about a second the first
//!   time in a test process and a few tenths after that.
//! - Any other test that needs a database takes [`Postgres::fresh_database`]: one server for the whole test process,
//!   one new database for each test.
//! - The names of Ditto's streams are fixed (`DITTO_JOBS`, `DITTO_RESULTS`), so two tests on one NATS would take each
//!   other's jobs. A test that uses streams starts its own [`Nats`]. [`Nats::shared_url`] is for tests that only speak
//!   on subjects with names of their own.
//! - [`Redis::shared_url`] is one server for the test process: a test keeps to a key prefix of its own and never
//!   flushes.
//!
//! # Servers that already run
//! With `DITTO_TEST_POSTGRES_URL`, `DITTO_TEST_NATS_URL` or `DITTO_TEST_REDIS_URL` set, the shared functions use that
//! server instead of starting one. A test that needs to kill its server starts a private one all the same.
//!
//! # Where binaries come from
//! The directories in `DITTO_TEST_BIN_DIR`, then a `test-servers` folder above the test's own executable (where
//! `cargo xtask setup` puts what it fetches), then `PATH`, then Debian's `/usr/lib/postgresql/*/bin`. A server that is
//! not found is an error which says what to do, never a skipped test.

mod binary;
mod nats;
mod port;
mod postgres;
mod postgres_wire;
mod process;
mod redis;

pub use binary::find as find_binary;
pub use nats::{Nats, NatsOptions};
pub use port::free as free_port;
pub use postgres::{Postgres, PostgresOptions, TestDatabase};
pub use redis::Redis;
