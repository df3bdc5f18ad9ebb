//! A fleet under load while everything that can be killed, paused or wiped is: afterwards nothing was done twice,
//! nothing is called a success that is not, every run has ended, and a person can decide what is left unknown.
//!
//! `DITTO_SOAK_SECONDS` (60) is how long it goes on, `DITTO_SOAK_SEED` what it repeats.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::{Duration, Instant},
};

use ditto_contracts::{ErrorClass, ReceiptState, RunStatus};
use ditto_coordinator::api::views::ReceiptView;
use ditto_tests::fleet::{Fleet, Shape};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Fewest runs.
const RUNS_MIN: u64 = 520;
/// Runs begun per second.
const RUNS_PER_SECOND: u64 = 9;
/// Clients that submit at once.
const CLIENTS: u64 = 8;
/// Steps of a chain.
const STEPS: u64 = 4;
/// Calls of a fan-out per class.
const WIDTH: usize = 8;
/// How long runs may take to end once nothing is hit any more.
const SETTLE_WITHIN: Duration = Duration::from_secs(150);
/// Longest life of a lease in this fleet, worker and coordinator, with its grace.
const LEASE: Duration = Duration::from_millis(1_500);

fn soak_chain(class: char) -> String {
    format!(
        "ditto: 1\nloop: soak-{class}\nstate: {{ index: 0 }}\nmaxIterations: 100\ngraph:\n  tasks:\n    step:\n      \
         node: TEST.EFFECT.{class}\n      onUnknown: surface\n      \
         with: {{ id: \"${{ input.tag + '-' + string(state.index) }}\", takesMs: \"${{ input.takesMs }}\" }}\n\
         update: {{ index: \"${{ state.index + 1 }}\" }}\ndone: \"${{ state.index == input.steps }}\"\n\
         output: {{ steps: \"${{ state.index }}\" }}\n"
    )
}

