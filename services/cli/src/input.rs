//! Reads what a person gives: JSON on the command line, from a file or from stdin, and definition files.

use std::{io::Read as _, path::Path};

use ditto_contracts::{Json, JsonKind, JsonWriter, limits};
use ditto_definition::{Definition, Diagnostic};

use crate::exit::Failure;

/// Largest definition file, in bytes.
const DEFINITION_BYTES_MAX: u64 = 1024 * 1024;

/// JSON from an option: the text itself, `@file`, or `-` for stdin. Kept byte for byte.
pub(crate) fn json(option: &str, text: &str) -> Result<Json, Failure> {
    let bytes = if text == "-" {
        read_limited(option, "stdin", std::io::stdin().lock(), limits::VALUE_BYTES_MAX as u64)?
    } else if let Some(path) = text.strip_prefix('@') {
        let file = std::fs::File::open(path)
            .map_err(|error| Failure::usage(format!("{option}: cannot read {path}: {}", reason(&error))))?;
        read_limited(option, path, file, limits::VALUE_BYTES_MAX as u64)?
    } else {
        text.as_bytes().to_vec()
    };
    if bytes.len() > limits::VALUE_BYTES_MAX {
        return Err(Failure::usage(format!("{option}: {} bytes; at most {}", bytes.len(), limits::VALUE_BYTES_MAX)));
    }
    Json::parse(bytes).map_err(|error| {
        let failure = Failure::usage(format!("{option}: is not acceptable JSON: {error}"));
        if text.starts_with(['{', '[', '"', '@', '-']) {
            failure
        } else {
            failure.hint(format!("a text is written {option} '\"text\"', a file {option} @file.json"))
        }
    })
}

fn read_limited(option: &str, name: &str, reader: impl std::io::Read, most: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    reader
        .take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::usage(format!("{option}: cannot read {name}: {}", reason(&error))))?;
    if bytes.len() as u64 > most {
        return Err(Failure::usage(format!("{option}: {name} has more than {most} bytes")));
    }
    Ok(bytes)
}

/// The input with members set on top: each `key=value`, where the value is JSON if it can be read so, else a text.
pub(crate) fn with_members(input: &Json, sets: &[String]) -> Result<Json, Failure> {
    if sets.is_empty() {
        return Ok(input.clone());
    }
    if input.kind() != JsonKind::Object {
        return Err(Failure::usage("--set: the input is no object, so nothing can be set in it"));
    }
    let mut members: Vec<(String, Json)> = input.members().collect();
    for set in sets {
        let Some((key, value)) = set.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(Failure::usage(format!("--set: expected key=value, found {set:?}")));
        };
        let value = match value.strip_prefix('@') {
            Some(_) => json("--set", value)?,
            None => Json::parse(value.as_bytes().to_vec()).unwrap_or_else(|_| Json::string(value)),
        };
        match members.iter_mut().find(|(known, _)| known == key) {
            Some(member) => member.1 = value,
            None => members.push((key.to_owned(), value)),
        }
    }
    let mut writer = JsonWriter::new();
    writer.begin_object();
    for (key, value) in &members {
        writer.key(key).value(value);
    }
    writer.end();
    let json = writer.finish();
    if json.len() > limits::VALUE_BYTES_MAX {
        return Err(Failure::usage(format!(
            "--set: the input has {} bytes; at most {}",
            json.len(),
            limits::VALUE_BYTES_MAX
        )));
    }
    Ok(json)
}

/// The text of a definition file.
pub(crate) fn definition_text(path: &Path) -> Result<String, Failure> {
    let shown = path.display().to_string();
    if shown == "-" {
        return text(read_limited("FILE", "stdin", std::io::stdin().lock(), DEFINITION_BYTES_MAX)?, "stdin");
    }
    let file = std::fs::File::open(path)
        .map_err(|error| Failure::usage(format!("FILE: cannot read {shown}: {}", reason(&error))))?;
    text(read_limited("FILE", &shown, file, DEFINITION_BYTES_MAX)?, &shown)
}

/// What a system says about a file, in plain words.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "there is no such file".into(),
        kind => kind.to_string(),
    }
}

/// The problems of an input, each of which names its field.
pub(crate) fn wrong_input(problems: &[String]) -> Failure {
    match problems {
        [one] => Failure::usage(one.as_str()),
        many => Failure::usage(format!("the input has {} problems\n  {}", many.len(), many.join("\n  "))),
    }
}

fn text(bytes: Vec<u8>, name: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("FILE: {name} is not UTF-8 text")))
}

/// Reads and compiles a definition.
///
/// # Errors
/// The file cannot be read, or every problem in it as people read it.
pub(crate) fn definition(path: &Path) -> Result<Definition, Failure> {
    let source = definition_text(path)?;
    let name = path.display().to_string();
    ditto_definition::compile(&source, &name).map_err(|problems| invalid(&name, &source, &problems))
}

/// All problems of one definition as a failure.
pub(crate) fn invalid(name: &str, source: &str, problems: &[Diagnostic]) -> Failure {
    let count = problems.len();
    let plural = if count == 1 { "" } else { "s" };
    let list = ditto_definition::render_all(problems, name, source);
    Failure::usage(format!("{name} has {count} problem{plural}\n\n{}", list.trim_end())).code("DEFINITION_INVALID")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_kept_as_it_was_given() {
        let text = r#"{ "n": 12345678901234567890.10 }"#;
        assert_eq!(json("--input", text).unwrap().as_str(), text);
        let failure = json("--input", "hello").unwrap_err();
        assert!(failure.message.starts_with("--input: ") && failure.hint.is_some(), "{failure:?}");
        assert!(json("--input", "@/no/such/file").unwrap_err().message.contains("/no/such/file"));
    }

    #[test]
    fn members_are_set_over_the_input() {
        let input = Json::parse(r#"{"a":1.0,"b":2}"#).unwrap();
        let set = |sets: &[&str]| with_members(&input, &sets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
        assert_eq!(set(&["b=[3]", "c=plain text"]).unwrap().as_str(), r#"{"a":1.0,"b":[3],"c":"plain text"}"#);
        assert!(set(&["c"]).unwrap_err().message.contains("key=value"));
    }
}
