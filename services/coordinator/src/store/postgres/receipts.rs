//! Receipts for people: listings, the attempt log, and a person's decision about an unknown outcome.

use ditto_contracts::{CallUid, ErrorClass, Json, ReceiptState, Verdict, WireError, codes};
use ditto_graph::receipt::ReceiptEvent;
use sqlx::{PgConnection, PgPool, Row as _};

use super::{
    super::{
        AttemptRow, ReceiptFilter, ReceiptRow, Resolution, Resolved, StoreResult,
        rows::{self as shared, Kept},
    },
    LogEntry, begin,
    columns::fence_column,
    log,
    model::{Said, Update, lock, ring, write},
    rows::{read_receipt, receipt_columns},
};

/// One receipt.
pub(super) async fn get(pool: &PgPool, call: &CallUid) -> StoreResult<Option<ReceiptRow>> {
    const GET: &str =
        concat!("SELECT ", receipt_columns!(), " FROM receipts r WHERE r.bucket = $1 AND r.call_uid = $2");
    let mut connection = pool.acquire().await?;
    let query = sqlx::query(GET).bind(call.bucket()).bind(call.as_str());
    let Some(row) = query.fetch_optional(&mut *connection).await? else { return Ok(None) };
    read_receipt(&mut connection, &row).await.map(Some)
}

/// Receipts: of one run in the order they were decided, else newest first.
pub(super) async fn list(pool: &PgPool, filter: &ReceiptFilter, limit: u32) -> StoreResult<Vec<ReceiptRow>> {
    const OF_RUN: &str = concat!(
        "SELECT ",
        receipt_columns!(),
        " FROM receipts r
         WHERE r.bucket = $1 AND r.loop_id = $2 AND (cardinality($3::int2[]) = 0 OR r.state = ANY($3))
           AND ($4::text IS NULL OR EXISTS (SELECT 1 FROM loops l WHERE l.bucket = r.bucket AND l.loop_id = r.loop_id
                                               AND l.namespace = $4))
           AND ($5::text IS NULL
                OR (r.decided_version, r.decided_at) > (SELECT a.decided_version, a.decided_at FROM receipts a
                                                       WHERE a.bucket = $1 AND a.call_uid = $5))
         ORDER BY r.decided_version, r.decided_at LIMIT $6"
    );
    const NEWEST: &str = concat!(
        "SELECT ",
        receipt_columns!(),
        " FROM receipts r
         WHERE r.bucket <= $1 AND ($2::text IS NULL OR r.call_uid < $2)
           AND (cardinality($3::int2[]) = 0 OR r.state = ANY($3))
           AND ($4::text IS NULL OR EXISTS (SELECT 1 FROM loops l WHERE l.bucket = r.bucket AND l.loop_id = r.loop_id
                                               AND l.namespace = $4))
         ORDER BY r.call_uid DESC LIMIT $5"
    );
    // There are few of these among many, and people ask for them most.
    const UNKNOWN: &str = concat!(
        "SELECT ",
        receipt_columns!(),
        " FROM receipts r
         WHERE r.bucket <= $1 AND ($2::text IS NULL OR r.call_uid < $2) AND r.unknown_ms IS NOT NULL AND r.state = ANY($3)
           AND ($4::text IS NULL OR EXISTS (SELECT 1 FROM loops l WHERE l.bucket = r.bucket AND l.loop_id = r.loop_id
                                               AND l.namespace = $4))
         ORDER BY r.call_uid DESC LIMIT $5"
    );
    let states: Vec<i16> = filter.states.iter().map(|state| state.code()).collect();
    let namespace = filter.namespace.as_ref().map(|namespace| namespace.as_str());
    let after = filter.after.as_ref().map(|call| call.as_str());
    let query = match &filter.run {
        Some(run) => sqlx::query(OF_RUN).bind(run.bucket()).bind(run.as_str()).bind(states).bind(namespace).bind(after),
        None => {
            let newest = filter.after.as_ref().map_or(i32::MAX, CallUid::bucket);
            let sql = if filter.states == [ReceiptState::Unknown] { UNKNOWN } else { NEWEST };
            sqlx::query(sql).bind(newest).bind(after).bind(states).bind(namespace)
        }
    };
    let mut connection = pool.acquire().await?;
    let found = query.bind(i64::from(limit)).fetch_all(&mut *connection).await?;
    let mut all = Vec::with_capacity(found.len());
    for row in &found {
        all.push(read_receipt(&mut connection, row).await?);
    }
    Ok(all)
}

/// Attempt log of a call, oldest first.
pub(super) async fn attempts(pool: &PgPool, call: &CallUid, limit: u32) -> StoreResult<Vec<AttemptRow>> {
    const LIST: &str = "
        SELECT fence, event, detail, at_ms FROM attempts WHERE bucket = $1 AND call_uid = $2 ORDER BY at_ms, n LIMIT $3";
    let query = sqlx::query(LIST).bind(call.bucket()).bind(call.as_str()).bind(i64::from(limit));
    let found = query.fetch_all(pool).await?;
    let rows = found.iter().map(|row| {
        Ok(AttemptRow {
            fence: row.try_get("fence")?,
            event: shared::event_text(row.try_get("event")?).to_owned(),
            detail: shared::json(row.try_get("detail")?),
            at_ms: row.try_get("at_ms")?,
        })
    });
    rows.collect()
}

