//! The values of an expression. What came as JSON stays JSON text until an operation looks into it, so a value that is
//! only passed on keeps its bytes, and a large input costs nothing where it is not read.

use std::{borrow::Cow, sync::Arc};

use ditto_contracts::{Json, JsonKind, limits::VALUE_BYTES_MAX};

/// Steps one evaluation may take: nodes visited, elements looked at, 256 bytes of text read or written.
pub(crate) const STEPS_MAX: u64 = 1_000_000;
/// Bytes one evaluation may make on the way to a value, which itself is at most [`VALUE_BYTES_MAX`].
pub(crate) const MADE_BYTES_MAX: usize = 4 * VALUE_BYTES_MAX;

/// A value.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// As it arrived.
    Json(Json),
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    List(Arc<Vec<Value>>),
    /// Keys in the order they were written.
    Map(Arc<Vec<(Arc<str>, Value)>>),
}

/// A value as an operation sees it.
#[derive(Debug)]
pub(crate) enum View<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    /// A number that neither 64 bits nor a double can hold unchanged.
    Inexact(&'a str),
    Text(Cow<'a, str>),
    List,
    Map,
}

/// Why an expression has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) message: String,
    /// A limit was reached: no `||`, `&&`, `all` or `exists` may look past it.
    pub(crate) fatal: bool,
}

impl Fault {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), fatal: false }
    }
}

/// What an evaluation has used.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    steps: u64,
    bytes: usize,
}

impl Meter {
    /// Counts steps.
    pub(crate) fn step(&mut self, n: u64) -> Result<(), Fault> {
        self.steps = self.steps.saturating_add(n);
        if self.steps > STEPS_MAX {
            return Err(Fault { message: format!("takes more than {STEPS_MAX} steps"), fatal: true });
        }
        Ok(())
    }

    /// Steps taken so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Counts bytes that are made.
    pub(crate) fn make(&mut self, bytes: usize) -> Result<(), Fault> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MADE_BYTES_MAX {
            return Err(Fault { message: format!("makes more than {MADE_BYTES_MAX} bytes"), fatal: true });
        }
        self.step(bytes as u64 / 256)
    }

    fn read(&mut self, bytes: usize) -> Result<(), Fault> {
        self.step(1 + bytes as u64 / 256)
    }
}

