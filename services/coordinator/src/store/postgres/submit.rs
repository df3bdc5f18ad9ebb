//! T1 for new runs: submit key, run, first checkpoint and its receipts in one commit.

use std::collections::{HashMap, HashSet};

use ditto_contracts::{Json, RunStatus, SessionId};
use sqlx::{PgPool, Row as _};

use super::{
    super::{
        NewReceipt, NewRun, Step, StoreError, StoreResult, Submitted,
        rows::{Kept, id, ms},
    },
    begin,
    columns::{Big, ErrorColumns, ReceiptColumns, clean, insert_receipts, json_bytes_opt, new_receipts},
    payloads, span,
};

const SUBMIT: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT now_ms() AS now), ",
    new_receipts!(),
    ", b AS MATERIALIZED (SELECT * FROM unnest($26::int[], $27::int[], $28::text[], $29::text[], $30::text[], $31::bytea[],
            $32::text[], $33::text[], $34::bytea[], $35::text[], $36::int8[], $37::text[], $38::int2[], $39::bytea[],
            $40::bytea[], $41::bool[], $42::bytea[], $43::int8[], $44::int8[], $45::int8[], $46::bytea[], $47::text[],
            $48::text[], $49::text[], $50::text[], $51::bool[])
        AS b(i, bucket, loop_id, namespace, submit_key, body_hash, loop_name, loop_rev, input, input_ref, budget_ms,
             traceparent, status, body, hash, boundary, progress, wake_ms, signal_seen, bell_seen, output, output_ref,
             error_class, error_code, error_message, error_retryable)),
     keyed AS (
        INSERT INTO submissions (namespace, submit_key, bucket, loop_id, body_hash, created_ms)
        SELECT b.namespace, b.submit_key, b.bucket, b.loop_id, b.body_hash, t.now FROM b, t WHERE b.submit_key IS NOT NULL
         ORDER BY b.namespace, b.submit_key
        ON CONFLICT DO NOTHING RETURNING loop_id),
     made AS (
        INSERT INTO loops (bucket, loop_id, namespace, submit_key, body_hash, loop_name, loop_rev, status, owner_session,
               epoch, version, bell_seen, wake_ms, deadline_ms, ended_ms, signal_seen, created_ms, traceparent, input,
               input_ref, output, output_ref, error_class, error_code, error_message, error_retryable)
        SELECT b.bucket, b.loop_id, b.namespace, b.submit_key, b.body_hash, b.loop_name, b.loop_rev, b.status,
               CASE WHEN b.body IS NOT NULL AND b.status IN (1, 2, 4) THEN $52::text END,
               CASE WHEN b.body IS NULL THEN 0 ELSE 1 END, CASE WHEN b.body IS NULL THEN 0 ELSE 1 END, b.bell_seen,
               b.wake_ms, t.now + b.budget_ms, CASE WHEN b.status > 4 THEN t.now END, coalesce(b.signal_seen, 0), t.now,
               b.traceparent, b.input, b.input_ref, b.output, b.output_ref, b.error_class, b.error_code,
               b.error_message, b.error_retryable
          FROM b, t
         WHERE (b.submit_key IS NULL OR (b.loop_id IN (SELECT loop_id FROM keyed)) IS TRUE)
        ON CONFLICT DO NOTHING RETURNING loop_id),
     ok AS MATERIALIZED (SELECT b.* FROM b WHERE (b.loop_id IN (SELECT loop_id FROM made)) IS TRUE),
     cp AS (
        INSERT INTO checkpoints (bucket, loop_id, version, epoch, session_id, body_hash, body, boundary, progress, created_ms)
        SELECT ok.bucket, ok.loop_id, 1, 1, $52::text, ok.hash, ok.body, ok.boundary, ok.progress, t.now
          FROM ok, t WHERE ok.body IS NOT NULL),
     rc AS (",
    insert_receipts!(),
    ") SELECT i FROM ok"
);

/// What is stored for runs that were not created: by key where there is one, else by run.
const STORED: &str = "
    SELECT b.i, coalesce(k.loop_id, l.loop_id) AS loop_id, coalesce(k.body_hash, l.body_hash) AS body_hash
      FROM unnest($1::int[], $2::int[], $3::text[], $4::text[], $5::text[]) AS b(i, bucket, loop_id, namespace, submit_key)
      LEFT JOIN submissions k ON k.namespace = b.namespace AND k.submit_key = b.submit_key
      LEFT JOIN loops l ON l.bucket = b.bucket AND l.loop_id = b.loop_id AND l.bucket BETWEEN $6 AND $7
     WHERE k.loop_id IS NOT NULL OR l.loop_id IS NOT NULL";

