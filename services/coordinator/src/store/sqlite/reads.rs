//! What people and scrapers read. Nothing here decides anything.

use ditto_contracts::{Json, LoopName, Namespace, ReceiptState, Revision, RunId, RunStatus, SettledBy};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::payloads;
use crate::store::{
    AttemptRow, DefinitionRow, EventRow, LedgerCounts, ReceiptFilter, ReceiptRow, RunFilter, RunRow, StoreResult, rows,
};

macro_rules! run_columns {
    () => {
        "SELECT loop_id, namespace, loop_name, loop_rev, submit_key, status, version, owner_session, created_ms, \
         ended_ms, wake_ms, deadline_ms, cancel_ms, input, input_ref, output, output_ref, error_class, error_code, \
         error_message, error_retryable, bucket FROM loops "
    };
}

/// A value from its two columns. A list does not carry payloads: it names them, as `{"payload":"<digest>.<size>"}`.
async fn value(
    connection: &mut SqliteConnection,
    row: &SqliteRow,
    bucket: i32,
    column: usize,
    whole: bool,
) -> StoreResult<Option<Json>> {
    let (inline, reference): (Option<Vec<u8>>, Option<String>) = (row.try_get(column)?, row.try_get(column + 1)?);
    match reference {
        Some(reference) if !whole => Ok(Some(rows::encode(&serde_json::json!({ "payload": reference }))?)),
        reference => payloads::resolve(connection, bucket, inline, reference).await,
    }
}

async fn run_row(connection: &mut SqliteConnection, row: &SqliteRow, whole: bool) -> StoreResult<RunRow> {
    let bucket = row.try_get(21)?;
    Ok(RunRow {
        run: rows::id(row.try_get(0)?)?,
        namespace: rows::id(row.try_get(1)?)?,
        name: rows::id(row.try_get(2)?)?,
        revision: rows::id(row.try_get(3)?)?,
        key: rows::id_opt(row.try_get(4)?)?,
        status: rows::code(RunStatus::from_code(row.try_get(5)?), "run status")?,
        version: row.try_get(6)?,
        owner: rows::id_opt(row.try_get(7)?)?,
        created_ms: row.try_get(8)?,
        ended_ms: row.try_get(9)?,
        wake_ms: row.try_get(10)?,
        deadline_ms: row.try_get(11)?,
        cancel_ms: row.try_get(12)?,
        input: value(connection, row, bucket, 13, whole).await?.unwrap_or_else(Json::null),
        output: value(connection, row, bucket, 15, whole).await?,
        error: rows::error(row.try_get(17)?, row.try_get(18)?, row.try_get(19)?, row.try_get(20)?),
    })
}

/// One run.
pub(super) async fn run(
    connection: &mut SqliteConnection,
    namespace: Option<&Namespace>,
    run: &RunId,
) -> StoreResult<Option<RunRow>> {
    let sql = concat!(run_columns!(), "WHERE bucket = ?1 AND loop_id = ?2 AND (?3 IS NULL OR namespace = ?3)");
    let found = sqlx::query(sql).bind(run.bucket()).bind(run.as_str()).bind(namespace.map(Namespace::as_str));
    match found.fetch_optional(&mut *connection).await? {
        Some(row) => run_row(connection, &row, true).await.map(Some),
        None => Ok(None),
    }
}

fn mask(codes: impl Iterator<Item = i16>) -> i64 {
    codes.fold(0, |mask, code| mask | (1 << code))
}

/// Runs, newest first.
pub(super) async fn runs(
    connection: &mut SqliteConnection,
    filter: &RunFilter,
    limit: u32,
) -> StoreResult<Vec<RunRow>> {
    let sql = concat!(
        run_columns!(),
        "WHERE (?1 IS NULL OR namespace = ?1) AND (?2 IS NULL OR loop_name = ?2) \
         AND (?3 = 0 OR (?3 >> status) & 1) AND (?4 IS NULL OR (bucket, loop_id) < (?5, ?4)) \
         ORDER BY bucket DESC, loop_id DESC LIMIT ?6"
    );
    let found = sqlx::query(sql)
        .bind(filter.namespace.as_ref().map(Namespace::as_str))
        .bind(filter.name.as_ref().map(LoopName::as_str))
        .bind(mask(filter.statuses.iter().map(|status| status.code())))
        .bind(filter.before.as_ref().map(RunId::as_str))
        .bind(filter.before.as_ref().map(RunId::bucket))
        .bind(limit)
        .fetch_all(&mut *connection)
        .await?;
    let mut list = Vec::with_capacity(found.len());
    for row in &found {
        list.push(run_row(connection, row, false).await?);
    }
    Ok(list)
}

