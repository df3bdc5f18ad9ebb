//! Receipts one by one, for everything that is not hot: locked, changed by the transition table, written back.

use std::collections::{BTreeSet, HashMap};

use ditto_contracts::{
    CallPolicy, CallUid, ClaimToken, ErrorClass, Json, JsonWriter, ReceiptState, RunId, SessionId, SettledBy,
    WireError, codes,
};
use ditto_graph::receipt::{Change, Claim, Due, Receipt, key_window_closed};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    super::{Changed, StoreResult, rows, rows::Kept},
    columns::{Big, ErrorColumns, json_bytes_opt},
    payloads, span,
};

/// The columns [`Stored::read`] needs, of `receipts r`.
macro_rules! stored_columns {
    () => {
        "r.call_uid, r.loop_id, r.policy, r.request_hash, r.state, r.fence, r.unresolved, r.max_attempts, r.claim_token,
         r.session_id, r.first_claim_ms, r.dispatch_no, r.reconcile_no, r.due_ms, r.unknown_ms, r.deadline_ms,
         r.cancel_ms, r.settled_ms, r.settled_by, r.settle_rev, r.created_ms, now_ms() AS now_ms"
    };
}
pub(super) use stored_columns;

/// One receipt as it is locked in this transaction.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) call: CallUid,
    pub(super) run: RunId,
    pub(super) receipt: Receipt,
    pub(super) policy: CallPolicy,
    pub(super) request_hash: Vec<u8>,
    pub(super) session: Option<String>,
    pub(super) dispatch_no: i32,
    pub(super) reconcile_no: i32,
    pub(super) due_ms: i64,
    pub(super) unknown_ms: Option<i64>,
    pub(super) deadline_ms: Option<i64>,
    pub(super) created_ms: i64,
    pub(super) now_ms: i64,
}

impl Stored {
    pub(super) fn read(row: &PgRow) -> StoreResult<Self> {
        let policy = rows::policy(row.try_get("policy")?)?;
        let now_ms: i64 = row.try_get("now_ms")?;
        let deadline_ms: Option<i64> = row.try_get("deadline_ms")?;
        let session: Option<String> = row.try_get("session_id")?;
        let token: Option<ClaimToken> = rows::id_opt(row.try_get("claim_token")?)?;
        let settled_by: Option<i16> = row.try_get("settled_by")?;
        let mut receipt = Receipt::planned(&policy);
        receipt.max_attempts = row.try_get::<i32, _>("max_attempts")?.unsigned_abs();
        receipt.state = rows::code(ReceiptState::from_code(row.try_get("state")?), "receipt state")?;
        receipt.settled = row.try_get::<Option<i64>, _>("settled_ms")?.is_some();
        receipt.fence = row.try_get::<i32, _>("fence")?.unsigned_abs();
        receipt.unresolved = row.try_get::<i32, _>("unresolved")?.unsigned_abs();
        receipt.claim = match (token, rows::id_opt::<SessionId>(session.as_deref())?) {
            (Some(token), Some(session)) => Some(Claim { token, session }),
            _ => None,
        };
        receipt.released = receipt.state == ReceiptState::Planned && receipt.unresolved == 0 && receipt.claim.is_some();
        receipt.cancel_asked = row.try_get::<Option<i64>, _>("cancel_ms")?.is_some();
        receipt.deadline_passed = deadline_ms.is_some_and(|deadline| deadline <= now_ms);
        receipt.window_open = !key_window_closed(row.try_get("first_claim_ms")?, policy.key_ttl_ms, now_ms);
        receipt.settle_rev = row.try_get("settle_rev")?;
        receipt.settled_by = settled_by.and_then(SettledBy::from_code);
        Ok(Self {
            call: rows::id(row.try_get("call_uid")?)?,
            run: rows::id(row.try_get("loop_id")?)?,
            receipt,
            policy,
            request_hash: row.try_get("request_hash")?,
            session,
            dispatch_no: row.try_get("dispatch_no")?,
            reconcile_no: row.try_get("reconcile_no")?,
            due_ms: row.try_get("due_ms")?,
            unknown_ms: row.try_get("unknown_ms")?,
            deadline_ms,
            created_ms: row.try_get("created_ms")?,
            now_ms,
        })
    }

