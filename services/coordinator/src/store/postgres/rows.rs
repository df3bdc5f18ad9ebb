//! Rows as people see them.

use ditto_contracts::{CallKind, Json, ReceiptState, RunStatus, SettledBy};
use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    super::{ReceiptRow, RunRow, StoreResult, rows as shared},
    payloads,
};

/// What [`read_run`] needs, of `loops l`.
macro_rules! run_columns {
    () => {
        "l.bucket, l.loop_id, l.namespace, l.loop_name, l.loop_rev, l.submit_key, l.status, l.version, l.owner_session,
         l.created_ms, l.ended_ms, l.wake_ms, l.deadline_ms, l.cancel_ms, l.input, l.input_ref, l.output, l.output_ref,
         l.error_class, l.error_code, l.error_message, l.error_retryable"
    };
}
pub(super) use run_columns;

/// What [`read_receipt`] needs, of `receipts r`.
macro_rules! receipt_columns {
    () => {
        "r.bucket, r.call_uid, r.loop_id, r.kind, r.call_id, r.node, r.source, r.pool, r.label, r.policy, r.idem_key,
         r.request, r.state, r.fence, r.unresolved, r.dispatch_no, r.session_id, r.created_ms, r.claimed_ms,
         r.settled_ms, r.settled_by, r.settle_rev, r.outcome, r.outcome_ref, r.error_class, r.error_code,
         r.error_message, r.error_retryable"
    };
}
pub(super) use receipt_columns;

fn error(row: &PgRow) -> sqlx::Result<Option<ditto_contracts::WireError>> {
    Ok(shared::error(
        row.try_get("error_class")?,
        row.try_get("error_code")?,
        row.try_get("error_message")?,
        row.try_get("error_retryable")?,
    ))
}

/// A run, with large values resolved.
pub(super) async fn read_run(connection: &mut PgConnection, row: &PgRow) -> StoreResult<RunRow> {
    let bucket = row.try_get("bucket")?;
    let input = payloads::resolve(&mut *connection, bucket, row.try_get("input")?, row.try_get("input_ref")?).await?;
    let output =
        payloads::resolve(&mut *connection, bucket, row.try_get("output")?, row.try_get("output_ref")?).await?;
    Ok(RunRow {
        run: shared::id(row.try_get("loop_id")?)?,
        namespace: shared::id(row.try_get("namespace")?)?,
        name: shared::id(row.try_get("loop_name")?)?,
        revision: shared::id(row.try_get("loop_rev")?)?,
        key: shared::id_opt(row.try_get("submit_key")?)?,
        status: shared::code(RunStatus::from_code(row.try_get("status")?), "run status")?,
        version: row.try_get("version")?,
        owner: shared::id_opt(row.try_get("owner_session")?)?,
        created_ms: row.try_get("created_ms")?,
        ended_ms: row.try_get("ended_ms")?,
        wake_ms: row.try_get("wake_ms")?,
        deadline_ms: row.try_get("deadline_ms")?,
        cancel_ms: row.try_get("cancel_ms")?,
        input: input.unwrap_or_else(Json::null),
        output,
        error: error(row)?,
    })
}

/// A receipt, with a large output resolved.
pub(super) async fn read_receipt(connection: &mut PgConnection, row: &PgRow) -> StoreResult<ReceiptRow> {
    let bucket = row.try_get("bucket")?;
    let output =
        payloads::resolve(&mut *connection, bucket, row.try_get("outcome")?, row.try_get("outcome_ref")?).await?;
    Ok(ReceiptRow {
        call: shared::id(row.try_get("call_uid")?)?,
        run: shared::id(row.try_get("loop_id")?)?,
        kind: shared::code(CallKind::from_code(row.try_get("kind")?), "call kind")?,
        call_id: shared::id(row.try_get("call_id")?)?,
        node: shared::id(row.try_get("node")?)?,
        source: row.try_get("source")?,
        pool: shared::id_opt(row.try_get("pool")?)?,
        label: row.try_get("label")?,
        policy: shared::policy(row.try_get("policy")?)?,
        idem_key: row.try_get("idem_key")?,
        request: row.try_get::<Option<Vec<u8>>, _>("request")?.map(shared::json),
        state: shared::code(ReceiptState::from_code(row.try_get("state")?), "receipt state")?,
        fence: row.try_get("fence")?,
        unresolved: row.try_get("unresolved")?,
        dispatch_no: row.try_get("dispatch_no")?,
        session: shared::id_opt(row.try_get("session_id")?)?,
        created_ms: row.try_get("created_ms")?,
        claimed_ms: row.try_get("claimed_ms")?,
        settled_ms: row.try_get("settled_ms")?,
        settled_by: row.try_get::<Option<i16>, _>("settled_by")?.and_then(SettledBy::from_code),
        settle_rev: row.try_get("settle_rev")?,
        output,
        error: error(row)?,
    })
}
