//! From CEL text to a checked tree that is evaluated without parsing again.
//!
//! The grammar and the syntax tree are those of the `cel` crate. Names, functions and limits are checked here, so that
//! what is registered can only fail for the values it meets.

use std::sync::Arc;

use cel::{
    Env, IdedExpr,
    common::ast::{CallExpr, EntryExpr, Expr as Ast, LiteralValue, SelectExpr, SourceInfo, operators as op},
};
use ditto_contracts::TaskId;

use super::{functions::Function, operators::Operator, value::Value};
use crate::diagnostic::nearest;

/// Longest text of one expression, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;
/// Most operators, brackets and dots in one expression: what its tree may be deep.
const MARKS_MAX: usize = 256;
/// Deepest nesting of an expression.
const DEPTH_MAX: usize = 48;
/// Deepest nesting of `all`, `exists`, `exists_one`, `filter` and `map`.
const MACRO_DEPTH_MAX: usize = 3;

/// A checked expression.
#[derive(Debug)]
pub(crate) enum Expr {
    Literal(Value),
    Root(Root),
    /// The output of a task.
    Task(TaskId),
    /// A variable of an enclosing macro, counted from the outermost.
    Local(usize),
    Field(Box<Expr>, Arc<str>),
    Has(Box<Expr>, Arc<str>),
    /// Whether a task has an output.
    HasTask(TaskId),
    Index(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Conditional(Box<Expr>, Box<Expr>, Box<Expr>),
    Operator(Operator, Box<Expr>, Box<Expr>),
    Call(Function, Vec<Expr>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Macro(Box<Macro>),
}

/// A repetition over the elements of a list or the keys of a map.
#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) kind: MacroKind,
    pub(crate) range: Expr,
    /// Elements for which this is false are left out.
    pub(crate) filter: Option<Expr>,
    pub(crate) body: Expr,
}

/// What a repetition computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MacroKind {
    All,
    Exists,
    ExistsOne,
    Filter,
    Map,
}

/// A name that an expression may begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    Input,
    State,
    Graph,
    Tasks,
    Run,
    RunId,
    RunIteration,
    Signal,
}

impl Root {
    /// The names a place may offer, in the order they are listed in messages.
    pub(crate) const NAMED: [(&'static str, Self); 6] = [
        ("input", Self::Input),
        ("state", Self::State),
        ("graph", Self::Graph),
        ("tasks", Self::Tasks),
        ("run", Self::Run),
        ("signal", Self::Signal),
    ];
}

/// The names an expression at one place may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Names<'a> {
    /// Roots in scope.
    pub(crate) roots: &'a [Root],
    /// Tasks whose outputs are in scope.
    pub(crate) tasks: &'a [TaskId],
    /// Every task of the graph: those not in scope could be, with `needs`.
    pub(crate) declared: &'a [TaskId],
}

/// Something wrong in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Characters from the start of the expression.
    pub(crate) offset: usize,
    pub(crate) message: String,
    pub(crate) expected: String,
}

/// Compiles an expression.
///
/// # Errors
/// Every problem that can be seen without values.
pub(crate) fn compile(source: &str, names: &Names<'_>) -> Result<Expr, Vec<Problem>> {
    let refuse = |message: String, expected: String| Err(vec![Problem { offset: 0, message, expected }]);
    if source.len() > TEXT_BYTES_MAX {
        let message = format!("an expression of {} bytes", source.len());
        return refuse(message, format!("at most {TEXT_BYTES_MAX} bytes"));
    }
    if source.trim().is_empty() {
        return refuse("an empty expression".into(), "an expression between `${` and `}`".into());
    }
    let marks = marks(source);
    if marks > MARKS_MAX {
        let message = format!("an expression with {marks} operators, brackets and dots");
        return refuse(message, format!("at most {MARKS_MAX}"));
    }
    let parser = Env::default().parser().max_recursion_depth(24).error_recovery_limit(8);
    let (tree, places) = parser.parse_with_source_info(source).map_err(|errors| {
        let mut problems: Vec<Problem> = errors
            .errors
            .iter()
            .map(|error| Problem {
                offset: offset(source, error.pos),
                message: format!("not a valid expression: {}", crate::document::shorten_to(&error.msg, 200)),
                expected: "a CEL expression".into(),
            })
            .collect();
        problems.dedup_by_key(|problem| problem.offset);
        problems
    })?;
    let mut lowering = Lowering { names, places, problems: Vec::new(), locals: Vec::new() };
    let expr = lowering.expr(&tree, 0);
    match expr {
        Some(expr) if lowering.problems.is_empty() => Ok(expr),
        _ => Err(lowering.problems),
    }
}

