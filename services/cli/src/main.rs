//! The `ditto` command.

use std::process::ExitCode;

use clap::Parser as _;
use ditto_cli::{Context, args::Cli, commands};

/// Faster than the system's allocator for many small buffers on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let context = Context::new(&cli.global);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            context.report(&ditto_cli::Failure::internal(format!("failed to start: {error}")));
            return ditto_cli::Exit::Failed.into();
        }
    };
    let outcome = runtime.block_on(commands::run(cli.command, &context));
    // Threads that wait for the disk or a terminal must not hold up the end.
    runtime.shutdown_timeout(std::time::Duration::from_millis(500));
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            context.report(&failure);
            failure.exit.into()
        }
    }
}
