//! A worker with one scripted node, a bus and a scripted ledger.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use ditto_bus::{Bus, Message, local::LocalBus};
use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, EffectClass, Json, NodeType, RunId,
    wire::{Job, JobMode, subjects},
};
use ditto_worker::{NodeContext, NodeError, NodeHandler, QueryAnswer, Worker, WorkerConfig, WorkerError};
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::ledger::{KIND, Receipt, SHARD, ScriptedLedger, hash};

pub(crate) const NODE: &str = "TEST.PROBE";

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    pub(crate) n: u32,
    #[serde(default)]
    pub(crate) text: String,
}

pub(crate) type Handle = Arc<dyn Fn(NodeContext, Input) -> BoxFuture<'static, Result<Json, NodeError>> + Send + Sync>;

/// A node that does as it is told and counts.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) policy: CallPolicy,
    pub(crate) unserved: bool,
    pub(crate) handle: Handle,
    pub(crate) answer: QueryAnswer<Json>,
    pub(crate) started: Arc<AtomicUsize>,
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
    pub(crate) keys: Arc<Mutex<Vec<String>>>,
    pub(crate) begun: Arc<tokio::sync::Semaphore>,
}

impl Probe {
    pub(crate) fn new(
        policy: CallPolicy,
        handle: impl Fn(NodeContext, Input) -> BoxFuture<'static, Result<Json, NodeError>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            policy,
            unserved: false,
            handle: Arc::new(handle),
            answer: QueryAnswer::Unanswered,
            started: Arc::default(),
            running: Arc::default(),
            most: Arc::default(),
            keys: Arc::default(),
            begun: Arc::new(tokio::sync::Semaphore::new(0)),
        }
    }

    /// Answers at once.
    pub(crate) fn answering(policy: CallPolicy) -> Self {
        Self::new(policy, |_, input| {
            Box::pin(async move { Ok(Json::from_serialize(&serde_json::json!({ "n": input.n })).unwrap()) })
        })
    }

    pub(crate) fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    /// Waits until one more handler was begun.
    pub(crate) async fn begun(&self) {
        tokio::time::timeout(Duration::from_secs(20), self.begun.acquire())
            .await
            .expect("never begun")
            .unwrap()
            .forget();
    }
}

struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl NodeHandler for Probe {
    const NODE: &'static str = NODE;
    type Input = Input;
    type Output = Json;

    fn policy(&self) -> CallPolicy {
        self.policy.clone()
    }

    fn policy_of(&self, _: &Json) -> Option<CallPolicy> {
        (!self.unserved).then(|| self.policy.clone())
    }

    async fn handle(&self, cx: &NodeContext, input: Input) -> Result<Json, NodeError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        let _running = Running(&self.running);
        self.most.fetch_max(now, Ordering::SeqCst);
        self.keys.lock().unwrap().push(cx.key().to_owned());
        self.begun.add_permits(1);
        (self.handle)(cx.clone(), input).await
    }

    async fn query(&self, cx: &NodeContext, _: Input) -> QueryAnswer<Json> {
        self.keys.lock().unwrap().push(cx.key().to_owned());
        self.answer.clone()
    }
}

pub(crate) struct Fleet {
    pub(crate) local: Arc<LocalBus>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) ledger: Arc<ScriptedLedger>,
    pub(crate) probe: Probe,
    pub(crate) shutdown: CancellationToken,
    run: RunId,
    worker: Option<JoinHandle<Result<(), WorkerError>>>,
}

/// Settings that make tests quick.
pub(crate) fn quick() -> WorkerConfig {
    WorkerConfig {
        concurrency: 8,
        request_timeout: Duration::from_millis(150),
        resend_after: Duration::from_millis(80),
        cancel_grace: Duration::from_millis(50),
        drain: Duration::from_secs(5),
        not_served_delay: Duration::from_secs(60),
        ..WorkerConfig::default()
    }
}

impl Fleet {
    pub(crate) async fn start(probe: Probe) -> Self {
        Self::with(probe, quick(), |_| {}).await
    }