impl Value {
    pub(crate) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    /// Looks into the value.
    pub(crate) fn view(&self) -> View<'_> {
        match self {
            Self::Null => View::Null,
            Self::Bool(value) => View::Bool(*value),
            Self::Int(value) => View::Int(*value),
            Self::Uint(value) => View::Uint(*value),
            Self::Double(value) => View::Double(*value),
            Self::Text(text) => View::Text(Cow::Borrowed(text)),
            Self::List(_) => View::List,
            Self::Map(_) => View::Map,
            Self::Json(json) => match json.kind() {
                JsonKind::Null => View::Null,
                JsonKind::Bool => View::Bool(json.is_true()),
                JsonKind::Number => number(json.as_str()),
                JsonKind::String => View::Text(text_of(json)),
                JsonKind::Array => View::List,
                JsonKind::Object => View::Map,
            },
        }
    }

    /// The word for its type in a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self.view() {
            View::Null => "null",
            View::Bool(_) => "a boolean",
            View::Int(_) | View::Uint(_) => "an integer",
            View::Double(_) | View::Inexact(_) => "a number",
            View::Text(_) => "a text",
            View::List => "a list",
            View::Map => "a map",
        }
    }

    /// The value of a key; `None` when the map has none.
    pub(crate) fn field(&self, name: &str, meter: &mut Meter) -> Result<Option<Value>, Fault> {
        match self {
            Self::Map(entries) => {
                meter.step(1 + entries.len() as u64 / 8)?;
                Ok(entries.iter().find(|(key, _)| &**key == name).map(|(_, value)| value.clone()))
            }
            Self::Json(json) if json.kind() == JsonKind::Object => {
                let found = json.field(name);
                meter.read(scanned(json, found.as_ref()))?;
                Ok(found.map(Self::Json))
            }
            _ => Err(Fault::new(format!("{} has no key `{name}`", self.kind()))),
        }
    }

    /// The element of a list.
    pub(crate) fn element(&self, n: usize, meter: &mut Meter) -> Result<Option<Value>, Fault> {
        match self {
            Self::List(items) => {
                meter.step(1)?;
                Ok(items.get(n).cloned())
            }
            Self::Json(json) => {
                let found = json.index(n);
                meter.read(scanned(json, found.as_ref()))?;
                Ok(found.map(Self::Json))
            }
            _ => Ok(None),
        }
    }

    /// The elements of a list, or the keys of a map.
    pub(crate) fn items(&self, meter: &mut Meter) -> Result<Vec<Value>, Fault> {
        match self {
            Self::List(items) => {
                meter.step(items.len() as u64)?;
                Ok(items.as_ref().clone())
            }
            Self::Map(entries) => {
                meter.step(entries.len() as u64)?;
                Ok(entries.iter().map(|(key, _)| Self::Text(Arc::clone(key))).collect())
            }
            Self::Json(json) => {
                meter.read(json.len())?;
                let mut out = Vec::new();
                let mut take = |value: Value| {
                    meter.step(1)?;
                    out.push(value);
                    Ok::<_, Fault>(())
                };
                match json.kind() {
                    JsonKind::Array => json.elements().try_for_each(|item| take(Self::Json(item)))?,
                    JsonKind::Object => json.members().try_for_each(|(key, _)| take(Self::text(key)))?,
                    _ => return Err(Fault::new(format!("{} has no elements", self.kind()))),
                }
                Ok(out)
            }
            _ => Err(Fault::new(format!("{} has no elements", self.kind()))),
        }
    }

    /// The entries of a map.
    pub(crate) fn entries(&self, meter: &mut Meter) -> Result<Vec<(Arc<str>, Value)>, Fault> {
        match self {
            Self::Map(entries) => {
                meter.step(entries.len() as u64)?;
                Ok(entries.as_ref().clone())
            }
            Self::Json(json) => {
                meter.read(json.len())?;
                let mut out = Vec::new();
                for (key, value) in json.members() {
                    meter.step(1)?;
                    out.push((Arc::from(key), Self::Json(value)));
                }
                Ok(out)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Number of elements of a list or map, or of characters of a text.
    pub(crate) fn size(&self, meter: &mut Meter) -> Result<i64, Fault> {
        let size = match self {
            Self::List(items) => items.len(),
            Self::Map(entries) => entries.len(),
            Self::Json(json) if json.kind() == JsonKind::Array => {
                meter.read(json.len())?;
                json.elements().count()
            }
            Self::Json(json) if json.kind() == JsonKind::Object => {
                meter.read(json.len())?;
                json.members().count()
            }
            _ => match self.view() {
                View::Text(text) => {
                    meter.read(text.len())?;
                    text.chars().count()
                }
                _ => return Err(Fault::new(format!("{} has no size", self.kind()))),
            },
        };
        Ok(i64::try_from(size).unwrap_or(i64::MAX))
    }

    /// The value as JSON text. JSON that arrived is copied to the byte.
    pub(crate) fn write(&self, out: &mut String, meter: &mut Meter) -> Result<(), Fault> {
        meter.step(1)?;
        match self {
            Self::Json(json) => {
                meter.make(json.len())?;
                out.push_str(json.as_str());
            }
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) => out.push_str(&value.to_string()),
            Self::Uint(value) => out.push_str(&value.to_string()),
            // The shortest text that reads back as the same double.
            Self::Double(value) if value.is_finite() => out.push_str(&format!("{value:?}")),
            Self::Double(value) => {
                return Err(Fault::new(format!("the result is {value}, which is not a JSON number")));
            }
            Self::Text(text) => write_text(text, out, meter)?,
            Self::List(items) => {
                out.push('[');
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        out.push(',');
                    }
                    item.write(out, meter)?;
                }
                out.push(']');
            }
            Self::Map(entries) => {
                out.push('{');
                for (n, (key, value)) in entries.iter().enumerate() {
                    if n > 0 {
                        out.push(',');
                    }
                    write_text(key, out, meter)?;
                    out.push(':');
                    value.write(out, meter)?;
                }
                out.push('}');
            }
        }
        Ok(())
    }

    /// The value inside a text: a text as it is, anything else as JSON.
    pub(crate) fn interpolate(&self, out: &mut String, meter: &mut Meter) -> Result<(), Fault> {
        match self.view() {
            View::Text(text) => {
                meter.make(text.len())?;
                out.push_str(&text);
                Ok(())
            }
            _ => self.write(out, meter),
        }
    }

    /// The value as JSON.
    pub(crate) fn to_json(&self, meter: &mut Meter) -> Result<Json, Fault> {
        if let Self::Json(json) = self {
            return Ok(json.clone());
        }
        let mut out = String::new();
        self.write(&mut out, meter)?;
        Ok(Json::from_checked(out.into()))
    }
}

