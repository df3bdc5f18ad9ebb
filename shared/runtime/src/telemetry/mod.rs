//! Logs, traces and metrics of a process: text or JSON on stderr, and OTLP over HTTP when an endpoint is set.
//!
//! `DITTO_LOG` filters what is logged (`info`, `ditto_bus=debug,info`). The standard `OTEL_EXPORTER_OTLP_…` variables
//! are honoured; `telemetry.endpoint` in `ditto.yaml` wins over them.

mod context;
mod json;

use std::io::IsTerminal as _;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{ExporterBuildError, LogExporter, MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use serde::Deserialize;
use tracing::Metadata;
use tracing_subscriber::filter::{EnvFilter, FilterExt as _, FilterFn, ParseError, filter_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, fmt};

use crate::config::{Check, DurationMs, Reader, Validate};
use crate::metrics;

pub use context::{add_link, enabled, inject, set_parent};

/// What is logged unless configured otherwise.
const DEFAULT_FILTER: &str = "info";

/// Spans that are exported, whatever is logged.
const TRACE_FILTER: &str = "info";

/// What is never exported: the exporter itself, whose own requests would be exported again, and so on.
const EXPORT_FILTER: &str = ",opentelemetry=off,opentelemetry_sdk=off,opentelemetry-otlp=off,opentelemetry_otlp=off,\
    hyper=off,hyper_util=off,reqwest=off,h2=off,rustls=off";

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Text,
    /// One object a line, with trace and span id.
    Json,
}

/// `log` in `ditto.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LogConfig {
    /// How log lines look.
    pub format: LogFormat,
    /// What is logged, as in `DITTO_LOG`, which wins.
    pub filter: Option<String>,
    /// Whether a line shows the spans around it. Off: then spans cost nothing while no traces are exported; lines
    /// name their ids themselves.
    pub spans: bool,
}

impl Validate for LogConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(filter) = &self.filter {
            check.that("filter", filter_from(filter).is_ok(), "a filter such as `info` or `ditto_bus=debug,info`");
        }
    }
}

/// `telemetry` in `ditto.yaml`: where traces, metrics and logs are exported to.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ExportConfig {
    /// Base address of an OTLP receiver over HTTP, as in `http://localhost:4318`; `/v1/traces` and so on are added.
    pub endpoint: Option<String>,
    /// How long one export may take.
    pub timeout: DurationMs,
    /// How often metrics are exported.
    pub metrics_interval: DurationMs,
    /// Which share of new traces is kept, 0 to 1; a caller's decision is followed.
    pub sample_ratio: f64,
    /// How long the end of the process waits for the last export.
    pub shutdown_timeout: DurationMs,
}

impl Default for ExportConfig {
    fn default() -> Self {
        Self {
            endpoint: None,
            timeout: DurationMs::from_secs(10),
            metrics_interval: DurationMs::from_secs(30),
            sample_ratio: 1.0,
            shutdown_timeout: DurationMs::from_secs(3),
        }
    }
}

impl Validate for ExportConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Some(endpoint) = &self.endpoint {
            let address = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            check.that("endpoint", address.is_some_and(|rest| !rest.is_empty()), "an http or https address");
        }
        let (least, most) = (DurationMs::from_ms(1), DurationMs::from_secs(300));
        check.range("timeout", self.timeout, least..=most);
        check.range("metricsInterval", self.metrics_interval, DurationMs::from_ms(100)..=DurationMs::from_secs(3600));
        check.range("sampleRatio", self.sample_ratio, 0.0..=1.0);
        check.range("shutdownTimeout", self.shutdown_timeout, least..=most);
    }
}

/// Everything [`init`] needs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TelemetryConfig {
    /// Section `log`.
    pub log: LogConfig,
    /// Section `telemetry`.
    pub export: ExportConfig,
}

