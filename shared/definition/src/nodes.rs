//! The node types whose names and inputs are known: a misspelt one is found before anything runs.

use ditto_contracts::{CallId, NodeType};

use crate::{
    diagnostic::{Diagnostic, Place, nearest},
    document::{Node, Value, join},
    template::literal_text,
};

/// Every known leaf node type. Its domain (`INTERACTION`, `CONTEXT`, `MEMORY`, `INFER`) has no others.
pub(crate) const KNOWN: [&str; 21] = [
    "INTERACTION.ACT.TOOL",
    "INTERACTION.ACT.MCP",
    "INTERACTION.OBSERVE",
    "INTERACTION.OUTPUT",
    "CONTEXT.LOAD",
    "CONTEXT.SELECT",
    "CONTEXT.UPDATE",
    "CONTEXT.COMPRESS",
    "MEMORY.GET",
    "MEMORY.QUERY",
    "MEMORY.SEARCH",
    "MEMORY.WRITE",
    "MEMORY.UPDATE",
    "MEMORY.DELETE",
    "INFER.REASONING.SAMPLE",
    "INFER.REASONING.TRAJECTORY",
    "INFER.REASONING.REFLECT",
    "INFER.REASONING.DELIBERATE",
    "INFER.CACHE.LOOKUP",
    "INFER.CACHE.WRITE",
    "INFER.CACHE.INVALIDATE",
];

/// Why a node type cannot be: message and what is expected. Other domains are open.
pub(crate) fn check_type(node: &str) -> Result<(), (String, String)> {
    let domain = node.split('.').next().unwrap_or_default();
    let closed = ["INTERACTION", "CONTEXT", "MEMORY", "INFER"].contains(&domain);
    if !closed || KNOWN.contains(&node) {
        return Ok(());
    }
    let hint = nearest(node, KNOWN).map(|near| format!("; did you mean `{near}`?"));
    let message = format!("unknown node type `{}`{}", crate::document::shorten_to(node, 128), hint.unwrap_or_default());
    let siblings: Vec<_> = KNOWN
        .iter()
        .filter(|known| known.split('.').next() == Some(domain))
        .map(|known| format!("`{known}`"))
        .collect();
    Err((message, format!("one of {}", siblings.join(", "))))
}

/// The shape of an input value.
enum Shape {
    Any,
    Text,
    /// A text that is not blank.
    Name,
    /// The identity of a call.
    CallId,
    OneOf(&'static [&'static str]),
    Object,
    List,
    /// Key, whether it is required, shape of the value. No other keys.
    Keys(&'static Keys),
}

type Keys = &'static [(&'static str, bool, Shape)];

static CALL: Keys = &[("id", true, Shape::CallId), ("name", true, Shape::Name), ("arguments", true, Shape::Object)];
static MESSAGE: Keys = &[
    ("role", true, Shape::OneOf(&["system", "user", "assistant", "tool"])),
    ("content", true, Shape::Any),
    ("name", false, Shape::Text),
];

static ACT_TOOL: Keys = &[("call", true, Shape::Keys(&CALL))];
static ACT_MCP: Keys = &[
    ("operation", true, Shape::OneOf(&["discover", "invoke"])),
    ("server", false, Shape::Name),
    ("call", false, Shape::Keys(&CALL)),
];
static OBSERVE: Keys = &[("result", true, Shape::Object)];
static OUTPUT: Keys =
    &[("deliveryId", true, Shape::CallId), ("message", true, Shape::Keys(&MESSAGE)), ("artifacts", false, Shape::List)];

fn shape(node: &str) -> Option<Shape> {
    Some(Shape::Keys(match node {
        NodeType::ACT_TOOL => &ACT_TOOL,
        NodeType::ACT_MCP => &ACT_MCP,
        NodeType::OBSERVE => &OBSERVE,
        NodeType::OUTPUT => &OUTPUT,
        _ => return None,
    }))
}

