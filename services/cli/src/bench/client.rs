//! `ditto bench client`: the load client. Reads one JSON object per line on stdin, answers each with one on stdout.
//!
//! A run is submitted under the key `TAG-RUN`, so that a request whose answer was lost is sent again without making a
//! second run. Ends are read from one event stream (`/v1/endings`), and looked up now and then in case one was missed.
//! When the end of a run has been seen, the line `TAG-RUN done ns` is appended to the file that `EFFECTS` names.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Args;
use ditto_bus::{
    Bus as _, Message,
    nats::{NatsBus, NatsConfig},
};
use ditto_contracts::{
    Json, LoopName, Namespace, RunStatus, SubmitKey,
    wire::{Headers, SubmitBody, SubmitKind, subjects},
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    task::JoinSet,
};

use super::{
    definitions::{Kind, definition},
    effects::Effects,
    ends::Ends,
    http::{Connection, address_of},
    plan::Class,
};
use crate::{
    context::Context,
    exit::{Exit, Failure},
    services,
};

/// How long one run may take, retries included.
const RUN_WITHIN: Duration = Duration::from_secs(300);
/// Pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(5);
/// How long an end is waited for before it is looked up.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// Most runs in flight.
const IN_FLIGHT_MAX: u32 = 4_096;

/// Options of `ditto bench client`.
#[derive(Debug, Args)]
#[command(after_help = "\
Lines on stdin, answers on stdout:
  (start)                                                        {\"ready\":true}
  {\"op\":\"run\",\"kind\":\"chain\",\"runs\":64,\"conc\":64,\"n\":50,\"tag\":\"T\",\"class\":\"R\"}
                                                                 {\"ok\":true,\"wall_s\":…,\"run_us\":[…]}
`kind` is chain (n steps one after the other) or fanout (n at once), `op` is run (await the end) or submit (stored only).
The steps are served by `ditto bench worker`; the end of the input ends the client.")]
pub(crate) struct ClientArgs {
    /// Address of a coordinator's API
    #[arg(
        long,
        env = "DITTO_SERVER",
        default_value = "http://127.0.0.1:7878",
        value_name = "URL",
        hide_env_values = true
    )]
    server: String,
    /// Submit over this NATS server instead; definitions and ends still go through --server
    #[arg(long, value_name = "URL")]
    nats: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Run,
    Submit,
}

#[derive(Debug, Deserialize)]
struct Request {
    op: Op,
    kind: Kind,
    runs: u32,
    conc: u32,
    n: u32,
    tag: String,
    #[serde(default = "class_r")]
    class: Class,
}

const fn class_r() -> Class {
    Class::R
}

#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Ready { ready: bool },
    Done { ok: bool, wall_s: f64, run_us: Vec<u64> },
    Failed { ok: bool, error: String },
}

/// Answers until the end of the input.
pub(crate) async fn run(args: ClientArgs, context: &Context) -> Result<Exit, Failure> {
    let address = address_of(&args.server)
        .ok_or_else(|| Failure::usage(format!("--server: expected http://host:port, found {:?}", args.server)))?;
    let effects = Effects::from_environment()?.map(Arc::new);
    let nats = match args.nats {
        None => None,
        Some(url) => {
            let config =
                NatsConfig { url, name: "ditto-bench-client".into(), advisories: false, ..NatsConfig::default() };
            Some(services::connect(&config).await?)
        }
    };
    let (ends, reading) = Ends::of(&address);
    let mut background = JoinSet::new();
    background.spawn(reading);
    let mut client = Client { address: address.into(), nats, effects, ends, registered: HashSet::new() };
    context.print_json(&Answer::Ready { ready: true })?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.map_err(|error| Failure::internal(format!("stdin: {error}")))? {
        if line.trim().is_empty() {
            continue;
        }
        let answer = match client.serve(&line).await {
            Ok((wall, run_us)) => Answer::Done { ok: true, wall_s: wall.as_secs_f64(), run_us },
            Err(error) => Answer::Failed { ok: false, error },
        };
        context.print_json(&answer)?;
    }
    Ok(Exit::Completed)
}

struct Client {
    address: Arc<str>,
    nats: Option<Arc<NatsBus>>,
    effects: Option<Arc<Effects>>,
    ends: Ends,
    registered: HashSet<String>,
}

