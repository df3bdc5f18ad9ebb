//! T2: one attempt is granted, or given back.

use std::{collections::HashMap, ops::Range};

use ditto_contracts::{
    CallPolicy, CallUid, Json, ReceiptState, SessionId, codes,
    wire::ledger::{ClaimAnswer, ClaimItem, ReleaseItem},
};
use ditto_graph::receipt::{AttemptEvent, Claim, ReceiptEvent, Refused};
use sqlx::SqliteConnection;

use super::{
    batch::{Found, Reads, Writes},
    receipt::{self, Entry, Said, Stored},
    writer::Turn,
};
use crate::store::{StoreError, StoreResult, rows};

/// The session may not start anything any more.
const SESSION_DEAD: &str = "SESSION_DEAD";

const POLICIES: &str = "WITH b(bucket, call_uid) AS (VALUES {rows}) \
     SELECT group_concat(format('%s|%s|%s', r.call_uid, hex(r.policy), hex(r.idem_key)), ';') FROM b CROSS JOIN receipts r ON r.bucket = b.bucket AND r.call_uid = b.call_uid";

/// Until when a session may be granted anything.
const ALIVE: &str = "WITH b(session_id) AS (VALUES {rows}) SELECT CAST(max(s.expires_ms) AS TEXT) FROM b \
     CROSS JOIN sessions s ON s.session_id = b.session_id WHERE s.dead_ms IS NULL";

/// Policy and key by call.
type Policies = HashMap<CallUid, (CallPolicy, String)>;

fn policies(found: &Found, place: &Range<usize>) -> StoreResult<Policies> {
    let texts = found.texts(place)?;
    let mut policies = HashMap::with_capacity(texts.len());
    let bytes = |hex: &str| {
        let bytes = data_encoding::HEXUPPER.decode(hex.as_bytes());
        bytes.map_err(|error| StoreError::Other(format!("stored bytes: {error}")))
    };
    for text in texts {
        let mut fields = text.split('|');
        let (Some(call), Some(policy), Some(key)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(StoreError::Other("stored policy has too few fields".into()));
        };
        let key = String::from_utf8_lossy(&bytes(key)?).into_owned();
        policies.insert(rows::id(call)?, (rows::policy(&bytes(policy)?)?, key));
    }
    Ok(policies)
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
    /// Granted now, or again to who has it.
    Granted {
        receipt: Box<Stored>,
        again: bool,
    },
}

/// T2 for a batch of one session.
pub(super) async fn claim(
    mut turn: Turn<'_>,
    session: &SessionId,
    items: &[ClaimItem],
) -> StoreResult<Vec<ClaimAnswer>> {
    let calls: Vec<&CallUid> = items.iter().map(|item| &item.call).collect();
    let mut reads = Reads::new();
    let alive = reads.add(ALIVE, 1, &[session], |bind, session| {
        bind.add(session.as_str());
    });
    let stored = receipt::plan(&mut reads, &calls);
    let kept = reads.add(POLICIES, 2, &calls, |bind, call| {
        bind.add(call.bucket()).add(call.as_str());
    });
    let (now, found) = turn.read(reads).await?;
    let expires: Option<i64> = found.texts(&alive)?.first().map(|text| rows::id(text)).transpose()?;
    let alive = expires.is_some_and(|expires| expires > now);
    let mut receipts = receipt::found(now, &found, &stored)?;
    let mut policies = policies(&found, &kept)?;
    let (mut log, mut answers) = (Vec::new(), Vec::with_capacity(items.len()));
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
                Answer::Granted { receipt: Box::new(r), again: false }
            }
            // The reply to this very claim was lost. A dead session starts nothing, whatever it was granted.
            Err(refused) if refused.reason == Refused::Repeat && mine && alive => {
                Answer::Granted { receipt: Box::new(r), again: true }
            }
            Err(refused) if refused.reason == Refused::Repeat && mine => {
                Answer::Ready(refusal(&r, Refused::SessionDead))
            }
            Err(refused) => Answer::Ready(refusal(&r, refused.reason)),
        });
    }
    let changed: Vec<&Stored> = answers
        .iter()
        .filter_map(|answer| match answer {
            Answer::Granted { receipt, again: false } => Some(&**receipt),
            Answer::Granted { .. } | Answer::Ready(_) => None,
        })
        .collect();
    if !log.is_empty() {
        receipt::log(turn.connection()?, now, &log).await?;
    }
    let mut writes = Writes::default();
    receipt::write_to(&mut writes, &changed);
    turn.commit(writes).await?;
    Ok(answers
        .into_iter()
        .map(|answer| match answer {
            Answer::Ready(answer) => answer,
            Answer::Granted { receipt: r, .. } => {
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
