//! The part of a receipt that changes: read for a batch, changed by the rules, written back, all in one transaction.
//!
//! SQLite has one writer and `BEGIN IMMEDIATE` makes it this transaction, so what was read is what is changed: the
//! guards stand in the rules instead of the statements.

use std::{collections::HashMap, fmt::Display, ops::Range, str::FromStr};

use ditto_contracts::{
    Bucket, CallUid, ClaimToken, EffectClass, Json, ReceiptState, RunId, SessionId, SettledBy, WireError,
};
use ditto_graph::receipt::{AttemptEvent, Claim, Receipt, key_window_closed};
use sqlx::{Row as _, SqliteConnection};

use super::{
    batch::{Found, Reads, Writes, each},
    payloads,
    runs::Bell,
};
use crate::store::{
    Changed, StoreError, StoreResult,
    rows::{self, Kept},
};

/// One text for all rows: a value of its own costs more to hand over between threads than to read.
const LOAD: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) SELECT group_concat(\
     format('%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s|%s', r.call_uid, r.loop_id, \
     r.effect_class, r.exclusive, r.has_query, r.rejections_stored, r.key_ttl_ms, r.state, r.fence, r.unresolved, \
     r.max_attempts, r.claim_token, r.session_id, r.claimed_ms, r.first_claim_ms, r.dispatch_no, r.reconcile_no, \
     r.due_ms, r.unknown_ms, r.deadline_ms, r.cancel_ms, r.settled_ms, r.settled_by, r.settle_rev, r.created_ms, \
     hex(r.request_hash)), ';') \
     FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

const WRITE: &str = "WITH b(bucket, call_uid, state, fence, unresolved, max_attempts, claim_token, session_id, \
     claimed_ms, first_claim_ms, dispatch_no, reconcile_no, due_ms, unknown_ms, deadline_ms, cancel_ms, settled_ms, \
     settled_by, settle_rev) AS (VALUES {rows}) \
     UPDATE receipts SET state = b.state, fence = b.fence, unresolved = b.unresolved, max_attempts = b.max_attempts, \
     claim_token = b.claim_token, session_id = b.session_id, claimed_ms = b.claimed_ms, \
     first_claim_ms = b.first_claim_ms, dispatch_no = b.dispatch_no, reconcile_no = b.reconcile_no, \
     due_ms = b.due_ms, unknown_ms = b.unknown_ms, deadline_ms = b.deadline_ms, cancel_ms = b.cancel_ms, \
     settled_ms = b.settled_ms, settled_by = b.settled_by, settle_rev = b.settle_rev \
     FROM b WHERE receipts.bucket = b.bucket AND receipts.call_uid = b.call_uid";

/// With an outcome in place of the columns that only a claim changes.
const WRITE_SAID: &str = "WITH b(bucket, call_uid, state, unresolved, due_ms, unknown_ms, deadline_ms, max_attempts, \
     reconcile_no, settled_ms, settled_by, settle_rev, error_class, error_code, error_message, error_retryable, \
     outcome, outcome_ref) AS (VALUES {rows}) \
     UPDATE receipts SET state = b.state, unresolved = b.unresolved, due_ms = b.due_ms, unknown_ms = b.unknown_ms, \
     deadline_ms = b.deadline_ms, max_attempts = b.max_attempts, reconcile_no = b.reconcile_no, \
     settled_ms = b.settled_ms, settled_by = b.settled_by, settle_rev = b.settle_rev, error_class = b.error_class, \
     error_code = b.error_code, error_message = b.error_message, error_retryable = b.error_retryable, \
     outcome = b.outcome, outcome_ref = b.outcome_ref \
     FROM b WHERE receipts.bucket = b.bucket AND receipts.call_uid = b.call_uid";

const LOG: &str = "WITH b(bucket, call_uid, fence, session_id, claim_token, event, detail, at_ms) AS (VALUES {rows}) \
     INSERT INTO attempts (bucket, call_uid, fence, n, session_id, claim_token, event, detail, at_ms) \
     SELECT b.bucket, b.call_uid, b.fence, \
     1 + coalesce((SELECT max(a.n) FROM attempts a WHERE a.bucket = b.bucket AND a.call_uid = b.call_uid), 0), \
     b.session_id, b.claim_token, b.event, b.detail, b.at_ms FROM b \
     WHERE NOT EXISTS (SELECT 1 FROM attempts a WHERE a.bucket = b.bucket AND a.call_uid = b.call_uid \
     AND a.event = b.event AND a.fence = b.fence AND a.detail = b.detail)";

/// What an outcome says; replaces what was said before.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Said {
    pub(super) output: Kept,
    pub(super) error: Option<WireError>,
}

