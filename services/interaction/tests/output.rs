//! `INTERACTION.OUTPUT` and the sinks: acceptance cases 141 to 152.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    io::Write,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ditto_contracts::{
    EffectClass, Json, codes,
    interaction::{DeliveryStatus, InteractionError, OutputInput, OutputReceipt},
};
use ditto_interaction::{ConsoleSink, DeliveryContext, FileSink, Output, OutputSink, QueryAnswer, SinkError};
use ditto_worker::{NodeContext, NodeError, NodeHandler as _};

/// A sink that answers this and counts.
struct Scripted {
    answer: Result<OutputReceipt, SinkError>,
    seen: Arc<Mutex<Vec<OutputInput>>>,
}

#[async_trait]
impl OutputSink for Scripted {
    async fn deliver(&self, _: &DeliveryContext<'_>, input: &OutputInput) -> Result<OutputReceipt, SinkError> {
        self.seen.lock().unwrap().push(input.clone());
        self.answer.clone()
    }
}

fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}

fn cx(key: &str) -> NodeContext {
    NodeContext::detached(key, Duration::from_secs(5))
}

const INPUT: &str = r#"{"deliveryId":"d","message":{"role":"assistant","content":"done"},"artifacts":[{"name":"report","reference":{"uri":"mem:1"}}]}"#;

async fn deliver(answer: Result<OutputReceipt, SinkError>, input: &str) -> (Result<OutputReceipt, NodeError>, usize) {
    let seen: Arc<Mutex<Vec<OutputInput>>> = Arc::default();
    let node = Output::new(Arc::new(Scripted { answer, seen: seen.clone() }), 1_000);
    let result = node.handle(&cx("k"), json(input)).await;
    let seen = seen.lock().unwrap().len();
    (result, seen)
}

fn error(message: &str) -> InteractionError {
    InteractionError { code: "NO".into(), message: message.into(), retryable: None }
}

#[tokio::test]
async fn case_141_a_delivery_is_handed_over_once_with_its_artifacts() {
    let input = OutputInput::from_json(&json(INPUT)).unwrap();
    let answer = OutputReceipt { artifacts: input.artifacts.clone(), ..OutputReceipt::accepted("d") };
    let (result, count) = deliver(Ok(answer.clone()), INPUT).await;
    assert_eq!((result, count), (Ok(answer), 1));
}

#[tokio::test]
async fn case_142_a_receipt_for_another_delivery_is_an_error_and_no_second_delivery() {
    let (result, count) = deliver(Ok(OutputReceipt::accepted("other")), INPUT).await;
    let Err(NodeError::Invalid(error)) = result else { panic!("{result:?}") };
    assert!(error.code == codes::DELIVERY_MISMATCH && error.message.contains("mismatch"), "{error}");
    assert_eq!(count, 1);
}

#[tokio::test]
async fn case_144_rejected_and_unknown_are_values() {
    let rejected = OutputReceipt::with_error("d", DeliveryStatus::Rejected, error("no"));
    let (result, _) = deliver(Ok(rejected.clone()), INPUT).await;
    assert!(
        matches!(result, Err(NodeError::Refused { output: Some(o), .. }) if o.to::<OutputReceipt>().unwrap() == rejected)
    );
    let unknown = OutputReceipt::with_error("d", DeliveryStatus::Unknown, error("lost"));
    let (result, _) = deliver(Ok(unknown.clone()), INPUT).await;
    assert!(
        matches!(result, Err(NodeError::Ambiguous { output: Some(o), .. }) if o.to::<OutputReceipt>().unwrap() == unknown)
    );
}

#[tokio::test]
async fn case_145_an_error_of_the_sink_says_what_is_known() {
    let (result, count) = deliver(Err(SinkError::Unconfirmed("sink unavailable".into())), INPUT).await;
    assert!(matches!(&result, Err(NodeError::Ambiguous { .. })) && count == 1, "{result:?}");
    let (result, _) = deliver(Err(SinkError::Unavailable("sink unavailable".into())), INPUT).await;
    assert!(matches!(&result, Err(NodeError::NoByteSent(error)) if error.message.contains("sink unavailable")));
    let (result, _) = deliver(Err(SinkError::NotDelivered("no".into())), INPUT).await;
    assert!(matches!(result, Err(NodeError::NotSent(_))));
}

