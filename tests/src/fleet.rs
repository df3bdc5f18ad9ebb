//! A whole fleet of real processes: PostgreSQL, NATS, coordinators, and workers whose effects can be counted.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use ditto_coordinator::api::views::{Page, ReceiptView, RunView};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    effects::Effects,
    process::{Process, Spec, ditto_binary, folder, text, without_test_settings},
    servers::{Nats, Postgres},
};

/// How many of what.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Coordinators.
    pub coordinators: usize,
    /// Workers.
    pub workers: usize,
}

/// Settings on top of the fleet's own; they win.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Environment of every coordinator.
    pub coordinators: Vec<(String, String)>,
    /// Environment of every worker.
    pub workers: Vec<(String, String)>,
}

impl Extra {
    /// The life times of sessions that a fleet has unless it is told otherwise.
    pub fn default_times() -> Self {
        let times = ditto_coordinator::CoordinatorConfig::default();
        let coordinators = [
            ("DITTO_COORDINATOR_SESSION_TTL_MS", times.session_ttl_ms),
            ("DITTO_COORDINATOR_SESSION_GRACE_MS", times.session_grace_ms),
            ("DITTO_COORDINATOR_WORKER_TTL_MS", times.worker_ttl_ms),
            ("DITTO_COORDINATOR_WORKER_GRACE_MS", times.worker_grace_ms),
            ("DITTO_COORDINATOR_SWEEP_PERIOD_MS", times.sweep_period_ms),
            ("DITTO_COORDINATOR_RECONCILE_WINDOW_MS", times.reconcile_window_ms),
            ("DITTO_COORDINATOR_WORKER_WAIT_MS", times.worker_wait_ms),
            ("DITTO_COORDINATOR_ACK_WAIT_MS", times.ack_wait_ms),
        ];
        Self {
            coordinators: coordinators.map(|(name, ms)| (name.to_owned(), ms.to_string())).to_vec(),
            workers: Vec::new(),
        }
    }
}

/// A running fleet; everything ends when it is dropped.
pub struct Fleet {
    /// Its database.
    pub postgres: Postgres,
    /// Its bus.
    pub nats: Nats,
    /// Its coordinators.
    pub coordinators: Vec<Process>,
    /// Its workers.
    pub workers: Vec<Process>,
    /// What its workers did.
    pub effects: Effects,
    /// Where a fault point says that it fired.
    pub fault_log: PathBuf,
    urls: Vec<String>,
    http: reqwest::Client,
    dir: tempfile::TempDir,
}

/// The definition that all fault tests run: `input.steps` steps of one node, one after the other.
pub fn chain(class: char) -> String {
    format!(
        "ditto: 1\nloop: chain-{class}\nstate: {{ index: 0 }}\nmaxIterations: 1000\ngraph:\n  tasks:\n    step:\n      \
         node: TEST.EFFECT.{class}\n      onUnknown: surface\n      \
         with: {{ id: \"${{ input.tag + '-' + string(state.index) }}\" }}\n\
         update: {{ index: \"${{ state.index + 1 }}\" }}\ndone: \"${{ state.index == input.steps }}\"\n\
         output: {{ steps: \"${{ state.index }}\" }}\n"
    )
}

impl Fleet {
    /// Starts servers and processes, and waits until the workers are known.
    pub async fn start(shape: Shape) -> Self {
        Self::start_with(shape, &Extra::default()).await
    }

