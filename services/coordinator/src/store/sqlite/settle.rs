//! T3: what workers, backends and persons say about attempts.

use std::collections::HashMap;

use ditto_contracts::{CallUid, Json, JsonWriter, ReceiptState, RunId, Verdict};
use ditto_graph::receipt::{
    AttemptEvent, KeyEvidence, QueryAnswer as PureAnswer, ReceiptEvent, Reconcile, Refused, reconcile_next,
};
use sqlx::{Row as _, SqliteConnection};

use super::{
    batch::{Reads, Writes, each},
    payloads,
    receipt::{self, Entry, Said, Stored},
    rules::Settlement,
    runs,
    writer::Turn,
};
use crate::store::{
    Changed, QueryAnswer, Resolution, Resolved, Settle, Settled, StoreResult,
    rows::{self, Kept},
};

/// What became of one settlement, before anybody is told.
pub(super) struct Applied {
    /// The receipt as it stands now; `None`: there is none.
    pub(super) receipt: Option<Stored>,
    pub(super) result: Settlement,
    /// It stands as the worker said it.
    pub(super) as_given: bool,
    /// It was settled as unknown before, and a run may have gone on with that.
    pub(super) late_news: bool,
}

impl Applied {
    /// The answer, with the owner from `bell`.
    pub(super) fn answer(&self, bell: &runs::Bell) -> Settled {
        match (&self.receipt, self.result) {
            (None, _) => Settled::Missing,
            (Some(_), Settlement::NoMatch) => Settled::Logged,
            (Some(r), Settlement::Applied | Settlement::Same) => Settled::Done {
                run: r.run.clone(),
                state: r.pure.state,
                settled: r.pure.settled,
                settle_rev: r.pure.settle_rev,
                owner: bell.owner(&r.run),
            },
        }
    }
}

fn said(settle: &Settle) -> StoreResult<Said> {
    let output = match settle.output_ref {
        Some(reference) => Kept { reference: Some(reference), ..Kept::default() },
        None => Kept::of_opt(settle.output.as_ref())?,
    };
    Ok(Said { output, error: settle.error.clone() })
}

/// What a batch of settlements comes to, before anything is written.
pub(super) struct Batch {
    pub(super) applied: Vec<Applied>,
    log: Vec<Entry>,
    news: Vec<(RunId, Json)>,
}

impl Batch {
    /// Writes what is seldom there: large outcomes, what matches nothing, and signals about late news. The receipts go
    /// into `writes`. Rings no bell.
    pub(super) async fn write(&self, turn: &mut Turn<'_>, now: i64, writes: &mut Writes) -> StoreResult<()> {
        let changed: Vec<&Stored> = self
            .applied
            .iter()
            .filter(|a| a.result == Settlement::Applied)
            .filter_map(|a| a.receipt.as_ref())
            .collect();
        if receipt::outputs(&changed).any(|(_, kept)| kept.big.is_some()) {
            payloads::keep(turn.connection()?, now, receipt::outputs(&changed)).await?;
        }
        if !self.log.is_empty() {
            receipt::log(turn.connection()?, now, &self.log).await?;
        }
        if !self.news.is_empty() {
            runs::append_resolved(turn.connection()?, now, &self.news).await?;
        }
        receipt::write_to(writes, &changed);
        Ok(())
    }
}

/// The values of settlements in the form they are stored in.
pub(super) fn prepare(settles: &[&Settle]) -> StoreResult<Vec<Said>> {
    settles.iter().map(|settle| said(settle)).collect()
}