fn write_text(text: &str, out: &mut String, meter: &mut Meter) -> Result<(), Fault> {
    meter.make(text.len() + 2)?;
    out.push_str(Json::string(text).as_str());
    Ok(())
}

/// How far into a container a look-up had to read.
fn scanned(whole: &Json, found: Option<&Json>) -> usize {
    match found {
        // A part shares the bytes of the whole, so its end is an offset into it.
        Some(part) => (part.as_bytes().as_ptr_range().end as usize).saturating_sub(whole.as_bytes().as_ptr() as usize),
        None => whole.len(),
    }
}

fn text_of(json: &Json) -> Cow<'_, str> {
    let quoted = json.as_str();
    match quoted.get(1..quoted.len().saturating_sub(1)) {
        Some(inner) if !inner.contains('\\') => Cow::Borrowed(inner),
        _ => Cow::Owned(json.to_text().unwrap_or_default()),
    }
}

/// What a JSON number is: an integer when it is written as one and fits 64 bits, else a double when that keeps every
/// digit of it.
fn number(text: &str) -> View<'_> {
    if !text.contains(['.', 'e', 'E']) {
        if let Ok(value) = text.parse::<i64>() {
            return View::Int(value);
        }
        if let Ok(value) = text.parse::<u64>() {
            return View::Uint(value);
        }
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && decimal(text) == decimal(&format!("{value:e}")) => View::Double(value),
        _ => View::Inexact(text),
    }
}

/// A decimal number as sign, digits without outer zeros, and the power of ten of the first digit.
fn decimal(text: &str) -> Option<(bool, String, i64)> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: String = [whole, fraction].concat();
    let leading = digits.len() - digits.trim_start_matches('0').len();
    let significant = digits.trim_matches('0').to_owned();
    if significant.is_empty() {
        return Some((negative, significant, 0));
    }
    let power = exponent.checked_add(whole.len() as i64 - leading as i64)?;
    Some((negative, significant, power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_numbers_are_exact_or_said_not_to_be() {
        #[rustfmt::skip]
        let table = [
            ("0", "Int(0)"), ("-0", "Int(0)"), ("9007199254740993", "Int(9007199254740993)"),
            ("9223372036854775807", "Int(9223372036854775807)"), ("9223372036854775808", "Uint(9223372036854775808)"),
            ("18446744073709551615", "Uint(18446744073709551615)"), ("18446744073709551616", "Inexact"),
            ("0.1", "Double(0.1)"), ("1e2", "Double(100.0)"), ("1.50", "Double(1.5)"), ("-0.0", "Double(-0.0)"),
            ("100000000000000000000", "Double(1e20)"), ("0.1000000000000000055511151231257827", "Inexact"),
            ("1e400", "Inexact"), ("1e-400", "Inexact"), ("0.0001", "Double(0.0001)"), ("1e99999999999999999999", "Inexact"),
            ("123456789012345678901234567890", "Inexact"), ("0e5", "Double(0.0)"), ("9007199254740993.0", "Inexact"),
        ];
        for (text, kind) in table {
            let found = format!("{:?}", number(text));
            assert!(found.starts_with(kind), "{text}: {found}");
        }
    }

    #[test]
    fn limits_are_fatal() {
        let mut meter = Meter::default();
        assert!(meter.step(STEPS_MAX).is_ok());
        assert!(meter.step(1).is_err_and(|fault| fault.fatal));
        assert!(Meter::default().make(MADE_BYTES_MAX + 1).is_err_and(|fault| fault.fatal));
    }
}
