//! Values that other systems lose: they come out as they went in, or are refused at the edge with the field named, and
//! nothing is lost after an effect. Over HTTP, over NATS, and in one process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use ditto_bus::{Bus, local::LocalBus};
use ditto_contracts::{
    CallPolicy, Json, Namespace, ReceiptState, RunStatus, SettledBy, SubmitKey,
    wire::{SubmitBody, SubmitKind},
};
use ditto_coordinator::{
    Coordinator, CoordinatorConfig, Handle, Plans, Submission,
    store::{ReceiptFilter, RunRow, Store, sqlite::SqliteStore},
};
use ditto_tests::fleet::{Fleet, Shape};
use ditto_worker::{NodeContext, NodeError, NodeHandler, Worker, WorkerConfig};
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const WITHIN: Duration = Duration::from_secs(60);
const MIB: usize = 1024 * 1024;

/// Takes a value through a call, the state of a loop, and its output.
fn pass(node: &str) -> String {
    format!(
        "ditto: 1\nloop: pass\nstate: {{ last: null, n: 0 }}\ngraph:\n  tasks:\n    echo:\n      node: {node}\n      \
         with: {{ id: \"${{ input.id }}\", echo: \"${{ input.value }}\" }}\n\
         update: {{ last: \"${{ tasks.echo.echo }}\", n: \"${{ state.n + 1 }}\" }}\ndone: \"${{ state.n == 1 }}\"\n\
         output: {{ value: \"${{ state.last }}\" }}\n"
    )
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

/// Values that must come out to the byte.
fn accepted() -> Vec<String> {
    let mut values: Vec<String> = [
        r#""a\u0000b""#,
        r#"{"\u0000":"\u0000"}"#,
        r#""\u001f\u007f\u2028\ufeff""#,
        r#""\ud83d\ude00""#,
        "\"\u{1f600}\u{0}\"".replace('\u{0}', "\\u0000").leak(),
        "9007199254740993",
        "18446744073709551616",
        "-9223372036854775809",
        "123456789012345678901234567890123456789012345678901234567890",
        "-0",
        "-0.0",
        "1e400",
        "-1E-400",
        "1.10",
        "1E+2",
        "0.10000000000000000555111512312578270211815834045410156250",
        "true",
        "false",
        "0",
        r#""""#,
        r#"" ""#,
        r#""*""#,
        r#"">""#,
        r#""$.* ${ input } {{x}} %s '; DROP TABLE loops; --""#,
        "[]",
        "{}",
        r#"{"":{"":[""]}}"#,
        r#"{"*":1,">":2," ":3,".":4,"a.b":5}"#,
        "[1,[2,[3,null]],{\"z\":1,\"a\":2}]",
        r#"{"b":1,"a":{"d":[],"c":{}}}"#,
        r#"[1, 2 ,{ "spaced" : true }]"#,
    ]
    .map(str::to_owned)
    .to_vec();
    values.push(format!("\"{}\"", "x".repeat(100 * 1024)));
    values.push(format!("\"{}\"", "\u{4e2d}".repeat(24 * 1024)));
    values.push(format!("[{}]", vec!["1e400"; 20_000].join(",")));
    // As deep as a value may be, with the object around it.
    values.push(nested(126));
    values
}

/// Texts that are no acceptable value, and what the refusal must name.
fn refused() -> Vec<(Vec<u8>, &'static str)> {
    let mut values: Vec<(Vec<u8>, &'static str)> = [
        (r#""\ud800""#, "$.input.value"),
        (r#""\udc00\ud800""#, "$.input.value"),
        (r#"{"a":"\ud83d"}"#, "$.input.value.a"),
        (r#"{"a":1,"a":2}"#, "$.input.value.a"),
        (r#"{"a":1,"\u0061":2}"#, "$.input.value.a"),
        (r#"[{"k":{"x":1,"x":1}}]"#, "$.input.value[0].k.x"),
        ("\"a\u{0}b\"", "$.input.value"),
        ("\"a\nb\"", "$.input.value"),
        ("01", "$.input"),
        ("+1", "$.input.value"),
        ("1.", "$.input.value"),
        (".5", "$.input.value"),
        ("NaN", "$.input.value"),
        ("Infinity", "$.input.value"),
        ("'x'", "$.input.value"),
        ("[1,]", "$.input.value"),
        ("\u{feff}1", "$.input.value"),
    ]
    .map(|(text, fragment)| (text.as_bytes().to_vec(), fragment))
    .to_vec();
    values.push((nested(129).into_bytes(), "$.input.value"));
    values.push((nested(10_000).into_bytes(), "$.input.value"));
    values.push((b"\"a\xffb\"".to_vec(), "UTF-8"));
    values.push((b"\"\xed\xa0\x80\"".to_vec(), "UTF-8"));
    values
}

fn shown(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(60).collect()
}

struct Http {
    client: reqwest::Client,
    url: String,
}

impl Http {
    fn new(fleet: &Fleet) -> Self {
        let client = reqwest::Client::builder().timeout(WITHIN).build().unwrap();
        Self { client, url: fleet.url(0).to_owned() }
    }

    async fn post(&self, path: &str, body: Vec<u8>) -> (u16, String) {
        let answer = self.client.post(format!("{}{path}", self.url)).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// How many runs there are.
    async fn runs(&self) -> usize {
        let answer = self.client.get(format!("{}/v1/runs?limit=500", self.url)).send().await.unwrap();
        let page = Json::parse_around(answer.bytes().await.unwrap(), 4).unwrap();
        page.field("items").unwrap().elements().count()
    }

    /// The exact text of a run that has ended.
    async fn ended(&self, run: &str) -> Json {
        let answer = self.client.get(format!("{}/v1/runs/{run}?waitMs=60000", self.url)).send().await.unwrap();
        Json::parse_around(answer.bytes().await.unwrap(), 4).unwrap()
    }
}

fn member(json: &Json, path: &[&str]) -> Option<Json> {
    path.iter().try_fold(json.clone(), |json, name| json.field(name))
}

fn text_of(json: &Json, path: &[&str]) -> String {
    member(json, path).and_then(|found| found.to_text()).unwrap_or_default()
}

/// A submission of `pass` with a value as it is.
fn body(id: &str, value: &[u8], with_name: bool) -> Vec<u8> {
    let name = if with_name { r#""name":"pass","# } else { "" };
    let mut body = format!(r#"{{{name}"key":"{id}","input":{{"id":"{id}","value":"#).into_bytes();
    body.extend_from_slice(value);
    body.extend_from_slice(b"}}");
    body
}

fn run_of(answer: &str) -> String {
    let answer: Value = serde_json::from_str(answer).unwrap_or_else(|_| panic!("{answer}"));
    answer["runId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_out_of_a_fleet_as_they_went_in() {
    let fleet = Fleet::start(Shape { coordinators: 1, workers: 1 }).await;
    fleet.register(&pass("TEST.EFFECT.N")).await;
    let http = Http::new(&fleet);
    let bus = async_nats::connect(fleet.nats.url()).await.unwrap();
    let mut problems = Vec::new();
    let mut runs = Vec::new();
    for (n, value) in accepted().into_iter().enumerate() {
        let id = format!("http-{n}");
        let (status, answer) = http.post("/v1/runs", body(&id, value.as_bytes(), true)).await;
        if status == 201 {
            runs.push((run_of(&answer), id, value.clone()));
        } else {
            problems.push(format!("HTTP refuses {}: {answer}", shown(value.as_bytes())));
        }
        let id = format!("nats-{n}");
        let answer =
            bus.request("ditto.submit.default.loop.pass", body(&id, value.as_bytes(), false).into()).await.unwrap();
        let answer = String::from_utf8(answer.payload.to_vec()).unwrap();
        if answer.contains("runId") {
            runs.push((run_of(&answer), id, value));
        } else {
            problems.push(format!("NATS refuses {}: {answer}", shown(value.as_bytes())));
        }
    }
    // Both ways through the payload store, too large for one message.
    for (n, size) in [70 * 1024, 7 * MIB].into_iter().enumerate() {
        let (id, value) = (format!("large-{n}"), format!("\"{}\"", "y".repeat(size)));
        let (status, answer) = http.post("/v1/runs", body(&id, value.as_bytes(), true)).await;
        assert_eq!(status, 201, "{answer}");
        runs.push((run_of(&answer), id, value));
    }
    let effects: BTreeMap<String, usize> = runs.iter().map(|(_, id, _)| (id.clone(), 1)).collect();
    for (run, id, value) in &runs {
        let view = http.ended(run).await;
        let found = member(&view, &["output", "value"]);
        if found.as_ref().map(Json::as_str) != Some(value.as_str()) {
            let found = found.as_ref().unwrap_or(&view);
            problems.push(format!("{id}: {} became {}", shown(value.as_bytes()), shown(found.as_bytes())));
        }
    }
    assert_eq!(fleet.effects.count("N"), effects, "each happened once");

    let before = http.runs().await;
    for (value, fragment) in refused() {
        let (status, answer) = http.post("/v1/runs", body("refused", &value, true)).await;
        if status != 422 || !answer.contains(fragment) {
            problems.push(format!(
                "HTTP {}: expected a refusal that names {fragment}, found {status} {answer}",
                shown(&value)
            ));
        }
        let answer =
            bus.request("ditto.submit.default.loop.pass", body("refused", &value, false).into()).await.unwrap();
        let answer = String::from_utf8(answer.payload.to_vec()).unwrap();
        if !answer.contains("INVALID_INPUT") || !answer.contains(fragment) {
            problems.push(format!("NATS {}: expected a refusal that names {fragment}, found {answer}", shown(&value)));
        }
    }
    let value = format!("\"{}\"", "z".repeat(8 * MIB));
    let (status, answer) = http.post("/v1/runs", body("refused", value.as_bytes(), true)).await;
    if status != 413 || !answer.contains("input") {
        problems.push(format!("more than 8 MiB: {status} {}", shown(answer.as_bytes())));
    }
    let after = http.runs().await;
    assert_eq!(before, after, "what is refused leaves no run");
    assert!(problems.is_empty(), "{problems:#?}\n{}", fleet.logs());
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_compared_to_the_byte_or_refused_by_name() {
    let fleet = Fleet::start(Shape { coordinators: 1, workers: 1 }).await;
    let http = Http::new(&fleet);
    let submit = async |key: &str| {
        let body = format!(r#"{{"kind":"node","name":"TEST.EFFECT.N","key":{key},"input":{{"id":{key}}}}}"#);
        http.post("/v1/runs", body.into_bytes()).await
    };
    let keys = [
        r#""*""#,
        r#"">""#,
        r#""a b""#,
        r#""a.b""#,
        r#""a.>""#,
        r#""foo""#,
        r#""foo%""#,
        r#""foo_""#,
        r#""FOO""#,
        r#""foo ""#,
        r#""../x""#,
        r#""a/b?c#d""#,
        r#""'; --""#,
        r#""\u00e9""#,
        r#""e\u0301""#,
        r#""\ud83d\ude00""#,
        r#""\u65e5\u672c""#,
        r#""$1""#,
        r#""null""#,
        r#""0""#,
    ];
    let mut runs = BTreeMap::new();
    for key in keys {
        let (status, answer) = submit(key).await;
        assert_eq!(status, 201, "{key}: {answer}");
        let run = run_of(&answer);
        let (status, again) = submit(key).await;
        assert_eq!((status, run_of(&again)), (200, run.clone()), "{key}");
        assert!(runs.insert(run, key).is_none(), "{key} is a run of its own");
    }
    for run in runs.keys() {
        assert_eq!(fleet.ended(run, WITHIN).await.status, RunStatus::Completed);
    }
    let effects = fleet.effects.count("N");
    assert!(effects.values().all(|times| *times == 1), "{effects:?}");
    assert_eq!(effects.len(), keys.len());

    let long = format!("\"{}\"", "k".repeat(100 * 1024));
    let just_too_long = format!("\"{}\"", "\u{e9}".repeat(257));
    let refused = [
        r#""""#,
        r#"" ""#,
        r#""a\u0000b""#,
        r#""a\nb""#,
        r#""\ud800""#,
        "7",
        "true",
        "[]",
        "{}",
        &long,
        &just_too_long,
    ];
    let mut problems = Vec::new();
    for key in refused {
        let (status, answer) = submit(key).await;
        if status != 422 || !answer.contains("key") {
            problems.push(format!("{}: {status} {answer}", shown(key.as_bytes())));
        }
    }
    // Ids of calls and names, where a run is submitted or read.
    for (path, body, fragment) in [
        ("/v1/runs", r#"{"kind":"node","name":"TEST.*","input":{}}"#.to_owned(), "name"),
        ("/v1/runs", r#"{"name":">","input":{}}"#.to_owned(), "name"),
        ("/v1/runs", r#"{"name":"a b","input":{}}"#.to_owned(), "name"),
        ("/v1/runs", format!(r#"{{"name":"{}","input":{{}}}}"#, "n".repeat(100 * 1024)), "name"),
        ("/v1/runs", r#"{"name":7,"input":{}}"#.to_owned(), "name"),
        ("/v1/runs", r#"{"name":"pass","kind":"nodes","input":{}}"#.to_owned(), "kind"),
        ("/v1/runs", r#"{"name":"pass","inputs":{}}"#.to_owned(), "inputs"),
        ("/v1/runs", r#"{"name":"pass","revision":"a\u0000","input":{}}"#.to_owned(), "revision"),
        ("/v1/runs/*/cancel", String::new(), "run"),
        ("/v1/runs/%00/signals", r#"{"name":"x"}"#.to_owned(), "run"),
    ] {
        let (status, answer) = http.post(path, body.clone().into_bytes()).await;
        if status != 422 || !answer.contains(fragment) {
            problems.push(format!("{path} {}: expected {fragment}, found {status} {answer}", shown(body.as_bytes())));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_output_survives_the_worker_that_made_it() {
    let mut fleet = Fleet::start(Shape { coordinators: 1, workers: 1 }).await;
    fleet.register(&pass("TEST.EFFECT.K")).await;
    let http = Http::new(&fleet);
    for size in [10, 70 * 1024, 2 * MIB] {
        fleet.workers[0].restart(Some("worker_after_effect:1:kill"));
        let (id, value) = (format!("killed-{size}"), format!("\"{}\"", "y".repeat(size)));
        let (status, answer) = http.post("/v1/runs", body(&id, value.as_bytes(), true)).await;
        assert_eq!(status, 201, "{answer}");
        let run = run_of(&answer);
        fleet.until("the worker is killed", WITHIN, async || fleet.effects.count("K").get(&id).copied()).await;
        let mut ended = false;
        for _ in 0..600 {
            fleet.revive();
            ended = fleet.run(&run).await.is_some_and(|view| view.status.is_ended());
            if ended {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(ended, "{id}\n{}", fleet.logs());
        let view = http.ended(&run).await;
        let found = member(&view, &["output", "value"]).unwrap_or_else(|| panic!("{id}: {}", shown(view.as_bytes())));
        assert_eq!(found.as_str().len(), value.len(), "{id}: {}", shown(found.as_bytes()));
        assert_eq!(fleet.receipts(&run).await[0].settled_by, Some(SettledBy::Query));
        assert_eq!(fleet.effects.count("K")[&id], 1);
    }
}

/// What a worker of another make says after its effect, and what must become of it.
struct Said {
    body: Vec<u8>,
    state: ReceiptState,
    /// Part of the stored output or error.
    keeps: &'static str,
}

fn said() -> Vec<Said> {
    let wrong = |body: &[u8], keeps| Said { body: body.to_vec(), state: ReceiptState::Unknown, keeps };
    let right = |output: &str, keeps| Said {
        body: format!(r#"{{"verdict":"succeeded","output":{output}}}"#).into_bytes(),
        state: ReceiptState::Succeeded,
        keeps,
    };
    let failed = |error: &str, keeps| Said {
        body: format!(r#"{{"verdict":"failed","error":{error}}}"#).into_bytes(),
        state: ReceiptState::Failed,
        keeps,
    };
    vec![
        right(r#"{"x":"a\u0000b"}"#, r#"{"x":"a\u0000b"}"#),
        right("1e400", "1e400"),
        right("-0", "-0"),
        right("null", "null"),
        right("\"\"", "\"\""),
        right("false", "false"),
        right("18446744073709551617", "18446744073709551617"),
        right(nested(127).leak(), "[[[["),
        // The deepest value there may be, one deeper once it stands in the result.
        right(nested(128).leak(), "[[[["),
        wrong(format!(r#"{{"verdict":"succeeded","output":{}}}"#, nested(129)).as_bytes(), "RESPONSE_INVALID"),
        wrong(br#"{"verdict":"succeeded","output":"\ud800"}"#, "RESPONSE_INVALID"),
        wrong(br#"{"verdict":"succeeded","output":{"a":1,"a":2}}"#, "RESPONSE_INVALID"),
        wrong(b"{\"verdict\":\"succeeded\",\"output\":\"\xff\"}", "RESPONSE_INVALID"),
        wrong(br#"{"verdict":"done","output":1}"#, "RESPONSE_INVALID"),
        wrong(br#"{"verdict":"failed"}"#, "RESPONSE_INVALID"),
        wrong(b"", "RESPONSE_INVALID"),
        wrong(b"not json", "RESPONSE_INVALID"),
        // It names an output that nobody stored.
        wrong(
            format!(r#"{{"verdict":"succeeded","outputRef":"{}.70000"}}"#, "ab".repeat(32)).as_bytes(),
            "RESPONSE_INVALID",
        ),
        failed(r#"{"class":"failed","code":"NO","message":"a\u0000b","retryable":false}"#, "NO"),
        failed(r#"{"class":"failed","code":"a\u0000b","message":"m","retryable":false}"#, ""),
        failed(
            format!(r#"{{"class":"failed","code":"NO","message":"{}","retryable":false}}"#, "m".repeat(100 * 1024))
                .leak(),
            "NO",
        ),
        failed(
            format!(r#"{{"class":"failed","code":"{}","message":"m","retryable":false}}"#, "C".repeat(100 * 1024))
                .leak(),
            "",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_foreign_worker_says_is_settled() {
    let fleet = Fleet::start(Shape { coordinators: 1, workers: 0 }).await;
    let http = Http::new(&fleet);
    let bus = async_nats::connect(fleet.nats.url()).await.unwrap();
    let ask = async |what: &str, request: Value| -> Value {
        // The API answers a moment before the coordinator listens on the bus; a worker asks again as well.
        let answer = fleet.until(what, Duration::from_secs(30), async || {
            bus.request(format!("ditto.ledger.{what}"), request.to_string().into()).await.ok()
        });
        serde_json::from_slice(&answer.await.payload).unwrap()
    };
    let session = "FOREIGN";
    ask("open", json!({ "session": session, "workerKind": "foreign", "name": "f", "build": "1", "wire": 1 })).await;
    let offers = json!([{ "node": "TEST.FOREIGN", "policy": { "class": "N" } }]);
    let announced = ask("announce", json!({ "session": session, "workerKind": "foreign", "offers": offers })).await;
    let renewing = bus.clone();
    let renewal = tokio::spawn(async move {
        loop {
            let request = json!({ "session": "FOREIGN", "held": [] }).to_string();
            let _ = renewing.request("ditto.ledger.renew", request.into()).await; // asked again soon
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let stream = async_nats::jetstream::new(bus.clone());
    let consumer: async_nats::jetstream::consumer::PullConsumer =
        stream.get_consumer_from_stream(announced["consumer"].as_str().unwrap(), "DITTO_JOBS").await.unwrap();
    let mut jobs = consumer.messages().await.unwrap();
    let mut problems = Vec::new();
    for (n, Said { body, state, keeps }) in said().into_iter().enumerate() {
        let submission = json!({ "kind": "node", "name": "TEST.FOREIGN", "input": { "n": n } }).to_string();
        let (_, answer) = http.post("/v1/runs", submission.into_bytes()).await;
        let run = run_of(&answer);
        let job = tokio::time::timeout(WITHIN, jobs.next()).await.unwrap().unwrap().unwrap();
        let headers = job.headers.clone().unwrap();
        let (call, token) = (headers.get("Ditto-Call").unwrap().as_str(), format!("T{n}"));
        let bucket: i64 = headers.get("Ditto-Bucket").unwrap().as_str().parse().unwrap();
        let items = json!([{ "bucket": bucket, "call": call, "token": token }]);
        let claim = ask("claim", json!({ "session": session, "items": items })).await;
        assert_eq!(claim["answers"][0]["granted"]["fence"], 1, "{claim}");
        job.ack().await.unwrap();
        let mut answer = async_nats::HeaderMap::new();
        for name in ["Ditto-Call", "Ditto-Bucket", "Ditto-Loop", "Ditto-Request-Hash"] {
            answer.insert(name, headers.get(name).unwrap().as_str());
        }
        let id = format!("{call}.1.1");
        for (name, value) in [
            ("Ditto-Wire", "1"),
            ("Ditto-Session", session),
            ("Ditto-Fence", "1"),
            ("Ditto-Token", &token),
            ("Nats-Msg-Id", &id),
        ] {
            answer.insert(name, value);
        }
        let reply = headers.get("Ditto-Reply").unwrap().as_str().to_owned();
        stream.publish_with_headers(reply, answer, body.clone().into()).await.unwrap().await.unwrap();
        let settled = tokio::time::timeout(Duration::from_secs(10), async {
            loop {
                let receipts = http.client.get(format!("{}/v1/receipts/{call}", http.url)).send().await.unwrap();
                let receipt = Json::parse_around(receipts.bytes().await.unwrap(), 4);
                if let Ok(receipt) = receipt
                    && member(&receipt, &["receipt", "settledMs"]).is_some()
                {
                    break receipt;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        let about = shown(&body);
        let Ok(receipt) = settled else {
            problems.push(format!("{about}: is not settled"));
            continue;
        };
        let found = text_of(&receipt, &["receipt", "state"]);
        let kept = ["output", "error"].map(|part| member(&receipt, &["receipt", part]));
        let kept: String = kept.iter().flatten().map(Json::as_str).collect();
        if found != state.as_str() || !kept.contains(keeps) {
            let kept = shown(kept.as_bytes());
            let about = format!("{n} {about}");
            problems.push(format!("{about}: expected {state} that keeps {keeps}, found {found} with {kept}"));
        }
        if state == ReceiptState::Unknown {
            let log = member(&receipt, &["log"]).map(|log| log.as_str().to_owned()).unwrap_or_default();
            if !body.is_empty() && !log.contains("body") {
                problems.push(format!("{about}: what came is not kept as evidence: {log}"));
            }
            continue; // the run waits for a person
        }
        if !text_of(&http.ended(&run).await, &["status"]).starts_with(if state == ReceiptState::Succeeded {
            "completed"
        } else {
            "failed"
        }) {
            problems.push(format!("{about}: the run does not end: {}", shown(http.ended(&run).await.as_bytes())));
        }
    }
    renewal.abort();
    assert!(problems.is_empty(), "{problems:#?}\n{}", fleet.logs());
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct EchoInput {
    id: String,
    #[serde(default)]
    echo: Option<Json>,
    /// Answer with a text of this many bytes.
    #[serde(default)]
    grow: Option<usize>,
    /// Refuse with this code and message.
    #[serde(default)]
    refuse: Option<(String, String)>,
}

#[derive(Serialize)]
struct EchoOutput {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    echo: Option<Json>,
}

/// Counts its effects in memory.
struct Echo(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl NodeHandler for Echo {
    const NODE: &'static str = "TEST.ECHO";
    type Input = EchoInput;
    type Output = EchoOutput;

    fn policy(&self) -> CallPolicy {
        CallPolicy::default()
    }

    async fn handle(&self, _: &NodeContext, input: EchoInput) -> Result<EchoOutput, NodeError> {
        if let Some((code, message)) = input.refuse {
            return Err(NodeError::refused(code, message));
        }
        self.0.lock().unwrap().push(input.id.clone());
        let grown = input.grow.map(|size| Json::string(&"g".repeat(size)));
        Ok(EchoOutput { id: input.id, echo: grown.or(input.echo) })
    }
}

/// Everything in this process.
struct Embedded {
    handle: Handle,
    effects: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
    _dir: tempfile::TempDir,
}

impl Embedded {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.path().join("ledger.db")).await.unwrap());
        let bus: Arc<dyn Bus> = LocalBus::new();
        let config = CoordinatorConfig { sweep_period_ms: 20, ..CoordinatorConfig::default() };
        let coordinator = Coordinator::open(config, store, bus.clone(), Plans::default()).await.unwrap();
        let handle = coordinator.handle();
        let effects = Arc::new(Mutex::new(Vec::new()));
        let worker = Worker::builder("echo").handler(Echo(effects.clone())).build().unwrap();
        let stop = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        let (one, two) = (stop.clone(), stop.clone());
        tasks.spawn(async move { coordinator.run(one).await.unwrap() });
        tasks.spawn(async move { worker.run(WorkerConfig::default(), bus, two).await.unwrap() });
        assert!(handle.ready().await);
        let mut changes = handle.catalogue().subscribe();
        while handle.catalogue().all().is_empty() {
            changes.changed().await.unwrap();
        }
        Self { handle, effects, stop, tasks, _dir: dir }
    }

    async fn submit(&self, kind: SubmitKind, name: &str, key: &str, input: Json) -> RunRow {
        let body = SubmitBody { key: Some(SubmitKey::new(key).unwrap()), input, revision: None };
        let namespace = Namespace::default_namespace();
        let submission =
            Submission { namespace: namespace.clone(), kind, name: name.parse().unwrap(), body, traceparent: None };
        let run = self.handle.submit(submission).await.unwrap().run_id;
        tokio::time::timeout(WITHIN, async {
            loop {
                let row = self.handle.wait_ended(&namespace, &run, Duration::from_millis(200)).await.unwrap().unwrap();
                let filter =
                    ReceiptFilter { run: Some(run.clone()), states: vec![ReceiptState::Unknown], ..Default::default() };
                let unknown = self.handle.store().receipts_list(&filter, 10).await.unwrap();
                if row.status.is_ended() || unknown.iter().any(|receipt| receipt.settled_ms.is_some()) {
                    return row;
                }
            }
        })
        .await
        .unwrap()
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_out_of_one_process_as_they_went_in() {
    let fleet = Embedded::start().await;
    let definition = pass("TEST.ECHO");
    let compiled =
        ditto_definition::compile(&definition, "pass.yaml").unwrap_or_else(|problems| panic!("{problems:?}"));
    fleet.handle.register(&Namespace::default_namespace(), &compiled, definition).await.unwrap();
    let mut values = accepted();
    values.push(format!("\"{}\"", "y".repeat(70 * 1024)));
    values.push(format!("\"{}\"", "y".repeat(7 * MIB)));
    let mut problems = Vec::new();
    for (n, value) in values.iter().enumerate() {
        let id = format!("value-{n}");
        let input = Json::parse(format!(r#"{{"id":"{id}","value":{value}}}"#)).unwrap();
        let row = fleet.submit(SubmitKind::Loop, "pass", &id, input).await;
        let found = row.output.as_ref().and_then(|output| output.field("value"));
        if found.as_ref().map(Json::as_str) != Some(value.as_str()) {
            problems.push(format!("{}: {:?} {:?}", shown(value.as_bytes()), row.status, row.error));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    assert_eq!(fleet.effects.lock().unwrap().len(), values.len(), "each happened once");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_outputs_that_cannot_be_kept_are_never_lost_after_the_effect() {
    let fleet = Embedded::start().await;
    let long = "m".repeat(100 * 1024);
    for (n, (code, message)) in [
        ("NO", "a\u{0}b"),
        ("NO", "\u{1b}[31mred\u{7f}"),
        ("NO", &long),
        ("bad code\u{0}", "x"),
        (&long, "x"),
        ("", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let input = Json::from_serialize(&json!({ "id": "refused", "refuse": [code, message] })).unwrap();
        let row = fleet.submit(SubmitKind::Node, "TEST.ECHO", &format!("refused-{n}"), input).await;
        assert_eq!(row.status, RunStatus::Failed, "{row:?}");
        let error = row.error.unwrap();
        assert!(!error.message.contains(char::is_control) && error.message.len() < 4_096, "{error:?}");
        assert!(!error.code.is_empty() && error.code.len() <= 64, "{error:?}");
    }
    assert!(fleet.effects.lock().unwrap().is_empty());

    let input = Json::from_serialize(&json!({ "id": "grown", "grow": 9 * MIB })).unwrap();
    let row = fleet.submit(SubmitKind::Node, "TEST.ECHO", "grown", input).await;
    assert_eq!(*fleet.effects.lock().unwrap(), ["grown"]);
    let filter = ReceiptFilter { run: Some(row.run.clone()), ..Default::default() };
    let receipts = fleet.handle.store().receipts_list(&filter, 10).await.unwrap();
    let [receipt] = receipts.as_slice() else { panic!("{receipts:?}") };
    assert_eq!(receipt.state, ReceiptState::Unknown, "its effect happened: {receipt:?}");
    let error = receipt.error.as_ref().unwrap();
    assert_eq!(error.code, "RESPONSE_INVALID");
    assert!(error.message.contains("bytes, more than 8388608"), "{error:?}");
    fleet.stop().await;
}