/// Decides a batch about receipts that were read.
pub(super) fn decide(
    now: i64,
    settles: &[&Settle],
    said: Vec<Said>,
    mut receipts: HashMap<CallUid, Stored>,
) -> StoreResult<Batch> {
    let (mut log, mut news) = (Vec::new(), Vec::new());
    let mut applied = Vec::with_capacity(settles.len());
    for (settle, said) in settles.iter().zip(said) {
        let Some(mut r) = receipts.remove(&settle.call) else {
            let result = Settlement::NoMatch;
            applied.push(Applied { receipt: None, result, as_given: false, late_news: false });
            continue;
        };
        let was_known = r.was_settled_unknown();
        let event = match &settle.token {
            Some(token) => ReceiptEvent::Answer { fence: settle.fence, token: token.clone(), verdict: settle.verdict },
            None => ReceiptEvent::UnclaimedAnswer {
                hash_matches: r.request_hash == settle.request_hash,
                verdict: settle.verdict,
            },
        };
        let result = r.settle(&event, settle.verdict, said, now);
        if result == Settlement::NoMatch {
            log.push(late(settle)?);
        }
        let late_news = was_known && result == Settlement::Applied;
        if late_news {
            news.push((r.run.clone(), resolved_body(&r)));
        }
        let as_given = result != Settlement::NoMatch && r.pure.state == ReceiptState::from(settle.verdict);
        applied.push(Applied { receipt: Some(r), result, as_given, late_news });
    }
    Ok(Batch { applied, log, news })
}

fn late(settle: &Settle) -> StoreResult<Entry> {
    let mut detail = JsonWriter::new();
    detail.begin_object().key("verdict").string(settle.verdict.as_str());
    if let Some(output) = &settle.output {
        detail.key("output").value(output);
    }
    if let Some(reference) = &settle.output_ref {
        detail.key("outputRef").string(&reference.to_string());
    }
    if let Some(error) = &settle.error {
        detail.key("error").value(&rows::encode(error)?);
    }
    Ok(Entry {
        call: settle.call.clone(),
        fence: settle.fence,
        session: Some(settle.session.as_str().to_owned()),
        token: settle.token.as_ref().map(|token| token.as_str().to_owned()),
        event: AttemptEvent::Late,
        detail: detail.finish(),
    })
}

/// Body of the signal that tells a run about an outcome it may have taken in as unknown.
fn resolved_body(r: &Stored) -> Json {
    let mut body = JsonWriter::new();
    body.begin_object()
        .key("call")
        .string(r.call.as_str())
        .key("state")
        .string(r.pure.state.as_str())
        .key("settleRev")
        .integer(r.pure.settle_rev);
    body.finish()
}

/// T3 for calls whose run this process does not drive.
pub(super) async fn settle(mut turn: Turn<'_>, items: &[Settle]) -> StoreResult<Vec<Settled>> {
    let items: Vec<&Settle> = items.iter().collect();
    let said = prepare(&items)?;
    let calls: Vec<&CallUid> = items.iter().map(|settle| &settle.call).collect();
    let mut reads = Reads::new();
    let place = receipt::plan(&mut reads, &calls);
    let (now, found) = turn.read(reads).await?;
    let batch = decide(now, &items, said, receipt::found(now, &found, &place)?)?;
    let mut writes = Writes::default();
    batch.write(&mut turn, now, &mut writes).await?;
    let stands = batch.applied.iter().filter(|a| a.result != Settlement::NoMatch);
    runs::ring_to(&mut writes, stands.filter_map(|a| Some(a.receipt.as_ref()?.run.clone())));
    let bell = runs::Bell::read(turn.commit(writes).await?)?;
    Ok(batch.applied.iter().map(|a| a.answer(&bell)).collect())
}

