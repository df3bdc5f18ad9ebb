//! `ditto sessions`: the processes of the fleet.

use clap::{Args, Subcommand};
use ditto_contracts::SessionId;
use ditto_coordinator::api::views::{Page, SessionView};

use crate::{
    args::{ServerArgs, id},
    client::{Client, read},
    context::Context,
    exit::{Exit, Failure},
    term::{Cell, Tone, shorten, table, time},
};

/// What to do with sessions.
#[derive(Debug, Subcommand)]
pub enum SessionsCommand {
    /// List coordinators and workers, live ones first
    #[command(after_help = "Example:\n  ditto sessions ls")]
    Ls(SessionsLsArgs),
    /// Declare a process dead: what it held is taken over, and it must stop as soon as it hears of it
    #[command(after_help = "\
For a process that lives but does nothing any more. Its class N calls become unknown; nothing is sent twice.

Example:
  ditto sessions end 5Q2X7…")]
    End(SessionsEndArgs),
}

/// Options of `ditto sessions ls`.
#[derive(Debug, Args)]
pub struct SessionsLsArgs {
    /// Also those that are dead
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto sessions end`.
#[derive(Debug, Args)]
pub struct SessionsEndArgs {
    /// The session
    #[arg(value_parser = id::<SessionId>)]
    session: SessionId,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(command: SessionsCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        SessionsCommand::Ls(args) => {
            let answer = Client::new(&args.server)?.get(&["v1", "sessions"], &[]).await?;
            if context.json {
                return context.print(answer.as_str());
            }
            let page: Page<SessionView> = read(&answer)?;
            let shown = page.items.iter().filter(|session| args.all || session.dead_ms.is_none());
            let rows: Vec<_> = shown.map(row).collect();
            let headings = ["SESSION", "ROLE", "KIND", "NAME", "BUILD", "STARTED", "STATE"];
            context.print(&table(context.out, &headings, &rows, "no sessions"))
        }
        SessionsCommand::End(args) => {
            let path = ["v1", "sessions", args.session.as_str(), "end"];
            let answer = Client::new(&args.server)?.post(&path, "{}").await?;
            if context.json {
                return context.print(answer.as_str());
            }
            context.print(&format!("session {} is declared dead", args.session))
        }
    }
}

fn row(session: &SessionView) -> Vec<Cell> {
    let state = match session.dead_ms {
        None => Cell::toned("live", Tone::Good),
        Some(at) => Cell::toned(format!("dead since {}", time(at)), Tone::Dim),
    };
    vec![
        Cell::new(session.session.as_str()),
        Cell::new(&session.role),
        Cell::new(shorten(&session.kind, 24)),
        Cell::new(shorten(&session.name, 32)),
        Cell::new(shorten(&session.build, 16)),
        Cell::new(time(session.started_ms)),
        state,
    ]
}
