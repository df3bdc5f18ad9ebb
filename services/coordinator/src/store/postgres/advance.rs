//! T1 of a run that is under way, together with the T3 of the settlements its decision rests on.

use std::collections::{HashMap, HashSet};

use ditto_contracts::{CallUid, RunId, SessionId};
use sqlx::{PgConnection, PgPool, Row as _};

use super::{
    super::{Advance, Advanced, NewReceipt, Settle, StoreError, StoreResult},
    begin,
    columns::{Big, ReceiptColumns, SettleColumns, insert_receipts, new_receipts},
    payloads,
    settle::{again, settle_rows},
    span,
    submit::{StepColumns, distinct},
};

/// Everything of a batch. An item advances when all its settlements were written as given and none of its calls exists.
/// Where settlements were written and the item did not advance, the run's bell rings: somebody has to read them.
const ADVANCE: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT now_ms() AS now), ",
    new_receipts!(),
    ", ",
    settle_rows!(
        "$26::int[], $27::int[], $28::int[], $29::text[], $30::text[], $31::int[], $32::text[], $33::bytea[], $34::int2[],
         $35::bytea[], $36::text[], $37::text[], $38::text[], $39::text[], $40::bool[]",
        "$62",
        "$63"
    ),
    ", stopped AS MATERIALIZED (
        SELECT s.i FROM s WHERE (s.n IN (SELECT n FROM st WHERE as_given)) IS NOT TRUE
        UNION ALL
        SELECT n.i FROM n JOIN receipts r ON r.bucket BETWEEN $62 AND $63 AND r.bucket = n.bucket AND r.call_uid = n.call_uid),
     ok AS (
        UPDATE loops l
           SET version = l.version + 1, status = b.status,
               owner_session = CASE WHEN b.status IN (1, 2, 4) THEN l.owner_session END,
               wake_ms = b.wake_ms, signal_seen = coalesce(b.signal_seen, l.signal_seen), bell_seen = b.bell_seen,
               ended_ms = CASE WHEN b.status > 4 THEN t.now END,
               output = b.output, output_ref = b.output_ref, error_class = b.error_class, error_code = b.error_code,
               error_message = b.error_message, error_retryable = b.error_retryable
          FROM t, unnest($41::int[], $42::int[], $43::text[], $44::int8[], $45::int8[], $46::int2[], $47::bytea[],
                 $48::bytea[], $49::bool[], $50::bytea[], $51::int8[], $52::int8[], $53::int8[], $54::bytea[],
                 $55::text[], $56::text[], $57::text[], $58::text[], $59::bool[])
               AS b(i, bucket, loop_id, epoch, version, status, body, hash, boundary, progress, wake_ms, signal_seen,
                    bell_seen, output, output_ref, error_class, error_code, error_message, error_retryable)
         WHERE l.bucket BETWEEN $60 AND $61 AND l.bucket = b.bucket AND l.loop_id = b.loop_id
           AND (l.owner_session = $64) IS TRUE AND l.epoch = b.epoch AND l.version = b.version AND l.ended_ms IS NULL
           AND (b.i IN (SELECT i FROM stopped)) IS NOT TRUE
        RETURNING b.i, l.bucket, l.loop_id, l.version, l.epoch, b.hash, b.body, b.boundary, b.progress),
     cp AS (
        INSERT INTO checkpoints (bucket, loop_id, version, epoch, session_id, body_hash, body, boundary, progress, created_ms)
        SELECT ok.bucket, ok.loop_id, ok.version, ok.epoch, $64::text, ok.hash, ok.body, ok.boundary, ok.progress, t.now
          FROM ok, t),
     rc AS (",
    insert_receipts!(),
    "),
     rung AS (
        UPDATE loops l SET bell = l.bell + 1
          FROM (SELECT DISTINCT bucket, loop_id FROM st WHERE (st.i IN (SELECT i FROM ok)) IS NOT TRUE
                 ORDER BY bucket, loop_id) x
         WHERE l.bucket BETWEEN $60 AND $61 AND l.bucket = x.bucket AND l.loop_id = x.loop_id AND l.ended_ms IS NULL)
     SELECT i FROM ok"
);

/// Locks receipts in the order in which everybody locks them, before the runs.
const CANCEL_LOCK: &str = "
    SELECT 1 FROM unnest($1::int[], $2::text[]) AS c(bucket, call_uid)
      JOIN receipts r ON r.bucket = c.bucket AND r.call_uid = c.call_uid
     WHERE r.bucket BETWEEN $3 AND $4 ORDER BY r.bucket, r.call_uid FOR UPDATE OF r";