/// Line and column of the parser (from 1 and 0) as an offset in characters.
fn offset(source: &str, (line, column): (isize, isize)) -> usize {
    let line = usize::try_from(line - 1).unwrap_or(0);
    let before: usize = source.split('\n').take(line).map(|text| text.chars().count() + 1).sum();
    (before + usize::try_from(column).unwrap_or(0)).min(source.chars().count())
}

/// Counts what can make a tree deep, outside of strings.
fn marks(source: &str) -> usize {
    let mut count = 0;
    let mut quote = None;
    let mut escaped = false;
    for c in source.chars() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '+' | '-' | '*' | '/' | '%' | '<' | '>' | '=' | '!' | '?' | '.' | '[' | '(' | '{' | '&' | '|') => {
                count += 1;
            }
            (None, _) => {}
        }
    }
    count
}

struct Lowering<'a> {
    names: &'a Names<'a>,
    places: SourceInfo,
    problems: Vec<Problem>,
    /// Variables of the enclosing macros.
    locals: Vec<String>,
}

impl Lowering<'_> {
    fn report<T>(&mut self, at: &IdedExpr, message: impl Into<String>, expected: impl Into<String>) -> Option<T> {
        let offset = self.places.offset_for(at.id).map_or(0, |(start, _)| start as usize);
        self.problems.push(Problem { offset, message: message.into(), expected: expected.into() });
        None
    }

    fn expr(&mut self, at: &IdedExpr, depth: usize) -> Option<Expr> {
        if depth > DEPTH_MAX {
            return self.report(at, "an expression nested too deeply", format!("at most {DEPTH_MAX} levels"));
        }
        match &at.expr {
            Ast::Literal(literal) => self.literal(at, literal),
            Ast::Ident(name) => self.name(at, name),
            Ast::Select(select) => self.select(at, select, depth),
            Ast::Call(call) => self.call(at, call, depth),
            Ast::List(list) => {
                let items: Vec<_> = list.elements.iter().map(|item| self.expr(item, depth + 1)).collect();
                items.into_iter().collect::<Option<_>>().map(Expr::List)
            }
            Ast::Map(map) => {
                let mut entries = Vec::new();
                let mut whole = true;
                for entry in &map.entries {
                    let EntryExpr::MapEntry(entry) = &entry.expr else {
                        return self.report(at, "a message", "a map such as `{'key': value}`");
                    };
                    match (self.expr(&entry.key, depth + 1), self.expr(&entry.value, depth + 1)) {
                        (Some(key), Some(value)) => entries.push((key, value)),
                        _ => whole = false,
                    }
                }
                whole.then_some(Expr::Map(entries))
            }
            Ast::Struct(_) => self.report(at, "a message", "a map such as `{'key': value}`"),
            Ast::Comprehension(_) | Ast::Unspecified => self.report(at, "not a valid expression", "a CEL expression"),
        }
    }

    fn literal(&mut self, at: &IdedExpr, literal: &LiteralValue) -> Option<Expr> {
        Some(Expr::Literal(match literal {
            LiteralValue::Null => Value::Null,
            LiteralValue::Boolean(value) => Value::Bool(*value.inner()),
            LiteralValue::Int(value) => Value::Int(*value.inner()),
            LiteralValue::UInt(value) => Value::Uint(*value.inner()),
            LiteralValue::Double(value) => Value::Double(*value.inner()),
            LiteralValue::String(value) => Value::text(value.inner()),
            LiteralValue::Bytes(_) => return self.report(at, "a bytes literal", "a text: JSON has no bytes"),
        }))
    }

    fn name(&mut self, at: &IdedExpr, name: &str) -> Option<Expr> {
        if let Some(n) = self.locals.iter().rposition(|local| local == name) {
            return Some(Expr::Local(n));
        }
        let in_scope = || Root::NAMED.iter().filter(|(_, root)| self.names.roots.contains(root)).map(|(name, _)| *name);
        let expected = format!("one of {}", in_scope().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "));
        match Root::NAMED.iter().find(|(known, _)| *known == name) {
            Some((_, root)) if self.names.roots.contains(root) => Some(Expr::Root(*root)),
            Some(_) => self.report(at, format!("`{name}` has no value here"), expected),
            None => {
                let hint = nearest(name, in_scope()).map(|near| format!("; did you mean `{near}`?"));
                let message = format!("unknown name `{name}`{}", hint.unwrap_or_default());
                self.report(at, message, expected)
            }
        }
    }

    /// Whether an expression is the root `tasks` or `run`, not hidden by a variable of a macro.
    fn is_root(&self, expr: &IdedExpr, name: &str) -> bool {
        matches!(&expr.expr, Ast::Ident(found) if found == name) && !self.locals.iter().any(|local| local == name)
    }

    fn task(&mut self, at: &IdedExpr, name: &str) -> Option<TaskId> {
        if !self.names.roots.contains(&Root::Tasks) {
            return self.name(at, "tasks").and(None);
        }
        if let Some(task) = self.names.tasks.iter().find(|task| task.as_str() == name) {
            return Some(task.clone());
        }
        if self.names.declared.iter().any(|task| task.as_str() == name) {
            let message = format!("task `{name}` is not among the `needs` of this task");
            return self.report(at, message, format!("`needs: [{name}]`"));
        }
        let known = self.names.declared.iter().map(TaskId::as_str);
        let hint = nearest(name, known).map(|near| format!("; did you mean `{near}`?"));
        let message = format!("unknown task `{}`{}", crate::document::shorten(name), hint.unwrap_or_default());
        self.report(at, message, "a task of this graph")
    }

    fn select(&mut self, at: &IdedExpr, select: &SelectExpr, depth: usize) -> Option<Expr> {
        if self.is_root(&select.operand, "tasks") {
            return self.task(&select.operand, &select.field).map(Expr::Task);
        }
        if self.is_root(&select.operand, "run") && self.names.roots.contains(&Root::Run) {
            return match select.field.as_str() {
                "id" => Some(Expr::Root(Root::RunId)),
                "iteration" => Some(Expr::Root(Root::RunIteration)),
                other => self.report(at, format!("`run` has no key `{other}`"), "`run.id` or `run.iteration`"),
            };
        }
        let operand = self.expr(&select.operand, depth + 1)?;
        Some(Expr::Field(Box::new(operand), Arc::from(select.field.as_str())))
    }

    fn call(&mut self, at: &IdedExpr, call: &CallExpr, depth: usize) -> Option<Expr> {
        let name = call.func_name.as_str();
        if let Some(target) = &call.target {
            if let Some(kind) = macro_kind(name) {
                return self.repetition(at, kind, name, target, &call.args, depth);
            }
        } else if name == op::HAS {
            return self.has(at, &call.args, depth);
        } else if name == op::INDEX
            && let [target, index] = call.args.as_slice()
            && self.is_root(target, "tasks")
            && let Ast::Literal(LiteralValue::String(task)) = &index.expr
        {
            return self.task(index, task.inner()).map(Expr::Task);
        }
        let arguments: Vec<_> =
            call.target.as_deref().into_iter().chain(&call.args).map(|arg| self.expr(arg, depth + 1)).collect();
        let mut arguments = arguments.into_iter().collect::<Option<Vec<_>>>()?;
        if call.target.is_none()
            && let Some(make) = operator(name)
        {
            return make(&mut arguments).or_else(|| self.report(at, "an incomplete expression", "a CEL expression"));
        }
        match Function::find(name) {
            Some((function, count)) if count == arguments.len() => Some(Expr::Call(function, arguments)),
            Some((_, count)) => {
                let expected = format!("{count}, counting the value it is called on");
                self.report(at, format!("`{name}` with {} arguments", arguments.len()), expected)
            }
            None => {
                let macros = ["has", "all", "exists", "exists_one", "filter", "map"];
                let hint = nearest(name, Function::names().chain(macros)).map(|n| format!("; did you mean `{n}`?"));
                let known: Vec<_> = Function::names().chain(macros).map(|name| format!("`{name}`")).collect();
                let message = format!("unknown function `{name}`{}", hint.unwrap_or_default());
                self.report(at, message, format!("one of {}", known.join(", ")))
            }
        }
    }

    fn has(&mut self, at: &IdedExpr, arguments: &[IdedExpr], depth: usize) -> Option<Expr> {
        let [IdedExpr { expr: Ast::Select(select), .. }] = arguments else {
            return self.report(at, "`has` of something that is no key", "`has(value.key)`");
        };
        if self.is_root(&select.operand, "tasks") {
            return self.task(&select.operand, &select.field).map(Expr::HasTask);
        }
        let operand = self.expr(&select.operand, depth + 1)?;
        Some(Expr::Has(Box::new(operand), Arc::from(select.field.as_str())))
    }

    fn repetition(
        &mut self,
        at: &IdedExpr,
        kind: MacroKind,
        name: &str,
        target: &IdedExpr,
        arguments: &[IdedExpr],
        depth: usize,
    ) -> Option<Expr> {
        let (variable, filter, body) = match arguments {
            [variable, body] => (variable, None, body),
            [variable, filter, body] if kind == MacroKind::Map => (variable, Some(filter), body),
            _ => {
                return self.report(
                    at,
                    format!("`{name}` with {} arguments", arguments.len()),
                    format!("`list.{name}(x, …)`"),
                );
            }
        };
        let Ast::Ident(variable_name) = &variable.expr else {
            return self.report(variable, "not a name", format!("a name, as in `list.{name}(x, …)`"));
        };
        if self.locals.len() >= MACRO_DEPTH_MAX {
            let message = format!("`{name}` inside {MACRO_DEPTH_MAX} others");
            return self.report(at, message, format!("at most {MACRO_DEPTH_MAX} nested in each other"));
        }
        let range = self.expr(target, depth + 1);
        self.locals.push(variable_name.clone());
        let filter = filter.map(|filter| self.expr(filter, depth + 1));
        let body = self.expr(body, depth + 1);
        self.locals.pop();
        let filter = match filter {
            Some(None) => return None,
            Some(Some(filter)) => Some(filter),
            None => None,
        };
        Some(Expr::Macro(Box::new(Macro { kind, range: range?, filter, body: body? })))
    }
}

