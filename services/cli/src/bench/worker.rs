//! `ditto bench worker`: the worker with the step, as a process of a fleet.

use clap::Args;
use ditto_bus::nats::NatsConfig;
use ditto_runtime::shutdown::Shutdown;

use super::{effects, parts, step};
use crate::{
    exit::{Exit, Failure, chain},
    services,
};

/// Options of `ditto bench worker`.
#[derive(Debug, Args)]
pub(crate) struct BenchWorkerArgs {
    /// NATS server
    #[arg(long, env = "DITTO_NATS_URL", value_name = "URL", hide_env_values = true)]
    nats: String,
    /// Exclusive name of this replica: a restart declares the one before dead at once
    #[arg(long, env = "DITTO_INSTANCE", value_name = "NAME")]
    instance: Option<String>,
}

/// Serves the steps until a signal.
pub(crate) async fn run(args: BenchWorkerArgs) -> Result<Exit, Failure> {
    let _telemetry = parts::log("ditto-bench-worker")?;
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    let effects = effects::Effects::from_environment()?
        .ok_or_else(|| Failure::usage(format!("{}: names no file", effects::VARIABLE)))?;
    let config = NatsConfig {
        url: args.nats,
        name: "ditto-bench-worker".into(),
        connect_retry_ms: 60_000,
        ..NatsConfig::default()
    };
    let bus = services::connect(&config).await?;
    let worker = step::worker(effects).map_err(|error| Failure::internal(chain(&error)))?;
    let served = worker.run_forever(step::config(args.instance), bus, shutdown.token()).await;
    served.map_err(|error| Failure::unreachable(chain(&error)))?;
    Ok(Exit::Completed)
}
