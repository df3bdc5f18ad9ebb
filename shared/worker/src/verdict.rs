//! From what happened to what is said about it: the one place that decides (receipts contract, section 5).

use ditto_contracts::{CallPolicy, EffectClass, Verdict};

/// What is known about the effect at the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// A valid success answer for this call.
    Succeeded,
    /// A definite refusal by the backend or the tool.
    Refused,
    /// Refused before anything was sent; trying again cannot help.
    NotSent,
    /// No byte of the request was written.
    NoByteSent,
    /// Told to come later, and not executed.
    Throttled,
    /// Timeout, reset, gateway error, panic: it may have happened.
    Ambiguous,
    /// Cancelled by the caller after the first byte.
    Cancelled,
    /// An answer that cannot be used.
    Invalid,
    /// Never begun: cancelled, stopping or without a lease before the handler was called.
    NeverStarted,
    /// Cut off because the worker stops.
    Stopped,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 10] = [
        Self::Succeeded,
        Self::Refused,
        Self::NotSent,
        Self::NoByteSent,
        Self::Throttled,
        Self::Ambiguous,
        Self::Cancelled,
        Self::Invalid,
        Self::NeverStarted,
        Self::Stopped,
    ];
}

/// What matters about the call and its earlier attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Effect class, as pinned in the receipt.
    pub class: EffectClass,
    /// Earlier attempts whose end is not known.
    pub earlier_unresolved: u32,
    /// The backend remembers refusals under the key.
    pub rejections_stored: bool,
    /// The tool's own error answer means "did not happen".
    pub error_is_definite: bool,
    /// No further attempt will be granted.
    pub last_attempt: bool,
}

impl Standing {
    /// Of a call with this policy.
    pub fn of(policy: &CallPolicy, attempt: u64, earlier_unresolved: u32) -> Self {
        Self {
            class: policy.class,
            earlier_unresolved,
            rejections_stored: policy.rejections_stored,
            error_is_definite: policy.error_is_definite,
            last_attempt: attempt >= u64::from(policy.max_attempts),
        }
    }
}

/// What the worker does with the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Send this verdict.
    Settle(Verdict),
    /// Give the attempt back; `unstarted` is the proof that nothing was sent.
    Release {
        /// Proven unstarted. Otherwise only class R is put back.
        unstarted: bool,
    },
}

