//! `ditto run`: one definition, here, to its end.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use ditto_contracts::{
    Json, Namespace, ReceiptState, RunId, RunStatus, SubmitKey,
    wire::{SubmitBody, SubmitKind},
};
use ditto_coordinator::{
    Handle, Plans, Submission,
    api::views::RunView,
    store::{ReceiptFilter, RunRow},
};
use ditto_definition::Definition;
use ditto_runtime::{
    shutdown::Shutdown,
    telemetry::{self, LogFormat},
};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{
    args::{DataArgs, id, namespace},
    context::Context,
    embedded::{Embedded, EmbeddedConfig},
    exit::{Exit, Failure},
    input,
    progress::Progress,
    settings::EmbeddedSettings,
    show,
    term::{Tone, status_tone},
};

/// A run that sleeps longer than this is left to sleep.
const SLEEP_MOST_MS: i64 = 60_000;
/// Versions of a run read at once.
const EVENTS_PAGE: u32 = 256;
/// How long news may be missed before the ledger is looked at.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// Options of `ditto run`.
#[derive(Debug, Args)]
#[command(after_help = "\
The result goes to stdout, progress and deliveries go to stderr. State is in .ditto/: kill it at any moment and give the \
same command with the same --key again (or --resume RUN), and it goes on; nothing is done twice.

By itself it may read files of the current folder and print deliveries; ditto.yaml allows more (docs/configuration.md).

Examples:
  ditto run examples/read-and-deliver.yaml --input '{\"paths\":[\"README.md\",\"Cargo.toml\"]}'
  ditto run order.yaml --input @order.json --set dryRun=true --key order-4711
  ditto run --resume 01KBA…

Exit codes: 0 completed, 1 failed, 2 wrong input, 3 partial, 4 waits for a person, 5 unknown outcome, 6 cancelled, \
7 no backend, 130 stopped by a signal.")]
pub struct RunArgs {
    /// Definition, YAML or JSON; - for stdin
    #[arg(value_name = "FILE", required_unless_present = "resume")]
    file: Option<PathBuf>,
    /// Input: JSON, @file, or - for stdin
    #[arg(long, short, value_name = "JSON|@FILE", default_value = "{}", conflicts_with = "resume")]
    input: String,
    /// Set a member of the input; the value is JSON, @file, or else a text. Repeatable
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "resume")]
    set: Vec<String>,
    /// Idempotency: the same key is the same run, for ever
    #[arg(long, short, value_parser = id::<SubmitKey>, conflicts_with = "resume")]
    key: Option<SubmitKey>,
    /// Go on with a run that was started here before
    #[arg(long, value_name = "RUN", value_parser = id::<RunId>, conflicts_with = "file")]
    resume: Option<RunId>,
    /// Tenant
    #[arg(long, short = 'n', default_value = "default", value_name = "NAME", value_parser = namespace)]
    namespace: Namespace,
    #[command(flatten)]
    data: DataArgs,
    /// No progress, only how it ended
    #[arg(long, short)]
    quiet: bool,
}

pub(super) async fn run(args: RunArgs, context: &Context) -> Result<Exit, Failure> {
    // Everything that can be wrong with the command is said before anything starts.
    let work = match (&args.resume, &args.file) {
        (Some(run), _) => Work::Resume(run.clone()),
        (None, Some(file)) => {
            let definition = input::definition(file)?;
            let input = input::with_members(&input::json("--input", &args.input)?, &args.set)?;
            definition.plan.check_input(&input).map_err(|problems| input::wrong_input(&problems))?;
            Work::Start(Box::new(definition), input)
        }
        (None, None) => return Err(Failure::usage("FILE: expected a definition, or --resume RUN")),
    };
    let mut settings = EmbeddedSettings::read(&context.config()?)?;
    // Progress is what a person wants to see here; the log only says what goes wrong.
    settings.telemetry.log.filter.get_or_insert_with(|| "warn".into());
    if settings.telemetry.log.format == LogFormat::Auto {
        settings.telemetry.log.format = LogFormat::Text;
    }
    let _telemetry = telemetry::init(&settings.telemetry, "ditto").map_err(super::worker::telemetry_failure)?;
    let shutdown = Shutdown::listen().map_err(|error| Failure::internal(format!("signals: {error}")))?;
    let mut fleet = Embedded::start(EmbeddedConfig {
        data_dir: args.data.data_dir.clone().unwrap_or(settings.dev.data_dir),
        coordinator: settings.coordinator,
        interaction: settings.interaction,
        plans: Plans::default(),
    })
    .await?;
    let outcome = drive(&args, work, &mut fleet, context, &shutdown.token()).await;
    fleet.stop().await;
    outcome
}

enum Work {
    Start(Box<Definition>, Json),
    Resume(RunId),
}

