//! The same program in one process, killed at random moments and started again until it is done: everything is
//! delivered once, nothing without a key twice, and the exit codes say what happened.
//!
//! `DITTO_SOAK_SEED` repeats the moments.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use ditto_tests::process::{Process, Spec, ditto_binary, folder, text, without_test_settings};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

const KILLS: usize = 20;
const WITHIN: Duration = Duration::from_secs(120);

fn seed() -> u64 {
    let seed = std::env::var("DITTO_SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    println!("embedded kill: DITTO_SOAK_SEED={seed}");
    seed
}

/// Delivers `count` numbers, one per iteration.
fn definition(on_unknown: &str) -> String {
    format!(
        "ditto: 1\nloop: deliver\nstate: {{ index: 0 }}\nmaxIterations: 100000\ngraph:\n  tasks:\n    output:\n      \
         node: INTERACTION.OUTPUT\n      onUnknown: {on_unknown}\n      with:\n        \
         deliveryId: \"${{ 'number-' + string(state.index) }}\"\n        \
         message: {{ role: assistant, content: \"${{ 'number ' + string(state.index) }}\" }}\n\
         update: {{ index: \"${{ state.index + 1 }}\" }}\ndone: \"${{ state.index == input.count }}\"\n\
         output: {{ delivered: \"${{ state.index }}\" }}\n"
    )
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(on_unknown: &str, sink: &str) -> Self {
        let dir = folder();
        std::fs::write(dir.path().join("deliver.yaml"), definition(on_unknown)).unwrap();
        std::fs::write(dir.path().join("ditto.yaml"), format!("workers:\n  interaction:\n    output: {sink}\n"))
            .unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn spec(&self, arguments: &[&str]) -> Spec {
        let in_folder = "cd \"$0\" && exec \"$@\"";
        let mut all = vec!["-c".to_owned(), in_folder.to_owned(), text(self.dir.path()), text(&ditto_binary())];
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        Spec {
            name: "ditto".into(),
            program: "sh".into(),
            arguments: all,
            environment: vec![("NO_COLOR".into(), "1".into())],
            log: self.path("log"),
        }
    }

    fn ditto(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(ditto_binary());
        without_test_settings(&mut command);
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null()).output().unwrap()
    }
}

/// Delivered messages by delivery id.
fn files(dir: &Path) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return counts };
    for entry in entries.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "json") {
            let body: Value = serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
            *counts.entry(body["deliveryId"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Delivered messages of the console sink by delivery id.
fn lines(log: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in log.lines() {
        if let Ok(body) = serde_json::from_str::<Value>(line)
            && let Some(id) = body["deliveryId"].as_str()
        {
            *counts.entry(id.to_owned()).or_default() += 1;
        }
    }
    counts
}

fn each_once(count: usize) -> BTreeMap<String, usize> {
    (0..count).map(|n| (format!("number-{n}"), 1)).collect()
}

/// Lets a process live until `more` of what `progress` counts have happened, and a random moment longer.
async fn live_a_while(process: &mut Process, rng: &mut StdRng, mut progress: impl FnMut() -> usize, more: usize) {
    let (begin, start) = (Instant::now(), progress());
    // Some die while they start, most at work.
    if rng.random_range(0..4) > 0 {
        while progress() < start + more && process.is_running() {
            assert!(begin.elapsed() < WITHIN, "no progress: {}", process.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    tokio::time::sleep(Duration::from_micros(rng.random_range(0..40_000))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_a_file_sink_is_killed_twenty_times_and_delivers_each_once() {
    let mut rng = StdRng::seed_from_u64(seed());
    let place = Place::new("park", "{ sink: file, dir: out }");
    let out = place.path("out");
    let count = 150;
    let input = json!({ "count": count }).to_string();
    let arguments = ["run", "deliver.yaml", "--input", &input, "--key", "once", "--json"];
    let mut process = Process::start(place.spec(&arguments), None);
    for kill in 1..=KILLS {
        live_a_while(&mut process, &mut rng, || files(&out).len(), 3).await;
        assert!(process.is_running(), "ended before kill {kill}: {}", process.log());
        process.restart(None);
    }
    let status = ended(&mut process).await;
    assert_eq!(status, Some(0), "{}", process.log());
    assert_eq!(files(&out), each_once(count));
    // Once more: the same key is the same run, which is over.
    let again = place.ditto(&["run", "deliver.yaml", "--input", &input, "--key", "once"]);
    assert_eq!(again.status.code(), Some(0), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(String::from_utf8_lossy(&again.stdout).trim(), format!("{{\"delivered\":{count}}}"));
    assert_eq!(files(&out), each_once(count));
}

async fn ended(process: &mut Process) -> Option<i32> {
    let begin = Instant::now();
    loop {
        if let Some(status) = process.ended() {
            return status.code();
        }
        assert!(begin.elapsed() < WITHIN, "does not end: {}", process.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_the_console_sink_is_killed_twenty_times_and_delivers_none_twice() {
    let mut rng = StdRng::seed_from_u64(seed());
    let place = Place::new("surface", "{ sink: console }");
    let count = 150;
    let input = json!({ "count": count }).to_string();
    let arguments = ["run", "deliver.yaml", "--input", &input, "--key", "once", "--json"];
    let mut process = Process::start(place.spec(&arguments), None);
    let log = place.path("log");
    let printed = || lines(&std::fs::read_to_string(&log).unwrap_or_default());
    let mut kills = 0;
    for _ in 0..KILLS {
        live_a_while(&mut process, &mut rng, || printed().len(), 3).await;
        if process.ended().is_some() {
            break; // it may not go on after an outcome that nobody knows
        }
        process.restart(None);
        kills += 1;
    }
    let code = ended(&mut process).await;
    let delivered = printed();
    assert!(delivered.values().all(|times| *times == 1), "{delivered:?}");
    let unknown = unknown_of(&place).await;
    println!(
        "embedded kill: console sink: {kills} kills, {} delivered, {unknown} unknown, exit code {code:?}",
        delivered.len()
    );
    match code {
        Some(0) => assert!(delivered.len() + unknown >= count, "{} + {unknown}", delivered.len()),
        Some(5) => assert!(unknown > 0),
        other => panic!("exit code {other:?}\n{}", process.log()),
    }
}

/// How many outcomes `ditto receipts ls --unknown` shows once the folder is served.
async fn unknown_of(place: &Place) -> usize {
    let mut dev = Dev::start(place).await;
    let listed = place.ditto(&["receipts", "ls", "--unknown", "--json", "--limit", "500", "--server", &dev.url]);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    dev.process.kill9();
    let page: Value = serde_json::from_slice(&listed.stdout).unwrap();
    page["items"].as_array().unwrap().len()
}

/// `ditto dev` on a port of its own.
struct Dev {
    process: Process,
    url: String,
    http: reqwest::Client,
}

impl Dev {
    async fn start(place: &Place) -> Self {
        let listen = format!("127.0.0.1:{}", ditto_tests::servers::free_port().unwrap());
        let process = Process::start(place.spec(&["dev", "deliver.yaml", "--listen", &listen]), None);
        ditto_runtime::install_tls_provider();
        let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
        let mut dev = Self { process, url: format!("http://{listen}"), http };
        dev.serves().await;
        dev
    }

    /// Waits until it answers.
    async fn serves(&mut self) {
        let begin = Instant::now();
        while self.get("/readyz").await.is_none() {
            assert!(self.process.is_running(), "ended: {}", self.process.log());
            assert!(begin.elapsed() < WITHIN, "does not serve: {}", self.process.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn get(&self, path: &str) -> Option<String> {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await.ok()?;
        if answer.status().is_success() { answer.text().await.ok() } else { None }
    }

    /// Submits, again and again until it is answered.
    async fn submit(&mut self, key: &str, count: usize) -> String {
        let body = json!({ "name": "deliver", "key": key, "input": { "count": count } }).to_string();
        let begin = Instant::now();
        loop {
            let sent = self.http.post(format!("{}/v1/runs", self.url)).body(body.clone()).send().await;
            if let Ok(answer) = sent
                && answer.status().is_success()
            {
                let answer: Value = answer.json().await.unwrap();
                return answer["runId"].as_str().unwrap().to_owned();
            }
            assert!(begin.elapsed() < WITHIN, "nobody takes {body}: {}", self.process.log());
            self.process.revive();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_served_folder_is_killed_twenty_times_and_delivers_each_once() {
    let mut rng = StdRng::seed_from_u64(seed());
    let place = Place::new("park", "{ sink: file, dir: out }");
    let out = place.path("out");
    let mut dev = Dev::start(&place).await;
    let (count, mut runs) = (40, Vec::new());
    for n in 0..KILLS {
        runs.push(dev.submit(&format!("run-{n}"), count).await);
        live_a_while(&mut dev.process, &mut rng, || files(&out).values().sum(), 5).await;
        dev.process.restart(None);
    }
    dev.serves().await;
    for run in &runs {
        let begin = Instant::now();
        loop {
            let view: Value =
                serde_json::from_str(&dev.get(&format!("/v1/runs/{run}?waitMs=3000")).await.unwrap_or("{}".into()))
                    .unwrap();
            match view["status"].as_str() {
                Some("completed") => break,
                Some("queued" | "running" | "parked") | None => {}
                _ => panic!("{view}\n{}", dev.process.log()),
            }
            assert!(begin.elapsed() < WITHIN, "{view} does not end\n{}", dev.process.log());
        }
    }
    let delivered = files(&out);
    // Every run delivers the same ids; a key of its own keeps them apart.
    assert_eq!(delivered.len(), count);
    assert!(delivered.values().all(|times| *times == KILLS), "{delivered:?}");
    assert_eq!(dev.process.terminate().code(), Some(0), "{}", dev.process.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_goes_on_at_once_in_a_folder_that_was_moved() {
    let place = Place::new("park", "{ sink: file, dir: out }");
    let (out, input) = (place.path("out"), json!({ "count": 30 }).to_string());
    let run = |data: &'static str| {
        ["run", "deliver.yaml", "--input", &input, "--key", "once", "--data-dir", data].map(str::to_owned)
    };
    let first = run("here");
    let mut process = Process::start(place.spec(&first.each_ref().map(String::as_str)), None);
    let begin = Instant::now();
    while files(&out).len() < 5 {
        assert!(begin.elapsed() < WITHIN, "no progress: {}", process.log());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    process.kill9();
    std::fs::rename(place.path("here"), place.path("there")).unwrap();
    let second = run("there");
    let mut process = Process::start(place.spec(&second.each_ref().map(String::as_str)), None);
    assert_eq!(ended(&mut process).await, Some(0), "{}", process.log());
    assert_eq!(files(&out), each_once(30));
}
