//! T2: one attempt is granted, or given back.

use ditto_contracts::{
    CallPolicy, CallUid, Json, ReceiptState, SessionId, codes,
    wire::ledger::{ClaimAnswer, ClaimItem, ReleaseItem},
};
use ditto_graph::receipt::{AttemptEvent, Claim, ReceiptEvent, Refused};
use sqlx::{Row as _, SqliteConnection};

use super::{
    batch::each,
    receipt::{self, Entry, Said, Stored},
};
use crate::store::{StoreResult, rows};

/// The session may not start anything any more.
const SESSION_DEAD: &str = "SESSION_DEAD";

const POLICIES: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) SELECT r.call_uid, r.policy, r.idem_key \
     FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

/// Whether a session may be granted anything.
async fn is_alive(connection: &mut SqliteConnection, now: i64, session: &SessionId) -> StoreResult<bool> {
    let found = sqlx::query("SELECT 1 FROM sessions WHERE session_id = ?1 AND dead_ms IS NULL AND expires_ms > ?2")
        .bind(session.as_str())
        .bind(now)
        .fetch_optional(connection)
        .await?;
    Ok(found.is_some())
}

/// Why a claim is not granted, in the words of the wire.
fn refusal(r: &Stored, reason: Refused) -> ClaimAnswer {
    let refused = |reason: &str| ClaimAnswer::Refused { reason: reason.to_owned() };
    match reason {
        Refused::CancelAsked => refused(codes::CANCELLED),
        Refused::DeadlinePassed => refused(codes::DEADLINE_EXCEEDED),
        Refused::AttemptsExhausted => refused(codes::ATTEMPTS_EXHAUSTED),
        Refused::WindowClosed => refused(codes::KEY_WINDOW_CLOSED),
        Refused::SessionDead => refused(SESSION_DEAD),
        Refused::Settled => ClaimAnswer::Settled { state: r.pure.state },
        Refused::Repeat
        | Refused::TokenUsed
        | Refused::Taken
        | Refused::ContradictsPerson
        | Refused::AttemptsRemain
        | Refused::SessionNotOver
        | Refused::StaleFence
        | Refused::NotHolder
        | Refused::StaleSettlement
        | Refused::WrongRequest
        | Refused::NoProof
        | Refused::CanStillAsk
        | Refused::WrongClass
        | Refused::WrongState => ClaimAnswer::Taken,
    }
}

enum Answer {
    Ready(ClaimAnswer),
    Granted(Box<Stored>),
}

/// T2 for a batch of one session.
pub(super) async fn claim(
    connection: &mut SqliteConnection,
    now: i64,
    session: &SessionId,
    items: &[ClaimItem],
) -> StoreResult<Vec<ClaimAnswer>> {
    let alive = is_alive(connection, now, session).await?;
    let calls: Vec<&CallUid> = items.iter().map(|item| &item.call).collect();
    let mut receipts = receipt::load(connection, now, &calls).await?;
    let (mut changed, mut log, mut answers) = (Vec::new(), Vec::new(), Vec::with_capacity(items.len()));
    for item in items {
        let Some(mut r) = receipts.remove(&item.call) else {
            answers.push(Answer::Ready(ClaimAnswer::Missing));
            continue;
        };
        let before = (r.pure.fence > 0).then(|| superseded(&r)).transpose()?;
        let claim = Claim { token: item.token.clone(), session: session.clone() };
        let mine = r.pure.claim.as_ref() == Some(&claim);
        let event = ReceiptEvent::Claim { claim, session_alive: alive };
        answers.push(match r.apply(&event, Said::default(), 0, now) {
            Ok(_) => {
                log.extend(before);
                changed.push(r.clone());
                Answer::Granted(Box::new(r))
            }
            // The reply to this very claim was lost. A dead session starts nothing, whatever it was granted.
            Err(refused) if refused.reason == Refused::Repeat && mine && alive => Answer::Granted(Box::new(r)),
            Err(refused) if refused.reason == Refused::Repeat && mine => {
                Answer::Ready(refusal(&r, Refused::SessionDead))
            }
            Err(refused) => Answer::Ready(refusal(&r, refused.reason)),
        });
    }
    receipt::write(connection, now, &changed).await?;
    receipt::log(connection, now, &log).await?;
    let granted: Vec<&CallUid> =
        answers.iter().filter_map(|a| if let Answer::Granted(r) = a { Some(&r.call) } else { None }).collect();
    let mut policies = std::collections::HashMap::with_capacity(granted.len());
    let found = each(connection, POLICIES, 2, &granted, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    });
    for row in found.await? {
        policies.insert(rows::id::<CallUid>(row.try_get(0)?)?, (rows::policy(row.try_get(1)?)?, row.try_get(2)?));
    }
    Ok(answers
        .into_iter()
        .map(|answer| match answer {
            Answer::Ready(answer) => answer,
            Answer::Granted(r) => {
                let (policy, key) = policies.remove(&r.call).unwrap_or_default();
                grant(&r, now, policy, key)
            }
        })
        .collect())
}

