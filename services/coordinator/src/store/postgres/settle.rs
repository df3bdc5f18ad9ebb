//! T3: results of attempts become outcomes (rows 4, 5, 8 and 9 of the receipt table).

use std::collections::HashMap;

use ditto_contracts::{EffectClass, JsonWriter, ReceiptState, RunId, SessionId, Verdict};
use ditto_graph::receipt::ReceiptEvent;
use sqlx::{PgConnection, PgPool, Row as _};

use super::{
    super::{
        Settle, Settled, StoreResult,
        rows::{self, Kept},
    },
    LogEntry, begin,
    columns::{Big, SettleColumns, fence_column},
    log,
    model::{Said, Stored, Update, lock, write},
    payloads, span,
};

/// Reads the arrays of [`SettleColumns::bind`], given as text, as the rows `s` and writes those that may be written.
/// Needs `t(now)` and the bounds of the buckets. `st` is what was written; `as_given` tells whether the state is the
/// verdict's.
macro_rules! settle_rows {
    ($arrays:literal, $low:literal, $high:literal) => {
        concat!(
            "s AS MATERIALIZED (SELECT * FROM unnest(",
            $arrays,
            ") AS s(n, i, bucket, call_uid, loop_id, fence, token, hash, verdict, output, output_ref, error_class,
                   error_code, error_message, error_retryable)),
            st AS (
              UPDATE receipts r
                 SET state = settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored),
                     outcome = s.output, outcome_ref = s.output_ref,
                     error_class = s.error_class, error_code = s.error_code, error_message = s.error_message,
                     error_retryable = s.error_retryable,
                     settle_rev = r.settle_rev + 1,
                     settled_by = CASE WHEN asked_for(settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored), r.effect_class)
                                       THEN r.settled_by WHEN r.state = 2 OR s.token IS NULL THEN 1 ELSE 2 END,
                     settled_ms = CASE WHEN asked_for(settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored), r.effect_class)
                                       THEN NULL ELSE t.now END,
                     due_ms = CASE WHEN asked_for(settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored), r.effect_class)
                                   THEN t.now ELSE r.due_ms END,
                     unknown_ms = CASE WHEN settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored) = 5
                                       THEN coalesce(r.unknown_ms, t.now) ELSE r.unknown_ms END,
                     unresolved = CASE WHEN settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored) = 5
                                       THEN r.unresolved ELSE 0 END
                FROM s, t
               WHERE r.bucket BETWEEN ",
            $low,
            " AND ",
            $high,
            " AND r.bucket = s.bucket AND r.call_uid = s.call_uid
                 AND (s.loop_id IS NULL OR r.loop_id = s.loop_id)
                 AND CASE WHEN s.token IS NULL
                     THEN s.fence = 0 AND r.state = 1 AND r.fence = 0 AND r.effect_class = 1 AND NOT r.exclusive
                          AND r.request_hash = s.hash AND s.verdict <> 6
                     ELSE r.fence = s.fence AND r.claim_token = s.token
                          AND (r.state = 2
                               OR r.state = 5 AND r.settled_ms IS NULL AND settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored) IN (3, 4)
                               OR r.state = 1 AND r.unresolved > 0 AND (s.verdict = 3
                                  OR r.effect_class <> 3 AND settled_state(s.verdict, r.effect_class, r.unresolved, r.rejections_stored) = 4))
                     END
              RETURNING s.n, s.i, r.bucket, r.loop_id, r.state, r.settled_ms, r.settle_rev, r.state = s.verdict AS as_given)"
        )
    };
}
pub(super) use settle_rows;

/// Two kinds of rows come back: settlements, and runs whose bell rang with their live owner.
const SETTLE: &str = concat!(
    "WITH t AS MATERIALIZED (SELECT now_ms() AS now), ",
    settle_rows!(
        "$1::int[], $2::int[], $3::int[], $4::text[], $5::text[], $6::int[], $7::text[], $8::bytea[], $9::int2[],
         $10::bytea[], $11::text[], $12::text[], $13::text[], $14::text[], $15::bool[]",
        "$16",
        "$17"
    ),
    ", rung AS (
          UPDATE loops l SET bell = l.bell + 1
            FROM (SELECT DISTINCT bucket, loop_id FROM st ORDER BY bucket, loop_id) x
           WHERE l.bucket BETWEEN $16 AND $17 AND l.bucket = x.bucket AND l.loop_id = x.loop_id AND l.ended_ms IS NULL
          RETURNING l.loop_id, l.owner_session)
     SELECT n, loop_id, state, settled_ms IS NOT NULL AS settled, settle_rev, NULL::text AS owner FROM st
     UNION ALL
     SELECT NULL, loop_id, NULL, NULL, NULL, owner_session FROM rung
      WHERE EXISTS (SELECT 1 FROM sessions WHERE session_id = owner_session AND dead_ms IS NULL)"
);

