//! JSON Schema (draft 2020-12) on the input of a loop: compiled when a definition is registered, nothing is fetched.

use std::sync::Arc;

use ditto_contracts::Json;
use jsonschema::{Draft, PatternOptions, Validator};

use crate::{
    diagnostic::Diagnostic,
    document::{Node, Value, join, shorten_to},
};

/// Problems shown for one input.
const PROBLEMS_MAX: usize = 20;

/// A compiled schema.
#[derive(Clone)]
pub(crate) struct Schema(Arc<Validator>);

/// Compiles a schema; `None` when a problem was reported.
pub(crate) fn compile(node: &Node, path: &str, problems: &mut Vec<Diagnostic>) -> Option<Schema> {
    let before = problems.len();
    if !matches!(node.value, Value::Map(_) | Value::Bool(_)) {
        problems.push(Diagnostic::new(node.at, path, node.describe(), "a JSON Schema: a mapping, `true` or `false`"));
        return None;
    }
    references(node, path, problems);
    if let Some(draft) = node.get("$schema")
        && draft.text().map(|text| text.trim_end_matches('#')) != Some("https://json-schema.org/draft/2020-12/schema")
    {
        let expected = "`https://json-schema.org/draft/2020-12/schema`, or no `$schema`";
        problems.push(Diagnostic::new(draft.at, join(path, "$schema"), draft.describe(), expected));
    }
    if problems.len() > before {
        return None;
    }
    let value: serde_json::Value = match node.to_json().to() {
        Ok(value) => value,
        Err(error) => {
            problems.push(Diagnostic::new(node.at, path, format!("not readable: {error}"), "a JSON Schema"));
            return None;
        }
    };
    // The linear engine: a pattern of a definition must not be able to stall a submit.
    let options = jsonschema::options().with_draft(Draft::Draft202012).with_pattern_options(PatternOptions::regex());
    match options.build(&value) {
        Ok(validator) => Some(Schema(Arc::new(validator))),
        Err(error) => {
            let pointer = error.instance_path().to_string();
            let (at, path) = locate(node, path, &pointer);
            let message = format!("not a valid JSON Schema: {}", shorten_to(&error.to_string(), 200));
            problems.push(Diagnostic::new(at.at, path, message, "JSON Schema, draft 2020-12"));
            None
        }
    }
}

/// Refuses references that leave the document.
fn references(node: &Node, path: &str, problems: &mut Vec<Diagnostic>) {
    for entry in node.entries() {
        let path = join(path, &entry.key);
        let is_reference = matches!(entry.key.as_str(), "$ref" | "$dynamicRef");
        if is_reference && entry.node.text().is_some_and(|target| !target.starts_with('#')) {
            let expected = "a reference within the schema, such as `#/$defs/name`";
            problems.push(Diagnostic::new(entry.node.at, path, "a reference to another document", expected));
        } else {
            references(&entry.node, &path, problems);
        }
    }
    if let Value::List(items) = &node.value {
        for (n, item) in items.iter().enumerate() {
            references(item, &format!("{path}[{n}]"), problems);
        }
    }
}

/// The node a JSON pointer leads to, or the last one on its way.
fn locate<'n>(mut node: &'n Node, path: &str, pointer: &str) -> (&'n Node, String) {
    let mut path = path.to_owned();
    for step in pointer.split('/').skip(1) {
        let step = step.replace("~1", "/").replace("~0", "~");
        let next = match &node.value {
            Value::List(items) => step.parse::<usize>().ok().and_then(|n| items.get(n)),
            _ => node.get(&step),
        };
        let Some(next) = next else { break };
        path = if matches!(node.value, Value::List(_)) { format!("{path}[{step}]") } else { join(&path, &step) };
        node = next;
    }
    (node, path)
}

impl Schema {
    /// Checks an input; one line per problem, each naming the field.
    pub(crate) fn check(&self, input: &Json) -> Result<(), Vec<String>> {
        let value: serde_json::Value = match input.to() {
            Ok(value) => value,
            Err(error) => return Err(vec![format!("input: not readable: {error}")]),
        };
        if self.0.is_valid(&value) {
            return Ok(());
        }
        let line = |error: jsonschema::ValidationError<'_>| {
            let mut field = String::from("input");
            for step in error.instance_path().to_string().split('/').skip(1) {
                let step = step.replace("~1", "/").replace("~0", "~");
                if step.parse::<usize>().is_ok() {
                    field.push_str(&format!("[{step}]"));
                } else {
                    field = join(&field, &step);
                }
            }
            format!("{}: {}", shorten_to(&field, 200), shorten_to(&error.masked().to_string(), 300))
        };
        let mut lines: Vec<String> = self.0.iter_errors(&value).take(PROBLEMS_MAX + 1).map(line).collect();
        if lines.len() > PROBLEMS_MAX {
            lines.truncate(PROBLEMS_MAX);
            lines.push("input: more problems are not shown".into());
        }
        Err(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(text: &str) -> Schema {
        let (node, _) = crate::document::read(text, "x.yaml");
        let mut problems = Vec::new();
        compile(&node.unwrap(), "input", &mut problems).unwrap_or_else(|| panic!("{text}: {problems:?}"))
    }

    #[test]
    fn numbers_of_any_size_are_checked_as_numbers() {
        #[rustfmt::skip]
        let table = [
            ("type: integer", "123456789012345678901234567890", true),
            ("type: integer", "-123456789012345678901234567890", true),
            ("type: integer", "1e2", true),
            ("type: integer", "1.0", true),
            ("type: integer", "1.5", false),
            ("type: number", "1e400", true),
            ("type: string", "123456789012345678901234567890", false),
            ("maximum: 10", "123456789012345678901234567890", false),
            ("minimum: 10", "123456789012345678901234567890", true),
            ("minimum: 0", "-123456789012345678901234567890", false),
            ("const: 9007199254740993", "9007199254740993", true),
            ("const: 9007199254740993", "9007199254740992", false),
            ("maximum: 9007199254740992", "9007199254740993", false),
            ("enum: [1, 2]", "1.0", true),
            ("multipleOf: 0.01", "19.99", true),
        ];
        for (text, input, valid) in table {
            let found = schema(text).check(&Json::parse(input).unwrap());
            assert_eq!(found.is_ok(), valid, "{text} {input} {found:?}");
        }
    }

    #[test]
    fn references_within_the_schema_and_depth_work() {
        let tree = schema(
            "$ref: '#/$defs/tree'\n$defs: { tree: { type: object, additionalProperties: { $ref: '#/$defs/tree' } } }",
        );
        assert!(tree.check(&Json::parse(r#"{"a":{"b":{}}}"#).unwrap()).is_ok());
        let deep = format!("{}1{}", "{\"a\":".repeat(100), "}".repeat(100));
        assert!(tree.check(&Json::parse(deep).unwrap()).is_err());
        let found =
            schema("additionalProperties: { type: string }").check(&Json::parse(r#"{"a/b":1,"c~d":2}"#).unwrap());
        let lines = ["input.a/b: value is not of type \"string\"", "input[\"c~d\"]: value is not of type \"string\""];
        assert_eq!(found.unwrap_err(), lines);
        let many = format!("[{}]", vec!["1"; 100].join(","));
        assert_eq!(schema("items: { type: string }").check(&Json::parse(many).unwrap()).unwrap_err().len(), 21);
    }
}
