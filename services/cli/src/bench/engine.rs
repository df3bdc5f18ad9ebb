//! `ditto bench engine`: the embedded fleet and the step in one process, with its API on loopback.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use ditto_coordinator::{CoordinatorConfig, Plans, api};
use ditto_interaction::InteractionConfig;
use ditto_runtime::shutdown::Shutdown;
use tokio::task::JoinSet;

use super::{effects, parts, step};
use crate::{
    context::Context,
    embedded::{Embedded, EmbeddedConfig},
    exit::{Exit, Failure, chain},
    serve,
};

/// Options of `ditto bench engine`.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Folder of the ledger
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Address of the API
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
}

/// Serves until a signal. Prints one line once it serves: what the ledger says of itself.
pub(crate) async fn run(args: EngineArgs, context: &Context) -> Result<Exit, Failure> {
    let _telemetry = parts::log("ditto-bench-engine")?;
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    let stop = shutdown.token();
    let effects = effects::Effects::from_environment()?
        .ok_or_else(|| Failure::usage(format!("{}: names no file", effects::VARIABLE)))?;
    let bound = serve::bind(args.listen).await?;
    let mut fleet = Embedded::start(EmbeddedConfig {
        data_dir: args.data_dir,
        coordinator: CoordinatorConfig::default(),
        interaction: InteractionConfig::default(),
        plans: Plans::default(),
    })
    .await?;
    let worker = step::worker(effects).map_err(|error| Failure::internal(chain(&error)))?;
    let config = step::config(Some(format!("{}#bench", fleet.data_dir().display())));
    let mut tasks: JoinSet<Result<(), Failure>> = JoinSet::new();
    let (bus, until) = (fleet.bus().clone(), stop.clone());
    tasks.spawn(async move {
        worker.run_forever(config, bus, until).await.map_err(|error| Failure::unreachable(chain(&error)))
    });
    tasks.spawn(bound.serve(api::router(fleet.handle().clone()), stop.clone()));
    let ledger: serde_json::Map<_, _> =
        fleet.store().describe().await?.into_iter().map(|(name, value)| (name, value.into())).collect();
    context.print_json(&ledger)?;

    let outcome = tokio::select! {
        () = stop.cancelled() => Ok(Exit::Completed),
        failure = fleet.ended() => Err(failure),
        ended = tasks.join_next() => match ended {
            Some(Ok(Err(failure))) => Err(failure),
            _ if stop.is_cancelled() => Ok(Exit::Completed),
            _ => Err(Failure::internal("a part of the engine ended")),
        },
    };
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    fleet.stop().await;
    outcome
}
