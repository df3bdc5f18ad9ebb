//! Strict durations and byte sizes: a unit always, whole numbers only, one reading for each text.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a duration or size text was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not the form of a duration.
    #[error("expected a duration of whole numbers with units, largest first, such as `250ms`, `10m` or `1h30m`")]
    Duration,
    /// Not the form of a byte size.
    #[error("expected a whole number of bytes with a unit, such as `512B`, `64KiB`, `8MiB` or `1GiB`")]
    ByteSize,
    /// Larger than can be stored.
    #[error("expected a smaller value")]
    TooLarge,
}

/// The longest duration that is accepted: 100 years of 365 days, in milliseconds. Far from any overflow.
const MAX_DURATION_MS: u64 = 100 * 365 * 86_400_000;

/// Units of a duration, largest first.
const DURATION_UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of a size, largest first.
const SIZE_UNITS: [(&str, u64); 5] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// A duration as written in configuration: `250ms`, `10m`, `1h30m`. Whole milliseconds, at most 100 years.
///
/// Refused: no unit (`42`), fractions (`1.5h`), signs (`-5s`), spaces, empty text, units out of order or repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DurationMs(u64);

impl DurationMs {
    /// From milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// From seconds; saturates.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000))
    }

    /// Milliseconds.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// As the standard type.
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl From<DurationMs> for Duration {
    fn from(value: DurationMs) -> Self {
        value.as_duration()
    }
}

impl FromStr for DurationMs {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let mut rest = text;
        let mut units = DURATION_UNITS.as_slice();
        let mut total = 0_u64;
        while !rest.is_empty() || total_is_unset(units) {
            let (number, after) = leading_number(rest).ok_or(UnitError::Duration)?;
            // The unit ends where the next number begins, so `m` and `ms` cannot be confused.
            let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let index = units.iter().position(|(name, _)| *name == unit).ok_or(UnitError::Duration)?;
            let ms = number.ok_or(UnitError::TooLarge)?.checked_mul(units[index].1).ok_or(UnitError::TooLarge)?;
            total = total.checked_add(ms).filter(|ms| *ms <= MAX_DURATION_MS).ok_or(UnitError::TooLarge)?;
            units = &units[index + 1..];
            rest = after;
        }
        Ok(Self(total))
    }
}

/// Whether no component was read yet; an empty text has none and is refused for it.
fn total_is_unset(units: &[(&str, u64)]) -> bool {
    units.len() == DURATION_UNITS.len()
}

/// Splits the leading decimal digits off. The number is `None` when it does not fit.
fn leading_number(text: &str) -> Option<(Option<u64>, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    (!digits.is_empty()).then(|| (digits.parse().ok(), rest))
}

impl fmt::Display for DurationMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0ms");
        }
        let mut rest = self.0;
        for (unit, ms) in DURATION_UNITS {
            if rest >= ms {
                write!(f, "{}{unit}", rest / ms)?;
                rest %= ms;
            }
        }
        Ok(())
    }
}

/// A size in bytes as written in configuration: `512B`, `64KiB`, `8MiB`. Binary units only, whole numbers only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(u64);

impl ByteSize {
    /// From bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// From KiB; saturates.
    pub const fn from_kib(kib: u64) -> Self {
        Self(kib.saturating_mul(1 << 10))
    }

    /// From MiB; saturates.
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// Bytes.
    pub const fn as_bytes(self) -> u64 {
        self.0
    }

    /// Bytes as an index; saturates where an index is smaller than 64 bits.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = leading_number(text).ok_or(UnitError::ByteSize)?;
        let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or(UnitError::ByteSize)?;
        let bytes = number.and_then(|number| number.checked_mul(*factor)).ok_or(UnitError::TooLarge)?;
        // What SQL and JSON can carry as a signed number.
        if i64::try_from(bytes).is_err() {
            return Err(UnitError::TooLarge);
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in SIZE_UNITS {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        f.write_str("0B")
    }
}

macro_rules! text_serde {
    ($type:ident, $expecting:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

text_serde!(DurationMs, "a duration such as `250ms`, `10m` or `1h30m`");
text_serde!(ByteSize, "a size such as `512B`, `64KiB` or `8MiB`");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_the_table_says() {
        #[rustfmt::skip]
        let table = [
            ("250ms",      Some(250)),
            ("0s",         Some(0)),
            ("10m",        Some(600_000)),
            ("1h30m",      Some(5_400_000)),
            ("1d2h3m4s5ms", Some(93_784_005)),
            ("90m",        Some(5_400_000)),
            ("1.5h",       None),
            ("-5s",        None),
            ("+5s",        None),
            ("42",         None),
            ("",           None),
            ("s",          None),
            ("ms",         None),
            (" 5s",        None),
            ("5s ",        None),
            ("5 s",        None),
            ("30m1h",      None),   // out of order
            ("1h1h",       None),   // repeated
            ("1h30",       None),   // last number without unit
            ("5S",         None),
            ("5sec",       None),
            ("5us",        None),
            ("٣s",         None),   // digits of another script
            ("1e3ms",      None),
            ("36501d",     None),   // over a hundred years
            ("99999999999999999999ms", None),
            ("18446744073709551615h",  None),
        ];
        for (text, ms) in table {
            assert_eq!(text.parse::<DurationMs>().ok().map(DurationMs::as_ms), ms, "{text:?}");
        }
    }

    #[test]
    fn sizes_are_read_as_the_table_says() {
        #[rustfmt::skip]
        let table = [
            ("0B",     Some(0)),
            ("512B",   Some(512)),
            ("64KiB",  Some(65_536)),
            ("8MiB",   Some(8_388_608)),
            ("1GiB",   Some(1_073_741_824)),
            ("64KB",   None),   // decimal or binary? not said, so refused
            ("64k",    None),
            ("64",     None),
            ("",       None),
            ("-1B",    None),
            ("1.5MiB", None),
            ("1 MiB",  None),
            ("8388608TiB", None), // over 2^63 - 1
        ];
        for (text, bytes) in table {
            assert_eq!(text.parse::<ByteSize>().ok().map(ByteSize::as_bytes), bytes, "{text:?}");
        }
    }

    #[test]
    fn what_is_shown_reads_back_as_the_same_value() {
        for ms in [0, 1, 999, 1_000, 1_500, 60_000, 90_000, 3_600_000, 93_784_005] {
            let value = DurationMs::from_ms(ms);
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        for bytes in [0, 1, 1023, 1024, 1536, 65_536, 8 << 20, (8 << 20) + 1] {
            let value = ByteSize::from_bytes(bytes);
            assert_eq!(value.to_string().parse(), Ok(value));
        }
        assert_eq!(DurationMs::from_ms(5_400_000).to_string(), "1h30m");
        assert_eq!(ByteSize::from_kib(64).to_string(), "64KiB");
    }
}
