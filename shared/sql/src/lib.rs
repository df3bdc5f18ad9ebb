//! Opens Postgres or SQLite, brings a schema up to date, and says what a database error means for the caller.
//!
//! The only home of sqlx set-up. Rules for all code over it:
//! - No `begin()`, query or `commit()` inside `select!`, a timeout or a task that may be aborted: a cancelled commit
//!   is neither done nor undone, and must be read back.
//! - An error inside a transaction ends it. Never go on to `commit()`: on Postgres that "succeeds" and stores nothing.
//! - What an error means comes from [`classify`], never from its text.

mod failure;
mod migrate;
mod open;

pub use failure::{DbFailure, classify, redacted};
pub use migrate::{MigrateError, Migrated, Migration, migrate, migrate_within};
pub use open::{Db, OpenError, SqlOptions, SqliteDb, open};
