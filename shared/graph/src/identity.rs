//! Which call a task makes: its identity, its source, and what a result about it must say.

use ditto_contracts::{CallId, CallKind, Json, JsonKind, NodeType, TaskId, WireError};

use crate::failure::invalid;

/// What a task's input says about its call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallIdentity {
    pub(crate) kind: CallKind,
    pub(crate) call_id: CallId,
    /// The tool, `server:tool`, or server.
    pub(crate) source: Option<String>,
    pub(crate) answer: Answer,
}

/// The shape of what a call answers; needed to say something about a call that nobody answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// An external result, inside `{operation, result}` for MCP.
    External { call_id: String, source: String, mcp: bool },
    /// An output receipt.
    Delivery { delivery_id: String },
    /// Whatever the node defines.
    Other,
}

/// Reads the identity of the call that `task` makes with this input.
///
/// # Errors
/// `INVALID_INPUT` that names the field which is missing or malformed. Nothing must be sent then.
pub(crate) fn identify(
    node: &NodeType,
    input: &Json,
    iteration: u64,
    task: &TaskId,
) -> Result<CallIdentity, WireError> {
    let field = |parent: &Json, path: &str| -> Result<String, WireError> {
        let name = path.rsplit('.').next().unwrap_or(path);
        let value = parent.field(name).unwrap_or_default();
        let text = value.to_text().filter(|text| !text.trim().is_empty());
        text.ok_or_else(|| {
            let found = if value.is_null() { "nothing" } else { "another value" };
            invalid(&format!("task {task}: {path} must be nonempty text, found {found}"))
        })
    };
    let named = |path: &str, text: &str| {
        CallId::new(text).map_err(|problem| invalid(&format!("task {task}: {path}: {problem}")))
    };
    let call_of = |input: &Json| -> Result<(CallId, String, String), WireError> {
        let call = input
            .field("call")
            .filter(|call| call.kind() == JsonKind::Object)
            .ok_or_else(|| invalid(&format!("task {task}: call must be an object")))?;
        let (id, name) = (field(&call, "call.id")?, field(&call, "call.name")?);
        Ok((named("call.id", &id)?, id, name))
    };
    let kind = node.call_kind();
    let minted = || named("task id", &format!("{iteration}/{task}"));
    match node.as_str() {
        NodeType::ACT_TOOL => {
            let (call_id, id, name) = call_of(input)?;
            let answer = Answer::External { call_id: id, source: name.clone(), mcp: false };
            Ok(CallIdentity { kind, call_id, source: Some(name), answer })
        }
        NodeType::ACT_MCP => {
            let invoke = match field(input, "operation")?.as_str() {
                "invoke" => true,
                "discover" => false,
                _ => return Err(invalid(&format!("task {task}: operation must be discover or invoke"))),
            };
            if !invoke {
                let source = input.field("server").and_then(|server| server.to_text());
                return Ok(CallIdentity { kind, call_id: minted()?, source, answer: Answer::Other });
            }
            let server = field(input, "server")?;
            let (call_id, id, name) = call_of(input)?;
            let source = format!("{server}:{name}");
            let answer = Answer::External { call_id: id, source: source.clone(), mcp: true };
            Ok(CallIdentity { kind, call_id, source: Some(source), answer })
        }
        NodeType::OUTPUT => {
            let id = field(input, "deliveryId")?;
            let call_id = named("deliveryId", &id)?;
            Ok(CallIdentity { kind, call_id, source: None, answer: Answer::Delivery { delivery_id: id } })
        }
        _ => Ok(CallIdentity { kind, call_id: minted()?, source: None, answer: Answer::Other }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(node: &str, input: &str) -> Result<CallIdentity, WireError> {
        identify(&NodeType::new(node).unwrap(), &Json::parse(input.to_owned()).unwrap(), 3, &TaskId::new("t").unwrap())
    }

    #[test]
    fn a_call_takes_its_identity_from_its_input() {
        #[rustfmt::skip]
        let table = [
            (NodeType::ACT_TOOL, r#"{"call":{"id":"c 1","name":"pay","arguments":{}}}"#, CallKind::Tool, "c 1", Some("pay")),
            (NodeType::ACT_MCP, r#"{"operation":"invoke","server":"s","call":{"id":"c","name":"n"}}"#, CallKind::Mcp, "c", Some("s:n")),
            (NodeType::ACT_MCP, r#"{"operation":"discover","server":"s"}"#, CallKind::Mcp, "3/t", Some("s")),
            (NodeType::ACT_MCP, r#"{"operation":"discover"}"#, CallKind::Mcp, "3/t", None),
            (NodeType::OUTPUT, r#"{"deliveryId":"d","message":{}}"#, CallKind::Delivery, "d", None),
            ("MEMORY.GET", "{}", CallKind::Memory, "3/t", None),
            ("MY.NODE", "null", CallKind::Tool, "3/t", None),
        ];
        for (node, input, kind, id, source) in table {
            let identity = read(node, input).unwrap();
            assert_eq!((identity.kind, identity.call_id.as_str()), (kind, id), "{input}");
            assert_eq!(identity.source.as_deref(), source, "{input}");
        }
    }

    #[test]
    fn a_bad_identity_names_the_field() {
        let long = format!(r#"{{"deliveryId":"{}"}}"#, "x".repeat(600));
        #[rustfmt::skip]
        let table = [
            (NodeType::ACT_TOOL, "{}", "call must be an object"),
            (NodeType::ACT_TOOL, r#"{"call":{"name":"n"}}"#, "call.id must be nonempty text, found nothing"),
            (NodeType::ACT_TOOL, r#"{"call":{"id":7,"name":"n"}}"#, "call.id must be nonempty text, found another value"),
            (NodeType::ACT_TOOL, r#"{"call":{"id":"a\u0000","name":"n"}}"#, "call.id: call id contains"),
            (NodeType::ACT_TOOL, r#"{"call":{"id":"a"}}"#, "call.name"),
            (NodeType::ACT_MCP, "{}", "operation"),
            (NodeType::ACT_MCP, r#"{"operation":"x"}"#, "operation must be discover or invoke"),
            (NodeType::ACT_MCP, r#"{"operation":"invoke","call":{}}"#, "server"),
            (NodeType::OUTPUT, r#"{"deliveryId":" "}"#, "deliveryId must be nonempty text"),
            (NodeType::OUTPUT, &long, "deliveryId: call id has 600 bytes"),
        ];
        for (node, input, fragment) in table {
            let error = read(node, input).unwrap_err();
            assert_eq!(error.code, "INVALID_INPUT");
            assert!(error.message.contains(fragment), "{input}: {}", error.message);
        }
    }
}