/// Appends evidence that changed nothing.
pub(super) async fn attempt_log(pool: &PgPool, call: &CallUid, fence: u32, detail: &Json) -> StoreResult<()> {
    let entry = LogEntry {
        bucket: call.bucket(),
        call: call.as_str().to_owned(),
        fence: fence_column(fence).max(0),
        session: None,
        token: None,
        event: 3,
        detail: detail.as_bytes().to_vec(),
    };
    let mut connection = pool.acquire().await?;
    Ok(log(&mut connection, &[entry]).await?)
}

async fn said_before(connection: &mut PgConnection, call: &CallUid, detail: &Json) -> StoreResult<bool> {
    const SAID: &str = "
        SELECT EXISTS (SELECT 1 FROM attempts WHERE bucket = $1 AND call_uid = $2 AND event = 5 AND detail = $3)";
    let query = sqlx::query_scalar(SAID).bind(call.bucket()).bind(call.as_str()).bind(detail.as_bytes());
    Ok(query.fetch_one(connection).await?)
}

/// Whether a session cannot hold an attempt any more: it ended, or has been silent for a day.
async fn session_is_over(connection: &mut PgConnection, session: Option<&str>) -> StoreResult<bool> {
    const OVER: &str = "
        SELECT NOT EXISTS (SELECT 1 FROM sessions WHERE session_id = $1 AND NOT closed
                              AND (dead_ms IS NULL OR dead_ms + $2 > (SELECT now_ms())))";
    let Some(session) = session else { return Ok(true) };
    Ok(sqlx::query_scalar(OVER).bind(session).bind(shared::SILENT_MS).fetch_one(connection).await?)
}

/// Rows 8 and 13.
pub(super) async fn resolve(
    pool: &PgPool,
    call: &CallUid,
    settle_rev: i32,
    resolution: &Resolution,
    who: &str,
    reason: &str,
) -> StoreResult<Resolved> {
    let (word, output) = match resolution {
        Resolution::Succeeded { output } => ("succeeded", output.as_ref()),
        Resolution::Failed => ("failed", None),
        Resolution::AnotherAttempt => ("another_attempt", None),
    };
    let detail = shared::encode(&serde_json::json!({
        "resolution": word, "settleRev": settle_rev, "who": who, "reason": reason,
        "output": output.map(|output| data_encoding::HEXLOWER.encode(&output.sha256())),
    }))?;
    let mut tx = begin(pool).await?;
    let Some(stored) = lock(&mut tx, std::iter::once(call)).await?.remove(call) else {
        return Ok(Resolved::Missing);
    };
    let receipt = &stored.receipt;
    if said_before(&mut tx, call, &detail).await? {
        let update = Update::of(stored.clone(), unchanged(receipt), None);
        let owners = ring(&mut tx, std::iter::once(&stored.run)).await?;
        tx.commit().await?;
        return Ok(Resolved::Done(update.changed(&owners)));
    }
    if receipt.settle_rev != settle_rev {
        return Ok(Resolved::Conflict { settle_rev: receipt.settle_rev, state: receipt.state });
    }
    if receipt.state != ReceiptState::Unknown {
        return Ok(Resolved::NotUnknown { state: receipt.state });
    }
    let another = *resolution == Resolution::AnotherAttempt;
    if another && !receipt.settled {
        return Ok(Resolved::NotUnknown { state: receipt.state });
    }
    let session_over = !another || session_is_over(&mut tx, stored.session.as_deref()).await?;
    if !session_over {
        return Ok(Resolved::SessionMayLive);
    }
    let (event, said) = match resolution {
        Resolution::Succeeded { output } => {
            let said = Said { output: Kept::of_opt(output.as_ref())?, error: None };
            (ReceiptEvent::Resolve { settle_rev, verdict: Verdict::Succeeded }, said)
        }
        Resolution::Failed => {
            let error = WireError::new(ErrorClass::Failed, codes::TOOL_FAILED, "a person found that it did not happen");
            let said = Said { error: Some(error), ..Said::default() };
            (ReceiptEvent::Resolve { settle_rev, verdict: Verdict::Failed }, said)
        }
        Resolution::AnotherAttempt => (ReceiptEvent::AuthoriseAttempt { settle_rev, session_over }, Said::default()),
    };
    let fence = receipt.fence;
    let Ok(change) = receipt.apply(&event) else {
        // A cancel was asked for, or the key's window is closed: no attempt may follow.
        return Ok(Resolved::NotUnknown { state: receipt.state });
    };
    let mut update = Update::of(stored, change, Some(said));
    if another {
        let before = &update.before;
        // The time it had at first, from now on.
        update.deadline_ms =
            before.deadline_ms.map(|end| before.now_ms.saturating_add((end - before.created_ms).max(0)));
        update.reconcile_no = 0;
        update.renewed = true;
    }
    let entry = LogEntry {
        bucket: call.bucket(),
        call: call.as_str().to_owned(),
        fence: fence_column(fence),
        session: None,
        token: None,
        event: 5,
        detail: detail.as_bytes().to_vec(),
    };
    log(&mut tx, &[entry]).await?;
    let owners = write(&mut tx, std::slice::from_ref(&update)).await?;
    tx.commit().await?;
    Ok(Resolved::Done(update.changed(&owners)))
}

fn unchanged(receipt: &ditto_graph::receipt::Receipt) -> ditto_graph::receipt::Change {
    ditto_graph::receipt::Change {
        receipt: receipt.clone(),
        due: ditto_graph::receipt::Due::Keep,
        code: None,
        log: None,
        stop_worker: false,
    }
}