#[tokio::test]
async fn cases_146_147_a_receipt_that_breaks_a_rule_is_an_error_after_one_delivery() {
    let mut unsafe_error = OutputReceipt::accepted("d");
    unsafe_error.error = Some(error("Bearer x"));
    let list = OutputReceipt { metadata: Some(json("[]")), ..OutputReceipt::accepted("d") };
    let bare = OutputReceipt { status: DeliveryStatus::Rejected, ..OutputReceipt::accepted("d") };
    for receipt in [unsafe_error, list, bare] {
        let (result, count) = deliver(Ok(receipt), INPUT).await;
        assert!(matches!(result, Err(NodeError::Invalid(_))) && count == 1, "{result:?}");
    }
}

#[tokio::test]
async fn cases_150_151_invalid_input_delivers_nothing() {
    for input in [
        r#"{"deliveryId":"d","message":null}"#,
        r#"{"deliveryId":"d","message":{"role":"invalid","content":1}}"#,
        r#"{"deliveryId":"d","message":{"role":"user"}}"#,
        r#"{"deliveryId":" ","message":{"role":"user","content":1}}"#,
        r#"{"deliveryId":"d","message":{"role":"user","content":1},"artifacts":null}"#,
        r#"{"deliveryId":"d","message":{"role":"user","content":1},"artifacts":[{}]}"#,
        "[]",
    ] {
        let (result, count) = deliver(Ok(OutputReceipt::accepted("d")), input).await;
        assert!(matches!(&result, Err(NodeError::NotSent(_))) && count == 0, "{input}: {result:?}");
    }
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_console_writes_one_line_per_delivery() {
    let out = Shared::default();
    let sink = ConsoleSink::new(out.clone());
    assert_eq!(sink.policy().class, EffectClass::NonIdempotent);
    let node = Output::new(Arc::new(sink), 1_000);
    for content in ["1e2", "{\n\"a\":\r\n1}"] {
        let input = json(&format!(r#"{{"deliveryId":"d","message":{{"role":"assistant","content":{content}}}}}"#));
        assert_eq!(node.handle(&cx("k"), input).await.unwrap().status, DeliveryStatus::Accepted);
    }
    let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], r#"{"deliveryId":"d","message":{"role":"assistant","content":1e2}}"#);
    assert_eq!(
        (lines.len(), json(lines[1]).field("message").unwrap().field("content").unwrap().kind()),
        (2, ditto_contracts::JsonKind::Object)
    );
}

#[tokio::test]
async fn the_file_sink_delivers_each_key_once_and_can_be_asked() {
    let dir = tempfile::tempdir().unwrap();
    let sink = FileSink::open(dir.path().join("out")).unwrap();
    assert_eq!((sink.policy().class, sink.policy().query), (EffectClass::Keyed, true));
    let node = Output::new(Arc::new(sink.clone()), 1_000);
    let input = || json(INPUT);
    let other = || json(r#"{"deliveryId":"d","message":{"role":"assistant","content":"else"}}"#);

    assert_eq!(node.query(&cx("ditto:A"), input()).await, QueryAnswer::Absent);
    let receipt = node.handle(&cx("ditto:A"), input()).await.unwrap();
    assert_eq!(receipt.artifacts.as_ref().map(Vec::len), Some(1));
    assert_eq!(node.handle(&cx("ditto:A"), input()).await.unwrap(), receipt, "again is the same delivery");
    assert_eq!(node.query(&cx("ditto:A"), input()).await, QueryAnswer::Applied(receipt));
    assert_eq!(node.query(&cx("ditto:A"), other()).await, QueryAnswer::Conflict);
    assert!(matches!(node.handle(&cx("ditto:A"), other()).await, Err(NodeError::NotSent(_))));
    assert_eq!(std::fs::read_to_string(sink.path("ditto:A")).unwrap(), format!("{INPUT}\n"));

    // Hostile and colliding keys are files of their own, inside the directory.
    let long = "k".repeat(400);
    for key in ["../../etc/x", "ditto:a", "..", "", "a/b", long.as_str(), "ü"] {
        node.handle(&cx(key), input()).await.unwrap();
        assert_eq!(sink.path(key).parent(), Some(dir.path().join("out").as_path()));
    }
    assert_eq!(std::fs::read_dir(dir.path().join("out")).unwrap().count(), 8, "and no temporary file is left");
}

#[tokio::test]
async fn racing_attempts_of_one_key_make_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let node = Arc::new(Output::new(Arc::new(FileSink::open(dir.path()).unwrap()), 1_000));
    let accepted = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (node, accepted) = (node.clone(), accepted.clone());
        tasks.spawn(async move {
            let input = json(&format!(r#"{{"deliveryId":"d","message":{{"role":"assistant","content":{n}}}}}"#));
            if node.handle(&cx("same"), input).await.is_ok() {
                accepted.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1, "one content is under the key, the others were refused");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
