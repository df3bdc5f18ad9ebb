//! Every event in every state for every class, against a table written by hand.

use ditto_contracts::interaction::{DeliveryStatus, ExternalStatus};
use ditto_contracts::{CallPolicy, ClaimToken, EffectClass, ReceiptState, SessionId, SettledBy, Verdict, codes};

use super::{
    AnswerKind, AttemptEnd, AttemptEvent, Claim, Due, KeyEvidence, QueryAnswer, Receipt, ReceiptEvent, Reconcile,
    ReconcileStart, Refused, dispatch_backoff_ms, key_window_closed, public_status, reconcile_next, reconcile_start,
    verdict_for,
};

fn token(n: u32) -> ClaimToken {
    ClaimToken::new(format!("token-{n}")).unwrap()
}

fn claim(n: u32) -> Claim {
    Claim { token: token(n), session: SessionId::new(format!("session-{n}")).unwrap() }
}

/// The shapes a receipt can have: one column of the table each.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Never claimed.
    Fresh,
    /// Its only attempt was proven unstarted.
    Released,
    /// An earlier attempt is unresolved.
    Again,
    /// The first attempt runs.
    First,
    /// The second attempt runs, the first is unresolved.
    Second,
    /// Unknown, being asked for.
    Open,
    /// Unknown, settled.
    Unknown,
    Succeeded,
    Failed,
    Cancelled,
}
use Shape as Sh;

fn receipt(policy: &CallPolicy, shape: Shape) -> Receipt {
    let mut r = Receipt::planned(policy);
    let (state, settled, fence, unresolved) = match shape {
        Sh::Fresh => (ReceiptState::Planned, false, 0, 0),
        Sh::Released => (ReceiptState::Planned, false, 1, 0),
        Sh::Again => (ReceiptState::Planned, false, 1, 1),
        Sh::First => (ReceiptState::Claimed, false, 1, 1),
        Sh::Second => (ReceiptState::Claimed, false, 2, 2),
        Sh::Open => (ReceiptState::Unknown, false, 1, 1),
        Sh::Unknown => (ReceiptState::Unknown, true, 1, 1),
        Sh::Succeeded => (ReceiptState::Succeeded, true, 1, 0),
        Sh::Failed => (ReceiptState::Failed, true, 1, 0),
        Sh::Cancelled => (ReceiptState::Cancelled, true, 0, 0),
    };
    (r.state, r.settled, r.fence, r.unresolved) = (state, settled, fence, unresolved);
    r.claim = (fence > 0).then(|| claim(fence));
    r.released = shape == Sh::Released;
    r.settle_rev = 7;
    r
}

/// One row: the event for a given receipt, by name.
fn event(name: &str, r: &Receipt) -> ReceiptEvent {
    use ReceiptEvent as E;
    let (fence, holder) = (r.fence, r.claim.clone().unwrap_or_else(|| claim(9)));
    let answer = |verdict| E::Answer { fence, token: holder.token.clone(), verdict };
    let unclaimed = |verdict| E::UnclaimedAnswer { hash_matches: true, verdict };
    let found = |answer| E::ReconcileAnswer { answer };
    match name {
        "claim" => E::Claim { claim: claim(8), session_alive: true },
        "claim, same token" => E::Claim { claim: holder, session_alive: true },
        "claim, dead session" => E::Claim { claim: claim(8), session_alive: false },
        "release unstarted" => E::Release { fence, token: holder.token, unstarted: true },
        "release unanswered" => E::Release { fence, token: holder.token, unstarted: false },
        "release, old fence" => E::Release { fence: fence + 1, token: holder.token, unstarted: true },
        "answer succeeded" => answer(Verdict::Succeeded),
        "answer failed" => answer(Verdict::Failed),
        "answer unknown" => answer(Verdict::Unknown),
        "answer cancelled" => answer(Verdict::Cancelled),
        "answer, old fence" => {
            E::Answer { fence: fence.wrapping_sub(1), token: holder.token, verdict: Verdict::Succeeded }
        }
        "answer, other token" => E::Answer { fence, token: token(77), verdict: Verdict::Succeeded },
        "unclaimed succeeded" => unclaimed(Verdict::Succeeded),
        "unclaimed failed" => unclaimed(Verdict::Failed),
        "unclaimed unknown" => unclaimed(Verdict::Unknown),
        "unclaimed cancelled" => unclaimed(Verdict::Cancelled),
        "unclaimed, other request" => E::UnclaimedAnswer { hash_matches: false, verdict: Verdict::Succeeded },
        "session died" => E::SessionDied { session: holder.session },
        "other session died" => E::SessionDied { session: claim(55).session },
        "absent" => E::ReconcileAbsent { fence },
        "absent, old fence" => E::ReconcileAbsent { fence: fence + 1 },
        "applied" => found(KeyEvidence::Applied),
        "refused" => found(KeyEvidence::Refused),
        "conflict" => found(KeyEvidence::Conflict),
        "in progress" => found(KeyEvidence::InProgress),
        "search ended" => E::ReconcileExhausted,
        "person: succeeded" => E::Resolve { settle_rev: 7, verdict: Verdict::Succeeded },
        "person: failed" => E::Resolve { settle_rev: 7, verdict: Verdict::Failed },
        "person: unknown" => E::Resolve { settle_rev: 7, verdict: Verdict::Unknown },
        "person: cancelled" => E::Resolve { settle_rev: 7, verdict: Verdict::Cancelled },
        "person, old revision" => E::Resolve { settle_rev: 6, verdict: Verdict::Succeeded },
        "authorise" => E::AuthoriseAttempt { settle_rev: 7, session_over: true },
        "authorise, old revision" => E::AuthoriseAttempt { settle_rev: 6, session_over: true },
        "authorise, still running" => E::AuthoriseAttempt { settle_rev: 7, session_over: false },
        "cancel" => E::CancelAsked,
        "deadline" => E::DeadlinePassed,
        "attempts" => E::AttemptsExhausted,
        "dispatches" => E::DispatchesExhausted,
        "window" => E::WindowClosed,
        other => panic!("no such event: {other}"),
    }
}

