//! `ditto doctor`: looks at everything a process needs and says in plain words what to do. Changes nothing.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use ditto_bus::{Bus, BusError, Message, nats::NatsConfig};
use ditto_contracts::{
    LoopName, Namespace, SessionId,
    wire::{Headers, SubmitKind, subjects},
};
use ditto_runtime::{
    config::{ConfigTree, redact_url},
    fault,
};
use serde::Serialize;

use crate::{
    args::ServerArgs,
    client::Client,
    context::Context,
    data_dir,
    exit::{Exit, Failure},
    services,
    settings::{self, EmbeddedSettings, InteractionSettings, LedgerConfig},
    term::{Tone, lines},
};

/// Time for one round trip over the bus.
const ROUND_TRIP: Duration = Duration::from_secs(2);

/// Options of `ditto doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
Looks at the configuration, the data folder of embedded runs, the workspace of tools, and, where they are configured or \
named here, at the ledger, the bus and a server. Exit code 0: nothing is broken.

Examples:
  ditto doctor
  ditto doctor --server http://ditto.example:7878
  DITTO_LEDGER_URL=postgres://ditto@db/ditto ditto doctor --nats nats://bus:4222 --json")]
pub struct DoctorArgs {
    /// Also look at this server
    #[arg(long, env = "DITTO_SERVER", value_name = "URL", hide_env_values = true)]
    server: Option<String>,
    /// Also look at this NATS server; wins over bus.url
    #[arg(long, env = "DITTO_NATS_URL", value_name = "URL", hide_env_values = true)]
    nats: Option<String>,
    /// Data folder of embedded runs; otherwise dev.dataDir, otherwise .ditto here
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// How one check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// Works, but a person should know.
    Note,
    Bad,
    /// Not configured, so not looked at.
    Skipped,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Default)]
struct Report(Vec<Finding>);

