//! The whole path in one process: SQLite ledger, in-process bus, coordinator, one worker.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use ditto_bus::{Bus, local::LocalBus};
use ditto_contracts::{
    CallPolicy, Json, LoopName, Namespace, ReceiptState, RunStatus, SettledBy, SubmitKey,
    interaction::{ActToolInput, ExternalResult, ExternalStatus, InteractionError},
    wire::{SubmitBody, SubmitKind, SubmitReply},
};
use ditto_coordinator::{
    Coordinator, CoordinatorConfig, Handle, Plans, Submission,
    store::{ReceiptFilter, ReceiptRow, RunRow, Store, sqlite::SqliteStore},
};
use ditto_worker::{NodeContext, NodeError, NodeHandler, QueryAnswer, Worker, WorkerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Deserialize, JsonSchema)]
struct Step {
    name: String,
    #[serde(default)]
    outcome: Option<String>,
}

#[derive(Serialize)]
struct Done {
    name: String,
}

/// Counts its effects; the class is chosen by the node type.
struct Effect<const CLASS: char> {
    effects: Arc<Mutex<Vec<String>>>,
}

macro_rules! effect_node {
    ($class:literal, $node:literal, $policy:expr) => {
        #[async_trait]
        impl NodeHandler for Effect<$class> {
            const NODE: &'static str = $node;
            type Input = Step;
            type Output = Done;

            fn policy(&self) -> CallPolicy {
                $policy
            }

            async fn handle(&self, _: &NodeContext, input: Step) -> Result<Done, NodeError> {
                if input.outcome.as_deref() == Some("refused") {
                    return Err(NodeError::refused("REFUSED", "the backend refused"));
                }
                self.effects.lock().unwrap().push(input.name.clone());
                match input.outcome.as_deref() {
                    Some("lost") => Err(NodeError::ambiguous("RESPONSE_LOST", "the answer was lost")),
                    _ => Ok(Done { name: input.name }),
                }
            }

            async fn query(&self, _: &NodeContext, input: Step) -> QueryAnswer<Done> {
                match self.effects.lock().unwrap().contains(&input.name) {
                    true => QueryAnswer::Applied(Done { name: input.name }),
                    false => QueryAnswer::Absent,
                }
            }
        }
    };
}

effect_node!('R', "TEST.READ", CallPolicy::read_only());
effect_node!('K', "TEST.KEYED", CallPolicy { query: true, ..CallPolicy::keyed() });
effect_node!('N', "TEST.ONCE", CallPolicy::default());

