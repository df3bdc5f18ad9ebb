//! `ditto dev`: everything in one process, with an API on loopback.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use ditto_contracts::Namespace;
use ditto_coordinator::{Plans, api};
use ditto_runtime::{shutdown::Shutdown, telemetry};
use tokio::task::JoinSet;

use crate::{
    args::{DataArgs, namespace},
    context::Context,
    embedded::{Embedded, EmbeddedConfig},
    exit::{Exit, Failure},
    input, serve,
    settings::EmbeddedSettings,
    show,
    term::Tone,
};

/// Options of `ditto dev`.
#[derive(Debug, Args)]
#[command(after_help = "\
Definitions given here are registered at start. State is in .ditto/: runs go on where they were when it starts again.

Examples:
  ditto dev
  ditto dev examples/*.yaml --listen 127.0.0.1:0
  ditto submit examples/read-and-deliver.yaml --input '{\"paths\":[\"README.md\"]}' --wait      (in another terminal)
  curl -s http://127.0.0.1:7878/v1/runs")]
pub struct DevArgs {
    /// Definitions to register, YAML or JSON
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Address of the API; otherwise http.listen of ditto.yaml, otherwise 127.0.0.1:7878. Port 0: any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Tenant of the definitions given here
    #[arg(long, short = 'n', default_value = "default", value_name = "NAME", value_parser = namespace)]
    namespace: Namespace,
    #[command(flatten)]
    data: DataArgs,
}

pub(super) async fn run(args: DevArgs, context: &Context) -> Result<Exit, Failure> {
    let definitions: Vec<_> = args.files.iter().map(|file| input::definition(file)).collect::<Result<_, _>>()?;
    let mut settings = EmbeddedSettings::read(&context.config()?)?;
    settings.telemetry.log.filter.get_or_insert_with(|| "warn,ditto_interaction=info".into());
    let _telemetry = telemetry::init(&settings.telemetry, "ditto-dev").map_err(super::worker::telemetry_failure)?;
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    let stop = shutdown.token();

    let workspace = settings.interaction.workspace.clone();
    let mut fleet = Embedded::start(EmbeddedConfig {
        data_dir: args.data.data_dir.unwrap_or(settings.dev.data_dir),
        coordinator: settings.coordinator,
        interaction: settings.interaction,
        plans: Plans::default(),
    })
    .await?;
    let bound = match serve::bind(args.listen.unwrap_or(settings.http.listen)).await {
        Ok(bound) => bound,
        Err(failure) => {
            fleet.stop().await;
            return Err(failure);
        }
    };
    let address = bound.address();
    let url = format!("http://{address}");
    let mut api = JoinSet::new();
    api.spawn(bound.serve(api::router(fleet.handle().clone()), stop.clone()));

    let mut names = Vec::new();
    for definition in &definitions {
        fleet.handle().register(&args.namespace, definition, definition.source.clone()).await?;
        names.push(definition.name.to_string());
    }
    if context.json {
        context.print_json(&serde_json::json!({
            "url": url, "dataDir": fleet.data_dir(), "workspace": workspace, "definitions": names,
        }))?;
    } else {
        let server =
            if address.port() == crate::settings::DEFAULT_PORT { String::new() } else { format!(" --server {url}") };
        let mut rows = vec![("API", url.clone()), ("state", fleet.data_dir().display().to_string())];
        if let Some(workspace) = workspace {
            rows.push(("workspace", workspace.display().to_string()));
        }
        if !names.is_empty() {
            rows.push(("definitions", names.join(", ")));
        }
        rows.push(("submit", format!("ditto submit FILE|NAME --input JSON --wait{server}")));
        rows.push(("look", format!("ditto runs ls{server}")));
        rows.push(("stop", "Ctrl-C; runs go on when it starts again".into()));
        let title = context.err.paint(Tone::Strong, concat!("ditto dev ", env!("CARGO_PKG_VERSION")));
        context.note(&format!("{title}\n{}", show::fields(context.err, &rows).trim_end()));
        if !address.ip().is_loopback() {
            context.note(
                &context.err.paint(Tone::Warn, "everybody who reaches this address can use the API: it has no login"),
            );
        }
    }

    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(Exit::Completed),
        failure = fleet.ended() => Err(failure),
        served = api.join_next() => match served {
            Some(Ok(Err(failure))) => Err(failure),
            _ if stop.is_cancelled() => Ok(Exit::Completed),
            _ => Err(Failure::internal("the API stopped")),
        },
    };
    stop.cancel();
    while api.join_next().await.is_some() {}
    fleet.stop().await;
    outcome
}