/// One receipt: what its transitions read and write, and the columns that follow from them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stored {
    pub(super) call: CallUid,
    pub(super) run: RunId,
    /// Changed by [`Receipt::apply`] only.
    pub(super) pure: Receipt,
    pub(super) request_hash: [u8; 32],
    pub(super) claimed_ms: Option<i64>,
    pub(super) first_claim_ms: Option<i64>,
    pub(super) dispatch_no: i64,
    pub(super) reconcile_no: i64,
    pub(super) due_ms: i64,
    pub(super) unknown_ms: Option<i64>,
    pub(super) deadline_ms: Option<i64>,
    pub(super) cancel_ms: Option<i64>,
    pub(super) settled_ms: Option<i64>,
    pub(super) created_ms: i64,
    /// Set when the outcome is replaced.
    pub(super) said: Option<Said>,
}

/// The fields of [`LOAD`] in order; an empty one is NULL. None of them can contain the separator.
struct Fields<'a>(std::str::Split<'a, char>);

impl<'a> Fields<'a> {
    fn text(&mut self) -> StoreResult<&'a str> {
        self.0.next().ok_or_else(|| StoreError::Other("stored receipt has too few fields".into()))
    }

    fn number<T: FromStr<Err: Display>>(&mut self) -> StoreResult<T> {
        rows::id(self.text()?)
    }

    fn optional<T: FromStr<Err: Display>>(&mut self) -> StoreResult<Option<T>> {
        match self.text()? {
            "" => Ok(None),
            text => rows::id(text).map(Some),
        }
    }

    fn hash(&mut self) -> StoreResult<[u8; 32]> {
        let bytes = data_encoding::HEXUPPER.decode(self.text()?.as_bytes());
        rows::hash(&bytes.map_err(|error| StoreError::Other(format!("stored hash: {error}")))?)
    }

    fn flag(&mut self) -> StoreResult<bool> {
        Ok(self.text()? == "1")
    }
}

/// Stands for the session of a claim that was given back as unstarted; the column is empty then.
const NOBODY: &str = "-";

impl Stored {
    fn read(text: &str, now: i64) -> StoreResult<Self> {
        let mut fields = Fields(text.split('|'));
        let (call, run) = (rows::id(fields.text()?)?, rows::id(fields.text()?)?);
        let class = rows::code(EffectClass::from_code(fields.number()?), "effect class")?;
        let (exclusive, query, rejections_stored) = (fields.flag()?, fields.flag()?, fields.flag()?);
        let key_ttl_ms: Option<u64> = fields.optional()?;
        let state = rows::code(ReceiptState::from_code(fields.number()?), "receipt state")?;
        let (fence, unresolved, max_attempts) = (fields.number()?, fields.number()?, fields.number()?);
        let token: Option<ClaimToken> = fields.optional()?;
        let session: Option<SessionId> = fields.optional()?;
        let (claimed_ms, first_claim_ms): (Option<i64>, Option<i64>) = (fields.optional()?, fields.optional()?);
        let (dispatch_no, reconcile_no, due_ms) = (fields.number()?, fields.number()?, fields.number()?);
        let (unknown_ms, deadline_ms): (Option<i64>, Option<i64>) = (fields.optional()?, fields.optional()?);
        let (cancel_ms, settled_ms): (Option<i64>, Option<i64>) = (fields.optional()?, fields.optional()?);
        let settled_by: Option<i16> = fields.optional()?;
        let (settle_rev, created_ms) = (fields.number()?, fields.number()?);
        let released = token.is_some() && session.is_none();
        let claim = match (token, session) {
            (Some(token), Some(session)) => Some(Claim { token, session }),
            (Some(token), None) => Some(Claim { token, session: rows::id(NOBODY)? }),
            (None, _) => None,
        };
        let pure = Receipt {
            class,
            exclusive,
            query,
            rejections_stored,
            max_attempts,
            state,
            settled: settled_ms.is_some(),
            fence,
            unresolved,
            claim,
            released,
            cancel_asked: cancel_ms.is_some(),
            deadline_passed: deadline_ms.is_some_and(|deadline| deadline <= now),
            window_open: class != EffectClass::Keyed || !key_window_closed(first_claim_ms, key_ttl_ms, now),
            settle_rev,
            settled_by: settled_by.and_then(SettledBy::from_code),
        };
        Ok(Self {
            call,
            run,
            pure,
            request_hash: fields.hash()?,
            claimed_ms,
            first_claim_ms,
            dispatch_no,
            reconcile_no,
            due_ms,
            unknown_ms,
            deadline_ms,
            cancel_ms,
            settled_ms,
            created_ms,
            said: None,
        })
    }

    /// Session of the latest attempt, unless it was given back.
    pub(super) fn session(&self) -> Option<&str> {
        self.pure.claim.as_ref().filter(|_| !self.pure.released).map(|claim| claim.session.as_str())
    }

    /// Token of the latest attempt.
    pub(super) fn token(&self) -> Option<&str> {
        self.pure.claim.as_ref().map(|claim| claim.token.as_str())
    }

    /// A run may have gone on with `unknown`.
    pub(super) fn was_settled_unknown(&self) -> bool {
        self.pure.state == ReceiptState::Unknown && self.pure.settled
    }

    /// What the seam says about this change.
    pub(super) fn changed(&self, bell: &Bell) -> Changed {
        Changed {
            call: self.call.clone(),
            run: self.run.clone(),
            state: self.pure.state,
            settled: self.pure.settled,
            owner: bell.owner(&self.run),
        }
    }
}

