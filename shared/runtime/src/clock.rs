//! Time as a dependency: the real clock, and one that tests move by hand.
//!
//! Only the ledger's clock decides anything about runs; this one is for local waiting and for display.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Wall clock, milliseconds since 1970 in UTC. May jump in either direction.
    fn now_ms(&self) -> i64;

    /// Time since a fixed moment of this process. Never goes back.
    fn monotonic(&self) -> Duration;
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        let signed = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => signed(since),
            Err(before) => -signed(before.duration()),
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_ms: AtomicI64,
    monotonic_ms: AtomicU64,
}

impl ManualClock {
    /// A clock at this wall time; its monotonic time starts at zero.
    pub fn at(now_ms: i64) -> Self {
        Self { now_ms: AtomicI64::new(now_ms), monotonic_ms: AtomicU64::new(0) }
    }

    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        let ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.now_ms.fetch_add(i64::try_from(ms).unwrap_or(i64::MAX), Ordering::SeqCst);
        self.monotonic_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock only, as a time server or a person would; it may go back.
    pub fn set_wall(&self, now_ms: i64) {
        self.now_ms.store(now_ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic_ms.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_by_hand_and_its_monotonic_time_never_back() {
        let clock = ManualClock::at(1_000);
        assert_eq!((clock.now_ms(), clock.monotonic()), (1_000, Duration::ZERO));
        clock.advance(Duration::from_millis(250));
        clock.set_wall(5);
        assert_eq!((clock.now_ms(), clock.monotonic()), (5, Duration::from_millis(250)));
    }

    #[test]
    fn the_system_clock_is_in_this_century() {
        let clock = SystemClock::new();
        assert!(clock.now_ms() > 1_600_000_000_000);
        let first = clock.monotonic();
        assert!(clock.monotonic() >= first);
    }
}