fn grant(r: &Stored, now: i64, policy: CallPolicy, key: String) -> ClaimAnswer {
    ClaimAnswer::Granted {
        fence: r.pure.fence,
        earlier_unresolved: r.pure.earlier_unresolved(),
        key,
        request_hash: data_encoding::HEXLOWER.encode(&r.request_hash),
        policy,
        budget_ms: r.deadline_ms.map(|deadline| u64::try_from(deadline - now).unwrap_or(0)),
    }
}

fn superseded(r: &Stored) -> StoreResult<Entry> {
    Ok(Entry {
        call: r.call.clone(),
        fence: r.pure.fence,
        session: r.session().map(str::to_owned),
        token: r.token().map(str::to_owned),
        event: AttemptEvent::Superseded,
        detail: rows::encode(&serde_json::json!({ "claimedMs": r.claimed_ms, "unresolved": r.pure.unresolved }))?,
    })
}

/// Rows 3 and 6 for a batch of one session.
pub(super) async fn release(
    connection: &mut SqliteConnection,
    now: i64,
    session: &SessionId,
    items: &[ReleaseItem],
) -> StoreResult<Vec<bool>> {
    let calls: Vec<&CallUid> = items.iter().map(|item| &item.call).collect();
    let mut receipts = receipt::load(connection, now, &calls).await?;
    let (mut changed, mut log, mut answers) = (Vec::new(), Vec::new(), Vec::with_capacity(items.len()));
    for item in items {
        let Some(mut r) = receipts.remove(&item.call) else {
            answers.push(false);
            continue;
        };
        let named = r.pure.fence == item.fence && r.token() == Some(item.token.as_str());
        if !named || r.session().is_some_and(|holder| holder != session.as_str()) {
            answers.push(false);
            continue;
        }
        // Given back before: the reply was lost.
        if r.pure.state == ReceiptState::Planned {
            answers.push(true);
            continue;
        }
        let holder = r.session().map(str::to_owned);
        let event = ReceiptEvent::Release { fence: item.fence, token: item.token.clone(), unstarted: item.unstarted };
        let done = r.apply(&event, Said::default(), rows::ms(item.delay_ms), now).is_ok();
        if done {
            log.push(Entry {
                call: r.call.clone(),
                fence: r.pure.fence,
                session: holder,
                token: Some(item.token.as_str().to_owned()),
                event: AttemptEvent::Released,
                detail: released(item)?,
            });
            changed.push(r);
        }
        answers.push(done);
    }
    receipt::write(connection, now, &changed).await?;
    receipt::log(connection, now, &log).await?;
    Ok(answers)
}

fn released(item: &ReleaseItem) -> StoreResult<Json> {
    rows::encode(&serde_json::json!({ "unstarted": item.unstarted, "error": item.error }))
}