impl Client {
    async fn serve(&mut self, line: &str) -> Result<(Duration, Vec<u64>), String> {
        let request: Request = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let plain = |text: &str| {
            !text.is_empty() && text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !plain(&request.tag) {
            return Err("tag: 1 to 64 of A-Z a-z 0-9 _".into());
        }
        if request.n == 0 || request.runs == 0 || !(1..=IN_FLIGHT_MAX).contains(&request.conc) {
            return Err(format!("runs, n: at least 1; conc: 1 to {IN_FLIGHT_MAX}"));
        }
        let (name, text) = definition(request.kind, request.class, request.n);
        if !self.registered.contains(&name) {
            self.register(&text).await?;
            self.registered.insert(name.clone());
        }
        if request.op == Op::Run {
            self.ends.opened().await;
        }
        let job = Arc::new(Job {
            address: self.address.clone(),
            nats: self.nats.clone(),
            effects: self.effects.clone(),
            ends: self.ends.clone(),
            name: LoopName::new(&name).map_err(|error| error.to_string())?,
            next: AtomicU32::new(0),
            request,
        });
        let start = Instant::now();
        let mut slots = JoinSet::new();
        for _ in 0..job.request.conc.min(job.request.runs) {
            slots.spawn(slot(job.clone()));
        }
        let mut run_us = Vec::with_capacity(job.request.runs as usize);
        while let Some(ended) = slots.join_next().await {
            run_us.extend(ended.map_err(|error| error.to_string())??);
        }
        Ok((start.elapsed(), run_us))
    }

    async fn register(&self, text: &str) -> Result<(), String> {
        let mut connection = Connection::to(&self.address);
        let answer = connection.send("POST", "/v1/definitions", text.as_bytes()).await;
        match answer.map_err(|error| format!("{}: {error}", self.address))? {
            (201, _) => Ok(()),
            (status, body) => Err(format!("definition: {status} {}", String::from_utf8_lossy(body))),
        }
    }
}

/// One request to the client, worked on by many slots.
struct Job {
    address: Arc<str>,
    nats: Option<Arc<NatsBus>>,
    effects: Option<Arc<Effects>>,
    ends: Ends,
    name: LoopName,
    next: AtomicU32,
    request: Request,
}

/// Takes one run after the other; answers how long each took, in microseconds.
async fn slot(job: Arc<Job>) -> Result<Vec<u64>, String> {
    let mut connection = Connection::to(&job.address);
    let mut times = Vec::new();
    loop {
        let run = job.next.fetch_add(1, Ordering::Relaxed);
        if run >= job.request.runs {
            return Ok(times);
        }
        let start = Instant::now();
        let name = format!("{}-{run}", job.request.tag);
        job.one(&name, &mut connection, start + RUN_WITHIN).await.map_err(|error| format!("run {name}: {error}"))?;
        times.push(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
}

/// What both answers have in common: of a submission, and of a run that was read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    run_id: String,
    #[serde(default)]
    status: Option<RunStatus>,
}

impl Job {
    async fn one(&self, name: &str, connection: &mut Connection, until: Instant) -> Result<(), String> {
        let input = format!(r#"{{"run":"{name}","n":{}}}"#, self.request.n);
        let mut seen = match &self.nats {
            Some(bus) => self.submit_nats(bus, name, &input, until).await?,
            None => {
                let body = format!(r#"{{"name":"{}","key":"{name}","input":{input}}}"#, self.name);
                call(connection, "POST", "/v1/runs", body.as_bytes(), until).await?
            }
        };
        if self.request.op == Op::Submit {
            return Ok(());
        }
        while !seen.status.is_some_and(RunStatus::is_ended) {
            if let Some(status) = self.ends.of_run(&seen.run_id, LOOK_AFTER).await {
                seen.status = Some(status);
            } else if Instant::now() > until {
                return Err("did not end in time".into());
            } else {
                seen = call(connection, "GET", &format!("/v1/runs/{}", seen.run_id), b"", until).await?;
            }
        }
        match seen.status {
            Some(RunStatus::Completed) => {}
            status => return Err(format!("ended as {}", status.map_or("nothing", RunStatus::as_str))),
        }
        match &self.effects {
            Some(effects) => effects.append(&format!("{name} done")).map_err(|error| format!("effects: {error}")),
            None => Ok(()),
        }
    }

    async fn submit_nats(&self, bus: &NatsBus, key: &str, input: &str, until: Instant) -> Result<Seen, String> {
        let body = SubmitBody {
            key: Some(SubmitKey::new(key).map_err(|error| error.to_string())?),
            input: Json::parse(input.as_bytes().to_vec()).map_err(|error| error.to_string())?,
            revision: None,
        };
        let body = serde_json::to_vec(&body).map_err(|error| error.to_string())?;
        let subject = subjects::submit(&Namespace::default_namespace(), SubmitKind::Loop, &self.name);
        loop {
            let message = Message { subject: subject.clone(), headers: Headers::new(), body: body.clone().into() };
            let failed = match bus.request(message, Duration::from_secs(10)).await {
                Ok(answer) => match serde_json::from_slice(&answer.body) {
                    Ok(seen) => return Ok(seen),
                    Err(_) => String::from_utf8_lossy(&answer.body).into_owned(),
                },
                Err(error) => error.to_string(),
            };
            again(until, failed).await?;
        }
    }
}

/// Sends a request that may be sent again until it is answered.
async fn call(
    connection: &mut Connection,
    method: &str,
    path: &str,
    body: &[u8],
    until: Instant,
) -> Result<Seen, String> {
    loop {
        let failed = match connection.send(method, path, body).await {
            Ok((200 | 201, body)) => {
                return serde_json::from_slice(body).map_err(|error| format!("the answer is unreadable: {error}"));
            }
            Ok((status, body)) => {
                let text = format!("{status} {}", String::from_utf8_lossy(body));
                if status < 500 && status != 429 {
                    return Err(text);
                }
                text
            }
            Err(error) => error.to_string(),
        };
        again(until, failed).await?;
    }
}

async fn again(until: Instant, failed: String) -> Result<(), String> {
    if Instant::now() > until {
        return Err(failed);
    }
    tokio::time::sleep(PAUSE).await;
    Ok(())
}
