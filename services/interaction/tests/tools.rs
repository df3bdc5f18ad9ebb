//! `INTERACTION.ACT.TOOL`, tools and the registry: acceptance cases 1 to 24.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use ditto_contracts::{
    CallPolicy, EffectClass, Json, codes,
    interaction::{ExternalResult, ExternalStatus, InteractionError, ToolCall},
};
use ditto_interaction::{
    Effect, Interaction, InteractionConfig, QueryAnswer, RegistryError, Sandbox, SandboxPolicy, Tool, ToolContext,
    ToolError, ToolOutcome, ToolRegistry, read_text,
};
use ditto_worker::{NodeContext, NodeError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Lookup {
    query: String,
}

#[derive(Serialize)]
struct Found {
    found: bool,
}

fn allow(tools: &[&str]) -> Sandbox {
    let tools = tools.iter().map(ToString::to_string).collect();
    Sandbox::new(&SandboxPolicy { tools, ..SandboxPolicy::default() }, None).unwrap()
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: "one".into(), name: name.into(), arguments: Json::parse(arguments.to_owned()).unwrap() }
}

fn cx() -> NodeContext {
    NodeContext::detached("k", Duration::from_secs(5))
}

fn lookup(count: &Arc<AtomicUsize>) -> Tool {
    let count = count.clone();
    Tool::new("lookup", move |_: ToolContext, _: Lookup| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(Found { found: true }) }
    })
    .effects([Effect::Network])
}

/// A tool that answers this.
fn saying(outcome: ToolOutcome) -> ToolRegistry {
    let registry = ToolRegistry::new();
    let tool = Tool::new("t", move |_: ToolContext, _: Json| {
        let outcome = outcome.clone();
        async { Ok(outcome) }
    });
    let _registered = registry.register(tool).unwrap();
    registry
}

async fn said(outcome: ToolOutcome) -> Result<ExternalResult, NodeError> {
    saying(outcome).call(&cx(), &allow(&["t"]), call("t", "{}")).await
}