impl Report {
    fn add(&mut self, check: &'static str, state: State, found: impl Into<String>) -> &mut Finding {
        self.0.push(Finding { check, state, found: found.into(), advice: None });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn failed(&mut self, check: &'static str, failure: Failure) {
        let finding = self.add(check, State::Bad, failure.message);
        finding.advice = failure.hint;
    }
}

impl Finding {
    fn advise(&mut self, advice: impl Into<String>) {
        self.advice = Some(advice.into());
    }
}

pub(super) async fn run(args: DoctorArgs, context: &Context) -> Result<Exit, Failure> {
    let mut report = Report::default();
    let mut exit = Exit::Completed;
    match context.config() {
        Err(failure) => {
            exit = Exit::Usage;
            report.failed("configuration", failure);
        }
        Ok(tree) => {
            if !configuration(&tree, &mut report) {
                exit = Exit::Usage;
            }
            if let Ok(settings) = EmbeddedSettings::read(&tree) {
                let folder = args.data_dir.clone().unwrap_or(settings.dev.data_dir.clone());
                data_folder(&folder, &mut report);
                workspace(settings.interaction.workspace.as_deref(), &mut report);
            }
            ledger(&tree, &mut report).await;
            bus(&tree, args.nats.filter(|url| !url.is_empty()), &mut report).await;
        }
    }
    fault_points(&mut report);
    server(args.server.filter(|url| !url.is_empty()), &mut report).await;

    let broken = report.0.iter().filter(|finding| finding.state == State::Bad).count();
    if broken > 0 && exit == Exit::Completed {
        exit = Exit::Unreachable;
    }
    if context.json {
        context.print_json(&serde_json::json!({ "ok": broken == 0, "checks": report.0 }))?;
        return Ok(exit);
    }
    let width = report.0.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in &report.0 {
        let (mark, tone) = match finding.state {
            State::Ok => ("ok     ", Tone::Good),
            State::Note => ("note   ", Tone::Warn),
            State::Bad => ("broken ", Tone::Bad),
            State::Skipped => ("skipped", Tone::Dim),
        };
        let indent = format!("\n{}", " ".repeat(width + 11));
        let found = lines(&finding.found).replace('\n', &indent);
        text.push_str(&format!("{}  {:width$}  {found}\n", context.out.paint(tone, mark), finding.check));
        if let Some(advice) = &finding.advice {
            let advice = lines(advice).replace('\n', &indent);
            text.push_str(&format!(
                "{:space$}{} {advice}\n",
                "",
                context.out.paint(Tone::Note, "→"),
                space = width + 11
            ));
        }
    }
    context.print(&text)?;
    Ok(exit)
}

/// Reads every section that any process of this build reads.
fn configuration(tree: &ConfigTree, report: &mut Report) -> bool {
    let file =
        tree.file().map_or_else(|| "no file, defaults and environment".to_owned(), |file| file.display().to_string());
    let mut problems = Vec::new();
    let reads = [
        EmbeddedSettings::read(tree).map(drop),
        InteractionSettings::read(tree).map(drop),
        settings::CoordinatorSettings::read(tree).map(drop),
    ];
    for failure in reads.into_iter().filter_map(Result::err) {
        let list = failure.message.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        problems.extend(list);
    }
    problems.sort();
    problems.dedup();
    if problems.is_empty() {
        report.add("configuration", State::Ok, file);
        return true;
    }
    let text = format!("{file}\n{}", problems.join("\n"));
    report.add("configuration", State::Bad, text).advise("docs/configuration.md lists every key with its range");
    false
}

fn fault_points(report: &mut Report) {
    if fault::armed() {
        let text = format!("{} is set: this process kills or cheats itself on purpose", fault::VARIABLE);
        report
            .add("fault points", State::Note, text)
            .advise(format!("unset {} unless this is a crash test", fault::VARIABLE));
    } else {
        report.add("fault points", State::Ok, "none are armed");
    }
}

fn data_folder(folder: &Path, report: &mut Report) {
    const CHECK: &str = "data folder";
    let shown = folder.display();
    if let Some(holder) = data_dir::held_by(folder) {
        report.add(CHECK, State::Note, format!("{shown} is in use by {holder}")).advise(
            "`ditto run` and `ditto dev` need another --data-dir meanwhile; `ditto submit` talks to that process",
        );
        return;
    }
    // The nearest folder that is there must take a file.
    let existing = folder.ancestors().find(|folder| folder.is_dir() || folder.as_os_str().is_empty());
    let place = existing.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let probe = place.join(format!(".ditto-doctor-{}", std::process::id()));
    match std::fs::File::create_new(&probe) {
        Ok(_) => {
            let _ = std::fs::remove_file(&probe); // an empty file left behind is no more than clutter
            let there = if folder.join("ledger.db").exists() { "has a ledger" } else { "is created at the first run" };
            report.add(CHECK, State::Ok, format!("{shown} {there}"));
        }
        Err(error) => {
            let text = format!("{shown} cannot be written: {}", error.kind());
            report.add(CHECK, State::Bad, text).advise("choose another with --data-dir or dev.dataDir");
        }
    }
}

fn workspace(folder: Option<&Path>, report: &mut Report) {
    const CHECK: &str = "workspace";
    let Some(folder) = folder else {
        report.add(CHECK, State::Note, "none: tools have no files").advise("set workers.interaction.workspace");
        return;
    };
    match std::fs::read_dir(folder) {
        Ok(_) => drop(report.add(CHECK, State::Ok, format!("tools see {} and nothing else", folder.display()))),
        Err(error) => report
            .add(CHECK, State::Bad, format!("{} cannot be read: {}", folder.display(), error.kind()))
            .advise("create it, or change workers.interaction.workspace"),
    }
}

async fn ledger(tree: &ConfigTree, report: &mut Report) {
    const CHECK: &str = "ledger";
    let Ok(config) = settings::ledger_alone(tree) else { return };
    let Some(address) = config.address() else {
        report.add(CHECK, State::Skipped, "ledger.url is not set: only embedded runs, in the data folder");
        return;
    };
    if let Some(path) = address.strip_prefix("sqlite:").map(|path| path.trim_start_matches("//"))
        && !Path::new(path).exists()
    {
        report.add(CHECK, State::Ok, format!("{address} is created by the first coordinator"));
        return;
    }
    match ask_ledger(&config, &address).await {
        Ok((kind, took)) => {
            let text = format!("{} ({kind}) answers in {} ms", redact_url(&address), took.as_millis());
            report.add(CHECK, State::Ok, text);
        }
        Err(error) => report
            .add(CHECK, State::Bad, format!("{}: {error}", redact_url(&address)))
            .advise("is the database running, does it accept this user, is the address right?"),
    }
}

async fn ask_ledger(config: &LedgerConfig, address: &str) -> Result<(&'static str, Duration), String> {
    let db = ditto_sql::open(address, &config.options()).await.map_err(|error| error.to_string())?;
    let started = Instant::now();
    let answer = db.ping().await;
    let took = started.elapsed();
    let kind = db.kind();
    db.close().await;
    answer.map_err(|error| ditto_sql::redacted(&error).to_string())?;
    Ok((kind, took))
}

async fn bus(tree: &ConfigTree, asked: Option<String>, report: &mut Report) {
    const CHECK: &str = "bus";
    if asked.is_none() && !tree.has_section("bus") {
        report.add(CHECK, State::Skipped, "bus.url is not set: only embedded runs, inside one process");
        return;
    }
    let Ok(mut config) = settings::bus_alone(tree, "ditto-doctor") else { return };
    if let Some(url) = asked {
        config.url = url;
    }
    let config = NatsConfig { connect_retry_ms: 0, advisories: false, ..config };
    let bus = match services::connect(&config).await {
        Ok(bus) => bus,
        Err(failure) => return report.failed(CHECK, failure),
    };
    let limit = bus.limits().max_message_bytes;
    report.add(CHECK, State::Ok, format!("{} takes messages of up to {limit} bytes", redact_url(&config.url)));
    rights(bus.as_ref(), report).await;
    streams(bus.as_ref(), report).await;
    coordinator(bus.as_ref(), report).await;
    bus.close().await;
}

/// A message to ourselves: shows that this user may publish and subscribe where coordinators do.
async fn rights(bus: &dyn Bus, report: &mut Report) {
    const CHECK: &str = "bus rights";
    let subject = subjects::wake(&SessionId::generate());
    let message =
        Message { subject: subject.clone(), headers: Headers::new(), body: b"{\"runs\":[]}".as_slice().into() };
    let trip = async {
        let mut heard = bus.subscribe(&subject, None, 4).await?;
        bus.notify(message).await?;
        Ok::<_, BusError>(tokio::time::timeout(ROUND_TRIP, heard.next()).await.is_ok_and(|heard| heard.is_some()))
    };
    let started = Instant::now();
    match trip.await {
        Ok(true) => {
            let took = started.elapsed().as_micros();
            report.add(CHECK, State::Ok, format!("a message to ourselves came back after {took} µs"));
        }
        Ok(false) => report.add(CHECK, State::Note, "a message on ditto.wake.… did not come back").advise(
            "a coordinator's user needs publish and subscribe on ditto.>; a worker's user need not have this right",
        ),
        Err(error) => report.add(CHECK, State::Bad, error.to_string()).advise("which subjects may this user use?"),
    }
}

async fn streams(bus: &dyn Bus, report: &mut Report) {
    const CHECK: &str = "streams";
    let (mut there, mut missing) = (Vec::new(), Vec::new());
    for stream in [subjects::JOBS_STREAM, subjects::RESULTS_STREAM, subjects::SUBMIT_STREAM] {
        match bus.stream_state(stream).await {
            Ok(state) => there.push(format!("{stream} ({} messages, {} bytes)", state.messages, state.bytes)),
            Err(BusError::Missing(_)) => missing.push(stream),
            Err(error) => {
                let text = format!("{stream}: {error}");
                report
                    .add(CHECK, State::Bad, text)
                    .advise("is JetStream on (nats-server -js), and may this user ask for streams?");
                return;
            }
        }
    }
    if missing.is_empty() {
        report.add(CHECK, State::Ok, there.join(", "));
    } else {
        let text = format!("not there yet: {}", missing.join(", "));
        report.add(CHECK, State::Note, text).advise("the first coordinator creates them");
    }
}

/// Submits what cannot exist: a refusal by a coordinator shows that one is there.
async fn coordinator(bus: &dyn Bus, report: &mut Report) {
    const CHECK: &str = "coordinator";
    let Ok(name) = LoopName::new("ditto-doctor-asks-for-what-is-not-there") else { return };
    let subject = subjects::submit(&Namespace::default_namespace(), SubmitKind::Loop, &name);
    let message = Message { subject, headers: Headers::new(), body: b"{}".as_slice().into() };
    match bus.request(message, Duration::from_secs(5)).await {
        Ok(_) => drop(report.add(CHECK, State::Ok, "one answers submissions")),
        Err(BusError::NoResponders) => {
            report.add(CHECK, State::Note, "none answers submissions").advise("start one with `ditto coordinator`");
        }
        Err(error) => {
            report
                .add(CHECK, State::Note, format!("submissions are not answered: {error}"))
                .advise("is it overloaded, or its ledger away?");
        }
    }
}

async fn server(asked: Option<String>, report: &mut Report) {
    const CHECK: &str = "server";
    let Some(url) = asked else {
        report.add(CHECK, State::Skipped, "no --server was named");
        return;
    };
    let server = ServerArgs { server: url, namespace: Namespace::default_namespace() };
    let version = match Client::new(&server) {
        Ok(client) => client.get(&["v1", "version"], &[]).await,
        Err(failure) => Err(failure),
    };
    match version {
        Ok(version) => {
            let text = version.field("version").and_then(|version| version.to_text()).unwrap_or_else(|| "?".into());
            let same = text == env!("CARGO_PKG_VERSION");
            let found = format!("{} answers, version {text}", redact_url(&server.server));
            let finding = report.add(CHECK, if same { State::Ok } else { State::Note }, found);
            if !same {
                finding.advise(format!("this command is version {}", env!("CARGO_PKG_VERSION")));
            }
        }
        Err(failure) => report.failed(CHECK, failure),
    }
}