#[derive(Default)]
struct RunColumns<'a> {
    item: Vec<i32>,
    bucket: Vec<i32>,
    run: Vec<&'a str>,
    namespace: Vec<&'a str>,
    key: Vec<Option<&'a str>>,
    body_hash: Vec<&'a [u8]>,
    name: Vec<&'a str>,
    revision: Vec<&'a str>,
    input: Vec<Option<Json>>,
    input_ref: Vec<Option<String>>,
    budget_ms: Vec<Option<i64>>,
    traceparent: Vec<Option<std::borrow::Cow<'a, str>>>,
    step: StepColumns<'a>,
}

/// The columns of a step, shared by submit and advance.
#[derive(Default)]
pub(super) struct StepColumns<'a> {
    status: Vec<i16>,
    body: Vec<Option<Json>>,
    hash: Vec<Option<Vec<u8>>>,
    boundary: Vec<bool>,
    progress: Vec<Option<Json>>,
    wake_ms: Vec<Option<i64>>,
    signal_seen: Vec<Option<i64>>,
    bell_seen: Vec<i64>,
    output: Vec<Option<Json>>,
    output_ref: Vec<Option<String>>,
    error: ErrorColumns<'a>,
}

impl<'a> StepColumns<'a> {
    pub(super) fn push(&mut self, bucket: i32, step: Option<&'a Step>, big: &mut Big) -> StoreResult<()> {
        let ending = step.and_then(|step| step.ending.as_ref());
        let status = match (step, ending) {
            (None, _) => RunStatus::Queued,
            (Some(step), Some(ending)) if step.status.is_ended() && ending.status == step.status => step.status,
            (Some(step), None) if !step.status.is_ended() => step.status,
            (Some(_), _) => {
                return Err(StoreError::BadItem("a step needs an ending exactly when its status is ended".into()));
            }
        };
        let (output, output_ref) = big.place(bucket, Kept::of_opt(ending.and_then(|e| e.output.as_ref()))?);
        self.status.push(status.code());
        self.body.push(step.map(|step| step.checkpoint.clone()));
        self.hash.push(step.map(|step| step.checkpoint.sha256().to_vec()));
        self.boundary.push(step.is_some_and(|step| step.boundary));
        self.progress.push(step.and_then(|step| step.progress.clone()));
        self.wake_ms.push(step.and_then(|step| step.wake_ms));
        self.signal_seen.push(step.and_then(|step| step.signal_seen));
        self.bell_seen.push(step.map_or(0, |step| step.bell_seen));
        self.output.push(output);
        self.output_ref.push(output_ref);
        self.error.push(ending.and_then(|ending| ending.error.as_ref()));
        Ok(())
    }

    pub(super) fn bind<'q>(&self, query: super::columns::Statement<'q>) -> super::columns::Statement<'q> {
        let query = query
            .bind(&self.status)
            .bind(json_bytes_opt(&self.body))
            .bind(&self.hash)
            .bind(&self.boundary)
            .bind(json_bytes_opt(&self.progress))
            .bind(&self.wake_ms)
            .bind(&self.signal_seen)
            .bind(&self.bell_seen)
            .bind(json_bytes_opt(&self.output))
            .bind(&self.output_ref);
        self.error.bind(query)
    }
}

/// The receipts of a step without exact repetitions; `Err`: a call id with two different requests.
pub(super) fn distinct(receipts: &[NewReceipt]) -> Result<Vec<&NewReceipt>, &NewReceipt> {
    let mut seen: HashMap<&str, &[u8; 32]> = HashMap::with_capacity(receipts.len());
    let mut all = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        match seen.insert(receipt.call.as_str(), &receipt.request_hash) {
            None => all.push(receipt),
            Some(hash) if *hash == receipt.request_hash => {}
            Some(_) => return Err(receipt),
        }
    }
    Ok(all)
}