    /// The same with settings of a test's own.
    pub async fn start_with(shape: Shape, extra: &Extra) -> Self {
        ditto_runtime::install_tls_provider();
        let dir = folder();
        let postgres = Postgres::start().await.unwrap();
        let nats = Nats::start().await.unwrap();
        let ledger = postgres.create_database("ditto").await.unwrap();
        let fault_log = dir.path().join("fault.log");
        let mut urls = Vec::new();
        let mut coordinators = Vec::new();
        for n in 0..shape.coordinators {
            let port = crate::servers::free_port().unwrap();
            urls.push(format!("http://127.0.0.1:{port}"));
            let spec = Spec {
                name: format!("coordinator-{n}"),
                program: ditto_binary(),
                arguments: vec!["coordinator".into(), "--listen".into(), format!("127.0.0.1:{port}")],
                environment: environment(&[
                    ("DITTO_LEDGER_URL", &ledger),
                    ("DITTO_NATS_URL", &nats.url()),
                    ("DITTO_TEST_FAULT_LOG", &text(&fault_log)),
                    ("DITTO_LOG", "info,ditto_coordinator=debug"),
                    ("DITTO_COORDINATOR_SESSION_TTL_MS", "900"),
                    ("DITTO_COORDINATOR_SESSION_GRACE_MS", "300"),
                    ("DITTO_COORDINATOR_WORKER_TTL_MS", "900"),
                    ("DITTO_COORDINATOR_WORKER_GRACE_MS", "600"),
                    ("DITTO_COORDINATOR_SWEEP_PERIOD_MS", "100"),
                    ("DITTO_COORDINATOR_RECONCILE_WINDOW_MS", "20000"),
                    ("DITTO_COORDINATOR_WORKER_WAIT_MS", "20000"),
                    ("DITTO_COORDINATOR_ACK_WAIT_MS", "2000"),
                ])
                .into_iter()
                .chain(extra.coordinators.iter().cloned())
                .collect(),
                log: dir.path().join(format!("coordinator-{n}.log")),
            };
            coordinators.push(Process::start(spec, None));
        }
        let effects_dir = dir.path().join("effects");
        let effects = Effects::open(&effects_dir);
        let mut workers = Vec::new();
        for n in 0..shape.workers {
            let spec = Spec {
                name: format!("worker-{n}"),
                program: effects_worker(),
                arguments: Vec::new(),
                environment: environment(&[
                    ("DITTO_NATS_URL", &nats.url()),
                    ("EFFECTS_DIR", &text(&effects_dir)),
                    ("DITTO_TEST_FAULT_LOG", &text(&fault_log)),
                    ("DITTO_LOG", "info,ditto_worker=debug"),
                ])
                .into_iter()
                .chain(extra.workers.iter().cloned())
                .collect(),
                log: dir.path().join(format!("worker-{n}.log")),
            };
            workers.push(Process::start(spec, None));
        }
        let http = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        let fleet = Self { postgres, nats, coordinators, workers, effects, fault_log, urls, http, dir };
        fleet
            .until("workers are announced", Duration::from_secs(60), async || {
                let catalogue = fleet.get("/v1/catalogue").await?;
                (shape.workers == 0 || catalogue["items"].as_array()?.len() >= 3).then_some(())
            })
            .await;
        for class in ['R', 'K', 'N'] {
            fleet.register(&chain(class)).await;
        }
        fleet
    }

    /// Address of the API of a coordinator.
    pub fn url(&self, n: usize) -> &str {
        &self.urls[n]
    }

