//! Checking and reducing interaction values (interaction contract, section 6): what leaves here has the known fields
//! only, and no text that may not be published.

use super::{
    Artifact, DeliveryStatus, ExternalResult, ExternalStatus, InteractionError, Message, OutputInput, OutputReceipt,
    Reference, Role, ToolCall,
};
use crate::{ErrorClass, Json, JsonKind, WireError, check_public_code, check_public_message, codes};

/// What is wrong with an interaction value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct InteractionProblem {
    /// Where, as in `error.message`.
    pub path: String,
    /// The rule that is broken. Repeats no part of the value.
    pub problem: String,
    /// [`codes::INVALID_INPUT`], [`codes::UNSAFE_ERROR`] or [`codes::DELIVERY_MISMATCH`].
    pub code: &'static str,
}

impl InteractionProblem {
    fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into(), code: codes::INVALID_INPUT }
    }

    fn below(mut self, parent: &str) -> Self {
        self.path = format!("{parent}.{}", self.path);
        self
    }
}

impl From<InteractionProblem> for WireError {
    fn from(problem: InteractionProblem) -> Self {
        Self::new(ErrorClass::InvalidInput, problem.code, problem.to_string())
    }
}

type Checked<T> = Result<T, InteractionProblem>;

fn object<'a>(json: &'a Json, path: &str) -> Checked<&'a Json> {
    if json.kind() == JsonKind::Object { Ok(json) } else { Err(InteractionProblem::new(path, "not an object")) }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

fn text(json: &Json, name: &str) -> Checked<Option<String>> {
    match json.field(name) {
        None => Ok(None),
        Some(value) => value.to_text().map(Some).ok_or_else(|| InteractionProblem::new(name, "not a string")),
    }
}

fn nonempty(json: &Json, name: &str) -> Checked<String> {
    match text(json, name)? {
        Some(text) if !is_blank(&text) => Ok(text),
        Some(_) => Err(InteractionProblem::new(name, "is empty")),
        None => Err(InteractionProblem::new(name, "is missing")),
    }
}

fn metadata(json: &Json) -> Checked<Option<Json>> {
    json.field("metadata").map(|value| object(&value, "metadata").cloned()).transpose()
}

fn list<T>(json: &Json, name: &str, read: impl Fn(&Json) -> Checked<T>) -> Checked<Option<Vec<T>>> {
    let Some(value) = json.field(name) else { return Ok(None) };
    if value.kind() != JsonKind::Array {
        return Err(InteractionProblem::new(name, "not a list"));
    }
    let one = |(n, item): (usize, Json)| read(&item).map_err(|problem| problem.below(&format!("{name}[{n}]")));
    value.elements().enumerate().map(one).collect::<Checked<Vec<_>>>().map(Some)
}

impl InteractionError {
    /// Reads an error, reduced to its three fields.
    ///
    /// # Errors
    /// It has another shape, or a code or message that may not be published.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "error")?;
        let retryable = match json.field("retryable") {
            None => None,
            Some(value) if value.kind() == JsonKind::Bool => Some(value.is_true()),
            Some(_) => return Err(InteractionProblem::new("error.retryable", "not a boolean")),
        };
        let below = |problem: InteractionProblem| problem.below("error");
        let required = |name: &str| text(json, name)?.ok_or_else(|| InteractionProblem::new(name, "is missing"));
        let error =
            Self { code: required("code").map_err(below)?, message: required("message").map_err(below)?, retryable };
        error.check()?;
        Ok(error)
    }

    /// Checks that code and message may be published.
    ///
    /// # Errors
    /// Names the rule; the text contains `unsafe interaction error`.
    pub fn check(&self) -> Result<(), InteractionProblem> {
        let refused = |reason: crate::UnsafeText| InteractionProblem {
            path: format!("error.{}", reason.part),
            problem: reason.to_string(),
            code: codes::UNSAFE_ERROR,
        };
        check_public_code(&self.code).map_err(refused)?;
        check_public_message(&self.message).map_err(refused)
    }
}

impl Reference {
    /// Reads a reference, reduced to its known fields.
    ///
    /// # Errors
    /// `uri` is blank, or a field is no string.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "reference")?;
        Ok(Self { uri: nonempty(json, "uri")?, media_type: text(json, "mediaType")?, digest: text(json, "digest")? })
    }
}

