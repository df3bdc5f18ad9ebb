//! How one worker process behaves. Every limit has a value; none is unbounded.

use std::time::Duration;

/// Settings of one worker. `Default` holds what the receipts contract names.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// For people: host or replica name.
    pub name: String,
    /// Version of the program, for people.
    pub build: String,
    /// A name of this replica that no other live process has; its earlier sessions are declared dead at start.
    pub instance: Option<String>,
    /// Most calls under way at once (1 to 65536).
    pub concurrency: usize,
    /// Most pull requests open at once (1 to 64).
    pub pulls: usize,
    /// How long one pull request stays open.
    pub pull_expires: Duration,
    /// How long one ledger request may take before it is repeated.
    pub request_timeout: Duration,
    /// Redelivery time of the jobs consumer: a running unclaimed job says `in progress` every third of it.
    pub ack_wait: Duration,
    /// How long a result may stay unconfirmed before it is sent again; also the age from which held calls are reported.
    pub resend_after: Duration,
    /// Most bytes of unconfirmed results; beyond it nothing more is pulled.
    pub held_bytes_max: usize,
    /// How long a handler may take to answer after it was told to stop.
    pub cancel_grace: Duration,
    /// How long a shutdown waits for the work in hand.
    pub drain: Duration,
    /// Delay of a job that this worker cannot serve.
    pub not_served_delay: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            name: std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "worker".into()),
            build: env!("CARGO_PKG_VERSION").into(),
            instance: None,
            concurrency: 64,
            pulls: 4,
            pull_expires: Duration::from_secs(10),
            request_timeout: Duration::from_secs(2),
            ack_wait: Duration::from_secs(30),
            resend_after: Duration::from_secs(5),
            held_bytes_max: 64 * 1024 * 1024,
            cancel_grace: Duration::from_secs(2),
            drain: Duration::from_secs(30),
            not_served_delay: Duration::from_secs(2),
        }
    }
}

impl WorkerConfig {
    /// The same settings with every count inside its range.
    pub(crate) fn bounded(mut self) -> Self {
        self.concurrency = self.concurrency.clamp(1, 65_536);
        self.pulls = self.pulls.clamp(1, 64).min(self.concurrency);
        self.pull_expires = self.pull_expires.max(Duration::from_millis(10));
        self.request_timeout = self.request_timeout.max(Duration::from_millis(10));
        self.ack_wait = self.ack_wait.max(Duration::from_millis(30));
        self.resend_after = self.resend_after.max(Duration::from_millis(10));
        self
    }
}
