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
}
