//! What is measured: modes, classes, workloads, and how large they are.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// How the fleet runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// One process with SQLite.
    Embedded,
    /// Coordinator, worker, PostgreSQL and NATS as processes.
    Fleet,
}

/// Effect class of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Class {
    /// Read-only, without a claim.
    #[value(name = "R")]
    R,
    /// Keyed, claimed.
    #[value(name = "K")]
    K,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::R => "R",
            Self::K => "K",
        })
    }
}

/// One workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Workload {
    /// Sequential latency: one run of 100 steps, alone
    #[value(name = "W1")]
    W1,
    /// Concurrent throughput: 64 runs of 50 steps at once
    #[value(name = "W2")]
    W2,
    /// Fan-out: one run of 500 parallel steps, joined
    #[value(name = "W3")]
    W3,
    /// Many small runs: 2000 of one step, 64 in flight
    #[value(name = "W4")]
    W4,
    /// Recovery: W2 with kill -9 at 40 %
    #[value(name = "W5")]
    W5,
    /// Idle cost with 10 000 ended runs stored
    #[value(name = "W6")]
    W6,
}

/// How large the workloads are.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sizes {
    /// Measured repetitions after one warm-up.
    pub(crate) repetitions: u32,
    /// Measured repetitions of W1.
    pub(crate) w1_repetitions: u32,
    /// Steps of W1's run.
    pub(crate) w1_steps: u32,
    /// Runs of W2 and W5, all at once.
    pub(crate) w2_runs: u32,
    /// Steps of each.
    pub(crate) w2_steps: u32,
    /// Parallel steps of W3.
    pub(crate) w3_steps: u32,
    /// Runs of W4.
    pub(crate) w4_runs: u32,
    /// Of them in flight.
    pub(crate) w4_in_flight: u32,
    /// Ended runs stored for W6.
    pub(crate) w6_runs: u32,
    /// Pause before W6's window, in milliseconds.
    pub(crate) w6_pause_ms: u64,
    /// W6's window, in milliseconds.
    pub(crate) w6_window_ms: u64,
}

impl Sizes {
    /// As published.
    pub(crate) const FULL: Self = Self {
        repetitions: 3,
        w1_repetitions: 5,
        w1_steps: 100,
        w2_runs: 64,
        w2_steps: 50,
        w3_steps: 500,
        w4_runs: 2_000,
        w4_in_flight: 64,
        w6_runs: 10_000,
        w6_pause_ms: 15_000,
        w6_window_ms: 20_000,
    };
    /// A few seconds: shows that everything runs, and nothing about speed.
    pub(crate) const QUICK: Self = Self {
        repetitions: 1,
        w1_repetitions: 1,
        w1_steps: 10,
        w2_runs: 8,
        w2_steps: 10,
        w3_steps: 20,
        w4_runs: 40,
        w4_in_flight: 8,
        w6_runs: 40,
        w6_pause_ms: 200,
        w6_window_ms: 500,
    };

    pub(crate) const fn w6_pause(&self) -> Duration {
        Duration::from_millis(self.w6_pause_ms)
    }

    pub(crate) const fn w6_window(&self) -> Duration {
        Duration::from_millis(self.w6_window_ms)
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Modes, in order.
    pub(crate) modes: Vec<Mode>,
    /// Classes, in order.
    pub(crate) classes: Vec<Class>,
    /// Workloads, in order.
    pub(crate) workloads: Vec<Workload>,
    /// How large.
    pub(crate) sizes: Sizes,
    /// No published sizes.
    pub(crate) quick: bool,
    /// Where ledgers, streams of servers started here, and logs go; the system's temporary folder otherwise.
    pub(crate) dir: Option<PathBuf>,
    /// A PostgreSQL that runs already: an empty database.
    pub(crate) postgres: Option<String>,
    /// A NATS that runs already.
    pub(crate) nats: Option<String>,
    /// Processes have exclusive names, so that a restart takes over at once; without, after the lease.
    pub(crate) instances: bool,
}
