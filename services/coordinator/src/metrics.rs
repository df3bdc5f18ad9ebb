//! What the coordinator counts. Names and labels are documented in `docs/metrics.md`; every label is bounded.

use std::sync::OnceLock;

use ditto_contracts::RunStatus;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram},
};

struct Instruments {
    submitted: Counter<u64>,
    ended: Counter<u64>,
    steps: Counter<u64>,
    results: Counter<u64>,
    jobs: Counter<u64>,
    batch_items: Histogram<u64>,
    commit_duration: Histogram<f64>,
}

fn instruments() -> &'static Instruments {
    static INSTRUMENTS: OnceLock<Instruments> = OnceLock::new();
    INSTRUMENTS.get_or_init(|| {
        let meter = ditto_runtime::metrics::meter();
        Instruments {
            submitted: meter.u64_counter("ditto.runs.submitted").with_description("Submissions, by outcome.").build(),
            ended: meter.u64_counter("ditto.runs.ended").with_description("Runs that ended, by status.").build(),
            steps: meter.u64_counter("ditto.steps.committed").with_description("Checkpoints committed.").build(),
            results: meter
                .u64_counter("ditto.results.received")
                .with_description("Results taken from the bus.")
                .build(),
            jobs: meter
                .u64_counter("ditto.jobs.published")
                .with_description("Jobs published, by whether the bus confirmed.")
                .build(),
            batch_items: meter
                .u64_histogram("ditto.ledger.batch.items")
                .with_description("Items in one ledger commit, by verb.")
                .build(),
            commit_duration: meter
                .f64_histogram("ditto.ledger.commit.duration")
                .with_unit("s")
                .with_description("Time of one ledger commit by verb.")
                .build(),
        }
    })
}

/// A submission was answered: `created`, `duplicate` or `refused`.
pub(crate) fn submitted(outcome: &'static str) {
    instruments().submitted.add(1, &[KeyValue::new("outcome", outcome)]);
}

/// A run ended.
pub(crate) fn ended(status: RunStatus) {
    instruments().ended.add(1, &[KeyValue::new("status", status.as_str())]);
}

/// A checkpoint was committed.
pub(crate) fn step_committed() {
    instruments().steps.add(1, &[]);
}

/// Results came in.
pub(crate) fn results_received(count: usize) {
    instruments().results.add(count as u64, &[]);
}

/// Jobs were given to the bus.
pub(crate) fn jobs_published(confirmed: usize, unconfirmed: usize) {
    instruments().jobs.add(confirmed as u64, &[KeyValue::new("confirmed", true)]);
    if unconfirmed > 0 {
        instruments().jobs.add(unconfirmed as u64, &[KeyValue::new("confirmed", false)]);
    }
}

/// A batch was committed.
pub(crate) fn batch_committed(verb: &'static str, items: usize, elapsed: std::time::Duration) {
    let labels = [KeyValue::new("verb", verb)];
    instruments().batch_items.record(items as u64, &labels);
    instruments().commit_duration.record(elapsed.as_secs_f64(), &labels);
}
