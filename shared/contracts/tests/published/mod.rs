//! What `proto/` publishes, made from the types: JSON Schemas, subjects, headers, an AsyncAPI document, golden samples.

#![allow(clippy::unwrap_used, reason = "a generator that stops at the first defect; it runs in tests and by hand only")]

use std::collections::BTreeMap;

use bytes::Bytes;
use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, ClaimToken, EffectClass, Json, NodeType, Pool, RunId, SessionId, Verdict,
    WireError,
    interaction::{ActToolInput, ExternalResult, Observation, OutputInput, OutputReceipt},
    wire::{Headers, Job, JobMode, PayloadRef, ResultBody, ResultMessage, SubmitBody, SubmitReply, ledger, subjects},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

/// Files by path below `proto/`.
pub(crate) fn files() -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let schemas = schemas();
    for (name, schema) in &schemas {
        files.insert(format!("ditto/v1/schemas/{name}.json"), pretty(schema));
    }
    files.insert("ditto/v1/asyncapi.json".into(), pretty(&asyncapi(&schemas)));
    files.insert("ditto/v1/subjects.md".into(), subjects_page());
    files.insert("ditto/v1/headers.md".into(), headers_page());
    for (name, headers, body) in golden() {
        let headers: serde_json::Map<String, Value> = headers.iter().map(|(n, v)| (n.to_owned(), json!(v))).collect();
        let body: Value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap() };
        files.insert(format!("golden/{name}.json"), pretty(&json!({ "headers": headers, "body": body })));
    }
    files
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap() + "\n"
}

fn schema<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value()
}

fn schemas() -> BTreeMap<&'static str, Value> {
    BTreeMap::from([
        ("SubmitBody", schema::<SubmitBody>()),
        ("SubmitReply", schema::<SubmitReply>()),
        ("ResultBody", schema::<ResultBody>()),
        ("WireError", schema::<WireError>()),
        ("CallPolicy", schema::<CallPolicy>()),
        ("OpenRequest", schema::<ledger::OpenRequest>()),
        ("OpenReply", schema::<ledger::OpenReply>()),
        ("AnnounceRequest", schema::<ledger::AnnounceRequest>()),
        ("AnnounceReply", schema::<ledger::AnnounceReply>()),
        ("ClaimRequest", schema::<ledger::ClaimRequest>()),
        ("ClaimReply", schema::<ledger::ClaimReply>()),
        ("ReleaseRequest", schema::<ledger::ReleaseRequest>()),
        ("ReleaseReply", schema::<ledger::ReleaseReply>()),
        ("RenewRequest", schema::<ledger::RenewRequest>()),
        ("RenewReply", schema::<ledger::RenewReply>()),
        ("CloseRequest", schema::<ledger::CloseRequest>()),
        ("PutRequest", schema::<ledger::PutRequest>()),
        ("PutReply", schema::<ledger::PutReply>()),
        ("GetRequest", schema::<ledger::GetRequest>()),
        ("GetReply", schema::<ledger::GetReply>()),
        ("CancelNotice", schema::<ledger::CancelNotice>()),
        ("ConfirmNotice", schema::<ledger::ConfirmNotice>()),
        ("ActToolInput", schema::<ActToolInput>()),
        ("ExternalResult", schema::<ExternalResult>()),
        ("Observation", schema::<Observation>()),
        ("OutputInput", schema::<OutputInput>()),
        ("OutputReceipt", schema::<OutputReceipt>()),
    ])
}

/// One address of the wire.
struct Channel {
    name: &'static str,
    address: String,
    carried: &'static str,
    from: &'static str,
    to: &'static str,
    body: &'static str,
    reply: Option<&'static str>,
    about: &'static str,
}

