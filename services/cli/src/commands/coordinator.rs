//! `ditto coordinator`: one coordinator of a fleet.

use std::net::SocketAddr;

use clap::Args;
use ditto_coordinator::Plans;
use ditto_runtime::{shutdown::Shutdown, telemetry};

use crate::{
    context::Context,
    exit::{Exit, Failure},
    services,
    settings::CoordinatorSettings,
};

/// Options of `ditto coordinator`.
#[derive(Debug, Args)]
#[command(after_help = "\
Start as many as you like: they share the work, and one that dies is taken over within seconds. \
Sections of ditto.yaml: coordinator, ledger, bus, http, log, telemetry.

Examples:
  DITTO_LEDGER_URL=postgres://ditto:secret@db/ditto ditto coordinator --nats nats://bus:4222
  ditto coordinator --config /etc/ditto/ditto.yaml --listen 0.0.0.0:7878")]
pub struct CoordinatorArgs {
    /// NATS server; wins over bus.url
    #[arg(long, env = "DITTO_NATS_URL", value_name = "URL", hide_env_values = true)]
    nats: Option<String>,
    /// Ledger, postgres:// or sqlite:; wins over ledger.url. Prefer DITTO_LEDGER_URL for one with a password
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
    /// Address of the API; wins over http.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
}

pub(super) async fn run(args: CoordinatorArgs, context: &Context) -> Result<Exit, Failure> {
    let mut settings = CoordinatorSettings::read(&context.config()?)?;
    if let Some(url) = args.nats.filter(|url| !url.is_empty()) {
        settings.bus.url = url;
    }
    if let Some(url) = args.ledger {
        settings.ledger.url = Some(url);
        settings.ledger.password = None;
    }
    if let Some(listen) = args.listen {
        settings.http.listen = listen;
    }
    let _telemetry =
        telemetry::init(&settings.telemetry, "ditto-coordinator").map_err(super::worker::telemetry_failure)?;
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    services::coordinator(settings, Plans::default(), &shutdown).await
}
