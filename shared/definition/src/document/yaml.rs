//! Reads YAML 1.2 (core schema) into located values, refusing what a definition has no use for: anchors, aliases,
//! tags, repeated keys, several documents. Numbers keep every digit; `no`, `yes`, `on` and `off` are texts.

use std::collections::HashSet;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::{DEPTH_MAX, Entry, Node, Value, join};
use crate::diagnostic::{Diagnostic, Place};

pub(super) fn read(text: &str) -> (Option<Node>, Vec<Diagnostic>) {
    let chars = text.chars().collect();
    let mut reader = Reader { parser: Parser::new_from_str(text), chars, problems: Vec::new() };
    match reader.document() {
        Ok(root) => (root, reader.problems),
        Err(fatal) => {
            reader.problems.push(fatal);
            (None, reader.problems)
        }
    }
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    /// The text; the parser counts in characters.
    chars: Vec<char>,
    problems: Vec<Diagnostic>,
}

impl<'t> Reader<'t> {
    fn document(&mut self) -> Result<Option<Node>, Diagnostic> {
        let (mut event, mut span) = self.next()?;
        while matches!(event, Event::StreamStart | Event::DocumentStart(_) | Event::Nothing) {
            (event, span) = self.next()?;
        }
        if matches!(event, Event::StreamEnd) {
            let at = Place { line: 1, column: 1 };
            return Err(Diagnostic::new(at, "", "the definition is empty", "a mapping that begins with `ditto: 1`"));
        }
        let root = self.node(event, span, "", 0)?;
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(root),
                (Event::DocumentStart(_), span) => {
                    let message = "a second document begins here";
                    return Err(Diagnostic::new(place(span.start), "", message, "one document in a file"));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'t>, Span), Diagnostic> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Reads the node that begins with `event`; `None` when it was reported and counts as absent.
    fn node(&mut self, event: Event<'t>, span: Span, path: &str, depth: usize) -> Result<Option<Node>, Diagnostic> {
        let at = place(span.start);
        if depth > DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} levels of nesting");
            return Err(Diagnostic::new(at, path, message, format!("at most {DEPTH_MAX}")));
        }
        let (anchor, tag) = match &event {
            Event::Scalar(_, _, anchor, tag) => (*anchor, tag.is_some()),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => (*anchor, tag.is_some()),
            _ => (0, false),
        };
        if anchor != 0 {
            self.report(path, at, "an anchor (`&name`)", "the value itself, without an anchor");
        }
        if tag {
            self.report(path, at, "a tag (`!name`)", "the value itself, without a tag");
        }
        let mut inset = None;
        let value = match event {
            Event::Alias(_) => {
                self.report(path, at, "an alias (`*name`)", "the value itself, written out");
                return Ok(None);
            }
            Event::Scalar(text, style, ..) => {
                let quotes = match style {
                    ScalarStyle::Plain => Some(0),
                    ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Some(1),
                    _ => None,
                };
                inset = quotes.filter(|quotes| self.is_written(span.start.index() + quotes, &text));
                if style == ScalarStyle::Plain {
                    match plain(&text) {
                        Ok(value) => value,
                        Err((message, expected)) => {
                            self.report(path, at, message, expected);
                            return Ok(None);
                        }
                    }
                } else {
                    Value::Text(text.into_owned())
                }
            }
            Event::SequenceStart(..) => Value::List(self.list(path, depth)?),
            Event::MappingStart(..) => Value::Map(self.map(path, depth)?),
            _ => {
                self.report(path, at, "nothing that is a value", "a value");
                return Ok(None);
            }
        };
        Ok(Some(Node { value, at, inset }))
    }

    /// Whether a text stands at a place as it is, without escapes or folded lines.
    fn is_written(&self, at: usize, text: &str) -> bool {
        let mut written = self.chars.iter().skip(at);
        text.chars().all(|c| c != '\n' && written.next() == Some(&c))
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Vec<Node>, Diagnostic> {
        let mut items = Vec::new();
        let mut n = 0;
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd | Event::StreamEnd) {
                return Ok(items);
            }
            items.extend(self.node(event, span, &format!("{path}[{n}]"), depth + 1)?);
            n += 1;
        }
    }

    fn map(&mut self, path: &str, depth: usize) -> Result<Vec<Entry>, Diagnostic> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            let at = place(span.start);
            let key = match event {
                Event::MappingEnd | Event::StreamEnd => return Ok(entries),
                Event::Scalar(text, style, 0, None) if !(style == ScalarStyle::Plain && is_null(&text)) => {
                    Some(text.into_owned())
                }
                other => {
                    self.node(other, span, path, depth + 1)?;
                    None
                }
            };
            let (event, value_span) = self.next()?;
            let Some(key) = key else {
                self.report(path, at, "a key that is no text", "a key that is plain text");
                self.node(event, value_span, path, depth + 1)?;
                continue;
            };
            let child = join(path, &key);
            let node = self.node(event, value_span, &child, depth + 1)?;
            if !seen.insert(key.clone()) {
                self.report(&child, at, "this key is here a second time", "each key once");
                continue;
            }
            entries.extend(node.map(|node| Entry { key, at, node }));
        }
    }

    fn report(&mut self, path: &str, at: Place, message: &str, expected: &str) {
        self.problems.push(Diagnostic::new(at, path, message, expected));
    }
}