/// A tool node, whose calls are named by the definition.
struct Tool {
    effects: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl NodeHandler for Tool {
    const NODE: &'static str = "INTERACTION.ACT.TOOL";
    type Input = ActToolInput;
    type Output = ExternalResult;

    async fn handle(&self, _: &NodeContext, input: ActToolInput) -> Result<ExternalResult, NodeError> {
        self.effects.lock().unwrap().push(input.call.id.clone());
        let error = InteractionError { code: "NO".into(), message: "no".into(), retryable: None };
        let mut result = ExternalResult::with_error(input.call.id, input.call.name, ExternalStatus::Success, error);
        result.error = None;
        result.content = Some(Json::string("done"));
        Ok(result)
    }
}

struct Fleet {
    handle: Handle,
    effects: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
    worker: (CancellationToken, tokio::task::JoinHandle<()>),
    tasks: tokio::task::JoinSet<()>,
    _dir: tempfile::TempDir,
}

impl Fleet {
    async fn start() -> Self {
        if let Ok(filter) = std::env::var("DITTO_LOG") {
            let _ = tracing_subscriber::fmt().with_env_filter(filter).try_init();
        }
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.path().join("ledger.db")).await.unwrap());
        let bus: Arc<dyn Bus> = LocalBus::new();
        let config = CoordinatorConfig {
            sweep_period_ms: 20,
            worker_wait_ms: 300,
            reconcile_window_ms: 2_000,
            ..CoordinatorConfig::default()
        };
        let coordinator = Coordinator::open(config, store, bus.clone(), Plans::default()).await.unwrap();
        let handle = coordinator.handle();
        let stop = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        let token = stop.clone();
        tasks.spawn(async move { coordinator.run(token).await.unwrap() });
        let effects = Arc::new(Mutex::new(Vec::new()));
        let worker = Worker::builder("test")
            .handler(Effect::<'R'> { effects: effects.clone() })
            .handler(Effect::<'K'> { effects: effects.clone() })
            .handler(Effect::<'N'> { effects: effects.clone() })
            .handler(Tool { effects: effects.clone() })
            .build()
            .unwrap();
        let worker_stop = CancellationToken::new();
        let token = worker_stop.clone();
        let worker = tokio::spawn(async move { worker.run(WorkerConfig::default(), bus, token).await.unwrap() });
        let worker = (worker_stop, worker);
        assert!(handle.ready().await);
        let mut changes = handle.catalogue().subscribe();
        while handle.catalogue().all().len() < 4 {
            changes.changed().await.unwrap();
        }
        Self { handle, effects, stop, worker, tasks, _dir: dir }
    }

    async fn run(&self, definition: &str, input: &str) -> RunRow {
        let compiled =
            ditto_definition::compile(definition, "test.yaml").unwrap_or_else(|problems| panic!("{problems:?}"));
        let namespace = Namespace::default_namespace();
        self.handle.register(&namespace, &compiled, definition.to_owned()).await.unwrap();
        let reply = self.submit(SubmitKind::Loop, compiled.name, None, input).await;
        self.ended(&reply).await
    }

    async fn submit(&self, kind: SubmitKind, name: LoopName, key: Option<&str>, input: &str) -> SubmitReply {
        let body = SubmitBody {
            key: key.map(|key| SubmitKey::new(key).unwrap()),
            input: Json::parse(input.to_owned()).unwrap(),
            revision: None,
        };
        let namespace = Namespace::default_namespace();
        self.handle.submit(Submission { namespace, kind, name, body, traceparent: None }).await.unwrap()
    }

    async fn ended(&self, reply: &SubmitReply) -> RunRow {
        let namespace = Namespace::default_namespace();
        self.handle.wait_ended(&namespace, &reply.run_id, Duration::from_secs(20)).await.unwrap().unwrap()
    }

    async fn node(&self, node: &str, outcome: &str) -> (RunRow, ReceiptRow) {
        let input = format!(r#"{{"name":"{node} {outcome}","outcome":"{outcome}"}}"#);
        let reply = self.submit(SubmitKind::Node, LoopName::new(node).unwrap(), None, &input).await;
        let row = self.ended(&reply).await;
        (row.clone(), self.receipts(&row).await.remove(0))
    }

    async fn receipts(&self, row: &RunRow) -> Vec<ReceiptRow> {
        let filter = ReceiptFilter { run: Some(row.run.clone()), ..Default::default() };
        self.handle.store().receipts_list(&filter, 500).await.unwrap()
    }

    fn count(&self, effect: &str) -> usize {
        self.effects.lock().unwrap().iter().filter(|e| e.as_str() == effect).count()
    }

    async fn stop(mut self) {
        // Workers first: they still report through the coordinator.
        self.worker.0.cancel();
        self.worker.1.await.unwrap();
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_each_class_runs_to_its_end() {
    let fleet = Fleet::start().await;
    for (class, node) in [("r", "TEST.READ"), ("k", "TEST.KEYED"), ("n", "TEST.ONCE")] {
        let definition = format!(
            "ditto: 1\nloop: count-{class}\nstate: {{ index: 0 }}\nmaxIterations: 50\ngraph:\n  tasks:\n    step:\n      \
             node: {node}\n      with: {{ name: \"${{ '{class}' + string(state.index) }}\" }}\n\
             update: {{ index: \"${{ state.index + 1 }}\" }}\ndone: \"${{ state.index == input.steps }}\"\n\
             output: {{ steps: \"${{ state.index }}\" }}\n"
        );
        let row = fleet.run(&definition, r#"{"steps":20}"#).await;
        assert_eq!(row.status, RunStatus::Completed, "{row:?}");
        assert_eq!(row.output.clone().unwrap().as_str(), r#"{"steps":20}"#);
        let receipts = fleet.receipts(&row).await;
        assert_eq!(receipts.len(), 20);
        assert!(receipts.iter().all(|r| r.state == ReceiptState::Succeeded), "{receipts:?}");
    }
    assert_eq!(fleet.effects.lock().unwrap().len(), 60);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_is_joined() {
    let fleet = Fleet::start().await;
    let mut definition = String::from("ditto: 1\nloop: fan\ngraph:\n  tasks:\n");
    for n in 0..200 {
        definition.push_str(&format!("    t{n}: {{ node: TEST.READ, with: {{ name: 't{n}' }} }}\n"));
    }
    let needs: Vec<String> = (0..200).map(|n| format!("t{n}")).collect();
    let needs = needs.join(", ");
    definition.push_str(&format!("    join: {{ node: TEST.ONCE, needs: [{needs}], with: {{ name: join }} }}\n"));
    let row = fleet.run(&definition, "{}").await;
    assert_eq!(row.status, RunStatus::Completed, "{:?}", row.error);
    let effects = fleet.effects.lock().unwrap().clone();
    assert_eq!(effects.len(), 201);
    assert_eq!(effects.last().unwrap(), "join");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outcomes_reach_the_run_as_the_receipt_says() {
    let fleet = Fleet::start().await;
    let (row, receipt) = fleet.node("TEST.ONCE", "ok").await;
    assert_eq!((row.status, receipt.state), (RunStatus::Completed, ReceiptState::Succeeded));
    let (row, receipt) = fleet.node("TEST.ONCE", "refused").await;
    assert_eq!((row.status, receipt.state), (RunStatus::Failed, ReceiptState::Failed));
    assert_eq!(row.error.unwrap().code, "REFUSED");
    // Keyed and lost: the backend is asked and knows it.
    let (row, receipt) = fleet.node("TEST.KEYED", "lost").await;
    assert_eq!((row.status, receipt.state), (RunStatus::Completed, ReceiptState::Succeeded), "{row:?} {receipt:?}");
    assert_eq!(receipt.settled_by, Some(SettledBy::Query));
    // Neither keyed nor repeatable and lost: unknown, and a person has to look at it.
    let (row, receipt) = fleet.node("TEST.ONCE", "lost").await;
    assert_eq!((row.status, receipt.state), (RunStatus::NeedsHuman, ReceiptState::Unknown), "{row:?}");
    assert_eq!(fleet.count("TEST.KEYED lost"), 1);
    assert_eq!(fleet.count("TEST.ONCE lost"), 1);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_nobody_serves_fails_with_nothing_sent() {
    let fleet = Fleet::start().await;
    let reply = fleet.submit(SubmitKind::Node, LoopName::new("TEST.NOBODY").unwrap(), None, "{}").await;
    let row = fleet.ended(&reply).await;
    assert_eq!(row.status, RunStatus::Failed);
    assert_eq!(row.error.unwrap().code, "NO_WORKER_AVAILABLE");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_run() {
    let fleet = Fleet::start().await;
    let mut runs = HashSet::new();
    for duplicate in [false, true, true] {
        let name = LoopName::new("TEST.ONCE").unwrap();
        let reply = fleet.submit(SubmitKind::Node, name, Some("k"), r#"{"name":"one"}"#).await;
        assert_eq!(reply.duplicate, duplicate);
        assert_eq!(fleet.ended(&reply).await.status, RunStatus::Completed);
        runs.insert(reply.run_id);
    }
    assert_eq!(runs.len(), 1);
    assert_eq!(fleet.count("one"), 1);
    fleet.stop().await;
}

/// Two iterations make one call: it is executed once, and its outcome serves both.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_made_again_with_the_same_request_is_one_call() {
    let fleet = Fleet::start().await;
    let definition = |arguments: &str| {
        format!(
            "ditto: 1\nloop: again\nstate: {{ index: 0 }}\ngraph:\n  tasks:\n    act:\n      node: INTERACTION.ACT.TOOL\n      \
             with: {{ call: {{ id: the-one, name: any, arguments: {arguments} }} }}\n\
             update: {{ index: \"${{ state.index + 1 }}\" }}\ndone: \"${{ state.index == 3 }}\"\n"
        )
    };
    let row = fleet.run(&definition("{ same: 1 }"), "{}").await;
    assert_eq!(row.status, RunStatus::Completed, "{row:?}");
    assert_eq!(fleet.count("the-one"), 1);
    assert_eq!(fleet.receipts(&row).await.len(), 1);
    // The same id with another request is refused, with nothing sent for it.
    let row = fleet.run(&definition("{ other: \"${ state.index }\" }"), "{}").await;
    assert_eq!((row.status, row.error.unwrap().code.as_str()), (RunStatus::Failed, "CALL_ID_REUSED"));
    assert_eq!(fleet.count("the-one"), 2);
    fleet.stop().await;
}