/// The cell: `p c u U S F X` for planned, claimed, unknown open, unknown settled, succeeded, failed, cancelled; `=` for a
/// legal event that leaves the state alone; `.` for an illegal one.
fn cell(before: &Receipt, event: &ReceiptEvent) -> char {
    let Ok(change) = before.apply(event) else { return '.' };
    let after = &change.receipt;
    if (after.state, after.settled, after.fence) == (before.state, before.settled, before.fence) {
        return '=';
    }
    match (after.state, after.settled) {
        (ReceiptState::Planned, false) => 'p',
        (ReceiptState::Claimed, false) => 'c',
        (ReceiptState::Unknown, false) => 'u',
        (ReceiptState::Unknown, true) => 'U',
        (ReceiptState::Succeeded, true) => 'S',
        (ReceiptState::Failed, true) => 'F',
        (ReceiptState::Cancelled, true) => 'X',
        (state, settled) => panic!("{state} with settled = {settled}"),
    }
}

const ALL: [Shape; 10] = [
    Sh::Fresh,
    Sh::Released,
    Sh::Again,
    Sh::First,
    Sh::Second,
    Sh::Open,
    Sh::Unknown,
    Sh::Succeeded,
    Sh::Failed,
    Sh::Cancelled,
];

fn read_unclaimed() -> CallPolicy {
    CallPolicy::read_only()
}
fn read_exclusive() -> CallPolicy {
    CallPolicy { exclusive: true, ..CallPolicy::read_only() }
}
fn keyed_full() -> CallPolicy {
    CallPolicy { query: true, rejections_stored: true, ..CallPolicy::keyed() }
}
fn keyed_plain() -> CallPolicy {
    CallPolicy::keyed()
}
fn non_idempotent() -> CallPolicy {
    CallPolicy { query: true, ..CallPolicy::default() }
}

