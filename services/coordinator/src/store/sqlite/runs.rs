//! T1: runs are created and advanced, and their bells rung.

use std::collections::{HashMap, HashSet};

use ditto_contracts::{Bucket, CallUid, Json, ReceiptState, RunId, RunStatus, SessionId};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{
    batch::{Reads, Writes, each},
    payloads, receipt,
    rules::Settlement,
    settle,
    writer::Turn,
};
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
    /// From the rows that ringing returns.
    pub(super) fn read(found: Vec<SqliteRow>) -> StoreResult<Self> {
        let mut bell = Self::default();
        for row in found {
            bell.0.insert(rows::id(row.try_get(0)?)?, rows::id_opt(row.try_get(1)?)?);
        }
        Ok(bell)
    }

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
    let mut writes = Writes::default();
    ring_to(&mut writes, runs);
    Bell::read(writes.run(connection).await?)
}

/// Plans to ring the bells of runs; the rows it returns are for [`Bell::read`].
pub(super) fn ring_to(writes: &mut Writes, runs: impl Iterator<Item = RunId>) {
    let runs: Vec<RunId> = runs.collect::<HashSet<_>>().into_iter().collect();
    writes.add(RING, 2, &runs, |bind, run| {
        bind.add(run.bucket()).add(run.as_str());
    });
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
     progress, created_ms) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL";

const RECEIPTS: &str = "INSERT INTO receipts (bucket, call_uid, loop_id, decided_version, kind, call_id, node, source, pool, \
     label, policy, effect_class, exclusive, has_query, rejections_stored, key_ttl_ms, on_unknown, idem_key, \
     request_hash, state, max_attempts, dispatch_no, due_ms, deadline_ms, created_ms, traceparent, request, \
     request_ref) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL ON CONFLICT DO NOTHING";

const CANCELS: &str = "WITH b(bucket, call_uid, now_ms) AS (VALUES {rows}) \
     UPDATE receipts SET cancel_ms = b.now_ms FROM b WHERE receipts.bucket = b.bucket \
     AND receipts.call_uid = b.call_uid AND receipts.cancel_ms IS NULL AND receipts.settled_ms IS NULL";

/// The large values of steps.
async fn keep_payloads(turn: &mut Turn<'_>, now: i64, steps: &[&Prepared<'_>]) -> StoreResult<()> {
    let requests = steps.iter().flat_map(|s| &s.receipts).map(|p| (p.receipt.call.bucket(), &p.request));
    let values = requests.chain(steps.iter().map(|s| (s.run.bucket(), &s.output)));
    let big: Vec<(Bucket, &Kept)> = values.filter(|(_, kept)| kept.big.is_some()).collect();
    if big.is_empty() {
        return Ok(());
    }
    payloads::keep(turn.connection()?, now, big.into_iter()).await
}

/// Plans to write checkpoints, receipts and cancels of steps whose runs are written before.
fn write_steps(writes: &mut Writes, now: i64, me: &SessionId, steps: &[&Prepared<'_>]) {
    writes.add(CHECKPOINTS, 10, steps, |bind, s| {
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
    });
    let receipts: Vec<&Planned<'_>> = steps.iter().flat_map(|s| &s.receipts).collect();
    writes.add(RECEIPTS, 28, &receipts, |bind, p| {
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
    });
    let cancels: Vec<&CallUid> = steps.iter().flat_map(|s| &s.step.cancels).collect();
    writes.add(CANCELS, 3, &cancels, |bind, call| {
        bind.add(call.bucket()).add(call.as_str()).add(now);
    });
}

const KEYS: &str = "WITH b(n, namespace, submit_key) AS (VALUES {rows}) \
     SELECT group_concat(format('%s|%s|%s', b.n, s.loop_id, hex(s.body_hash)), ';') FROM b \
     CROSS JOIN submissions s ON s.namespace = b.namespace AND s.submit_key = b.submit_key";

const KNOWN: &str = "WITH b(bucket, loop_id) AS (VALUES {rows}) \
     SELECT group_concat(format('%s|%s', l.loop_id, hex(l.body_hash)), ';') FROM b \
     CROSS JOIN loops l ON l.bucket = b.bucket AND l.loop_id = b.loop_id";

const SUBMISSIONS: &str = "INSERT INTO submissions (namespace, submit_key, bucket, loop_id, body_hash, created_ms) \
     SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL";

const LOOPS: &str = "INSERT INTO loops (bucket, loop_id, namespace, submit_key, body_hash, loop_name, loop_rev, status, \
     owner_session, epoch, version, bell_seen, wake_ms, deadline_ms, ended_ms, signal_seen, created_ms, traceparent, \
     input, input_ref, output, output_ref, error_class, error_code, error_message, error_retryable) SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL";

struct Created<'a> {
    run: &'a NewRun,
    input: Kept,
    first: Option<Prepared<'a>>,
}

