//! What a worker counts: `ditto_worker_…`. Node types come from the handlers, so the labels are bounded.

use ditto_contracts::{NodeType, wire::ledger::ClaimAnswer};
use ditto_runtime::metrics::{BoundedLabel, Counter, Gauge, Histogram, UpDownCounter, meter};
use opentelemetry::KeyValue;

/// Most node types with a label of their own.
const NODES: usize = 64;

/// The instruments of one worker.
pub(crate) struct Metrics {
    node: BoundedLabel,
    jobs: Counter<u64>,
    claims: Counter<u64>,
    releases: Counter<u64>,
    resends: Counter<u64>,
    in_flight: UpDownCounter<i64>,
    held: Gauge<u64>,
    held_bytes: Gauge<u64>,
    duration: Histogram<f64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let meter = meter();
        Self {
            node: BoundedLabel::new("node", NODES),
            jobs: meter.u64_counter("ditto.worker.jobs").with_description("Jobs by node and outcome").build(),
            claims: meter.u64_counter("ditto.worker.claims").with_description("Claims by answer").build(),
            releases: meter.u64_counter("ditto.worker.releases").with_description("Attempts given back").build(),
            resends: meter
                .u64_counter("ditto.worker.resends")
                .with_description("Results sent again because nobody confirmed them")
                .build(),
            held: meter
                .u64_gauge("ditto.worker.held")
                .with_description("Calls held until their settlement is confirmed, at the last renewal")
                .build(),
            held_bytes: meter
                .u64_gauge("ditto.worker.held.bytes")
                .with_unit("By")
                .with_description("Bytes of unconfirmed results, at the last renewal")
                .build(),
            in_flight: meter.i64_up_down_counter("ditto.worker.in_flight").with_description("Calls under way").build(),
            duration: meter
                .f64_histogram("ditto.worker.handle.duration")
                .with_unit("s")
                .with_description("Time a handler took")
                .build(),
        }
    }

    /// A job came to its end here. `node` is `None` when the job does not name one of ours.
    pub(crate) fn job(&self, node: Option<&NodeType>, outcome: &'static str) {
        let node = self.node.value(node.map_or(ditto_runtime::metrics::OTHER, NodeType::as_str));
        self.jobs.add(1, &[node, KeyValue::new("outcome", outcome)]);
    }

    pub(crate) fn claimed(&self, answer: &ClaimAnswer) {
        let answer = match answer {
            ClaimAnswer::Granted { .. } => "granted",
            ClaimAnswer::Settled { .. } => "settled",
            ClaimAnswer::Taken => "taken",
            ClaimAnswer::Refused { .. } => "refused",
            ClaimAnswer::Missing => "missing",
        };
        self.claims.add(1, &[KeyValue::new("answer", answer)]);
    }

    pub(crate) fn released(&self) {
        self.releases.add(1, &[]);
    }

    pub(crate) fn resent(&self) {
        self.resends.add(1, &[]);
    }

    pub(crate) fn held(&self, calls: usize, bytes: usize) {
        self.held.record(calls as u64, &[]);
        self.held_bytes.record(bytes as u64, &[]);
    }

    pub(crate) fn started(&self) {
        self.in_flight.add(1, &[]);
    }

    pub(crate) fn ended(&self, node: &NodeType, seconds: f64) {
        self.in_flight.add(-1, &[]);
        self.duration.record(seconds, &[self.node.value(node.as_str())]);
    }
}