/// What became of a settlement that the statement did not write.
pub(super) struct Again {
    /// The receipt before; `None`: there is none.
    pub(super) run: Option<RunId>,
    state: ReceiptState,
    settled: bool,
    settle_rev: i32,
    owner: Option<SessionId>,
    applied: bool,
}

impl Again {
    /// Whether it stands, of this run, with the state of its verdict.
    pub(super) fn is_as_given(&self, run: &RunId, settle: &Settle) -> bool {
        self.applied && self.run.as_ref() == Some(run) && self.state == settle.verdict.into()
    }
}

/// Whether the very same settlement was written before.
fn stands(stored: &Stored, settle: &Settle) -> bool {
    let receipt = &stored.receipt;
    let read_only = receipt.class == EffectClass::ReadOnly;
    let holder = match &settle.token {
        Some(token) => {
            receipt.fence == settle.fence && receipt.claim.as_ref().is_some_and(|claim| claim.token == *token)
        }
        None => read_only && settle.fence == 0 && receipt.fence == 0 && stored.request_hash == settle.request_hash,
    };
    let state = match settle.verdict {
        Verdict::Unknown if read_only => ReceiptState::Failed,
        verdict => verdict.into(),
    };
    // A refusal or a cancel that proves nothing was written as unknown.
    let in_doubt = receipt.state == ReceiptState::Unknown && !read_only && settle.verdict != Verdict::Succeeded;
    holder && (receipt.state == state || in_doubt)
}

/// Settles one by one, with the receipts locked: late evidence for what a run may have taken in as unknown, repetitions,
/// and evidence that changes nothing, which is kept.
pub(super) async fn again(connection: &mut PgConnection, settles: &[&Settle]) -> StoreResult<Vec<Again>> {
    let mut known = lock(&mut *connection, settles.iter().map(|settle| &settle.call)).await?;
    let mut all = Vec::with_capacity(settles.len());
    let (mut updates, mut entries) = (Vec::new(), Vec::new());
    for settle in settles {
        let Some(stored) = known.get_mut(&settle.call) else {
            let state = ReceiptState::Planned;
            all.push(Again { run: None, state, settled: false, settle_rev: 0, owner: None, applied: false });
            continue;
        };
        let event = match &settle.token {
            Some(token) => ReceiptEvent::Answer { fence: settle.fence, token: token.clone(), verdict: settle.verdict },
            None => ReceiptEvent::UnclaimedAnswer {
                hash_matches: settle.fence == 0 && stored.request_hash == settle.request_hash,
                verdict: settle.verdict,
            },
        };
        let applied = if let Ok(change) = stored.receipt.apply(&event) {
            let output = match settle.output_ref {
                Some(reference) => Kept { reference: Some(reference), ..Kept::default() },
                None => Kept::of_opt(settle.output.as_ref())?,
            };
            let said = Said { output, error: settle.error.clone() };
            let update = Update::of(stored.clone(), change, Some(said));
            stored.receipt = update.after.clone();
            updates.push(update);
            true
        } else if stands(stored, settle) {
            true
        } else {
            entries.push(evidence(settle));
            false
        };
        all.push(Again {
            run: Some(stored.run.clone()),
            state: stored.receipt.state,
            settled: stored.receipt.settled,
            settle_rev: stored.receipt.settle_rev,
            owner: None,
            applied,
        });
    }
    log(&mut *connection, &entries).await?;
    write(&mut *connection, &updates).await?;
    let runs: Vec<&RunId> = all.iter().filter(|again| again.applied).filter_map(|again| again.run.as_ref()).collect();
    let owners = owners(&mut *connection, &runs).await?;
    for again in &mut all {
        again.owner = again.run.as_ref().and_then(|run| owners.get(run).cloned());
    }
    Ok(all)
}

