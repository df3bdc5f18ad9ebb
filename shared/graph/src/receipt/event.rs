//! What can happen to a receipt, and why it may be refused.

use ditto_contracts::{ClaimToken, ReceiptState, SessionId, Verdict};

use super::Claim;

/// Something that happened to a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ReceiptEvent {
    /// A worker asks for permission to start an attempt.
    Claim {
        /// Its token and session.
        claim: Claim,
        /// Whether the ledger holds that session for alive.
        session_alive: bool,
    },
    /// A worker gives an attempt back.
    Release {
        /// The attempt.
        fence: u32,
        /// Proof of it.
        token: ClaimToken,
        /// No byte of the request was sent, or the backend's contract says it was not executed.
        unstarted: bool,
    },
    /// A worker reports what a claimed attempt amounts to.
    Answer {
        /// The attempt.
        fence: u32,
        /// Proof of it.
        token: ClaimToken,
        /// Its verdict.
        verdict: Verdict,
    },
    /// A worker reports the answer of a read that needed no claim.
    UnclaimedAnswer {
        /// It executed the very request of the receipt.
        hash_matches: bool,
        /// Its verdict.
        verdict: Verdict,
    },
    /// The session that holds the claim was declared dead.
    SessionDied {
        /// That session.
        session: SessionId,
    },
    /// The backend does not know the key, or cannot be asked: send again with the same key.
    ReconcileAbsent {
        /// The latest attempt when the question was put.
        fence: u32,
    },
    /// The backend answered a query by key.
    ReconcileAnswer {
        /// What it said.
        answer: KeyEvidence,
    },
    /// The time to search for evidence is used up, or nothing is left to try.
    ReconcileExhausted,
    /// A named person says what happened.
    Resolve {
        /// The settlement that person has seen.
        settle_rev: i32,
        /// Succeeded or failed.
        verdict: Verdict,
    },
    /// A named person permits one more attempt of a call whose outcome is unknown.
    AuthoriseAttempt {
        /// The settlement that person has seen.
        settle_rev: i32,
        /// The session of the latest attempt is known to be over: its host reported the exit, or a day has passed.
        session_over: bool,
    },
    /// Somebody asked to cancel the call.
    CancelAsked,
    /// The deadline passed.
    DeadlinePassed,
    /// All attempts are used up.
    AttemptsExhausted,
    /// The job was published as often as it may be.
    DispatchesExhausted,
    /// The backend no longer guarantees the key.
    WindowClosed,
}

/// What a backend says about a key it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyEvidence {
    /// The action happened, with this key or an equal request.
    Applied,
    /// The action was refused under this key.
    Refused,
    /// The key was used with a different request.
    Conflict,
    /// It is working on it.
    InProgress,
}

/// An event without its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the ReceiptEvent of the same name")]
pub enum EventKind {
    Claim,
    Release,
    Answer,
    UnclaimedAnswer,
    SessionDied,
    ReconcileAbsent,
    ReconcileAnswer,
    ReconcileExhausted,
    Resolve,
    AuthoriseAttempt,
    CancelAsked,
    DeadlinePassed,
    AttemptsExhausted,
    DispatchesExhausted,
    WindowClosed,
}

impl ReceiptEvent {
    /// The event without its values.
    pub const fn kind(&self) -> EventKind {
        match self {
            Self::Claim { .. } => EventKind::Claim,
            Self::Release { .. } => EventKind::Release,
            Self::Answer { .. } => EventKind::Answer,
            Self::UnclaimedAnswer { .. } => EventKind::UnclaimedAnswer,
            Self::SessionDied { .. } => EventKind::SessionDied,
            Self::ReconcileAbsent { .. } => EventKind::ReconcileAbsent,
            Self::ReconcileAnswer { .. } => EventKind::ReconcileAnswer,
            Self::ReconcileExhausted => EventKind::ReconcileExhausted,
            Self::Resolve { .. } => EventKind::Resolve,
            Self::AuthoriseAttempt { .. } => EventKind::AuthoriseAttempt,
            Self::CancelAsked => EventKind::CancelAsked,
            Self::DeadlinePassed => EventKind::DeadlinePassed,
            Self::AttemptsExhausted => EventKind::AttemptsExhausted,
            Self::DispatchesExhausted => EventKind::DispatchesExhausted,
            Self::WindowClosed => EventKind::WindowClosed,
        }
    }
}

/// Why an event does not change a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// The same claim or outcome is already there: confirm it.
    #[error("already recorded")]
    Repeat,
    /// It was claimed with this token before and has moved on; a repeated request must not start another attempt.
    #[error("token was used before")]
    TokenUsed,
    /// Another attempt holds it.
    #[error("another attempt holds it")]
    Taken,
    /// It is settled.
    #[error("already settled")]
    Settled,
    /// Evidence contradicts what a person decided: raise an alarm, change nothing.
    #[error("contradicts the verdict of a person")]
    ContradictsPerson,
    /// A cancel was asked for.
    #[error("cancel was asked for")]
    CancelAsked,
    /// The deadline has passed.
    #[error("deadline has passed")]
    DeadlinePassed,
    /// All attempts are used up.
    #[error("attempts are used up")]
    AttemptsExhausted,
    /// Attempts remain.
    #[error("attempts remain")]
    AttemptsRemain,
    /// The session is dead.
    #[error("session is dead")]
    SessionDead,
    /// The session of the latest attempt may still be running.
    #[error("session of the latest attempt may still be running")]
    SessionNotOver,
    /// The backend no longer guarantees the key.
    #[error("key window is closed")]
    WindowClosed,
    /// Another attempt is the current one.
    #[error("another attempt is the current one")]
    StaleFence,
    /// The token or session is not that of the claim.
    #[error("not the holder of the claim")]
    NotHolder,
    /// The settlement changed since it was looked at.
    #[error("settlement changed meanwhile")]
    StaleSettlement,
    /// The request that was executed is not the receipt's.
    #[error("request hash differs")]
    WrongRequest,
    /// The event proves nothing that could change this state.
    #[error("proves nothing here")]
    NoProof,
    /// The backend can still be asked.
    #[error("backend can still be asked")]
    CanStillAsk,
    /// This effect class or registration does not know the event.
    #[error("not possible for this class")]
    WrongClass,
    /// The event does not apply in this state.
    #[error("not possible in this state")]
    WrongState,
}

/// An event that the table does not allow. It changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} while {state}: {reason}")]
pub struct IllegalTransition {
    /// Where the receipt stands.
    pub state: ReceiptState,
    /// Whether it is settled.
    pub settled: bool,
    /// What was offered.
    pub event: EventKind,
    /// Why it was refused.
    pub reason: Refused,
}

impl IllegalTransition {
    /// Whether the refused event must be kept in the attempt log: answers are never dropped silently.
    pub const fn is_evidence(&self) -> bool {
        match self.event {
            EventKind::Answer | EventKind::UnclaimedAnswer | EventKind::ReconcileAnswer => {
                !matches!(self.reason, Refused::Repeat)
            }
            EventKind::Claim
            | EventKind::Release
            | EventKind::SessionDied
            | EventKind::ReconcileAbsent
            | EventKind::ReconcileExhausted
            | EventKind::Resolve
            | EventKind::AuthoriseAttempt
            | EventKind::CancelAsked
            | EventKind::DeadlinePassed
            | EventKind::AttemptsExhausted
            | EventKind::DispatchesExhausted
            | EventKind::WindowClosed => false,
        }
    }
}
