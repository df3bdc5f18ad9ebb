//! T2: attempts are granted (row 2) and given back (rows 3 and 6).

use std::collections::{HashMap, HashSet};

use data_encoding::HEXLOWER;
use ditto_contracts::{
    JsonWriter, ReceiptState, SessionId, codes,
    wire::ledger::{ClaimAnswer, ClaimItem, ReleaseItem},
};
use sqlx::{PgPool, Row as _, postgres::PgRow};

use super::{
    super::{StoreResult, rows},
    columns::fence_column,
    span,
};

const CLAIM: &str = "
    WITH t AS MATERIALIZED (SELECT now_ms() AS now),
         me AS MATERIALIZED (
            SELECT 1 FROM sessions WHERE session_id = $7 AND dead_ms IS NULL AND expires_ms > (SELECT now FROM t)),
         b AS MATERIALIZED (
            SELECT * FROM unnest($1::int[], $2::int[], $3::text[], $4::text[]) AS b(n, bucket, call_uid, token)),
         before AS MATERIALIZED (
            SELECT b.n, r.fence, r.session_id, r.claim_token FROM b
              JOIN receipts r ON r.bucket BETWEEN $5 AND $6 AND r.bucket = b.bucket AND r.call_uid = b.call_uid
             WHERE r.fence > 0 AND r.state = 1),
         ok AS (
            UPDATE receipts r
               SET state = 2, fence = r.fence + 1, unresolved = r.unresolved + 1, claim_token = b.token,
                   session_id = $7, claimed_ms = t.now, first_claim_ms = coalesce(r.first_claim_ms, t.now)
              FROM b, t
             WHERE r.bucket BETWEEN $5 AND $6 AND r.bucket = b.bucket AND r.call_uid = b.call_uid AND r.state = 1
               AND r.fence < r.max_attempts AND r.cancel_ms IS NULL
               AND (r.deadline_ms IS NULL OR r.deadline_ms > t.now)
               AND NOT (r.unresolved > 0 AND key_window_closed(r.first_claim_ms, r.key_ttl_ms, t.now))
               AND r.claim_token IS DISTINCT FROM b.token
               AND EXISTS (SELECT 1 FROM me)
            RETURNING b.n, r.bucket, r.call_uid, r.fence, r.unresolved, r.idem_key, r.request_hash, r.policy,
                      r.deadline_ms - t.now AS budget_ms),
         replaced AS (
            INSERT INTO attempts (bucket, call_uid, fence, session_id, claim_token, event, detail, at_ms)
            SELECT ok.bucket, ok.call_uid, before.fence, before.session_id, before.claim_token, 1, '{}', t.now
              FROM before JOIN ok ON ok.n = before.n AND ok.fence = before.fence + 1, t)
    SELECT n, fence, unresolved, idem_key, request_hash, policy, budget_ms FROM ok";

/// Why claims were not granted.
const REFUSED: &str = "
    SELECT b.n, r.fence, r.unresolved, r.idem_key, r.request_hash, r.policy, r.deadline_ms - t.now AS budget_ms,
           r.state, r.settled_ms IS NOT NULL AS settled, r.claim_token, r.session_id, r.cancel_ms IS NOT NULL AS cancelled,
           coalesce(r.deadline_ms <= t.now, false) AS late, r.fence >= r.max_attempts AS used_up,
           r.unresolved > 0 AND key_window_closed(r.first_claim_ms, r.key_ttl_ms, t.now) AS closed,
           EXISTS (SELECT 1 FROM sessions WHERE session_id = $6 AND dead_ms IS NULL AND expires_ms > t.now) AS alive
      FROM (SELECT now_ms() AS now) t, unnest($1::int[], $2::int[], $3::text[]) AS b(n, bucket, call_uid)
      JOIN receipts r ON r.bucket BETWEEN $4 AND $5 AND r.bucket = b.bucket AND r.call_uid = b.call_uid";

const RELEASE: &str = "
    WITH t AS MATERIALIZED (SELECT now_ms() AS now),
         ok AS (
            UPDATE receipts r
               SET state = 1, unresolved = r.unresolved - CASE WHEN b.unstarted THEN 1 ELSE 0 END, due_ms = t.now + b.delay_ms
              FROM unnest($1::int[], $2::int[], $3::text[], $4::int[], $5::text[], $6::bool[], $7::int8[], $8::bytea[])
                   AS b(n, bucket, call_uid, fence, token, unstarted, delay_ms, detail), t
             WHERE r.bucket BETWEEN $9 AND $10 AND r.bucket = b.bucket AND r.call_uid = b.call_uid AND r.state = 2
               AND r.fence = b.fence AND r.claim_token = b.token AND r.session_id = $11
               AND (b.unstarted OR r.effect_class = 1)
            RETURNING b.n, r.bucket, r.call_uid, r.fence, r.session_id, r.claim_token, b.detail),
         lg AS (
            INSERT INTO attempts (bucket, call_uid, fence, session_id, claim_token, event, detail, at_ms)
            SELECT ok.bucket, ok.call_uid, ok.fence, ok.session_id, ok.claim_token, 2, ok.detail, t.now FROM ok, t)
    SELECT n FROM ok";

