//! Faults on purpose: what a real bus does to messages when things go wrong.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::subject;

/// What befalls a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Confirmed or sent, then lost.
    Drop,
    /// There twice.
    Duplicate,
    /// Seen only after this time.
    Delay(Duration),
    /// Stored, but the confirmation is lost.
    LoseConfirmation,
}

/// Which messages of a bus are to be mistreated next. Rules are used up in the order given; none by default.
#[derive(Debug, Default)]
pub struct Faults {
    armed: AtomicUsize,
    rules: Mutex<Vec<Rule>>,
}

#[derive(Debug)]
struct Rule {
    stored: bool,
    pattern: String,
    left: usize,
    fault: Fault,
}

impl Faults {
    /// Confirms and loses the next `n` stored messages on subjects that match.
    pub fn drop_stored(&self, pattern: &str, n: usize) {
        self.add(true, pattern, n, Fault::Drop);
    }

    /// Stores the next `n` messages twice.
    pub fn duplicate_stored(&self, pattern: &str, n: usize) {
        self.add(true, pattern, n, Fault::Duplicate);
    }

    /// Hands out the next `n` stored messages only after `delay`.
    pub fn delay_stored(&self, pattern: &str, n: usize, delay: Duration) {
        self.add(true, pattern, n, Fault::Delay(delay));
    }

    /// Stores the next `n` messages and tells the publisher [`crate::BusError::Maybe`].
    pub fn lose_confirmations(&self, pattern: &str, n: usize) {
        self.add(true, pattern, n, Fault::LoseConfirmation);
    }

    /// Loses the next `n` plain messages (also requests and answers) on subjects that match.
    pub fn drop_plain(&self, pattern: &str, n: usize) {
        self.add(false, pattern, n, Fault::Drop);
    }

    /// Delivers the next `n` plain messages twice.
    pub fn duplicate_plain(&self, pattern: &str, n: usize) {
        self.add(false, pattern, n, Fault::Duplicate);
    }

    /// Delivers the next `n` plain messages after `delay`.
    pub fn delay_plain(&self, pattern: &str, n: usize, delay: Duration) {
        self.add(false, pattern, n, Fault::Delay(delay));
    }

    /// Forgets all rules.
    pub fn clear(&self) {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.clear();
        self.armed.store(0, Ordering::Release);
    }

    fn add(&self, stored: bool, pattern: &str, left: usize, fault: Fault) {
        if left == 0 {
            return;
        }
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        rules.push(Rule { stored, pattern: pattern.to_owned(), left, fault });
        self.armed.store(rules.len(), Ordering::Release);
    }

    /// What befalls this message; uses the rule up. Costs one load while there are no rules.
    pub(super) fn next(&self, stored: bool, subject: &str) -> Option<Fault> {
        if self.armed.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let at = rules.iter().position(|rule| rule.stored == stored && subject::matches(&rule.pattern, subject))?;
        let rule = rules.get_mut(at)?;
        rule.left -= 1;
        let fault = rule.fault;
        if rule.left == 0 {
            rules.remove(at);
            self.armed.store(rules.len(), Ordering::Release);
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_used_up_in_order() {
        let faults = Faults::default();
        assert_eq!(faults.next(true, "a.b"), None);
        faults.drop_stored("a.*", 2);
        faults.delay_stored("a.b", 1, Duration::from_secs(1));
        faults.duplicate_plain("a.>", 1);
        assert_eq!(faults.next(true, "a.b"), Some(Fault::Drop));
        assert_eq!(faults.next(true, "b.b"), None);
        assert_eq!(faults.next(false, "a.b"), Some(Fault::Duplicate));
        assert_eq!(faults.next(true, "a.c"), Some(Fault::Drop));
        assert_eq!(faults.next(true, "a.c"), None);
        assert_eq!(faults.next(true, "a.b"), Some(Fault::Delay(Duration::from_secs(1))));
        assert_eq!(faults.armed.load(Ordering::Relaxed), 0);
    }
}
