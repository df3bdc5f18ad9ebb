//! What of a receipt decides its transitions.

use ditto_contracts::{CallPolicy, ClaimToken, EffectClass, ReceiptState, SessionId, SettledBy};

/// One granted permission to start a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Chosen by the worker before it asked.
    pub token: ClaimToken,
    /// The life of the process that got it.
    pub session: SessionId,
}

/// The part of a stored receipt that its transitions read and write.
///
/// What the states mean, and who takes a receipt out of each:
///
/// | state | `settled` | meaning | left by |
/// |---|---|---|---|
/// | planned | no | nobody may start it yet | a claim; a late answer; cancel, deadline and limits |
/// | claimed | no | attempt number `fence` may be running | its answer, its release, the death of its session |
/// | unknown | no | class K: it may have happened and is being asked for | evidence, another attempt with the same key, the end of the search |
/// | unknown | yes | it may have happened | evidence or a person, never time |
/// | succeeded, failed, cancelled | yes | known | nothing |
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// What an unresolved attempt allows afterwards.
    pub class: EffectClass,
    /// Every attempt needs a claim. Always so for K and N; for R unless its registration lets it be skipped.
    pub exclusive: bool,
    /// The backend can be asked by key.
    pub query: bool,
    /// The backend remembers refusals under the key.
    pub rejections_stored: bool,
    /// Most attempts.
    pub max_attempts: u32,
    /// Where the call stands.
    pub state: ReceiptState,
    /// Nobody works on it any more and a run may consume it. Tells a searched-for `unknown` from a final one.
    pub settled: bool,
    /// Number of the latest attempt; 0 before the first claim.
    pub fence: u32,
    /// Claims that were granted and neither proven unstarted nor answered definitely; at most `fence`.
    pub unresolved: u32,
    /// The claim of the latest attempt. Stays after the attempt is given up, so that its late answer is recognised.
    pub claim: Option<Claim>,
    /// The latest attempt was given back as proven unstarted (stored as a claim token without a session).
    pub released: bool,
    /// Somebody asked to cancel the call.
    pub cancel_asked: bool,
    /// The deadline has passed by the ledger's clock.
    pub deadline_passed: bool,
    /// The backend still guarantees the key. Means nothing unless class K.
    pub window_open: bool,
    /// Counts every settlement and every change of one.
    pub settle_rev: i32,
    /// Who settled it.
    pub settled_by: Option<SettledBy>,
}

impl Receipt {
    /// The receipt of a call that was just decided under this policy.
    pub fn planned(policy: &CallPolicy) -> Self {
        Self {
            class: policy.class,
            exclusive: policy.is_claimed(),
            query: policy.query,
            rejections_stored: policy.rejections_stored,
            max_attempts: u32::from(policy.max_attempts),
            state: ReceiptState::Planned,
            settled: false,
            fence: 0,
            unresolved: 0,
            claim: None,
            released: false,
            cancel_asked: false,
            deadline_passed: false,
            window_open: true,
            settle_rev: 0,
            settled_by: None,
        }
    }

    /// Whether the call may be sent to its backend once more under the same key (class K).
    pub fn can_send_again(&self) -> bool {
        self.class == EffectClass::Keyed
            && self.window_open
            && self.fence < self.max_attempts
            && !self.deadline_passed
            && !self.cancel_asked
    }

    /// Whether sending again under the same key might make a second effect.
    pub(super) fn key_may_be_forgotten(&self) -> bool {
        self.class == EffectClass::Keyed && !self.window_open
    }

    /// How many attempts before the current one may still turn into an effect.
    pub fn earlier_unresolved(&self) -> u32 {
        match self.state {
            ReceiptState::Claimed => self.unresolved.saturating_sub(1),
            ReceiptState::Planned
            | ReceiptState::Unknown
            | ReceiptState::Succeeded
            | ReceiptState::Failed
            | ReceiptState::Cancelled => self.unresolved,
        }
    }
}
