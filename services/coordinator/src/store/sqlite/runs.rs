//! T1: runs are created and advanced, and their bells rung.

use std::collections::{HashMap, HashSet};

use ditto_contracts::{CallUid, Json, ReceiptState, RunId, RunStatus, SessionId};
use sqlx::{Row as _, SqliteConnection};

use super::{batch::each, payloads, rules::Settlement, settle};
use crate::store::{
    Advance, Advanced, NewReceipt, NewRun, Settle, Step, StoreError, StoreResult, Submitted,
    rows::{self, Kept},
};

const RING: &str = "WITH b(bucket, loop_id) AS (VALUES {rows}) \
     UPDATE loops SET bell = bell + 1 FROM b WHERE loops.bucket = b.bucket AND loops.loop_id = b.loop_id \
     RETURNING loop_id, (SELECT s.session_id FROM sessions s \
     WHERE s.session_id = loops.owner_session AND s.dead_ms IS NULL)";

/// The live owners of runs whose bell was rung.
#[derive(Default)]
pub(super) struct Bell(HashMap<RunId, Option<SessionId>>);

impl Bell {
    /// The live owner of a run.
    pub(super) fn owner(&self, run: &RunId) -> Option<SessionId> {
        self.0.get(run).cloned().flatten()
    }
}

/// Rings the bells of runs: their owners must learn of something.
pub(super) async fn ring(
    connection: &mut SqliteConnection,
    runs: impl Iterator<Item = RunId> + Send,
) -> StoreResult<Bell> {
    let runs: Vec<RunId> = runs.collect::<HashSet<_>>().into_iter().collect();
    let found = each(connection, RING, 2, &runs, |bind, run| {
        bind.add(run.bucket()).add(run.as_str());
    });
    let mut bell = Bell::default();
    for row in found.await? {
        bell.0.insert(rows::id(row.try_get(0)?)?, rows::id_opt(row.try_get(1)?)?);
    }
    Ok(bell)
}

const SIGNAL: &str = "INSERT INTO signals (bucket, loop_id, n, kind, name, body, request_id, created_ms) \
     SELECT l.bucket, l.loop_id, 1 + coalesce((SELECT max(s.n) FROM signals s \
     WHERE s.bucket = l.bucket AND s.loop_id = l.loop_id), 0), ?3, ?4, ?5, ?6, ?7 \
     FROM loops l WHERE l.bucket = ?1 AND l.loop_id = ?2 RETURNING n";

/// Appends a signal to an existing run; its number.
pub(super) async fn append_signal(
    connection: &mut SqliteConnection,
    now: i64,
    run: &RunId,
    kind: i16,
    name: &str,
    body: &Json,
    request_id: Option<&str>,
) -> StoreResult<Option<i64>> {
    let found = sqlx::query(SIGNAL)
        .bind(run.bucket())
        .bind(run.as_str())
        .bind(kind)
        .bind(name)
        .bind(body.as_bytes())
        .bind(request_id)
        .bind(now)
        .fetch_optional(connection)
        .await?;
    Ok(found.map(|row| row.try_get(0)).transpose()?)
}

/// Tells runs about outcomes they may have taken in as unknown: history is not rewritten, a signal is appended.
pub(super) async fn append_resolved(
    connection: &mut SqliteConnection,
    now: i64,
    news: &[(RunId, Json)],
) -> StoreResult<()> {
    for (run, body) in news {
        append_signal(connection, now, run, 2, "resolved", body, None).await?;
    }
    Ok(())
}

/// A step with its values in the form they are stored in.
struct Prepared<'a> {
    run: &'a RunId,
    epoch: i64,
    version: i64,
    step: &'a Step,
    body_hash: [u8; 32],
    output: Kept,
    receipts: Vec<Planned<'a>>,
}

struct Planned<'a> {
    receipt: &'a NewReceipt,
    run: &'a RunId,
    version: i64,
    policy: Json,
    request: Kept,
}