impl TelemetryConfig {
    /// Reads both sections.
    pub fn read(reader: &mut Reader<'_>) -> Self {
        Self { log: reader.section("log"), export: reader.section("telemetry") }
    }
}

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `DITTO_LOG` or `log.filter` is not a filter.
    #[error("failed to read the log filter of {name}")]
    Filter {
        /// Where it is written.
        name: &'static str,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
    /// The exporter does not accept its settings.
    #[error("failed to set up the OTLP exporter")]
    Exporter(#[source] ExporterBuildError),
    /// The metrics cannot be registered.
    #[error("failed to set up metrics")]
    Metrics(#[source] opentelemetry_sdk::error::OTelSdkError),
    /// The process has a subscriber already.
    #[error("failed to install the log: there is one already")]
    Installed,
}

/// Keeps telemetry running; flushes on drop, at most as long as `telemetry.shutdownTimeout` for each kind.
#[derive(Debug)]
#[must_use = "telemetry ends when its guard is dropped"]
pub struct TelemetryGuard {
    traces: Option<SdkTracerProvider>,
    logs: Option<SdkLoggerProvider>,
    metrics: Option<SdkMeterProvider>,
    limit: Duration,
}

impl TelemetryGuard {
    /// Exports what is left and ends telemetry. Blocks the calling thread, for a bounded time.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        context::set_enabled(false);
        let (traces, logs, metrics, limit) = (self.traces.take(), self.logs.take(), self.metrics.take(), self.limit);
        if traces.is_none() && logs.is_none() && metrics.is_none() {
            return;
        }
        // On a thread of its own: not every provider keeps to its timeout, and the process must end.
        let (done, ended) = std::sync::mpsc::channel();
        let flush = std::thread::Builder::new().name("telemetry-flush".into()).spawn(move || {
            let failed = [
                traces.map(|provider| provider.shutdown_with_timeout(limit)),
                logs.map(|provider| provider.shutdown_with_timeout(limit)),
                metrics.map(|provider| provider.shutdown_with_timeout(limit)),
            ];
            for error in failed.into_iter().flatten().filter_map(Result::err) {
                tracing::warn!(%error, "the last telemetry may be lost");
            }
            let _ = done.send(()); // the receiver may have stopped waiting
        });
        if flush.is_ok() && ended.recv_timeout(limit).is_err() {
            tracing::warn!(limit_ms = limit.as_millis(), "the last telemetry was not accepted in time");
        }
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sets up logs, traces and metrics of this process. Call once, before anything else starts.
///
/// # Errors
/// A filter or an exporter setting is wrong, or the process has a log already.
pub fn init(config: &TelemetryConfig, service_name: &'static str) -> Result<TelemetryGuard, TelemetryError> {
    crate::install_tls_provider();
    let (name, filter) = match std::env::var("DITTO_LOG") {
        Ok(filter) if !filter.is_empty() => ("DITTO_LOG", filter),
        _ => ("log.filter", config.log.filter.clone().unwrap_or_else(|| DEFAULT_FILTER.to_owned())),
    };
    let log_filter = filter_from(&filter).map_err(|source| TelemetryError::Filter { name, source })?;
    let resource = Resource::builder()
        .with_service_name(service_name)
        .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(opentelemetry::KeyValue::new("process.pid", i64::from(std::process::id())))
        .build();

    let export = exports(&config.export);
    let metrics = metrics_provider(&config.export, export, &resource)?;
    let (traces, logs) = if export {
        (Some(trace_provider(&config.export, &resource)?), Some(log_provider(&config.export, &resource)?))
    } else {
        (None, None)
    };

    let trace_layer = traces.as_ref().map(|provider| {
        tracing_opentelemetry::layer().with_tracer(provider.tracer("ditto")).with_filter(export_filter(TRACE_FILTER))
    });
    let log_layer =
        logs.as_ref().map(|provider| OpenTelemetryTracingBridge::new(provider).with_filter(export_filter(&filter)));
    Registry::default()
        .with(trace_layer)
        .with(log_layer)
        .with(stderr_layer(config.log.format).with_filter(log_filter.and(events_or(config.log.spans))))
        .try_init()
        .map_err(|_| TelemetryError::Installed)?;

    opentelemetry::global::set_meter_provider(metrics.clone());
    if let Some(provider) = &traces {
        opentelemetry::global::set_tracer_provider(provider.clone());
    }
    context::set_enabled(traces.is_some());
    Ok(TelemetryGuard { traces, logs, metrics: Some(metrics), limit: config.export.shutdown_timeout.as_duration() })
}

fn filter_from(text: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().parse(text)
}

/// The filter without the exporter's own doings.
fn export_filter(filter: &str) -> EnvFilter {
    // The log filter was read before, and the rest is constant; a filter that is refused would export nothing.
    filter_from(&format!("{filter}{EXPORT_FILTER}")).unwrap_or_else(|_| EnvFilter::new("off"))
}

/// Leaves spans to those who export them, unless they are shown.
fn events_or(spans: bool) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(move |metadata| spans || metadata.is_event())
}

fn stderr_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    let terminal = std::io::stderr().is_terminal();
    let text = match format {
        LogFormat::Auto => terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    let layer = fmt::layer().with_writer(std::io::stderr);
    if text {
        layer.with_ansi(terminal).with_target(false).boxed()
    } else {
        layer.with_ansi(false).event_format(json::JsonLine).boxed()
    }
}

/// Whether anything is exported.
fn exports(config: &ExportConfig) -> bool {
    let set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    !std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"))
        && (config.endpoint.is_some()
            || set("OTEL_EXPORTER_OTLP_ENDPOINT")
            || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"))
}

/// Address of one kind of telemetry, or none to let the standard variables decide.
fn address(config: &ExportConfig, kind: &str) -> Option<String> {
    config.endpoint.as_ref().map(|endpoint| format!("{}/v1/{kind}", endpoint.trim_end_matches('/')))
}

fn trace_provider(config: &ExportConfig, resource: &Resource) -> Result<SdkTracerProvider, TelemetryError> {
    let mut exporter = SpanExporter::builder().with_http();
    if let Some(address) = address(config, "traces") {
        exporter = exporter.with_endpoint(address).with_timeout(config.timeout.as_duration());
    }
    Ok(SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio))))
        .with_batch_exporter(exporter.build().map_err(TelemetryError::Exporter)?)
        .build())
}