/// Progress after a version.
pub(super) async fn events(
    connection: &mut SqliteConnection,
    run: &RunId,
    version: i64,
    limit: u32,
) -> StoreResult<Vec<EventRow>> {
    let found = sqlx::query(
        "SELECT version, created_ms, progress FROM checkpoints WHERE bucket = ?1 AND loop_id = ?2 AND version > ?3 \
         AND progress IS NOT NULL ORDER BY version LIMIT ?4",
    )
    .bind(run.bucket())
    .bind(run.as_str())
    .bind(version)
    .bind(limit)
    .fetch_all(connection)
    .await?;
    let events = found.into_iter().map(|row| {
        Ok(EventRow { version: row.try_get(0)?, at_ms: row.try_get(1)?, progress: rows::json(row.try_get(2)?) })
    });
    events.collect()
}

macro_rules! receipt_columns {
    () => {
        "SELECT r.call_uid, r.loop_id, r.kind, r.call_id, r.node, r.source, r.pool, r.label, r.policy, r.idem_key, \
         r.request, r.state, r.fence, r.unresolved, r.dispatch_no, r.session_id, r.created_ms, r.claimed_ms, \
         r.settled_ms, r.settled_by, r.settle_rev, r.outcome, r.outcome_ref, r.error_class, r.error_code, \
         r.error_message, r.error_retryable, r.bucket FROM receipts r "
    };
}

async fn receipt_row(connection: &mut SqliteConnection, row: &SqliteRow, whole: bool) -> StoreResult<ReceiptRow> {
    let policy: &[u8] = row.try_get(8)?;
    Ok(ReceiptRow {
        call: rows::id(row.try_get(0)?)?,
        run: rows::id(row.try_get(1)?)?,
        kind: rows::code(ditto_contracts::CallKind::from_code(row.try_get(2)?), "call kind")?,
        call_id: rows::id(row.try_get(3)?)?,
        node: rows::id(row.try_get(4)?)?,
        source: row.try_get(5)?,
        pool: rows::id_opt(row.try_get(6)?)?,
        label: row.try_get(7)?,
        policy: rows::policy(policy)?,
        idem_key: row.try_get(9)?,
        request: row.try_get::<Option<Vec<u8>>, _>(10)?.map(rows::json),
        state: rows::code(ReceiptState::from_code(row.try_get(11)?), "receipt state")?,
        fence: row.try_get(12)?,
        unresolved: row.try_get(13)?,
        dispatch_no: row.try_get(14)?,
        session: rows::id_opt(row.try_get(15)?)?,
        created_ms: row.try_get(16)?,
        claimed_ms: row.try_get(17)?,
        settled_ms: row.try_get(18)?,
        settled_by: row.try_get::<Option<i16>, _>(19)?.and_then(SettledBy::from_code),
        settle_rev: row.try_get(20)?,
        output: value(connection, row, row.try_get(27)?, 21, whole).await?,
        error: rows::error(row.try_get(23)?, row.try_get(24)?, row.try_get(25)?, row.try_get(26)?),
    })
}

/// One receipt.
pub(super) async fn receipt(
    connection: &mut SqliteConnection,
    call: &ditto_contracts::CallUid,
) -> StoreResult<Option<ReceiptRow>> {
    let sql = concat!(receipt_columns!(), "WHERE r.bucket = ?1 AND r.call_uid = ?2");
    match sqlx::query(sql).bind(call.bucket()).bind(call.as_str()).fetch_optional(&mut *connection).await? {
        Some(row) => receipt_row(connection, &row, true).await.map(Some),
        None => Ok(None),
    }
}