async fn drive(
    args: &RunArgs,
    work: Work,
    fleet: &mut Embedded,
    context: &Context,
    stop: &CancellationToken,
) -> Result<Exit, Failure> {
    let handle = fleet.handle().clone();
    let paint = context.err;
    let run = match work {
        Work::Resume(run) => {
            let row = handle.store().run_get(Some(&args.namespace), &run).await?.ok_or_else(|| {
                Failure::usage(format!(
                    "--resume: no run {run} in {} for namespace {}",
                    fleet.data_dir().display(),
                    args.namespace
                ))
            })?;
            context.note(&format!(
                "{} {} {}",
                paint.paint(Tone::Strong, "run"),
                row.run,
                paint.paint(Tone::Dim, row.name.as_str())
            ));
            run
        }
        Work::Start(definition, input) => {
            let source = definition.source.clone();
            handle.register(&args.namespace, &definition, source).await?;
            let body = SubmitBody { key: args.key.clone(), input, revision: Some(definition.revision.clone()) };
            let submission = Submission {
                namespace: args.namespace.clone(),
                kind: SubmitKind::Loop,
                name: definition.name.clone(),
                body,
                traceparent: None,
            };
            let reply = handle.submit(submission).await?;
            let again = if reply.duplicate { "  (this key was used before: it is the same run)" } else { "" };
            let name = format!("{} {}", definition.name, super::validate::short(definition.revision.as_str()));
            context.note(&format!(
                "{} {}  {}{again}",
                paint.paint(Tone::Strong, "run"),
                reply.run_id,
                paint.paint(Tone::Dim, &name)
            ));
            reply.run_id
        }
    };
    let mut progress = Progress::new(paint, args.quiet || context.json);
    let started = Instant::now();
    let seen = tokio::select! {
        seen = watch(&handle, &args.namespace, &run, &mut progress) => seen?,
        failure = fleet.ended() => return Err(failure),
        () = stop.cancelled() => Seen::Stopped,
    };
    let (row, exit, hint) = match seen {
        Seen::Ended(row) => {
            let exit = Exit::of_run(row.status, row.error.as_ref());
            (row, exit, None)
        }
        Seen::Sleeps(row, exit) => {
            let hint = match exit {
                Exit::Unknown => show::unknown_hint(run.as_str()),
                _ => format!(
                    "it waits for a signal or a time and is kept; `ditto dev` lets it go on, and \
                     `ditto runs signal {run} NAME JSON` answers it"
                ),
            };
            (row, exit, Some(hint))
        }
        Seen::Stopped => {
            context.note(&format!("stopped; go on with: ditto run --resume {run}"));
            return Ok(Exit::Interrupted);
        }
    };
    let view = RunView::from(row);
    if context.json {
        context.print_json(&view)?;
        return Ok(exit);
    }
    let elapsed = match view.ended_ms {
        Some(ended) => ended - view.created_ms,
        None => i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX),
    };
    let elapsed = crate::term::span(elapsed);
    let status = paint.paint(status_tone(view.status.as_str()), view.status.as_str());
    context.note(&format!("{status} in {elapsed}: {}", progress.summary()));
    if let Some(error) = &view.error {
        context.note(&format!(
            "{} {}: {}",
            paint.paint(Tone::Bad, "error:"),
            error.code,
            crate::term::lines(&error.message)
        ));
    }
    let hint = hint.or_else(|| (exit == Exit::Unknown).then(|| show::unknown_hint(run.as_str())));
    if let Some(hint) = hint {
        context.note(&format!("{} {hint}", paint.paint(Tone::Note, " hint:")));
    }
    if let Some(output) = &view.output {
        context.print(output.as_str())?;
    }
    Ok(exit)
}

enum Seen {
    Ended(RunRow),
    /// Parked for longer than anybody wants to look at it.
    Sleeps(RunRow, Exit),
    Stopped,
}

/// Shows what happens to a run until it is over or asleep.
async fn watch(handle: &Handle, namespace: &Namespace, run: &RunId, progress: &mut Progress) -> Result<Seen, Failure> {
    let mut news = handle.watch();
    let mut after = 0;
    loop {
        // The status first: what was written before the end is then surely in the page.
        let row = handle
            .store()
            .run_get(Some(namespace), run)
            .await?
            .ok_or_else(|| Failure::internal(format!("run {run} is not in the ledger any more")))?;
        loop {
            let events = handle.store().events_after(run, after, EVENTS_PAGE).await?;
            for event in &events {
                after = after.max(event.version);
                progress.take(event.at_ms, &event.progress);
            }
            if events.len() < EVENTS_PAGE as usize {
                break;
            }
        }
        if row.status.is_ended() {
            return Ok(Seen::Ended(row));
        }
        if row.status == RunStatus::Parked
            && let Some(exit) = sleeps(handle, &row).await?
        {
            return Ok(Seen::Sleeps(row, exit));
        }
        let look = tokio::time::sleep(LOOK_AFTER);
        tokio::pin!(look);
        loop {
            tokio::select! {
                () = &mut look => break,
                changed = news.recv() => match changed {
                    Ok(changed) if changed.run == *run => break,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => {
                        (&mut look).await;
                        break;
                    }
                },
            }
        }
    }
}

/// Whether a parked run waits for a person or for a far time, and the exit code that says so.
async fn sleeps(handle: &Handle, row: &RunRow) -> Result<Option<Exit>, Failure> {
    let filter =
        ReceiptFilter { run: Some(row.run.clone()), states: vec![ReceiptState::Unknown], ..ReceiptFilter::default() };
    let unknown = handle.store().receipts_list(&filter, 100).await?;
    if unknown.iter().any(|receipt| receipt.settled_ms.is_some()) {
        return Ok(Some(Exit::Unknown));
    }
    if !unknown.is_empty() {
        // The backend is being asked; an answer may come at any moment.
        return Ok(None);
    }
    let now_ms = handle.store().now_ms().await?;
    let far = row.wake_ms.is_none_or(|wake| wake - now_ms > SLEEP_MOST_MS);
    Ok(far.then_some(Exit::NeedsHuman))
}
