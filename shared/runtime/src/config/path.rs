//! Finds and removes values by path, as in `limits.depth` or `pools[2]`.

use super::problem::Place;
use super::yaml::{Node, Value, join};

/// The path below the section.
pub(super) fn relative<'p>(section: &str, path: &'p str) -> &'p str {
    path.strip_prefix(section).map_or(path, |rest| rest.strip_prefix('.').unwrap_or(rest))
}

/// Splits `a.b[2].c` into its steps. Keys with a dot in them cannot be told apart and are not found.
pub(super) fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[']).map(|step| step.trim_end_matches(']')).filter(|step| !step.is_empty())
}

pub(super) fn step<'n>(node: &'n Node, step: &str) -> Option<&'n Node> {
    match &node.value {
        Value::Map(_) => node.get(step),
        Value::List(nodes) => nodes.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

pub(super) fn find<'n>(root: &'n Node, path: &str) -> Option<&'n Node> {
    steps(path).try_fold(root, step)
}

/// The path of what is written at this place: a value, or a key.
pub(super) fn path_at(node: &Node, path: &str, line: usize, column: usize) -> Option<String> {
    let here = (line, column);
    match &node.value {
        _ if (node.line, node.column) == here && !matches!(node.value, Value::Map(_)) => Some(path.to_owned()),
        Value::Map(entries) => entries
            .iter()
            .find_map(|entry| {
                let inside = join(path, &entry.key);
                if (entry.line, entry.column) == here {
                    return Some(inside);
                }
                path_at(&entry.node, &inside, line, column)
            })
            .or_else(|| ((node.line, node.column) == here).then(|| path.to_owned())),
        Value::List(nodes) => {
            nodes.iter().enumerate().find_map(|(index, node)| path_at(node, &format!("{path}[{index}]"), line, column))
        }
        _ => None,
    }
}

/// The place of a value, or of the nearest thing around it that is in the file.
pub(super) fn nearest_place(root: &Node, path: &str) -> Place {
    let mut node = root;
    for name in steps(path) {
        match step(node, name) {
            Some(next) => node = next,
            // An empty section has no place of its own.
            None if node.value == Value::Map(Vec::new()) => return Place::Whole,
            None => break,
        }
    }
    node.place()
}

/// Takes a value out; `false` if there is none at this path, or it is the root.
pub(super) fn remove(root: &mut Node, path: &str) -> bool {
    let steps: Vec<&str> = steps(path).collect();
    let Some((last, parents)) = steps.split_last() else { return false };
    let mut node = root;
    for name in parents {
        let next = match &mut node.value {
            Value::Map(entries) => entries.iter_mut().find(|entry| entry.key == *name).map(|entry| &mut entry.node),
            Value::List(nodes) => name.parse::<usize>().ok().and_then(|index| nodes.get_mut(index)),
            _ => None,
        };
        match next {
            Some(next) => node = next,
            None => return false,
        }
    }
    match &mut node.value {
        Value::Map(entries) => {
            let before = entries.len();
            entries.retain(|entry| entry.key != *last);
            entries.len() < before
        }
        Value::List(nodes) => match last.parse::<usize>() {
            Ok(index) if index < nodes.len() => {
                nodes.remove(index);
                true
            }
            _ => false,
        },
        _ => false,
    }
}