/// Creates runs.
pub(super) async fn submit(pool: &PgPool, owner: &SessionId, items: &[NewRun]) -> StoreResult<Vec<Submitted>> {
    // Of a run or a key that is given twice the first one counts; the others are answered from the ledger.
    let (mut named, mut keyed) = (HashSet::with_capacity(items.len()), HashSet::new());
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.retain(|at| {
        let item = &items[*at];
        named.insert(&item.run) && item.key.as_ref().is_none_or(|key| keyed.insert((&item.namespace, key)))
    });
    order.sort_unstable_by(|a, b| items[*a].run.cmp(&items[*b].run));
    let mut runs = RunColumns::default();
    let mut receipts = ReceiptColumns::default();
    let mut big = Big::default();
    for at in order {
        let item = &items[at];
        let bucket = item.run.bucket();
        let (input, input_ref) = big.place(bucket, Kept::of(&item.input)?);
        runs.item.push(at as i32);
        runs.bucket.push(bucket);
        runs.run.push(item.run.as_str());
        runs.namespace.push(item.namespace.as_str());
        runs.key.push(item.key.as_ref().map(|key| key.as_str()));
        runs.body_hash.push(&item.body_hash);
        runs.name.push(item.name.as_str());
        runs.revision.push(item.revision.as_str());
        runs.input.push(input);
        runs.input_ref.push(input_ref);
        runs.budget_ms.push(item.deadline_ms.map(ms));
        runs.traceparent.push(item.traceparent.as_deref().map(clean));
        runs.step.push(bucket, item.first.as_ref(), &mut big)?;
        if let Some(first) = &item.first {
            let distinct = distinct(&first.receipts)
                .map_err(|receipt| StoreError::BadItem(format!("call {} is given with two requests", receipt.call)))?;
            for receipt in distinct {
                receipts.push(at as i32, item.run.as_str(), 1, receipt, &mut big)?;
            }
        }
    }
    let query = receipts
        .bind(sqlx::query(SUBMIT))
        .bind(&runs.item)
        .bind(&runs.bucket)
        .bind(&runs.run)
        .bind(&runs.namespace)
        .bind(&runs.key)
        .bind(&runs.body_hash)
        .bind(&runs.name)
        .bind(&runs.revision)
        .bind(json_bytes_opt(&runs.input))
        .bind(&runs.input_ref)
        .bind(&runs.budget_ms)
        .bind(&runs.traceparent);
    let query = runs.step.bind(query).bind(owner.as_str());
    let found = if big.values.is_empty() {
        query.fetch_all(pool).await?
    } else {
        let mut tx = begin(pool).await?;
        payloads::store(&mut tx, &mut big).await?;
        let found = query.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        found
    };
    let mut answers: Vec<Option<Submitted>> = items.iter().map(|_| None).collect();
    for row in found {
        if let Some(answer) = answers.get_mut(row.try_get::<i32, _>(0)? as usize) {
            *answer = Some(Submitted::Created);
        }
    }
    if answers.iter().any(Option::is_none) {
        look_again(pool, items, &mut answers).await?;
    }
    let gone = || StoreError::Unavailable("a run was neither created nor found".into());
    answers.into_iter().map(|answer| answer.ok_or_else(gone)).collect()
}

async fn look_again(pool: &PgPool, items: &[NewRun], answers: &mut [Option<Submitted>]) -> StoreResult<()> {
    let open: Vec<usize> = (0..items.len()).filter(|at| answers[*at].is_none()).collect();
    let buckets: Vec<i32> = open.iter().map(|at| items[*at].run.bucket()).collect();
    let (low, high) = span(&buckets);
    let found = sqlx::query(STORED)
        .bind(open.iter().map(|at| *at as i32).collect::<Vec<_>>())
        .bind(&buckets)
        .bind(open.iter().map(|at| items[*at].run.as_str()).collect::<Vec<_>>())
        .bind(open.iter().map(|at| items[*at].namespace.as_str()).collect::<Vec<_>>())
        .bind(open.iter().map(|at| items[*at].key.as_ref().map(|key| key.as_str())).collect::<Vec<_>>())
        .bind(low)
        .bind(high)
        .fetch_all(pool)
        .await?;
    for row in found {
        let at = row.try_get::<i32, _>("i")? as usize;
        let Some(item) = items.get(at) else { continue };
        let run = id(row.try_get("loop_id")?)?;
        let same_body = row.try_get::<&[u8], _>("body_hash")? == item.body_hash;
        answers[at] = Some(if !same_body {
            Submitted::KeyReused { run }
        } else if run == item.run {
            Submitted::Created
        } else {
            Submitted::Duplicate { run }
        });
    }
    Ok(())
}
