//! The figures, as `--json` prints them. A figure that the system does not give is null, never zero.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    facts::Machine,
    plan::{Class, Mode, Sizes},
    stat::Stat,
};

/// Everything that was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Version of Ditto.
    pub(crate) version: &'static str,
    /// Built with optimisations; otherwise the figures say nothing about speed.
    pub(crate) optimised: bool,
    /// Not the published sizes.
    pub(crate) quick: bool,
    /// How large the workloads were.
    pub(crate) sizes: Sizes,
    /// Where.
    pub(crate) machine: Machine,
    /// One per mode and class.
    pub(crate) variants: Vec<Variant>,
}

/// One mode and class.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Variant {
    pub(crate) mode: Mode,
    pub(crate) class: Class,
    /// Durability settings and versions.
    pub(crate) settings: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) w1: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) w2: Option<Throughput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) w3: Option<Throughput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) w4: Option<SmallRuns>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) w5: Option<BTreeMap<&'static str, Recovery>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) w6: Option<Idle>,
}

/// W1.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Latency {
    /// Median time between the effects of successive steps, over all gaps of all repetitions, in milliseconds.
    pub(crate) gap_p50_ms: f64,
    /// The 99th percentile of the same.
    pub(crate) gap_p99_ms: f64,
    /// The medians of the single repetitions.
    pub(crate) run_p50_ms: Option<Stat>,
    /// The 99th percentiles of the single repetitions.
    pub(crate) run_p99_ms: Option<Stat>,
    pub(crate) cost: Cost,
}

/// W2 and W3.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Throughput {
    pub(crate) steps_per_second: Option<Stat>,
    pub(crate) cost: Cost,
}

/// W4.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SmallRuns {
    pub(crate) runs_per_second: Option<Stat>,
    /// Submit to end, seen by the client, in milliseconds.
    pub(crate) end_p50_ms: Option<Stat>,
    pub(crate) end_p99_ms: Option<Stat>,
    pub(crate) cost: Cost,
}

/// W5, one per process that is killed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recovery {
    /// From the restart to the last run's end, in seconds.
    pub(crate) recovery_s: Option<Stat>,
    /// Effects beyond one per step.
    pub(crate) repeats: Option<Stat>,
    /// Share of the effects that were there at the kill.
    pub(crate) killed_at: Option<Stat>,
}

/// W6.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Idle {
    /// Ended runs in the ledger, those of the other workloads not counted.
    pub(crate) runs: u32,
    /// By process, in KiB.
    pub(crate) pss_kib: BTreeMap<&'static str, Option<u64>>,
    pub(crate) pss_kib_total: Option<u64>,
    /// By process, in percent of one core.
    pub(crate) cpu_percent: BTreeMap<&'static str, f64>,
    pub(crate) cpu_percent_total: f64,
}

/// What the steps cost. The load client is apart.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cost {
    /// User and system time of 1 000 steps, by process, in seconds.
    pub(crate) cpu_s_per_1000: BTreeMap<&'static str, Stat>,
    pub(crate) cpu_s_per_1000_total: Option<Stat>,
    pub(crate) client_cpu_s_per_1000: Option<Stat>,
    /// Written to the disk, by process, in KiB per step.
    pub(crate) written_kib_per_step: BTreeMap<&'static str, Option<Stat>>,
    /// Flushes of the disk per step, all programs of the machine.
    pub(crate) flushes_per_step: Option<Stat>,
    /// Processors that programs outside the measurement kept busy: above some hundredths the figures are not to be
    /// trusted.
    pub(crate) others_cores: Option<Stat>,
}