/// Rows 7 and 8: what queries found out.
pub(super) async fn reconcile(
    connection: &mut SqliteConnection,
    now: i64,
    answers: &[(CallUid, QueryAnswer)],
) -> StoreResult<Vec<Option<Changed>>> {
    let calls: Vec<&CallUid> = answers.iter().map(|(call, _)| call).collect();
    let mut receipts = receipt::load(connection, now, &calls).await?;
    let (mut changed, mut log, mut news) = (Vec::new(), Vec::new(), Vec::new());
    let mut results: Vec<Option<Stored>> = Vec::with_capacity(answers.len());
    for (call, answer) in answers {
        let Some(mut r) = receipts.remove(call) else {
            results.push(None);
            continue;
        };
        let was_known = r.was_settled_unknown();
        let said = match answer {
            QueryAnswer::Applied { output } => Said { output: Kept::of_opt(output.as_ref())?, error: None },
            QueryAnswer::Refused { output, error } => {
                Said { output: Kept::of_opt(output.as_ref())?, error: Some(error.clone()) }
            }
            QueryAnswer::Conflict | QueryAnswer::InProgress | QueryAnswer::Absent | QueryAnswer::Unanswered => {
                Said::default()
            }
        };
        let (fence, asked) = (r.pure.fence, pure_answer(answer));
        let pause = rows::backoff_ms(r.reconcile_no.max(1));
        let (did, logged) = match reconcile_next(&r.pure, fence, asked) {
            Reconcile::Apply(event) => match r.apply(&event, said, pause, now) {
                Ok(change) => (true, change.log.is_some()),
                Err(refused) => (false, refused.is_evidence()),
            },
            Reconcile::AskAgain => (false, false),
            // An answer that comes too late to decide anything is kept.
            Reconcile::Nothing => (false, matches!(asked, PureAnswer::Known(_))),
        };
        if logged {
            log.push(Entry {
                call: call.clone(),
                fence,
                session: None,
                token: None,
                event: AttemptEvent::QueryAnswer,
                detail: rows::encode(&serde_json::json!({ "answer": word(answer), "applied": did }))?,
            });
        }
        if did {
            if was_known {
                news.push((r.run.clone(), resolved_body(&r)));
            }
            changed.push(r.clone());
        }
        results.push(did.then_some(r));
    }
    receipt::write(connection, now, &changed).await?;
    receipt::log(connection, now, &log).await?;
    runs::append_resolved(connection, now, &news).await?;
    let bell = runs::ring(connection, changed.iter().map(|r| r.run.clone())).await?;
    Ok(results.into_iter().map(|r| r.map(|r| r.changed(&bell))).collect())
}

/// How an answer stands in the log.
const fn word(answer: &QueryAnswer) -> &'static str {
    match answer {
        QueryAnswer::Applied { .. } => "applied",
        QueryAnswer::Refused { .. } => "refused",
        QueryAnswer::Conflict => "conflict",
        QueryAnswer::Absent => "absent",
        QueryAnswer::InProgress => "in_progress",
        QueryAnswer::Unanswered => "unanswered",
    }
}

const fn pure_answer(answer: &QueryAnswer) -> PureAnswer {
    match answer {
        QueryAnswer::Applied { .. } => PureAnswer::Known(KeyEvidence::Applied),
        QueryAnswer::Refused { .. } => PureAnswer::Known(KeyEvidence::Refused),
        QueryAnswer::Conflict => PureAnswer::Known(KeyEvidence::Conflict),
        QueryAnswer::InProgress => PureAnswer::Known(KeyEvidence::InProgress),
        QueryAnswer::Absent => PureAnswer::Absent,
        QueryAnswer::Unanswered => PureAnswer::NoAnswer,
    }
}