fn soak_fan() -> String {
    let mut text = "ditto: 1\nloop: soak-fan\nstate: { index: 0 }\nmaxIterations: 2\ngraph:\n  tasks:\n".to_owned();
    for n in 0..WIDTH {
        for class in ['N', 'K'] {
            writeln!(
                text,
                "    {}{n}: {{ node: TEST.EFFECT.{class}, onUnknown: surface, with: {{ id: \"${{ input.tag + '-{}{n}' }}\", \
                 takesMs: \"${{ input.takesMs }}\" }} }}",
                class.to_ascii_lowercase(),
                class.to_ascii_lowercase(),
            )
            .unwrap();
        }
    }
    text.push_str(
        "update: { index: \"${ state.index + 1 }\" }\ndone: \"${ state.index == 1 }\"\noutput: { steps: \"${ state.index }\" }\n",
    );
    text
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hit {
    KillWorker,
    KillCoordinator,
    PauseWorker,
    PauseCoordinator,
    NatsKill,
    NatsWipe,
    PostgresKill,
    PostgresRestart,
}

const ALL_HITS: [Hit; 8] = [
    Hit::KillWorker,
    Hit::KillCoordinator,
    Hit::PauseWorker,
    Hit::PauseCoordinator,
    Hit::NatsKill,
    Hit::NatsWipe,
    Hit::PostgresKill,
    Hit::PostgresRestart,
];

/// Later hits: processes far more often than servers.
const LATER_HITS: [(Hit, u32); 8] = [
    (Hit::KillWorker, 8),
    (Hit::KillCoordinator, 6),
    (Hit::PauseWorker, 4),
    (Hit::PauseCoordinator, 3),
    (Hit::NatsKill, 2),
    (Hit::NatsWipe, 2),
    (Hit::PostgresKill, 1),
    (Hit::PostgresRestart, 1),
];

fn pick(rng: &mut StdRng) -> Hit {
    let total: u32 = LATER_HITS.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.random_range(0..total);
    for (hit, weight) in LATER_HITS {
        if at < weight {
            return hit;
        }
        at -= weight;
    }
    Hit::KillWorker
}

/// Submits until a coordinator confirms; the key makes every repetition the same run.
async fn submit(http: &reqwest::Client, urls: &[String], first: usize, body: &Value) -> String {
    let deadline = Instant::now() + SETTLE_WITHIN;
    for n in first.. {
        let url = format!("{}/v1/runs", urls[n % urls.len()]);
        if let Ok(answer) = http.post(&url).body(body.to_string()).send().await
            && answer.status().is_success()
            && let Ok(answer) = answer.json::<Value>().await
        {
            return answer["runId"].as_str().unwrap().to_owned();
        }
        assert!(Instant::now() < deadline, "nobody takes {body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!()
}

/// Submits `total` runs over `seconds`; answers run id → tag.
fn clients(fleet: &Fleet, seed: u64, total: u64, seconds: u64) -> JoinSet<Vec<(String, String)>> {
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let urls = fleet.urls().to_vec();
        let mut rng = StdRng::seed_from_u64(seed ^ (client + 1));
        tasks.spawn(async move {
            let http = reqwest::Client::builder().timeout(Duration::from_secs(4)).build().unwrap();
            let begin = Instant::now();
            let mut runs = Vec::new();
            for n in (client..total).step_by(CLIENTS as usize) {
                let due = begin + Duration::from_secs_f64(n as f64 / total as f64 * seconds as f64);
                tokio::time::sleep_until(due.into()).await;
                let name = ["soak-N", "soak-K", "soak-N", "soak-K", "soak-fan"][(n % 5) as usize];
                let tag = format!("{name}-{n}");
                let takes_ms = rng.random_range(0..120_u64);
                let input = json!({ "tag": tag, "steps": STEPS, "takesMs": takes_ms });
                let body = json!({ "name": name, "key": tag, "input": input });
                runs.push((submit(&http, &urls, rng.random_range(0..urls.len()), &body).await, tag));
            }
            runs
        });
    }
    tasks
}

/// Waits while a supervisor starts again what has ended.
async fn supervise(fleet: &mut Fleet, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        fleet.revive();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn hit(fleet: &mut Fleet, rng: &mut StdRng, hit: Hit) {
    let worker = rng.random_range(0..fleet.workers.len());
    let coordinator = rng.random_range(0..fleet.coordinators.len());
    let beyond = LEASE + Duration::from_millis(rng.random_range(200..900));
    match hit {
        Hit::KillWorker => fleet.workers[worker].kill9(),
        Hit::KillCoordinator => fleet.coordinators[coordinator].kill9(),
        Hit::PauseWorker => {
            fleet.workers[worker].signal("STOP");
            supervise(fleet, beyond).await;
            fleet.workers[worker].signal("CONT");
        }
        Hit::PauseCoordinator => {
            fleet.coordinators[coordinator].signal("STOP");
            supervise(fleet, beyond).await;
            fleet.coordinators[coordinator].signal("CONT");
        }
        Hit::NatsKill => {
            fleet.nats.kill9().unwrap();
            supervise(fleet, Duration::from_millis(rng.random_range(50..700))).await;
            fleet.nats.restart().await.unwrap();
        }
        Hit::NatsWipe => fleet.nats.wipe_and_restart().await.unwrap(),
        Hit::PostgresKill => {
            fleet.postgres.kill9().unwrap();
            fleet.postgres.restart().await.unwrap();
        }
        Hit::PostgresRestart => {
            fleet.postgres.stop().unwrap();
            fleet.postgres.restart().await.unwrap();
        }
    }
}

/// What the receipts say and what really happened, compared.
struct Findings {
    problems: Vec<String>,
    unknown: BTreeSet<String>,
    /// Unknown calls and whether they did happen.
    happened: BTreeMap<String, bool>,
    receipts: usize,
    states: BTreeMap<String, usize>,
}

fn compare(fleet: &Fleet, receipts: &[ReceiptView]) -> Findings {
    let effects: BTreeMap<&str, BTreeMap<String, usize>> =
        ["N", "K"].into_iter().map(|class| (class, fleet.effects.count(class))).collect();
    let mut found = Findings {
        problems: Vec::new(),
        unknown: BTreeSet::new(),
        happened: BTreeMap::new(),
        receipts: receipts.len(),
        states: BTreeMap::new(),
    };
    let mut decided: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for receipt in receipts {
        let id = receipt.request.as_ref().and_then(|r| r.field("id")).and_then(|id| id.to_text()).unwrap();
        let class = receipt.class.as_str();
        let happened = effects[class].get(&id).copied().unwrap_or(0);
        let state = receipt.state;
        *found.states.entry(format!("{class} {state}")).or_default() += 1;
        let mut problem = |what: &str| {
            found.problems.push(format!("{what}: {id} ({}) is {state}, happened {happened}", receipt.call))
        };
        match state {
            _ if happened > 1 => problem("done twice"),
            ReceiptState::Succeeded if happened == 0 => problem("success without effect"),
            ReceiptState::Failed | ReceiptState::Cancelled if happened > 0 => problem("failure with effect"),
            ReceiptState::Planned | ReceiptState::Claimed => problem("left open"),
            _ => {}
        }
        if state == ReceiptState::Unknown {
            if receipt.settled_ms.is_none() {
                problem("unknown is left open");
            }
            found.unknown.insert(receipt.call.to_string());
            found.happened.insert(receipt.call.to_string(), happened > 0);
        }
        if !decided.entry(class).or_default().insert(id.clone()) {
            found.problems.push(format!("decided twice: {id}"));
        }
    }
    for (class, counts) in &effects {
        for (id, happened) in counts {
            if *happened > 1 {
                found.problems.push(format!("{class} effect {id} happened {happened} times"));
            }
            if !decided.get(class).is_some_and(|ids| ids.contains(id)) {
                found.problems.push(format!("{class} effect {id} has no receipt"));
            }
        }
    }
    found
}

/// `ditto receipts ls --unknown --json`, all pages.
fn listed_unknown(fleet: &Fleet) -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    let mut after: Option<String> = None;
    loop {
        let mut arguments = vec!["receipts", "ls", "--unknown", "--json", "--limit", "200"];
        arguments.extend(after.iter().flat_map(|call| ["--after", call.as_str()]));
        let output = fleet.ditto(&arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        for item in page["items"].as_array().unwrap() {
            assert_eq!(item["state"], "unknown");
            calls.insert(item["call"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => return calls,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn soak_nothing_happens_twice_and_nothing_is_made_up() {
    let seconds = std::env::var("DITTO_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60_u64);
    let seed = std::env::var("DITTO_SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let total = RUNS_MIN.max(RUNS_PER_SECOND * seconds);
    println!("soak: DITTO_SOAK_SEED={seed} DITTO_SOAK_SECONDS={seconds}, {total} runs");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut fleet = Fleet::start(Shape { coordinators: 2, workers: 3 }).await;
    for definition in [soak_chain('N'), soak_chain('K'), soak_fan()] {
        fleet.register(&definition).await;
    }

    let begin = Instant::now();
    let mut submitting = clients(&fleet, seed, total, seconds);
    let mut first: Vec<Hit> = ALL_HITS.to_vec();
    first.shuffle(&mut rng);
    let mut hits: BTreeMap<Hit, usize> = BTreeMap::new();
    while begin.elapsed() < Duration::from_secs(seconds) {
        supervise(&mut fleet, Duration::from_millis(rng.random_range(150..900))).await;
        let next = first.pop().unwrap_or_else(|| pick(&mut rng));
        hit(&mut fleet, &mut rng, next).await;
        *hits.entry(next).or_default() += 1;
    }

    let mut runs: BTreeMap<String, String> = BTreeMap::new();
    let deadline = Instant::now() + SETTLE_WITHIN;
    while !submitting.is_empty() {
        fleet.revive();
        if let Ok(Some(done)) = tokio::time::timeout(Duration::from_millis(50), submitting.join_next()).await {
            runs.extend(done.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{}", fleet.logs())));
        }
        assert!(Instant::now() < deadline, "seed {seed}: submitting does not end\n{}", fleet.logs());
    }
    assert_eq!(runs.len() as u64, total, "one run per key");
    let mut open: BTreeSet<String> = runs.keys().cloned().collect();
    let mut statuses: BTreeMap<String, RunStatus> = BTreeMap::new();
    while !open.is_empty() {
        fleet.revive();
        for run in open.clone() {
            if let Some(view) = fleet.run(&run).await.filter(|view| view.status.is_ended()) {
                open.remove(&run);
                statuses.insert(run, view.status);
            }
        }
        assert!(Instant::now() < deadline, "seed {seed}: {} runs do not end: {open:?}\n{}", open.len(), fleet.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let settled_after = begin.elapsed() - Duration::from_secs(seconds);

    let mut receipts = Vec::new();
    for run in runs.keys() {
        receipts.extend(fleet.receipts(run).await);
    }
    let found = compare(&fleet, &receipts);
    let ended = statuses.values().fold(BTreeMap::<String, usize>::new(), |mut counts, status| {
        *counts.entry(status.to_string()).or_default() += 1;
        counts
    });
    println!(
        "soak: seed {seed}: {} runs {ended:?}; {} receipts {:?}; hits {hits:?}; {} unknown ({} happened); {} problems; ended {settled_after:.1?} after the last hit",
        runs.len(),
        found.receipts,
        found.states,
        found.unknown.len(),
        found.happened.values().filter(|happened| **happened).count(),
        found.problems.len(),
    );
    assert!(found.problems.is_empty(), "seed {seed}: {:#?}\n{}", found.problems, fleet.logs());
    for (run, tag) in &runs {
        let expected = if tag.starts_with("soak-fan") { 2 * WIDTH } else { STEPS as usize };
        let of_run: Vec<_> = receipts.iter().filter(|r| r.run_id.as_str() == run).collect();
        if statuses[run] == RunStatus::Completed {
            assert_eq!(of_run.len(), expected, "seed {seed}: {tag} completed without all of its calls");
        } else {
            // It was unknown when the run took it in; evidence may have come since.
            let lost = of_run.iter().any(|r| r.state == ReceiptState::Unknown || r.settle_rev > 1);
            let error = fleet.run(run).await.and_then(|view| view.error);
            let unknown = error.as_ref().is_some_and(|error| error.class == ErrorClass::Unknown);
            assert!(
                lost && unknown,
                "seed {seed}: {tag} is {} although nothing was unknown: {error:?}\n{of_run:#?}\n{}",
                statuses[run],
                fleet.logs_about(run)
            );
        }
    }

    // What nobody can know is shown to a person, who decides.
    assert_eq!(listed_unknown(&fleet), found.unknown, "seed {seed}");
    for (call, happened) in &found.happened {
        let verdict = if *happened { "--succeeded" } else { "--failed" };
        let output =
            fleet.ditto(&["receipts", "resolve", call, verdict, "--reason", "looked at the backend", "--who", "soak"]);
        assert!(output.status.success(), "seed {seed}: {call}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert_eq!(listed_unknown(&fleet), BTreeSet::new(), "seed {seed}");
}
