//! Unknown K calls: asking the backend by key, sending again with the same key, and what the answers lead to (§16).

use ditto_contracts::{CallUid, ReceiptState};
use ditto_graph::receipt::{KeyEvidence, ReceiptEvent};
use sqlx::PgPool;

use super::{
    super::{
        Changed, DueJob, QueryAnswer, StoreResult,
        rows::{self as shared, Kept, backoff_ms},
    },
    LogEntry, begin,
    columns::fence_column,
    log,
    model::{Said, Stored, Update, lock, stored_columns, write},
    sweepers::{DueColumns, dispatched},
};

/// Applies answers of backends.
pub(super) async fn reconcile(pool: &PgPool, answers: &[(CallUid, QueryAnswer)]) -> StoreResult<Vec<Option<Changed>>> {
    let mut tx = begin(pool).await?;
    let mut known = lock(&mut tx, answers.iter().map(|(call, _)| call)).await?;
    let mut updates: Vec<Update> = Vec::new();
    let mut at_update = Vec::with_capacity(answers.len());
    let mut entries = Vec::new();
    for (call, answer) in answers {
        let Some(stored) = known.remove(call) else {
            at_update.push(None);
            continue;
        };
        let fence = stored.receipt.fence;
        let (word, said) = match answer {
            QueryAnswer::Applied { output } => {
                (Some("applied"), Some(Said { output: Kept::of_opt(output.as_ref())?, error: None }))
            }
            QueryAnswer::Refused { output, error } => {
                let said = Said { output: Kept::of_opt(output.as_ref())?, error: Some(error.clone()) };
                (Some("refused"), Some(said))
            }
            QueryAnswer::Conflict => (Some("conflict"), None),
            QueryAnswer::Absent => (Some("absent"), None),
            QueryAnswer::InProgress | QueryAnswer::Unanswered => (None, None),
        };
        let change = event(&stored, answer).and_then(|event| stored.receipt.apply(&event).ok());
        if let Some(word) = word {
            let detail = shared::encode(&serde_json::json!({ "answer": word, "applied": change.is_some() }))?;
            entries.push(LogEntry {
                bucket: call.bucket(),
                call: call.as_str().to_owned(),
                fence: fence_column(fence),
                session: None,
                token: None,
                event: 4,
                detail: detail.as_bytes().to_vec(),
            });
        }
        at_update.push(change.map(|change| {
            updates.push(Update::of(stored, change, said));
            updates.len() - 1
        }));
    }
    log(&mut tx, &entries).await?;
    let owners = write(&mut tx, &updates).await?;
    tx.commit().await?;
    Ok(at_update
        .into_iter()
        .map(|at| at.and_then(|at| updates.get(at)).map(|update| update.changed(&owners)))
        .collect())
}

/// What an answer means for a receipt; `None`: nothing, it is asked again when it is due.
fn event(stored: &Stored, answer: &QueryAnswer) -> Option<ReceiptEvent> {
    let receipt = &stored.receipt;
    if receipt.state != ReceiptState::Unknown {
        return None;
    }
    let evidence = |answer| Some(ReceiptEvent::ReconcileAnswer { answer });
    match answer {
        QueryAnswer::Applied { .. } => evidence(KeyEvidence::Applied),
        QueryAnswer::Refused { .. } => evidence(KeyEvidence::Refused),
        QueryAnswer::Conflict => evidence(KeyEvidence::Conflict),
        QueryAnswer::Absent => Some(ReceiptEvent::ReconcileAbsent { fence: receipt.fence }),
        QueryAnswer::InProgress | QueryAnswer::Unanswered => None,
    }
}

/// Unknown, open and due: a job that asks, or the call itself once more.
pub(super) async fn sweep(pool: &PgPool, limit: u32) -> StoreResult<Vec<DueJob>> {
    const DUE: &str = concat!(
        "SELECT ",
        stored_columns!(),
        " FROM receipts r
         WHERE r.settled_ms IS NULL AND r.due_ms <= (SELECT now_ms()) AND r.state = 5 AND r.effect_class = 2
         ORDER BY r.due_ms LIMIT $1 FOR UPDATE OF r SKIP LOCKED"
    );
    let mut tx = begin(pool).await?;
    let found = sqlx::query(DUE).bind(i64::from(limit)).fetch_all(&mut *tx).await?;
    let mut stored: Vec<Stored> = found.iter().map(Stored::read).collect::<StoreResult<_>>()?;
    stored.sort_unstable_by(|a, b| a.call.cmp(&b.call));
    let mut updates = Vec::new();
    let mut jobs = DueColumns::default();
    for stored in stored {
        let asked = i64::from(stored.reconcile_no.max(0)) + 1;
        if stored.receipt.query {
            jobs.push(&stored, stored.now_ms.saturating_add(backoff_ms(asked)), true);
            continue;
        }
        let event = ReceiptEvent::ReconcileAbsent { fence: stored.receipt.fence };
        match stored.receipt.apply(&event) {
            Ok(change) => {
                let due_ms = stored.now_ms.saturating_add(backoff_ms(i64::from(stored.dispatch_no) + 1));
                jobs.push(&stored, due_ms, false);
                updates.push(Update::of(stored, change, None));
            }
            // Nothing more can be tried; the pass over the limits says so. Until then it is not looked at every time.
            Err(_) => jobs.postpone(&stored, stored.now_ms.saturating_add(backoff_ms(1))),
        }
    }
    write(&mut tx, &updates).await?;
    let jobs = dispatched(&mut tx, &jobs).await?;
    tx.commit().await?;
    Ok(jobs)
}
