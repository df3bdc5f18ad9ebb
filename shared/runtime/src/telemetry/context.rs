//! W3C trace context as plain strings, so that the bus, the ledger and the wire need no OpenTelemetry.

use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Longest trace state that is passed on, as the specification asks for at least.
const MAX_STATE_BYTES: usize = 512;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// Whether traces are exported. While `false` the functions here do nothing and allocate nothing, and a caller that
/// holds a trace context of its own passes that on unchanged.
#[inline]
pub fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

pub(super) fn set_enabled(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// `traceparent` and `tracestate` to send with work that `span` caused; `None` where there is nothing to send.
///
/// The span's own parent is fixed by this call: use [`set_parent`] before.
pub fn inject(span: &Span) -> (Option<String>, Option<String>) {
    if !enabled() {
        return (None, None);
    }
    let context = span.context();
    let span = context.span();
    let ids = span.span_context();
    if !ids.is_valid() {
        return (None, None);
    }
    let parent = format!("00-{}-{}-{:02x}", ids.trace_id(), ids.span_id(), ids.trace_flags().to_u8() & 1);
    let state = ids.trace_state().header();
    (Some(parent), (!state.is_empty() && state.len() <= MAX_STATE_BYTES).then_some(state))
}

/// Makes `span` a child of what was received. Malformed input changes nothing: the span begins a trace of its own.
///
/// Call it right after creating the span, before it is entered.
pub fn set_parent(span: &Span, traceparent: Option<&str>, tracestate: Option<&str>) {
    if let Some(context) = received(traceparent, tracestate) {
        // Fails for a span that no layer listens to or that began already; both leave it as it is.
        let _ = span.set_parent(context);
    }
}

/// Links `span` to another trace without becoming part of it, as a resumed run is linked to its beginning.
pub fn add_link(span: &Span, traceparent: Option<&str>, tracestate: Option<&str>) {
    if let Some(context) = received(traceparent, tracestate) {
        span.add_link(context.span().span_context().clone());
    }
}

fn received(traceparent: Option<&str>, tracestate: Option<&str>) -> Option<Context> {
    struct Headers<'a>(&'a str, &'a str);
    impl Extractor for Headers<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            match key {
                "traceparent" => Some(self.0),
                "tracestate" => Some(self.1),
                _ => None,
            }
        }
        fn keys(&self) -> Vec<&str> {
            vec!["traceparent", "tracestate"]
        }
    }
    let parent = traceparent.filter(|_| enabled())?;
    let state = tracestate.filter(|state| state.len() <= MAX_STATE_BYTES).unwrap_or("");
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(parent, state));
    context.span().span_context().is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// One test, because the switch is one for the process.
    #[test]
    fn a_trace_goes_on_through_plain_strings() {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let off = tracing::info_span!("off");
            set_parent(&off, Some(PARENT), None);
            assert_eq!(inject(&off), (None, None), "nothing is sent while traces are off");

            set_enabled(true);
            let first = tracing::info_span!("first");
            set_parent(&first, Some(PARENT), Some("vendor=1"));
            let (parent, state) = inject(&first);
            let parent = parent.unwrap();
            assert_eq!(&parent[..36], &PARENT[..36], "the trace id is kept");
            assert_ne!(parent, PARENT, "the span id is the span's own");
            assert_eq!(state.as_deref(), Some("vendor=1"));

            let second = tracing::info_span!("second");
            set_parent(&second, Some(&parent), state.as_deref());
            assert_eq!(&inject(&second).0.unwrap()[..36], &PARENT[..36]);

            for malformed in ["", "00", "00-0-0-0", "zz-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "é"] {
                let span = tracing::info_span!("malformed");
                set_parent(&span, Some(malformed), None);
                assert_ne!(&inject(&span).0.unwrap()[..36], &PARENT[..36], "{malformed}");
            }
            let linked = tracing::info_span!("linked");
            add_link(&linked, Some(PARENT), None);
            assert_ne!(&inject(&linked).0.unwrap()[..36], &PARENT[..36]);
            assert_eq!(inject(&Span::none()), (None, None));
            set_enabled(false);
        });
        let spans = exporter.get_finished_spans().unwrap();
        let named = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
        assert_eq!(named("second").parent_span_id, named("first").span_context.span_id());
        assert_eq!(named("linked").links.len(), 1);
    }
}
