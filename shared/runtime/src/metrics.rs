//! Metrics: one OpenTelemetry meter, read by Prometheus from `/metrics` and exported over OTLP when configured.
//!
//! Create instruments from [`meter`] after [`crate::telemetry::init`]; those made earlier count nothing. Ids are
//! never labels; a label whose values come from outside goes through [`BoundedLabel`].

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;

pub use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter};

/// What every label beyond the bound is counted under.
pub const OTHER: &str = "other";

/// Registry behind `/metrics`, once the first provider is built.
static REGISTRY: OnceLock<prometheus::Registry> = OnceLock::new();

/// The meter of this process.
pub fn meter() -> Meter {
    opentelemetry::global::meter("ditto")
}

/// The current values in the text format of Prometheus; empty before metrics are installed.
pub fn render() -> String {
    let Some(registry) = REGISTRY.get() else { return String::new() };
    prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_else(|error| {
        tracing::error!(%error, "the metrics could not be written");
        String::new()
    })
}

/// Installs metrics without telemetry, for a process or test that only serves `/metrics`. Later calls do nothing.
pub fn install(service_name: &'static str) {
    if REGISTRY.get().is_none() {
        let resource = Resource::builder().with_service_name(service_name).build();
        match provider(resource, None) {
            Ok(provider) => opentelemetry::global::set_meter_provider(provider),
            Err(error) => tracing::error!(%error, "metrics are not available"),
        }
    }
}

/// A provider that Prometheus can read, and that also exports when given an exporter.
pub(crate) fn provider(
    resource: Resource,
    export: Option<opentelemetry_sdk::metrics::PeriodicReader<opentelemetry_otlp::MetricExporter>>,
) -> Result<SdkMeterProvider, opentelemetry_sdk::error::OTelSdkError> {
    let registry = prometheus::Registry::new();
    let reader =
        opentelemetry_prometheus::exporter().with_registry(registry.clone()).scope_info_enabled(false).build()?;
    let mut builder = SdkMeterProvider::builder().with_resource(resource).with_reader(reader);
    if let Some(export) = export {
        builder = builder.with_reader(export);
    }
    let provider = builder.build();
    // The first one stays: a second provider in one process is a test's.
    let _ = REGISTRY.set(registry);
    Ok(provider)
}

/// A label that takes at most so many different values; the rest is counted together as `other`.
///
/// For values that come from configuration or users, such as tool and pool names.
#[derive(Debug)]
pub struct BoundedLabel {
    name: &'static str,
    limit: usize,
    known: RwLock<HashSet<Arc<str>>>,
}

impl BoundedLabel {
    /// A label of this name with at most `limit` values besides `other`.
    pub fn new(name: &'static str, limit: usize) -> Self {
        Self { name, limit, known: RwLock::default() }
    }

    /// The label for this value. The first `limit` values are kept for good.
    pub fn value(&self, value: &str) -> KeyValue {
        if let Some(known) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(value) {
            return KeyValue::new(self.name, known.clone());
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= self.limit && !known.contains(value) {
            return KeyValue::new(self.name, OTHER);
        }
        let value: Arc<str> = value.into();
        known.insert(value.clone());
        KeyValue::new(self.name, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_label_never_takes_more_values_than_it_may() {
        let label = BoundedLabel::new("tool", 2);
        let shown: Vec<String> =
            ["a", "b", "c", "a", "d"].iter().map(|value| label.value(value).value.to_string()).collect();
        assert_eq!(shown, ["a", "b", "other", "a", "other"]);
    }

    #[test]
    fn what_is_counted_is_rendered() {
        install("metrics-test");
        let label = BoundedLabel::new("node", 10);
        let counter = meter().u64_counter("ditto.test.jobs").with_description("Jobs of this test").build();
        counter.add(3, &[label.value("ACT.TOOL")]);
        meter().f64_histogram("ditto.test.duration").with_unit("s").build().record(0.2, &[]);
        let text = render();
        assert!(text.contains("ditto_test_jobs_total{node=\"ACT.TOOL\"} 3"), "{text}");
        assert!(text.contains("ditto_test_duration_seconds_count 1"), "{text}");
        assert!(text.contains("# HELP ditto_test_jobs_total Jobs of this test"), "{text}");
    }
}
