//! Evaluates a checked expression: bounded in steps and size, without panic, the same for the same values.

use std::sync::Arc;

use ditto_contracts::Json;
use ditto_graph::Scope;

use super::{
    lower::{Expr, Macro, MacroKind, Root},
    operators,
    value::{Fault, Meter, Value, View},
};

/// The value of an expression.
pub(crate) fn evaluate(expr: &Expr, scope: &Scope<'_>, meter: &mut Meter) -> Result<Value, Fault> {
    Evaluation { scope, meter, locals: Vec::new() }.value(expr)
}

struct Evaluation<'a, 'm> {
    scope: &'a Scope<'a>,
    meter: &'m mut Meter,
    locals: Vec<Value>,
}

impl Evaluation<'_, '_> {
    fn value(&mut self, expr: &Expr) -> Result<Value, Fault> {
        self.meter.step(1)?;
        match expr {
            Expr::Literal(value) => Ok(value.clone()),
            Expr::Root(root) => Ok(self.root(*root)),
            Expr::Task(task) => Ok(self.scope.tasks.get(task).cloned().map_or(Value::Null, Value::Json)),
            Expr::HasTask(task) => Ok(Value::Bool(self.scope.tasks.get(task).is_some_and(|output| !output.is_null()))),
            Expr::Local(n) => Ok(self.locals.get(*n).cloned().unwrap_or(Value::Null)),
            Expr::Field(operand, name) => {
                let operand = self.value(operand)?;
                operand.field(name, self.meter)?.ok_or_else(|| Fault::new(format!("there is no key `{name}`")))
            }
            Expr::Has(operand, name) => {
                let operand = self.value(operand)?;
                match operand.view() {
                    // A skipped task and an absent answer are null: they have no keys.
                    View::Null => Ok(Value::Bool(false)),
                    _ => Ok(Value::Bool(operand.field(name, self.meter)?.is_some())),
                }
            }
            Expr::Index(operand, index) => {
                let (operand, index) = (self.value(operand)?, self.value(index)?);
                self.index(&operand, &index)
            }
            Expr::Not(operand) => Ok(Value::Bool(!self.truth(operand, "!")?)),
            Expr::Negate(operand) => operators::negate(&self.value(operand)?),
            Expr::And(a, b) => self.logic(a, b, "&&", false),
            Expr::Or(a, b) => self.logic(a, b, "||", true),
            Expr::Conditional(test, yes, no) => {
                if self.truth(test, "?")? {
                    self.value(yes)
                } else {
                    self.value(no)
                }
            }
            Expr::Operator(operator, a, b) => {
                let (a, b) = (self.value(a)?, self.value(b)?);
                operators::apply(*operator, &a, &b, self.meter)
            }
            Expr::Call(function, arguments) => {
                let arguments = arguments.iter().map(|argument| self.value(argument)).collect::<Result<Vec<_>, _>>()?;
                function.call(&arguments, self.meter)
            }
            Expr::List(items) => {
                let items = items.iter().map(|item| self.value(item)).collect::<Result<Vec<_>, _>>()?;
                self.list(items)
            }
            Expr::Map(entries) => self.map(entries),
            Expr::Macro(repetition) => self.repeat(repetition),
        }
    }

    fn root(&self, root: Root) -> Value {
        let scope = self.scope;
        let iteration = i64::try_from(scope.run.iteration).map_or(Value::Uint(scope.run.iteration), Value::Int);
        match root {
            Root::Input => Value::Json(scope.input.clone()),
            Root::State => Value::Json(scope.state.clone()),
            Root::Graph => Value::Json(scope.graph.clone()),
            Root::Signal => Value::Json(scope.signal.clone()),
            Root::RunId => Value::text(scope.run.id.as_str()),
            Root::RunIteration => iteration,
            Root::Run => Value::Map(Arc::new(vec![
                (Arc::from("id"), Value::text(scope.run.id.as_str())),
                (Arc::from("iteration"), iteration),
            ])),
            Root::Tasks => {
                let entry = |(task, output): (&ditto_contracts::TaskId, &Json)| {
                    (Arc::from(task.as_str()), Value::Json(output.clone()))
                };
                Value::Map(Arc::new(scope.tasks.iter().map(entry).collect()))
            }
        }
    }

    fn index(&mut self, operand: &Value, index: &Value) -> Result<Value, Fault> {
        match (operand.view(), index.view()) {
            (View::List, View::Int(_) | View::Uint(_) | View::Double(_)) => {
                let n = match index.view() {
                    View::Int(n) => usize::try_from(n).ok(),
                    View::Uint(n) => usize::try_from(n).ok(),
                    // A whole number is an index however it is written.
                    View::Double(n) if n.fract() == 0.0 && (0.0..9e15).contains(&n) => usize::try_from(n as u64).ok(),
                    _ => None,
                };
                let found = match n {
                    Some(n) => operand.element(n, self.meter)?,
                    None => None,
                };
                match found {
                    Some(value) => Ok(value),
                    None => {
                        let (size, index) = (operand.size(self.meter)?, index.to_json(self.meter)?);
                        Err(Fault::new(format!("index {index} is out of range: the list has {size} elements")))
                    }
                }
            }
            (View::Map, View::Text(key)) => operand
                .field(&key, self.meter)?
                .ok_or_else(|| Fault::new(format!("there is no key `{}`", crate::document::shorten(&key)))),
            (View::List, _) => Err(Fault::new(format!("a list is indexed by an integer, not by {}", index.kind()))),
            (View::Map, _) => Err(Fault::new(format!("a map is indexed by a text, not by {}", index.kind()))),
            _ => Err(Fault::new(format!("{} cannot be indexed", operand.kind()))),
        }
    }

