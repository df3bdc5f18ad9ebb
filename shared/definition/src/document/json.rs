//! Locates the values of a JSON text that is already known to be valid.

use ditto_contracts::Json;

use super::{DEPTH_MAX, Entry, Node, Value, join};
use crate::diagnostic::{Diagnostic, Place};

/// The place of a byte offset.
pub(super) fn place_of(text: &str, offset: usize) -> Place {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Place { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1 }
}

pub(super) fn read(text: &str) -> (Option<Node>, Vec<Diagnostic>) {
    let mut reader = Reader { rest: text, at: Place { line: 1, column: 1 } };
    match reader.value("", 0) {
        Ok(node) => (Some(node), Vec::new()),
        Err(problem) => (None, vec![problem]),
    }
}

struct Reader<'t> {
    rest: &'t str,
    at: Place,
}

impl<'t> Reader<'t> {
    fn advance(&mut self, bytes: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        match taken.rfind('\n') {
            Some(newline) => {
                self.at.line += taken.matches('\n').count();
                self.at.column = taken[newline + 1..].chars().count() + 1;
            }
            None => self.at.column += taken.chars().count(),
        }
        taken
    }

    /// Skips white space and, between entries, commas and colons: the grammar was checked before.
    fn skip(&mut self) -> Option<u8> {
        let end =
            self.rest.find(|c: char| !matches!(c, ' ' | '\t' | '\n' | '\r' | ',' | ':')).unwrap_or(self.rest.len());
        self.advance(end);
        self.rest.bytes().next()
    }

    fn value(&mut self, path: &str, depth: usize) -> Result<Node, Diagnostic> {
        let first = self.skip();
        let at = self.at;
        if depth > DEPTH_MAX {
            let message = format!("more than {DEPTH_MAX} levels of nesting");
            return Err(Diagnostic::new(at, path, message, format!("at most {DEPTH_MAX}")));
        }
        let mut inset = None;
        let value = match first {
            Some(b'{') => {
                self.advance(1);
                let mut entries = Vec::new();
                while self.skip() == Some(b'"') {
                    let at = self.at;
                    let (key, _) = self.string();
                    let node = self.value(&join(path, &key), depth + 1)?;
                    entries.push(Entry { key, at, node });
                }
                self.close();
                Value::Map(entries)
            }
            Some(b'[') => {
                self.advance(1);
                let mut items = Vec::new();
                while self.skip().is_some_and(|next| next != b']') {
                    items.push(self.value(&format!("{path}[{}]", items.len()), depth + 1)?);
                }
                self.close();
                Value::List(items)
            }
            Some(b'"') => {
                let (text, plain) = self.string();
                inset = plain.then_some(1);
                Value::Text(text)
            }
            _ => {
                let end = self
                    .rest
                    .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
                    .unwrap_or(self.rest.len());
                match self.advance(end) {
                    "null" | "" => Value::Null,
                    "true" => Value::Bool(true),
                    "false" => Value::Bool(false),
                    number => Value::Number(number.to_owned()),
                }
            }
        };
        Ok(Node { value, at, inset })
    }

    fn close(&mut self) {
        if !self.rest.is_empty() {
            self.advance(1);
        }
    }

    /// Reads a string; the flag says that it has no escapes.
    fn string(&mut self) -> (String, bool) {
        let mut escaped = false;
        let mut end = self.rest.len();
        for (at, byte) in self.rest.bytes().enumerate().skip(1) {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    end = at + 1;
                    break;
                }
                _ => {}
            }
        }
        let quoted = self.advance(end);
        let text = Json::from_checked(quoted.to_owned().into()).to_text().unwrap_or_default();
        (text, !quoted.contains('\\'))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    #[test]
    fn values_are_found_where_they_stand_and_numbers_are_kept() {
        let (node, problems) = read("{\n  \"a\": [1e2, 18446744073709551617],\n  \"b\": \"x\\ny\"\n}", "x.json");
        let node = node.unwrap();
        assert!(problems.is_empty());
        assert_eq!(node.entries()[1].at, Place { line: 3, column: 3 });
        assert_eq!(node.get("b").unwrap().at, Place { line: 3, column: 8 });
        assert_eq!(node.get("b").unwrap().text(), Some("x\ny"));
        assert_eq!(node.to_json().as_str(), r#"{"a":[1e2,18446744073709551617],"b":"x\ny"}"#);
    }

    #[test]
    fn invalid_json_is_reported_at_its_place() {
        let (node, problems) = read("{\n \"a\": 1,\n \"a\": 2\n}", "x.json");
        assert!(node.is_none());
        assert_eq!(problems[0].line, 3);
        assert!(problems[0].message.contains("not valid JSON"), "{}", problems[0]);
    }
}
