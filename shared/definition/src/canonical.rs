//! The canonical form of a definition: what it means without how it is written, and the revision that names it.

use ditto_contracts::{Json, Revision};
use sha2::{Digest as _, Sha256};

use crate::document::{Entry, Node, Value};

/// The same definition with its own keys sorted. What is data keeps the order it was written in: the tasks of a graph
/// (it is the order in which they become ready), the graphs, and the values that are sent or stored, because their
/// bytes follow it.
pub(crate) fn canonical(root: &Node) -> Json {
    sorted(root, Level::Definition).to_json()
}

/// The revision of a canonical form: 128 bit of its SHA-256 in hexadecimal.
pub(crate) fn revision(canonical: &Json) -> Option<Revision> {
    let hash = Sha256::digest(canonical.as_bytes());
    let text: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Revision::new(text).ok()
}

/// What the keys of a mapping are.
#[derive(Clone, Copy)]
enum Level {
    Definition,
    Graphs,
    Graph,
    Tasks,
    /// A mapping whose order means nothing, with everything in it.
    Options,
    /// A value: kept as it is.
    Data,
}

impl Level {
    fn of(self, key: &str) -> Self {
        match (self, key) {
            (Self::Definition, "graph") | (Self::Graphs, _) => Self::Graph,
            (Self::Definition, "graphs") => Self::Graphs,
            (Self::Definition, "state" | "update" | "output") => Self::Data,
            (Self::Graph, "tasks") => Self::Tasks,
            (Self::Graph, "input") => Self::Data,
            (Self::Tasks, _) => Self::Options,
            (Self::Options, "with") => Self::Data,
            (Self::Definition | Self::Graph | Self::Options, _) => Self::Options,
            (Self::Data, _) => Self::Data,
        }
    }
}

fn sorted(node: &Node, level: Level) -> Node {
    let value = match &node.value {
        Value::Map(entries) => {
            let mut entries: Vec<Entry> = entries
                .iter()
                .map(|entry| Entry { node: sorted(&entry.node, level.of(&entry.key)), ..entry.clone() })
                .collect();
            if matches!(level, Level::Definition | Level::Graph | Level::Options) {
                entries.sort_by(|a, b| a.key.cmp(&b.key));
            }
            Value::Map(entries)
        }
        Value::List(items) => Value::List(items.iter().map(|item| sorted(item, level)).collect()),
        other => other.clone(),
    };
    Node { value, ..node.clone() }
}
