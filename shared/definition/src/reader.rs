//! Takes a definition apart, collecting every problem with its place.

use std::fmt::Display;

use crate::{
    diagnostic::{Diagnostic, Place, nearest},
    document::{Entry, Node, Value, join, shorten},
    duration,
    expression::Names,
    template::{self, Template, Yields, literal_text},
};

/// Collects problems.
#[derive(Default)]
pub(crate) struct Reader {
    pub(crate) problems: Vec<Diagnostic>,
}

impl Reader {
    pub(crate) fn report(&mut self, at: Place, path: &str, message: impl Into<String>, expected: impl Into<String>) {
        self.problems.push(Diagnostic::new(at, path, message, expected));
    }

    /// Checks that a node is a mapping with known keys only; `None` when it is no mapping.
    pub(crate) fn mapping<'n>(&mut self, node: &'n Node, path: &str, known: &[&str]) -> Option<&'n [Entry]> {
        let Value::Map(entries) = &node.value else {
            self.report(node.at, path, node.describe(), format!("a mapping with {}", list(known)));
            return None;
        };
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let near = nearest(&entry.key, known.iter().copied());
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            let message = format!("unknown key `{}`{hint}", shorten(&entry.key));
            self.report(entry.at, &join(path, &entry.key), message, format!("one of {}", list(known)));
        }
        Some(entries)
    }

    /// A text without expressions.
    pub(crate) fn text<'n>(&mut self, node: &'n Node, path: &str, expected: &str) -> Option<&'n str> {
        match literal_text(node) {
            Some(text) => Some(text),
            None => {
                let found = if node.text().is_some() { "an expression".into() } else { node.describe() };
                self.report(node.at, path, found, expected);
                None
            }
        }
    }

    /// A text that is an identity.
    pub(crate) fn id<T, E: Display>(
        &mut self,
        node: &Node,
        path: &str,
        what: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(node, path, what)?;
        self.id_text(text, node.at, path, what, read)
    }

    /// An identity, for example a key.
    pub(crate) fn id_text<T, E: Display>(
        &mut self,
        text: &str,
        at: Place,
        path: &str,
        what: &str,
        read: impl Fn(&str) -> Result<T, E>,
    ) -> Option<T> {
        match read(text) {
            Ok(id) => Some(id),
            Err(error) => {
                let error = error.to_string();
                let (message, expected) = error.split_once("; expected ").unwrap_or((&error, what));
                self.report(at, path, message, expected);
                None
            }
        }
    }

    /// A whole number in a range.
    pub(crate) fn integer(&mut self, node: &Node, path: &str, min: u64, max: u64) -> Option<u64> {
        let value = match &node.value {
            Value::Number(text) => text.parse::<u64>().ok().filter(|value| (min..=max).contains(value)),
            _ => None,
        };
        if value.is_none() {
            self.report(node.at, path, node.describe(), format!("a whole number from {min} to {max}"));
        }
        value
    }

    /// A duration in a range of milliseconds.
    pub(crate) fn duration(&mut self, node: &Node, path: &str, min: u64, max: u64) -> Option<u64> {
        let parsed = literal_text(node).and_then(duration::parse);
        match parsed {
            Some(ms) if ms < min => self.report(node.at, path, node.describe(), format!("at least {min}ms")),
            Some(ms) if ms > max => self.report(node.at, path, node.describe(), format!("at most {max}ms")),
            Some(ms) => return Some(ms),
            None => self.report(node.at, path, node.describe(), duration::EXPECTED),
        }
        None
    }

    /// One of some words.
    pub(crate) fn choice<T: Copy>(&mut self, node: &Node, path: &str, choices: &[(&str, T)]) -> Option<T> {
        let found = literal_text(node).and_then(|text| choices.iter().find(|(name, _)| *name == text));
        if found.is_none() {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            let near = node.text().and_then(|text| nearest(text, names.iter().copied()));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            self.report(node.at, path, format!("{}{hint}", node.describe()), format!("one of {}", list(&names)));
        }
        found.map(|(_, value)| *value)
    }

    /// A value with expressions.
    pub(crate) fn template(&mut self, node: &Node, path: &str, yields: Yields, names: &Names<'_>) -> Option<Template> {
        template::compile(node, path, yields, names, &mut self.problems)
    }
}

/// `` `a`, `b`, `c` ``
pub(crate) fn list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
