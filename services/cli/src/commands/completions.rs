//! `ditto completions`: what a shell needs to complete this command line.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::{
    args::Cli,
    context::Context,
    exit::{Exit, Failure},
};

/// Options of `ditto completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ditto completions bash > ~/.local/share/bash-completion/completions/ditto")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs, context: &Context) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ditto", &mut script);
    context.print(&String::from_utf8_lossy(&script))
}
