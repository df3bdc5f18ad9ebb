//! Which sections and variables there are, so that a misspelt one is noticed by every process.

use std::collections::{BTreeMap, BTreeSet};

use super::problem::{Place, Problem};
use super::wording::{nearest, one_of};
use super::yaml::{self, Node, Value, join};
use crate::fault;

/// A part of the configuration that one struct describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Where it is in the file, as in `workers.interaction`.
    pub path: &'static str,
    /// What its variables begin with, as in `DITTO_WORKER_INTERACTION`.
    pub prefix: &'static str,
}

/// Every section there is. A process reads some of them; the others may be present, so that one file serves the fleet.
pub const SECTIONS: &[Section] = &[
    Section { path: "log", prefix: "DITTO_LOG" },
    Section { path: "telemetry", prefix: "DITTO_TELEMETRY" },
    Section { path: "health", prefix: "DITTO_HEALTH" },
    Section { path: "bus", prefix: "DITTO_BUS" },
    Section { path: "ledger", prefix: "DITTO_LEDGER" },
    Section { path: "http", prefix: "DITTO_HTTP" },
    Section { path: "runtime", prefix: "DITTO_RUNTIME" },
    Section { path: "shared", prefix: "DITTO_SHARED" },
    Section { path: "coordinator", prefix: "DITTO_COORDINATOR" },
    Section { path: "workers.interaction", prefix: "DITTO_WORKER_INTERACTION" },
    Section { path: "workers.context", prefix: "DITTO_WORKER_CONTEXT" },
    Section { path: "workers.memory", prefix: "DITTO_WORKER_MEMORY" },
    Section { path: "workers.infer", prefix: "DITTO_WORKER_INFER" },
    Section { path: "dev", prefix: "DITTO_DEV" },
];

/// Variables of a process as a whole, read where they are needed. `DITTO_TEST_…` is allowed too.
pub const PROCESS_VARIABLES: &[&str] =
    &["DITTO_CONFIG", "DITTO_LOG", "DITTO_BIN", "DITTO_INSTANCE", "DITTO_SERVER", "DITTO_NATS_URL", "DITTO_TOKEN"];

/// The section a variable belongs to: the one with the longest prefix.
pub(super) fn owner(variable: &str) -> Option<&'static Section> {
    SECTIONS
        .iter()
        .filter(|section| variable.strip_prefix(section.prefix).is_some_and(|rest| rest.starts_with('_')))
        .max_by_key(|section| section.prefix.len())
}

pub(super) fn unknown_sections(root: &Node, problems: &mut Vec<Problem>) {
    let Value::Map(entries) = &root.value else { return };
    for entry in entries {
        unknown_section(&entry.key, entry, problems);
    }
}

/// Descends as long as the path is only the beginning of known sections, as `workers` is.
pub(super) fn unknown_section(path: &str, entry: &yaml::Entry, problems: &mut Vec<Problem>) {
    if SECTIONS.iter().any(|section| section.path == path) {
        return;
    }
    let inside = format!("{path}.");
    let parent = path.rsplit_once('.').map(|(parent, _)| format!("{parent}.")).unwrap_or_default();
    let mut push = |place: Place, message: String| problems.push(Problem { path: path.to_owned(), place, message });
    if SECTIONS.iter().any(|section| section.path.starts_with(&inside)) {
        match &entry.node.value {
            Value::Map(entries) => {
                for child in entries {
                    unknown_section(&join(path, &child.key), child, problems);
                }
            }
            other => push(entry.node.place(), format!("expected a mapping, found {}", yaml::describe(other))),
        }
        return;
    }
    let mut names: Vec<&str> = SECTIONS
        .iter()
        .filter_map(|section| section.path.strip_prefix(&parent))
        .filter_map(|rest| rest.split('.').next())
        .collect();
    names.dedup();
    let message = match nearest(&entry.key, names.iter().copied()) {
        Some(near) => format!("unknown section, did you mean `{near}`?"),
        None => format!("unknown section, expected {}", one_of(&names)),
    };
    push(Place::File { line: entry.line, column: entry.column }, message);
}

pub(super) fn unknown_variables(root: &Node, environment: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
    let referenced = references(root);
    for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("DITTO_")) {
        let mut push = |message: String| {
            problems.push(Problem { path: String::new(), place: Place::Environment(name.clone()), message });
        };
        if name == fault::VARIABLE {
            if let Err(error) = fault::check(value) {
                push(error.to_string());
            }
        } else if !(PROCESS_VARIABLES.contains(&name.as_str())
            || name.starts_with("DITTO_TEST_")
            || owner(name).is_some()
            || referenced.contains(name.as_str()))
        {
            push(match nearest(name, PROCESS_VARIABLES.iter().copied()) {
                Some(near) => format!("unknown variable, did you mean {near}?"),
                None => "unknown variable: no section begins like this".into(),
            });
        }
    }
}

/// Names of the variables that the file refers to by `{ env: NAME }`.
pub(super) fn references(root: &Node) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &node.value {
            Value::List(nodes) => open.extend(nodes),
            Value::Map(entries) => {
                if let [yaml::Entry { key, node: Node { value: Value::Text(name), .. }, .. }] = entries.as_slice()
                    && key == "env"
                {
                    names.insert(name.as_str());
                }
                open.extend(entries.iter().map(|entry| &entry.node));
            }
            _ => {}
        }
    }
    names
}
