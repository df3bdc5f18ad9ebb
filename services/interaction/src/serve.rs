//! A whole process around an interaction worker: configuration, log, bus, health, signals.

use std::sync::Arc;

use ditto_bus::{
    Bus,
    nats::{ConnectError, NatsBus, NatsConfig},
};
use ditto_runtime::{
    config::{self, Check, ConfigErrors, ConfigTree, Validate},
    health::{self, Health, HealthConfig},
    shutdown::Shutdown,
    telemetry::{self, TelemetryConfig, TelemetryError},
};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{InteractionBuilder, InteractionConfig, InteractionError};

/// How long health may go on answering after the worker ended.
const HEALTH_GRACE: std::time::Duration = std::time::Duration::from_secs(2);

/// Why a process did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// `ditto.yaml` or a variable is wrong.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Log and telemetry cannot be set up.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The bus cannot be reached.
    #[error(transparent)]
    Bus(#[from] ConnectError),
    /// A signal handler or the health address is refused by the system.
    #[error("failed to {operation}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The worker.
    #[error(transparent)]
    Interaction(#[from] InteractionError),
}

/// `bus` in `ditto.yaml`.
#[derive(Default, Deserialize)]
#[serde(transparent)]
struct BusSection(NatsConfig);

impl Validate for BusSection {
    fn validate(&self, check: &mut Check<'_>) {
        if let Err(error) = self.0.validate() {
            check.that("", false, format!("another value: {error}"));
        }
    }
}

impl InteractionBuilder {
    /// Runs the worker as this process: reads `ditto.yaml` and the environment, connects to NATS, serves until SIGTERM
    /// or SIGINT. Settings given to [`InteractionBuilder::config`] are replaced by the configured ones.
    ///
    /// # Errors
    /// Names what cannot be used or reached, or says that work was left at the end of the drain time.
    pub async fn serve(self) -> Result<(), ServeError> {
        let system = |operation| move |source| ServeError::System { operation, source };
        let tree = config::load(config::find_file(None).as_deref(), std::env::vars())?;
        let mut reader = tree.reader();
        let telemetry = TelemetryConfig::read(&mut reader);
        let settings: InteractionConfig = reader.section("workers.interaction");
        let mut nats = reader.section::<BusSection>("bus").0;
        let health_config: HealthConfig = reader.section("health");
        reader.finish()?;
        if let Some(url) = tree.variable("DITTO_NATS_URL") {
            url.clone_into(&mut nats.url);
        }
        let _telemetry = telemetry::init(&telemetry, "ditto-worker-interaction")?;
        let shutdown = Shutdown::listen().map_err(system("listen for signals"))?;
        let health = Health::new();
        let stop_serving = CancellationToken::new();
        let mut servers = JoinSet::new();
        if let Some(address) = health_config.address() {
            let served = health::serve(address, health.clone(), stop_serving.clone()).await;
            let (_, server) = served.map_err(system("listen on the health address"))?;
            servers.spawn(server);
        }
        let settings = named(settings, &tree);
        let interaction = self.config(settings).health(health.clone()).build()?;
        let bus: Arc<dyn Bus> = NatsBus::connect(&nats).await?;
        let outcome = interaction.run(bus.clone(), shutdown.token()).await;
        health.stopping();
        stop_serving.cancel();
        ditto_runtime::shutdown::drain(&mut servers, HEALTH_GRACE).await;
        bus.close().await;
        Ok(outcome?)
    }
}

/// The exclusive name of this replica, from `DITTO_INSTANCE` unless configured.
fn named(settings: InteractionConfig, tree: &ConfigTree) -> InteractionConfig {
    match tree.variable("DITTO_INSTANCE") {
        Some(name) => settings.with_instance(format!("{name}/interaction")),
        None => settings,
    }
}