fn channels() -> Vec<Channel> {
    let node = NodeType::new("DOMAIN.NAME").unwrap();
    let pool = Pool::new("pool").unwrap();
    let fill = |text: String| text.replace("DOMAIN.NAME", "{node}").replace(".pool.pool", ".pool.{pool}");
    let session = SessionId::new("SESSION").unwrap();
    let of = |text: String| text.replace("SESSION", "{session}").replace("KIND", "{workerKind}");
    let plain = |name, address: &str, body, reply, about| Channel {
        name,
        address: address.to_owned(),
        carried: "request, queue group `coordinators`",
        from: "worker",
        to: "coordinator",
        body,
        reply: Some(reply),
        about,
    };
    vec![
        Channel {
            name: "submit",
            address: "ditto.submit.{namespace}.{kind}.{name}".into(),
            carried: "request, queue group `coordinators`",
            from: "client",
            to: "coordinator",
            body: "SubmitBody",
            reply: Some("SubmitReply"),
            about: "Submits a node, graph or loop; answered after the run is durable. A refusal carries the header `Ditto-Error` and the body `{\"error\": WireError}`.",
        },
        Channel {
            name: "inbox",
            address: "ditto.inbox.{namespace}.{kind}.{name}".into(),
            carried: "stream `DITTO_SUBMIT`",
            from: "client",
            to: "coordinator",
            body: "SubmitBody",
            reply: None,
            about: "Store-and-forward submission; a key is required (in the body or as header `Ditto-Submit-Key`), so that a redelivery is the same run.",
        },
        Channel {
            name: "jobs",
            address: fill(subjects::jobs(&node, None)),
            carried: "stream `DITTO_JOBS`",
            from: "coordinator",
            to: "worker",
            body: "the node's input",
            reply: None,
            about: "One job per call, identity in the headers. Durable consumer per worker kind.",
        },
        Channel {
            name: "jobsOfPool",
            address: fill(subjects::jobs(&node, Some(&pool))),
            carried: "stream `DITTO_JOBS`",
            from: "coordinator",
            to: "worker",
            body: "the node's input",
            reply: None,
            about: "The same for a pool of replicas with a queue of its own.",
        },
        Channel {
            name: "results",
            address: of(subjects::results(&session)),
            carried: "stream `DITTO_RESULTS`",
            from: "worker",
            to: "coordinator",
            body: "ResultBody",
            reply: None,
            about: "The address is opaque to the worker: it is the job's header `Ditto-Reply`.",
        },
        plain("open", subjects::LEDGER_OPEN, "OpenRequest", "OpenReply", "Opens a session."),
        plain(
            "announce",
            subjects::LEDGER_ANNOUNCE,
            "AnnounceRequest",
            "AnnounceReply",
            "Says what the session serves; names the consumer to pull from.",
        ),
        plain(
            "claim",
            subjects::LEDGER_CLAIM,
            "ClaimRequest",
            "ClaimReply",
            "Claims up to 64 calls before their effects.",
        ),
        plain("release", subjects::LEDGER_RELEASE, "ReleaseRequest", "ReleaseReply", "Gives attempts back."),
        plain(
            "renew",
            subjects::LEDGER_RENEW,
            "RenewRequest",
            "RenewReply",
            "Extends the session; answers which held calls are settled or cancelled.",
        ),
        plain("close", subjects::LEDGER_CLOSE, "CloseRequest", "an empty object", "Ends the session."),
        plain("put", subjects::LEDGER_PUT, "PutRequest", "PutReply", "Stores a piece of a large value."),
        plain("get", subjects::LEDGER_GET, "GetRequest", "GetReply", "Reads a piece of a large value."),
        Channel {
            name: "cancel",
            address: of(subjects::cancel("KIND", &session)),
            carried: "plain, safe to lose",
            from: "coordinator",
            to: "worker",
            body: "CancelNotice",
            reply: None,
            about: "Asks to stop calls.",
        },
        Channel {
            name: "confirm",
            address: of(subjects::confirm("KIND", &session)),
            carried: "plain, safe to lose",
            from: "coordinator",
            to: "worker",
            body: "ConfirmNotice",
            reply: None,
            about: "Names results that are settled.",
        },
        Channel {
            name: "wake",
            address: of(subjects::wake(&session)),
            carried: "plain, safe to lose",
            from: "coordinator",
            to: "coordinator",
            body: "`{\"runs\": [run id]}`",
            reply: None,
            about: "Rings for runs with news.",
        },
    ]
}

