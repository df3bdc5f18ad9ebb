//! `ditto receipts`: what is known about each call, and a person's decision about an unknown one.

use clap::{ArgGroup, Args, Subcommand};
use ditto_contracts::{CallUid, ReceiptState, RunId};
use ditto_coordinator::api::views::{Page, ReceiptDetail, ReceiptView};

use crate::{
    args::{ServerArgs, id},
    client::{Client, read},
    context::Context,
    exit::{Exit, Failure},
    input, show,
    term::{Cell, Tone, clean, lines, status_tone, table, time},
};

/// What to do with receipts.
#[derive(Debug, Subcommand)]
pub enum ReceiptsCommand {
    /// List receipts, newest first
    #[command(
        after_help = "Examples:\n  ditto receipts ls --unknown\n  ditto receipts ls --run 01KBA…\n  ditto receipts ls --state planned,claimed --json"
    )]
    Ls(ReceiptsLsArgs),
    /// Show one receipt, its policy and its attempts
    #[command(after_help = "Example:\n  ditto receipts show 01KBA…")]
    Show(ReceiptsShowArgs),
    /// Decide about a call whose outcome is unknown
    #[command(after_help = "\
Find out at the backend first: search for the key that `ditto receipts show` names.
  --succeeded        it happened; the run goes on as if the worker had said so
  --failed           it did not happen, and cannot happen any more
  --another-attempt  send it again, although the earlier attempt may have happened: your risk

Example:
  ditto receipts resolve 01KBA… --succeeded --output '{\"id\":42}' --reason 'found order 42 in the CRM'")]
    Resolve(ReceiptsResolveArgs),
}