/// Releases that were written before, and no other claim since.
const RELEASED: &str = "
    SELECT b.n
      FROM unnest($1::int[], $2::int[], $3::text[], $4::int[], $5::text[]) AS b(n, bucket, call_uid, fence, token)
      JOIN receipts r ON r.bucket BETWEEN $6 AND $7 AND r.bucket = b.bucket AND r.call_uid = b.call_uid
     WHERE r.state = 1 AND r.fence = b.fence AND r.claim_token = b.token AND r.session_id = $8";

fn granted(row: &PgRow) -> StoreResult<ClaimAnswer> {
    let unresolved: i32 = row.try_get("unresolved")?;
    Ok(ClaimAnswer::Granted {
        fence: row.try_get::<i32, _>("fence")?.unsigned_abs(),
        earlier_unresolved: (unresolved - 1).max(0).unsigned_abs(),
        key: row.try_get("idem_key")?,
        request_hash: HEXLOWER.encode(row.try_get("request_hash")?),
        policy: rows::policy(row.try_get("policy")?)?,
        budget_ms: row.try_get::<Option<i64>, _>("budget_ms")?.map(|ms| u64::try_from(ms).unwrap_or(0)),
    })
}

/// Grants attempts.
pub(super) async fn claim(pool: &PgPool, session: &SessionId, items: &[ClaimItem]) -> StoreResult<Vec<ClaimAnswer>> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_unstable_by(|a, b| items[*a].call.cmp(&items[*b].call));
    let positions: Vec<i32> = order.iter().map(|at| *at as i32).collect();
    let buckets: Vec<i32> = order.iter().map(|at| items[*at].call.bucket()).collect();
    let calls: Vec<&str> = order.iter().map(|at| items[*at].call.as_str()).collect();
    let tokens: Vec<&str> = order.iter().map(|at| items[*at].token.as_str()).collect();
    let (low, high) = span(&buckets);
    let query = sqlx::query(CLAIM).bind(&positions).bind(&buckets).bind(&calls).bind(&tokens).bind(low).bind(high);
    let mut answers: Vec<Option<ClaimAnswer>> = items.iter().map(|_| None).collect();
    for row in query.bind(session.as_str()).fetch_all(pool).await? {
        if let Some(answer) = answers.get_mut(row.try_get::<i32, _>("n")? as usize) {
            *answer = Some(granted(&row)?);
        }
    }
    if answers.iter().any(Option::is_none) {
        let open: Vec<usize> = (0..items.len()).filter(|at| answers[*at].is_none()).collect();
        let buckets: Vec<i32> = open.iter().map(|at| items[*at].call.bucket()).collect();
        let (low, high) = span(&buckets);
        let found = sqlx::query(REFUSED)
            .bind(open.iter().map(|at| *at as i32).collect::<Vec<_>>())
            .bind(&buckets)
            .bind(open.iter().map(|at| items[*at].call.as_str()).collect::<Vec<_>>())
            .bind(low)
            .bind(high)
            .bind(session.as_str())
            .fetch_all(pool)
            .await?;
        for row in found {
            let at = row.try_get::<i32, _>("n")? as usize;
            let Some(item) = items.get(at) else { continue };
            answers[at] = Some(refused(&row, session, item)?);
        }
    }
    Ok(answers.into_iter().map(|answer| answer.unwrap_or(ClaimAnswer::Missing)).collect())
}

fn refused(row: &PgRow, session: &SessionId, item: &ClaimItem) -> StoreResult<ClaimAnswer> {
    let state = rows::code(ReceiptState::from_code(row.try_get("state")?), "receipt state")?;
    let is = |name: &str| row.try_get::<bool, _>(name);
    let mine = row.try_get::<Option<&str>, _>("claim_token")? == Some(item.token.as_str())
        && row.try_get::<Option<&str>, _>("session_id")? == Some(session.as_str());
    let refused = |reason: &str| ClaimAnswer::Refused { reason: reason.to_owned() };
    Ok(match state {
        ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled => ClaimAnswer::Settled { state },
        ReceiptState::Unknown if is("settled")? => ClaimAnswer::Settled { state },
        ReceiptState::Unknown => ClaimAnswer::Taken,
        // An earlier try of this very request was committed and its reply lost.
        ReceiptState::Claimed if mine && is("alive")? => granted(row)?,
        ReceiptState::Claimed if mine => refused("SESSION_DEAD"),
        ReceiptState::Claimed => ClaimAnswer::Taken,
        ReceiptState::Planned if is("cancelled")? => refused(codes::CANCELLED),
        ReceiptState::Planned if is("late")? => refused(codes::DEADLINE_EXCEEDED),
        ReceiptState::Planned if is("used_up")? => refused(codes::ATTEMPTS_EXHAUSTED),
        ReceiptState::Planned if is("closed")? => refused(codes::KEY_WINDOW_CLOSED),
        ReceiptState::Planned if !is("alive")? => refused("SESSION_DEAD"),
        // The echo of a claim that was given back, or one that came free just now: it will be offered again.
        ReceiptState::Planned => ClaimAnswer::Taken,
    })
}

