//! The system that is measured, as processes: an embedded engine, or a fleet with its servers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use ditto_coordinator::store::{Store as _, postgres::PostgresStore};
use ditto_sql::SqlOptions;
use ditto_test_servers::{Nats, NatsOptions, Postgres, free_port};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

use super::{
    effects, facts,
    http::Connection,
    parts::{Part, Spec},
    plan::{Mode, Plan},
    proc::{self, Processes, Usage},
};
use crate::exit::Failure;

/// How long a system may take from its start until it serves the steps.
const SERVES_WITHIN: Duration = Duration::from_secs(90);
/// The engine of the embedded mode.
pub(super) const ENGINE: &str = "engine";
/// The coordinator of a fleet.
pub(super) const COORDINATOR: &str = "coordinator";
/// The worker of a fleet.
pub(super) const WORKER: &str = "worker";

/// A running system; everything ends and goes away when it is dropped.
pub(super) struct System {
    parts: Vec<Part>,
    postgres: Option<Postgres>,
    nats: Option<Nats>,
    address: String,
    effects: PathBuf,
    /// Durability and versions of what is behind it.
    pub(super) facts: BTreeMap<String, String>,
    dir: tempfile::TempDir,
}

/// What everything had used at one moment.
pub(super) struct Sample {
    /// By role.
    pub(super) usage: BTreeMap<&'static str, Usage>,
    /// Of the load client.
    pub(super) client_cpu_s: f64,
    /// Of the disk.
    pub(super) flushes: Option<u64>,
    /// Processor time of all programs of the machine, in seconds.
    pub(super) machine_cpu_s: Option<f64>,
    /// When.
    pub(super) at: Instant,
}

impl System {
    /// Starts it and waits until it serves the steps.
    pub(super) async fn start(plan: &Plan, mode: Mode) -> Result<Self, Failure> {
        let dir = folder(plan.dir.as_deref())?;
        let port = free_port().map_err(|error| Failure::internal(format!("{error:#}")))?;
        let address = format!("127.0.0.1:{port}");
        let effects = dir.path().join("effects");
        std::fs::write(&effects, "").map_err(|error| Failure::internal(format!("{}: {error}", effects.display())))?;
        let mut system =
            Self { parts: Vec::new(), postgres: None, nats: None, address, effects, facts: BTreeMap::new(), dir };
        match mode {
            Mode::Embedded => system.start_embedded()?,
            Mode::Fleet => system.start_fleet(plan).await?,
        }
        system.serves().await?;
        if mode == Mode::Embedded {
            system.read_engine().await?;
        }
        Ok(system)
    }

    fn effects_variable(&self) -> (&'static str, String) {
        (effects::VARIABLE, self.effects.display().to_string())
    }

    fn start_embedded(&mut self) -> Result<(), Failure> {
        let data = self.dir.path().join("data").display().to_string();
        let arguments = ["bench", "engine", "--data-dir", &data, "--listen", &self.address, "--json"];
        self.parts.push(Part::start(Spec {
            role: ENGINE,
            arguments: arguments.map(str::to_owned).to_vec(),
            environment: vec![self.effects_variable()],
            dir: self.dir.path().to_owned(),
        })?);
        Ok(())
    }

    async fn start_fleet(&mut self, plan: &Plan) -> Result<(), Failure> {
        let server = |error: anyhow::Error| {
            Failure::unreachable(format!("{error:#}")).hint("name running servers with --postgres and --nats")
        };
        let ledger = match &plan.postgres {
            Some(url) => url.clone(),
            None => {
                let postgres = self.postgres.insert(Postgres::start().await.map_err(server)?);
                postgres.create_database("ditto").await.map_err(server)?
            }
        };
        let (nats, monitoring) = match &plan.nats {
            Some(url) => (url.clone(), None),
            None => {
                let options = NatsOptions { monitoring: true, ..NatsOptions::default() };
                let nats = self.nats.insert(Nats::start_with(options).await.map_err(server)?);
                (nats.url(), nats.monitoring_url())
            }
        };
        let named = |kind: &str| plan.instances.then(|| ("DITTO_INSTANCE", format!("bench-{kind}")));
        let mut environment = vec![("DITTO_LEDGER_URL", ledger.clone()), ("DITTO_NATS_URL", nats.clone())];
        environment.extend(named("coordinator"));
        self.parts.push(Part::start(Spec {
            role: COORDINATOR,
            arguments: ["coordinator", "--listen", &self.address].map(str::to_owned).to_vec(),
            environment,
            dir: self.dir.path().to_owned(),
        })?);
        let mut environment = vec![("DITTO_NATS_URL", nats.clone()), self.effects_variable()];
        environment.extend(named("worker"));
        self.parts.push(Part::start(Spec {
            role: WORKER,
            arguments: ["bench", "worker"].map(str::to_owned).to_vec(),
            environment,
            dir: self.dir.path().to_owned(),
        })?);
        self.serves().await?;
        self.facts = facts::nats(&nats, monitoring.as_deref()).await;
        let options =
            SqlOptions { application_name: "ditto-bench".into(), max_connections: 2, ..SqlOptions::default() };
        let store = PostgresStore::open(&ledger, &options).await?;
        let described = store.describe().await;
        store.close().await;
        self.facts.extend(described?.into_iter().map(|(name, value)| (format!("ledger.{name}"), value)));
        self.facts.insert("namedReplicas".into(), plan.instances.to_string());
        Ok(())
    }

