//! Strict durations: whole numbers with units, largest first, each unit once.

/// Units, largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// What a message says is expected.
pub(crate) const EXPECTED: &str = "a duration such as `250ms`, `10m` or `1h30m`";

/// Longest timeout and pause: 2^31 - 1 milliseconds.
pub(crate) const TIMEOUT_MS_MAX: u64 = 2_147_483_647;
/// Longest deadline: 100 years of 365 days.
pub(crate) const DEADLINE_MS_MAX: u64 = 100 * 365 * 86_400_000;

/// Milliseconds of a duration text; `None` when it is none or does not fit.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut units = UNITS.as_slice();
    let mut total = 0u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        let after = rest.get(digits..)?;
        // The unit ends where the next number begins, so `m` and `ms` cannot be confused.
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let unit = units.iter().position(|(name, _)| Some(*name) == after.get(..end))?;
        total = total.checked_add(number.checked_mul(units[unit].1)?)?;
        units = &units[unit + 1..];
        rest = after.get(end..)?;
    }
    (units.len() < UNITS.len()).then_some(total)
}

/// Whether a text is a time in UTC: `2027-01-31T12:00:00Z`, with an optional fraction of a second.
pub(crate) fn is_time(text: &str) -> bool {
    let Some((date, clock)) = text.strip_suffix('Z').and_then(|text| text.split_once('T')) else { return false };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let numbers = |text: &str, mark: char, widths: [usize; 3]| -> Option<[u32; 3]> {
        let parts: Vec<&str> = text.split(mark).collect();
        let parts: [&str; 3] = parts.try_into().ok()?;
        let mut out = [0; 3];
        for ((part, width), number) in parts.iter().zip(widths).zip(&mut out) {
            let fits = part.len() == width && part.bytes().all(|b| b.is_ascii_digit());
            *number = fits.then(|| part.parse().ok()).flatten()?;
        }
        Some(out)
    };
    let (Some([year, month, day]), Some([hour, minute, second])) =
        (numbers(date, '-', [4, 2, 2]), numbers(clock, ':', [2, 2, 2]))
    else {
        return false;
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    let fraction_fits = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|b| b.is_ascii_digit());
    (1..=days).contains(&day) && hour < 24 && minute < 60 && second < 60 && fraction_fits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_strict() {
        #[rustfmt::skip]
        let table = [
            ("250ms", Some(250)), ("10m", Some(600_000)), ("1h30m", Some(5_400_000)), ("0s", Some(0)), ("1d2h3m4s5ms", Some(93_784_005)),
            ("", None), ("42", None), ("s", None), ("1.5h", None), ("-5s", None), ("+5s", None), (" 5s", None), ("5 s", None), ("5s ", None),
            ("30m1h", None), ("1h1h", None), ("1h30", None), ("5S", None), ("5sec", None), ("٣s", None), ("1é", None),
            ("99999999999999999999ms", None), ("18446744073709551615h", None),
        ];
        for (text, ms) in table {
            assert_eq!(parse(text), ms, "{text:?}");
        }
    }

    #[test]
    fn times_are_in_utc_and_on_the_calendar() {
        #[rustfmt::skip]
        let table = [
            ("2027-01-31T12:00:00Z", true), ("2028-02-29T23:59:59.123456789Z", true), ("2000-02-29T00:00:00.5Z", true),
            ("2027-02-29T00:00:00Z", false), ("2100-02-29T00:00:00Z", false), ("2027-04-31T00:00:00Z", false), ("2027-00-01T00:00:00Z", false),
            ("2027-01-31", false), ("2027-01-31T12:00:00", false), ("2027-01-31T12:00:00+01:00", false), ("2027-1-31T12:00:00Z", false),
            ("2027-01-31T24:00:00Z", false), ("2027-01-31T12:60:00Z", false), ("2027-01-31T12:00:00.Z", false), ("tomorrow", false), ("", false),
        ];
        for (text, valid) in table {
            assert_eq!(is_time(text), valid, "{text:?}");
        }
    }
}
