//! Measures the hot verbs of the Postgres ledger: batches of one settlement, one checkpoint and one new receipt per run.
//!
//! `cargo run --release -p ditto-coordinator --example postgres_throughput -- postgres://… [connections] [batch] [seconds]`

use std::time::{Duration, Instant};

use ditto_contracts::{
    CallId, CallKind, CallPolicy, CallUid, ClaimToken, Json, LoopName, Namespace, NodeType, OnUnknown, Revision, RunId,
    RunStatus, SessionId, Verdict,
    wire::ledger::{ClaimAnswer, ClaimItem},
};
use ditto_coordinator::store::{
    Advance, Advanced, NewReceipt, NewRun, NewSession, SessionRole, Settle, Step, Store, postgres::PostgresStore,
};
use ditto_sql::SqlOptions;
use sha2::{Digest as _, Sha256};

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
        request_hash: Sha256::digest(request.as_bytes()).into(),
        request,
        delay_ms: 0,
        budget_ms: Some(60_000),
        traceparent: None,
        call,
        call_id,
    })
}

fn step(call: &NewReceipt, n: i64) -> anyhow::Result<Step> {
    let body = format!(r#"{{"open":["{}"],"kept":[],"body":{{"n":{n},"state":"{}"}}}}"#, call.call, "y".repeat(400));
    Ok(Step {
        checkpoint: Json::parse(body)?,
        boundary: false,
        receipts: vec![call.clone()],
        cancels: Vec::new(),
        status: RunStatus::Running,
        wake_ms: None,
        signal_seen: None,
        bell_seen: 0,
        ending: None,
        progress: None,
    })
}

fn settle(call: &NewReceipt, held: Option<&(ClaimToken, u32)>, session: &SessionId) -> anyhow::Result<Settle> {
    Ok(Settle {
        call: call.call.clone(),
        fence: held.map_or(0, |held| held.1),
        token: held.map(|held| held.0.clone()),
        session: session.clone(),
        request_hash: call.request_hash,
        verdict: Verdict::Succeeded,
        output: Some(Json::parse(format!(r#"{{"ok":true,"text":"{}"}}"#, "z".repeat(300)))?),
        output_ref: None,
        error: None,
    })
}

async fn drive(
    store: PostgresStore,
    session: SessionId,
    batch: usize,
    claims: bool,
    end: Instant,
) -> anyhow::Result<(u64, Duration, Duration)> {
    let policy = if claims { CallPolicy::default() } else { CallPolicy::read_only() };
    let now = store.now_ms().await?;
    let mut runs = Vec::new();
    for _ in 0..batch {
        let run = RunId::generate(now);
        let call = receipt(&run, 0, &policy)?;
        runs.push((run, call));
    }
    let mut new = Vec::new();
    for (run, call) in &runs {
        new.push(NewRun {
            run: run.clone(),
            namespace: Namespace::default_namespace(),
            key: None,
            body_hash: [0; 32],
            name: LoopName::new("bench")?,
            revision: Revision::new("r1")?,
            input: Json::empty_object(),
            deadline_ms: None,
            traceparent: None,
            first: Some(step(call, 0)?),
        });
    }
    store.submit(&session, &new).await?;
    let (mut done, mut version) = (0, 1);
    let (mut advancing, mut claiming) = (Duration::ZERO, Duration::ZERO);
    while Instant::now() < end {
        let mut held = Vec::new();
        if claims {
            let items: Vec<ClaimItem> = runs
                .iter()
                .map(|(_, call)| ClaimItem {
                    bucket: call.call.bucket(),
                    call: call.call.clone(),
                    token: ClaimToken::generate(),
                })
                .collect();
            let start = Instant::now();
            let answers = store.claim(&session, &items).await?;
            claiming += start.elapsed();
            for (item, answer) in items.into_iter().zip(answers) {
                let ClaimAnswer::Granted { fence, .. } = answer else { anyhow::bail!("not granted: {answer:?}") };
                held.push((item.token, fence));
            }
        }
        let mut items = Vec::with_capacity(batch);
        for (at, (run, call)) in runs.iter_mut().enumerate() {
            let settled = settle(call, held.get(at), &session)?;
            *call = receipt(run, version, &policy)?;
            items.push(Advance { run: run.clone(), epoch: 1, version, settles: vec![settled], step: step(call, version)? });
        }
        let start = Instant::now();
        let answers = store.advance(&session, &items).await?;
        advancing += start.elapsed();
        anyhow::ensure!(answers.iter().all(|answer| *answer == Advanced::Done), "{answers:?}");
        version += 1;
        done += batch as u64;
    }
    Ok((done, advancing, claiming))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or_else(|| anyhow::anyhow!("give the address of a database to write to"))?;
    let connections: u32 = args.next().map_or(Ok(4), |n| n.parse())?;
    let batch: usize = args.next().map_or(Ok(64), |n| n.parse())?;
    let seconds: u64 = args.next().map_or(Ok(10), |n| n.parse())?;
    let options = SqlOptions { max_connections: connections, ..SqlOptions::default() };
    let store = PostgresStore::open(&url, &options).await?;
    for claims in [false, true] {
        let session = SessionId::generate();
        let new = NewSession {
            session: session.clone(),
            role: SessionRole::Coordinator,
            kind: "coordinator".into(),
            name: "bench".into(),
            build: "bench".into(),
            instance: None,
            ttl_ms: 3_600_000,
        };
        store.session_open(&new).await?;
        let begin = Instant::now();
        let end = begin + Duration::from_secs(seconds);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..connections {
            tasks.spawn(drive(store.clone(), session.clone(), batch, claims, end));
        }
        let (mut done, mut advancing, mut claiming) = (0, Duration::ZERO, Duration::ZERO);
        while let Some(task) = tasks.join_next().await {
            let (n, a, c) = task??;
            done += n;
            advancing += a;
            claiming += c;
        }
        let elapsed = begin.elapsed().as_secs_f64();
        let batches = (done as f64 / batch as f64).max(1.0);
        println!(
            "{} x {batch}, claims {claims}: {:.0} items/s, advance {:.2} ms, claim {:.2} ms per batch",
            connections,
            done as f64 / elapsed,
            advancing.as_secs_f64() * 1e3 / batches,
            claiming.as_secs_f64() * 1e3 / batches,
        );
    }
    store.close().await;
    Ok(())
}