/// `?` in a column: no receipt of that class has that shape.
#[rustfmt::skip]
const TABLE: &[(&str, [&str; 5])] = &[
    // fresh released again | first second | open unknown | succeeded failed cancelled
    //                           R              R exclusive    K query+stored  K plain        N query
    ("claim",                    ["ccc..??...", "ccc..??...", "ccc.......", "ccc.......", "ccc..?...."]),
    ("claim, same token",        ["c....??...", "c....??...", "c.........", "c.........", "c....?...."]),
    ("claim, dead session",      [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("release unstarted",        ["...pp??...", "...pp??...", "...pp.....", "...pp.....", "...pp?...."]),
    ("release unanswered",       ["...pp??...", "...pp??...", "..........", "..........", ".....?...."]),
    ("release, old fence",       [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("answer succeeded",         [".SSSS??...", ".SSSS??...", ".SSSSSS...", ".SSSSSS...", ".SSSS?S..."]),
    ("answer failed",            ["..FFF??...", "..FFF??...", "..FFFFF...", "..FFuFF...", "...FU?F..."]),
    ("answer unknown",           ["..FFF??...", "..FFF??...", "...uu.....", "...uu.....", "...UU?...."]),
    ("answer cancelled",         ["...XX??...", "...XX??...", "...uu.....", "...uu.....", "...UU?...."]),
    ("answer, old fence",        [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("answer, other token",      [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("unclaimed succeeded",      ["S....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("unclaimed failed",         ["F....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("unclaimed unknown",        ["F....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("unclaimed cancelled",      [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("unclaimed, other request", [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("session died",             ["...pp??...", "...pp??...", "...uu.....", "...uu.....", "...UU?...."]),
    ("other session died",       [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("absent",                   [".....??...", ".....??...", ".....p....", ".....p....", ".....?...."]),
    ("absent, old fence",        [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("applied",                  [".....??...", ".....??...", ".....SS...", "..........", ".....?S..."]),
    ("refused",                  [".....??...", ".....??...", ".....FF...", "..........", ".....?...."]),
    ("conflict",                 [".....??...", ".....??...", ".....U....", "..........", ".....?...."]),
    ("in progress",              [".....??...", ".....??...", ".....=....", "..........", ".....?...."]),
    ("search ended",             [".....??...", ".....??...", ".....U....", ".....U....", ".....?...."]),
    ("person: succeeded",        [".....??...", ".....??...", ".....SS...", ".....SS...", ".....?S..."]),
    ("person: failed",           [".....??...", ".....??...", ".....FF...", ".....FF...", ".....?F..."]),
    ("person: unknown",          [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("person: cancelled",        [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("person, old revision",     [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("authorise",                [".....??...", ".....??...", "......p...", "......p...", ".....?p..."]),
    ("authorise, old revision",  [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("authorise, still running", [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("cancel",                   ["XXX==??...", "XXX==??...", "XXU===....", "XXU===....", "XXU==?...."]),
    ("deadline",                 ["FFF==??...", "FFF==??...", "FFU===....", "FFU==U....", "FFU==?...."]),
    ("attempts",                 [".....??...", ".....??...", "..........", "..........", ".....?...."]),
    ("dispatches",               ["FFF..??...", "FFF..??...", "FFU.......", "FFU.......", "FFU..?...."]),
    ("window",                   [".....??...", ".....??...", "==U===....", "==U==U....", ".....?...."]),
];

#[test]
fn a_receipt_takes_each_event_as_the_table_says() {
    let policies = [read_unclaimed(), read_exclusive(), keyed_full(), keyed_plain(), non_idempotent()];
    for (name, rows) in TABLE {
        for (policy, row) in policies.iter().zip(rows) {
            assert_eq!(row.len(), ALL.len(), "{name}");
            for (shape, expected) in ALL.into_iter().zip(row.chars()) {
                let before = receipt(policy, shape);
                let seen = cell(&before, &event(name, &before));
                if expected != '?' {
                    assert_eq!(seen, expected, "{name} at {shape:?}, class {}", policy.class);
                }
            }
        }
    }
}

#[test]
fn used_up_attempts_end_a_call_by_what_is_unresolved() {
    #[rustfmt::skip]
    let rows = [
        (read_exclusive(), "FFF..??..."),
        (keyed_full(),     "FFU......."),
        (keyed_plain(),    "FFU..U...."),
        (non_idempotent(), "FFU..?...."),
    ];
    for (policy, row) in rows {
        for (shape, expected) in ALL.into_iter().zip(row.chars()).filter(|(_, expected)| *expected != '?') {
            let mut before = receipt(&policy, shape);
            before.max_attempts = before.fence;
            assert_eq!(cell(&before, &ReceiptEvent::AttemptsExhausted), expected, "{shape:?}, class {}", policy.class);
            let claimed = before.apply(&event("claim", &before));
            assert!(claimed.is_err(), "claimed beyond its attempts: {shape:?}");
        }
    }
    let mut killer = receipt(&read_exclusive(), Sh::Again);
    killer.max_attempts = 1;
    assert_eq!(killer.apply(&ReceiptEvent::AttemptsExhausted).unwrap().code, Some(codes::POISONED));
}

#[test]
fn each_guard_of_a_claim_names_itself() {
    let base = receipt(&keyed_full(), Sh::Again);
    let ask = event("claim", &base);
    let with = |change: fn(&mut Receipt)| {
        let mut r = base.clone();
        change(&mut r);
        r.apply(&ask).map(|change| change.receipt.fence).map_err(|e| e.reason)
    };
    assert_eq!(with(|_| ()), Ok(2));
    assert_eq!(with(|r| r.cancel_asked = true), Err(Refused::CancelAsked));
    assert_eq!(with(|r| r.deadline_passed = true), Err(Refused::DeadlinePassed));
    assert_eq!(with(|r| r.max_attempts = 1), Err(Refused::AttemptsExhausted));
    assert_eq!(with(|r| r.window_open = false), Err(Refused::WindowClosed));
    assert_eq!(base.apply(&event("claim, dead session", &base)).unwrap_err().reason, Refused::SessionDead);
    assert_eq!(base.apply(&event("claim, same token", &base)).unwrap_err().reason, Refused::TokenUsed);
    let unkeyed = Receipt { window_open: false, ..receipt(&non_idempotent(), Sh::Again) };
    assert!(unkeyed.apply(&ask).is_ok(), "only a key has a window");
    let held = receipt(&keyed_full(), Sh::First);
    assert_eq!(held.apply(&event("claim, same token", &held)).unwrap_err().reason, Refused::Repeat);
    assert_eq!(held.apply(&event("claim", &held)).unwrap_err().reason, Refused::Taken);
}

#[test]
fn each_guard_of_sending_again_names_itself() {
    let base = receipt(&keyed_full(), Sh::Open);
    let with = |change: fn(&mut Receipt)| {
        let mut r = base.clone();
        change(&mut r);
        let done = r.apply(&ReceiptEvent::ReconcileAbsent { fence: 1 }).map(|c| c.receipt.state).map_err(|e| e.reason);
        assert_eq!(r.can_send_again(), done.is_ok());
        done
    };
    assert_eq!(with(|_| ()), Ok(ReceiptState::Planned));
    assert_eq!(with(|r| r.window_open = false), Err(Refused::WindowClosed));
    assert_eq!(with(|r| r.max_attempts = 1), Err(Refused::AttemptsExhausted));
    assert_eq!(with(|r| r.deadline_passed = true), Err(Refused::DeadlinePassed));
    assert_eq!(with(|r| r.cancel_asked = true), Err(Refused::CancelAsked));
}

#[test]
fn a_change_says_what_else_is_written() {
    let first = receipt(&keyed_full(), Sh::Fresh);
    let change = first.apply(&event("claim", &first)).unwrap();
    assert_eq!((change.log, change.receipt.fence, change.receipt.unresolved), (None, 1, 1));
    let again = receipt(&keyed_full(), Sh::Again);
    let change = again.apply(&event("claim", &again)).unwrap();
    assert_eq!((change.log, change.receipt.unresolved), (Some(AttemptEvent::Superseded), 2));
    assert_eq!(change.receipt.earlier_unresolved(), 1);

    let held = receipt(&keyed_full(), Sh::Second);
    let change = held.apply(&event("release unstarted", &held)).unwrap();
    assert_eq!((change.log, change.due, change.receipt.unresolved), (Some(AttemptEvent::Released), Due::Backoff, 1));
    let change = held.apply(&event("session died", &held)).unwrap();
    assert_eq!((change.due, change.code), (Due::Now, Some(codes::WORKER_LOST)));
    assert_eq!((change.receipt.settle_rev, change.receipt.settled_by), (8, None));
    let change = held.apply(&event("answer succeeded", &held)).unwrap();
    assert_eq!((change.due, change.receipt.unresolved), (Due::Never, 0));
    assert_eq!((change.receipt.settle_rev, change.receipt.settled_by), (8, Some(SettledBy::Worker)));
    assert!(held.apply(&ReceiptEvent::CancelAsked).unwrap().stop_worker);

    let unknown = receipt(&non_idempotent(), Sh::Unknown);
    let late = unknown.apply(&event("answer succeeded", &unknown)).unwrap().receipt;
    assert_eq!((late.settled_by, late.settle_rev), (Some(SettledBy::LateResult), 8));
    let authorised = unknown.apply(&event("authorise", &unknown)).unwrap();
    assert_eq!((authorised.log, authorised.receipt.max_attempts), (Some(AttemptEvent::Person), 4));
    assert_eq!((authorised.receipt.unresolved, authorised.receipt.settle_rev), (1, 8));
}

#[test]
fn refused_answers_are_kept_unless_they_are_echoes() {
    let done = receipt(&non_idempotent(), Sh::Succeeded);
    let echo = done.apply(&event("answer succeeded", &done)).unwrap_err();
    assert_eq!((echo.reason, echo.is_evidence()), (Refused::Repeat, false));
    let other = done.apply(&event("answer failed", &done)).unwrap_err();
    assert_eq!((other.reason, other.is_evidence()), (Refused::Settled, true));
    let mut by_person = receipt(&non_idempotent(), Sh::Failed);
    by_person.settled_by = Some(SettledBy::Person);
    let against = by_person.apply(&event("answer succeeded", &by_person)).unwrap_err();
    assert_eq!((against.reason, against.is_evidence()), (Refused::ContradictsPerson, true));
    let found = by_person.apply(&event("applied", &by_person)).unwrap_err();
    assert_eq!((found.reason, found.is_evidence()), (Refused::ContradictsPerson, true));
    assert!(!done.apply(&ReceiptEvent::CancelAsked).unwrap_err().is_evidence());
}

#[test]
fn answers_become_verdicts_as_the_table_says() {
    use AnswerKind as A;
    use Verdict::{Cancelled as X, Failed as F, Succeeded as S, Unknown as U};
    // None: released. Columns: R, K, K again (an earlier attempt unresolved) without and with stored refusals, N, N again.
    #[rustfmt::skip]
    let table = [
        (A::NothingSent,  [Some(F), Some(F), Some(U), Some(U), Some(F), Some(U)]),
        (A::NotReached,   [None,    None,    None,    None,    None,    None]),
        (A::Success,      [Some(S), Some(S), Some(S), Some(S), Some(S), Some(S)]),
        (A::Refused,      [Some(F), Some(F), Some(U), Some(F), Some(F), Some(U)]),
        (A::ToolError,    [Some(F), Some(F), Some(U), Some(F), Some(F), Some(U)]),
        (A::Throttled,    [None,    None,    None,    None,    None,    None]),
        (A::BackendError, [Some(F), Some(U), Some(U), Some(U), Some(U), Some(U)]),
        (A::Lost,         [Some(F), Some(U), Some(U), Some(U), Some(U), Some(U)]),
        (A::TimedOut,     [Some(F), Some(U), Some(U), Some(U), Some(U), Some(U)]),
        (A::Cancelled,    [Some(X), Some(U), Some(U), Some(U), Some(U), Some(U)]),
        (A::Unreadable,   [Some(F), Some(U), Some(U), Some(U), Some(U), Some(U)]),
        (A::Panicked,     [Some(F), Some(U), Some(U), Some(U), Some(U), Some(U)]),
    ];
    let (r, k, n) = (EffectClass::ReadOnly, EffectClass::Keyed, EffectClass::NonIdempotent);
    let columns = [(r, 0, false), (k, 0, false), (k, 1, false), (k, 1, true), (n, 0, false), (n, 1, false)];
    for (answer, row) in table {
        for ((class, earlier, stored), expected) in columns.into_iter().zip(row) {
            let seen = match verdict_for(answer, class, earlier, stored, true) {
                AttemptEnd::Report { verdict, .. } => Some(verdict),
                AttemptEnd::Release => None,
            };
            assert_eq!(seen, expected, "{answer:?}, class {class}, {earlier} unresolved, stored {stored}");
        }
    }
    for class in [k, n] {
        let half_way = verdict_for(A::ToolError, class, 0, true, false);
        assert_eq!(half_way, AttemptEnd::Report { verdict: U, code: None }, "an error that is not definite");
    }
}

#[test]
fn timeout_is_public_only_where_nothing_was_done() {
    use ExternalStatus as E;
    let status = |state, code, class, claimed| public_status(state, code, class, claimed).map(|s| s.external);
    let (r, k) = (EffectClass::ReadOnly, EffectClass::Keyed);
    let (failed, late) = (ReceiptState::Failed, Some(codes::DEADLINE_EXCEEDED));
    assert_eq!(status(failed, late, r, true), Some(E::Timeout));
    assert_eq!(status(failed, Some(codes::TIMEOUT), r, true), Some(E::Timeout));
    assert_eq!(status(failed, late, k, false), Some(E::Timeout));
    assert_eq!(status(failed, late, k, true), Some(E::Failed));
    assert_eq!(status(failed, Some(codes::TOOL_FAILED), r, true), Some(E::Failed));
    assert_eq!(status(ReceiptState::Unknown, Some(codes::TIMEOUT), k, true), Some(E::Unknown));
    assert_eq!(status(ReceiptState::Cancelled, None, k, false), Some(E::Cancelled));
    assert_eq!(status(ReceiptState::Succeeded, None, k, true), Some(E::Success));
    assert_eq!(status(ReceiptState::Planned, None, k, true), None);
    assert_eq!(status(ReceiptState::Claimed, None, k, true), None);
    let delivery = |state| public_status(state, None, k, true).map(|s| s.delivery);
    assert_eq!(delivery(ReceiptState::Succeeded), Some(DeliveryStatus::Accepted));
    assert_eq!(delivery(ReceiptState::Failed), Some(DeliveryStatus::Rejected));
    assert_eq!(delivery(ReceiptState::Cancelled), Some(DeliveryStatus::Rejected));
    assert_eq!(delivery(ReceiptState::Unknown), Some(DeliveryStatus::Unknown));
}

#[test]
fn the_key_window_ends_a_tenth_early() {
    assert!(!key_window_closed(None, Some(1_000), i64::MAX));
    assert!(!key_window_closed(Some(0), None, i64::MAX));
    assert!(!key_window_closed(Some(5), Some(1_000), 904));
    assert!(key_window_closed(Some(5), Some(1_000), 905));
    assert!(key_window_closed(Some(5), Some(0), 5));
    assert!(key_window_closed(Some(5), Some(1), 5));
    assert!(!key_window_closed(Some(i64::MAX - 1), Some(u64::MAX), i64::MAX - 1));
}

#[test]
fn dispatch_pauses_double_up_to_five_minutes() {
    let pauses: Vec<u64> = [0, 1, 2, 3, 6, 7, 8, u32::MAX].into_iter().map(dispatch_backoff_ms).collect();
    assert_eq!(pauses, [5_000, 5_000, 10_000, 20_000, 160_000, 300_000, 300_000, 300_000]);
}

#[test]
fn the_search_for_evidence_ends_in_the_table() {
    use QueryAnswer as Q;
    let open = receipt(&keyed_full(), Sh::Open);
    assert_eq!(reconcile_start(&open), ReconcileStart::Ask);
    assert_eq!(reconcile_start(&receipt(&non_idempotent(), Sh::Unknown)), ReconcileStart::Nothing);
    let plain = receipt(&keyed_plain(), Sh::Open);
    assert_eq!(reconcile_start(&plain), ReconcileStart::Apply(ReceiptEvent::ReconcileAbsent { fence: 1 }));
    let used_up = Receipt { max_attempts: 1, ..plain };
    assert_eq!(reconcile_start(&used_up), ReconcileStart::Apply(ReceiptEvent::ReconcileExhausted));

    assert_eq!(reconcile_next(&open, 1, Q::Absent), Reconcile::Apply(ReceiptEvent::ReconcileAbsent { fence: 1 }));
    assert_eq!(reconcile_next(&open, 2, Q::Absent), Reconcile::AskAgain, "the question is older than the attempt");
    assert_eq!(reconcile_next(&open, 1, Q::NoAnswer), Reconcile::AskAgain);
    let closed = Receipt { window_open: false, ..open.clone() };
    assert_eq!(reconcile_next(&closed, 1, Q::Absent), Reconcile::AskAgain);
    let cancelled = Receipt { cancel_asked: true, ..open.clone() };
    assert_eq!(reconcile_next(&cancelled, 1, Q::Absent), Reconcile::Apply(ReceiptEvent::ReconcileExhausted));
    let forgets = Receipt { rejections_stored: false, ..open.clone() };
    assert_eq!(reconcile_next(&forgets, 1, Q::Known(KeyEvidence::Refused)), Reconcile::AskAgain);

    let answers = [KeyEvidence::Applied, KeyEvidence::Refused, KeyEvidence::Conflict, KeyEvidence::InProgress];
    let answers = answers.map(Q::Known).into_iter().chain([Q::Absent, Q::NoAnswer]);
    for answer in answers {
        for policy in [read_exclusive(), keyed_full(), keyed_plain(), non_idempotent()] {
            for shape in ALL {
                let r = receipt(&policy, shape);
                if let Reconcile::Apply(event) = reconcile_next(&r, r.fence, answer)
                    && policy.query
                {
                    assert!(r.apply(&event).is_ok(), "{answer:?} at {shape:?}, class {}: {event:?}", policy.class);
                }
            }
        }
    }
}
