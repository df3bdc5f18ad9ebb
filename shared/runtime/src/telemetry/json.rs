//! Log lines as JSON, one object a line, with the ids of the trace they belong to.

use std::fmt;
use std::time::SystemTime;

use opentelemetry::trace::TraceContextExt as _;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime as Timestamp};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// `{"timestamp","level","target","message","traceId","spanId","spans","fields"}`; absent parts are left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let meta = event.metadata();
        let mut line = Map::new();
        let mut timestamp = String::new();
        if Timestamp.format_time(&mut Writer::new(&mut timestamp)).is_err() {
            timestamp = format!("{:?}", SystemTime::now());
        }
        line.insert("timestamp".into(), timestamp.into());
        line.insert("level".into(), meta.level().as_str().into());
        line.insert("target".into(), meta.target().into());
        let mut fields = Fields::default();
        event.record(&mut fields);
        if let Some(message) = fields.0.remove("message") {
            line.insert("message".into(), message);
        }
        // Entering a span makes its trace context current, so no lock on the span is needed here.
        let current = opentelemetry::Context::current();
        let ids = current.span().span_context().clone();
        if ids.is_valid() {
            line.insert("traceId".into(), ids.trace_id().to_string().into());
            line.insert("spanId".into(), ids.span_id().to_string().into());
        }
        let spans: Vec<Value> = context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
            .map(|span| {
                let extensions = span.extensions();
                let text = extensions.get::<FormattedFields<N>>().map_or("", |fields| fields.fields.as_str());
                if text.is_empty() { span.name().into() } else { format!("{}{{{text}}}", span.name()).into() }
            })
            .collect();
        if !spans.is_empty() {
            line.insert("spans".into(), spans.into());
        }
        if !fields.0.is_empty() {
            line.insert("fields".into(), fields.0.into());
        }
        writeln!(writer, "{}", Value::Object(line))
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        // With its causes: the outermost text alone seldom says what happened.
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        self.0.insert(field.name().into(), text.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_one_object_with_its_trace() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let provider = SdkTracerProvider::builder().build();
        let subscriber = tracing_subscriber::registry()
            .with(tracing_opentelemetry::layer().with_tracer(provider.tracer("test")))
            .with(
                tracing_subscriber::fmt::layer()
                    .with_ansi(false)
                    .event_format(JsonLine)
                    .with_writer(move || writer.clone()),
            );
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!("outer", call_id = "c\"1").in_scope(|| {
                tracing::warn!(attempt = 2, "line\nbreak");
            });
        });
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["message"], "line\nbreak");
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["fields"]["attempt"].as_i64(), Some(2));
        assert_eq!(line["traceId"].as_str().map(str::len), Some(32));
        assert_eq!(line["spans"][0], "outer{call_id=\"c\\\"1\"}");
    }
}
