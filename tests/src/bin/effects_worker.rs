//! A worker for fault tests: one node per effect class, each doing something that can be counted afterwards.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test program: it fails loudly")]

use std::{path::PathBuf, time::Duration};

use async_trait::async_trait;
use ditto_bus::nats::{NatsBus, NatsConfig};
use ditto_contracts::CallPolicy;
use ditto_runtime::{config, shutdown::Shutdown, telemetry};
use ditto_tests::effects::Effects;
use ditto_worker::{NodeContext, NodeError, NodeHandler, QueryAnswer, Worker, WorkerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Input {
    /// Identity of the effect.
    id: String,
    /// How long the backend takes, in milliseconds.
    #[serde(default)]
    takes_ms: u64,
    /// Anything; handed back.
    #[serde(default)]
    echo: Option<ditto_contracts::Json>,
}

#[derive(Serialize)]
struct Output {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    echo: Option<ditto_contracts::Json>,
}

struct Read(Effects);
struct Keyed(Effects);
struct Once(Effects);

async fn take(input: &Input) {
    if input.takes_ms > 0 {
        tokio::time::sleep(Duration::from_millis(input.takes_ms)).await;
    }
}

#[async_trait]
impl NodeHandler for Read {
    const NODE: &'static str = "TEST.EFFECT.R";
    type Input = Input;
    type Output = Output;

    fn policy(&self) -> CallPolicy {
        CallPolicy::read_only()
    }

    async fn handle(&self, _: &NodeContext, input: Input) -> Result<Output, NodeError> {
        take(&input).await;
        self.0.read(&input.id);
        Ok(Output { id: input.id, echo: input.echo })
    }
}

#[async_trait]
impl NodeHandler for Keyed {
    const NODE: &'static str = "TEST.EFFECT.K";
    type Input = Input;
    type Output = Output;

    fn policy(&self) -> CallPolicy {
        CallPolicy { query: true, ..CallPolicy::keyed() }
    }

    async fn handle(&self, cx: &NodeContext, input: Input) -> Result<Output, NodeError> {
        take(&input).await;
        self.0.keyed(cx.key(), &input.id);
        Ok(Output { id: input.id, echo: input.echo })
    }

    async fn query(&self, cx: &NodeContext, input: Input) -> QueryAnswer<Output> {
        match self.0.has_key(cx.key()) {
            true => QueryAnswer::Applied(Output { id: input.id, echo: input.echo }),
            false => QueryAnswer::Absent,
        }
    }
}

#[async_trait]
impl NodeHandler for Once {
    const NODE: &'static str = "TEST.EFFECT.N";
    type Input = Input;
    type Output = Output;

    async fn handle(&self, _: &NodeContext, input: Input) -> Result<Output, NodeError> {
        take(&input).await;
        self.0.once(&input.id);
        Ok(Output { id: input.id, echo: input.echo })
    }
}

#[tokio::main]
async fn main() {
    let tree = config::load(None, std::env::vars().filter(|(name, _)| name != "DITTO_NATS_URL")).unwrap();
    let mut reader = tree.reader();
    let settings = telemetry::TelemetryConfig::read(&mut reader);
    reader.finish().unwrap();
    let _telemetry = telemetry::init(&settings, "effects-worker").unwrap();
    let shutdown = Shutdown::listen().unwrap();
    let nats = NatsConfig {
        url: std::env::var("DITTO_NATS_URL").unwrap(),
        name: "effects-worker".into(),
        connect_retry_ms: 60_000,
        ..NatsConfig::default()
    };
    let bus = NatsBus::connect(&nats).await.unwrap();
    let effects = Effects::open(&PathBuf::from(std::env::var_os("EFFECTS_DIR").unwrap()));
    let worker = Worker::builder("effects")
        .handler(Read(effects.clone()))
        .handler(Keyed(effects.clone()))
        .handler(Once(effects))
        .build()
        .unwrap();
    let config =
        WorkerConfig { drain: Duration::from_secs(5), resend_after: Duration::from_secs(1), ..WorkerConfig::default() };
    worker.run_forever(config, bus, shutdown.token()).await.unwrap();
}
