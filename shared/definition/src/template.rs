//! JSON with expressions in it, compiled to pieces of text that are already written and expressions between them.

use std::sync::Arc;

use ditto_contracts::{Json, limits::VALUE_BYTES_MAX};
use ditto_graph::{DECISION_STEPS_MAX, Formula, FormulaError, Scope, constant};

use crate::{
    diagnostic::Diagnostic,
    document::{Node, Value, join, shorten},
    expression::{self, Expr, Fault, Meter, Names, Piece},
};

/// What a template must yield.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Yields {
    /// Any JSON value.
    Anything,
    /// `true` or `false`.
    Boolean,
    /// A text.
    Text,
    /// A text; `null` counts as the empty one.
    OptionalText,
}

/// A compiled JSON value.
#[derive(Debug)]
pub(crate) struct Template {
    segments: Vec<Segment>,
    yields: Yields,
    path: String,
}

#[derive(Debug)]
enum Segment {
    /// JSON text, written as it is.
    Fixed(String),
    /// A value.
    Value(Located),
    /// A part of a JSON string.
    Text(Located),
}

#[derive(Debug)]
struct Located {
    expr: Expr,
    path: String,
    source: String,
}

impl Located {
    fn fail(&self, fault: Fault) -> FormulaError {
        FormulaError { path: self.path.clone(), message: format!("`{}`: {}", self.source, fault.message) }
    }
}

/// Compiles a value of a definition; `None` when a problem was reported.
pub(crate) fn compile(
    node: &Node,
    path: &str,
    yields: Yields,
    names: &Names<'_>,
    problems: &mut Vec<Diagnostic>,
) -> Option<Template> {
    let before = problems.len();
    let mut compiler = Compiler { names, problems, segments: Vec::new() };
    compiler.node(node, path);
    let segments = compiler.segments;
    let template = Template { segments, yields, path: path.to_owned() };
    if problems.len() == before
        && let Some(fixed) = template.constant()
        && let Err(message) = template.check(&fixed)
    {
        let expected = match yields {
            Yields::Boolean => "`${ … }` that yields true or false",
            _ => "a text, or `${ … }` that yields one",
        };
        problems.push(Diagnostic::new(node.at, path, message, expected));
    }
    (problems.len() == before).then_some(template)
}

struct Compiler<'a> {
    names: &'a Names<'a>,
    problems: &'a mut Vec<Diagnostic>,
    segments: Vec<Segment>,
}

impl Compiler<'_> {
    fn fixed(&mut self, text: &str) {
        match self.segments.last_mut() {
            Some(Segment::Fixed(last)) => last.push_str(text),
            _ => self.segments.push(Segment::Fixed(text.to_owned())),
        }
    }

    fn node(&mut self, node: &Node, path: &str) {
        match &node.value {
            Value::Text(text) => self.text(node, text, path),
            Value::List(items) => {
                self.fixed("[");
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        self.fixed(",");
                    }
                    self.node(item, &format!("{path}[{n}]"));
                }
                self.fixed("]");
            }
            Value::Map(entries) => {
                self.fixed("{");
                for (n, entry) in entries.iter().enumerate() {
                    if n > 0 {
                        self.fixed(",");
                    }
                    let path = join(path, &entry.key);
                    if entry.key.contains("${") {
                        let message = "an expression in a key";
                        let expected = "a plain key; `${ {'key': value} }` makes keys from values";
                        self.problems.push(Diagnostic::new(entry.at, path.clone(), message, expected));
                    }
                    self.fixed(Json::string(&entry.key).as_str());
                    self.fixed(":");
                    self.node(&entry.node, &path);
                }
                self.fixed("}");
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.fixed(node.to_json().as_str()),
        }
    }

    fn text(&mut self, node: &Node, text: &str, path: &str) {
        let pieces = match expression::split(text) {
            Ok(pieces) => pieces,
            Err(offset) => {
                let message = "`${` without its `}`";
                let expected = "`${ expression }`; `$${` writes a literal `${`";
                self.problems.push(Diagnostic::new(node.place_in_text(offset), path, message, expected));
                return;
            }
        };
        if let [Piece::Expression { source, offset }] = pieces.as_slice() {
            if let Some(located) = self.expression(node, source, *offset, path) {
                self.segments.push(Segment::Value(located));
            }
            return;
        }
        self.fixed("\"");
        for piece in &pieces {
            match piece {
                Piece::Text(text) => self.fixed(inner(&Json::string(text))),
                Piece::Expression { source, offset } => {
                    if let Some(located) = self.expression(node, source, *offset, path) {
                        self.segments.push(Segment::Text(located));
                    }
                }
            }
        }
        self.fixed("\"");
    }

    fn expression(&mut self, node: &Node, source: &str, offset: usize, path: &str) -> Option<Located> {
        match expression::compile(source, self.names) {
            Ok(expr) => Some(Located { expr, path: path.to_owned(), source: shorten(source.trim()) }),
            Err(problems) => {
                for problem in problems {
                    let at = node.place_in_text(offset + problem.offset);
                    self.problems.push(Diagnostic::new(at, path, problem.message, problem.expected));
                }
                None
            }
        }
    }
}