/// Options of `ditto receipts ls`.
#[derive(Debug, Args)]
pub struct ReceiptsLsArgs {
    /// Only those whose outcome is unknown: what a person should look at
    #[arg(long, conflicts_with = "state")]
    unknown: bool,
    /// Only these: planned, claimed, succeeded, failed, unknown, cancelled
    #[arg(long, value_delimiter = ',', value_name = "STATE", value_parser = state)]
    state: Vec<ReceiptState>,
    /// Only of this run, in order
    #[arg(long, value_name = "RUN", value_parser = id::<RunId>)]
    run: Option<RunId>,
    /// Most rows (1 to 500)
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
    /// Only those after this one in the list
    #[arg(long, value_name = "CALL", value_parser = id::<CallUid>)]
    after: Option<CallUid>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto receipts show`.
#[derive(Debug, Args)]
pub struct ReceiptsShowArgs {
    /// The call
    #[arg(value_parser = id::<CallUid>)]
    call: CallUid,
    #[command(flatten)]
    server: ServerArgs,
}

/// Options of `ditto receipts resolve`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("verdict").required(true))]
pub struct ReceiptsResolveArgs {
    /// The call
    #[arg(value_parser = id::<CallUid>)]
    call: CallUid,
    /// It happened
    #[arg(long, group = "verdict")]
    succeeded: bool,
    /// It did not happen, and cannot happen any more
    #[arg(long, group = "verdict")]
    failed: bool,
    /// Make another attempt although the earlier one is unresolved
    #[arg(long, group = "verdict")]
    another_attempt: bool,
    /// Why; kept in the attempt log
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who decides; otherwise the user of this machine
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Output to hand to the run, with --succeeded: JSON, @file, or - for stdin
    #[arg(long, value_name = "JSON|@FILE", requires = "succeeded")]
    output: Option<String>,
    /// The settlement that was looked at; otherwise the one that stands now
    #[arg(long, value_name = "N")]
    settle_rev: Option<i32>,
    #[command(flatten)]
    server: ServerArgs,
}

fn state(text: &str) -> Result<ReceiptState, String> {
    let known = || ReceiptState::ALL.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ");
    ReceiptState::from_text(text).ok_or_else(|| format!("expected one of {}", known()))
}

pub(super) async fn run(command: ReceiptsCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        ReceiptsCommand::Ls(args) => ls(args, context).await,
        ReceiptsCommand::Show(args) => {
            let answer = Client::new(&args.server)?.get(&["v1", "receipts", args.call.as_str()], &[]).await?;
            if context.json {
                return context.print(answer.as_str());
            }
            context.print(&detail(context, &read(&answer)?))
        }
        ReceiptsCommand::Resolve(args) => resolve(args, context).await,
    }
}

async fn ls(args: ReceiptsLsArgs, context: &Context) -> Result<Exit, Failure> {
    let mut query = vec![("limit", args.limit.to_string())];
    let mut states: Vec<_> = args.state.iter().map(|state| state.as_str()).collect();
    if args.unknown {
        states.push(ReceiptState::Unknown.as_str());
    }
    if !states.is_empty() {
        query.push(("state", states.join(",")));
    }
    query.extend(args.run.map(|run| ("run", run.to_string())));
    query.extend(args.after.map(|after| ("after", after.to_string())));
    let answer = Client::new(&args.server)?.get(&["v1", "receipts"], &query).await?;
    if context.json {
        return context.print(answer.as_str());
    }
    let page: Page<ReceiptView> = read(&answer)?;
    let none = if args.unknown { "no unknown outcomes" } else { "no receipts" };
    context.print(&show::receipts(context.out, &page.items, none))?;
    if let Some(next) = page.next {
        context.note(&format!("more: add --after {next}"));
    }
    Ok(Exit::Completed)
}

async fn resolve(args: ReceiptsResolveArgs, context: &Context) -> Result<Exit, Failure> {
    let client = Client::new(&args.server)?;
    let output = args.output.as_deref().map(|text| input::json("--output", text)).transpose()?;
    let who = args.who.or_else(|| std::env::var("USER").ok()).filter(|who| !who.trim().is_empty());
    let Some(who) = who else {
        return Err(Failure::usage("--who: expected a name; a decision is kept with who made it"));
    };
    let settle_rev = match args.settle_rev {
        Some(settle_rev) => settle_rev,
        None => {
            let answer = client.get(&["v1", "receipts", args.call.as_str()], &[]).await?;
            read::<ReceiptDetail>(&answer)?.receipt.settle_rev
        }
    };
    let verdict = match (args.succeeded, args.failed) {
        (true, _) => "succeeded",
        (_, true) => "failed",
        (false, false) => "another-attempt",
    };
    let request = serde_json::json!({ "verdict": verdict, "settleRev": settle_rev, "who": who, "reason": args.reason });
    let mut text = request.to_string();
    if let Some(output) = &output {
        text.pop();
        text.push_str(&format!(",\"output\":{}}}", output.as_str()));
    }
    let answer = client.post(&["v1", "receipts", args.call.as_str(), "resolve"], text).await?;
    if context.json {
        return context.print(answer.as_str());
    }
    let receipt: ReceiptView = read(&answer)?;
    context.print(&format!("receipt {} is {} now, decided by {}", receipt.call, receipt.state, clean(&who)))
}

fn detail(context: &Context, detail: &ReceiptDetail) -> String {
    let ReceiptDetail { receipt, policy, log } = detail;
    let paint = context.out;
    let state = receipt.state.as_str();
    let settled = match (receipt.settled_ms, &receipt.settled_by) {
        (Some(at), Some(by)) => format!("{} by {}", time(at), by.as_str().replace('_', " ")),
        (Some(at), None) => time(at),
        (None, _) => "not yet".into(),
    };
    let class = match policy.class.as_str() {
        "R" => "R  executing again changes nothing",
        "K" => "K  the backend turns the same key into one effect",
        _ => "N  never sent again",
    };
    let mut rows = vec![
        ("call", receipt.call.to_string()),
        ("run", receipt.run_id.to_string()),
        ("task", clean(&receipt.task)),
        ("node", receipt.node.to_string()),
    ];
    rows.extend(receipt.source.iter().map(|source| ("source", clean(source))));
    rows.extend(receipt.pool.iter().map(|pool| ("pool", pool.to_string())));
    rows.extend([
        ("call id", clean(&receipt.call_id)),
        ("class", class.to_owned()),
        ("key", clean(&receipt.key)),
        ("state", paint.paint(status_tone(state), state)),
        ("settled", settled),
        ("revision", receipt.settle_rev.to_string()),
        (
            "attempts",
            format!(
                "{} granted, {} unresolved, {} dispatched",
                receipt.attempts, receipt.unresolved, receipt.dispatches
            ),
        ),
        ("decided", time(receipt.created_ms)),
    ]);
    rows.extend(receipt.claimed_ms.map(|at| ("claimed", time(at))));
    rows.extend(receipt.session.iter().map(|session| ("session", session.to_string())));
    rows.extend(receipt.request.iter().map(|request| ("request", show::value(request))));
    rows.extend(receipt.output.iter().map(|output| ("output", show::value(output))));
    rows.extend(receipt.error.iter().map(|error| ("error", format!("{}: {}", error.code, lines(&error.message)))));
    let mut text = show::fields(paint, &rows);
    if !log.is_empty() {
        let rows: Vec<_> = log
            .iter()
            .map(|entry| {
                vec![
                    Cell::new(time(entry.at_ms)),
                    Cell::new(entry.attempt.to_string()),
                    Cell::new(&entry.event),
                    Cell::toned(show::value(&entry.detail), Tone::Dim),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&table(paint, &["AT", "ATTEMPT", "EVENT", "DETAIL"], &rows, ""));
    }
    if receipt.state == ReceiptState::Unknown {
        let how =
            "look for the key at the backend, then: ditto receipts resolve CALL --succeeded|--failed --reason TEXT";
        text.push_str(&format!("\n{}\n", paint.paint(Tone::Note, how)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_or_listed() {
        assert_eq!(state("unknown"), Ok(ReceiptState::Unknown));
        assert!(state("lost").unwrap_err().contains("planned, claimed"));
    }
}