/// Gives attempts back.
pub(super) async fn release(pool: &PgPool, session: &SessionId, items: &[ReleaseItem]) -> StoreResult<Vec<bool>> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_unstable_by(|a, b| items[*a].call.cmp(&items[*b].call));
    let mut details = Vec::with_capacity(items.len());
    for at in &order {
        let mut w = JsonWriter::new();
        w.begin_object().key("unstarted").value(&ditto_contracts::Json::bool(items[*at].unstarted));
        if let Some(error) = &items[*at].error {
            w.key("error").value(&rows::encode(error)?);
        }
        details.push(w.finish());
    }
    let sorted = || order.iter().map(|at| &items[*at]);
    let positions: Vec<i32> = order.iter().map(|at| *at as i32).collect();
    let buckets: Vec<i32> = sorted().map(|item| item.call.bucket()).collect();
    let calls: Vec<&str> = sorted().map(|item| item.call.as_str()).collect();
    let fences: Vec<i32> = sorted().map(|item| fence_column(item.fence)).collect();
    let tokens: Vec<&str> = sorted().map(|item| item.token.as_str()).collect();
    let (low, high) = span(&buckets);
    let found = sqlx::query(RELEASE)
        .bind(&positions)
        .bind(&buckets)
        .bind(&calls)
        .bind(&fences)
        .bind(&tokens)
        .bind(sorted().map(|item| item.unstarted).collect::<Vec<_>>())
        .bind(sorted().map(|item| rows::ms(item.delay_ms)).collect::<Vec<_>>())
        .bind(super::columns::json_bytes(&details))
        .bind(low)
        .bind(high)
        .bind(session.as_str())
        .fetch_all(pool)
        .await?;
    let mut done = HashSet::new();
    for row in found {
        done.insert(row.try_get::<i32, _>("n")?);
    }
    if done.len() < items.len() {
        let query = sqlx::query(RELEASED).bind(&positions).bind(&buckets).bind(&calls).bind(&fences).bind(&tokens);
        for row in query.bind(low).bind(high).bind(session.as_str()).fetch_all(pool).await? {
            done.insert(row.try_get::<i32, _>("n")?);
        }
    }
    Ok((0..items.len()).map(|at| done.contains(&(at as i32))).collect())
}

/// Of these held calls: settled ones, and ones with a cancel asked for.
pub(super) async fn held_review(
    pool: &PgPool,
    session: &SessionId,
    calls: &[ditto_contracts::CallUid],
) -> StoreResult<(Vec<ditto_contracts::CallUid>, Vec<ditto_contracts::CallUid>)> {
    const HELD: &str = "
        SELECT r.call_uid, r.settled_ms IS NOT NULL AS settled,
               r.cancel_ms IS NOT NULL AND (r.session_id = $5 OR r.unclaimed) AS cancel
          FROM unnest($1::int[], $2::text[]) AS b(bucket, call_uid)
          JOIN receipts r ON r.bucket BETWEEN $3 AND $4 AND r.bucket = b.bucket AND r.call_uid = b.call_uid
         WHERE r.settled_ms IS NOT NULL OR r.cancel_ms IS NOT NULL";
    let buckets: Vec<i32> = calls.iter().map(|call| call.bucket()).collect();
    let texts: Vec<&str> = calls.iter().map(|call| call.as_str()).collect();
    let (low, high) = span(&buckets);
    let query = sqlx::query(HELD).bind(&buckets).bind(&texts).bind(low).bind(high).bind(session.as_str());
    let mut state: HashMap<String, (bool, bool)> = HashMap::new();
    for row in query.fetch_all(pool).await? {
        state.insert(row.try_get("call_uid")?, (row.try_get("settled")?, row.try_get("cancel")?));
    }
    let (mut settled, mut cancel) = (Vec::new(), Vec::new());
    for call in calls {
        match state.get(call.as_str()) {
            Some((true, _)) => settled.push(call.clone()),
            Some((false, true)) => cancel.push(call.clone()),
            Some((false, false)) | None => {}
        }
    }
    Ok((settled, cancel))
}