/// The parser counts lines from 1 and columns from 0.
fn place(marker: Marker) -> Place {
    Place { line: marker.line().max(1), column: marker.col() + 1 }
}

fn syntax(error: &ScanError) -> Diagnostic {
    let expected = if error.info().contains("tab") { "spaces, not tabs, to indent" } else { "valid YAML 1.2" };
    Diagnostic::new(place(*error.marker()), "", format!("not valid YAML: {}", error.info()), expected)
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// What a scalar without quotes means in the core schema.
fn plain(text: &str) -> Result<Value, (&'static str, &'static str)> {
    Ok(match text {
        _ if is_null(text) => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "-.inf" | "+.Inf" | "-.Inf" | "+.INF"
        | "-.INF" => return Err(("a number that JSON does not have", "a finite number, or a text in quotes")),
        _ if text.starts_with("0x") || text.starts_with("0o") => {
            let (prefix, digits) = text.split_at(2);
            let radix = if prefix == "0x" { 16 } else { 8 };
            if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
                return Ok(Value::Text(text.to_owned()));
            }
            match u128::from_str_radix(digits, radix) {
                Ok(number) => Value::Number(number.to_string()),
                Err(_) => return Err(("a number of more than 128 bits", "a decimal number")),
            }
        }
        _ => number(text).map_or_else(|| Value::Text(text.to_owned()), Value::Number),
    })
}

/// A decimal number of YAML as JSON text: no plus sign, no leading zeros, digits on both sides of the point.
fn number(text: &str) -> Option<String> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at..])),
        None => (rest, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (mantissa, None),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !fraction.is_none_or(digits) || (whole.is_empty() && fraction.is_none_or(str::is_empty)) {
        return None;
    }
    if let Some(exponent) = exponent {
        let power = exponent[1..].strip_prefix(['+', '-']).unwrap_or(&exponent[1..]);
        if power.is_empty() || !digits(power) {
            return None;
        }
    }
    let whole = whole.trim_start_matches('0');
    let mut out = format!("{sign}{}", if whole.is_empty() { "0" } else { whole });
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(if fraction.is_empty() { "0" } else { fraction });
    }
    out.push_str(exponent.unwrap_or_default());
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::read;

    #[test]
    fn scalars_are_read_as_the_core_schema_says() {
        #[rustfmt::skip]
        let table = [
            ("no", r#""no""#), ("yes", r#""yes""#), ("on", r#""on""#), ("null", "null"), ("~", "null"), ("", "null"),
            ("true", "true"), ("True", "true"), ("tRUE", r#""tRUE""#), ("'true'", r#""true""#),
            ("12345678901234567890123", "12345678901234567890123"), ("9007199254740993", "9007199254740993"),
            ("1.10", "1.10"), ("1e3", "1e3"), (".5", "0.5"), ("5.", "5.0"), ("+7", "7"), ("-0", "-0"), ("007", "7"),
            ("0x1F", "31"), ("0o17", "15"), ("0b1", r#""0b1""#), ("1_000", r#""1_000""#), ("1e", r#""1e""#),
            ("2001-01-01", r#""2001-01-01""#), ("12:30", r#""12:30""#), ("<<", r#""<<""#), (".", r#"".""#), ("-", "[null]"),
        ];
        for (text, json) in table {
            let (node, problems) = read(&format!("a: {text}\n").replace("a: -\n", "a:\n  -\n"), "x.yaml");
            assert!(problems.is_empty(), "{text}: {problems:?}");
            assert_eq!(node.unwrap().get("a").unwrap().to_json().as_str(), json, "{text}");
        }
    }

    #[test]
    fn what_a_definition_has_no_use_for_is_refused_at_its_place() {
        #[rustfmt::skip]
        let table = [
            ("a: &x 1\nb: 2\n",        1, 4, "an anchor"),
            ("a: 1\nb: *x\n",          2, 4, "not valid YAML"),
            ("a: &x 1\nb: *x\n",       2, 4, "an alias"),
            ("a: !!str 1\n",           1, 4, "a tag"),
            ("a: 1\nb: 2\na: 3\n",     3, 1, "second time"),
            ("a: 1\n---\nb: 1\n",      2, 1, "second document"),
            ("a: .inf\n",              1, 4, "JSON does not have"),
            ("a:\n\tb: 1\n",           2, 2, "not valid YAML"),
            ("? [1]\n: 2\n",           1, 3, "no text"),
            ("a: [1, 2\n",             2, 1, "not valid YAML"),
            ("",                       1, 1, "empty"),
            ("# only this\n",          1, 1, "empty"),
        ];
        for (text, line, column, fragment) in table {
            let (_, problems) = read(text, "x.yaml");
            let found = problems.iter().find(|p| p.message.contains(fragment));
            let found = found.unwrap_or_else(|| panic!("{text:?}: {problems:?}"));
            assert_eq!((found.line, found.column), (line, column), "{text:?}: {found}");
        }
    }

    #[test]
    fn nesting_and_size_are_bounded() {
        let (node, problems) = read(&format!("a: {}1{}", "[".repeat(65), "]".repeat(65)), "x.yaml");
        assert!(node.is_none() && problems[0].message.contains("levels"));
        let (node, problems) = read(&"# x\n".repeat(300_000), "x.yaml");
        assert!(node.is_none() && problems[0].message.contains("1200000 bytes"));
    }
}