/// A JSON string without its quotes.
fn inner(string: &Json) -> &str {
    let text = string.as_str();
    text.get(1..text.len().saturating_sub(1)).unwrap_or_default()
}

impl Template {
    /// The value, when no expression is in it.
    pub(crate) fn constant(&self) -> Option<Json> {
        match self.segments.as_slice() {
            [Segment::Fixed(text)] => Some(Json::from_checked(text.clone().into())),
            _ => None,
        }
    }

    /// As the graph crate takes it. A constant is computed once.
    pub(crate) fn into_formula(self) -> Arc<dyn Formula> {
        match self.constant() {
            Some(value) if value.is_null() && self.yields == Yields::OptionalText => constant(Json::string("")),
            Some(value) => constant(value),
            None => Arc::new(self),
        }
    }

    fn check(&self, value: &Json) -> Result<(), String> {
        use ditto_contracts::JsonKind as Kind;
        let fits = match (self.yields, value.kind()) {
            (Yields::Anything, _) => true,
            (Yields::Boolean, kind) => kind == Kind::Bool,
            (Yields::Text, kind) => kind == Kind::String,
            (Yields::OptionalText, kind) => matches!(kind, Kind::String | Kind::Null),
        };
        if fits {
            return Ok(());
        }
        let expected = if self.yields == Yields::Boolean { "true or false" } else { "a text" };
        Err(format!("{} where {expected} is expected", shorten(value.as_str())))
    }

    fn render(&self, scope: &Scope<'_>) -> Result<Json, FormulaError> {
        let mut meter = Meter::default();
        let rendered = self.render_within(scope, &mut meter);
        scope.run.spent.spend(meter.steps());
        rendered
    }

    fn render_within(&self, scope: &Scope<'_>, meter: &mut Meter) -> Result<Json, FormulaError> {
        if let [Segment::Value(located)] = self.segments.as_slice() {
            let value = expression::evaluate(&located.expr, scope, meter);
            return value.and_then(|value| value.to_json(meter)).map_err(|fault| located.fail(fault));
        }
        let mut out = String::new();
        for segment in &self.segments {
            match segment {
                Segment::Fixed(text) => out.push_str(text),
                Segment::Value(located) => expression::evaluate(&located.expr, scope, meter)
                    .and_then(|value| value.write(&mut out, meter))
                    .map_err(|fault| located.fail(fault))?,
                Segment::Text(located) => {
                    let value = expression::evaluate(&located.expr, scope, meter);
                    let mut text = String::new();
                    value.and_then(|value| value.interpolate(&mut text, meter)).map_err(|fault| located.fail(fault))?;
                    out.push_str(inner(&Json::string(&text)));
                }
            }
        }
        Ok(Json::from_checked(out.into()))
    }
}

impl Formula for Template {
    fn evaluate(&self, scope: &Scope<'_>) -> Result<Json, FormulaError> {
        if !scope.run.spent.is_left() {
            let message = format!("the expressions of one decision take more than {DECISION_STEPS_MAX} steps together");
            return Err(FormulaError { path: self.path.clone(), message });
        }
        let value = self.render(scope)?;
        if value.len() > VALUE_BYTES_MAX {
            let message = format!("a value of {} bytes; at most {VALUE_BYTES_MAX}", value.len());
            return Err(FormulaError { path: self.path.clone(), message });
        }
        self.check(&value).map_err(|message| FormulaError { path: self.path.clone(), message })?;
        if self.yields == Yields::OptionalText && value.is_null() {
            return Ok(Json::string(""));
        }
        Ok(value)
    }
}

