//! `INTERACTION.OBSERVE`: an external result made into a tool message. Pure: the same input gives the same output.

use crate::{
    Json, JsonKind, JsonWriter, WireError, check_public_code, check_public_message, codes,
    interaction::{ExternalResult, ExternalStatus, Message, Observation, Role},
};

/// The observation of `{"result": ExternalResult}`.
///
/// # Errors
/// `INVALID_INPUT` naming the field, `UNSAFE_ERROR` for an error text that may not be published.
pub fn observe(input: &Json) -> Result<Json, WireError> {
    let invalid = |problem: String| WireError::invalid(codes::INVALID_INPUT, problem);
    let result = input.field("result").ok_or_else(|| invalid("result: is missing; expected an external result".into()))?;
    let result: ExternalResult = result.to().map_err(|error| invalid(format!("result: {error}")))?;
    match &result.error {
        None if result.status != ExternalStatus::Success => {
            return Err(invalid(format!("result.error: error is required with status {}", result.status.as_str())));
        }
        None => {}
        Some(error) => {
            let checked = check_public_code(&error.code).and_then(|()| check_public_message(&error.message));
            checked.map_err(|unsafe_text| WireError::invalid(codes::UNSAFE_ERROR, unsafe_text.to_string()))?;
        }
    }
    let observation = Observation {
        message: Message { role: Role::Tool, content: content(&result), name: Some(result.source.clone()) },
        call_id: result.call_id,
        source: result.source,
        status: result.status,
        structured_content: result.structured_content,
        references: result.references,
        error: result.error,
        metadata: result.metadata,
    };
    Json::from_serialize(&observation).map_err(|error| invalid(format!("result: {error}")))
}

fn content(result: &ExternalResult) -> Json {
    let mut parts: Vec<Json> = Vec::new();
    let text = |text: &str| {
        let mut w = JsonWriter::new();
        w.begin_object().key("type").string("text").key("text").string(text);
        w.finish()
    };
    let data = |value: &Json| {
        let mut w = JsonWriter::new();
        w.begin_object().key("type").string("json").key("data").value(value);
        w.finish()
    };
    if let Some(error) = result.error.as_ref().filter(|_| result.status != ExternalStatus::Success) {
        parts.push(text(&format!("{}: {}: {}", result.status.as_str(), error.code, error.message)));
    }
    match &result.content {
        None => {}
        Some(content) if content.kind() == JsonKind::String => parts.push(text(&content.to_text().unwrap_or_default())),
        Some(content) if content.kind() == JsonKind::Array && content.elements().all(|part| part.field("type").is_some()) => {
            parts.extend(content.elements());
        }
        Some(content) => parts.push(data(content)),
    }
    parts.extend(result.structured_content.iter().map(data));
    for reference in result.references.iter().flatten() {
        let mut w = JsonWriter::new();
        let reference = Json::from_serialize(reference).unwrap_or_default();
        w.begin_object().key("type").string("reference").key("reference").value(&reference);
        parts.push(w.finish());
    }
    if let [only] = parts.as_slice()
        && only.field("type").and_then(|t| t.to_text()).as_deref() == Some("text")
        && let Some(text) = only.field("text")
    {
        return text;
    }
    let mut w = JsonWriter::new();
    w.begin_array();
    for part in &parts {
        w.value(part);
    }
    w.finish()
}