impl<'a> Prepared<'a> {
    fn of(run: &'a RunId, epoch: i64, version: i64, step: &'a Step) -> StoreResult<Self> {
        if step.status.is_ended() != step.ending.is_some() {
            return Err(StoreError::BadItem("an ending is required exactly when the status is an ended one".into()));
        }
        let output = Kept::of_opt(step.ending.as_ref().and_then(|ending| ending.output.as_ref()))?;
        let mut receipts = Vec::with_capacity(step.receipts.len());
        for receipt in &step.receipts {
            let policy = rows::encode(&receipt.policy)?;
            receipts.push(Planned { receipt, run, version, policy, request: Kept::of(&receipt.request)? });
        }
        Ok(Self { run, epoch, version, step, body_hash: step.checkpoint.sha256(), output, receipts })
    }

    fn ended(&self) -> bool {
        self.step.status.is_ended()
    }

    /// A run that is parked or over has no owner.
    fn owner<'b>(&self, me: &'b SessionId) -> Option<&'b str> {
        (!self.ended() && self.step.status != RunStatus::Parked).then_some(me.as_str())
    }
}

const CHECKPOINTS: &str = "INSERT INTO checkpoints (bucket, loop_id, version, epoch, session_id, body_hash, body, boundary, \
     progress, created_ms) VALUES {rows}";

const RECEIPTS: &str = "INSERT INTO receipts (bucket, call_uid, loop_id, decided_version, kind, call_id, node, source, pool, \
     label, policy, effect_class, exclusive, has_query, rejections_stored, key_ttl_ms, on_unknown, idem_key, \
     request_hash, state, max_attempts, dispatch_no, due_ms, deadline_ms, created_ms, traceparent, request, \
     request_ref) VALUES {rows} ON CONFLICT DO NOTHING";

const CANCELS: &str = "WITH b(bucket, call_uid, now_ms) AS (VALUES {rows}) \
     UPDATE receipts SET cancel_ms = b.now_ms FROM b WHERE receipts.bucket = b.bucket \
     AND receipts.call_uid = b.call_uid AND receipts.cancel_ms IS NULL AND receipts.settled_ms IS NULL";

