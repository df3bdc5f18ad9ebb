//! `ditto tools`: what live workers serve.

use clap::{Args, Subcommand};
use ditto_contracts::Json;

use crate::{
    args::ServerArgs,
    client::Client,
    context::Context,
    exit::{Exit, Failure},
    term::{Cell, Tone, shorten, table},
};

/// What to do with the catalogue.
#[derive(Debug, Subcommand)]
pub enum ToolsCommand {
    /// List nodes and tools with their effect class and how many workers serve them
    #[command(after_help = "\
Classes: R executing again changes nothing; K the backend turns the same key into one effect; N never sent again.

Examples:
  ditto tools ls
  ditto tools ls --json | jq '.items[] | {node, source, inputSchema}'")]
    Ls(ToolsLsArgs),
}

/// Options of `ditto tools ls`.
#[derive(Debug, Args)]
pub struct ToolsLsArgs {
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(command: ToolsCommand, context: &Context) -> Result<Exit, Failure> {
    let ToolsCommand::Ls(args) = command;
    let answer = Client::new(&args.server)?.get(&["v1", "catalogue"], &[]).await?;
    if context.json {
        return context.print(answer.as_str());
    }
    let rows: Vec<_> = answer.field("items").iter().flat_map(Json::elements).map(|item| row(&item)).collect();
    let headings = ["NODE", "TOOL", "CLASS", "POOLS", "WORKERS", "DESCRIPTION"];
    context.print(&table(
        context.out,
        &headings,
        &rows,
        "no live worker serves anything; start one with `ditto worker interaction`",
    ))
}

fn row(item: &Json) -> Vec<Cell> {
    let text = |name: &str| item.field(name).and_then(|value| value.to_text()).unwrap_or_default();
    let class = item.field("policy").and_then(|policy| policy.field("class")).and_then(|class| class.to_text());
    let pools: Vec<_> = item
        .field("pools")
        .iter()
        .flat_map(Json::elements)
        .map(|pool| pool.to_text().unwrap_or_else(|| "default".into()))
        .collect();
    let flag = |name: &str| item.field(name).is_some_and(|value| value.is_true());
    let mut description = shorten(&text("description"), 60);
    if flag("requiresApproval") {
        description.push_str(" (asks for approval)");
    }
    let conflict = flag("conflict");
    if conflict {
        description.push_str(" (workers disagree: the stricter policy rules)");
    }
    vec![
        Cell::new(text("node")),
        Cell::new(text("source")),
        Cell::new(class.unwrap_or_default()),
        Cell::new(pools.join(",")),
        Cell::new(item.field("sessions").map(|n| n.to_string()).unwrap_or_default()),
        Cell::toned(description, if conflict { Tone::Warn } else { Tone::Plain }),
    ]
}
