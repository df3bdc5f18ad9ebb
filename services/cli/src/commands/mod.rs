//! The commands, one file each.

pub mod bench;
pub mod completions;
pub mod coordinator;
pub mod definitions;
pub mod dev;
pub mod doctor;
pub mod migrate;
pub mod receipts;
pub mod run;
pub mod runs;
pub mod sessions;
pub mod submit;
pub mod tools;
pub mod validate;
pub mod worker;

use crate::{
    args::Command,
    context::Context,
    exit::{Exit, Failure},
};

/// Runs one command.
///
/// # Errors
/// Why it did not do what was asked.
pub async fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Run(args) => run::run(args, context).await,
        Command::Dev(args) => dev::run(args, context).await,
        Command::Validate(args) => validate::run(&args, context),
        Command::Submit(args) => submit::run(args, context).await,
        Command::Runs(command) => runs::run(command, context).await,
        Command::Receipts(command) => receipts::run(command, context).await,
        Command::Definitions(command) => definitions::run(command, context).await,
        Command::Tools(command) => tools::run(command, context).await,
        Command::Sessions(command) => sessions::run(command, context).await,
        Command::Coordinator(args) => coordinator::run(args, context).await,
        Command::Worker(command) => worker::run(command, context).await,
        Command::Migrate(args) => migrate::run(args, context).await,
        Command::Doctor(args) => doctor::run(args, context).await,
        Command::Bench(args) => bench::run(*args, context).await,
        Command::Completions(args) => completions::run(&args, context),
    }
}