    fn truth(&mut self, expr: &Expr, symbol: &str) -> Result<bool, Fault> {
        let value = self.value(expr)?;
        match value.view() {
            View::Bool(value) => Ok(value),
            _ => Err(Fault::new(format!("`{symbol}` needs a boolean, found {}", value.kind()))),
        }
    }

    /// `&&` and `||`: an operand that settles the result also settles it when the other one has no value.
    fn logic(&mut self, a: &Expr, b: &Expr, symbol: &str, settles: bool) -> Result<Value, Fault> {
        let first = self.truth(a, symbol);
        match first {
            Ok(value) if value == settles => return Ok(Value::Bool(settles)),
            Err(fault) if fault.fatal => return Err(fault),
            _ => {}
        }
        match self.truth(b, symbol) {
            Ok(value) if value == settles => Ok(Value::Bool(settles)),
            Err(fault) if fault.fatal => Err(fault),
            second => first.and(second).map(Value::Bool),
        }
    }

    fn list(&mut self, items: Vec<Value>) -> Result<Value, Fault> {
        self.meter.make(items.len() * size_of::<Value>())?;
        Ok(Value::List(Arc::new(items)))
    }

    fn map(&mut self, entries: &[(Expr, Expr)]) -> Result<Value, Fault> {
        let mut out: Vec<(Arc<str>, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.value(key)?;
            let View::Text(name) = key.view() else {
                return Err(Fault::new(format!("the keys of a map are texts, found {}", key.kind())));
            };
            if out.iter().any(|(known, _)| **known == *name) {
                return Err(Fault::new(format!("the key `{}` is here twice", crate::document::shorten(&name))));
            }
            let name: Arc<str> = Arc::from(&*name);
            self.meter.make(name.len() + size_of::<Value>())?;
            out.push((name, self.value(value)?));
        }
        Ok(Value::Map(Arc::new(out)))
    }

    fn repeat(&mut self, repetition: &Macro) -> Result<Value, Fault> {
        let range = self.value(&repetition.range)?;
        if !matches!(range.view(), View::List | View::Map) {
            return Err(Fault::new(format!("only a list or a map can be repeated over, found {}", range.kind())));
        }
        let items = range.items(self.meter)?;
        let mut out = Vec::new();
        let mut found = 0u64;
        let mut fault = None;
        for item in items {
            self.locals.push(item.clone());
            let result = self.round(repetition, item);
            self.locals.pop();
            match (repetition.kind, result) {
                (_, Err(error)) if error.fatal => return Err(error),
                (MacroKind::All | MacroKind::Exists, Err(error)) => {
                    fault.get_or_insert(error);
                }
                (_, Err(error)) => return Err(error),
                (MacroKind::All, Ok(Some(Value::Bool(false)))) => return Ok(Value::Bool(false)),
                (MacroKind::Exists, Ok(Some(Value::Bool(true)))) => return Ok(Value::Bool(true)),
                (MacroKind::ExistsOne, Ok(Some(Value::Bool(true)))) => found += 1,
                (MacroKind::Filter | MacroKind::Map, Ok(Some(value))) => out.push(value),
                (_, Ok(_)) => {}
            }
        }
        match (repetition.kind, fault) {
            (_, Some(fault)) => Err(fault),
            (MacroKind::All, None) => Ok(Value::Bool(true)),
            (MacroKind::Exists, None) => Ok(Value::Bool(false)),
            (MacroKind::ExistsOne, None) => Ok(Value::Bool(found == 1)),
            (MacroKind::Filter | MacroKind::Map, None) => self.list(out),
        }
    }

    /// One element: what goes into the result, or the boolean of a test.
    fn round(&mut self, repetition: &Macro, item: Value) -> Result<Option<Value>, Fault> {
        match repetition.kind {
            MacroKind::All => self.truth(&repetition.body, "all").map(|value| Some(Value::Bool(value))),
            MacroKind::Exists => self.truth(&repetition.body, "exists").map(|value| Some(Value::Bool(value))),
            MacroKind::ExistsOne => self.truth(&repetition.body, "exists_one").map(|value| Some(Value::Bool(value))),
            MacroKind::Filter => Ok(self.truth(&repetition.body, "filter")?.then_some(item)),
            MacroKind::Map => match &repetition.filter {
                Some(filter) if !self.truth(filter, "map")? => Ok(None),
                _ => self.value(&repetition.body).map(Some),
            },
        }
    }
}
