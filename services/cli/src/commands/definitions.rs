//! `ditto definitions`: what a server can run.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ditto_contracts::{LoopName, Revision};
use ditto_coordinator::api::views::{DefinitionView, Page};

use super::validate::short;
use crate::{
    args::{ServerArgs, id},
    client::{Client, read},
    context::Context,
    exit::{Exit, Failure},
    input, show,
    term::{Cell, lines, table, time},
};

/// What to do with definitions.
#[derive(Debug, Subcommand)]
pub enum DefinitionsCommand {
    /// List the newest revision of each
    #[command(after_help = "Example:\n  ditto definitions ls")]
    Ls(DefinitionsLsArgs),
    /// Show one with its source
    #[command(after_help = "Example:\n  ditto definitions show read-and-deliver > copy.yaml")]
    Show(DefinitionsShowArgs),
    /// Register definitions; runs that have started keep their revision
    #[command(after_help = "Example:\n  ditto definitions put examples/*.yaml")]
    Put(DefinitionsPutArgs),
}

/// Options of `ditto definitions ls`.
#[derive(Debug, Args)]
pub struct DefinitionsLsArgs {
    /// Most rows (1 to 500)
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
    /// Only those after this name
    #[arg(long, value_name = "NAME")]
    after: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto definitions show`.
#[derive(Debug, Args)]
pub struct DefinitionsShowArgs {
    /// Its name
    #[arg(value_parser = id::<LoopName>)]
    name: LoopName,
    /// Another revision than the newest
    #[arg(long, value_name = "REVISION", value_parser = id::<Revision>)]
    revision: Option<Revision>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto definitions put`.
#[derive(Debug, Args)]
pub struct DefinitionsPutArgs {
    /// Definition files, YAML or JSON
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(command: DefinitionsCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        DefinitionsCommand::Ls(args) => ls(args, context).await,
        DefinitionsCommand::Show(args) => {
            let query: Vec<_> = args.revision.iter().map(|revision| ("revision", revision.to_string())).collect();
            let path = ["v1", "definitions", args.name.as_str()];
            let answer = Client::new(&args.server)?.get(&path, &query).await?;
            if context.json {
                return context.print(answer.as_str());
            }
            let definition: DefinitionView = read(&answer)?;
            let rows = [
                ("name", definition.name.to_string()),
                ("revision", definition.revision.to_string()),
                ("registered", time(definition.created_ms)),
            ];
            context.note(show::fields(context.err, &rows).trim_end());
            context.print(&lines(&definition.source.unwrap_or_default()))
        }
        DefinitionsCommand::Put(args) => {
            let client = Client::new(&args.server)?;
            // All are checked before any is registered.
            let definitions: Vec<_> =
                args.files.iter().map(|file| input::definition(file)).collect::<Result<_, _>>()?;
            let mut registered = Vec::new();
            for definition in definitions {
                registered.push(put(&client, definition.source).await?);
            }
            if context.json {
                return context.print_json(&registered);
            }
            let rows: Vec<_> = registered.iter().map(row).collect();
            context.print(&table(context.out, &HEADINGS, &rows, ""))
        }
    }
}

const HEADINGS: [&str; 3] = ["NAME", "REVISION", "REGISTERED"];

async fn ls(args: DefinitionsLsArgs, context: &Context) -> Result<Exit, Failure> {
    let mut query = vec![("limit", args.limit.to_string())];
    query.extend(args.after.map(|after| ("after", after)));
    let answer = Client::new(&args.server)?.get(&["v1", "definitions"], &query).await?;
    if context.json {
        return context.print(answer.as_str());
    }
    let page: Page<DefinitionView> = read(&answer)?;
    let rows: Vec<_> = page.items.iter().map(row).collect();
    context.print(&table(
        context.out,
        &HEADINGS,
        &rows,
        "no definitions; register one with `ditto definitions put FILE`",
    ))?;
    if let Some(next) = page.next {
        context.note(&format!("more: ditto definitions ls --after {next}"));
    }
    Ok(Exit::Completed)
}

/// Registers the text of a definition.
pub(super) async fn put(client: &Client, source: String) -> Result<DefinitionView, Failure> {
    read(&client.post(&["v1", "definitions"], source).await?)
}

fn row(definition: &DefinitionView) -> Vec<Cell> {
    vec![
        Cell::new(definition.name.as_str()),
        Cell::new(short(definition.revision.as_str())),
        Cell::new(time(definition.created_ms)),
    ]
}
