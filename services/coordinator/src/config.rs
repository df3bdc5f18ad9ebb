//! `coordinator` in `ditto.yaml`: what a coordinator needs to know. Each field also as `DITTO_COORDINATOR_<FIELD>`.

use ditto_graph::RunOptions;
use serde::Deserialize;

/// Settings of one coordinator process. Durations are in milliseconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CoordinatorConfig {
    /// Name for people; default: the host name.
    pub name: String,
    /// Exclusive name of this replica: starting declares its earlier sessions dead, so that takeover needs no wait.
    pub instance: Option<String>,
    /// Life of the coordinator's session without renewal (300 to 600000).
    pub session_ttl_ms: u64,
    /// How long after the end of its lease a coordinator is declared dead (0 to 600000).
    pub session_grace_ms: u64,
    /// Life of a worker's session without renewal (300 to 600000).
    pub worker_ttl_ms: u64,
    /// How long after the end of its lease a worker is declared dead (0 to 600000).
    pub worker_grace_ms: u64,
    /// How long a run waits for evidence of an unknown outcome before it ends `needs-human` (1 to 2147483647).
    pub reconcile_window_ms: u64,
    /// How long a call may wait for a worker that serves it (0 to 2147483647).
    pub worker_wait_ms: u64,
    /// Period of the sweepers and of the owner's poll (10 to 60000).
    pub sweep_period_ms: u64,
    /// Most bytes the jobs stream keeps; beyond it submissions are turned away.
    pub jobs_bytes_max: u64,
    /// Most bytes the results stream keeps.
    pub results_bytes_max: u64,
    /// Copies of each stream in a NATS cluster (1 to 5).
    pub stream_replicas: u8,
    /// Redelivery of a job that a worker took and did not answer.
    pub ack_wait_ms: u64,
    /// Commits of runs under way at once on Postgres (1 to 8); SQLite has one writer.
    pub commit_lanes: usize,
    /// Most runs this process holds in memory (1 to 10000000).
    pub runs_max: usize,
    /// How long ended runs are kept (days dropped as a whole).
    pub retention_ms: u64,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            name: std::env::var("HOSTNAME").unwrap_or_else(|_| "coordinator".into()),
            instance: None,
            // With the grace and two periods of the sweepers: taken over within 5 s; a worker's calls within 20 s.
            session_ttl_ms: 2_500,
            session_grace_ms: 500,
            worker_ttl_ms: 15_000,
            worker_grace_ms: 2_000,
            reconcile_window_ms: 600_000,
            worker_wait_ms: 30_000,
            sweep_period_ms: 1_000,
            jobs_bytes_max: 1 << 30,
            results_bytes_max: 1 << 30,
            stream_replicas: 1,
            ack_wait_ms: 30_000,
            commit_lanes: 2,
            runs_max: 100_000,
            retention_ms: 30 * 86_400_000,
        }
    }
}

impl CoordinatorConfig {
    /// Every field that is out of range: its name and what was expected.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        let mut range = |name, value: u64, min: u64, max: u64| {
            if !(min..=max).contains(&value) {
                problems.push((name, format!("is {value}; expected {min} to {max}")));
            }
        };
        range("sessionTtlMs", self.session_ttl_ms, 300, 600_000);
        range("sessionGraceMs", self.session_grace_ms, 0, 600_000);
        range("workerTtlMs", self.worker_ttl_ms, 300, 600_000);
        range("workerGraceMs", self.worker_grace_ms, 0, 600_000);
        range("reconcileWindowMs", self.reconcile_window_ms, 1, 2_147_483_647);
        range("workerWaitMs", self.worker_wait_ms, 0, 2_147_483_647);
        range("sweepPeriodMs", self.sweep_period_ms, 10, 60_000);
        range("jobsBytesMax", self.jobs_bytes_max, 1 << 20, 1 << 50);
        range("resultsBytesMax", self.results_bytes_max, 1 << 20, 1 << 50);
        range("streamReplicas", self.stream_replicas.into(), 1, 5);
        range("ackWaitMs", self.ack_wait_ms, 100, 3_600_000);
        range("commitLanes", self.commit_lanes as u64, 1, 8);
        range("runsMax", self.runs_max as u64, 1, 10_000_000);
        range("retentionMs", self.retention_ms, 60_000, u64::MAX / 2);
        problems
    }

    /// What a run needs to know of this.
    pub fn run_options(&self) -> RunOptions {
        RunOptions { reconcile_window_ms: self.reconcile_window_ms }
    }
}