/// Whether a value is known to be this text, without an expression.
pub(crate) fn literal_text(node: &Node) -> Option<&str> {
    node.text().filter(|text| !text.contains("${"))
}

#[cfg(test)]
mod tests {
    use ditto_contracts::RunId;
    use ditto_graph::RunScope;
    use indexmap::IndexMap;

    use super::*;
    use crate::expression::Root;

    /// The value of a template written as a YAML value, for an input.
    fn render(text: &str, input: &str, yields: Yields) -> Result<String, String> {
        let (node, problems) = crate::document::read(&format!("v: {text}\n"), "x.yaml");
        assert_eq!(problems, []);
        let node = node.unwrap().get("v").unwrap().clone();
        let names = Names { roots: &[Root::Input], tasks: &[], declared: &[] };
        let mut problems = Vec::new();
        let compiled = crate::stack::with_room(|| compile(&node, "v", yields, &names, &mut problems)).unwrap();
        let Some(template) = compiled else { return Err(problems[0].message.clone()) };
        let (input, null, tasks) = (Json::parse(input.to_owned()).unwrap(), Json::null(), IndexMap::new());
        let run = RunScope::new(RunId::generate(0), 0);
        let scope = Scope { input: &input, state: &null, graph: &null, tasks: &tasks, signal: &null, run: &run };
        let value = template.into_formula().evaluate(&scope);
        value.map(|value| value.as_str().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn templates_write_json() {
        let input = r#"{"big":123456789012345678901234567890,"e":1e2,"t":"q\"\u00e4\n","l":[1,{"a":null}],"n":null}"#;
        #[rustfmt::skip]
        let table = [
            // constants
            ("{ b: [1, 2.50, null, true], a: no }", r#"{"b":[1,2.50,null,true],"a":"no"}"#),
            ("12345678901234567890123", "12345678901234567890123"),
            ("\"a\\n\\\"b\"", r#""a\n\"b""#),
            ("'$${ input }'", r#""${ input }""#),
            ("'costs $5 {x}'", r#""costs $5 {x}""#),
            // a whole expression keeps its type and bytes
            ("${ input.big }", "123456789012345678901234567890"),
            ("${ input.t }", r#""q\"\u00e4\n""#),
            ("{ x: '${ input.e }', y: ['${ input.l }'] }", r#"{"x":1e2,"y":[[1,{"a":null}]]}"#),
            ("${input.n}", "null"),
            // a part of a text is written as text
            ("'a ${ input.t } b'", r#""a q\"ä\n b""#),
            ("'${ input.e }${ input.big }'", r#""1e2123456789012345678901234567890""#),
            ("' ${ input.l }'", r#"" [1,{\"a\":null}]""#),
            ("'${ input.n }!'", r#""null!""#),
            ("'${ true ? \"}\" : \"{\" } $${x}'", r#""} ${x}""#),
        ];
        for (text, json) in table {
            assert_eq!(render(text, input, Yields::Anything).as_deref(), Ok(json), "{text}");
        }
    }

    #[test]
    fn a_failure_names_the_place_and_the_expression() {
        let found = render("{ a: ['x', '${ input.b }'] }", "{}", Yields::Anything);
        assert_eq!(found, Err("v.a[1]: `input.b`: there is no key `b`".into()));
        let found = render("${ input.b }", r#"{"b":"yes"}"#, Yields::Boolean);
        assert_eq!(found, Err("v: \"yes\" where true or false is expected".into()));
        assert_eq!(render("${ input.b }", r#"{"b":null}"#, Yields::OptionalText).as_deref(), Ok("\"\""));
        assert_eq!(render("null", "{}", Yields::OptionalText).as_deref(), Ok("\"\""));
        assert_eq!(render("${ input.b }", r#"{"b":[]}"#, Yields::Text), Err("v: [] where a text is expected".into()));
    }

    #[test]
    fn a_template_cannot_multiply_a_value_without_bound() {
        let input = format!("{{\"t\":\"{}\"}}", "x".repeat(3 << 20));
        let found = render("['${ input.t }', 'a ${ input.t }', '${ input.t }']", &input, Yields::Anything);
        assert!(found.is_err_and(|message| message.contains("bytes; at most 8388608")));
    }
}