async fn owners(connection: &mut PgConnection, runs: &[&RunId]) -> StoreResult<HashMap<RunId, SessionId>> {
    const OWNERS: &str = "
        SELECT l.loop_id, l.owner_session FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
          JOIN loops l ON l.bucket BETWEEN $3 AND $4 AND l.bucket = b.bucket AND l.loop_id = b.loop_id
          JOIN sessions s ON s.session_id = l.owner_session AND s.dead_ms IS NULL";
    if runs.is_empty() {
        return Ok(HashMap::new());
    }
    let buckets: Vec<i32> = runs.iter().map(|run| run.bucket()).collect();
    let texts: Vec<&str> = runs.iter().map(|run| run.as_str()).collect();
    let (low, high) = span(&buckets);
    let found = sqlx::query(OWNERS).bind(&buckets).bind(&texts).bind(low).bind(high).fetch_all(connection).await?;
    found.iter().map(|row| Ok((rows::id(row.try_get(0)?)?, rows::id(row.try_get(1)?)?))).collect()
}

/// A settlement as evidence for the attempt log (I15).
pub(super) fn evidence(settle: &Settle) -> LogEntry {
    let mut w = JsonWriter::new();
    w.begin_object().key("verdict").string(settle.verdict.as_str());
    if let Some(output) = &settle.output {
        w.key("output").value(output);
    }
    if let Some(reference) = &settle.output_ref {
        w.key("outputRef").string(&reference.to_string());
    }
    if let Some(error) = settle.error.as_ref().and_then(|error| rows::encode(error).ok()) {
        w.key("error").value(&error);
    }
    LogEntry {
        bucket: settle.call.bucket(),
        call: settle.call.as_str().to_owned(),
        fence: fence_column(settle.fence).max(0),
        session: Some(settle.session.as_str().to_owned()),
        token: settle.token.as_ref().map(|token| token.as_str().to_owned()),
        event: 3,
        detail: w.finish().as_bytes().to_vec(),
    }
}

/// Settles a batch.
pub(super) async fn settle(pool: &PgPool, items: &[Settle]) -> StoreResult<Vec<Settled>> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_unstable_by(|a, b| items[*a].call.cmp(&items[*b].call));
    let mut columns = SettleColumns::default();
    let mut big = Big::default();
    for at in order {
        columns.push(at as i32, 0, None, &items[at], &mut big)?;
    }
    let (low, high) = span(&columns.bucket);
    let query = columns.bind(sqlx::query(SETTLE)).bind(low).bind(high);
    let found = if big.values.is_empty() {
        query.fetch_all(pool).await?
    } else {
        let mut tx = begin(pool).await?;
        payloads::store(&mut tx, &mut big).await?;
        let found = query.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        found
    };
    let mut answers: Vec<Option<Settled>> = items.iter().map(|_| None).collect();
    let mut owners: HashMap<RunId, SessionId> = HashMap::new();
    for row in &found {
        let run: RunId = rows::id(row.try_get("loop_id")?)?;
        match row.try_get::<Option<i32>, _>("n")? {
            None => {
                if let Some(owner) = rows::id_opt(row.try_get("owner")?)? {
                    owners.insert(run, owner);
                }
            }
            Some(n) => {
                let done = Settled::Done {
                    run,
                    state: rows::code(ReceiptState::from_code(row.try_get("state")?), "receipt state")?,
                    settled: row.try_get("settled")?,
                    settle_rev: row.try_get("settle_rev")?,
                    owner: None,
                };
                if let Some(answer) = answers.get_mut(n as usize) {
                    *answer = Some(done);
                }
            }
        }
    }
    for answer in answers.iter_mut().flatten() {
        if let Settled::Done { run, owner, .. } = answer {
            *owner = owners.get(run).cloned();
        }
    }
    if answers.iter().any(Option::is_none) {
        look_again(pool, items, &mut answers).await?;
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or(Settled::Missing)).collect())
}

/// What the statement left: see [`again`].
async fn look_again(pool: &PgPool, items: &[Settle], answers: &mut [Option<Settled>]) -> StoreResult<()> {
    let open: Vec<usize> = (0..items.len()).filter(|at| answers[*at].is_none()).collect();
    let settles: Vec<&Settle> = open.iter().map(|at| &items[*at]).collect();
    let mut tx = begin(pool).await?;
    let all = again(&mut tx, &settles).await?;
    tx.commit().await?;
    for (at, again) in open.into_iter().zip(all) {
        answers[at] = Some(match again.run {
            None => Settled::Missing,
            Some(_) if !again.applied => Settled::Logged,
            Some(run) => Settled::Done {
                run,
                state: again.state,
                settled: again.settled,
                settle_rev: again.settle_rev,
                owner: again.owner,
            },
        });
    }
    Ok(())
}