/// Writes checkpoints, receipts, payloads and cancels of steps whose runs were written.
async fn write_steps(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    steps: &[&Prepared<'_>],
) -> StoreResult<()> {
    each(connection, CHECKPOINTS, 10, steps, |bind, s| {
        bind.add(s.run.bucket())
            .add(s.run.as_str())
            .add(s.version)
            .add(s.epoch)
            .add(me.as_str())
            .add(&s.body_hash[..])
            .add(s.step.checkpoint.as_bytes())
            .add(s.step.boundary)
            .add(s.step.progress.as_ref().map(Json::as_bytes))
            .add(now);
    })
    .await?;
    let receipts: Vec<&Planned<'_>> = steps.iter().flat_map(|s| &s.receipts).collect();
    let big = receipts.iter().map(|p| (p.receipt.call.bucket(), &p.request));
    let outputs = steps.iter().map(|s| (s.run.bucket(), &s.output));
    payloads::keep(connection, now, big.chain(outputs)).await?;
    each(connection, RECEIPTS, 28, &receipts, |bind, p| {
        let r = p.receipt;
        let delay = rows::ms(r.delay_ms);
        let due = if delay > 0 { delay } else { rows::dispatch_pause_ms(&r.policy, r.budget_ms, 1) };
        bind.add(r.call.bucket())
            .add(r.call.as_str())
            .add(p.run.as_str())
            .add(p.version)
            .add(r.kind.code())
            .add(r.call_id.as_str())
            .add(r.node.as_str())
            .add(r.source.as_deref())
            .add(r.pool.as_ref().map(|pool| pool.as_str()))
            .add(r.label.as_str())
            .add(p.policy.as_bytes())
            .add(r.policy.class.code())
            .add(r.policy.is_claimed())
            .add(r.policy.query)
            .add(r.policy.rejections_stored)
            .add(r.policy.key_ttl_ms.map(rows::ms))
            .add(rows::on_unknown_code(r.on_unknown))
            .add(r.idem_key.as_str())
            .add(&r.request_hash[..])
            .add(ReceiptState::Planned.code())
            .add(r.policy.max_attempts)
            .add(i64::from(r.delay_ms == 0))
            .add(now.saturating_add(due))
            .add(r.budget_ms.map(|budget| now.saturating_add(rows::ms(budget))))
            .add(now)
            .add(r.traceparent.as_deref())
            .add(p.request.inline.as_ref().map(Json::as_bytes))
            .add(p.request.reference.map(|reference| reference.to_string()));
    })
    .await?;
    let cancels: Vec<&CallUid> = steps.iter().flat_map(|s| &s.step.cancels).collect();
    each(connection, CANCELS, 3, &cancels, |bind, call| {
        bind.add(call.bucket()).add(call.as_str()).add(now);
    })
    .await?;
    Ok(())
}

const KEYS: &str = "WITH b(namespace, submit_key) AS (VALUES {rows}) \
     SELECT s.namespace, s.submit_key, s.loop_id, s.body_hash FROM b \
     CROSS JOIN submissions s ON s.namespace = b.namespace AND s.submit_key = b.submit_key";

const KNOWN: &str = "WITH b(bucket, loop_id) AS (VALUES {rows}) SELECT l.loop_id, l.body_hash FROM b \
     CROSS JOIN loops l ON l.bucket = b.bucket AND l.loop_id = b.loop_id";

const SUBMISSIONS: &str =
    "INSERT INTO submissions (namespace, submit_key, bucket, loop_id, body_hash, created_ms) VALUES {rows}";

const LOOPS: &str = "INSERT INTO loops (bucket, loop_id, namespace, submit_key, body_hash, loop_name, loop_rev, status, \
     owner_session, epoch, version, bell_seen, wake_ms, deadline_ms, ended_ms, signal_seen, created_ms, traceparent, \
     input, input_ref, output, output_ref, error_class, error_code, error_message, error_retryable) VALUES {rows}";

struct Created<'a> {
    run: &'a NewRun,
    input: Kept,
    first: Option<Prepared<'a>>,
}

