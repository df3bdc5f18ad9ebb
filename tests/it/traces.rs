//! One connected trace from the HTTP client through the coordinator to the worker, as a receiver of OTLP over HTTP gets
//! it: real protobuf requests from real processes.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use ditto_contracts::RunStatus;
use ditto_tests::fleet::{Extra, Fleet, Shape};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value},
    trace::v1::Span,
};
use prost::Message as _;
use serde_json::json;

const WITHIN: Duration = Duration::from_secs(30);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CLIENT_SPAN: &str = "00f067aa0ba902b7";

/// One received span, with the process it came from.
#[derive(Debug, Clone)]
struct Received {
    service: String,
    pid: String,
    name: String,
    trace: String,
    id: String,
    parent: String,
    start: u64,
    attributes: Vec<(String, String)>,
}

impl Received {
    fn attribute(&self, key: &str) -> &str {
        self.attributes.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
    }
}

#[derive(Clone, Default)]
struct Receiver {
    spans: Arc<Mutex<Vec<Received>>>,
    refused: Arc<Mutex<Vec<String>>>,
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn pairs(attributes: &[KeyValue]) -> Vec<(String, String)> {
    attributes.iter().map(|pair| (pair.key.clone(), text(pair.value.as_ref()))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Receiver {
    /// Serves OTLP/HTTP on a free port; answers its address.
    async fn serve(&self) -> String {
        let routes = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(async || StatusCode::OK))
            .route("/v1/logs", post(async || StatusCode::OK))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        address
    }

    fn of_trace(&self, trace: &str) -> Vec<Received> {
        self.spans.lock().unwrap().iter().filter(|span| span.trace == trace).cloned().collect()
    }
}

async fn traces(State(receiver): State<Receiver>, body: Bytes) -> StatusCode {
    let request = match ExportTraceServiceRequest::decode(body) {
        Ok(request) => request,
        Err(error) => {
            receiver.refused.lock().unwrap().push(error.to_string());
            return StatusCode::BAD_REQUEST;
        }
    };
    let mut spans = receiver.spans.lock().unwrap();
    for resource_spans in request.resource_spans {
        let resource = pairs(&resource_spans.resource.unwrap_or_default().attributes);
        let of_resource =
            |key: &str| resource.iter().find(|(name, _)| name == key).map(|(_, v)| v.clone()).unwrap_or_default();
        for span in resource_spans.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let Span { trace_id, span_id, parent_span_id, name, start_time_unix_nano, attributes, .. } = span;
            spans.push(Received {
                service: of_resource("service.name"),
                pid: of_resource("process.pid"),
                name,
                trace: hex(&trace_id),
                id: hex(&span_id),
                parent: hex(&parent_span_id),
                start: start_time_unix_nano,
                attributes: pairs(&attributes),
            });
        }
    }
    StatusCode::OK
}

/// A fleet that exports to this receiver, quickly.
async fn fleet(receiver: &Receiver) -> Fleet {
    let export = vec![
        ("DITTO_TELEMETRY_ENDPOINT".to_owned(), receiver.serve().await),
        ("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "100".to_owned()),
    ];
    let extra = Extra { coordinators: export.clone(), workers: export };
    Fleet::start_with(Shape { coordinators: 2, workers: 2 }, &extra).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_one_trace_from_the_client_to_the_worker() {
    let receiver = Receiver::default();
    let fleet = fleet(&receiver).await;
    let steps = 3;
    let body = json!({ "name": "chain-K", "key": "traced", "input": { "tag": "traced", "steps": steps } });
    let answer = reqwest::Client::new()
        .post(format!("{}/v1/runs", fleet.url(0)))
        .header("traceparent", format!("00-{TRACE}-{CLIENT_SPAN}-01"))
        .body(body.to_string())
        .send()
        .await
        .unwrap();
    let answer: serde_json::Value = answer.json().await.unwrap();
    let run = answer["runId"].as_str().unwrap();
    assert_eq!(fleet.ended(run, WITHIN).await.status, RunStatus::Completed);

    let named = |spans: &[Received], name: &str| -> Vec<Received> {
        let mut found: Vec<_> = spans.iter().filter(|span| span.name == name).cloned().collect();
        found.sort_by_key(|span| span.start);
        found
    };
    let spans = fleet
        .until("every span is received", WITHIN, async || {
            let spans = receiver.of_trace(TRACE);
            // Each process exports on its own: what ended first need not arrive first.
            let all = ["node.handle", "loop.step"].iter().all(|name| named(&spans, name).len() >= steps);
            (all && !named(&spans, "run.submit").is_empty()).then_some(spans)
        })
        .await;
    assert_eq!(*receiver.refused.lock().unwrap(), Vec::<String>::new());
    let shown = format!("{spans:#?}");
    let submits = named(&spans, "run.submit");
    let [submit] = submits.as_slice() else { panic!("{shown}") };
    assert_eq!(submit.parent, CLIENT_SPAN, "{shown}");
    assert_eq!(submit.attribute("run_id"), run, "{shown}");
    let decisions = named(&spans, "loop.step");
    let handled = named(&spans, "node.handle");
    assert_eq!(handled.len(), steps, "{shown}");
    assert!(decisions.len() >= steps, "each decision has a span: {shown}");
    for decision in &decisions {
        assert_eq!(decision.parent, submit.id, "{shown}");
        assert_eq!(decision.attribute("run_id"), run);
        assert_eq!(decision.pid, submit.pid, "the owner decides where it was submitted: {shown}");
    }
    for (n, handle) in handled.iter().enumerate() {
        let parent = spans.iter().find(|span| span.id == handle.parent).unwrap_or_else(|| panic!("no parent: {shown}"));
        // The first call is decided with the submission, the others by a step of the loop.
        let expected = if n == 0 { ["run.submit", "loop.step"].as_slice() } else { ["loop.step"].as_slice() };
        assert!(expected.contains(&parent.name.as_str()), "{n}: {shown}");
        assert_eq!(handle.attribute("loop_id"), run, "{shown}");
        assert_eq!(handle.attribute("node"), "TEST.EFFECT.K");
        assert_ne!(handle.pid, submit.pid, "another process: {shown}");
        assert_ne!(handle.service, submit.service, "{shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_over_the_bus_keeps_its_trace_and_one_without_begins_its_own() {
    let receiver = Receiver::default();
    let fleet = fleet(&receiver).await;
    let bus = async_nats::connect(fleet.nats.url()).await.unwrap();
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("traceparent", format!("00-{TRACE}-{CLIENT_SPAN}-01").as_str());
    let body = json!({ "input": { "id": "traced" } }).to_string();
    let subject = "ditto.submit.default.node.TEST.EFFECT.N";
    let with = bus.request_with_headers(subject, headers, body.clone().into()).await.unwrap();
    let without = bus.request(subject, body.into()).await.unwrap();
    for answer in [with, without] {
        let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
        fleet.ended(answer["runId"].as_str().unwrap(), WITHIN).await;
    }
    let names = |trace: &str| receiver.of_trace(trace).iter().map(|span| span.name.clone()).collect::<Vec<_>>();
    fleet
        .until("both traces are received", WITHIN, async || {
            let all = receiver.spans.lock().unwrap().clone();
            let own = all.iter().find(|span| span.name == "run.submit" && span.trace != TRACE)?;
            let whole =
                |names: Vec<String>| ["run.submit", "node.handle"].iter().all(|name| names.iter().any(|n| n == name));
            (whole(names(TRACE)) && own.parent.is_empty() && whole(names(&own.trace))).then_some(())
        })
        .await;
}