    /// Addresses of the API of all coordinators.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Name of the ledger's database.
    pub fn ledger_name(&self) -> &'static str {
        "ditto"
    }

    /// Folder with the logs.
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// Waits for a condition, looking again and again; prints the logs when it does not come true.
    pub async fn until<T>(&self, what: &str, within: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            if start.elapsed() > within {
                panic!("{what}: not within {within:?}\n{}", self.logs());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let tail = |process: &Process| {
            let log = process.log();
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        self.coordinators.iter().chain(&self.workers).map(|p| format!("--- {}\n", tail(p))).collect()
    }

    /// All log lines that name this, with the process they are from.
    pub fn logs_about(&self, name: &str) -> String {
        let lines = |process: &Process| {
            let log = process.log();
            log.lines().filter(|line| line.contains(name)).map(|line| format!("{line}\n")).collect::<String>()
        };
        self.coordinators.iter().chain(&self.workers).map(|p| format!("--- {}\n{}", p.name(), lines(p))).collect()
    }

    /// One GET at the first coordinator that answers.
    pub async fn get(&self, path: &str) -> Option<Value> {
        for url in &self.urls {
            if let Ok(answer) = self.http.get(format!("{url}{path}")).timeout(Duration::from_secs(3)).send().await
                && answer.status().is_success()
            {
                return answer.json().await.ok();
            }
        }
        None
    }

    /// One POST, repeated until some coordinator answers; the request must be idempotent.
    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let text = serde_json::to_string(body).unwrap();
        self.post_text(path, &text).await
    }

    async fn post_text(&self, path: &str, text: &str) -> (StatusCode, Value) {
        self.until(&format!("POST {path}"), Duration::from_secs(60), async || {
            for url in &self.urls {
                let request =
                    self.http.post(format!("{url}{path}")).timeout(Duration::from_secs(5)).body(text.to_owned());
                if let Ok(answer) = request.send().await
                    && !answer.status().is_server_error()
                {
                    let status = answer.status();
                    return Some((status, answer.json().await.unwrap_or_default()));
                }
            }
            None
        })
        .await
    }

    /// Registers a definition.
    pub async fn register(&self, definition: &str) {
        let (status, body) = self.post_text("/v1/definitions", definition).await;
        assert_eq!(status, StatusCode::CREATED, "{body}");
    }

    /// Submits a chain of steps of one class; the tag is the submit key.
    pub async fn submit_chain(&self, class: char, tag: &str, steps: usize) -> String {
        let body = json!({ "name": format!("chain-{class}"), "key": tag, "input": { "tag": tag, "steps": steps } });
        let (status, body) = self.post("/v1/runs", &body).await;
        assert!(status.is_success(), "{body}");
        body["runId"].as_str().unwrap().to_owned()
    }

    /// Reads a run.
    pub async fn run(&self, run: &str) -> Option<RunView> {
        serde_json::from_value(self.get(&format!("/v1/runs/{run}")).await?).ok()
    }

    /// Waits for the end of a run.
    pub async fn ended(&self, run: &str, within: Duration) -> RunView {
        self.until(&format!("run {run} ends"), within, async || self.run(run).await.filter(|r| r.status.is_ended()))
            .await
    }

    /// All receipts of a run.
    pub async fn receipts(&self, run: &str) -> Vec<ReceiptView> {
        self.all(&format!("/v1/runs/{run}/receipts?limit=500")).await
    }

    /// All receipts in a state.
    pub async fn receipts_in(&self, state: &str) -> Vec<ReceiptView> {
        self.all(&format!("/v1/receipts?state={state}&limit=500")).await
    }

    async fn all(&self, path: &str) -> Vec<ReceiptView> {
        let mut found = Vec::new();
        let mut after = String::new();
        loop {
            let page = format!("{path}{after}");
            let value = self.until(&page, Duration::from_secs(30), async || self.get(&page).await).await;
            let page: Page<ReceiptView> = serde_json::from_value(value).unwrap();
            found.extend(page.items);
            match page.next {
                Some(next) => after = format!("&after={next}"),
                None => return found,
            }
        }
    }

    /// Runs the real `ditto` against the first coordinator.
    pub fn ditto(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = std::process::Command::new(ditto_binary());
        without_test_settings(&mut command);
        command.args(arguments).env("DITTO_SERVER", self.url(0)).env("USER", "tester").current_dir(self.dir());
        command.output().unwrap()
    }

    /// Starts processes again that have ended by themselves, as a supervisor would.
    pub fn revive(&mut self) -> usize {
        self.coordinators.iter_mut().chain(&mut self.workers).map(Process::revive).filter(|ended| *ended).count()
    }
}

fn environment(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The worker whose effects can be counted, built beside the tests.
fn effects_worker() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let found = test.ancestors().map(|dir| dir.join("effects-worker")).find(|path| path.is_file());
    found.expect("effects-worker is built with the tests of this crate")
}