fn asyncapi(schemas: &BTreeMap<&'static str, Value>) -> Value {
    let mut channel_map = serde_json::Map::new();
    let mut operations = serde_json::Map::new();
    let mut messages = serde_json::Map::new();
    for channel in channels() {
        let mut names = vec![(channel.name.to_owned(), channel.body)];
        if let Some(reply) = channel.reply {
            names.push((format!("{}Reply", channel.name), reply));
        }
        let mut refs = serde_json::Map::new();
        for (name, body) in &names {
            let payload = match schemas.contains_key(body) {
                true => json!({ "$ref": format!("schemas/{body}.json") }),
                false => json!({ "description": body }),
            };
            messages
                .insert(name.clone(), json!({ "name": name, "contentType": "application/json", "payload": payload }));
            refs.insert(name.clone(), json!({ "$ref": format!("#/components/messages/{name}") }));
        }
        let parameters: serde_json::Map<String, Value> = channel
            .address
            .split(['{', '}'])
            .skip(1)
            .step_by(2)
            .map(|name| (name.to_owned(), json!({ "description": parameter(name) })))
            .collect();
        let mut entry = json!({ "address": channel.address, "description": channel.about, "messages": refs });
        if !parameters.is_empty() {
            entry["parameters"] = Value::Object(parameters);
        }
        channel_map.insert(channel.name.into(), entry);
        let mut operation = json!({
            "action": "send",
            "summary": format!("{} to {}: {}", channel.from, channel.to, channel.carried),
            "channel": { "$ref": format!("#/channels/{}", channel.name) },
            "messages": [{ "$ref": format!("#/channels/{0}/messages/{0}", channel.name) }],
        });
        if channel.reply.is_some() {
            operation["reply"] = json!({
                "address": { "location": "$message.header#/replyTo" },
                "messages": [{ "$ref": format!("#/channels/{0}/messages/{0}Reply", channel.name) }],
                "channel": { "$ref": format!("#/channels/{}", channel.name) },
            });
        }
        operations.insert(format!("send{}{}", channel.name[..1].to_uppercase(), &channel.name[1..]), operation);
    }
    json!({
        "asyncapi": "3.0.0",
        "info": {
            "title": "Ditto wire contract",
            "version": "1",
            "description": "Jobs, results, ledger requests and submissions on NATS. Headers are described in headers.md.",
        },
        "defaultContentType": "application/json",
        "channels": channel_map,
        "operations": operations,
        "components": { "messages": messages },
    })
}

fn parameter(name: &str) -> &'static str {
    match name {
        "namespace" => "tenant, 1 to 63 of A-Z a-z 0-9 _ -",
        "kind" => "node, graph or loop",
        "name" => "definition name, or the node type for kind node",
        "node" => "node type, dots included",
        "pool" => "pool of worker replicas",
        "session" => "session id",
        "workerKind" => "worker kind, a-z 0-9 -",
        _ => "",
    }
}

fn subjects_page() -> String {
    let mut page = String::from(
        "# Subjects\n\nMade from the types by `cargo run -p ditto-contracts --example proto`; a test compares it.\n\n\
         | Subject | How | From → to | Body | Answer | What for |\n|---|---|---|---|---|---|\n",
    );
    for c in channels() {
        let reply = c.reply.unwrap_or("–");
        page.push_str(&format!(
            "| `{}` | {} | {} → {} | {} | {} | {} |\n",
            c.address, c.carried, c.from, c.to, c.body, reply, c.about
        ));
    }
    page
}