    /// Whether a run may have gone on with `unknown`.
    pub(super) fn was_settled_unknown(&self) -> bool {
        self.receipt.state == ReceiptState::Unknown && self.receipt.settled
    }
}

/// Locks the receipts of these calls, in the order in which everybody locks them.
pub(super) async fn lock<'a>(
    connection: &mut PgConnection,
    calls: impl Iterator<Item = &'a CallUid>,
) -> StoreResult<HashMap<CallUid, Stored>> {
    const LOCK: &str = concat!(
        "SELECT ",
        stored_columns!(),
        " FROM unnest($1::int[], $2::text[]) AS b(bucket, call_uid)
          JOIN receipts r ON r.bucket BETWEEN $3 AND $4 AND r.bucket = b.bucket AND r.call_uid = b.call_uid
         ORDER BY r.bucket, r.call_uid FOR UPDATE OF r"
    );
    let calls: BTreeSet<&CallUid> = calls.collect();
    let buckets: Vec<i32> = calls.iter().map(|call| call.bucket()).collect();
    let texts: Vec<&str> = calls.iter().map(|call| call.as_str()).collect();
    let (low, high) = span(&buckets);
    let found = sqlx::query(LOCK).bind(&buckets).bind(&texts).bind(low).bind(high).fetch_all(connection).await?;
    let mut all = HashMap::with_capacity(found.len());
    for row in &found {
        let stored = Stored::read(row)?;
        all.insert(stored.call.clone(), stored);
    }
    Ok(all)
}

/// What replaces the outcome.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    pub(super) output: Kept,
    pub(super) error: Option<WireError>,
}

/// One receipt's change on its way back.
#[derive(Debug, Clone)]
pub(super) struct Update {
    pub(super) before: Stored,
    pub(super) after: Receipt,
    pub(super) due_ms: i64,
    pub(super) said: Option<Said>,
    pub(super) deadline_ms: Option<i64>,
    pub(super) reconcile_no: i32,
    /// A person authorised another attempt: what was asked of the last one does not count.
    pub(super) renewed: bool,
}

impl Update {
    /// A change of the table, with the outcome it says or the one its code stands for.
    pub(super) fn of(before: Stored, change: Change, said: Option<Said>) -> Self {
        let due_ms = match change.due {
            Due::Keep | Due::Never => before.due_ms,
            Due::Now => before.now_ms,
            Due::Backoff => before.now_ms + rows::backoff_ms(i64::from(before.dispatch_no.max(1))),
        };
        let said = said.or_else(|| change.code.map(|code| said_by_ledger(change.receipt.state, code)));
        Self {
            deadline_ms: before.deadline_ms,
            reconcile_no: before.reconcile_no,
            after: change.receipt,
            before,
            due_ms,
            said,
            renewed: false,
        }
    }

    pub(super) fn changed(&self, owners: &HashMap<RunId, SessionId>) -> Changed {
        Changed {
            call: self.before.call.clone(),
            run: self.before.run.clone(),
            state: self.after.state,
            settled: self.after.settled,
            owner: owners.get(&self.before.run).cloned(),
        }
    }

    /// A run may have gone on with `unknown`, and now it is known.
    fn is_late_news(&self) -> bool {
        self.before.was_settled_unknown()
            && matches!(self.after.state, ReceiptState::Succeeded | ReceiptState::Failed | ReceiptState::Cancelled)
    }
}