impl Artifact {
    /// Reads an artifact, reduced to its known fields.
    ///
    /// # Errors
    /// `name` is blank, or the reference is none.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "artifact")?;
        let reference = json.field("reference").ok_or_else(|| InteractionProblem::new("reference", "is missing"))?;
        Ok(Self {
            name: nonempty(json, "name")?,
            reference: Reference::from_json(&reference).map_err(|problem| problem.below("reference"))?,
        })
    }
}

impl Message {
    /// Reads a message, reduced to its known fields.
    ///
    /// # Errors
    /// The role is unknown, `content` is absent, or `name` is no string.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "message")?;
        let role = match text(json, "role")?.as_deref() {
            Some("system") => Role::System,
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("tool") => Role::Tool,
            Some(_) => return Err(InteractionProblem::new("role", "not system, user, assistant or tool")),
            None => return Err(InteractionProblem::new("role", "is missing")),
        };
        let content = json.field("content").ok_or_else(|| InteractionProblem::new("content", "is missing"))?;
        Ok(Self { role, content, name: text(json, "name")? })
    }
}

impl ToolCall {
    /// Reads a call: `id` and `name` not blank, `arguments` an object.
    ///
    /// # Errors
    /// Names the field.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "call")?;
        let arguments = json.field("arguments").ok_or_else(|| InteractionProblem::new("arguments", "is missing"))?;
        object(&arguments, "arguments")?;
        Ok(Self { id: nonempty(json, "id")?, name: nonempty(json, "name")?, arguments })
    }
}

impl ExternalResult {
    /// Reads a result, reduced to its known fields.
    ///
    /// # Errors
    /// It breaks a rule of section 6.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "result")?;
        let status = match text(json, "status")?.as_deref() {
            Some("success") => ExternalStatus::Success,
            Some("failed") => ExternalStatus::Failed,
            Some("cancelled") => ExternalStatus::Cancelled,
            Some("timeout") => ExternalStatus::Timeout,
            Some("unknown") => ExternalStatus::Unknown,
            Some(_) => {
                return Err(InteractionProblem::new("status", "not success, failed, cancelled, timeout or unknown"));
            }
            None => return Err(InteractionProblem::new("status", "is missing")),
        };
        let result = Self {
            call_id: nonempty(json, "callId")?,
            source: nonempty(json, "source")?,
            status,
            content: json.field("content"),
            structured_content: json.field("structuredContent"),
            references: list(json, "references", Reference::from_json)?,
            error: json.field("error").map(|error| InteractionError::from_json(&error)).transpose()?,
            metadata: metadata(json)?,
        };
        result.check()?;
        Ok(result)
    }

    /// Checks a result that was put together from typed parts.
    ///
    /// # Errors
    /// It breaks a rule of section 6.
    pub fn check(&self) -> Result<(), InteractionProblem> {
        for (name, value) in [("callId", &self.call_id), ("source", &self.source)] {
            if is_blank(value) {
                return Err(InteractionProblem::new(name, "is empty"));
            }
        }
        match (&self.error, self.status) {
            (Some(error), _) => error.check()?,
            (None, ExternalStatus::Success) => {}
            (None, _) => {
                return Err(InteractionProblem::new("error", "error is required unless the status is success"));
            }
        }
        let empty = self.content.is_none() && self.structured_content.is_none() && self.references.is_none();
        if self.status == ExternalStatus::Success && empty {
            let problem = "success needs content, structuredContent or references (no content)";
            return Err(InteractionProblem::new("content", problem));
        }
        check_references(self.references.as_deref())?;
        self.metadata.as_ref().map_or(Ok(()), |value| object(value, "metadata").map(|_| ()))
    }
}

fn check_references(references: Option<&[Reference]>) -> Checked<()> {
    match references.unwrap_or_default().iter().position(|reference| is_blank(&reference.uri)) {
        Some(n) => Err(InteractionProblem::new(format!("references[{n}].uri"), "is empty")),
        None => Ok(()),
    }
}

fn check_artifacts(artifacts: Option<&[Artifact]>) -> Checked<()> {
    for (n, artifact) in artifacts.unwrap_or_default().iter().enumerate() {
        if is_blank(&artifact.name) {
            return Err(InteractionProblem::new(format!("artifacts[{n}].name"), "is empty"));
        }
        if is_blank(&artifact.reference.uri) {
            return Err(InteractionProblem::new(format!("artifacts[{n}].reference.uri"), "is empty"));
        }
    }
    Ok(())
}

