//! A coordinator and workers in this process, with a node whose calls a test can hold back and count.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use ditto_bus::{Bus, local::LocalBus};
use ditto_contracts::{
    Json, LoopName, Namespace, SubmitKey, WireError,
    wire::{SubmitBody, SubmitKind, SubmitReply},
};
use ditto_coordinator::{
    Coordinator, CoordinatorConfig, Handle, Plans, Submission,
    store::{ReceiptFilter, ReceiptRow, RunRow, Store, sqlite::SqliteStore},
};
use ditto_interaction::Interaction;
use ditto_worker::{NodeContext, NodeError, NodeHandler, Worker, WorkerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// How long anything in these tests may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

/// What the calls of [`Step`] did.
#[derive(Clone)]
pub(crate) struct Calls {
    started: watch::Sender<Vec<String>>,
    open: watch::Sender<bool>,
    running: Arc<Mutex<(usize, usize)>>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { started: watch::channel(Vec::new()).0, open: watch::channel(false).0, running: Arc::default() }
    }
}

impl Calls {
    /// Waits until so many calls have started; their names in order.
    pub(crate) async fn started(&self, count: usize) -> Vec<String> {
        let mut started = self.started.subscribe();
        let reached = started.wait_for(|names| names.len() >= count);
        tokio::time::timeout(WITHIN, reached).await.expect("the calls start in time").unwrap().clone()
    }

    /// The names of all calls so far.
    pub(crate) fn names(&self) -> Vec<String> {
        self.started.borrow().clone()
    }

