//! A definition as located values: what is written where, read from YAML or JSON without changing a number.

mod json;
mod yaml;

use ditto_contracts::{Json, JsonWriter};

use crate::diagnostic::{Diagnostic, Place};

/// Largest definition, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 1024 * 1024;
/// Deepest nesting of mappings and lists.
pub(crate) const DEPTH_MAX: usize = 64;

/// A value and where it begins.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Place,
    /// For a text written on one line without escapes: columns between [`Node::at`] and its first character.
    pub(crate) inset: Option<usize>,
}

/// What is written there.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// A number as JSON text, every digit kept.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping. Keys are unique: a repeated one is reported and dropped.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) at: Place,
    pub(crate) node: Node,
}

impl Node {
    /// The value of a key, when this is a mapping that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.node)
    }

    /// The entries of a mapping; none for anything else.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The text, when it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The place of the character at an offset (in characters) within a text; the text itself where that is unknown.
    pub(crate) fn place_in_text(&self, offset: usize) -> Place {
        match self.inset {
            Some(inset) => Place { line: self.at.line, column: self.at.column + inset + offset },
            None => self.at,
        }
    }

    /// What it is, for a message; a short text is shown.
    pub(crate) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing (null)".into(),
            Value::Bool(value) => format!("`{value}`"),
            Value::Number(text) => format!("the number {}", shorten(text)),
            Value::Text(text) => format!("the text {:?}", shorten(text)),
            Value::List(_) => "a list".into(),
            Value::Map(_) => "a mapping".into(),
        }
    }

    /// The value as JSON text, keys in their order.
    pub(crate) fn to_json(&self) -> Json {
        let mut writer = JsonWriter::new();
        self.write(&mut writer);
        writer.finish()
    }

    fn write(&self, writer: &mut JsonWriter) {
        match &self.value {
            Value::Null => drop(writer.value(&Json::null())),
            Value::Bool(value) => drop(writer.value(&Json::bool(*value))),
            Value::Number(text) => drop(writer.value(&Json::from_checked(text.clone().into()))),
            Value::Text(text) => drop(writer.string(text)),
            Value::List(items) => {
                writer.begin_array();
                items.iter().for_each(|item| item.write(writer));
                writer.end();
            }
            Value::Map(entries) => {
                writer.begin_object();
                for entry in entries {
                    entry.node.write(writer.key(&entry.key));
                }
                writer.end();
            }
        }
    }
}

/// At most 40 characters of a text.
pub(crate) fn shorten(text: &str) -> String {
    shorten_to(text, 40)
}

/// At most so many characters of a text.
pub(crate) fn shorten_to(text: &str, chars: usize) -> String {
    let mut short: String = text.chars().take(chars).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// `parent.key`, or `key` at the top; a key that is no plain word is quoted.
pub(crate) fn join(parent: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | ':' | '/'));
    match (parent.is_empty(), plain) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{parent}.{key}"),
        (_, false) => format!("{parent}[{:?}]", shorten(key)),
    }
}

/// Reads a text. `None` with problems: nothing can be made of it. A tree with problems: the reported parts are absent.
pub(crate) fn read(text: &str, source_name: &str) -> (Option<Node>, Vec<Diagnostic>) {
    let start = Place { line: 1, column: 1 };
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("the definition has {} bytes", text.len());
        let expected = format!("at most {TEXT_BYTES_MAX} bytes (1 MiB)");
        return (None, vec![Diagnostic::new(start, "", message, expected)]);
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let named_json = source_name.to_ascii_lowercase().ends_with(".json");
    if named_json || text.trim_start().starts_with('{') {
        match Json::parse(text.to_owned()) {
            Ok(_) => return json::read(text),
            Err(error) if named_json => {
                let at = json::place_of(text, error.offset);
                let message = format!("not valid JSON: {} at {}", error.reason, error.path);
                return (None, vec![Diagnostic::new(at, "", message, "one JSON object without repeated keys")]);
            }
            // A YAML mapping in flow style looks like this as well.
            Err(_) => {}
        }
    }
    yaml::read(text)
}