impl OutputInput {
    /// Reads the input of a delivery, reduced to its known fields.
    ///
    /// # Errors
    /// It breaks a rule of section 9; nothing may be delivered.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "input")?;
        let message = json.field("message").ok_or_else(|| InteractionProblem::new("message", "is missing"))?;
        object(&message, "message")?;
        Ok(Self {
            delivery_id: nonempty(json, "deliveryId")?,
            message: Message::from_json(&message).map_err(|problem| problem.below("message"))?,
            artifacts: list(json, "artifacts", Artifact::from_json)?,
        })
    }
}

impl OutputReceipt {
    /// A receipt without anything but its status.
    pub fn accepted(delivery_id: impl Into<String>) -> Self {
        Self {
            delivery_id: delivery_id.into(),
            status: DeliveryStatus::Accepted,
            artifacts: None,
            error: None,
            metadata: None,
        }
    }

    /// A receipt that says why not.
    pub fn with_error(delivery_id: impl Into<String>, status: DeliveryStatus, error: InteractionError) -> Self {
        Self { delivery_id: delivery_id.into(), status, artifacts: None, error: Some(error), metadata: None }
    }

    /// Reads a receipt, reduced to its known fields.
    ///
    /// # Errors
    /// It breaks a rule of section 6.
    pub fn from_json(json: &Json) -> Result<Self, InteractionProblem> {
        object(json, "receipt")?;
        let status = match text(json, "status")?.as_deref() {
            Some("accepted") => DeliveryStatus::Accepted,
            Some("rejected") => DeliveryStatus::Rejected,
            Some("unknown") => DeliveryStatus::Unknown,
            Some(_) => return Err(InteractionProblem::new("status", "not accepted, rejected or unknown")),
            None => return Err(InteractionProblem::new("status", "is missing")),
        };
        let receipt = Self {
            delivery_id: nonempty(json, "deliveryId")?,
            status,
            artifacts: list(json, "artifacts", Artifact::from_json)?,
            error: json.field("error").map(|error| InteractionError::from_json(&error)).transpose()?,
            metadata: metadata(json)?,
        };
        receipt.check()?;
        Ok(receipt)
    }

    /// Checks a receipt that was put together from typed parts.
    ///
    /// # Errors
    /// It breaks a rule of section 6.
    pub fn check(&self) -> Result<(), InteractionProblem> {
        if is_blank(&self.delivery_id) {
            return Err(InteractionProblem::new("deliveryId", "is empty"));
        }
        match (&self.error, self.status) {
            (Some(error), _) => error.check()?,
            (None, DeliveryStatus::Accepted) => {}
            (None, _) => return Err(InteractionProblem::new("error", "error is required unless accepted")),
        }
        check_artifacts(self.artifacts.as_deref())?;
        self.metadata.as_ref().map_or(Ok(()), |value| object(value, "metadata").map(|_| ()))
    }

