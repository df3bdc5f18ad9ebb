//! `ditto worker …`: one worker of a fleet.

use clap::{Args, Subcommand};
use ditto_runtime::{
    shutdown::Shutdown,
    telemetry::{self, TelemetryError},
};

use crate::{
    context::Context,
    exit::{Exit, Failure},
    services,
    settings::InteractionSettings,
};

/// What a service logs unless configured otherwise: its own life, of the libraries only what goes wrong.
pub(super) const SERVICE_LOG: &str = "info,async_nats=warn,opentelemetry=warn,opentelemetry_sdk=warn";

/// Kinds of workers.
#[derive(Debug, Subcommand)]
pub enum WorkerCommand {
    /// Tools, observations and outputs
    Interaction(InteractionArgs),
}

/// Options of `ditto worker interaction`.
#[derive(Debug, Args)]
#[command(after_help = "\
Start as many as the work needs. A worker holds no credentials for the ledger; it finds coordinators over NATS and waits \
for one. Sections of ditto.yaml: workers.interaction, bus, health, log, telemetry.

Example:
  ditto worker interaction --nats nats://bus:4222")]
pub struct InteractionArgs {
    /// NATS server; wins over bus.url
    #[arg(long, env = "DITTO_NATS_URL", value_name = "URL", hide_env_values = true)]
    nats: Option<String>,
}

pub(super) async fn run(command: WorkerCommand, context: &Context) -> Result<Exit, Failure> {
    let WorkerCommand::Interaction(args) = command;
    let mut settings = InteractionSettings::read(&context.config()?)?;
    if let Some(url) = args.nats.filter(|url| !url.is_empty()) {
        settings.bus.url = url;
    }
    settings.telemetry.log.filter.get_or_insert_with(|| SERVICE_LOG.into());
    let _telemetry = telemetry::init(&settings.telemetry, "ditto-worker-interaction").map_err(telemetry_failure)?;
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    services::interaction(settings, &shutdown).await
}

/// Why logs or exports could not be set up, with the cause.
pub(super) fn telemetry_failure(error: TelemetryError) -> Failure {
    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
    Failure::usage(format!("{error}{cause}")).code("CONFIG_INVALID")
}