/// Checks what is written out of a node's input; what an expression yields is checked by the worker.
/// `at` and `path` are those of the task when it has no input at all.
pub(crate) fn check_input(node: &str, input: Option<&Node>, at: Place, path: &str, problems: &mut Vec<Diagnostic>) {
    let Some(shape) = shape(node) else { return };
    match input {
        Some(input) => check(&shape, input, path, problems),
        None => {
            if let Shape::Keys(keys) = shape {
                let keys: Vec<_> = keys.iter().filter(|key| key.1).map(|key| format!("`{}`", key.0)).collect();
                let message = format!("{node} without `with`");
                problems.push(Diagnostic::new(at, path, message, format!("`with` that has {}", keys.join(", "))));
            }
        }
    }
}

fn check(shape: &Shape, node: &Node, path: &str, problems: &mut Vec<Diagnostic>) {
    if node.text().is_some_and(|text| text.contains("${")) {
        return;
    }
    let mut expect = |expected: String| problems.push(Diagnostic::new(node.at, path, node.describe(), expected));
    match (shape, &node.value) {
        (Shape::Any, _) | (Shape::Text, Value::Text(_)) => {}
        (Shape::Object, Value::Map(_)) | (Shape::List, Value::List(_)) => {}
        (Shape::Name, Value::Text(text)) if !text.trim().is_empty() => {}
        (Shape::CallId, Value::Text(text)) => {
            if let Err(error) = CallId::new(text) {
                problems.push(Diagnostic::new(node.at, path, format!("the call id {}", error.problem), error.expected));
            }
        }
        (Shape::OneOf(choices), Value::Text(text)) if choices.contains(&text.as_str()) => {}
        (Shape::OneOf(choices), _) => {
            let choices: Vec<_> = choices.iter().map(|choice| format!("`{choice}`")).collect();
            expect(format!("one of {}", choices.join(", ")));
        }
        (Shape::Text, _) => expect("a text".into()),
        (Shape::Name | Shape::CallId, _) => expect("a text that is not blank".into()),
        (Shape::Object, _) => expect("a mapping, or an expression that yields an object".into()),
        (Shape::List, _) => expect("a list, or an expression that yields one".into()),
        (Shape::Keys(keys), Value::Map(entries)) => {
            let known: Vec<_> = keys.iter().map(|key| format!("`{}`", key.0)).collect();
            for entry in entries {
                let path = join(path, &entry.key);
                match keys.iter().find(|key| key.0 == entry.key) {
                    Some((_, _, shape)) => check(shape, &entry.node, &path, problems),
                    None => {
                        let hint = nearest(&entry.key, keys.iter().map(|key| key.0));
                        let hint = hint.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                        let message = format!("unknown key `{}`{hint}", crate::document::shorten(&entry.key));
                        problems.push(Diagnostic::new(entry.at, path, message, format!("one of {}", known.join(", "))));
                    }
                }
            }
            for (key, ..) in keys.iter().filter(|key| key.1 && node.get(key.0).is_none()) {
                let message = format!("the key `{key}` is missing");
                problems.push(Diagnostic::new(node.at, path, message, format!("`{key}: …`")));
            }
            // An invocation names its server and its call.
            if known.iter().any(|key| key == "`operation`")
                && node.get("operation").and_then(literal_text) == Some("invoke")
            {
                for key in ["server", "call"].into_iter().filter(|key| node.get(key).is_none()) {
                    let message = format!("`operation: invoke` without `{key}`");
                    problems.push(Diagnostic::new(node.at, path, message, format!("`{key}: …`")));
                }
            }
        }
        (Shape::Keys(keys), _) => {
            let keys: Vec<_> = keys.iter().filter(|key| key.1).map(|key| format!("`{}`", key.0)).collect();
            expect(format!("a mapping with {}, or an expression that yields one", keys.join(", ")));
        }
    }
}