fn log_provider(config: &ExportConfig, resource: &Resource) -> Result<SdkLoggerProvider, TelemetryError> {
    let mut exporter = LogExporter::builder().with_http();
    if let Some(address) = address(config, "logs") {
        exporter = exporter.with_endpoint(address).with_timeout(config.timeout.as_duration());
    }
    Ok(SdkLoggerProvider::builder()
        .with_resource(resource.clone())
        .with_batch_exporter(exporter.build().map_err(TelemetryError::Exporter)?)
        .build())
}

fn metrics_provider(
    config: &ExportConfig,
    export: bool,
    resource: &Resource,
) -> Result<SdkMeterProvider, TelemetryError> {
    let reader = if export {
        let mut exporter = MetricExporter::builder().with_http();
        if let Some(address) = address(config, "metrics") {
            exporter = exporter.with_endpoint(address).with_timeout(config.timeout.as_duration());
        }
        let exporter = exporter.build().map_err(TelemetryError::Exporter)?;
        Some(PeriodicReader::builder(exporter).with_interval(config.metrics_interval.as_duration()).build())
    } else {
        None
    };
    metrics::provider(resource.clone(), reader).map_err(TelemetryError::Metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_off_unless_they_are_shown() {
        for (shown, disabled) in [(false, true), (true, false)] {
            let filter = filter_from("info").unwrap().and(events_or(shown));
            let layer = fmt::layer().with_writer(std::io::sink).with_filter(filter);
            tracing::subscriber::with_default(Registry::default().with(layer), || {
                assert_eq!(tracing::info_span!("node.handle").is_disabled(), disabled);
                assert!(tracing::enabled!(tracing::Level::INFO) || disabled);
            });
        }
    }

    #[test]
    fn exports_have_their_own_path_below_the_endpoint() {
        let config = ExportConfig { endpoint: Some("http://h:4318/base/".into()), ..ExportConfig::default() };
        assert_eq!(address(&config, "traces").as_deref(), Some("http://h:4318/base/v1/traces"));
        assert_eq!(address(&ExportConfig::default(), "traces"), None);
    }
}
