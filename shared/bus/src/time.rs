//! Instants that cannot overflow, whatever duration a caller gives.

use std::time::Duration;

use tokio::time::Instant;

/// As good as never, and small enough for every clock.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The instant `delay` from `now`; very long delays end in thirty years.
pub(crate) fn after(now: Instant, delay: Duration) -> Instant {
    now + delay.min(FAR)
}

/// Nanoseconds as JetStream takes them.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.min(FAR).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_duration_is_an_instant() {
        let now = Instant::now();
        assert!(after(now, Duration::MAX) > after(now, Duration::from_secs(1)));
        assert_eq!(nanos(Duration::from_millis(1)), 1_000_000);
        assert!(nanos(Duration::MAX) < i64::MAX as u64);
    }
}
