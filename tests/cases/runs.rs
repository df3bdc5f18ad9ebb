//! Sections 9 and 11 and the distributed cases, as a coordinator with workers keeps them.

use std::time::Duration;

use ditto_contracts::{
    ErrorClass, ReceiptState, RunStatus, codes,
    limits::INLINE_BYTES_MAX,
    wire::{PayloadRef, SubmitKind},
};
use ditto_interaction::{Interaction, InteractionConfig, Permission, SandboxPolicy, Tool, ToolContext};
use sha2::{Digest as _, Sha256};

use crate::engine::{Calls, Engine, WITHIN};

/// Tasks of `TEST.STEP` under one loop name; each is `name: settings`.
fn steps(tasks: &[(&str, &str)]) -> String {
    let mut text = String::from("ditto: 1\nloop: steps\ngraph:\n  tasks:\n");
    for (name, settings) in tasks {
        text.push_str(&format!("    {name}: {{ node: TEST.STEP, {settings} }}\n"));
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn case_258_a_pool_that_nobody_serves_fails_the_call_and_sends_nothing() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 4).await;
    let row = engine.run(&steps(&[("a", "pool: nobody, with: { name: a }")]), "{}").await;
    assert_eq!((row.status, row.error.unwrap().code.as_str()), (RunStatus::Failed, codes::NO_WORKER_AVAILABLE));
    assert_eq!(calls.names(), Vec::<String>::new());
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_260_a_run_cancelled_before_its_first_claim_calls_nothing() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    let reply = engine.begin(&steps(&[("a", "with: { name: a }")]), "{}").await;
    engine.cancel(&reply).await;
    let row = engine.ended(&reply).await;
    assert_eq!(row.status, RunStatus::Cancelled, "{row:?}");
    // A worker that comes later finds the job and must not perform it; the second run shows that it is at work.
    engine.step_worker(&calls, 4).await;
    engine.run(&steps(&[("later", "with: { name: later }")]), "{}").await;
    assert_eq!(calls.names(), ["later"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_261_a_run_cancelled_inside_a_call_starts_no_other() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 4).await;
    let tasks = [("a", "with: { name: a, wait: true }"), ("b", "needs: [a], with: { name: b }")];
    let reply = engine.begin(&steps(&tasks), "{}").await;
    calls.started(1).await;
    engine.cancel(&reply).await;
    let row = engine.ended(&reply).await;
    assert_eq!((row.status, calls.names()), (RunStatus::Cancelled, vec!["a".to_owned()]));
    engine.stop().await;
}

/// Case D7 as well: the worker is told, and what it cannot prove is not called a failure.
#[tokio::test(flavor = "multi_thread")]
async fn case_d7_a_call_cancelled_in_flight_is_unknown_and_named() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 4).await;
    let reply = engine.begin(&steps(&[("a", "with: { name: a, wait: true }")]), "{}").await;
    calls.started(1).await;
    engine.cancel(&reply).await;
    let row = engine.ended(&reply).await;
    let receipts = engine.receipts(&row).await;
    assert_eq!((row.status, receipts[0].state), (RunStatus::Cancelled, ReceiptState::Unknown));
    assert!(row.error.unwrap().message.contains("unknown outcome of 0/a"));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_264_each_pool_has_the_permissions_of_its_own_worker() {
    let mut engine = Engine::start().await;
    for (pool, read) in [("open", true), ("closed", false)] {
        let may_read = Tool::new("may_read", |cx: ToolContext, _: ditto_contracts::Json| async move {
            Ok(cx.sandbox().allows(Permission::Read))
        });
        let config = InteractionConfig {
            pool: Some(pool.into()),
            permissions: SandboxPolicy { tools: vec!["may_read".into()], read, ..SandboxPolicy::default() },
            ..InteractionConfig::default()
        };
        engine.interaction(Interaction::builder().config(config).tool(may_read.read_only()).build().unwrap()).await;
    }
    let task = |pool: &str| {
        format!(
            "    {pool}: {{ node: INTERACTION.ACT.TOOL, pool: {pool}, \
             with: {{ call: {{ id: {pool}, name: may_read, arguments: {{}} }} }} }}\n"
        )
    };
    let definition = format!(
        "ditto: 1\nloop: pools\ngraph:\n  tasks:\n{}{}output: [\"${{ tasks.open.structuredContent }}\", \
         \"${{ tasks.closed.structuredContent }}\"]\n",
        task("open"),
        task("closed")
    );
    let row = engine.run(&definition, "{}").await;
    assert_eq!(row.output.as_ref().map(|output| output.as_str()), Some("[true,false]"), "{row:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_265_a_full_worker_takes_the_second_call_after_the_first() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 1).await;
    let tasks = [("a", "with: { name: a, wait: true }"), ("b", "with: { name: b, wait: true }")];
    let reply = engine.begin(&steps(&tasks), "{}").await;
    calls.started(1).await;
    calls.open();
    let row = engine.ended(&reply).await;
    assert_eq!((row.status, calls.names().len(), calls.peak()), (RunStatus::Completed, 2, 1), "{row:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_267_equal_replicas_share_the_calls() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 1).await;
    engine.step_worker(&calls, 1).await;
    let tasks = [("a", "with: { name: a, wait: true }"), ("b", "with: { name: b, wait: true }")];
    let reply = engine.begin(&steps(&tasks), "{}").await;
    // Neither ends before both have started, and each replica holds one call at most.
    calls.started(2).await;
    calls.open();
    let row = engine.ended(&reply).await;
    let mut sessions: Vec<_> = engine.receipts(&row).await.into_iter().filter_map(|receipt| receipt.session).collect();
    sessions.sort();
    sessions.dedup();
    assert_eq!((row.status, sessions.len()), (RunStatus::Completed, 2));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_302_another_coordinator_goes_on_where_the_first_one_died() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 4).await;
    let tasks = [
        ("a", "with: { name: a }"),
        ("b", "needs: [a], with: { name: b, wait: true }"),
        ("c", "needs: [b], with: { name: c }"),
    ];
    let reply = engine.begin(&steps(&tasks), "{}").await;
    calls.started(2).await;
    engine.replace_coordinator().await;
    calls.open();
    let row = engine.ended(&reply).await;
    assert_eq!((row.status, calls.names().join(" ")), (RunStatus::Completed, "a b c".to_owned()), "{row:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_303_one_key_with_another_input_is_refused() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 4).await;
    let submit = async |input: &str| engine.submit(SubmitKind::Node, "TEST.STEP", Some("k"), input).await;
    let first = submit(r#"{"name":"a"}"#).await.unwrap();
    assert_eq!(engine.ended(&first).await.status, RunStatus::Completed);
    let error = submit(r#"{"name":"b"}"#).await.unwrap_err();
    assert_eq!((error.class, error.code.as_str()), (ErrorClass::Conflict, codes::KEY_REUSED));
    assert_eq!(submit(r#"{"name":"a"}"#).await.unwrap().run_id, first.run_id);
    assert_eq!(calls.names(), ["a"]);
    engine.stop().await;
}

/// Cases 322 and D8.
#[tokio::test(flavor = "multi_thread")]
async fn case_322_a_long_text_goes_by_reference_both_ways_and_is_removed_with_its_day() {
    let (mut engine, calls) = (Engine::start().await, Calls::default());
    engine.step_worker(&calls, 4).await;
    let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(2 * INLINE_BYTES_MAX));
    let reply = engine.submit(SubmitKind::Node, "TEST.STEP", None, &long).await.unwrap();
    let row = engine.ended(&reply).await;
    assert_eq!(row.output.as_ref().map(|output| output.as_str()), Some(long.as_str()));
    // Input and output are the same bytes: one payload serves both.
    let bucket = engine.receipts(&row).await[0].call.bucket();
    let payload = PayloadRef { digest: Sha256::digest(&long).into(), size: u32::try_from(long.len()).unwrap() };
    let store = engine.handle.store();
    assert_eq!(store.payload_get(bucket, &payload).await.unwrap().as_deref(), Some(long.as_bytes()));
    let removed = async {
        while store.payload_get(bucket, &payload).await.unwrap().is_some() {
            store.sweep_retention(Duration::ZERO).await.unwrap();
        }
    };
    tokio::time::timeout(WITHIN, removed).await.expect("the payload is removed in time");
    engine.stop().await;
}