fn macro_kind(name: &str) -> Option<MacroKind> {
    Some(match name {
        op::ALL => MacroKind::All,
        op::EXISTS => MacroKind::Exists,
        op::EXISTS_ONE | "existsOne" => MacroKind::ExistsOne,
        op::FILTER => MacroKind::Filter,
        op::MAP => MacroKind::Map,
        _ => return None,
    })
}

type Make = fn(&mut Vec<Expr>) -> Option<Expr>;

/// How the call that an operator is parsed to becomes a node.
fn operator(name: &str) -> Option<Make> {
    fn two(arguments: &mut Vec<Expr>) -> Option<(Box<Expr>, Box<Expr>)> {
        let second = arguments.pop()?;
        Some((Box::new(arguments.pop()?), Box::new(second)))
    }
    macro_rules! plain {
        ($operator:ident) => {
            |arguments| two(arguments).map(|(a, b)| Expr::Operator(Operator::$operator, a, b))
        };
    }
    Some(match name {
        op::CONDITIONAL => |arguments| {
            let (yes, no) = two(arguments)?;
            Some(Expr::Conditional(Box::new(arguments.pop()?), yes, no))
        },
        op::LOGICAL_AND => |arguments| two(arguments).map(|(a, b)| Expr::And(a, b)),
        op::LOGICAL_OR => |arguments| two(arguments).map(|(a, b)| Expr::Or(a, b)),
        op::LOGICAL_NOT => |arguments| Some(Expr::Not(Box::new(arguments.pop()?))),
        op::NEGATE => |arguments| Some(Expr::Negate(Box::new(arguments.pop()?))),
        op::INDEX => |arguments| two(arguments).map(|(a, b)| Expr::Index(a, b)),
        op::ADD => plain!(Add),
        op::SUBSTRACT => plain!(Subtract),
        op::MULTIPLY => plain!(Multiply),
        op::DIVIDE => plain!(Divide),
        op::MODULO => plain!(Remainder),
        op::EQUALS => plain!(Equal),
        op::NOT_EQUALS => plain!(NotEqual),
        op::LESS => plain!(Less),
        op::LESS_EQUALS => plain!(LessEqual),
        op::GREATER => plain!(Greater),
        op::GREATER_EQUALS => plain!(GreaterEqual),
        op::IN => plain!(In),
        _ => return None,
    })
}