/// Receipts: of one run in the order they were decided, else newest first.
pub(super) async fn receipts(
    connection: &mut SqliteConnection,
    filter: &ReceiptFilter,
    limit: u32,
) -> StoreResult<Vec<ReceiptRow>> {
    let after = filter.after.as_ref();
    let mask = mask(filter.states.iter().map(|state| state.code()));
    let namespace = filter.namespace.as_ref().map(Namespace::as_str);
    let found = if let Some(run) = &filter.run {
        let sql = concat!(
            receipt_columns!(),
            "WHERE r.bucket = ?1 AND r.loop_id = ?2 AND (?3 = 0 OR (?3 >> r.state) & 1) \
             AND (?4 IS NULL OR EXISTS (SELECT 1 FROM loops l WHERE l.bucket = r.bucket AND l.loop_id = r.loop_id \
             AND l.namespace = ?4)) AND (?5 IS NULL OR r.rowid > \
             (SELECT a.rowid FROM receipts a WHERE a.bucket = ?6 AND a.call_uid = ?5)) ORDER BY r.rowid LIMIT ?7"
        );
        sqlx::query(sql).bind(run.bucket()).bind(run.as_str())
    } else if filter.states == [ReceiptState::Unknown] {
        // The register of doubt has an index of its own.
        let sql = concat!(
            receipt_columns!(),
            "WHERE r.state = 5 AND ?1 IS NULL AND ?2 IS NULL AND ?3 >= 0 \
             AND (?4 IS NULL OR EXISTS (SELECT 1 FROM loops l WHERE l.bucket = r.bucket AND l.loop_id = r.loop_id \
             AND l.namespace = ?4)) AND (?5 IS NULL OR r.rowid < \
             (SELECT a.rowid FROM receipts a WHERE a.bucket = ?6 AND a.call_uid = ?5)) ORDER BY r.rowid DESC LIMIT ?7"
        );
        sqlx::query(sql).bind(None::<i32>).bind(None::<&str>)
    } else {
        let sql = concat!(
            receipt_columns!(),
            "WHERE ?1 IS NULL AND ?2 IS NULL AND (?3 = 0 OR (?3 >> r.state) & 1) \
             AND (?4 IS NULL OR EXISTS (SELECT 1 FROM loops l WHERE l.bucket = r.bucket AND l.loop_id = r.loop_id \
             AND l.namespace = ?4)) AND (?5 IS NULL OR r.rowid < \
             (SELECT a.rowid FROM receipts a WHERE a.bucket = ?6 AND a.call_uid = ?5)) ORDER BY r.rowid DESC LIMIT ?7"
        );
        sqlx::query(sql).bind(None::<i32>).bind(None::<&str>)
    };
    let found = found
        .bind(mask)
        .bind(namespace)
        .bind(after.map(|call| call.as_str()))
        .bind(after.map(|call| call.bucket()))
        .bind(limit)
        .fetch_all(&mut *connection)
        .await?;
    let mut list = Vec::with_capacity(found.len());
    for row in &found {
        list.push(receipt_row(connection, row, false).await?);
    }
    Ok(list)
}

/// Attempt log of a call.
pub(super) async fn attempts(
    connection: &mut SqliteConnection,
    call: &ditto_contracts::CallUid,
    limit: u32,
) -> StoreResult<Vec<AttemptRow>> {
    let found = sqlx::query(
        "SELECT fence, event, detail, at_ms FROM attempts WHERE bucket = ?1 AND call_uid = ?2 ORDER BY n LIMIT ?3",
    )
    .bind(call.bucket())
    .bind(call.as_str())
    .bind(limit)
    .fetch_all(connection)
    .await?;
    let attempts = found.into_iter().map(|row| {
        Ok(AttemptRow {
            fence: row.try_get(0)?,
            event: rows::event_text(row.try_get(1)?).to_owned(),
            detail: rows::json(row.try_get(2)?),
            at_ms: row.try_get(3)?,
        })
    });
    attempts.collect()
}

