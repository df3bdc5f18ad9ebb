//! Medians, ranges and percentiles.

use serde::Serialize;

/// Median of the repetitions and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Stat {
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// The least.
    pub(crate) min: f64,
    /// The most.
    pub(crate) max: f64,
}

impl Stat {
    /// Of at least one value; `None` of none.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median: round(median), min: round(min), max: round(max) })
    }
}

/// Four significant digits: more would only look exact.
fn round(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the exponent of a finite number is small")]
    let digits = 3 - value.abs().log10().floor() as i32;
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// The value below which this share of the values lies (nearest rank); 0 of none.
pub(super) fn percentile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to the number of values")]
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_range() {
        let stat = Stat::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((stat.median, stat.min, stat.max), (2.0, 1.0, 3.0));
        assert_eq!(Stat::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Stat::of(&[12345.678]).unwrap().median, 12350.0);
        assert!(Stat::of(&[]).is_none());
        assert_eq!(percentile(&mut [4, 1, 3, 2], 0.5), 2);
        assert_eq!(percentile(&mut [4, 1, 3, 2], 0.99), 4);
        assert_eq!(percentile(&mut [], 0.5), 0);
    }
}
