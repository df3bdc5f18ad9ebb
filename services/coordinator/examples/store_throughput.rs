//! Measures the hot verbs of a ledger: batches in which each run has one settlement, one checkpoint and one new receipt.
//!
//! `cargo run --release -p ditto-coordinator --example store_throughput -- sqlite:/tmp/x.db|postgres://… [batch] [seconds] [lanes]`

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, ClaimToken, Json, LoopName, Namespace, NodeType, OnUnknown, Revision, RunId,
    RunStatus, SessionId, Verdict,
    wire::ledger::{ClaimAnswer, ClaimItem},
};
use ditto_coordinator::store::{
    Advance, Advanced, NewReceipt, NewRun, NewSession, SessionRole, Settle, Step, Store, postgres::PostgresStore,
    sqlite::SqliteStore,
};
use ditto_sql::SqlOptions;

/// One run of the measurement and its open call.
struct Run {
    run: RunId,
    version: i64,
    open: NewReceipt,
}

fn receipt(run: &RunId, n: i64, policy: &CallPolicy) -> anyhow::Result<NewReceipt> {
    let call_id = CallId::new(format!("step:{n}"))?;
    let call = CallUid::derive(run, CallKind::Tool, &call_id);
    let request = Json::parse(format!(r#"{{"tool":"write","n":{n},"text":"{}"}}"#, "x".repeat(300)))?;
    Ok(NewReceipt {
        kind: CallKind::Tool,
        node: NodeType::new(NodeType::ACT_TOOL)?,
        source: Some("write".into()),
        pool: None,
        label: format!("{n}/write"),
        policy: policy.clone(),
        on_unknown: OnUnknown::Park,
        idem_key: format!("ditto:{call}"),
        request_hash: request.sha256(),
        request,
        delay_ms: 0,
        budget_ms: Some(60_000),
        traceparent: None,
        call,
        call_id,
    })
}

fn step(open: &NewReceipt, n: i64) -> anyhow::Result<Step> {
    let body = format!(r#"{{"open":["{}"],"kept":[],"body":{{"n":{n},"state":"{}"}}}}"#, open.call, "y".repeat(400));
    Ok(Step {
        checkpoint: Json::parse(body)?,
        boundary: false,
        receipts: vec![open.clone()],
        cancels: Vec::new(),
        status: RunStatus::Running,
        wake_ms: None,
        signal_seen: None,
        bell_seen: 0,
        ending: None,
        progress: None,
    })
}

async fn session(store: &dyn Store, role: SessionRole) -> anyhow::Result<SessionId> {
    let session = SessionId::generate();
    let (kind, name, build) = ("interaction".into(), "bench".into(), "bench".into());
    let new = NewSession { session: session.clone(), role, kind, name, build, instance: None, ttl_ms: 3_600_000 };
    store.session_open(&new).await?;
    Ok(session)
}

/// Time spent in verbs, and steps done.
#[derive(Default)]
struct Spent {
    claim: Duration,
    advance: Duration,
    best: Option<Duration>,
    steps: u32,
}

/// Drives `batch` runs step by step until `end`.
async fn lane(store: Arc<dyn Store>, policy: CallPolicy, batch: usize, end: Instant) -> anyhow::Result<Spent> {
    let (owner, worker) =
        (session(&*store, SessionRole::Coordinator).await?, session(&*store, SessionRole::Worker).await?);
    let now = store.now_ms().await?;
    let mut runs = Vec::with_capacity(batch);
    let mut created = Vec::with_capacity(batch);
    for _ in 0..batch {
        let run = RunId::generate(now);
        let open = receipt(&run, 0, &policy)?;
        created.push(NewRun {
            run: run.clone(),
            namespace: Namespace::default_namespace(),
            key: None,
            body_hash: [1; 32],
            name: LoopName::new("bench")?,
            revision: Revision::new("1")?,
            input: Json::parse(r#"{"bench":true}"#)?,
            deadline_ms: None,
            traceparent: None,
            first: Some(step(&open, 0)?),
        });
        runs.push(Run { run, version: 1, open });
    }
    store.submit(&owner, &created).await?;
    let mut spent = Spent::default();
    while Instant::now() < end {
        let mut held: Vec<Option<(ClaimToken, u32)>> = vec![None; batch];
        if policy.is_claimed() {
            let items: Vec<ClaimItem> = runs
                .iter()
                .map(|r| ClaimItem { bucket: r.run.bucket(), call: r.open.call.clone(), token: ClaimToken::generate() })
                .collect();
            let start = Instant::now();
            let answers = store.claim(&worker, &items).await?;
            spent.claim += start.elapsed();
            for ((slot, item), answer) in held.iter_mut().zip(items).zip(answers) {
                let ClaimAnswer::Granted { fence, .. } = answer else { anyhow::bail!("not granted: {answer:?}") };
                *slot = Some((item.token, fence));
            }
        }
        let mut items = Vec::with_capacity(batch);
        for (run, held) in runs.iter_mut().zip(held) {
            let settle = Settle {
                call: run.open.call.clone(),
                fence: held.as_ref().map_or(0, |held| held.1),
                token: held.map(|held| held.0),
                session: worker.clone(),
                request_hash: run.open.request_hash,
                verdict: Verdict::Succeeded,
                output: Some(Json::parse(format!(r#"{{"result":"{}"}}"#, "z".repeat(200)))?),
                output_ref: None,
                error: None,
            };
            let version = run.version;
            run.open = receipt(&run.run, version, &policy)?;
            run.version += 1;
            let step = step(&run.open, version)?;
            items.push(Advance { run: run.run.clone(), epoch: 1, version, settles: vec![settle], step });
        }
        let start = Instant::now();
        let answers = store.advance(&owner, &items).await?;
        let took = start.elapsed();
        spent.advance += took;
        spent.best = Some(spent.best.map_or(took, |best| best.min(took)));
        if let Some(other) = answers.iter().find(|answer| **answer != Advanced::Done) {
            anyhow::bail!("did not advance: {other:?}");
        }
        spent.steps += u32::try_from(batch)?;
    }
    Ok(spent)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "sqlite:/tmp/store_throughput.db".into());
    let batch: usize = args.next().map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = args.next().map_or(Ok(5), |text| text.parse())?;
    let lanes: usize = args.next().map_or(Ok(1), |text| text.parse())?;
    let store: Arc<dyn Store> = match url.strip_prefix("sqlite:") {
        Some(path) => Arc::new(SqliteStore::open(Path::new(path)).await?),
        None => Arc::new(PostgresStore::open(&url, &SqlOptions::default()).await?),
    };
    for (name, policy) in [("claimed (N)", CallPolicy::default()), ("unclaimed (R)", CallPolicy::read_only())] {
        let (start, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
        for _ in 0..lanes {
            tasks.spawn(lane(store.clone(), policy.clone(), batch, start + Duration::from_secs(seconds)));
        }
        let mut all = Spent::default();
        while let Some(spent) = tasks.join_next().await {
            let spent = spent??;
            all.claim += spent.claim;
            all.advance += spent.advance;
            all.steps += spent.steps;
            all.best = [all.best, spent.best].into_iter().flatten().min();
        }
        let steps = f64::from(all.steps.max(1));
        println!(
            "{name}: batch {batch}, {lanes} lanes: {:.0} steps/s; per step: claim {:.1} µs, advance {:.1} µs (best batch {:.2} ms)",
            steps / start.elapsed().as_secs_f64(),
            all.claim.as_secs_f64() * 1e6 / steps,
            all.advance.as_secs_f64() * 1e6 / steps,
            all.best.unwrap_or_default().as_secs_f64() * 1e3,
        );
    }
    Ok(())
}