#[tokio::test]
async fn case_1_a_call_answers_with_its_identity_and_nothing_else() {
    let (registry, count) = (ToolRegistry::new(), Arc::default());
    let _registered = registry.register(lookup(&count)).unwrap();
    let result = registry.call(&cx(), &allow(&["lookup"]), call("lookup", r#"{"query":"x"}"#)).await.unwrap();
    assert_eq!(
        Json::from_serialize(&result).unwrap().as_str(),
        r#"{"callId":"one","source":"lookup","status":"success","structuredContent":{"found":true}}"#
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn case_2_arguments_are_checked_before_anything_runs() {
    let (registry, count) = (ToolRegistry::new(), Arc::default());
    let rule = |arguments: &Json| {
        let text = arguments.field("query").and_then(|query| query.to_text()).unwrap_or_default();
        if text.is_empty() { Err("query must not be empty".to_owned()) } else { Ok(()) }
    };
    let _registered = registry.register(lookup(&count).validate(rule)).unwrap();
    for (arguments, fragment) in [
        ("{}", "query"),
        (r#"{"query":7}"#, "$.query"),
        (r#"{"query":"x","more":1}"#, "more"),
        (r#"{"query":""}"#, "query must not be empty"),
    ] {
        let error = registry.call(&cx(), &allow(&["lookup"]), call("lookup", arguments)).await.unwrap_err();
        let NodeError::NotSent(error) = error else { panic!("{error:?}") };
        assert_eq!(error.code, codes::INVALID_ARGUMENTS);
        assert!(error.message.contains(fragment), "{arguments}: {}", error.message);
    }
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn cases_3_4_6_id_permission_and_look_up_come_in_this_order() {
    let registry = ToolRegistry::new();
    let refused = async |sandbox: Sandbox, call: ToolCall| {
        let NodeError::NotSent(error) = registry.call(&cx(), &sandbox, call).await.unwrap_err() else { panic!() };
        (error.code, error.message)
    };
    let (code, message) = refused(allow(&["other"]), call("absent", "{}")).await;
    assert_eq!((code.as_str(), message.as_str()), (codes::PERMISSION_DENIED, "permission denied: tools:absent"));

    let registered = registry.register(lookup(&Arc::default())).unwrap();
    assert!(registered.remove());
    let (code, message) = refused(allow(&["lookup"]), call("lookup", r#"{"query":"x"}"#)).await;
    assert_eq!((code.as_str(), message.as_str()), (codes::UNKNOWN_TOOL, "unknown tool"));

    for id in ["", " "] {
        let (code, message) = refused(Sandbox::deny_all(), ToolCall { id: id.into(), ..call("absent", "{}") }).await;
        assert!(code == codes::INVALID_INPUT && message.contains("call.id"), "{message}");
    }
}

#[tokio::test]
async fn case_7_a_business_failure_is_a_value() {
    let Err(NodeError::Refused { output: Some(output), error }) =
        said(ToolOutcome::failed("NOT_FOUND", "No match")).await
    else {
        panic!("not a definite failure with a value")
    };
    assert_eq!(error.code, "NOT_FOUND");
    assert_eq!(
        output.as_str(),
        r#"{"callId":"one","source":"t","status":"failed","error":{"code":"NOT_FOUND","message":"No match"}}"#
    );
}

#[tokio::test]
async fn case_8_an_error_of_the_tool_is_passed_on_as_what_it_proves() {
    let registry = ToolRegistry::new();
    let tool = Tool::new("t", |_: ToolContext, kind: String| async move {
        match kind.as_str() {
            "io" => Err(std::io::Error::other("connection reset").into()),
            "no" => Err(ToolError::refused("DECLINED", "card declined")),
            "unsent" => Err(ToolError::no_byte_sent("connection refused")),
            "later" => Err(ToolError::throttled(Duration::from_secs(3), "busy")),
            "lost" => Err(ToolError::response_lost("reset by peer")),
            "bad" => Err::<Json, _>(ToolError::response_invalid("not JSON")),
            _ => Ok(Json::null()),
        }
    });
    let _registered = registry.register(tool).unwrap();
    let end = async |kind: &str| {
        let arguments = format!("\"{kind}\"");
        registry.call(&cx(), &allow(&["*"]), call("t", &arguments)).await.unwrap_err()
    };
    assert!(matches!(end("io").await, NodeError::Ambiguous { .. }));
    assert!(matches!(end("no").await, NodeError::Refused { output: Some(_), .. }));
    assert!(matches!(end("unsent").await, NodeError::NoByteSent(_)));
    assert!(matches!(end("later").await, NodeError::Throttled { .. }));
    assert!(matches!(end("lost").await, NodeError::Ambiguous { .. }));
    assert!(matches!(end("bad").await, NodeError::Invalid(_)));
}

#[tokio::test]
async fn cases_9_to_13_an_outcome_that_breaks_a_rule_is_no_answer() {
    let empty = ToolOutcome { content: None, ..ToolOutcome::text("") };
    let no_error = ToolOutcome { error: None, ..ToolOutcome::failed("A", "b") };
    let secret = ToolOutcome {
        error: Some(InteractionError {
            code: "A".into(),
            message: "Bearer synthetic-secret-marker".into(),
            retryable: None,
        }),
        ..ToolOutcome::text("ok")
    };
    let list = ToolOutcome { metadata: Some(Json::parse("[]").unwrap()), ..ToolOutcome::text("ok") };
    for (outcome, fragment) in [
        (empty, "no content"),
        (no_error, "error is required"),
        (secret, "unsafe interaction error message"),
        (list, "metadata"),
    ] {
        let NodeError::Invalid(error) = said(outcome).await.unwrap_err() else { panic!("{fragment}") };
        assert!(error.message.contains(fragment) && !error.message.contains("synthetic"), "{}", error.message);
    }
}

#[tokio::test]
async fn a_late_or_cancelled_answer_of_a_writing_tool_is_not_definite() {
    for status in [ExternalStatus::Cancelled, ExternalStatus::Timeout, ExternalStatus::Unknown] {
        let error = said(ToolOutcome { status, ..ToolOutcome::failed("A", "b") }).await.unwrap_err();
        assert!(matches!(error, NodeError::Ambiguous { .. }), "{status:?}: {error:?}");
    }
}

#[test]
fn cases_14_to_16_names_are_checked() {
    let registry = ToolRegistry::new();
    let named = |name: &str| Tool::new(name, |_: ToolContext, _: Json| async { Ok(Json::null()) });
    let longest = "aA0_-".repeat(12) + "abcd";
    assert_eq!(longest.len(), 64);
    let _registered = registry.register(named(&longest)).unwrap();
    for name in ["invalid.name", "", &"x".repeat(65), "a b", "ä"] {
        let error = registry.register(named(name)).unwrap_err();
        assert!(error.to_string().contains("invalid"), "{name}");
    }
    let error = registry.register(named(&longest)).unwrap_err();
    assert!(matches!(error, RegistryError::Duplicate(_)) && error.to_string().contains("duplicate tool"));
    let bad = named("schema").schema(Json::parse(r#"{"type":"nothing"}"#).unwrap());
    assert!(matches!(registry.register(bad), Err(RegistryError::Schema { .. })));
}

#[test]
fn case_18_a_remover_removes_its_own_tool_only() {
    let registry = ToolRegistry::new();
    let first = registry.register(lookup(&Arc::default())).unwrap();
    assert!(first.remove() && !first.remove());
    let second = registry.register(lookup(&Arc::default())).unwrap();
    assert!(!first.remove());
    assert_eq!(registry.list(&allow(&["*"])).len(), 1);
    assert!(second.remove());
}

#[test]
fn case_19_what_is_listed_is_what_is_allowed() {
    let registry = ToolRegistry::new();
    let other = Tool::new("other", |_: ToolContext, _: Json| async { Ok(Json::null()) });
    let _a = registry.register(lookup(&Arc::default()).describe("Looks up").requires_approval()).unwrap();
    let _b = registry.register(other).unwrap();
    let listed = registry.list(&allow(&["lookup"]));
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].description.as_deref()), ("lookup", Some("Looks up")));
    assert_eq!((listed[0].effects.as_slice(), listed[0].requires_approval), (&["network".to_owned()][..], true));
    assert!(listed[0].input_schema.field("properties").unwrap().field("query").is_some());
}

#[tokio::test]
async fn case_20_a_registry_may_change_while_it_is_used() {
    let registry = ToolRegistry::new();
    let interaction = Interaction::builder().registry(registry.clone()).build().unwrap();
    let registered = registry.register(lookup(&Arc::default())).unwrap();
    let go = async || interaction.registry().call(&cx(), &allow(&["*"]), call("lookup", r#"{"query":"x"}"#)).await;
    assert!(go().await.is_ok());
    assert!(registered.remove());
    assert!(go().await.unwrap_err().to_string().contains("unknown tool"));
}

#[test]
fn cases_22_24_what_a_worker_serves() {
    let plain = Interaction::builder().build().unwrap();
    assert_eq!(plain.nodes(), ["INTERACTION.ACT.TOOL", "INTERACTION.OBSERVE"]);
    let dir = tempfile::tempdir().unwrap();
    let config = InteractionConfig {
        concurrency: 2,
        output: Some(ditto_interaction::OutputConfig::File { dir: dir.path().join("out") }),
        ..InteractionConfig::default()
    };
    let full = Interaction::from_config(config).build().unwrap();
    assert_eq!(full.concurrency(), 2);
    assert_eq!(full.nodes(), ["INTERACTION.ACT.TOOL", "INTERACTION.OBSERVE", "INTERACTION.OUTPUT"]);
}

#[test]
fn a_tool_is_class_n_unless_it_says_otherwise() {
    let query = |_: ToolContext, _: Lookup| async { Ok(QueryAnswer::<Found>::Absent) };
    let plain = lookup(&Arc::default());
    assert_eq!(plain.policy(), &CallPolicy::default());
    let read = plain.clone().timeout(Duration::from_secs(1)).read_only();
    assert_eq!(
        (read.policy().class, read.policy().is_claimed(), read.policy().timeout_ms),
        (EffectClass::ReadOnly, false, 1_000)
    );
    assert!(plain.clone().exclusive().policy().is_claimed());
    let keyed = plain.keyed(query).key_ttl(Duration::from_secs(60)).rejections_stored();
    assert_eq!(
        keyed.policy(),
        &CallPolicy { query: true, key_ttl_ms: Some(60_000), rejections_stored: true, ..CallPolicy::keyed() }
    );
}

#[tokio::test]
async fn read_text_reads_inside_the_workspace_only() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "hé\u{1}llo").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", root.path().join("out")).unwrap();
    let policy = SandboxPolicy { tools: vec!["read_text".into()], read: true, ..SandboxPolicy::default() };
    let registry = ToolRegistry::new();
    let _registered = registry.register(read_text(64)).unwrap();
    let sandbox = Sandbox::new(&policy, Some(root.path())).unwrap();
    let read = async |sandbox: &Sandbox, path: &str| {
        registry.call(&cx(), sandbox, call("read_text", &format!(r#"{{"path":"{path}"}}"#))).await
    };
    let result = read(&sandbox, "a.txt").await.unwrap();
    assert_eq!(result.content.unwrap().to_text().as_deref(), Some("hé\u{1}llo"));
    assert!(
        matches!(read(&sandbox, "missing").await, Err(NodeError::Refused { error, .. }) if error.code == "NOT_FOUND")
    );
    for path in ["../x", "out"] {
        let error = read(&sandbox, path).await.unwrap_err();
        assert!(matches!(&error, NodeError::NotSent(wire) if wire.code == codes::PERMISSION_DENIED), "{path}: {error}");
    }
    assert!(matches!(read(&sandbox, "").await, Err(NodeError::NotSent(_))));
    // Case 338: nothing is read for a call that was cancelled.
    let cancelled = cx();
    cancelled.cancellation().cancel();
    let late = registry.call(&cancelled, &sandbox, call("read_text", r#"{"path":"a.txt"}"#)).await;
    assert!(matches!(late, Err(NodeError::Cancelled { .. })));
    let blind = Sandbox::new(&SandboxPolicy { read: false, ..policy }, Some(root.path())).unwrap();
    assert!(read(&blind, "a.txt").await.unwrap_err().to_string().contains("permission denied"));
}
