//! Arithmetic, comparison and equality of expression values, with the rules of CEL. Nothing wraps, rounds or panics.

use std::{cmp::Ordering, sync::Arc};

use super::value::{Fault, Meter, Value, View};

/// An operator with two operands that are always both evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
}

impl Operator {
    /// As it is written.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
            Self::In => "in",
        }
    }
}

/// Applies an operator.
pub(crate) fn apply(operator: Operator, a: &Value, b: &Value, meter: &mut Meter) -> Result<Value, Fault> {
    use Operator as O;
    match operator {
        O::Add => add(a, b, meter),
        O::Subtract | O::Multiply | O::Divide | O::Remainder => arithmetic(operator, a, b),
        O::Equal => equal(a, b, meter).map(Value::Bool),
        O::NotEqual => equal(a, b, meter).map(|same| Value::Bool(!same)),
        O::Less => ordered(operator, a, b, meter, |order| order == Ordering::Less),
        O::LessEqual => ordered(operator, a, b, meter, |order| order != Ordering::Greater),
        O::Greater => ordered(operator, a, b, meter, |order| order == Ordering::Greater),
        O::GreaterEqual => ordered(operator, a, b, meter, |order| order != Ordering::Less),
        O::In => contains(a, b, meter).map(Value::Bool),
    }
}

/// `-x`
pub(crate) fn negate(value: &Value) -> Result<Value, Fault> {
    match value.view() {
        View::Int(n) => n.checked_neg().map(Value::Int).ok_or_else(|| Fault::new(format!("-({n}) overflows 64 bits"))),
        View::Double(n) => Ok(Value::Double(-n)),
        View::Uint(n) => {
            i64::try_from(-i128::from(n)).map(Value::Int).map_err(|_| Fault::new(format!("-({n}) overflows 64 bits")))
        }
        View::Inexact(text) => Err(inexact(text)),
        _ => Err(Fault::new(format!("`-` does not apply to {}", value.kind()))),
    }
}

fn add(a: &Value, b: &Value, meter: &mut Meter) -> Result<Value, Fault> {
    match (a.view(), b.view()) {
        (View::Text(x), View::Text(y)) => {
            meter.make(x.len() + y.len())?;
            Ok(Value::text([&*x, &*y].concat()))
        }
        (View::List, View::List) => {
            let mut items = a.items(meter)?;
            items.extend(b.items(meter)?);
            meter.make(items.len() * size_of::<Value>())?;
            Ok(Value::List(Arc::new(items)))
        }
        _ => arithmetic(Operator::Add, a, b),
    }
}

fn arithmetic(operator: Operator, a: &Value, b: &Value) -> Result<Value, Fault> {
    match (a.view(), b.view()) {
        (View::Inexact(text), _) | (_, View::Inexact(text)) => Err(inexact(text)),
        (View::Int(x), View::Int(y)) => {
            integer(operator, x.into(), y.into(), |n| i64::try_from(n).ok().map(Value::Int))
        }
        (View::Uint(x), View::Uint(y)) => {
            integer(operator, x.into(), y.into(), |n| u64::try_from(n).ok().map(Value::Uint))
        }
        (View::Int(x), View::Uint(y)) => integer(operator, x.into(), y.into(), either),
        (View::Uint(x), View::Int(y)) => integer(operator, x.into(), y.into(), either),
        (View::Double(x), View::Double(y)) => double(operator, x, y),
        (View::Double(x), View::Int(y)) => double(operator, x, exact(y.into())?),
        (View::Double(x), View::Uint(y)) => double(operator, x, exact(y.into())?),
        (View::Int(x), View::Double(y)) => double(operator, exact(x.into())?, y),
        (View::Uint(x), View::Double(y)) => double(operator, exact(x.into())?, y),
        _ => Err(Fault::new(format!("`{}` does not apply to {} and {}", operator.symbol(), a.kind(), b.kind()))),
    }
}

fn either(n: i128) -> Option<Value> {
    i64::try_from(n).map(Value::Int).or_else(|_| u64::try_from(n).map(Value::Uint)).ok()
}

fn integer(operator: Operator, x: i128, y: i128, fit: impl Fn(i128) -> Option<Value>) -> Result<Value, Fault> {
    let symbol = operator.symbol();
    let result = match operator {
        Operator::Add => x.checked_add(y),
        Operator::Subtract => x.checked_sub(y),
        Operator::Multiply => x.checked_mul(y),
        Operator::Divide | Operator::Remainder if y == 0 => {
            return Err(Fault::new(format!("{x} {symbol} 0: division by zero")));
        }
        Operator::Divide => x.checked_div(y),
        _ => x.checked_rem(y),
    };
    result.and_then(fit).ok_or_else(|| Fault::new(format!("{x} {symbol} {y} overflows 64 bits")))
}

fn double(operator: Operator, x: f64, y: f64) -> Result<Value, Fault> {
    Ok(Value::Double(match operator {
        Operator::Add => x + y,
        Operator::Subtract => x - y,
        Operator::Multiply => x * y,
        Operator::Divide => x / y,
        _ => return Err(Fault::new("`%` applies to integers only")),
    }))
}