fn said_by_ledger(state: ReceiptState, code: &str) -> Said {
    let message = match code {
        codes::WORKER_LOST => "the worker was lost while it held the call",
        codes::CANCELLED => "cancelled before it started",
        codes::CANCELLED_IN_FLIGHT => "cancelled while an attempt is in doubt",
        codes::DEADLINE_EXCEEDED => "the deadline passed before it started",
        codes::TIMEOUT => "the deadline passed while an attempt is in doubt",
        codes::POISONED => "every attempt lost its worker",
        codes::ATTEMPTS_EXHAUSTED => "all attempts are used up",
        codes::KEY_WINDOW_CLOSED => "the backend no longer guarantees the key",
        codes::KEY_CONFLICT => "the backend knows the key with another request",
        codes::RECONCILE_EXHAUSTED => "no evidence arrived in time",
        codes::NO_WORKER_AVAILABLE => "no live worker serves this call",
        _ => "decided by the ledger",
    };
    let class = match (state, code) {
        (ReceiptState::Unknown, _) => ErrorClass::Unknown,
        (ReceiptState::Cancelled, _) => ErrorClass::Cancelled,
        (_, codes::DEADLINE_EXCEEDED) => ErrorClass::Timeout,
        (_, codes::NO_WORKER_AVAILABLE) => ErrorClass::Unavailable,
        _ => ErrorClass::Failed,
    };
    let mut error = WireError::new(class, code, message);
    error.retryable = code == codes::NO_WORKER_AVAILABLE;
    Said { output: Kept::default(), error: Some(error) }
}

/// Writes changes, tells runs about late news by a signal, and rings the bells; returns the live owners.
pub(super) async fn write(connection: &mut PgConnection, updates: &[Update]) -> StoreResult<HashMap<RunId, SessionId>> {
    const WRITE: &str = "
        UPDATE receipts r
           SET state = u.state, unresolved = u.unresolved, max_attempts = u.max_attempts, due_ms = u.due_ms,
               settled_ms = CASE WHEN u.settled THEN (SELECT now_ms()) END, settled_by = u.settled_by,
               settle_rev = u.settle_rev, deadline_ms = u.deadline_ms, reconcile_no = u.reconcile_no,
               cancel_ms = CASE WHEN u.renewed THEN NULL ELSE r.cancel_ms END,
               unknown_ms = CASE WHEN u.renewed THEN NULL WHEN u.state = 5 THEN coalesce(r.unknown_ms, (SELECT now_ms()))
                                 ELSE r.unknown_ms END,
               outcome = CASE WHEN u.said THEN u.outcome ELSE r.outcome END,
               outcome_ref = CASE WHEN u.said THEN u.outcome_ref ELSE r.outcome_ref END,
               error_class = CASE WHEN u.said THEN u.error_class ELSE r.error_class END,
               error_code = CASE WHEN u.said THEN u.error_code ELSE r.error_code END,
               error_message = CASE WHEN u.said THEN u.error_message ELSE r.error_message END,
               error_retryable = CASE WHEN u.said THEN u.error_retryable ELSE r.error_retryable END
          FROM unnest($1::int[], $2::text[], $3::int2[], $4::int[], $5::int[], $6::int8[], $7::bool[], $8::int2[],
                      $9::int[], $10::int8[], $11::int[], $12::bool[], $13::bool[], $14::bytea[], $15::text[],
                      $16::text[], $17::text[], $18::text[], $19::bool[])
               AS u(bucket, call_uid, state, unresolved, max_attempts, due_ms, settled, settled_by, settle_rev,
                    deadline_ms, reconcile_no, renewed, said, outcome, outcome_ref, error_class, error_code,
                    error_message, error_retryable)
         WHERE r.bucket BETWEEN $20 AND $21 AND r.bucket = u.bucket AND r.call_uid = u.call_uid";
    if updates.is_empty() {
        return Ok(HashMap::new());
    }
    let mut big = Big::default();
    let mut error = ErrorColumns::default();
    let (mut outputs, mut references) = (Vec::new(), Vec::new());
    for update in updates {
        let said = update.said.as_ref();
        let kept = said.map(|said| said.output.clone()).unwrap_or_default();
        let (output, reference) = big.place(update.before.call.bucket(), kept);
        outputs.push(output);
        references.push(reference);
        error.push(said.and_then(|said| said.error.as_ref()));
    }
    payloads::store(&mut *connection, &mut big).await?;
    fn each<T>(updates: &[Update], f: impl Fn(&Update) -> T) -> Vec<T> {
        updates.iter().map(f).collect()
    }
    let buckets = each(updates, |u| u.before.call.bucket());
    let (low, high) = span(&buckets);
    let calls: Vec<&str> = updates.iter().map(|u| u.before.call.as_str()).collect();
    let number = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    let query = sqlx::query(WRITE)
        .bind(&buckets)
        .bind(&calls)
        .bind(each(updates, |u| u.after.state.code()))
        .bind(each(updates, |u| number(u.after.unresolved)))
        .bind(each(updates, |u| number(u.after.max_attempts)))
        .bind(each(updates, |u| u.due_ms))
        .bind(each(updates, |u| u.after.settled))
        .bind(each(updates, |u| u.after.settled_by.map(SettledBy::code)))
        .bind(each(updates, |u| u.after.settle_rev))
        .bind(each(updates, |u| u.deadline_ms))
        .bind(each(updates, |u| u.reconcile_no))
        .bind(each(updates, |u| u.renewed))
        .bind(each(updates, |u| u.said.is_some()))
        .bind(json_bytes_opt(&outputs))
        .bind(&references);
    error.bind(query).bind(low).bind(high).execute(&mut *connection).await?;
    let owners = ring(&mut *connection, updates.iter().map(|u| &u.before.run)).await?;
    for update in updates.iter().filter(|update| update.is_late_news()) {
        let mut body = JsonWriter::new();
        body.begin_object()
            .key("call")
            .string(update.before.call.as_str())
            .key("state")
            .string(update.after.state.as_str())
            .key("settleRev")
            .integer(update.after.settle_rev);
        append_signal(&mut *connection, &update.before.run, 2, "resolved", &body.finish(), None).await?;
    }
    Ok(owners)
}