fn headers_page() -> String {
    let rows = [
        (
            "Nats-Msg-Id",
            "jobs, results",
            "`<call>.<dispatch>`; results `<call>.<fence>.<dispatch>.<try>.<token or session>`",
        ),
        ("Ditto-Wire", "all", "`1`"),
        ("Ditto-Call", "jobs, results", "call uid, 26 characters"),
        ("Ditto-Bucket", "jobs, results", "day of the run, days since 1970"),
        ("Ditto-Loop", "jobs, results", "run id, 26 characters"),
        ("Ditto-Session", "results", "session that answers"),
        ("Ditto-Node", "jobs", "node type"),
        ("Ditto-Class", "jobs", "`R`, `K` or `N`; the ledger's value wins"),
        ("Ditto-Claim", "jobs", "`required` or `none`; a worker skips the claim only if its own registration agrees"),
        ("Ditto-Mode", "jobs, results", "`execute` (default) or `query`"),
        (
            "Ditto-Dispatch",
            "jobs, results",
            "how often the call was published, from 1; a result names the dispatch it answers",
        ),
        ("Ditto-Request-Hash", "jobs, results", "SHA-256 of the request bytes, 64 hexadecimal digits"),
        (
            "Ditto-Payload",
            "jobs",
            "`<sha256>.<size>` when the request is above 65536 bytes and kept as a payload; the body is then empty",
        ),
        ("Ditto-Budget-Ms", "jobs", "time left when it was published, in milliseconds"),
        ("Ditto-Reply", "jobs", "subject for the result, opaque"),
        ("Ditto-Key", "jobs in query mode", "idempotency key to ask by, UTF-8 in hexadecimal"),
        ("Ditto-Fence, Ditto-Token", "results of claimed calls", "attempt and proof of the claim"),
        ("Ditto-Submit-Key", "submissions", "idempotency key of the submission, instead of `key` in the body"),
        ("Ditto-Error", "answers", "error code; the body holds the error"),
        ("traceparent, tracestate", "all", "W3C trace context"),
    ];
    let mut page = String::from(
        "# Headers\n\nNames compare without case. Values are ASCII.\n\n| Header | On | Value |\n|---|---|---|\n",
    );
    for (name, on, value) in rows {
        page.push_str(&format!("| `{}` | {on} | {value} |\n", name.replace(", ", "`, `")));
    }
    page
}

