//! `workers.interaction` in `ditto.yaml`; each field also as `DITTO_WORKER_INTERACTION_<FIELD>`.

use std::path::PathBuf;

use ditto_contracts::Pool;
use ditto_runtime::config::{ByteSize, Check, DurationMs, Validate};
use ditto_worker::{SandboxPolicy, WorkerConfig};
use serde::Deserialize;

/// Settings of one interaction worker.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct InteractionConfig {
    /// For people: host or replica name. Default: the host name.
    pub name: String,
    /// A name of this replica that no other live process has; its earlier sessions are declared dead at start.
    pub instance: Option<String>,
    /// Queue of its own; absent: the default queue of its nodes.
    pub pool: Option<String>,
    /// Most calls under way at once (1 to 65536).
    pub concurrency: usize,
    /// How long one call of a tool or sink may take that names no time of its own (1ms to 1h).
    pub tool_timeout: DurationMs,
    /// How long a shutdown waits for the work in hand (1ms to 1h).
    pub drain: DurationMs,
    /// How long a result may stay unconfirmed before it is sent again (10ms to 1h).
    pub resend_after: DurationMs,
    /// Redelivery time of the jobs queue, as the coordinators have it (`coordinator.ackWaitMs`): a running read is
    /// reported every third of it (30ms to 1h).
    pub ack_wait: DurationMs,
    /// Directory that tools may read and write, as the permissions allow. Absent: none.
    pub workspace: Option<PathBuf>,
    /// Largest file that `read_text` reads (1B to 4MiB).
    pub read_bytes_max: ByteSize,
    /// What tools may do; nothing unless said so.
    pub permissions: SandboxPolicy,
    /// Where deliveries go; absent: `INTERACTION.OUTPUT` is not served.
    pub output: Option<OutputConfig>,
}

/// The sink of `INTERACTION.OUTPUT`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "sink", rename_all = "camelCase", deny_unknown_fields)]
pub enum OutputConfig {
    /// One JSON line per delivery on standard error. Cannot be asked afterwards: class N.
    Console {},
    /// One file per delivery. Can be asked: class K.
    File {
        /// Directory of the files; created when missing.
        dir: PathBuf,
    },
}

impl Default for InteractionConfig {
    fn default() -> Self {
        Self {
            name: WorkerConfig::default().name,
            instance: None,
            pool: None,
            concurrency: 64,
            tool_timeout: DurationMs::from_secs(30),
            drain: DurationMs::from_secs(30),
            resend_after: DurationMs::from_secs(5),
            ack_wait: DurationMs::from_secs(30),
            workspace: None,
            read_bytes_max: ByteSize::from_mib(1),
            permissions: SandboxPolicy::default(),
            output: None,
        }
    }
}

impl Validate for InteractionConfig {
    fn validate(&self, check: &mut Check<'_>) {
        let (least, most) = (DurationMs::from_ms(1), DurationMs::from_secs(3_600));
        check.range("concurrency", self.concurrency, 1..=65_536);
        check.range("toolTimeout", self.tool_timeout, least..=most);
        check.range("drain", self.drain, least..=most);
        check.range("resendAfter", self.resend_after, DurationMs::from_ms(10)..=most);
        check.range("ackWait", self.ack_wait, DurationMs::from_ms(30)..=most);
        check.range("readBytesMax", self.read_bytes_max, ByteSize::from_bytes(1)..=ByteSize::from_mib(4));
        if let Some(pool) = &self.pool {
            check.that("pool", Pool::new(pool).is_ok(), "1 to 63 of A-Z a-z 0-9 _ -");
        }
        // Names and origins only: whether the workspace exists is known at start.
        if let Err(error) = ditto_worker::Sandbox::new(&self.permissions, None) {
            check.that("permissions", false, error);
        }
    }
}

impl InteractionConfig {
    /// The same settings under this instance name, unless one is configured.
    #[must_use]
    pub fn with_instance(mut self, instance: impl Into<String>) -> Self {
        self.instance.get_or_insert(instance.into());
        self
    }

    /// The settings of the worker underneath.
    pub(crate) fn worker(&self) -> WorkerConfig {
        WorkerConfig {
            name: self.name.clone(),
            build: env!("CARGO_PKG_VERSION").into(),
            instance: self.instance.clone(),
            concurrency: self.concurrency,
            drain: self.drain.as_duration(),
            resend_after: self.resend_after.as_duration(),
            ack_wait: self.ack_wait.as_duration(),
            ..WorkerConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_read_strictly() {
        let environment = [("DITTO_WORKER_INTERACTION_CONCURRENCY".to_owned(), "7".to_owned())];
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ditto.yaml");
        std::fs::write(
            &file,
            "workers:\n  interaction:\n    permissions: { tools: [read_text], read: true }\n    output: { sink: file, dir: out }\n",
        )
        .unwrap();
        let tree = ditto_runtime::config::load(Some(&file), environment.into_iter()).unwrap();
        let config: InteractionConfig = tree.section("workers.interaction").unwrap();
        assert_eq!(config.concurrency, 7);
        assert_eq!(config.output, Some(OutputConfig::File { dir: "out".into() }));
        assert!(config.permissions.read && !config.permissions.write);

        std::fs::write(&file, "workers:\n  interaction:\n    permissions: { network: [\"x.org\"] }\n").unwrap();
        let tree = ditto_runtime::config::load(Some(&file), std::iter::empty()).unwrap();
        let error = tree.section::<InteractionConfig>("workers.interaction").unwrap_err().to_string();
        assert!(error.contains("invalid sandbox"), "{error}");
    }
}