/// Fields of a row that was read as text.
fn fields<const N: usize>(text: &str) -> StoreResult<[&str; N]> {
    let fields: Vec<&str> = text.split('|').collect();
    fields.try_into().map_err(|_| StoreError::Other("a stored row has another number of fields".into()))
}

fn bytes(hex: &str) -> StoreResult<Vec<u8>> {
    let bytes = data_encoding::HEXUPPER.decode(hex.as_bytes());
    bytes.map_err(|error| StoreError::Other(format!("stored hash: {error}")))
}

/// T1 for new runs.
pub(super) async fn submit(mut turn: Turn<'_>, me: &SessionId, runs: &[NewRun]) -> StoreResult<Vec<Submitted>> {
    let mut prepared = Vec::with_capacity(runs.len());
    for run in runs {
        let first = run.first.as_ref().map(|step| Prepared::of(&run.run, 1, 1, step)).transpose()?;
        prepared.push(Created { run, input: Kept::of(&run.input)?, first });
    }
    let keyed: Vec<(i64, &NewRun)> = (0..).zip(runs.iter().filter(|run| run.key.is_some())).collect();
    let mut reads = Reads::new();
    let keys_place = reads.add(KEYS, 3, &keyed, |bind, (n, run)| {
        bind.add(*n).add(run.namespace.as_str()).add(run.key.as_ref().map(|key| key.as_str()));
    });
    let known_place = reads.add(KNOWN, 2, runs, |bind, run| {
        bind.add(run.run.bucket()).add(run.run.as_str());
    });
    let (now, found) = turn.read(reads).await?;
    let mut keys: HashMap<(String, String), (RunId, Vec<u8>)> = HashMap::new();
    for text in found.texts(&keys_place)? {
        let [n, run, hash] = fields(text)?;
        if let Some((_, asked)) = keyed.get(rows::id::<usize>(n)?)
            && let Some(key) = &asked.key
        {
            let name = (asked.namespace.as_str().to_owned(), key.as_str().to_owned());
            keys.insert(name, (rows::id(run)?, bytes(hash)?));
        }
    }
    let mut known: HashMap<RunId, Vec<u8>> = HashMap::new();
    for text in found.texts(&known_place)? {
        let [run, hash] = fields(text)?;
        known.insert(rows::id(run)?, bytes(hash)?);
    }
    let mut created: Vec<Created<'_>> = Vec::with_capacity(runs.len());
    let mut answers = Vec::with_capacity(runs.len());
    for new in prepared {
        let run = new.run;
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
        created.push(new);
        answers.push(Submitted::Created);
    }
    if created.iter().any(|c| c.input.big.is_some()) {
        let inputs = created.iter().map(|c| (c.run.run.bucket(), &c.input));
        payloads::keep(turn.connection()?, now, inputs).await?;
    }
    let first: Vec<&Prepared<'_>> = created.iter().filter_map(|c| c.first.as_ref()).collect();
    keep_payloads(&mut turn, now, &first).await?;
    let mut writes = Writes::default();
    insert_loops(&mut writes, now, me, &created);
    let submissions: Vec<&NewRun> = created.iter().map(|c| c.run).filter(|run| run.key.is_some()).collect();
    writes.add(SUBMISSIONS, 6, &submissions, |bind, run| {
        bind.add(run.namespace.as_str())
            .add(run.key.as_ref().map(|key| key.as_str()))
            .add(run.run.bucket())
            .add(run.run.as_str())
            .add(&run.body_hash[..])
            .add(now);
    });
    write_steps(&mut writes, now, me, &first);
    turn.commit(writes).await?;
    Ok(answers)
}

fn insert_loops(writes: &mut Writes, now: i64, me: &SessionId, created: &[Created<'_>]) {
    writes.add(LOOPS, 26, created, |bind, c| {
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
    });
}

const OWNED: &str = "WITH b(bucket, loop_id) AS (VALUES {rows}) \
     SELECT group_concat(format('%s|%s|%s|%s', l.loop_id, l.owner_session, l.epoch, l.version), ';') \
     FROM b CROSS JOIN loops l ON l.bucket = b.bucket AND l.loop_id = b.loop_id";

const WRITTEN: &str = "WITH b(bucket, loop_id, version) AS (VALUES {rows}) \
     SELECT c.loop_id, c.session_id, c.epoch, c.body_hash FROM b CROSS JOIN checkpoints c \
     ON c.bucket = b.bucket AND c.loop_id = b.loop_id AND c.version = b.version";

const REUSED: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) \
     SELECT group_concat(format('%s|%s', r.call_uid, hex(r.request_hash)), ';') FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

