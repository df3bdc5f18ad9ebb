//! JSON Schema for arguments: made from a type, or given; checked before anything is executed.

use ditto_contracts::Json;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// Longest text of one violation, in characters: it becomes part of an error message.
const VIOLATION_CHARS_MAX: usize = 400;

/// A compiled schema.
pub struct ArgumentSchema {
    json: Json,
    /// `None` for a schema that accepts everything.
    validator: Option<jsonschema::Validator>,
}

/// Why a schema or a value was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The schema itself cannot be used.
    #[error("invalid schema: {0}")]
    Schema(String),
    /// The value breaks it; names the path and what was expected.
    #[error("{path}: {expected}")]
    Value {
        /// Where, as a path from the root such as `$.items[3].name`.
        path: String,
        /// What was expected there. Repeats no part of the value.
        expected: String,
    },
}

impl std::fmt::Debug for ArgumentSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArgumentSchema").field("json", &self.json).finish_non_exhaustive()
    }
}

impl ArgumentSchema {
    /// The schema of a type.
    ///
    /// # Errors
    /// When the type's schema cannot be compiled.
    pub fn of<T: JsonSchema>() -> Result<Self, SchemaError> {
        let schema = schemars::schema_for!(T);
        Self::new(Json::from_serialize(&schema).map_err(|error| SchemaError::Schema(error.to_string()))?)
    }

    /// A schema given as JSON. References to other documents are refused.
    ///
    /// # Errors
    /// When it is no object or cannot be compiled.
    pub fn new(json: Json) -> Result<Self, SchemaError> {
        if json.kind() != ditto_contracts::JsonKind::Object {
            return Err(SchemaError::Schema("not an object".into()));
        }
        if json.members().all(|(name, _)| matches!(name.as_str(), "$schema" | "$id" | "title" | "description")) {
            return Ok(Self { json, validator: None });
        }
        let value: serde_json::Value = json.to().map_err(|error| SchemaError::Schema(error.to_string()))?;
        let validator = jsonschema::validator_for(&value).map_err(|error| SchemaError::Schema(error.to_string()))?;
        Ok(Self { json, validator: Some(validator) })
    }

    /// The schema as JSON.
    pub fn json(&self) -> &Json {
        &self.json
    }

    /// Checks a value.
    ///
    /// # Errors
    /// The first violation, with its path.
    pub fn check(&self, value: &Json) -> Result<(), SchemaError> {
        let Some(validator) = &self.validator else { return Ok(()) };
        let parsed: serde_json::Value =
            value.to().map_err(|error| SchemaError::Value { path: "$".into(), expected: format!("JSON ({error})") })?;
        validator.validate(&parsed).map_err(|error| {
            // Masked: the value may be a secret or far too long for a message.
            let expected: String = error.masked().to_string().chars().take(VIOLATION_CHARS_MAX).collect();
            SchemaError::Value { path: path_of(error.instance_path().as_str()), expected }
        })
    }
}

/// Reads a value as a type. Types that serde reads by way of a buffer (`flatten`, `untagged`, internally tagged enums)
/// cannot take numbers that keep every digit; they are read again from ordinary numbers.
///
/// # Errors
/// The value does not have the shape of `T`.
pub fn read_typed<T: DeserializeOwned>(value: &Json) -> Result<T, serde_json::Error> {
    value.to().or_else(|error| {
        let parsed: serde_json::Value = value.to()?;
        // The first error is the one with a place in it.
        T::deserialize(parsed).map_err(|_| error)
    })
}

/// `/items/3/name` as `$.items[3].name`.
fn path_of(pointer: &str) -> String {
    let mut path = String::from("$");
    for step in pointer.split('/').skip(1) {
        if !step.is_empty() && step.bytes().all(|b| b.is_ascii_digit()) {
            path.push('[');
            path.push_str(step);
            path.push(']');
        } else {
            path.push('.');
            path.push_str(&step.replace("~1", "/").replace("~0", "~"));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)] // only its schema is used
    struct Refund {
        order: String,
        cents: u64,
        lines: Vec<u32>,
    }

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn a_violation_names_the_path_and_not_the_value() {
        let schema = ArgumentSchema::of::<Refund>().unwrap();
        assert_eq!(schema.check(&json(r#"{"order":"a","cents":18446744073709551615,"lines":[1]}"#)), Ok(()));
        #[rustfmt::skip]
        let table = [
            (r#"{"order":"a","cents":1,"lines":[1,"secret"]}"#, "$.lines[1]"),
            (r#"{"order":7,"cents":1,"lines":[]}"#, "$.order"),
            (r#"{"order":"a","lines":[]}"#, "cents"),
            (r#"{"order":"a","cents":-1,"lines":[]}"#, "$.cents"),
            (r#"{"order":"a","cents":1.5,"lines":[]}"#, "$.cents"),
            (r#"{"order":"a","cents":1,"lines":[],"x":1}"#, "x"),
            (r#"[]"#, "$: "),
        ];
        for (text, fragment) in table {
            let error = schema.check(&json(text)).unwrap_err().to_string();
            assert!(error.contains(fragment) && !error.contains("secret"), "{text}: {error}");
        }
    }

    #[test]
    fn a_schema_that_accepts_everything_costs_nothing() {
        let schema = ArgumentSchema::of::<Json>().unwrap();
        assert!(schema.validator.is_none(), "{}", schema.json());
        assert_eq!(schema.check(&json("[1]")), Ok(()));
    }

    #[test]
    fn tagged_flattened_and_untagged_types_take_numbers() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(tag = "kind", rename_all = "lowercase")]
        enum Shape {
            Circle { radius: f64 },
        }
        #[derive(Debug, PartialEq, serde::Deserialize)]
        #[serde(untagged)]
        enum Size {
            Number(u64),
        }
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Outer {
            #[serde(flatten)]
            shape: Shape,
            size: Size,
            raw: Json,
        }
        let value = json(r#"{"kind":"circle","radius":1.5,"size":18446744073709551615,"raw":[1e2]}"#);
        let outer: Outer = read_typed(&value).unwrap();
        assert_eq!(outer.shape, Shape::Circle { radius: 1.5 });
        assert_eq!(outer.size, Size::Number(u64::MAX));
        assert!(read_typed::<Outer>(&json("{}")).is_err());
        // What is read directly keeps every digit.
        let raw: Json = read_typed(&json(r#"{"a":1e400}"#)).unwrap();
        assert_eq!(raw.as_str(), r#"{"a":1e400}"#);
    }

    #[test]
    fn a_schema_that_is_none_is_refused() {
        assert!(ArgumentSchema::new(json("[]")).is_err());
        assert!(ArgumentSchema::new(json(r#"{"type":7}"#)).is_err());
        assert!(ArgumentSchema::new(json(r#"{"$ref":"https://example.com/x.json"}"#)).is_err());
    }
}
