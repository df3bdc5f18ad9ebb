//! The functions an expression may call.

use std::{fmt::Write as _, sync::Arc};

use sha2::{Digest as _, Sha256};

use super::value::{Fault, Meter, Value, View};

/// A function. Each may be called as `f(x, …)` or `x.f(…)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Size,
    String,
    Int,
    Uint,
    Double,
    Bool,
    Contains,
    StartsWith,
    EndsWith,
    LowerAscii,
    UpperAscii,
    Trim,
    Split,
    Join,
    Json,
    Sha256,
}

/// Name, function, number of arguments, the first being what it applies to.
const TABLE: [(&str, Function, usize); 16] = [
    ("size", Function::Size, 1),
    ("string", Function::String, 1),
    ("int", Function::Int, 1),
    ("uint", Function::Uint, 1),
    ("double", Function::Double, 1),
    ("bool", Function::Bool, 1),
    ("contains", Function::Contains, 2),
    ("startsWith", Function::StartsWith, 2),
    ("endsWith", Function::EndsWith, 2),
    ("lowerAscii", Function::LowerAscii, 1),
    ("upperAscii", Function::UpperAscii, 1),
    ("trim", Function::Trim, 1),
    ("split", Function::Split, 2),
    ("join", Function::Join, 2),
    ("json", Function::Json, 1),
    ("sha256", Function::Sha256, 1),
];

impl Function {
    /// The function of a name and the number of its arguments.
    pub(crate) fn find(name: &str) -> Option<(Self, usize)> {
        TABLE.iter().find(|(known, ..)| *known == name).map(|(_, function, arguments)| (*function, *arguments))
    }