/// Decides what an attempt amounts to.
///
/// An ambiguous attempt of class R is final (`failed`): only a definition's `retry` or the loss of the worker runs it
/// again. For K and N no ending but a definite one is ever called `failed`, and not even that while an earlier attempt
/// is unresolved, since that one may still succeed.
pub fn verdict_for(ending: Ending, standing: &Standing) -> Settlement {
    use EffectClass::{Keyed as K, NonIdempotent as N, ReadOnly as R};
    use Settlement::{Release, Settle};
    let earlier = standing.earlier_unresolved > 0;
    // Whether a "no" of this attempt rules out a "yes" of an earlier one.
    let no_is_final = match standing.class {
        R => true,
        K => !earlier || standing.rejections_stored,
        N => !earlier,
    };
    let put_back = |unstarted| {
        if standing.last_attempt && (standing.class == R || !earlier) {
            Settle(Verdict::Failed)
        } else {
            Release { unstarted }
        }
    };
    match (ending, standing.class) {
        (Ending::Succeeded, R | K | N) => Settle(Verdict::Succeeded),
        (Ending::Refused, R) => Settle(Verdict::Failed),
        (Ending::Refused, K | N) if standing.error_is_definite && no_is_final => Settle(Verdict::Failed),
        (Ending::Refused, K | N) => Settle(Verdict::Unknown),
        (Ending::NotSent, R) => Settle(Verdict::Failed),
        (Ending::NotSent, K | N) if !earlier => Settle(Verdict::Failed),
        (Ending::NotSent, K | N) => Settle(Verdict::Unknown),
        (Ending::NoByteSent | Ending::Throttled, R | K | N) => put_back(true),
        (Ending::Ambiguous | Ending::Invalid, R) => Settle(Verdict::Failed),
        (Ending::Ambiguous | Ending::Invalid, K | N) => Settle(Verdict::Unknown),
        (Ending::Cancelled, R) => Settle(Verdict::Cancelled),
        (Ending::Cancelled, K | N) => Settle(Verdict::Unknown),
        (Ending::NeverStarted, R | K | N) => Release { unstarted: true },
        (Ending::Stopped, R) => Release { unstarted: false },
        (Ending::Stopped, K | N) => Settle(Verdict::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use EffectClass::{Keyed as K, NonIdempotent as N, ReadOnly as R};

    fn standing(class: EffectClass) -> Standing {
        Standing {
            class,
            earlier_unresolved: 0,
            rejections_stored: false,
            error_is_definite: true,
            last_attempt: false,
        }
    }

    #[test]
    fn a_first_attempt_ends_as_the_table_says() {
        use Settlement::{Release, Settle};
        use Verdict::{Cancelled, Failed, Succeeded, Unknown};
        let released = Release { unstarted: true };
        #[rustfmt::skip]
        let table = [
            // ending                R                             K                 N
            (Ending::Succeeded,    Settle(Succeeded),            Settle(Succeeded), Settle(Succeeded)),
            (Ending::Refused,      Settle(Failed),               Settle(Failed),    Settle(Failed)),
            (Ending::NotSent,      Settle(Failed),               Settle(Failed),    Settle(Failed)),
            (Ending::NoByteSent,   released,                     released,          released),
            (Ending::Throttled,    released,                     released,          released),
            (Ending::Ambiguous,    Settle(Failed),               Settle(Unknown),   Settle(Unknown)),
            (Ending::Cancelled,    Settle(Cancelled),            Settle(Unknown),   Settle(Unknown)),
            (Ending::Invalid,      Settle(Failed),               Settle(Unknown),   Settle(Unknown)),
            (Ending::NeverStarted, released,                     released,          released),
            (Ending::Stopped,      Release { unstarted: false }, Settle(Unknown),   Settle(Unknown)),
        ];
        assert_eq!(table.len(), Ending::ALL.len());
        for (ending, read, keyed, other) in table {
            assert_eq!(verdict_for(ending, &standing(R)), read, "{ending:?} R");
            assert_eq!(verdict_for(ending, &standing(K)), keyed, "{ending:?} K");
            assert_eq!(verdict_for(ending, &standing(N)), other, "{ending:?} N");
        }
    }

    /// Every combination keeps the invariants I10 to I12.
    #[test]
    fn nothing_unproven_is_ever_called_failed() {
        let flags = [false, true];
        for ending in Ending::ALL {
            for class in [R, K, N] {
                for earlier_unresolved in [0, 1, 2] {
                    for rejections_stored in flags {
                        for error_is_definite in flags {
                            for last_attempt in flags {
                                let s = Standing {
                                    class,
                                    earlier_unresolved,
                                    rejections_stored,
                                    error_is_definite,
                                    last_attempt,
                                };
                                let settlement = verdict_for(ending, &s);
                                let at = format!("{ending:?} {s:?}");
                                let failed = settlement == Settlement::Settle(Verdict::Failed);
                                let succeeded = settlement == Settlement::Settle(Verdict::Succeeded);
                                assert_eq!(succeeded, ending == Ending::Succeeded, "{at}");
                                if class == R {
                                    continue;
                                }
                                let proof = match ending {
                                    Ending::Refused => {
                                        error_is_definite
                                            && (earlier_unresolved == 0 || (class == K && rejections_stored))
                                    }
                                    Ending::NotSent => earlier_unresolved == 0,
                                    Ending::NoByteSent | Ending::Throttled => last_attempt && earlier_unresolved == 0,
                                    _ => false,
                                };
                                assert_eq!(failed, proof, "{at}");
                                assert_ne!(settlement, Settlement::Settle(Verdict::Cancelled), "{at}");
                                assert_ne!(settlement, Settlement::Release { unstarted: false }, "{at}");
                            }
                        }
                    }
                }
            }
        }
    }
}