const CANCEL: &str = "
    UPDATE receipts r SET cancel_ms = coalesce(r.cancel_ms, (SELECT now_ms()))
      FROM unnest($1::int[], $2::text[], $3::text[]) AS c(bucket, call_uid, loop_id)
     WHERE r.bucket BETWEEN $4 AND $5 AND r.bucket = c.bucket AND r.call_uid = c.call_uid AND r.loop_id = c.loop_id
       AND r.settled_ms IS NULL";

/// Locks runs and says how they stand.
const RUN_LOCK: &str = "
    SELECT b.i, l.owner_session, l.epoch, l.version, l.ended_ms IS NOT NULL AS ended
      FROM unnest($1::int[], $2::int[], $3::text[]) AS b(i, bucket, loop_id)
      JOIN loops l ON l.bucket = b.bucket AND l.loop_id = b.loop_id
     WHERE l.bucket BETWEEN $4 AND $5 ORDER BY l.bucket, l.loop_id FOR UPDATE OF l";

/// The checkpoints that these commits would have written.
const WRITTEN: &str = "
    SELECT b.i, c.session_id, c.epoch, c.body_hash
      FROM unnest($1::int[], $2::int[], $3::text[], $4::int8[]) AS b(i, bucket, loop_id, version)
      JOIN checkpoints c ON c.bucket = b.bucket AND c.loop_id = b.loop_id AND c.version = b.version
     WHERE c.bucket BETWEEN $5 AND $6";

const RING: &str = "UPDATE loops SET bell = bell + 1 WHERE loop_id = ANY($1::text[]) AND bucket BETWEEN $2 AND $3 AND ended_ms IS NULL";

const EXISTING: &str = "
    SELECT r.call_uid, r.request_hash
      FROM unnest($1::int[], $2::text[]) AS n(bucket, call_uid)
      JOIN receipts r ON r.bucket = n.bucket AND r.call_uid = n.call_uid
     WHERE r.bucket BETWEEN $3 AND $4";

/// One item on its way into the statement.
struct Entry<'a> {
    at: usize,
    item: &'a Advance,
    settles: &'a [Settle],
    receipts: Vec<&'a NewReceipt>,
}

/// Advances runs.
pub(super) async fn advance(pool: &PgPool, owner: &SessionId, items: &[Advance]) -> StoreResult<Vec<Advanced>> {
    let mut answers: Vec<Option<Advanced>> = items.iter().map(|_| None).collect();
    let mut entries = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        match distinct(&item.step.receipts) {
            Ok(receipts) => entries.push(Entry { at, item, settles: &item.settles, receipts }),
            Err(receipt) => answers[at] = Some(Advanced::CallIdReused { call: receipt.call.clone() }),
        }
    }
    let cancels = entries.iter().any(|entry| !entry.item.step.cancels.is_empty());
    let mut batch = Batch::of(&mut entries)?;
    let done = if cancels || !batch.big.values.is_empty() {
        let mut tx = begin(pool).await?;
        let done = batch.write(&mut tx, owner, &entries).await;
        match done {
            Ok(done) => {
                tx.commit().await?;
                done
            }
            Err(error) if is_duplicate(&error) => Vec::new(),
            Err(error) => return Err(error.into()),
        }
    } else {
        match batch.statement(pool, owner).await {
            Ok(done) => done,
            Err(error) if is_duplicate(&error) => Vec::new(),
            Err(error) => return Err(error.into()),
        }
    };
    for at in done {
        answers[at] = Some(Advanced::Done);
    }
    if answers.iter().any(Option::is_none) {
        let open = entries.into_iter().filter(|entry| answers[entry.at].is_none()).collect();
        for (at, answer) in look_again(pool, owner, open).await? {
            answers[at] = Some(answer);
        }
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or(Advanced::Lost)).collect())
}

/// A key that was free when the statement looked: the batch changed nothing and is looked at item by item.
fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.is_unique_violation())
}

struct Batch<'a> {
    receipts: ReceiptColumns<'a>,
    settles: SettleColumns<'a>,
    item: Vec<i32>,
    bucket: Vec<i32>,
    run: Vec<&'a str>,
    epoch: Vec<i64>,
    version: Vec<i64>,
    step: StepColumns<'a>,
    big: Big,
}