    pub(crate) async fn with(
        probe: Probe,
        config: WorkerConfig,
        script: impl FnOnce(&mut crate::ledger::State),
    ) -> Self {
        let mut fleet = Self::idle(probe).await;
        fleet.ledger.script(script);
        fleet.serve(config);
        fleet.ledger.until("a session", |state| !state.announced.is_empty()).await;
        fleet
    }

    /// Everything but the worker.
    pub(crate) async fn idle(probe: Probe) -> Self {
        let local = LocalBus::new();
        let bus: Arc<dyn Bus> = local.clone();
        let ledger = ScriptedLedger::start(bus.clone()).await;
        let run = RunId::generate(1_796_000_000_000);
        Self { local, bus, ledger, probe, shutdown: CancellationToken::new(), run, worker: None }
    }

    pub(crate) fn serve(&mut self, config: WorkerConfig) {
        let worker = Worker::builder(KIND).handler(self.probe.clone()).build().unwrap();
        let (bus, shutdown) = (self.bus.clone(), self.shutdown.clone());
        self.worker = Some(tokio::spawn(async move { worker.run(config, bus, shutdown).await }));
    }

    pub(crate) fn call(&self, n: u32) -> CallUid {
        CallUid::derive(&self.run, CallKind::Tool, &CallId::new(format!("call-{n}")).unwrap())
    }

    /// The job of a call.
    pub(crate) fn job(&self, n: u32, request: &Json, class: EffectClass, claim: bool) -> Job {
        Job {
            call: self.call(n),
            bucket: self.run.bucket(),
            run: self.run.clone(),
            node: NodeType::new(NODE).unwrap(),
            class,
            claim,
            mode: JobMode::Execute,
            dispatch_no: 1,
            request_hash: request.sha256(),
            payload: None,
            budget_ms: Some(20_000),
            reply: SHARD.to_owned(),
            key: None,
            traceparent: None,
            tracestate: None,
        }
    }

    /// Decides a call: its receipt.
    pub(crate) fn plan(&self, n: u32, request: &Json, policy: &CallPolicy) {
        let receipt = Receipt {
            policy: policy.clone(),
            hash: hash(request),
            earlier_unresolved: 0,
            answer: None,
            fence: 0,
            token: None,
        };
        self.ledger.script(|state| drop(state.receipts.insert(self.call(n), receipt)));
    }

    pub(crate) async fn publish(&self, job: &Job, body: &Json) {
        let body = if job.payload.is_some() { bytes::Bytes::new() } else { body.to_bytes() };
        let message = Message { subject: subjects::jobs(&job.node, None), headers: job.to_headers(), body };
        for outcome in self.bus.publish(vec![message]).await {
            outcome.unwrap();
        }
    }

    /// Decides and publishes a call with the probe's policy.
    pub(crate) async fn dispatch(&self, n: u32) {
        let request = request(n);
        let policy = self.probe.policy.clone();
        self.plan(n, &request, &policy);
        self.publish(&self.job(n, &request, policy.class, policy.is_claimed()), &request).await;
    }

    /// Jobs that are not done with.
    pub(crate) async fn jobs_left(&self) -> u64 {
        self.bus.stream_state(subjects::JOBS_STREAM).await.unwrap().messages
    }

    /// Waits until all jobs are done with.
    pub(crate) async fn no_jobs_left(&self) {
        let wait = async {
            while self.jobs_left().await > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("jobs are left");
    }

    /// Waits for the end of the worker by itself.
    pub(crate) async fn ended(&mut self) -> Result<(), WorkerError> {
        tokio::time::timeout(Duration::from_secs(20), self.worker.take().unwrap()).await.expect("never ended").unwrap()
    }

    /// Asks the worker to stop and waits for its end.
    pub(crate) async fn stop(&mut self) -> Result<(), WorkerError> {
        self.shutdown.cancel();
        self.ended().await
    }
}

pub(crate) fn request(n: u32) -> Json {
    Json::from_serialize(&Input { n, text: String::new() }).unwrap()
}

pub(crate) fn json(text: &str) -> Json {
    Json::parse(text.to_owned()).unwrap()
}
