//! One `ditto.yaml` plus environment, read once and strictly: every problem at once, each with its place.
//!
//! A service owns its struct (`Deserialize + Default + Validate`, with `#[serde(default, deny_unknown_fields,
//! rename_all = "camelCase")]`) and asks for it by section:
//!
//! ```
//! use ditto_runtime::config::{self, Check, DurationMs, Validate};
//!
//! #[derive(Debug, serde::Deserialize)]
//! #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
//! struct Interaction {
//!     tool_timeout: DurationMs,
//! }
//! impl Default for Interaction {
//!     fn default() -> Self {
//!         Self { tool_timeout: DurationMs::from_secs(30) }
//!     }
//! }
//! impl Validate for Interaction {
//!     fn validate(&self, check: &mut Check<'_>) {
//!         check.range("toolTimeout", self.tool_timeout, DurationMs::from_ms(1)..=DurationMs::from_secs(300));
//!     }
//! }
//!
//! let environment = [("DITTO_WORKER_INTERACTION_TOOL_TIMEOUT".to_owned(), "10s".to_owned())];
//! let tree = config::load(None, environment.into_iter())?;
//! let mut reader = tree.reader();
//! let interaction: Interaction = reader.section("workers.interaction");
//! reader.finish()?;
//! assert_eq!(interaction.tool_timeout.to_string(), "10s");
//! # Ok::<(), config::ConfigErrors>(())
//! ```
//!
//! - A file value is of the field's own type: no number in quotes, no `yes` for `true`, no `null`.
//! - `DITTO_<SECTION>_<FIELD>` wins over the file; a set but empty variable counts as not set. Fields inside a nested
//!   struct append their name (`DITTO_COORDINATOR_POOL_MAX_SIZE`), lists are comma separated, maps have no variables.
//!   `#[serde(flatten)]` hides the field names and with them the variables: do not use it.
//! - A [`Secret`] comes from its variable, or in the file as `{ env: NAME }` or `{ file: path }`; never inline.

mod check;
mod de;
mod path;
mod problem;
mod secret;
mod sections;
mod tree;
mod units;
mod wording;
mod yaml;

#[cfg(test)]
mod tests;

pub use check::{Check, Validate};
pub use problem::{ConfigErrors, Place, Problem};
pub use secret::{Secret, redact_url};
pub use sections::{PROCESS_VARIABLES, SECTIONS, Section};
pub use tree::{ConfigTree, MAX_FILE_BYTES, Reader, find_file, load};
pub use units::{ByteSize, DurationMs, UnitError};
