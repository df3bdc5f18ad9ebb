//! `ditto runs`: list, show, watch, cancel, signal.

use std::time::Duration;

use clap::{Args, Subcommand};
use ditto_contracts::{Json, LoopName, RunId, RunStatus};
use ditto_coordinator::api::views::{Page, ReceiptView, RunView};
use futures_util::StreamExt as _;

use crate::{
    args::{ServerArgs, id},
    client::{Client, read},
    context::Context,
    exit::{Exit, Failure},
    input,
    progress::Progress,
    show,
};

/// How often a broken event stream is opened again before giving up.
const REOPEN_MAX: u32 = 20;

/// What to do with runs.
#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// List runs, newest first
    #[command(
        after_help = "Examples:\n  ditto runs ls\n  ditto runs ls --status parked,needs-human --limit 200\n  ditto runs ls --json | jq '.items[].runId'"
    )]
    Ls(RunsLsArgs),
    /// Show one run and its receipts
    #[command(after_help = "Example:\n  ditto runs show 01KBA…")]
    Show(RunArgs),
    /// Wait for the end of a run, print its result and exit as `ditto run` does
    #[command(after_help = "Example:\n  ditto runs wait 01KBA… && echo done")]
    Wait(RunArgs),
    /// Watch what happens to a run until it ends
    #[command(after_help = "Examples:\n  ditto runs events 01KBA…\n  ditto runs events 01KBA… --after 12 --json")]
    Events(RunsEventsArgs),
    /// Ask a run to stop; cancelled does not mean undone
    #[command(after_help = "Example:\n  ditto runs cancel 01KBA…")]
    Cancel(RunArgs),
    /// Send a signal to a run that waits for one
    #[command(after_help = "Example:\n  ditto runs signal 01KBA… decision '{\"approve\":true,\"by\":\"alex\"}'")]
    Signal(RunsSignalArgs),
}

/// Options of `ditto runs ls`.
#[derive(Debug, Args)]
pub struct RunsLsArgs {
    /// Only these: queued, running, parked, cancelling, completed, partial, failed, needs-human, cancelled
    #[arg(long, value_delimiter = ',', value_name = "STATUS", value_parser = status)]
    status: Vec<RunStatus>,
    /// Only of this definition
    #[arg(long, value_parser = id::<LoopName>)]
    name: Option<LoopName>,
    /// Most rows (1 to 500)
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
    /// Only those that are older than this run
    #[arg(long, value_name = "RUN", value_parser = id::<RunId>)]
    after: Option<RunId>,
    #[command(flatten)]
    server: ServerArgs,
}

/// One run on one server.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The run
    #[arg(value_parser = id::<RunId>)]
    run: RunId,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto runs events`.
#[derive(Debug, Args)]
pub struct RunsEventsArgs {
    /// The run
    #[arg(value_parser = id::<RunId>)]
    run: RunId,
    /// Only versions after this one
    #[arg(long, default_value_t = 0, value_name = "VERSION")]
    after: i64,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto runs signal`.
#[derive(Debug, Args)]
pub struct RunsSignalArgs {
    /// The run
    #[arg(value_parser = id::<RunId>)]
    run: RunId,
    /// Name of the signal
    name: String,
    /// Its body: JSON, @file, or - for stdin
    #[arg(default_value = "null", value_name = "JSON|@FILE")]
    body: String,
    /// Makes repeating safe: the same id is the same signal
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

fn status(text: &str) -> Result<RunStatus, String> {
    let known = || RunStatus::ALL.iter().map(|status| status.as_str()).collect::<Vec<_>>().join(", ");
    RunStatus::from_text(text).ok_or_else(|| format!("expected one of {}", known()))
}

pub(super) async fn run(command: RunsCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        RunsCommand::Ls(args) => ls(args, context).await,
        RunsCommand::Show(args) => show_run(args, context).await,
        RunsCommand::Wait(args) => follow_to_end(&Client::new(&args.server)?, args.run.as_str(), context).await,
        RunsCommand::Events(args) => events(args, context).await,
        RunsCommand::Cancel(args) => {
            let answer = Client::new(&args.server)?.post(&["v1", "runs", args.run.as_str(), "cancel"], "{}").await?;
            if context.json {
                return context.print(answer.as_str());
            }
            let run: RunView = read(&answer)?;
            context.print(&if run.status.is_ended() {
                format!("run {} was over already: {}", run.run_id, run.status)
            } else {
                format!("run {} is asked to stop", run.run_id)
            })
        }
        RunsCommand::Signal(args) => signal(args, context).await,
    }
}