    /// Every name.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|(name, ..)| *name)
    }

    fn name(self) -> &'static str {
        TABLE.iter().find(|(_, function, _)| *function == self).map_or("?", |(name, ..)| name)
    }

    /// Calls it. The number of arguments was checked when the expression was compiled.
    pub(crate) fn call(self, arguments: &[Value], meter: &mut Meter) -> Result<Value, Fault> {
        let (value, other) = match arguments {
            [value] => (value, &Value::Null),
            [value, other, ..] => (value, other),
            [] => return Err(Fault::new(format!("`{}` needs an argument", self.name()))),
        };
        match self {
            Self::Size => value.size(meter).map(Value::Int),
            Self::String => self.string(value, meter),
            Self::Int => self.integer(value, |n| i64::try_from(n).ok().map(Value::Int)),
            Self::Uint => self.integer(value, |n| u64::try_from(n).ok().map(Value::Uint)),
            Self::Double => self.double(value),
            Self::Bool => match value.view() {
                View::Bool(value) => Ok(Value::Bool(value)),
                // The spellings CEL names.
                View::Text(text) if ["1", "t", "T", "true", "TRUE", "True"].contains(&&*text) => Ok(Value::Bool(true)),
                View::Text(text) if ["0", "f", "F", "false", "FALSE", "False"].contains(&&*text) => {
                    Ok(Value::Bool(false))
                }
                _ => Err(self.refuse(value)),
            },
            Self::Contains => self.test(value, other, meter, |text, part| text.contains(part)),
            Self::StartsWith => self.test(value, other, meter, |text, part| text.starts_with(part)),
            Self::EndsWith => self.test(value, other, meter, |text, part| text.ends_with(part)),
            Self::LowerAscii => self.change(value, meter, |text| text.to_ascii_lowercase()),
            Self::UpperAscii => self.change(value, meter, |text| text.to_ascii_uppercase()),
            Self::Trim => self.change(value, meter, |text| text.trim().to_owned()),
            Self::Split => self.split(value, other, meter),
            Self::Join => self.join(value, other, meter),
            Self::Json => {
                let mut out = String::new();
                value.write(&mut out, meter)?;
                Ok(Value::text(out))
            }
            Self::Sha256 => {
                let mut text = String::new();
                value.interpolate(&mut text, meter)?;
                let mut out = String::with_capacity(64);
                for byte in Sha256::digest(text.as_bytes()) {
                    let _ = write!(out, "{byte:02x}"); // writing to a String cannot fail
                }
                Ok(Value::text(out))
            }
        }
    }

    fn refuse(self, value: &Value) -> Fault {
        Fault::new(format!("`{}` does not apply to {}", self.name(), value.kind()))
    }

    fn string(self, value: &Value, meter: &mut Meter) -> Result<Value, Fault> {
        match (value, value.view()) {
            (_, View::Text(text)) => {
                meter.make(text.len())?;
                Ok(Value::text(&*text))
            }
            // Every digit as it arrived.
            (Value::Json(json), View::Int(_) | View::Uint(_) | View::Double(_) | View::Inexact(_)) => {
                Ok(Value::text(json.as_str()))
            }
            (_, View::Int(n)) => Ok(Value::text(n.to_string())),
            (_, View::Uint(n)) => Ok(Value::text(n.to_string())),
            (_, View::Double(n)) => Ok(Value::text(n.to_string())),
            (_, View::Bool(value)) => Ok(Value::text(value.to_string())),
            _ => Err(self.refuse(value)),
        }
    }

    fn integer(self, value: &Value, fit: impl Fn(i128) -> Option<Value>) -> Result<Value, Fault> {
        let range = || Fault::new(format!("the value does not fit `{}`", self.name()));
        match value.view() {
            View::Int(n) => fit(n.into()).ok_or_else(range),
            View::Uint(n) => fit(n.into()).ok_or_else(range),
            // Towards zero; saturates beyond 128 bits, which `fit` refuses.
            View::Double(n) if n.is_finite() => fit(n.trunc() as i128).ok_or_else(range),
            View::Text(text) => text.parse::<i128>().ok().and_then(fit).ok_or_else(|| {
                Fault::new(format!("`{}` cannot read {:?}", self.name(), crate::document::shorten(&text)))
            }),
            View::Double(_) | View::Inexact(_) => Err(range()),
            _ => Err(self.refuse(value)),
        }
    }

    /// Asked for by name, so rounding to the nearest double is no silent change.
    fn double(self, value: &Value) -> Result<Value, Fault> {
        let read = |text: &str| match text.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(Value::Double(n)),
            _ => Err(Fault::new(format!("`double` cannot read {:?}", crate::document::shorten(text)))),
        };
        match value.view() {
            View::Int(n) => Ok(Value::Double(n as f64)),
            View::Uint(n) => Ok(Value::Double(n as f64)),
            View::Double(n) => Ok(Value::Double(n)),
            View::Text(text) => read(&text),
            View::Inexact(text) => read(text),
            _ => Err(self.refuse(value)),
        }
    }

    fn test(
        self,
        value: &Value,
        part: &Value,
        meter: &mut Meter,
        test: fn(&str, &str) -> bool,
    ) -> Result<Value, Fault> {
        match (value.view(), part.view()) {
            (View::Text(text), View::Text(part)) => {
                meter.step(1 + text.len() as u64 / 256)?;
                Ok(Value::Bool(test(&text, &part)))
            }
            (View::Text(_), _) => Err(self.refuse(part)),
            _ => Err(self.refuse(value)),
        }
    }

    fn change(self, value: &Value, meter: &mut Meter, change: fn(&str) -> String) -> Result<Value, Fault> {
        match value.view() {
            View::Text(text) => {
                meter.make(text.len())?;
                Ok(Value::text(change(&text)))
            }
            _ => Err(self.refuse(value)),
        }
    }

    fn split(self, value: &Value, separator: &Value, meter: &mut Meter) -> Result<Value, Fault> {
        let (View::Text(text), View::Text(separator)) = (value.view(), separator.view()) else {
            return Err(self.refuse(if matches!(value.view(), View::Text(_)) { separator } else { value }));
        };
        if separator.is_empty() {
            return Err(Fault::new("`split` needs a separator that is not empty"));
        }
        let mut items = Vec::new();
        for part in text.split(&*separator) {
            meter.make(part.len() + size_of::<Value>())?;
            items.push(Value::text(part));
        }
        Ok(Value::List(Arc::new(items)))
    }

    fn join(self, value: &Value, separator: &Value, meter: &mut Meter) -> Result<Value, Fault> {
        let View::Text(separator) = separator.view() else { return Err(self.refuse(separator)) };
        if !matches!(value.view(), View::List) {
            return Err(self.refuse(value));
        }
        let mut out = String::new();
        for (n, item) in value.items(meter)?.iter().enumerate() {
            if n > 0 {
                meter.make(separator.len())?;
                out.push_str(&separator);
            }
            match item.view() {
                View::Text(text) => {
                    meter.make(text.len())?;
                    out.push_str(&text);
                }
                _ => return Err(Fault::new(format!("`join` needs a list of texts, found {}", item.kind()))),
            }
        }
        Ok(Value::text(out))
    }
}