/// An integer as a double, when that is the same number.
fn exact(n: i128) -> Result<f64, Fault> {
    let value = n as f64;
    if value as i128 == n {
        Ok(value)
    } else {
        Err(Fault::new(format!("the integer {n} has no exact floating-point value")))
    }
}

fn inexact(text: &str) -> Fault {
    let text = crate::document::shorten(text);
    Fault::new(format!("the number {text} can only be passed on: neither 64 bits nor a double hold it exactly"))
}

fn ordered(
    operator: Operator,
    a: &Value,
    b: &Value,
    meter: &mut Meter,
    test: fn(Ordering) -> bool,
) -> Result<Value, Fault> {
    let order = match (a.view(), b.view()) {
        (View::Text(x), View::Text(y)) => {
            meter.step(x.len().min(y.len()) as u64 / 256)?;
            Some(x.as_bytes().cmp(y.as_bytes()))
        }
        (View::Bool(x), View::Bool(y)) => Some(x.cmp(&y)),
        (View::Inexact(text), _) | (_, View::Inexact(text)) => return Err(inexact(text)),
        (x, y) => match numeric(&x, &y) {
            Some(order) => order,
            None => {
                let message = format!("`{}` does not compare {} with {}", operator.symbol(), a.kind(), b.kind());
                return Err(Fault::new(message));
            }
        },
    };
    Ok(Value::Bool(order.is_some_and(test)))
}

/// The order of two numbers; outer `None`: not both numbers, inner `None`: one is not a number (NaN).
fn numeric(a: &View<'_>, b: &View<'_>) -> Option<Option<Ordering>> {
    let whole = |view: &View<'_>| match view {
        View::Int(n) => Some(i128::from(*n)),
        View::Uint(n) => Some(i128::from(*n)),
        _ => None,
    };
    Some(match (whole(a), whole(b), a, b) {
        (Some(x), Some(y), ..) => Some(x.cmp(&y)),
        (Some(x), None, _, View::Double(y)) => against(x, *y),
        (None, Some(y), View::Double(x), _) => against(y, *x).map(Ordering::reverse),
        (None, None, View::Double(x), View::Double(y)) => x.partial_cmp(y),
        _ => return None,
    })
}

/// Compares an integer with a double without rounding either.
fn against(n: i128, value: f64) -> Option<Ordering> {
    if value.is_nan() {
        return None;
    }
    // Saturates beyond 128 bits, which no 64-bit integer reaches.
    let whole = value.trunc() as i128;
    Some(n.cmp(&whole).then_with(|| 0.0_f64.partial_cmp(&value.fract()).unwrap_or(Ordering::Equal)))
}

/// Equality: numbers by value, lists by element, maps without regard to order; values of two types are not equal.
pub(crate) fn equal(a: &Value, b: &Value, meter: &mut Meter) -> Result<bool, Fault> {
    meter.step(1)?;
    if let (Value::Json(x), Value::Json(y)) = (a, b) {
        meter.step(x.len().min(y.len()) as u64 / 256)?;
        if x == y {
            return Ok(true);
        }
    }
    match (a.view(), b.view()) {
        (View::Null, View::Null) => Ok(true),
        (View::Bool(x), View::Bool(y)) => Ok(x == y),
        (View::Text(x), View::Text(y)) => {
            meter.step(x.len().min(y.len()) as u64 / 256)?;
            Ok(x == y)
        }
        (View::List, View::List) => {
            let (x, y) = (a.items(meter)?, b.items(meter)?);
            if x.len() != y.len() {
                return Ok(false);
            }
            for (x, y) in x.iter().zip(&y) {
                if !equal(x, y, meter)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (View::Map, View::Map) => {
            let (x, y) = (a.entries(meter)?, b.entries(meter)?);
            if x.len() != y.len() {
                return Ok(false);
            }
            for (key, value) in &x {
                match b.field(key, meter)? {
                    Some(other) if equal(value, &other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (View::Inexact(text), View::Int(_) | View::Uint(_) | View::Double(_) | View::Inexact(_))
        | (View::Int(_) | View::Uint(_) | View::Double(_), View::Inexact(text)) => Err(inexact(text)),
        (x, y) => Ok(numeric(&x, &y) == Some(Some(Ordering::Equal))),
    }
}

fn contains(item: &Value, container: &Value, meter: &mut Meter) -> Result<bool, Fault> {
    match (container.view(), item.view()) {
        (View::List, _) => {
            let mut fault = None;
            for other in container.items(meter)? {
                match equal(item, &other, meter) {
                    Ok(true) => return Ok(true),
                    Ok(false) => {}
                    Err(error) if error.fatal => return Err(error),
                    Err(error) => fault = Some(error),
                }
            }
            fault.map_or(Ok(false), Err)
        }
        (View::Map, View::Text(key)) => Ok(container.field(&key, meter)?.is_some()),
        (View::Map, _) => Ok(false),
        _ => Err(Fault::new(format!("`in` looks into a list or a map, not into {}", container.kind()))),
    }
}
