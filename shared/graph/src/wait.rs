//! Waiting between the iterations of a loop: for a signal, for a while, or until a time.

use std::sync::Arc;

use ditto_contracts::{Json, JsonKind, WireError};

use crate::{Formula, Scope, failure::expression};

/// What a loop waits for after an iteration that did not end it. Whatever comes first ends the wait; the signal's body
/// is then in scope as `signal`, `null` if time ended it.
#[derive(Clone, Default)]
pub struct Wait {
    /// Waits only when this is `true`; absent: always.
    pub when: Option<Arc<dyn Formula>>,
    /// Name of the signal.
    pub signal: Option<String>,
    /// How long: milliseconds as a number, or a duration such as `250ms`, `10m`, `1h30m`. `null`: no limit.
    pub duration: Option<Arc<dyn Formula>>,
    /// Until when: milliseconds since 1970 as a number, or RFC 3339 in UTC such as `2027-01-31T12:00:00Z`.
    pub until: Option<Arc<dyn Formula>>,
}

/// A wait that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) signal: Option<String>,
    pub(crate) wake_ms: Option<i64>,
}

impl Waiting {
    /// For people.
    pub(crate) fn reason(&self) -> String {
        match &self.signal {
            Some(name) => format!("signal {name}"),
            None => "time".into(),
        }
    }
}

impl Wait {
    /// What to wait for now; `None`: go on.
    pub(crate) fn begin(&self, scope: &Scope<'_>, now_ms: i64) -> Result<Option<Waiting>, WireError> {
        if let Some(when) = &self.when
            && !when.evaluate(scope)?.is_true()
        {
            return Ok(None);
        }
        let mut wake_ms: Option<i64> = None;
        if let Some(duration) = &self.duration {
            let value = duration.evaluate(scope)?;
            if !value.is_null() {
                let ms = read_duration(&value)
                    .ok_or_else(|| expression("wait.duration", "must be milliseconds or a duration such as 10m"))?;
                wake_ms = Some(now_ms.saturating_add(ms));
            }
        }
        if let Some(until) = &self.until {
            let value = until.evaluate(scope)?;
            if !value.is_null() {
                let time = read_time(&value).ok_or_else(|| {
                    expression("wait.until", "must be milliseconds since 1970 or a time such as 2027-01-31T12:00:00Z")
                })?;
                wake_ms = Some(wake_ms.map_or(time, |other| other.min(time)));
            }
        }
        let waits = self.signal.is_some() || wake_ms.is_some();
        Ok(waits.then(|| Waiting { signal: self.signal.clone(), wake_ms }))
    }
}

/// Milliseconds of a number or a strict duration text; never negative.
fn read_duration(value: &Json) -> Option<i64> {
    match value.kind() {
        JsonKind::Number => value.to::<i64>().ok().filter(|ms| *ms >= 0),
        JsonKind::String => duration_ms(&value.to_text()?),
        JsonKind::Null | JsonKind::Bool | JsonKind::Array | JsonKind::Object => None,
    }
}

/// `1h30m`, `250ms`: whole numbers with units, from large to small, each at most once.
fn duration_ms(text: &str) -> Option<i64> {
    const UNITS: [(&str, i64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
    let mut rest = text;
    let mut total: i64 = 0;
    let mut next = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: i64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = UNITS.iter().position(|(name, _)| *name == &rest[..end])?;
        if unit < next {
            return None;
        }
        next = unit + 1;
        rest = &rest[end..];
        total = total.checked_add(number.checked_mul(UNITS[unit].1)?)?;
    }
    (next > 0).then_some(total)
}

fn read_time(value: &Json) -> Option<i64> {
    match value.kind() {
        JsonKind::Number => value.to::<i64>().ok(),
        JsonKind::String => time_ms(&value.to_text()?),
        JsonKind::Null | JsonKind::Bool | JsonKind::Array | JsonKind::Object => None,
    }
}

/// `2027-01-31T12:00:00Z`, with an optional fraction of a second.
fn time_ms(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let number = |text: &str, digits: usize| -> Option<i64> {
        let fits = text.len() == digits && text.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| text.parse().ok()).flatten()
    };
    let mut date = date.split('-');
    let (year, month, day) = (number(date.next()?, 4)?, number(date.next()?, 2)?, number(date.next()?, 2)?);
    let (clock, fraction) = time.split_once('.').map_or((time, "0"), |(clock, fraction)| (clock, fraction));
    let mut clock = clock.split(':');
    let (hour, minute, second) = (number(clock.next()?, 2)?, number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    if date.next().is_some() || clock.next().is_some() || fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days_in_month = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let millis = number(&format!("{fraction:0<3}")[..3], 3)?;
    // Days since 1970 by counting years from March, so that the leap day is the last of its year.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        y * 365 + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_strict() {
        #[rustfmt::skip]
        let table = [
            ("250ms", Some(250)), ("10m", Some(600_000)), ("1h30m", Some(5_400_000)), ("1d", Some(86_400_000)), ("0s", Some(0)),
            ("", None), ("42", None), ("1.5h", None), ("-5s", None), ("5s1h", None), ("1h1h", None), ("5 s", None),
            ("99999999999999999d", None), ("h", None), ("1é", None),
        ];
        for (text, expected) in table {
            assert_eq!(duration_ms(text), expected, "{text}");
        }
        assert_eq!(read_duration(&Json::parse("1500").unwrap()), Some(1500));
        assert_eq!(read_duration(&Json::parse("-1").unwrap()), None);
        assert_eq!(read_duration(&Json::bool(true)), None);
    }

    #[test]
    fn times_are_read_in_utc() {
        #[rustfmt::skip]
        let table = [
            ("1970-01-01T00:00:00Z", Some(0)), ("2000-02-29T00:00:00.5Z", Some(951_782_400_500)),
            ("2026-11-30T17:23:12Z", Some(1_796_059_392_000)), ("1969-12-31T23:59:59Z", Some(-1000)),
            ("2027-02-29T00:00:00Z", None), ("2027-01-01T24:00:00Z", None), ("2027-01-01", None), ("2027-01-01T00:00:00+01:00", None),
            ("2027-01-01T00:00:00.Z", None), ("2027-13-01T00:00:00Z", None), ("2027-01-01T00:00:00.1é2Z", None),
        ];
        for (text, expected) in table {
            assert_eq!(time_ms(text), expected, "{text}");
        }
    }
}