    /// What the engine printed about its ledger.
    async fn read_engine(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + SERVES_WITHIN;
        // It serves a moment before it has printed.
        let line = loop {
            if let Some(line) = self.parts.first().and_then(Part::first_line) {
                break line;
            }
            for part in &mut self.parts {
                part.still_runs()?;
            }
            if Instant::now() > deadline {
                return Err(Failure::internal("the engine says nothing about its ledger"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let facts: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&line).unwrap_or_default();
        for (name, value) in facts {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            self.facts.insert(format!("ledger.{name}"), value);
        }
        Ok(())
    }

    /// Waits until both kinds of step are served.
    async fn serves(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + SERVES_WITHIN;
        let mut connection = Connection::to(&self.address);
        loop {
            if let Ok((200, body)) = connection.send("GET", "/v1/catalogue", b"").await {
                let text = String::from_utf8_lossy(body);
                if text.contains("BENCH.STEP.R") && text.contains("BENCH.STEP.K") {
                    return Ok(());
                }
            }
            for part in &mut self.parts {
                part.still_runs()?;
            }
            if Instant::now() > deadline {
                let logs: Vec<_> = self.parts.iter().map(|part| format!("{}:\n{}", part.role(), part.tail())).collect();
                return Err(Failure::internal(format!("nothing serves the steps\n{}", logs.join("\n"))));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The file of the effects.
    pub(super) fn effects(&self) -> &Path {
        &self.effects
    }

    /// Address of the API.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The processes of this program, by role.
    pub(super) fn roles(&self) -> impl Iterator<Item = &'static str> {
        self.parts.iter().map(Part::role)
    }

    /// Kills one process without warning and starts it again at once; answers when it was started again, on the clock
    /// of the effects.
    pub(super) async fn kill_and_restart(&mut self, role: &str) -> Result<u64, Failure> {
        let Some(part) = self.parts.iter_mut().find(|part| part.role() == role) else {
            return Err(Failure::internal(format!("there is no {role}")));
        };
        part.kill9().await?;
        let at_ns = effects::monotonic_ns();
        part.restart()?;
        Ok(at_ns)
    }

    /// Every process by role, servers included.
    fn pids(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let parts = self.parts.iter().filter_map(|part| Some((part.role(), part.pid()?)));
        let postgres = self.postgres.as_ref().and_then(Postgres::pid).map(|pid| ("postgres", pid));
        let nats = self.nats.as_ref().and_then(Nats::pid).map(|pid| ("nats", pid));
        parts.chain(postgres).chain(nats)
    }

    /// What everything has used until now.
    pub(super) fn sample(&self, client: &Client) -> Sample {
        let processes = Processes::read();
        let usage = self.pids().filter_map(|(role, pid)| Some((role, processes.usage(pid)?))).collect();
        let client_cpu_s = client.pid().and_then(|pid| processes.usage(pid)).map_or(0.0, |usage| usage.cpu_s);
        Sample {
            usage,
            client_cpu_s,
            flushes: proc::flushes(self.dir.path()),
            machine_cpu_s: proc::machine_cpu_s(),
            at: Instant::now(),
        }
    }

    /// Memory by role, in KiB.
    pub(super) fn pss_kib(&self) -> BTreeMap<&'static str, Option<u64>> {
        let processes = Processes::read();
        self.pids().map(|(role, pid)| (role, processes.pss_kib(pid))).collect()
    }

    /// The ends of the logs of all parts.
    pub(super) fn logs(&self) -> String {
        self.parts.iter().map(|part| format!("\n{}: {}", part.role(), part.tail())).collect()
    }
}

/// A folder for one system.
pub(super) fn folder(parent: Option<&Path>) -> Result<tempfile::TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("ditto-bench-");
    let made = match parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    made.map_err(|error| Failure::usage(format!("--dir: {error}")))
}

/// The load client, a process of its own.
pub(super) struct Client {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// What the client answered.
#[derive(Debug, Deserialize)]
pub(super) struct Load {
    /// From the first submission to the last end, in seconds.
    pub(super) wall_s: f64,
    /// Of each run, in microseconds.
    pub(super) run_us: Vec<u64>,
}

impl Client {
    /// Starts it against a system.
    pub(super) async fn start(system: &System) -> Result<Self, Failure> {
        let server = format!("http://{}", system.address());
        let spec = Spec {
            role: "client",
            arguments: ["bench", "client", "--server", &server].map(str::to_owned).to_vec(),
            environment: vec![system.effects_variable()],
            dir: system.dir.path().to_owned(),
        };
        let mut command = spec.command()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(spec.log()?);
        let mut child = command.spawn().map_err(|error| Failure::internal(format!("client: {error}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::internal("client: no pipes"));
        };
        let mut client = Self { child, input, output: BufReader::new(output).lines() };
        client.line().await?;
        Ok(client)
    }

    fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    async fn line(&mut self) -> Result<String, Failure> {
        match self.output.next_line().await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(Failure::internal("the load client ended")),
            Err(error) => Err(Failure::internal(format!("the load client: {error}"))),
        }
    }

    /// Gives it work.
    pub(super) async fn ask(&mut self, request: &serde_json::Value) -> Result<(), Failure> {
        let written = self.input.write_all(format!("{request}\n").as_bytes()).await;
        written.map_err(|error| Failure::internal(format!("the load client: {error}")))
    }

    /// Waits until the work is done.
    pub(super) async fn answer(&mut self) -> Result<Load, Failure> {
        let line = self.line().await?;
        serde_json::from_str(&line).map_err(|_| Failure::internal(format!("the load client answered {line}")))
    }
}
