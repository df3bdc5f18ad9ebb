//! Batches as parallel arrays: one vector per parameter, in the order in which rows are locked.

use std::borrow::Cow;

use ditto_contracts::{Json, WireError};
use sqlx::{Postgres, postgres::PgArguments, query::Query};

use super::super::{
    NewReceipt, Settle, StoreResult,
    rows::{Kept, class_text, dispatch_pause_ms, encode, ms, on_unknown_code},
};

pub(super) type Statement<'q> = Query<'q, Postgres, PgArguments>;

/// A text without U+0000, which Postgres refuses in texts: an outcome must never become unstorable by its message.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// The four columns of an error.
#[derive(Default)]
pub(super) struct ErrorColumns<'a> {
    class: Vec<Option<&'static str>>,
    code: Vec<Option<Cow<'a, str>>>,
    message: Vec<Option<Cow<'a, str>>>,
    retryable: Vec<Option<bool>>,
}

impl<'a> ErrorColumns<'a> {
    pub(super) fn push(&mut self, error: Option<&'a WireError>) {
        self.class.push(error.map(|e| class_text(e.class)));
        self.code.push(error.map(|e| clean(&e.code)));
        self.message.push(error.map(|e| clean(&e.message)));
        self.retryable.push(error.map(|e| e.retryable));
    }

    pub(super) fn bind<'q>(&self, query: Statement<'q>) -> Statement<'q> {
        query.bind(&self.class).bind(&self.code).bind(&self.message).bind(&self.retryable)
    }
}

/// Values above the inline limit, stored in the same transaction.
#[derive(Default)]
pub(super) struct Big {
    pub(super) values: Vec<(i32, [u8; 32], Json)>,
}

impl Big {
    /// Decides where a value goes: its inline bytes or its reference.
    pub(super) fn place(&mut self, bucket: i32, kept: Kept) -> (Option<Json>, Option<String>) {
        if let (Some(reference), Some(value)) = (&kept.reference, kept.big) {
            self.values.push((bucket, reference.digest, value));
        }
        (kept.inline, kept.reference.map(|reference| reference.to_string()))
    }
}

/// New receipts, one element each.
#[derive(Default)]
pub(super) struct ReceiptColumns<'a> {
    pub(super) item: Vec<i32>,
    pub(super) bucket: Vec<i32>,
    pub(super) call: Vec<&'a str>,
    run: Vec<&'a str>,
    version: Vec<i64>,
    kind: Vec<i16>,
    call_id: Vec<&'a str>,
    node: Vec<&'a str>,
    source: Vec<Option<&'a str>>,
    pool: Vec<Option<&'a str>>,
    label: Vec<Cow<'a, str>>,
    policy: Vec<Json>,
    class: Vec<i16>,
    /// 1 exclusive, 2 unclaimed, 4 query, 8 refusals stored.
    flags: Vec<i32>,
    key_ttl_ms: Vec<Option<i64>>,
    max_attempts: Vec<i32>,
    on_unknown: Vec<i16>,
    idem_key: Vec<Cow<'a, str>>,
    hash: Vec<&'a [u8]>,
    dispatch_no: Vec<i32>,
    due_after_ms: Vec<i64>,
    budget_ms: Vec<Option<i64>>,
    traceparent: Vec<Option<Cow<'a, str>>>,
    request: Vec<Option<Json>>,
    request_ref: Vec<Option<String>>,
}

/// Reads the arrays of [`ReceiptColumns::bind`], from parameter 1, as the rows `n`.
macro_rules! new_receipts {
    () => {
        "n AS MATERIALIZED (SELECT * FROM unnest($1::int[], $2::int[], $3::text[], $4::text[], $5::int8[], $6::int2[],
              $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::int2[], $14::int[],
              $15::int8[], $16::int[], $17::int2[], $18::text[], $19::bytea[], $20::int[], $21::int8[], $22::int8[],
              $23::text[], $24::bytea[], $25::text[]) WITH ORDINALITY
            AS n(i, bucket, call_uid, loop_id, version, kind, call_id, node, source, pool, label, policy, class, flags,
                 key_ttl_ms, max_attempts, on_unknown, idem_key, hash, dispatch_no, due_after_ms, budget_ms, traceparent,
                 request, request_ref, at))"
    };
}
pub(super) use new_receipts;

/// Writes the rows `n` of the items in `ok`.
macro_rules! insert_receipts {
    () => {
        "INSERT INTO receipts (bucket, call_uid, loop_id, decided_version, decided_at, kind, call_id, node, source, pool, label,
                policy, effect_class, exclusive, unclaimed, has_query, rejections_stored, key_ttl_ms, max_attempts,
                on_unknown, idem_key, request_hash, state, dispatch_no, due_ms, deadline_ms, created_ms, traceparent,
                request, request_ref)
         SELECT n.bucket, n.call_uid, n.loop_id, n.version, n.at, n.kind, n.call_id, n.node, n.source, n.pool, n.label,
                n.policy, n.class, n.flags & 1 <> 0, n.flags & 2 <> 0, n.flags & 4 <> 0, n.flags & 8 <> 0, n.key_ttl_ms,
                n.max_attempts, n.on_unknown, n.idem_key, n.hash, 1, n.dispatch_no, t.now + n.due_after_ms,
                t.now + n.budget_ms, t.now, n.traceparent, n.request, n.request_ref
           FROM t, n WHERE (n.i IN (SELECT i FROM ok)) IS TRUE"
    };
}
pub(super) use insert_receipts;