/// T1 for new runs.
pub(super) async fn submit(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    runs: &[NewRun],
) -> StoreResult<Vec<Submitted>> {
    let keyed: Vec<&NewRun> = runs.iter().filter(|run| run.key.is_some()).collect();
    let mut keys: HashMap<(String, String), (RunId, Vec<u8>)> = HashMap::new();
    let found = each(connection, KEYS, 2, &keyed, |bind, run| {
        bind.add(run.namespace.as_str()).add(run.key.as_ref().map(|key| key.as_str()));
    });
    for row in found.await? {
        keys.insert((row.try_get(0)?, row.try_get(1)?), (rows::id(row.try_get(2)?)?, row.try_get(3)?));
    }
    let mut known: HashMap<RunId, Vec<u8>> = HashMap::new();
    let found = each(connection, KNOWN, 2, runs, |bind, run| {
        bind.add(run.run.bucket()).add(run.run.as_str());
    });
    for row in found.await? {
        known.insert(rows::id(row.try_get(0)?)?, row.try_get(1)?);
    }
    let mut created: Vec<Created<'_>> = Vec::with_capacity(runs.len());
    let mut answers = Vec::with_capacity(runs.len());
    for run in runs {
        let key = run.key.as_ref().map(|key| (run.namespace.as_str().to_owned(), key.as_str().to_owned()));
        let earlier = key.as_ref().and_then(|key| keys.get(key));
        if let Some((earlier, hash)) = earlier {
            answers.push(match (*hash == run.body_hash, *earlier == run.run) {
                (true, true) => Submitted::Created,
                (true, false) => Submitted::Duplicate { run: earlier.clone() },
                (false, _) => Submitted::KeyReused { run: earlier.clone() },
            });
            continue;
        }
        if let Some(hash) = known.get(&run.run) {
            let same = *hash == run.body_hash && run.key.is_none();
            answers.push(if same { Submitted::Created } else { Submitted::KeyReused { run: run.run.clone() } });
            continue;
        }
        if let Some(key) = key {
            keys.insert(key, (run.run.clone(), run.body_hash.to_vec()));
        }
        known.insert(run.run.clone(), run.body_hash.to_vec());
        let first = run.first.as_ref().map(|step| Prepared::of(&run.run, 1, 1, step)).transpose()?;
        created.push(Created { run, input: Kept::of(&run.input)?, first });
        answers.push(Submitted::Created);
    }
    payloads::keep(connection, now, created.iter().map(|c| (c.run.run.bucket(), &c.input))).await?;
    insert_loops(connection, now, me, &created).await?;
    let submissions: Vec<&NewRun> = created.iter().map(|c| c.run).filter(|run| run.key.is_some()).collect();
    each(connection, SUBMISSIONS, 6, &submissions, |bind, run| {
        bind.add(run.namespace.as_str())
            .add(run.key.as_ref().map(|key| key.as_str()))
            .add(run.run.bucket())
            .add(run.run.as_str())
            .add(&run.body_hash[..])
            .add(now);
    })
    .await?;
    let first: Vec<&Prepared<'_>> = created.iter().filter_map(|c| c.first.as_ref()).collect();
    write_steps(connection, now, me, &first).await?;
    Ok(answers)
}

async fn insert_loops(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    created: &[Created<'_>],
) -> StoreResult<()> {
    each(connection, LOOPS, 26, created, |bind, c| {
        let (run, first) = (c.run, c.first.as_ref());
        let error = first.and_then(|f| f.step.ending.as_ref()).and_then(|ending| ending.error.as_ref());
        bind.add(run.run.bucket())
            .add(run.run.as_str())
            .add(run.namespace.as_str())
            .add(run.key.as_ref().map(|key| key.as_str()))
            .add(&run.body_hash[..])
            .add(run.name.as_str())
            .add(run.revision.as_str())
            .add(first.map_or(RunStatus::Queued, |f| f.step.status).code())
            .add(first.and_then(|f| f.owner(me)))
            .add(first.map_or(0, |f| f.epoch))
            .add(first.map_or(0, |f| f.version))
            .add(first.map_or(0, |f| f.step.bell_seen))
            .add(first.and_then(|f| f.step.wake_ms))
            .add(run.deadline_ms.map(|deadline| now.saturating_add(rows::ms(deadline))))
            .add(first.filter(|f| f.ended()).map(|_| now))
            .add(first.and_then(|f| f.step.signal_seen).unwrap_or(0))
            .add(now)
            .add(run.traceparent.as_deref())
            .add(c.input.inline.as_ref().map(Json::as_bytes))
            .add(c.input.reference.map(|reference| reference.to_string()))
            .add(first.and_then(|f| f.output.inline.as_ref()).map(Json::as_bytes))
            .add(first.and_then(|f| f.output.reference).map(|reference| reference.to_string()))
            .add(error.map(|e| rows::class_text(e.class)))
            .add(error.map(|e| e.code.as_str()))
            .add(error.map(|e| e.message.as_str()))
            .add(error.map(|e| e.retryable));
    })
    .await?;
    Ok(())
}

const OWNED: &str = "WITH b(bucket, loop_id) AS (VALUES {rows}) \
     SELECT group_concat(format('%s|%s|%s|%s', l.loop_id, l.owner_session, l.epoch, l.version), ';') \
     FROM b CROSS JOIN loops l ON l.bucket = b.bucket AND l.loop_id = b.loop_id";

const WRITTEN: &str = "WITH b(bucket, loop_id, version) AS (VALUES {rows}) \
     SELECT c.loop_id, c.session_id, c.epoch, c.body_hash FROM b CROSS JOIN checkpoints c \
     ON c.bucket = b.bucket AND c.loop_id = b.loop_id AND c.version = b.version";

const REUSED: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) SELECT r.call_uid, r.request_hash \
     FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