async fn ls(args: RunsLsArgs, context: &Context) -> Result<Exit, Failure> {
    let mut query = vec![("limit", args.limit.to_string())];
    if !args.status.is_empty() {
        let statuses: Vec<_> = args.status.iter().map(|status| status.as_str()).collect();
        query.push(("status", statuses.join(",")));
    }
    query.extend(args.name.map(|name| ("name", name.to_string())));
    query.extend(args.after.map(|after| ("after", after.to_string())));
    let answer = Client::new(&args.server)?.get(&["v1", "runs"], &query).await?;
    if context.json {
        return context.print(answer.as_str());
    }
    let page: Page<RunView> = read(&answer)?;
    context.print(&show::runs(context.out, &page.items))?;
    if let Some(next) = page.next {
        context.note(&format!("more: ditto runs ls --after {next}"));
    }
    Ok(Exit::Completed)
}

async fn show_run(args: RunArgs, context: &Context) -> Result<Exit, Failure> {
    let client = Client::new(&args.server)?;
    let run = client.get(&["v1", "runs", args.run.as_str()], &[]).await?;
    let receipts = client.get(&["v1", "runs", args.run.as_str(), "receipts"], &[("limit", "200".into())]).await?;
    if context.json {
        let items = receipts.field("items").unwrap_or_default();
        return context.print(&format!("{{\"run\":{},\"receipts\":{}}}", run.as_str(), items.as_str()));
    }
    let view: RunView = read(&run)?;
    let page: Page<ReceiptView> = read(&receipts)?;
    let table = show::receipts(context.out, &page.items, "no calls");
    context.print(&format!("{}\n{table}", show::run(context.out, &view)))?;
    if page.next.is_some() {
        context.note(&format!("more: ditto receipts ls --run {}", args.run));
    }
    Ok(Exit::Completed)
}

async fn signal(args: RunsSignalArgs, context: &Context) -> Result<Exit, Failure> {
    let body = input::json("BODY", &args.body)?;
    let name = Json::string(&args.name);
    let mut text = format!("{{\"name\":{},\"body\":{}", name.as_str(), body.as_str());
    if let Some(id) = &args.request_id {
        text.push_str(&format!(",\"requestId\":{}", Json::string(id).as_str()));
    }
    text.push('}');
    let answer = Client::new(&args.server)?.post(&["v1", "runs", args.run.as_str(), "signals"], text).await?;
    if context.json {
        return context.print(answer.as_str());
    }
    context.print(&format!("run {} has the signal {}", args.run, crate::term::clean(&args.name)))
}

async fn events(args: RunsEventsArgs, context: &Context) -> Result<Exit, Failure> {
    let client = Client::new(&args.server)?;
    if !context.json {
        let mut progress = Progress::new(context.err, false);
        let run = follow(&client, args.run.as_str(), args.after, &mut progress).await?;
        context.note(&show::ending(context.err, &run, &progress.summary()));
        return Ok(Exit::Completed);
    }
    let mut events = std::pin::pin!(client.events(args.run.as_str(), args.after).await?);
    while let Some(event) = events.next().await {
        let (version, event, data) = event?;
        context.print(&format!(
            "{{\"version\":{version},\"event\":{},\"data\":{}}}",
            Json::string(&event).as_str(),
            data.as_str()
        ))?;
    }
    Ok(Exit::Completed)
}

/// Follows a run to its end, then prints its output and exits by its status.
pub(super) async fn follow_to_end(client: &Client, run: &str, context: &Context) -> Result<Exit, Failure> {
    let mut progress = Progress::new(context.err, context.json);
    let view = follow(client, run, 0, &mut progress).await?;
    let exit = Exit::of_run(view.status, view.error.as_ref());
    if context.json {
        context.print_json(&view)?;
        return Ok(exit);
    }
    context.note(&show::ending(context.err, &view, &progress.summary()));
    if let Some(output) = &view.output {
        context.print(output.as_str())?;
    }
    Ok(exit)
}

/// Shows progress until the run ends. A broken stream is opened again where it broke.
async fn follow(client: &Client, run: &str, mut after: i64, progress: &mut Progress) -> Result<RunView, Failure> {
    let mut opened = 0;
    loop {
        opened += 1;
        let broken = match client.events(run, after).await {
            Ok(events) => {
                let mut events = std::pin::pin!(events);
                loop {
                    match events.next().await {
                        Some(Ok((_, event, data))) if event == "ended" => return read(&data),
                        Some(Ok((version, _, data))) => {
                            (after, opened) = (after.max(version), 0);
                            let at_ms = data.field("atMs").and_then(|at| at.as_str().parse().ok()).unwrap_or(0);
                            progress.take(at_ms, &data.field("progress").unwrap_or_default());
                        }
                        Some(Err(error)) => break error,
                        None => break Failure::unreachable("the server ended the event stream"),
                    }
                }
            }
            Err(error) if error.exit == Exit::Unreachable && opened > 1 => error,
            Err(error) => return Err(error),
        };
        if opened >= REOPEN_MAX {
            return Err(broken.hint(format!("the run goes on; look again with `ditto runs wait {run}`")));
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