/// Registers a definition and makes it the newest of its name.
pub(super) async fn definition_put(
    connection: &mut SqliteConnection,
    now: i64,
    definition: &DefinitionRow,
) -> StoreResult<()> {
    sqlx::query(
        "INSERT INTO definitions (namespace, name, revision, seq, source, created_ms) VALUES (?1, ?2, ?3, \
         1 + coalesce((SELECT max(seq) FROM definitions WHERE namespace = ?1 AND name = ?2), 0), ?4, ?5) \
         ON CONFLICT DO UPDATE SET seq = excluded.seq",
    )
    .bind(definition.namespace.as_str())
    .bind(definition.name.as_str())
    .bind(definition.revision.as_str())
    .bind(&definition.source)
    .bind(now)
    .execute(connection)
    .await?;
    Ok(())
}

fn definition_row(row: &SqliteRow) -> StoreResult<DefinitionRow> {
    Ok(DefinitionRow {
        namespace: rows::id(row.try_get(0)?)?,
        name: rows::id(row.try_get(1)?)?,
        revision: rows::id(row.try_get(2)?)?,
        source: row.try_get(3)?,
        created_ms: row.try_get(4)?,
    })
}

/// A definition: this revision, or the newest.
pub(super) async fn definition(
    connection: &mut SqliteConnection,
    namespace: &Namespace,
    name: &LoopName,
    revision: Option<&Revision>,
) -> StoreResult<Option<DefinitionRow>> {
    let found = sqlx::query(
        "SELECT namespace, name, revision, source, created_ms FROM definitions WHERE namespace = ?1 AND name = ?2 \
         AND (?3 IS NULL OR revision = ?3) ORDER BY seq DESC LIMIT 1",
    )
    .bind(namespace.as_str())
    .bind(name.as_str())
    .bind(revision.map(Revision::as_str))
    .fetch_optional(connection)
    .await?;
    found.as_ref().map(definition_row).transpose()
}

/// Newest revision of each definition.
pub(super) async fn definitions(
    connection: &mut SqliteConnection,
    namespace: &Namespace,
    after: Option<&LoopName>,
    limit: u32,
) -> StoreResult<Vec<DefinitionRow>> {
    let found = sqlx::query(
        "SELECT namespace, name, revision, source, created_ms FROM definitions d WHERE namespace = ?1 \
         AND (?2 IS NULL OR name > ?2) AND seq = (SELECT max(seq) FROM definitions n \
         WHERE n.namespace = d.namespace AND n.name = d.name) ORDER BY name LIMIT ?3",
    )
    .bind(namespace.as_str())
    .bind(after.map(LoopName::as_str))
    .bind(limit)
    .fetch_all(connection)
    .await?;
    found.iter().map(definition_row).collect()
}

/// Numbers for metrics.
pub(super) async fn counts(connection: &mut SqliteConnection, now: i64) -> StoreResult<LedgerCounts> {
    let mut counts = LedgerCounts::default();
    let runs = sqlx::query("SELECT status, count(*) FROM loops WHERE ended_ms IS NULL GROUP BY status");
    for row in runs.fetch_all(&mut *connection).await? {
        counts.runs.push((rows::code(RunStatus::from_code(row.try_get(0)?), "run status")?, row.try_get(1)?));
    }
    let open = sqlx::query("SELECT state, count(*) FROM receipts WHERE settled_ms IS NULL GROUP BY state");
    for row in open.fetch_all(&mut *connection).await? {
        let state = rows::code(ReceiptState::from_code(row.try_get(0)?), "receipt state")?;
        counts.open_receipts.push((state, row.try_get(1)?));
    }
    let unknown = sqlx::query("SELECT count(*) FROM receipts WHERE state = 5 AND settled_ms IS NOT NULL");
    counts.unknown_receipts = unknown.fetch_one(&mut *connection).await?.try_get(0)?;
    let backlog = sqlx::query(
        "SELECT node, pool, count(*), min(created_ms) FROM receipts WHERE settled_ms IS NULL AND state = 1 \
         GROUP BY node, pool LIMIT 1000",
    );
    for row in backlog.fetch_all(connection).await? {
        let (node, pool): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
        let queue = pool.map_or_else(|| node.clone(), |pool| format!("{node}.{pool}"));
        let age = u64::try_from(now - row.try_get::<i64, _>(3)?).unwrap_or(0);
        counts.backlog.push((queue, row.try_get(2)?, age));
    }
    Ok(counts)
}