const ADVANCE: &str = "WITH b(bucket, loop_id, epoch, version, owner, status, wake_ms, signal_seen, bell_seen, ended_ms, \
     output, output_ref, error_class, error_code, error_message, error_retryable) AS (VALUES {rows}) \
     UPDATE loops SET version = b.version, owner_session = b.owner, status = b.status, wake_ms = b.wake_ms, \
     signal_seen = coalesce(b.signal_seen, loops.signal_seen), bell_seen = b.bell_seen, ended_ms = b.ended_ms, \
     output = b.output, output_ref = b.output_ref, error_class = b.error_class, error_code = b.error_code, \
     error_message = b.error_message, error_retryable = b.error_retryable FROM b \
     WHERE loops.bucket = b.bucket AND loops.loop_id = b.loop_id AND loops.epoch = b.epoch \
     AND loops.version = b.version - 1";

/// T1 (and T3 of the settlements it rests on) for runs of this session.
pub(super) async fn advance(mut turn: Turn<'_>, me: &SessionId, items: &[Advance]) -> StoreResult<Vec<Advanced>> {
    let mut steps = Vec::with_capacity(items.len());
    for item in items {
        steps.push(Prepared::of(&item.run, item.epoch, item.version + 1, &item.step)?);
    }
    let settles: Vec<&Settle> = items.iter().flat_map(|item| &item.settles).collect();
    let said = settle::prepare(&settles)?;
    let calls: Vec<&CallUid> = settles.iter().map(|settle| &settle.call).collect();
    let planned: Vec<&NewReceipt> = items.iter().flat_map(|item| &item.step.receipts).collect();
    let mut reads = Reads::new();
    let stored = receipt::plan(&mut reads, &calls);
    let owned_place = reads.add(OWNED, 2, items, |bind, item| {
        bind.add(item.run.bucket()).add(item.run.as_str());
    });
    let reused_place = reads.add(REUSED, 2, &planned, |bind, r| {
        bind.add(r.call.bucket()).add(r.call.as_str());
    });
    let (now, found) = turn.read(reads).await?;
    let batch = settle::decide(now, &settles, said, receipt::found(now, &found, &stored)?)?;
    let applied = &batch.applied;

    // Owner (empty: none), epoch and version of each run that exists.
    let mut owned: HashMap<RunId, (&str, i64, i64)> = HashMap::with_capacity(items.len());
    for text in found.texts(&owned_place)? {
        let [run, owner, epoch, version] = fields(text)?;
        owned.insert(rows::id(run)?, (owner, rows::id(epoch)?, rows::id(version)?));
    }
    let is_mine = |item: &Advance| {
        owned.get(&item.run).is_some_and(|(owner, epoch, version)| {
            *owner == me.as_str() && *epoch == item.epoch && *version == item.version
        })
    };
    // One version further: perhaps by an earlier try of this very commit.
    let ahead: Vec<&Prepared<'_>> =
        steps.iter().filter(|s| owned.get(s.run).is_some_and(|(_, _, version)| *version == s.version)).collect();
    let mut written: HashMap<RunId, (String, i64, Vec<u8>)> = HashMap::new();
    if !ahead.is_empty() {
        let found = each(turn.connection()?, WRITTEN, 3, &ahead, |bind, s| {
            bind.add(s.run.bucket()).add(s.run.as_str()).add(s.version);
        });
        for row in found.await? {
            written.insert(rows::id(row.try_get(0)?)?, (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
        }
    }
    let mut hashes: HashMap<CallUid, Vec<u8>> = HashMap::new();
    for text in found.texts(&reused_place)? {
        let [call, hash] = fields(text)?;
        hashes.insert(rows::id(call)?, bytes(hash)?);
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
    let mut writes = Writes::default();
    batch.write(&mut turn, now, &mut writes).await?;
    keep_payloads(&mut turn, now, &done).await?;
    update_loops(&mut writes, now, me, &done);
    write_steps(&mut writes, now, me, &done);
    ring_to(&mut writes, ring.into_iter());
    turn.commit(writes).await?;
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

fn update_loops(writes: &mut Writes, now: i64, me: &SessionId, steps: &[&Prepared<'_>]) {
    writes.add(ADVANCE, 16, steps, |bind, s| {
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
    });
}