/// Rings the bells of runs and returns their live owners. Locks the runs.
pub(super) async fn ring<'a>(
    connection: &mut PgConnection,
    runs: impl Iterator<Item = &'a RunId>,
) -> StoreResult<HashMap<RunId, SessionId>> {
    const LOCK: &str = "
        SELECT 1 FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
          JOIN loops l ON l.bucket BETWEEN $3 AND $4 AND l.bucket = b.bucket AND l.loop_id = b.loop_id
         ORDER BY l.bucket, l.loop_id FOR UPDATE OF l";
    const RING: &str = "
        UPDATE loops l SET bell = l.bell + 1 FROM unnest($1::int[], $2::text[]) AS b(bucket, loop_id)
         WHERE l.bucket BETWEEN $3 AND $4 AND l.bucket = b.bucket AND l.loop_id = b.loop_id
        RETURNING l.loop_id, (SELECT s.session_id FROM sessions s
                               WHERE s.session_id = l.owner_session AND s.dead_ms IS NULL) AS owner";
    let runs: BTreeSet<&RunId> = runs.collect();
    if runs.is_empty() {
        return Ok(HashMap::new());
    }
    let buckets: Vec<i32> = runs.iter().map(|run| run.bucket()).collect();
    let texts: Vec<&str> = runs.iter().map(|run| run.as_str()).collect();
    let (low, high) = span(&buckets);
    if runs.len() > 1 {
        let lock = sqlx::query(LOCK).bind(&buckets).bind(&texts).bind(low).bind(high);
        lock.execute(&mut *connection).await?;
    }
    let found = sqlx::query(RING).bind(&buckets).bind(&texts).bind(low).bind(high).fetch_all(connection).await?;
    let mut owners = HashMap::new();
    for row in found {
        if let Some(owner) = rows::id_opt(row.try_get("owner")?)? {
            owners.insert(rows::id(row.try_get("loop_id")?)?, owner);
        }
    }
    Ok(owners)
}

/// Appends a signal to a run that this transaction has locked; its number.
pub(super) async fn append_signal(
    connection: &mut PgConnection,
    run: &RunId,
    kind: i16,
    name: &str,
    body: &Json,
    request_id: Option<&str>,
) -> StoreResult<i64> {
    const APPEND: &str = "
        INSERT INTO signals (bucket, loop_id, n, kind, name, body, request_id, created_ms)
        SELECT $1, $2, 1 + coalesce((SELECT max(s.n) FROM signals s WHERE s.bucket = $1 AND s.loop_id = $2), 0),
               $3, $4, $5, $6, now_ms()
        RETURNING n";
    let n = sqlx::query_scalar(APPEND)
        .bind(run.bucket())
        .bind(run.as_str())
        .bind(kind)
        .bind(super::columns::clean(name))
        .bind(body.as_bytes())
        .bind(request_id)
        .fetch_one(connection)
        .await?;
    Ok(n)
}
