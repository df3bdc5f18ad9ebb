//! A loop of very many iterations in one process: memory stays flat, and taking it up again after a kill reads as much
//! as after a few.
//!
//! `DITTO_LONG_LOOP_ITERATIONS` chooses how many; 100000 is what is promised.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use ditto_tests::process::{Process, Spec, ditto_binary, folder, text};
use sqlx::{Connection as _, Row as _, SqliteConnection, sqlite::SqliteConnectOptions};

/// The short loop that the long one is compared with.
const FEW: u64 = 1_000;
/// How many iterations there are when nobody says otherwise: what an unoptimised build does in reasonable time.
const MANY: u64 = 8_000;
/// How much of the ledger is kept in memory at most, in KiB.
const CACHE_KIB_MAX: u64 = 64 * 1024;
/// How much more memory than that may be in use near the end than after warming up, in KiB: message ids of the last two
/// minutes, and what the allocator keeps.
const GROWTH_KIB_MAX: u64 = 24 * 1024;

/// One read-only call per iteration, whose result becomes the state.
const DEFINITION: &str = "\
ditto: 1
loop: long
state: { index: 0, last: \"\" }
maxIterations: 200000
graph:
  tasks:
    read:
      node: INTERACTION.ACT.TOOL
      with: { call: { id: \"${ 'read-' + string(state.index) }\", name: read_text, arguments: { path: one.txt } } }
    observe:
      node: INTERACTION.OBSERVE
      needs: [read]
      with: { result: \"${ tasks.read }\" }
update: { index: \"${ state.index + 1 }\", last: \"${ tasks.observe.message.content }\" }
done: \"${ state.index == input.count }\"
output: { count: \"${ state.index }\", last: \"${ state.last }\" }
";

/// No call at all: what is computed only.
const COMPUTED: &str = "\
ditto: 1
loop: long
state: { index: 0, last: \"\" }
maxIterations: 200000
graph:
  tasks:
    observe:
      node: INTERACTION.OBSERVE
      with:
        result: { callId: \"${ 'call-' + string(state.index) }\", source: echo, status: success, content: [ { type: text, text: one } ] }
update: { index: \"${ state.index + 1 }\", last: \"${ tasks.observe.message.content }\" }
done: \"${ state.index == input.count }\"
output: { count: \"${ state.index }\", last: \"${ state.last }\" }
";

fn spec(dir: &Path, name: &str, count: u64) -> Spec {
    Spec {
        name: name.to_owned(),
        program: ditto_binary(),
        arguments: [
            "run",
            &text(&dir.join("long.yaml")),
            "--input",
            &format!("{{\"count\":{count}}}"),
            "--key",
            "long",
            "--quiet",
            "--data-dir",
            &text(&dir.join(name)),
        ]
        .map(str::to_owned)
        .to_vec(),
        environment: vec![("NO_COLOR".into(), "1".into()), ("DITTO_WORKER_INTERACTION_WORKSPACE".into(), text(dir))],
        log: dir.join(format!("{name}.log")),
    }
}

/// Memory in use by a process, in KiB.
fn resident_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// What a new owner has to read of the only run of a ledger.
#[derive(Debug, PartialEq)]
struct Stored {
    version: i64,
    checkpoints: i64,
    checkpoint_bytes: i64,
    open_receipts: i64,
}

/// `None` while the ledger is not there yet.
async fn stored(dir: &Path, name: &str) -> Option<Stored> {
    let options = SqliteConnectOptions::new().filename(dir.join(name).join("ledger.db")).read_only(true);
    let mut ledger = SqliteConnection::connect_with(&options).await.ok()?;
    let version: i64 = sqlx::query("SELECT version FROM loops").fetch_one(&mut ledger).await.ok()?.get(0);
    let last = sqlx::query(
        "SELECT count(*), (SELECT length(body) FROM checkpoints ORDER BY version DESC LIMIT 1) FROM checkpoints",
    )
    .fetch_one(&mut ledger)
    .await
    .ok()?;
    let open: i64 =
        sqlx::query("SELECT count(*) FROM receipts WHERE settled_ms IS NULL").fetch_one(&mut ledger).await.ok()?.get(0);
    Some(Stored { version, checkpoints: last.get(0), checkpoint_bytes: last.get(1), open_receipts: open })
}

struct Killed {
    /// What the ledger held when it was killed.
    stored: Stored,
    /// From the start of the second process to its first new version.
    resumed_after: Duration,
    /// Memory in use, after a tenth and near the end.
    resident_kib: (u64, u64),
    seconds: f64,
}

/// Runs a loop, kills it at nine tenths, starts it again and lets it end.
async fn kill_and_resume(dir: &Path, name: &str, count: u64, within: Duration) -> Killed {
    let begin = Instant::now();
    let mut process = Process::start(spec(dir, name, count), None);
    let mut after_a_tenth = None;
    let (mut at, mut most) = (0, 0);
    // One version per iteration, roughly: `versions` is only where to kill.
    while at < count * 9 / 10 {
        assert!(process.is_running(), "{name} ended early: {}", process.log());
        assert!(begin.elapsed() < within, "{name}: version {at} of {count} after {within:?}: {}", process.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Some(found) = stored(dir, name).await else { continue };
        at = u64::try_from(found.version).unwrap();
        let Some(resident) = resident_kib(process.pid()) else { continue };
        if at > count / 10 {
            after_a_tenth.get_or_insert(resident);
            most = most.max(resident);
        }
    }
    process.kill9();
    let seconds = begin.elapsed().as_secs_f64();
    let before = stored(dir, name).await.unwrap();
    let again = Instant::now();
    process.restart(None);
    let resumed_after = loop {
        assert!(again.elapsed() < within, "{name} does not go on: {}", process.log());
        match stored(dir, name).await {
            Some(found) if found.version > before.version => break again.elapsed(),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    while process.is_running() {
        assert!(again.elapsed() < within, "{name} does not end: {}", process.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let log = process.log();
    assert!(log.contains(&format!("{{\"count\":{count},\"last\":\"one\"}}")), "{name}: {log}");
    Killed { stored: before, resumed_after, resident_kib: (after_a_tenth.unwrap_or(most), most), seconds }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_loop_keeps_its_memory_and_its_checkpoint_small() {
    let count = std::env::var("DITTO_LONG_LOOP_ITERATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(MANY);
    let dir = folder();
    std::fs::write(dir.path().join("long.yaml"), DEFINITION).unwrap();
    std::fs::write(dir.path().join("one.txt"), "one").unwrap();
    let few = kill_and_resume(dir.path(), "few", FEW, Duration::from_secs(60)).await;
    let many = kill_and_resume(dir.path(), "many", count, Duration::from_secs(60 + count / 100)).await;
    for (name, killed, count) in [("few", &few, FEW), ("many", &many, count)] {
        let (early, most) = killed.resident_kib;
        println!(
            "long loop: {name}: {count} iterations, {:.0} versions/s; memory {early} KiB after a tenth, at most {most} KiB; \
             killed at {:?}; went on after {:.2?}",
            killed.stored.version as f64 / killed.seconds,
            killed.stored,
            killed.resumed_after,
        );
    }
    let (early, most) = many.resident_kib;
    // A cache grows with the file until it is full.
    let file = std::fs::metadata(dir.path().join("many").join("ledger.db")).unwrap().len() / 1024;
    let allowed = file.min(CACHE_KIB_MAX) + GROWTH_KIB_MAX;
    assert!(most < early + allowed, "memory grew from {early} to {most} KiB with a ledger of {file} KiB");
    // What is read to go on: one checkpoint and the open receipts, as after a few iterations.
    assert!(many.stored.checkpoint_bytes <= few.stored.checkpoint_bytes + 64, "{:?} {:?}", few.stored, many.stored);
    assert!(many.stored.open_receipts <= 1, "{:?}", many.stored);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_only_computes_ends_and_keeps_its_memory() {
    let dir = folder();
    std::fs::write(dir.path().join("long.yaml"), COMPUTED).unwrap();
    let mut most = BTreeMap::new();
    for (name, count) in [("few", 2_000), ("many", 100_000)] {
        let begin = Instant::now();
        let mut process = Process::start(spec(dir.path(), name, count), None);
        while process.is_running() {
            assert!(begin.elapsed() < Duration::from_secs(120), "{name} does not end: {}", process.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
            let resident = most.entry(name).or_insert(0);
            *resident = resident_kib(process.pid()).unwrap_or(0).max(*resident);
        }
        let log = process.log();
        assert!(log.contains(&format!("{{\"count\":{count},\"last\":\"one\"}}")), "{name}: {log}");
        println!("long loop: computed only: {count} iterations in {:.1?}, at most {} KiB", begin.elapsed(), most[name]);
    }
    let file = std::fs::metadata(dir.path().join("many").join("ledger.db")).unwrap().len() / 1024;
    let allowed = file.min(CACHE_KIB_MAX) + GROWTH_KIB_MAX;
    assert!(most["many"] < most["few"] + allowed, "{most:?} with a ledger of {file} KiB");
}