    /// Lets the calls that wait go on.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Most calls that ran at once.
    pub(crate) fn peak(&self) -> usize {
        self.running.lock().unwrap().1
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct StepInput {
    name: String,
    #[serde(default)]
    wait: bool,
}

#[derive(Serialize)]
pub(crate) struct StepOutput {
    name: String,
}

/// `TEST.STEP`: an effect that can neither be repeated nor asked about, held back while `wait` says so.
pub(crate) struct Step(pub(crate) Calls);

#[async_trait]
impl NodeHandler for Step {
    const NODE: &'static str = "TEST.STEP";
    type Input = StepInput;
    type Output = StepOutput;

    async fn handle(&self, cx: &NodeContext, input: StepInput) -> Result<StepOutput, NodeError> {
        let calls = &self.0;
        {
            let mut running = calls.running.lock().unwrap();
            running.0 += 1;
            running.1 = running.1.max(running.0);
        }
        calls.started.send_modify(|names| names.push(input.name.clone()));
        let mut open = calls.open.subscribe();
        let cancelled = input.wait
            && tokio::select! {
                _ = open.wait_for(|open| *open) => false,
                () = cx.cancelled() => true,
            };
        calls.running.lock().unwrap().0 -= 1;
        if cancelled { Err(NodeError::cancelled_in_flight()) } else { Ok(StepOutput { name: input.name }) }
    }
}

/// One coordinator and any number of workers.
pub(crate) struct Engine {
    pub(crate) handle: Handle,
    bus: Arc<dyn Bus>,
    coordinator: (CancellationToken, JoinSet<()>),
    workers: Vec<(CancellationToken, JoinHandle<()>)>,
    dir: tempfile::TempDir,
}

impl Engine {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bus: Arc<dyn Bus> = LocalBus::new();
        let (handle, coordinator) = coordinator(dir.path(), &bus).await;
        Self { handle, bus, coordinator, workers: Vec::new(), dir }
    }

    /// Starts a worker that serves [`Step`].
    pub(crate) async fn step_worker(&mut self, calls: &Calls, concurrency: usize) {
        let worker = Worker::builder("test").handler(Step(calls.clone())).build().unwrap();
        let config = WorkerConfig { concurrency, ..WorkerConfig::default() };
        let (bus, stop) = (self.bus.clone(), CancellationToken::new());
        let token = stop.clone();
        self.workers.push((stop, tokio::spawn(async move { worker.run(config, bus, token).await.unwrap() })));
        self.served().await;
    }

    /// Starts an interaction worker.
    pub(crate) async fn interaction(&mut self, interaction: Interaction) {
        let (bus, stop) = (self.bus.clone(), CancellationToken::new());
        let token = stop.clone();
        self.workers.push((stop, tokio::spawn(async move { interaction.run(bus, token).await.unwrap() })));
        self.served().await;
    }

    /// Waits until every worker is in the catalogue.
    async fn served(&self) {
        let mut changes = self.handle.catalogue().subscribe();
        let sessions = || self.handle.catalogue().all().iter().map(|served| served.sessions).max().unwrap_or(0);
        let wanted = self.workers.len();
        let waited = async {
            while sessions() < wanted {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(WITHIN, waited).await.expect("the workers are announced in time");
    }

    /// Ends the coordinator without letting it give anything back, and starts another on the same ledger.
    pub(crate) async fn replace_coordinator(&mut self) {
        self.coordinator.1.shutdown().await;
        let (handle, coordinator) = coordinator(self.dir.path(), &self.bus).await;
        self.handle = handle;
        self.coordinator = coordinator;
    }

    /// Registers a definition and runs it to its end.
    pub(crate) async fn run(&self, definition: &str, input: &str) -> RunRow {
        let reply = self.begin(definition, input).await;
        self.ended(&reply).await
    }

    /// Registers a definition and submits a run of it.
    pub(crate) async fn begin(&self, definition: &str, input: &str) -> SubmitReply {
        let compiled =
            ditto_definition::compile(definition, "case.yaml").unwrap_or_else(|problems| panic!("{problems:?}"));
        let namespace = Namespace::default_namespace();
        self.handle.register(&namespace, &compiled, definition.to_owned()).await.unwrap();
        self.submit(SubmitKind::Loop, compiled.name.as_str(), None, input).await.unwrap()
    }

    pub(crate) async fn submit(
        &self,
        kind: SubmitKind,
        name: &str,
        key: Option<&str>,
        input: &str,
    ) -> Result<SubmitReply, WireError> {
        let body = SubmitBody {
            key: key.map(|key| SubmitKey::new(key).unwrap()),
            input: Json::parse(input.to_owned()).unwrap(),
            revision: None,
        };
        let (namespace, name) = (Namespace::default_namespace(), LoopName::new(name).unwrap());
        self.handle.submit(Submission { namespace, kind, name, body, traceparent: None }).await
    }

    pub(crate) async fn ended(&self, reply: &SubmitReply) -> RunRow {
        let row =
            self.handle.wait_ended(&Namespace::default_namespace(), &reply.run_id, WITHIN).await.unwrap().unwrap();
        assert!(row.status.is_ended(), "{row:?}");
        row
    }

    pub(crate) async fn cancel(&self, reply: &SubmitReply) {
        self.handle.cancel(&Namespace::default_namespace(), &reply.run_id).await.unwrap().unwrap();
    }

    pub(crate) async fn receipts(&self, row: &RunRow) -> Vec<ReceiptRow> {
        let filter = ReceiptFilter { run: Some(row.run.clone()), ..Default::default() };
        self.handle.store().receipts_list(&filter, 100).await.unwrap()
    }

    /// Workers first: they still report through the coordinator.
    pub(crate) async fn stop(mut self) {
        for (stop, worker) in self.workers {
            stop.cancel();
            worker.await.unwrap();
        }
        self.coordinator.0.cancel();
        while let Some(ended) = self.coordinator.1.join_next().await {
            ended.unwrap();
        }
    }
}

async fn coordinator(dir: &Path, bus: &Arc<dyn Bus>) -> (Handle, (CancellationToken, JoinSet<()>)) {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&dir.join("ledger.db")).await.unwrap());
    let config = CoordinatorConfig {
        instance: Some("cases".into()),
        sweep_period_ms: 20,
        worker_wait_ms: 500,
        reconcile_window_ms: 500,
        ..CoordinatorConfig::default()
    };
    let coordinator = Coordinator::open(config, store, bus.clone(), Plans::default()).await.unwrap();
    let handle = coordinator.handle();
    let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
    let token = stop.clone();
    tasks.spawn(async move { coordinator.run(token).await.unwrap() });
    assert!(handle.ready().await);
    (handle, (stop, tasks))
}