/// Plans to read the receipts of these calls.
pub(super) fn plan(reads: &mut Reads, calls: &[&CallUid]) -> Range<usize> {
    reads.add(LOAD, 2, calls, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    })
}

/// The receipts that were found by [`plan`].
pub(super) fn found(now: i64, found: &Found, place: &Range<usize>) -> StoreResult<HashMap<CallUid, Stored>> {
    let texts = found.texts(place)?;
    let mut receipts = HashMap::with_capacity(texts.len());
    for text in texts {
        let receipt = Stored::read(text, now)?;
        receipts.insert(receipt.call.clone(), receipt);
    }
    Ok(receipts)
}

/// Reads the receipts of these calls.
pub(super) async fn load(
    connection: &mut SqliteConnection,
    now: i64,
    calls: &[&CallUid],
) -> StoreResult<HashMap<CallUid, Stored>> {
    let found = each(connection, LOAD, 2, calls, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    });
    let mut receipts = HashMap::with_capacity(calls.len());
    for row in found.await? {
        let Some(text) = row.try_get::<Option<&str>, _>(0)? else { continue };
        for text in text.split(';') {
            let receipt = Stored::read(text, now)?;
            receipts.insert(receipt.call.clone(), receipt);
        }
    }
    Ok(receipts)
}

/// The outcomes among these that are payloads, perhaps.
pub(super) fn outputs<'a>(changed: &'a [&'a Stored]) -> impl Iterator<Item = (Bucket, &'a Kept)> {
    changed.iter().filter_map(|r| Some((r.call.bucket(), &r.said.as_ref()?.output)))
}

/// Writes changed receipts back, with the payloads of large outcomes.
pub(super) async fn write(connection: &mut SqliteConnection, now: i64, changed: &[Stored]) -> StoreResult<()> {
    let changed: Vec<&Stored> = changed.iter().collect();
    payloads::keep(connection, now, outputs(&changed)).await?;
    let mut writes = Writes::default();
    write_to(&mut writes, &changed);
    writes.run(connection).await?;
    Ok(())
}

/// Plans to write changed receipts back, without the payloads of large outcomes.
pub(super) fn write_to(writes: &mut Writes, changed: &[&Stored]) {
    let (said, silent): (Vec<&Stored>, Vec<&Stored>) = changed.iter().partition(|r| r.said.is_some());
    writes.add(WRITE, 19, &silent, |bind, r| {
        let pure = &r.pure;
        bind.add(r.call.bucket())
            .add(r.call.as_str())
            .add(pure.state.code())
            .add(pure.fence)
            .add(pure.unresolved)
            .add(pure.max_attempts)
            .add(r.token())
            .add(r.session())
            .add(r.claimed_ms)
            .add(r.first_claim_ms)
            .add(r.dispatch_no)
            .add(r.reconcile_no)
            .add(r.due_ms)
            .add(r.unknown_ms)
            .add(r.deadline_ms)
            .add(r.cancel_ms)
            .add(r.settled_ms)
            .add(pure.settled_by.map(SettledBy::code))
            .add(pure.settle_rev);
    });
    writes.add(WRITE_SAID, 18, &said, |bind, r| {
        let (pure, said) = (&r.pure, r.said.as_ref());
        let error = said.and_then(|said| said.error.as_ref());
        bind.add(r.call.bucket())
            .add(r.call.as_str())
            .add(pure.state.code())
            .add(pure.unresolved)
            .add(r.due_ms)
            .add(r.unknown_ms)
            .add(r.deadline_ms)
            .add(pure.max_attempts)
            .add(r.reconcile_no)
            .add(r.settled_ms)
            .add(pure.settled_by.map(SettledBy::code))
            .add(pure.settle_rev)
            .add(error.map(|e| rows::class_text(e.class)))
            .add(error.map(|e| e.code.as_str()))
            .add(error.map(|e| e.message.as_str()))
            .add(error.map(|e| e.retryable))
            .add(said.and_then(|said| said.output.inline.as_ref()).map(Json::as_bytes))
            .add(said.and_then(|said| said.output.reference).map(|reference| reference.to_string()));
    });
}

/// An entry for the attempt log.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) call: CallUid,
    pub(super) fence: u32,
    pub(super) session: Option<String>,
    pub(super) token: Option<String>,
    pub(super) event: AttemptEvent,
    pub(super) detail: Json,
}

/// Appends to the attempt log; what a call's log says already is not said twice (a result may be delivered often).
pub(super) async fn log(connection: &mut SqliteConnection, now: i64, entries: &[Entry]) -> StoreResult<()> {
    for entry in entries {
        // One by one: the next number is read from the table. This is the exception log, so there are few.
        each(connection, LOG, 8, std::slice::from_ref(entry), |bind, e| {
            bind.add(e.call.bucket())
                .add(e.call.as_str())
                .add(e.fence)
                .add(e.session.as_deref())
                .add(e.token.as_deref())
                .add(e.event as i16)
                .add(e.detail.as_bytes())
                .add(now);
        })
        .await?;
    }
    Ok(())
}
