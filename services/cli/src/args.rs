//! The command line: options that every command has, and the list of commands.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ditto_contracts::Namespace;

use crate::commands::{
    bench::BenchArgs, completions::CompletionsArgs, coordinator::CoordinatorArgs, definitions::DefinitionsCommand,
    dev::DevArgs, doctor::DoctorArgs, migrate::MigrateArgs, receipts::ReceiptsCommand, run::RunArgs, runs::RunsCommand,
    sessions::SessionsCommand, submit::SubmitArgs, tools::ToolsCommand, validate::ValidateArgs, worker::WorkerCommand,
};

const ABOUT: &str = "Runs agent and tool work durably: no side effect twice, no unknown outcome called a success";

const LONG_ABOUT: &str = "\
Ditto runs loops of graphs of nodes (tools, models, outputs) so that they survive crashes. Every call with an effect \
has a receipt: it is stored before it is sent, claimed before it acts, and settled by evidence only. What is not known \
is called unknown and waits for evidence or for a person; it is never repeated blindly and never called a success.

On a laptop nothing else is needed: `ditto run FILE` and `ditto dev` hold the whole fleet in one process, with SQLite \
in `.ditto/`. A fleet is the same binary as `ditto coordinator` and `ditto worker …`, with NATS and PostgreSQL.";

const AFTER_HELP: &str = "\
Examples:
  ditto run examples/read-and-deliver.yaml --input '{\"paths\":[\"README.md\"]}'
  ditto validate examples/*.yaml
  ditto dev                                  serve the API on http://127.0.0.1:7878
  ditto submit read-and-deliver --input @input.json --wait
  ditto receipts ls --unknown                what a person should look at

Exit codes:
  0 completed   1 failed      2 wrong input   3 partial   4 waits for a person
  5 unknown     6 cancelled   7 no backend    130 stopped by a signal

Results go to stdout, everything else to stderr. `NO_COLOR` turns colours off; they are only used on a terminal.";

/// The command line of `ditto`.
#[derive(Debug, Parser)]
#[command(name = "ditto", version, about = ABOUT, long_about = LONG_ABOUT, after_help = AFTER_HELP)]
#[command(disable_help_subcommand = true, max_term_width = 110)]
pub struct Cli {
    /// Options that every command has.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command has.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// Configuration file; otherwise DITTO_CONFIG, otherwise ditto.yaml here if there is one
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub config: Option<PathBuf>,
    /// Print JSON for machines, also for errors
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

/// Everything `ditto` does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run one definition here, to its end, and print its result
    Run(RunArgs),
    /// Serve everything in one process: API, coordinator, worker, SQLite
    Dev(DevArgs),
    /// Check definitions and show every problem with its place
    Validate(ValidateArgs),
    /// Submit work to a server or over NATS
    Submit(SubmitArgs),
    /// List, inspect, watch, cancel and signal runs
    #[command(subcommand)]
    Runs(RunsCommand),
    /// List and inspect receipts of calls, and decide about unknown outcomes
    #[command(subcommand)]
    Receipts(ReceiptsCommand),
    /// List, show and register definitions
    #[command(subcommand)]
    Definitions(DefinitionsCommand),
    /// Show which tools and nodes live workers serve
    #[command(subcommand)]
    Tools(ToolsCommand),
    /// List processes of the fleet, or declare one dead
    #[command(subcommand)]
    Sessions(SessionsCommand),
    /// Run a coordinator of a fleet (NATS, PostgreSQL or SQLite)
    Coordinator(CoordinatorArgs),
    /// Run a worker of a fleet
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Bring the ledger's schema up to date
    Migrate(MigrateArgs),
    /// Check configuration, ledger, bus and workspace, and say what to do
    Doctor(DoctorArgs),
    /// Measure speed, recovery and idle cost on this machine
    Bench(Box<BenchArgs>),
    /// Print shell completions
    Completions(CompletionsArgs),
}

/// Which server to talk to.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Address of a coordinator's API
    #[arg(
        long,
        env = "DITTO_SERVER",
        default_value = "http://127.0.0.1:7878",
        value_name = "URL",
        hide_env_values = true
    )]
    pub server: String,
    /// Tenant
    #[arg(long, short = 'n', default_value = "default", value_name = "NAME", value_parser = namespace)]
    pub namespace: Namespace,
}

/// Where embedded commands keep their state.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// Folder of the embedded ledger; otherwise `dev.dataDir` of ditto.yaml, otherwise .ditto here
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Reads a tenant.
pub(crate) fn namespace(text: &str) -> Result<Namespace, String> {
    Namespace::new(text).map_err(|error| error.to_string())
}

/// Reads any identity of the contracts.
pub(crate) fn id<T: std::str::FromStr<Err = ditto_contracts::IdError>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: ditto_contracts::IdError| error.to_string())
}