impl<'a> ReceiptColumns<'a> {
    pub(super) fn push(
        &mut self,
        item: i32,
        run: &'a str,
        version: i64,
        receipt: &'a NewReceipt,
        big: &mut Big,
    ) -> StoreResult<()> {
        let bucket = receipt.call.bucket();
        let (request, request_ref) = big.place(bucket, Kept::of(&receipt.request)?);
        let policy = &receipt.policy;
        let pause_ms = dispatch_pause_ms(policy, receipt.budget_ms, 1);
        let delayed = receipt.delay_ms > 0;
        self.item.push(item);
        self.bucket.push(bucket);
        self.call.push(receipt.call.as_str());
        self.run.push(run);
        self.version.push(version);
        self.kind.push(receipt.kind.code());
        self.call_id.push(receipt.call_id.as_str());
        self.node.push(receipt.node.as_str());
        self.source.push(receipt.source.as_deref());
        self.pool.push(receipt.pool.as_ref().map(|pool| pool.as_str()));
        self.label.push(clean(&receipt.label));
        self.policy.push(encode(policy)?);
        self.class.push(policy.class.code());
        self.flags.push(
            i32::from(policy.exclusive)
                | i32::from(!policy.is_claimed()) << 1
                | i32::from(policy.query) << 2
                | i32::from(policy.rejections_stored) << 3,
        );
        self.key_ttl_ms.push(policy.key_ttl_ms.map(ms));
        self.max_attempts.push(i32::from(policy.max_attempts));
        self.on_unknown.push(on_unknown_code(receipt.on_unknown));
        self.idem_key.push(clean(&receipt.idem_key));
        self.hash.push(&receipt.request_hash);
        self.dispatch_no.push(i32::from(!delayed));
        self.due_after_ms.push(if delayed { ms(receipt.delay_ms) } else { pause_ms });
        self.budget_ms.push(receipt.budget_ms.map(ms));
        self.traceparent.push(receipt.traceparent.as_deref().map(clean));
        self.request.push(request);
        self.request_ref.push(request_ref);
        Ok(())
    }

    pub(super) fn bind<'q>(&self, query: Statement<'q>) -> Statement<'q> {
        query
            .bind(&self.item)
            .bind(&self.bucket)
            .bind(&self.call)
            .bind(&self.run)
            .bind(&self.version)
            .bind(&self.kind)
            .bind(&self.call_id)
            .bind(&self.node)
            .bind(&self.source)
            .bind(&self.pool)
            .bind(&self.label)
            .bind(json_bytes(&self.policy))
            .bind(&self.class)
            .bind(&self.flags)
            .bind(&self.key_ttl_ms)
            .bind(&self.max_attempts)
            .bind(&self.on_unknown)
            .bind(&self.idem_key)
            .bind(&self.hash)
            .bind(&self.dispatch_no)
            .bind(&self.due_after_ms)
            .bind(&self.budget_ms)
            .bind(&self.traceparent)
            .bind(json_bytes_opt(&self.request))
            .bind(&self.request_ref)
    }
}

/// Settlements, one element each.
#[derive(Default)]
pub(super) struct SettleColumns<'a> {
    n: Vec<i32>,
    item: Vec<i32>,
    pub(super) bucket: Vec<i32>,
    call: Vec<&'a str>,
    run: Vec<Option<&'a str>>,
    fence: Vec<i32>,
    token: Vec<Option<&'a str>>,
    hash: Vec<&'a [u8]>,
    verdict: Vec<i16>,
    output: Vec<Option<Json>>,
    output_ref: Vec<Option<String>>,
    error: ErrorColumns<'a>,
}

/// A fence as a column; one beyond the range matches nothing.
pub(super) fn fence_column(fence: u32) -> i32 {
    i32::try_from(fence).unwrap_or(-1)
}

impl<'a> SettleColumns<'a> {
    /// `n` names the settlement, `item` what it belongs to; `run`: the call must be of this run.
    pub(super) fn push(
        &mut self,
        n: i32,
        item: i32,
        run: Option<&'a str>,
        settle: &'a Settle,
        big: &mut Big,
    ) -> StoreResult<()> {
        let bucket = settle.call.bucket();
        let (output, output_ref) = match settle.output_ref {
            Some(reference) => (None, Some(reference.to_string())),
            None => big.place(bucket, Kept::of_opt(settle.output.as_ref())?),
        };
        self.n.push(n);
        self.item.push(item);
        self.bucket.push(bucket);
        self.call.push(settle.call.as_str());
        self.run.push(run);
        self.fence.push(fence_column(settle.fence));
        self.token.push(settle.token.as_ref().map(|token| token.as_str()));
        self.hash.push(&settle.request_hash);
        self.verdict.push(settle.verdict.code());
        self.output.push(output);
        self.output_ref.push(output_ref);
        self.error.push(settle.error.as_ref());
        Ok(())
    }

    pub(super) fn bind<'q>(&self, query: Statement<'q>) -> Statement<'q> {
        let query = query
            .bind(&self.n)
            .bind(&self.item)
            .bind(&self.bucket)
            .bind(&self.call)
            .bind(&self.run)
            .bind(&self.fence)
            .bind(&self.token)
            .bind(&self.hash)
            .bind(&self.verdict)
            .bind(json_bytes_opt(&self.output))
            .bind(&self.output_ref);
        self.error.bind(query)
    }
}

/// JSON values as bytes, without copies.
pub(super) fn json_bytes(values: &[Json]) -> Vec<&[u8]> {
    values.iter().map(Json::as_bytes).collect()
}

/// Optional JSON values as bytes, without copies.
pub(super) fn json_bytes_opt(values: &[Option<Json>]) -> Vec<Option<&[u8]>> {
    values.iter().map(|value| value.as_ref().map(Json::as_bytes)).collect()
}