impl<'a> Batch<'a> {
    /// Sorts the entries by run, and the settlements by call across them.
    fn of(entries: &mut [Entry<'a>]) -> StoreResult<Self> {
        entries.sort_unstable_by(|a, b| a.item.run.cmp(&b.item.run));
        let mut batch = Self {
            receipts: ReceiptColumns::default(),
            settles: SettleColumns::default(),
            item: Vec::with_capacity(entries.len()),
            bucket: Vec::with_capacity(entries.len()),
            run: Vec::with_capacity(entries.len()),
            epoch: Vec::with_capacity(entries.len()),
            version: Vec::with_capacity(entries.len()),
            step: StepColumns::default(),
            big: Big::default(),
        };
        let mut settles: Vec<(&'a Settle, i32, &'a RunId)> = Vec::new();
        for entry in entries.iter() {
            let (item, at) = (entry.item, entry.at as i32);
            let bucket = item.run.bucket();
            batch.item.push(at);
            batch.bucket.push(bucket);
            batch.run.push(item.run.as_str());
            batch.epoch.push(item.epoch);
            batch.version.push(item.version);
            batch.step.push(bucket, Some(&item.step), &mut batch.big)?;
            for receipt in &entry.receipts {
                batch.receipts.push(at, item.run.as_str(), item.version + 1, receipt, &mut batch.big)?;
            }
            settles.extend(entry.settles.iter().map(|settle| (settle, at, &item.run)));
        }
        settles.sort_unstable_by(|a, b| a.0.call.cmp(&b.0.call));
        for (n, (settle, at, run)) in settles.into_iter().enumerate() {
            batch.settles.push(n as i32, at, Some(run.as_str()), settle, &mut batch.big)?;
        }
        Ok(batch)
    }

    /// The statement; returns the positions of the items that advanced.
    async fn statement(&self, executor: impl sqlx::PgExecutor<'_>, owner: &SessionId) -> sqlx::Result<Vec<usize>> {
        let (low, high) = span(&self.bucket);
        // Calls share the day of their run; others match nothing.
        let calls: Vec<i32> = self.receipts.bucket.iter().chain(&self.settles.bucket).copied().collect();
        let (calls_low, calls_high) = span(&calls);
        let query = self.receipts.bind(sqlx::query(ADVANCE));
        let query = self
            .settles
            .bind(query)
            .bind(&self.item)
            .bind(&self.bucket)
            .bind(&self.run)
            .bind(&self.epoch)
            .bind(&self.version);
        let query = self.step.bind(query).bind(low).bind(high).bind(calls_low).bind(calls_high).bind(owner.as_str());
        let found = query.fetch_all(executor).await?;
        found.iter().map(|row| row.try_get::<i32, _>(0).map(|at| at as usize)).collect()
    }

    /// The statement between the payloads it refers to and the cancels of what advanced.
    async fn write(
        &mut self,
        connection: &mut PgConnection,
        owner: &SessionId,
        entries: &[Entry<'_>],
    ) -> sqlx::Result<Vec<usize>> {
        payloads::store(&mut *connection, &mut self.big).await?;
        let mut cancels: Vec<(usize, &CallUid, &RunId)> = Vec::new();
        for entry in entries {
            cancels.extend(entry.item.step.cancels.iter().map(|call| (entry.at, call, &entry.item.run)));
        }
        cancels.sort_unstable_by(|a, b| a.1.cmp(b.1));
        if !cancels.is_empty() {
            let buckets: Vec<i32> = cancels.iter().map(|(_, call, _)| call.bucket()).collect();
            let calls: Vec<&str> = cancels.iter().map(|(_, call, _)| call.as_str()).collect();
            let (low, high) = span(&buckets);
            let lock = sqlx::query(CANCEL_LOCK).bind(&buckets).bind(&calls).bind(low).bind(high);
            lock.execute(&mut *connection).await?;
        }
        let done = self.statement(&mut *connection, owner).await?;
        let advanced: HashSet<usize> = done.iter().copied().collect();
        cancels.retain(|(at, ..)| advanced.contains(at));
        if !cancels.is_empty() {
            let buckets: Vec<i32> = cancels.iter().map(|(_, call, _)| call.bucket()).collect();
            let calls: Vec<&str> = cancels.iter().map(|(_, call, _)| call.as_str()).collect();
            let runs: Vec<&str> = cancels.iter().map(|(.., run)| run.as_str()).collect();
            let (low, high) = span(&buckets);
            let query = sqlx::query(CANCEL).bind(&buckets).bind(&calls).bind(&runs).bind(low).bind(high);
            query.execute(&mut *connection).await?;
        }
        Ok(done)
    }
}

/// Tells repetitions, lost ownership, stale decisions and reused call ids apart. What is none of them is written here,
/// with the runs locked: its settlements or some of its receipts were there before.
async fn look_again(pool: &PgPool, owner: &SessionId, mut open: Vec<Entry<'_>>) -> StoreResult<Vec<(usize, Advanced)>> {
    let mut answers = Vec::with_capacity(open.len());
    let mut tx = begin(pool).await?;
    let settles: Vec<&Settle> = open.iter().flat_map(|entry| entry.settles).collect();
    let mut known = again(&mut tx, &settles).await?.into_iter();
    let mut stale = HashSet::new();
    for entry in &open {
        // All of them are looked at, in step with the list they were given in.
        let as_given =
            entry.settles.iter().zip(&mut known).filter(|(settle, a)| a.is_as_given(&entry.item.run, settle));
        if as_given.count() < entry.settles.len() {
            stale.insert(entry.at);
        }
    }

    open.sort_unstable_by(|a, b| a.item.run.cmp(&b.item.run));
    let positions: Vec<i32> = open.iter().map(|entry| entry.at as i32).collect();
    let buckets: Vec<i32> = open.iter().map(|entry| entry.item.run.bucket()).collect();
    let runs: Vec<&str> = open.iter().map(|entry| entry.item.run.as_str()).collect();
    let versions: Vec<i64> = open.iter().map(|entry| entry.item.version + 1).collect();
    let (low, high) = span(&buckets);
    let rows = sqlx::query(RUN_LOCK).bind(&positions).bind(&buckets).bind(&runs).bind(low).bind(high);
    let mut standing = HashMap::new();
    for row in rows.fetch_all(&mut *tx).await? {
        let at = row.try_get::<i32, _>("i")? as usize;
        let held_by: Option<String> = row.try_get("owner_session")?;
        let numbers = (row.try_get::<i64, _>("epoch")?, row.try_get::<i64, _>("version")?);
        standing.insert(at, (held_by, numbers, row.try_get::<bool, _>("ended")?));
    }
    // Only now, with the runs locked, is it certain which commits are there.
    let rows = sqlx::query(WRITTEN).bind(&positions).bind(&buckets).bind(&runs).bind(&versions).bind(low).bind(high);
    let mut written = HashMap::new();
    for row in rows.fetch_all(&mut *tx).await? {
        let by: (String, i64, Vec<u8>) = (row.try_get("session_id")?, row.try_get("epoch")?, row.try_get("body_hash")?);
        written.insert(row.try_get::<i32, _>("i")? as usize, by);
    }
    let receipts = || open.iter().flat_map(|entry| &entry.receipts);
    let buckets: Vec<i32> = receipts().map(|receipt| receipt.call.bucket()).collect();
    let calls: Vec<&str> = receipts().map(|receipt| receipt.call.as_str()).collect();
    let (low, high) = span(&buckets);
    let mut existing: HashMap<String, Vec<u8>> = HashMap::new();
    if !calls.is_empty() {
        let rows = sqlx::query(EXISTING).bind(&buckets).bind(&calls).bind(low).bind(high);
        for row in rows.fetch_all(&mut *tx).await? {
            existing.insert(row.try_get("call_uid")?, row.try_get("request_hash")?);
        }
    }

    let mut go = Vec::new();
    // Runs that make a call again which an earlier step made with the same request: it has its receipt, perhaps its
    // outcome, and nothing else would tell them.
    let mut again: Vec<&str> = Vec::new();
    for mut entry in open {
        let (at, item) = (entry.at, entry.item);
        let repeated = written.get(&at).is_some_and(|(session, epoch, hash)| {
            session == owner.as_str() && *epoch == item.epoch && *hash == item.step.checkpoint.sha256()
        });
        let mine = standing.get(&at).is_some_and(|(held_by, numbers, ended)| {
            held_by.as_deref() == Some(owner.as_str()) && *numbers == (item.epoch, item.version) && !ended
        });
        let reused = entry
            .receipts
            .iter()
            .find(|receipt| existing.get(receipt.call.as_str()).is_some_and(|hash| *hash != receipt.request_hash));
        let answer = if repeated {
            Advanced::Done
        } else if !mine {
            Advanced::Lost
        } else if stale.contains(&at) {
            Advanced::Stale
        } else if let Some(receipt) = reused {
            Advanced::CallIdReused { call: receipt.call.clone() }
        } else {
            entry.settles = &[];
            let planned = entry.receipts.len();
            entry.receipts.retain(|receipt| !existing.contains_key(receipt.call.as_str()));
            if entry.receipts.len() < planned {
                again.push(item.run.as_str());
            }
            go.push(entry);
            continue;
        };
        answers.push((at, answer));
    }
    if !go.is_empty() {
        let mut batch = Batch::of(&mut go)?;
        let done = batch.write(&mut tx, owner, &go).await.map_err(StoreError::from)?;
        answers.extend(done.into_iter().map(|at| (at, Advanced::Done)));
    }
    if !again.is_empty() {
        sqlx::query(RING).bind(&again).bind(low).bind(high).execute(&mut *tx).await?;
    }
    tx.commit().await?;
    Ok(answers)
}