/// Rows 8 and 13: a person's decision.
pub(super) async fn resolve(
    connection: &mut SqliteConnection,
    now: i64,
    call: &CallUid,
    settle_rev: i32,
    resolution: &Resolution,
    who: &str,
    reason: &str,
) -> StoreResult<Resolved> {
    let Some(mut r) = receipt::load(connection, now, &[call]).await?.remove(call) else {
        return Ok(Resolved::Missing);
    };
    let (word, output) = match resolution {
        Resolution::Succeeded { output } => ("succeeded", output.as_ref()),
        Resolution::Failed => ("failed", None),
        Resolution::AnotherAttempt => ("another_attempt", None),
    };
    let detail = serde_json::json!({
        "resolution": word, "settleRev": settle_rev, "who": who, "reason": reason,
        "output": output.map(|output| data_encoding::HEXLOWER.encode(&output.sha256())),
    });
    let detail = rows::encode(&detail)?;
    if said_before(connection, call, &detail).await? {
        let bell = runs::ring(connection, [r.run.clone()].into_iter()).await?;
        return Ok(Resolved::Done(r.changed(&bell)));
    }
    let event = match resolution {
        Resolution::Succeeded { .. } => ReceiptEvent::Resolve { settle_rev, verdict: Verdict::Succeeded },
        Resolution::Failed => ReceiptEvent::Resolve { settle_rev, verdict: Verdict::Failed },
        Resolution::AnotherAttempt => {
            let session_over = session_is_over(connection, now, r.session()).await?;
            ReceiptEvent::AuthoriseAttempt { settle_rev, session_over }
        }
    };
    let was_known = r.was_settled_unknown();
    let fence = r.pure.fence;
    let said = Said { output: Kept::of_opt(output)?, error: resolution_error(resolution) };
    if let Err(refused) = r.apply(&event, said, 0, now) {
        return Ok(match refused.reason {
            Refused::SessionNotOver => Resolved::SessionMayLive,
            _ if r.pure.settle_rev != settle_rev => {
                Resolved::Conflict { settle_rev: r.pure.settle_rev, state: r.pure.state }
            }
            _ => Resolved::NotUnknown { state: r.pure.state },
        });
    }
    receipt::write(connection, now, std::slice::from_ref(&r)).await?;
    let event = AttemptEvent::Person;
    let entry = Entry { call: call.clone(), fence, session: None, token: None, event, detail };
    receipt::log(connection, now, &[entry]).await?;
    if was_known && r.pure.settled {
        runs::append_resolved(connection, now, &[(r.run.clone(), resolved_body(&r))]).await?;
    }
    let bell = runs::ring(connection, [r.run.clone()].into_iter()).await?;
    Ok(Resolved::Done(r.changed(&bell)))
}

fn resolution_error(resolution: &Resolution) -> Option<ditto_contracts::WireError> {
    use ditto_contracts::{ErrorClass, WireError, codes};
    match resolution {
        Resolution::Failed => {
            Some(WireError::new(ErrorClass::Failed, codes::TOOL_FAILED, "a person found that it did not happen"))
        }
        Resolution::Succeeded { .. } | Resolution::AnotherAttempt => None,
    }
}

async fn said_before(connection: &mut SqliteConnection, call: &CallUid, detail: &Json) -> StoreResult<bool> {
    let found = sqlx::query(
        "SELECT 1 FROM attempts WHERE bucket = ?1 AND call_uid = ?2 AND event = ?3 AND detail = ?4 LIMIT 1",
    )
    .bind(call.bucket())
    .bind(call.as_str())
    .bind(AttemptEvent::Person as i16)
    .bind(detail.as_bytes())
    .fetch_optional(connection)
    .await?;
    Ok(found.is_some())
}

/// Whether a session cannot hold an attempt any more: it ended, or has been silent for a day.
async fn session_is_over(connection: &mut SqliteConnection, now: i64, session: Option<&str>) -> StoreResult<bool> {
    let Some(session) = session else { return Ok(true) };
    let found = sqlx::query("SELECT closed, dead_ms FROM sessions WHERE session_id = ?1")
        .bind(session)
        .fetch_optional(connection)
        .await?;
    let Some(row) = found else { return Ok(true) };
    let (closed, dead_ms): (bool, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    Ok(closed || dead_ms.is_some_and(|dead| dead.saturating_add(rows::SILENT_MS) <= now))
}

/// Runs of changed receipts.
pub(super) fn runs_of(changed: &[Stored]) -> impl Iterator<Item = RunId> + '_ {
    changed.iter().map(|r| r.run.clone())
}

const HELD: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) \
     SELECT r.call_uid, r.settled_ms IS NOT NULL, r.cancel_ms IS NOT NULL \
     FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid \
     WHERE r.settled_ms IS NOT NULL OR r.cancel_ms IS NOT NULL";

/// Of these held calls: which are settled, and which have a cancel asked for.
pub(super) async fn held_review(
    connection: &mut SqliteConnection,
    calls: &[CallUid],
) -> StoreResult<(Vec<CallUid>, Vec<CallUid>)> {
    let (mut settled, mut cancel) = (Vec::new(), Vec::new());
    let found = each(connection, HELD, 2, calls, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    });
    for row in found.await? {
        let call: CallUid = rows::id(row.try_get(0)?)?;
        if row.try_get(1)? { settled.push(call) } else { cancel.push(call) }
    }
    Ok((settled, cancel))
}
