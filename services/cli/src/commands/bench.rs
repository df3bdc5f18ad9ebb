//! `ditto bench`: measures this machine, and the load client that outside harnesses use.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ditto_runtime::shutdown::Shutdown;

use crate::{
    bench::{self, BenchWorkerArgs, ClientArgs, EngineArgs, Mode, Plan, Sizes},
    context::Context,
    exit::{Exit, Failure},
};

pub use crate::bench::{Class, Workload};

/// Options of `ditto bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Measures real processes: one embedded engine, or a fleet of one coordinator, one worker, PostgreSQL and NATS with their
default durability. See docs/bench.md for what the figures are. Build with --release, and let the machine do nothing
else meanwhile: all of it takes some minutes.

Examples:
  ditto bench                                embedded
  ditto bench --fleet --class R --only W1,W2
  ditto bench --embedded --fleet --json > bench.json")]
pub struct BenchArgs {
    #[command(subcommand)]
    part: Option<BenchPart>,
    /// Measure the embedded engine; the default when --fleet is not given
    #[arg(long)]
    embedded: bool,
    /// Measure a fleet; starts PostgreSQL and NATS unless they are named
    #[arg(long)]
    fleet: bool,
    /// Effect classes of the step
    #[arg(long, value_delimiter = ',', ignore_case = true, default_values = ["R", "K"], value_name = "CLASS")]
    class: Vec<Class>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',', ignore_case = true, value_name = "WORKLOAD")]
    only: Vec<Workload>,
    /// Tiny sizes: shows within seconds that everything runs
    #[arg(long)]
    quick: bool,
    /// Measured repetitions of each workload, W1 included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Folder for ledgers, effects and logs; it should be on the disk that matters
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// PostgreSQL that runs already, an empty database
    #[arg(long, value_name = "URL", requires = "fleet")]
    postgres: Option<String>,
    /// NATS that runs already
    #[arg(long, value_name = "URL", requires = "fleet")]
    nats: Option<String>,
    /// Give the processes no exclusive names: a killed one is taken over when its lease has ended
    #[arg(long)]
    unnamed: bool,
}

/// Processes of a measurement.
#[derive(Debug, Subcommand)]
enum BenchPart {
    /// The load client: JSON lines on stdin and stdout
    Client(ClientArgs),
    /// The worker with the step
    #[command(hide = true)]
    Worker(BenchWorkerArgs),
    /// The embedded engine with the step
    #[command(hide = true)]
    Engine(EngineArgs),
}

pub(super) async fn run(args: BenchArgs, context: &Context) -> Result<Exit, Failure> {
    match args.part {
        Some(BenchPart::Client(args)) => return bench::client(args, context).await,
        Some(BenchPart::Worker(args)) => return bench::worker(args).await,
        Some(BenchPart::Engine(args)) => return bench::engine(args, context).await,
        None => {}
    }
    let mut modes = Vec::new();
    if args.embedded || !args.fleet {
        modes.push(Mode::Embedded);
    }
    if args.fleet {
        modes.push(Mode::Fleet);
    }
    let mut sizes = if args.quick { Sizes::QUICK } else { Sizes::FULL };
    if let Some(repetitions) = args.repetitions {
        (sizes.repetitions, sizes.w1_repetitions) = (repetitions, repetitions);
    }
    let mut workloads = args.only;
    if workloads.is_empty() {
        workloads = vec![Workload::W1, Workload::W2, Workload::W3, Workload::W4, Workload::W5, Workload::W6];
    }
    workloads.sort();
    workloads.dedup();
    let plan = Plan {
        modes,
        classes: args.class,
        workloads,
        sizes,
        quick: args.quick,
        dir: args.dir,
        postgres: args.postgres,
        nats: args.nats,
        instances: !args.unnamed,
    };
    if cfg!(debug_assertions) && !args.quick {
        context.note("this build is not optimised: use `cargo run --release -- bench`");
    }
    // A signal must take the processes along: they end when the measurement is dropped.
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    let stop = shutdown.token();
    let report = tokio::select! {
        report = bench::measure(&plan, context) => report?,
        () = stop.cancelled() => return Ok(Exit::Interrupted),
    };
    if context.json {
        return context.print_json(&report);
    }
    context.print(&bench::render(&report))
}