const ADVANCE: &str = "WITH b(bucket, loop_id, epoch, version, owner, status, wake_ms, signal_seen, bell_seen, ended_ms, \
     output, output_ref, error_class, error_code, error_message, error_retryable) AS (VALUES {rows}) \
     UPDATE loops SET version = b.version, owner_session = b.owner, status = b.status, wake_ms = b.wake_ms, \
     signal_seen = coalesce(b.signal_seen, loops.signal_seen), bell_seen = b.bell_seen, ended_ms = b.ended_ms, \
     output = b.output, output_ref = b.output_ref, error_class = b.error_class, error_code = b.error_code, \
     error_message = b.error_message, error_retryable = b.error_retryable FROM b \
     WHERE loops.bucket = b.bucket AND loops.loop_id = b.loop_id AND loops.epoch = b.epoch \
     AND loops.version = b.version - 1";

/// Owner (empty: none), epoch and version of each run that exists.
async fn owned(
    connection: &mut SqliteConnection,
    items: &[Advance],
) -> StoreResult<HashMap<RunId, (String, i64, i64)>> {
    let found = each(connection, OWNED, 2, items, |bind, item| {
        bind.add(item.run.bucket()).add(item.run.as_str());
    });
    let mut owned = HashMap::with_capacity(items.len());
    for row in found.await? {
        for text in row.try_get::<Option<&str>, _>(0)?.unwrap_or_default().split(';').filter(|text| !text.is_empty()) {
            let fields: Vec<&str> = text.split('|').collect();
            let [run, owner, epoch, version] = fields[..] else {
                return Err(StoreError::Other("stored run has too few fields".into()));
            };
            owned.insert(rows::id(run)?, (owner.to_owned(), rows::id(epoch)?, rows::id(version)?));
        }
    }
    Ok(owned)
}

