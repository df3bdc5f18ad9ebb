//! Reads YAML into located values, refusing what a configuration has no use for.
//!
//! saphyr (with its parser) is the one YAML library of the workspace, because it gives the place of every event. Its
//! event parser is used directly: the loader above it resolves aliases and stops at the first duplicate key, and both
//! must be reported with their place, along with everything else. Scalars are resolved by saphyr itself.

use std::collections::HashSet;

use saphyr::Scalar;
use saphyr_parser::{Event, Marker, Parser, ScanError, Span, StrInput};

use super::problem::{MAX_PROBLEMS, Place, Problem};

/// How deep mappings and lists may be nested.
const MAX_DEPTH: usize = 32;

/// A value and where it is written, both numbers from 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) line: usize,
    pub(super) column: usize,
}

/// What is written there. There is no null: it is reported when the file is read.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping. Keys are unique: a repeated one is reported and dropped.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn place(&self) -> Place {
        Place::File { line: self.line, column: self.column }
    }

    /// The entry of a mapping.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node),
            _ => None,
        }
    }
}

/// Parses one document. `Err`: nothing can be made of the text. Otherwise the tree without the parts that were
/// reported, which then count as absent.
pub(super) fn parse(text: &str) -> Result<(Node, Vec<Problem>), Vec<Problem>> {
    let mut reader = Reader { parser: Parser::new_from_str(text), problems: Vec::new() };
    match reader.document() {
        Ok(root) => Ok((root, reader.problems)),
        Err(fatal) => {
            reader.problems.push(fatal);
            Err(reader.problems)
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    problems: Vec<Problem>,
}

impl<'t> Reader<'t> {
    fn document(&mut self) -> Result<Node, Problem> {
        let (mut event, mut span) = self.next()?;
        while matches!(event, Event::StreamStart | Event::DocumentStart(_) | Event::Nothing) {
            (event, span) = self.next()?;
        }
        if matches!(event, Event::StreamEnd) {
            return Err(whole("expected at least one section, found an empty file"));
        }
        let at = place(span.start);
        let root = match self.node(event, span, "", 0)? {
            Some(root @ Node { value: Value::Map(_), .. }) => root,
            Some(other) => {
                return Err(Problem {
                    path: String::new(),
                    place: at,
                    message: format!("expected a mapping of sections, found {}", describe(&other.value)),
                });
            }
            // What stands there was reported when it was read; that is the one problem then.
            None => return Err(self.problems.pop().unwrap_or_else(|| whole("expected at least one section"))),
        };
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::DocumentStart(_), span) => {
                    return Err(Problem {
                        path: String::new(),
                        place: place(span.start),
                        message: "expected one document, found a second one".into(),
                    });
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Problem> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Reads the node that begins with `event`; `None` when it was reported and counts as absent.
    fn node(&mut self, event: Event<'t>, span: Span, path: &str, depth: usize) -> Result<Option<Node>, Problem> {
        let Marked { line, column } = Marked::from(span.start);
        if depth > MAX_DEPTH {
            return Err(Problem {
                path: path.to_owned(),
                place: place(span.start),
                message: format!("expected at most {MAX_DEPTH} levels"),
            });
        }
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag) => (*anchor, tag.is_some()),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => (*anchor, tag.is_some()),
            _ => (0, false),
        };
        if anchor != 0 {
            self.report(path, span.start, "expected a plain value, found an anchor (`&name`)");
        }
        if tag {
            self.report(path, span.start, "expected a plain value, found a tag (`!name`)");
        }
        let value = match event {
            Event::Alias(_) => {
                self.report(path, span.start, "expected a value, found an alias (`*name`)");
                return Ok(None);
            }
            Event::Scalar(text, style, _, tag) => {
                match Scalar::parse_from_cow_and_metadata(text, style, tag.as_ref()) {
                    Some(Scalar::Null) => {
                        self.report(
                            path,
                            span.start,
                            "expected a value, found nothing: leave the key out to use its default",
                        );
                        return Ok(None);
                    }
                    Some(Scalar::Boolean(value)) => Value::Bool(value),
                    Some(Scalar::Integer(value)) => Value::Int(value),
                    Some(Scalar::FloatingPoint(value)) => Value::Float(value.into_inner()),
                    Some(Scalar::String(value)) => Value::Text(value.into_owned()),
                    None => return Ok(None), // a tag that does not fit, reported above
                }
            }
            Event::SequenceStart(..) => Value::List(self.list(path, depth)?),
            Event::MappingStart(..) => Value::Map(self.map(path, depth)?),
            _ => {
                self.report(path, span.start, "expected a value");
                return Ok(None);
            }
        };
        Ok(Some(Node { value, line, column }))
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Vec<Node>, Problem> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd | Event::StreamEnd) {
                return Ok(items);
            }
            items.extend(self.node(event, span, &format!("{path}[{}]", items.len()), depth + 1)?);
        }
    }

    fn map(&mut self, path: &str, depth: usize) -> Result<Vec<Entry>, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut seen = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd | Event::StreamEnd) {
                return Ok(entries);
            }
            let key = match event {
                Event::Scalar(text, style, 0, None) => {
                    match Scalar::parse_from_cow_and_metadata(text.clone(), style, None) {
                        Some(Scalar::Null) | None => None,
                        Some(_) => Some(text.into_owned()),
                    }
                }
                other => {
                    self.node(other, span, path, depth + 1)?;
                    None
                }
            };
            let (event, value_span) = self.next()?;
            let Some(key) = key else {
                self.report(path, span.start, "expected a key that is plain text");
                self.node(event, value_span, path, depth + 1)?;
                continue;
            };
            let child = join(path, &key);
            let node = self.node(event, value_span, &child, depth + 1)?;
            if !seen.insert(key.clone()) {
                self.report(&child, span.start, "expected each key once, found it again");
                continue;
            }
            let Marked { line, column } = Marked::from(span.start);
            entries.extend(node.map(|node| Entry { key, line, column, node }));
        }
    }

    fn report(&mut self, path: &str, at: Marker, message: &str) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem { path: path.to_owned(), place: place(at), message: message.to_owned() });
        }
    }
}

/// Line and column, both from 1.
struct Marked {
    line: usize,
    column: usize,
}

impl From<Marker> for Marked {
    fn from(marker: Marker) -> Self {
        // The parser counts lines from 1 and columns from 0.
        Self { line: marker.line(), column: marker.col() + 1 }
    }
}

fn place(marker: Marker) -> Place {
    let Marked { line, column } = Marked::from(marker);
    Place::File { line, column }
}

fn whole(message: &str) -> Problem {
    Problem { path: String::new(), place: Place::Whole, message: message.to_owned() }
}

fn syntax(error: &ScanError) -> Problem {
    Problem { path: String::new(), place: place(*error.marker()), message: format!("not valid YAML: {}", error.info()) }
}

/// `parent.key`, or `key` at the top.
pub(super) fn join(parent: &str, key: &str) -> String {
    if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") }
}

/// What a value is, without showing a text: it might be a secret.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Bool(value) => format!("`{value}`"),
        Value::Int(value) => format!("the number {value}"),
        Value::Float(value) => format!("the number {value}"),
        Value::Text(_) => "a text".into(),
        Value::List(_) => "a list".into(),
        Value::Map(_) => "a mapping".into(),
    }
}