/// Samples of every message that a foreign worker or client writes or reads.
pub(crate) fn golden() -> Vec<(&'static str, Headers, Bytes)> {
    let run = RunId::new("01M8PS85VYD1TVJQ1THP9YWKV6").unwrap();
    let call_id = CallId::new("refund:7").unwrap();
    let call = CallUid::derive(&run, CallKind::Tool, &call_id);
    let session = SessionId::new("0DDGH40XAHDDXN2Z5NZRYTWRCJ").unwrap();
    let token = ClaimToken::new("4F2B0XJ0GV1N8ZKQ3W5Y7T9RAC").unwrap();
    let request = Json::parse(
        r#"{"call":{"id":"refund:7","name":"refund","arguments":{"order":"7","cents":18446744073709551616}}}"#,
    )
    .unwrap();
    let job = Job {
        bucket: call.bucket(),
        call: call.clone(),
        run: run.clone(),
        node: NodeType::new(NodeType::ACT_TOOL).unwrap(),
        class: EffectClass::Keyed,
        claim: true,
        mode: JobMode::Execute,
        dispatch_no: 1,
        request_hash: request.sha256(),
        payload: None,
        budget_ms: Some(600_000),
        reply: "ditto.results.COORDINATOR".into(),
        key: None,
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        tracestate: None,
    };
    let result = |verdict, output: Option<&str>, error| ResultMessage {
        bucket: call.bucket(),
        call: call.clone(),
        run: run.clone(),
        fence: 1,
        token: Some(token.clone()),
        session: session.clone(),
        request_hash: request.sha256(),
        dispatch_no: 1,
        attempt_no: 1,
        query: false,
        traceparent: None,
        body: ResultBody {
            verdict,
            output: output.map(|o| Json::parse(o.to_owned()).unwrap()),
            output_ref: None,
            error,
        },
    };
    let succeeded = result(
        Verdict::Succeeded,
        Some(r#"{"callId":"refund:7","source":"refund","status":"success","structuredContent":{"refund":"r-1"}}"#),
        None,
    );
    let unknown = result(
        Verdict::Unknown,
        None,
        Some(WireError::new(ditto_contracts::ErrorClass::Unknown, "RESPONSE_LOST", "the answer was lost")),
    );
    let plain = |value: &dyn erased::Body| (Headers::new(), value.bytes());
    let claim = plain(&ledger::ClaimRequest {
        session: session.clone(),
        items: vec![ledger::ClaimItem { bucket: call.bucket(), call: call.clone(), token: token.clone() }],
    });
    let granted = plain(&ledger::ClaimReply {
        answers: vec![
            ledger::ClaimAnswer::Granted {
                fence: 1,
                earlier_unresolved: 0,
                key: format!("ditto:{call}"),
                request_hash: data_encoding::HEXLOWER.encode(&request.sha256()),
                policy: CallPolicy::keyed(),
                budget_ms: Some(599_000),
            },
            ledger::ClaimAnswer::Taken,
            ledger::ClaimAnswer::Missing,
        ],
    });
    let announce = plain(&ledger::AnnounceRequest {
        session: session.clone(),
        worker_kind: "billing".into(),
        pool: Some(Pool::new("billing").unwrap()),
        offers: vec![ledger::Offer {
            node: NodeType::new(NodeType::ACT_TOOL).unwrap(),
            source: Some("refund".into()),
            policy: CallPolicy { query: true, ..CallPolicy::keyed() },
            description: Some("Refund an order".into()),
            input_schema: Some(Json::parse(r#"{"type":"object"}"#).unwrap()),
            effects: vec!["write".into(), "network".into()],
            requires_approval: false,
        }],
    });
    let open = plain(&ledger::OpenRequest {
        session: session.clone(),
        worker_kind: "billing".into(),
        name: "billing-1".into(),
        build: "1.0.0".into(),
        instance: None,
        wire: 1,
    });
    let renew = plain(&ledger::RenewRequest {
        session,
        held: vec![ledger::HeldItem { bucket: call.bucket(), call: call.clone(), fence: 1 }],
    });
    let renewed = plain(&ledger::RenewReply { alive: true, ttl_ms: 15_000, settled: vec![call], cancel: vec![] });
    let submit = plain(&SubmitBody {
        key: Some(ditto_contracts::SubmitKey::new("order-7").unwrap()),
        input: Json::parse(r#"{"paths":["README.md"]}"#).unwrap(),
        revision: None,
    });
    let submitted = plain(&SubmitReply { run_id: run, duplicate: false });
    let payload = PayloadRef { digest: request.sha256(), size: 70_000 };
    let large = Job { payload: Some(payload), ..job.clone() };
    vec![
        ("job", job.to_headers(), request.to_bytes()),
        ("job-with-payload", large.to_headers(), Bytes::new()),
        ("result-succeeded", succeeded.to_headers(), succeeded.body.to_json().to_bytes()),
        ("result-unknown", unknown.to_headers(), unknown.body.to_json().to_bytes()),
        ("claim-request", claim.0, claim.1),
        ("claim-reply", granted.0, granted.1),
        ("announce-request", announce.0, announce.1),
        ("open-request", open.0, open.1),
        ("renew-request", renew.0, renew.1),
        ("renew-reply", renewed.0, renewed.1),
        ("submit-request", submit.0, submit.1),
        ("submit-reply", submitted.0, submitted.1),
    ]
}

mod erased {
    //! Anything that can be written as a body.

    use bytes::Bytes;

    pub(super) trait Body {
        fn bytes(&self) -> Bytes;
    }

    impl<T: serde::Serialize> Body for T {
        fn bytes(&self) -> Bytes {
            serde_json::to_vec(self).unwrap().into()
        }
    }
}
