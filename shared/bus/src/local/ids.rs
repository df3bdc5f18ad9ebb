//! Which message ids a stream has seen lately.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;

use crate::time::after;

/// Message ids remembered at most, however long the window is.
const KNOWN_IDS: usize = 128 * 1024;

/// The message ids of the duplicate window, as digests.
#[derive(Default)]
pub(super) struct Ids {
    keys: (RandomState, RandomState),
    sequences: HashMap<u128, u64>,
    order: VecDeque<(Instant, u128)>,
}

impl Ids {
    /// What is kept of an id.
    pub(super) fn digest(&self, id: &str) -> u128 {
        (u128::from(self.keys.0.hash_one(id)) << 64) | u128::from(self.keys.1.hash_one(id))
    }

    /// The sequence stored under this id within the window.
    pub(super) fn known(&mut self, id: u128, window: Duration, now: Instant) -> Option<u64> {
        while let Some((at, oldest)) = self.order.front()
            && (after(*at, window) <= now || self.order.len() > KNOWN_IDS)
        {
            self.sequences.remove(oldest);
            self.order.pop_front();
        }
        self.sequences.get(&id).copied()
    }

    /// Remembers an id from now on.
    pub(super) fn remember(&mut self, id: u128, sequence: u64, now: Instant) {
        self.sequences.insert(id, sequence);
        self.order.push_back((now, id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_bounded_in_time_and_number() {
        let window = Duration::from_secs(10);
        let now = Instant::now();
        let mut ids = Ids::default();
        let first = ids.digest("first");
        assert_eq!(ids.known(first, window, now), None);
        ids.remember(first, 7, now);
        assert_eq!(ids.known(first, window, now + window - Duration::from_secs(1)), Some(7));
        assert_eq!(ids.known(first, window, now + window), None);
        for n in 0..2 * KNOWN_IDS as u64 {
            let id = ids.digest(&n.to_string());
            assert_eq!(ids.known(id, window, now), None);
            ids.remember(id, n, now);
        }
        assert!(ids.order.len() <= KNOWN_IDS + 1 && ids.sequences.len() == ids.order.len());
    }
}