    /// The same receipt if it answers this delivery.
    ///
    /// # Errors
    /// It answers another one; the text contains `deliveryId mismatch`.
    pub fn answering(self, delivery_id: &str) -> Result<Self, InteractionProblem> {
        if self.delivery_id == delivery_id {
            return Ok(self);
        }
        let problem = "deliveryId mismatch: the receipt answers another delivery".into();
        Err(InteractionProblem { path: "deliveryId".into(), problem, code: codes::DELIVERY_MISMATCH })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn cases_9_10_13_a_result_that_breaks_a_rule_is_refused() {
        #[rustfmt::skip]
        let table = [
            (r#"{"callId":"c","source":"s","status":"success"}"#, "no content"),
            (r#"{"callId":"c","source":"s","status":"failed"}"#, "error is required"),
            (r#"{"callId":"c","source":"s","status":"success","content":"ok","error":{"code":"A","message":"Bearer synthetic-secret-marker"}}"#,
             "unsafe interaction error message"),
            (r#"{"callId":" ","source":"s","status":"success","content":1}"#, "callId"),
            (r#"{"callId":"c","source":7,"status":"success","content":1}"#, "source"),
            (r#"{"callId":"c","source":"s","status":"done","content":1}"#, "status"),
            (r#"{"callId":"c","source":"s","status":"success","content":1,"metadata":[]}"#, "metadata"),
            (r#"{"callId":"c","source":"s","status":"success","content":1,"error":null}"#, "error"),
            (r#"{"callId":"c","source":"s","status":"success","references":{}}"#, "references"),
            (r#"[]"#, "not an object"),
        ];
        for (text, fragment) in table {
            let error = ExternalResult::from_json(&json(text)).unwrap_err().to_string();
            assert!(error.contains(fragment), "{text}: {error}");
        }
    }

    #[test]
    fn case_12_139_an_error_is_reduced_to_its_three_fields() {
        let text = r#"{"callId":"c","source":"s","status":"failed","extra":1,
            "error":{"code":"A","message":"Safe summary","retryable":false,"stack":"at x (y.ts:1:2)","token":"t"}}"#;
        let result = ExternalResult::from_json(&json(text)).unwrap();
        let written = Json::from_serialize(&result).unwrap();
        assert_eq!(
            written.as_str(),
            r#"{"callId":"c","source":"s","status":"failed","error":{"code":"A","message":"Safe summary","retryable":false}}"#
        );
    }

    #[test]
    fn case_130_retryable_is_a_boolean() {
        let error = InteractionError::from_json(&json(r#"{"code":"A","message":"m","retryable":"yes"}"#)).unwrap_err();
        assert!(error.to_string().contains("retryable"));
    }

    #[test]
    fn case_140_references_need_a_uri_and_texts() {
        for text in [r#"{"uri":" "}"#, r#"{}"#, r#"{"uri":"u","mediaType":1}"#, r#"{"uri":"u","digest":false}"#, "null"]
        {
            assert!(Reference::from_json(&json(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn cases_146_147_a_receipt_that_breaks_a_rule_is_refused() {
        for part in [
            r#""error":{"code":"A","message":"Bearer x"}"#,
            r#""artifacts":{}"#,
            r#""artifacts":[null]"#,
            r#""artifacts":[{"name":1,"reference":{"uri":"u"}}]"#,
            r#""artifacts":[{"name":"n","reference":{}}]"#,
            r#""artifacts":[{"name":"n","reference":{"uri":"u","digest":1}}]"#,
            r#""metadata":[]"#,
            r#""metadata":"text""#,
        ] {
            let text = format!(r#"{{"deliveryId":"d","status":"accepted",{part}}}"#);
            assert!(OutputReceipt::from_json(&json(&text)).is_err(), "{text}");
        }
        assert!(OutputReceipt::from_json(&json(r#"{"deliveryId":"d","status":"rejected"}"#)).is_err());
        let text = r#"{"deliveryId":"d","status":"accepted","artifacts":[],"metadata":{"queued":true}}"#;
        let receipt = OutputReceipt::from_json(&json(text)).unwrap();
        assert_eq!(Json::from_serialize(&receipt).unwrap().as_str(), text, "case 148");
        assert!(receipt.answering("other").unwrap_err().to_string().contains("deliveryId mismatch"), "case 142");
    }

    #[test]
    fn cases_150_151_an_output_input_that_breaks_a_rule_is_refused() {
        let mut table: Vec<String> = [
            "null",
            "[]",
            "{}",
            r#"{"role":"invalid","content":1}"#,
            r#"{"role":"user"}"#,
            r#"{"role":"user","content":1,"name":3}"#,
        ]
        .iter()
        .map(|message| format!(r#"{{"deliveryId":"d","message":{message}}}"#))
        .collect();
        for artifacts in [
            "null",
            "{}",
            "[null]",
            "[{}]",
            r#"[{"name":123,"reference":{"uri":"u"}}]"#,
            r#"[{"name":"n","reference":{}}]"#,
            r#"[{"name":"n","reference":{"uri":" "}}]"#,
            r#"[{"name":"n","reference":{"uri":"u","mediaType":1}}]"#,
            r#"[{"name":"n","reference":{"uri":"u","digest":false}}]"#,
        ] {
            table.push(format!(
                r#"{{"deliveryId":"d","message":{{"role":"user","content":""}},"artifacts":{artifacts}}}"#
            ));
        }
        table.push(r#"{"deliveryId":" ","message":{"role":"user","content":""}}"#.into());
        for text in table {
            assert!(OutputInput::from_json(&json(&text)).is_err(), "{text}");
        }
    }

    #[test]
    fn case_152_any_json_is_content() {
        for content in [
            r#""""#,
            "null",
            "false",
            "0",
            r#"{"answer":42}"#,
            r#"[1,"two",null]"#,
            r#"[{"type":"text","text":"a"},{"type":"json","data":1},{"type":"reference","reference":{"uri":"u"}}]"#,
        ] {
            let text = format!(r#"{{"deliveryId":"d","message":{{"role":"assistant","content":{content}}}}}"#);
            assert_eq!(OutputInput::from_json(&json(&text)).unwrap().message.content.as_str(), content);
        }
    }
}