/// T1 (and T3 of the settlements it rests on) for runs of this session.
pub(super) async fn advance(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    items: &[Advance],
) -> StoreResult<Vec<Advanced>> {
    let mut steps = Vec::with_capacity(items.len());
    for item in items {
        steps.push(Prepared::of(&item.run, item.epoch, item.version + 1, &item.step)?);
    }
    let settles: Vec<&Settle> = items.iter().flat_map(|item| &item.settles).collect();
    let applied = settle::apply(connection, now, &settles).await?;

    let owned = owned(connection, items).await?;
    let is_mine = |item: &Advance| {
        owned.get(&item.run).is_some_and(|(owner, epoch, version)| {
            owner == me.as_str() && *epoch == item.epoch && *version == item.version
        })
    };
    // One version further: perhaps by an earlier try of this very commit.
    let ahead: Vec<&Prepared<'_>> =
        steps.iter().filter(|s| owned.get(s.run).is_some_and(|(_, _, version)| *version == s.version)).collect();
    let mut written: HashMap<RunId, (String, i64, Vec<u8>)> = HashMap::new();
    let found = each(connection, WRITTEN, 3, &ahead, |bind, s| {
        bind.add(s.run.bucket()).add(s.run.as_str()).add(s.version);
    });
    for row in found.await? {
        written.insert(rows::id(row.try_get(0)?)?, (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
    }
    let planned: Vec<&NewReceipt> = items.iter().flat_map(|item| &item.step.receipts).collect();
    let mut hashes: HashMap<CallUid, Vec<u8>> = HashMap::new();
    let found = each(connection, REUSED, 2, &planned, |bind, r| {
        bind.add(r.call.bucket()).add(r.call.as_str());
    });
    for row in found.await? {
        hashes.insert(rows::id(row.try_get(0)?)?, row.try_get(1)?);
    }

    let mut answers = Vec::with_capacity(items.len());
    let mut ring: Vec<RunId> = Vec::new();
    let mut at = 0;
    for (item, step) in items.iter().zip(&steps) {
        let settled = &applied[at..at + item.settles.len()];
        at += item.settles.len();
        let answer = if !is_mine(item) {
            let repeated = written.get(&item.run).is_some_and(|(session, epoch, hash)| {
                session == me.as_str() && *epoch == item.epoch && *hash == step.body_hash
            });
            if repeated { Advanced::Done } else { Advanced::Lost }
        } else if settled.iter().any(|a| !a.as_given) {
            Advanced::Stale
        } else {
            reused(&item.step.receipts, &hashes).map_or(Advanced::Done, |call| Advanced::CallIdReused { call })
        };
        // A settlement that this commit does not take in must be found by whoever owns its run.
        let goes_on = is_mine(item) && answer == Advanced::Done;
        let news = settled.iter().filter(|a| a.result == Settlement::Applied);
        ring.extend(news.filter_map(|a| {
            let run = &a.receipt.as_ref()?.run;
            (!goes_on || *run != item.run || a.late_news).then(|| run.clone())
        }));
        // A call that an earlier step made with the same request has its receipt, perhaps its outcome: nothing else would
        // tell the run.
        if goes_on && item.step.receipts.iter().any(|receipt| hashes.contains_key(&receipt.call)) {
            ring.push(item.run.clone());
        }
        answers.push(answer);
    }
    let done: Vec<&Prepared<'_>> = items
        .iter()
        .zip(&answers)
        .zip(&steps)
        .filter(|((item, answer), _)| is_mine(item) && **answer == Advanced::Done)
        .map(|(_, step)| step)
        .collect();
    update_loops(connection, now, me, &done).await?;
    write_steps(connection, now, me, &done).await?;
    self::ring(connection, ring.into_iter()).await?;
    Ok(answers)
}

/// The first call that was used before, or twice here, with another request.
fn reused(receipts: &[NewReceipt], stored: &HashMap<CallUid, Vec<u8>>) -> Option<CallUid> {
    let mut here: HashMap<&CallUid, &[u8; 32]> = HashMap::with_capacity(receipts.len());
    for receipt in receipts {
        let before = stored.get(&receipt.call).map(Vec::as_slice);
        let twice = here.insert(&receipt.call, &receipt.request_hash).map(|hash| &hash[..]);
        if before.or(twice).is_some_and(|hash| hash != receipt.request_hash) {
            return Some(receipt.call.clone());
        }
    }
    None
}

async fn update_loops(
    connection: &mut SqliteConnection,
    now: i64,
    me: &SessionId,
    steps: &[&Prepared<'_>],
) -> StoreResult<()> {
    each(connection, ADVANCE, 16, steps, |bind, s| {
        let error = s.step.ending.as_ref().and_then(|ending| ending.error.as_ref());
        bind.add(s.run.bucket())
            .add(s.run.as_str())
            .add(s.epoch)
            .add(s.version)
            .add(s.owner(me))
            .add(s.step.status.code())
            .add(s.step.wake_ms)
            .add(s.step.signal_seen)
            .add(s.step.bell_seen)
            .add(s.ended().then_some(now))
            .add(s.output.inline.as_ref().map(Json::as_bytes))
            .add(s.output.reference.map(|reference| reference.to_string()))
            .add(error.map(|e| rows::class_text(e.class)))
            .add(error.map(|e| e.code.as_str()))
            .add(error.map(|e| e.message.as_str()))
            .add(error.map(|e| e.retryable));
    })
    .await?;
    Ok(())
}
