//! Streams and consumers: the JetStream requests this bus makes and what their answers mean.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{link::Link, plain::ask, pull::consumer_key};
use crate::{BusError, ConsumerSpec, StreamSpec, StreamState, time::nanos};

/// An error as JetStream tells it; older servers leave parts out.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ApiError {
    code: u16,
    err_code: u32,
    description: String,
}

mod code {
    pub(super) const INSUFFICIENT_RESOURCES: u32 = 10023;
    pub(super) const CONSUMER_NOT_FOUND: u32 = 10014;
    pub(super) const CONSUMER_NAME_EXISTS: u32 = 10013;
    pub(super) const STORAGE_EXCEEDED: u32 = 10047;
    pub(super) const STREAM_INVALID_CONFIG: u32 = 10052;
    pub(super) const MESSAGE_TOO_LARGE: u32 = 10054;
    pub(super) const STREAM_NAME_IN_USE: u32 = 10058;
    pub(super) const STREAM_NOT_FOUND: u32 = 10059;
    pub(super) const STREAM_SUBJECT_OVERLAP: u32 = 10065;
    pub(super) const STREAM_STORE_FAILED: u32 = 10077;
    pub(super) const HEADER_TOO_LARGE: u32 = 10097;
    pub(super) const WORK_QUEUE_UNFILTERED: u32 = 10099;
    pub(super) const WORK_QUEUE_OVERLAP: u32 = 10100;
    pub(super) const NOT_ENABLED: u32 = 10076;
    pub(super) const NOT_ENABLED_FOR_ACCOUNT: u32 = 10039;
    pub(super) const FILTERS_OVERLAP: u32 = 10138;
    pub(super) const CONSUMER_EXISTS: u32 = 10148;
}

/// What a refused publish means.
pub(super) fn publish_error(error: ApiError, size: usize, max: impl FnOnce() -> usize) -> BusError {
    match error.err_code {
        code::MESSAGE_TOO_LARGE | code::HEADER_TOO_LARGE => BusError::TooLarge { size, max: max() },
        code::STORAGE_EXCEEDED | code::INSUFFICIENT_RESOURCES => BusError::Full,
        // One code for everything the store refuses: its words tell which.
        code::STREAM_STORE_FAILED if error.description.contains("maximum") => BusError::Full,
        code::STREAM_NOT_FOUND => BusError::Missing("stream".to_owned()),
        code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT => BusError::Denied(error.description),
        _ => maybe("publish", error),
    }
}

fn api_error(operation: &'static str, name: &str, error: ApiError) -> BusError {
    match error.err_code {
        code::STREAM_NOT_FOUND | code::CONSUMER_NOT_FOUND => BusError::Missing(name.to_owned()),
        code::STREAM_NAME_IN_USE
        | code::STREAM_SUBJECT_OVERLAP
        | code::STREAM_INVALID_CONFIG
        | code::CONSUMER_NAME_EXISTS
        | code::CONSUMER_EXISTS
        | code::WORK_QUEUE_UNFILTERED
        | code::WORK_QUEUE_OVERLAP
        | code::FILTERS_OVERLAP => BusError::Conflict { name: name.to_owned(), difference: error.description },
        code::STORAGE_EXCEEDED => BusError::Full,
        code::NOT_ENABLED | code::NOT_ENABLED_FOR_ACCOUNT => BusError::Denied(error.description),
        _ if error.code == 404 => BusError::Missing(name.to_owned()),
        _ => maybe(operation, error),
    }
}

fn maybe(operation: &'static str, error: ApiError) -> BusError {
    BusError::Maybe { operation, reason: format!("{} ({})", error.description, error.err_code) }
}

#[derive(Deserialize)]
struct StreamInfo {
    #[serde(default)]
    config: Map<String, Value>,
    #[serde(default)]
    created: String,
    #[serde(default)]
    state: StreamInfoState,
    #[serde(default)]
    did_create: bool,
    error: Option<ApiError>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct StreamInfoState {
    messages: u64,
    bytes: u64,
    last_seq: u64,
    /// Only when asked for.
    subjects: std::collections::HashMap<String, u64>,
}

#[derive(Deserialize)]
struct ConsumerInfo {
    #[serde(default)]
    config: Map<String, Value>,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct Done {
    error: Option<ApiError>,
}

async fn call<T: serde::de::DeserializeOwned>(
    link: &Link,
    operation: &'static str,
    subject: String,
    body: &Value,
) -> Result<T, BusError> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let answer = match ask(link, operation, format!("$JS.API.{subject}"), body.into()).await {
        // Nobody serves the interface: JetStream is off, or still starting.
        Err(BusError::NoResponders) => {
            return Err(BusError::Maybe { operation, reason: "JetStream does not answer".to_owned() });
        }
        other => other?,
    };
    serde_json::from_slice(&answer)
        .map_err(|_| BusError::Maybe { operation, reason: "the answer is unreadable".to_owned() })
}

async fn stream_info(link: &Link, name: &str) -> Result<StreamInfo, BusError> {
    call(link, "stream state", format!("STREAM.INFO.{name}"), &Value::Null).await
}

/// What a stream looks like.
pub(super) async fn stream_state(link: &Link, name: &str) -> Result<StreamState, BusError> {
    let info = stream_info(link, name).await?;
    match info.error {
        Some(error) => Err(api_error("stream state", &format!("stream {name}"), error)),
        None => state(&info),
    }
}

/// Subjects with messages; the server tells up to 100 000 of them.
pub(super) async fn stream_subjects(link: &Link, name: &str, filter: &str) -> Result<Vec<(String, u64)>, BusError> {
    let body = serde_json::json!({ "subjects_filter": filter });
    let info: StreamInfo = call(link, "stream subjects", format!("STREAM.INFO.{name}"), &body).await?;
    match info.error {
        Some(error) => Err(api_error("stream subjects", &format!("stream {name}"), error)),
        None => Ok(info.state.subjects.into_iter().collect()),
    }
}

/// Creates or updates a stream.
pub(super) async fn ensure_stream(link: &Link, spec: &StreamSpec) -> Result<StreamState, BusError> {
    let max_payload = link.client.max_payload();
    if spec.max_message_bytes as usize > max_payload {
        let (stream, server) = (spec.max_message_bytes, max_payload);
        tracing::warn!(stream, server, "the server takes smaller messages than the stream {}", spec.name);
    }
    let name = format!("stream {}", spec.name);
    // Twice: another coordinator may create it in between.
    for last in [false, true] {
        let info = stream_info(link, spec.name).await?;
        match info.error {
            None => return update_stream(link, spec, info).await,
            Some(error) => match api_error("stream state", &name, error) {
                BusError::Missing(_) => {}
                other => return Err(other),
            },
        }
        let wanted = Value::Object(stream_config(spec));
        let made: StreamInfo = call(link, "create stream", format!("STREAM.CREATE.{}", spec.name), &wanted).await?;
        match made.error {
            None => return state(&made),
            Some(error) if error.err_code == code::STREAM_NAME_IN_USE && !last => {}
            Some(error) => return Err(api_error("create stream", &name, error)),
        }
    }
    Err(BusError::Maybe { operation: "create stream", reason: "it came and went".to_owned() })
}

async fn update_stream(link: &Link, spec: &StreamSpec, info: StreamInfo) -> Result<StreamState, BusError> {
    let wanted = stream_config(spec);
    let differs = |key: &&&str| info.config.get(**key) != wanted.get(**key);
    if let Some(key) = ["retention", "storage"].iter().find(differs) {
        let shown = |config: &Map<String, Value>| config.get(*key).map(Value::to_string).unwrap_or_default();
        return Err(BusError::Conflict {
            name: format!("stream {}", spec.name),
            difference: format!("{key} is {}, not {}", shown(&info.config), shown(&wanted)),
        });
    }
    if wanted.iter().all(|(key, value)| info.config.get(key) == Some(value)) {
        return state(&info);
    }
    let mut config = info.config;
    config.extend(wanted);
    let operation = "update stream";
    let subject = format!("STREAM.UPDATE.{}", spec.name);
    let updated: StreamInfo = call(link, operation, subject, &Value::Object(config)).await?;
    match updated.error {
        Some(error) => Err(api_error(operation, &format!("stream {}", spec.name), error)),
        None => state(&updated),
    }
}

fn stream_config(spec: &StreamSpec) -> Map<String, Value> {
    // The server refuses a window longer than the age.
    let window = if spec.max_age.is_zero() { spec.duplicate_window } else { spec.duplicate_window.min(spec.max_age) };
    let limit = |value: u64| if value == 0 { json!(-1) } else { json!(value) };
    let config = json!({
        "name": spec.name,
        "subjects": spec.subjects,
        "retention": "workqueue",
        "storage": "file",
        "discard": "new",
        "max_bytes": limit(spec.max_bytes),
        "max_age": nanos(spec.max_age),
        "max_msg_size": limit(u64::from(spec.max_message_bytes)),
        "duplicate_window": nanos(window),
        "num_replicas": spec.replicas.max(1),
        "allow_msg_ttl": true,
    });
    match config {
        Value::Object(map) => map,
        _ => Map::new(), // cannot be: the literal above is an object
    }
}

fn state(info: &StreamInfo) -> Result<StreamState, BusError> {
    let created = async_nats::datetime::parse_rfc3339(&info.created).map_err(|_| BusError::Maybe {
        operation: "stream state",
        reason: "its time of creation is unreadable".to_owned(),
    })?;
    Ok(StreamState {
        created_ms: i64::try_from(created.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX),
        last_sequence: info.state.last_seq,
        messages: info.state.messages,
        bytes: info.state.bytes,
        created_now: info.did_create,
    })
}

/// Whether a consumer exists.
///
/// # Errors
/// [`BusError::Missing`] when not.
pub(super) async fn consumer_exists(link: &Link, stream: &str, name: &str) -> Result<(), BusError> {
    consumer_info(link, stream, name).await.map(|_| ())
}

async fn consumer_info(link: &Link, stream: &str, name: &str) -> Result<ConsumerInfo, BusError> {
    let operation = "consumer state";
    let info: ConsumerInfo = call(link, operation, format!("CONSUMER.INFO.{stream}.{name}"), &Value::Null).await?;
    match info.error {
        None => Ok(info),
        Some(error) => Err(api_error(operation, &consumer_key(stream, name), error)),
    }
}

/// Creates a consumer or updates what may change. An existing one is never created over: a refused creation can take
/// its state along.
pub(super) async fn ensure_consumer(link: &Link, spec: &ConsumerSpec) -> Result<(), BusError> {
    let key = consumer_key(spec.stream, &spec.name);
    let wanted = consumer_config(spec);
    for last in [false, true] {
        let (operation, action, config) = match consumer_info(link, spec.stream, &spec.name).await {
            Ok(info) => {
                let fixed = ["ack_policy", "deliver_policy"].iter().find(|k| info.config.get(**k) != wanted.get(**k));
                if let Some(field) = fixed {
                    return Err(BusError::Conflict { name: key, difference: format!("{field} differs") });
                }
                if same_consumer(&info.config, &wanted) {
                    return Ok(());
                }
                let mut config = info.config;
                config.remove("filter_subject");
                config.remove("filter_subjects");
                config.extend(wanted.clone());
                ("update consumer", "update", config)
            }
            Err(BusError::Missing(_)) => {
                // Tells a missing stream from a missing consumer.
                stream_state(link, spec.stream).await?;
                ("create consumer", "create", wanted.clone())
            }
            Err(other) => return Err(other),
        };
        let body = json!({ "stream_name": spec.stream, "config": config, "action": action });
        let subject = format!("CONSUMER.CREATE.{}.{}", spec.stream, spec.name);
        let made: ConsumerInfo = call(link, operation, subject, &body).await?;
        match made.error {
            None => return Ok(()),
            // Another coordinator was faster, or removed it: look again.
            Some(error)
                if !last
                    && matches!(
                        error.err_code,
                        code::CONSUMER_EXISTS | code::CONSUMER_NAME_EXISTS | code::CONSUMER_NOT_FOUND | 10149
                    ) => {}
            // The server compares a creation with others first, also when the other one is the same.
            Some(error) if !last && error.err_code == code::WORK_QUEUE_OVERLAP && action == "create" => {}
            Some(error) => return Err(api_error(operation, &key, error)),
        }
    }
    Err(BusError::Maybe { operation: "create consumer", reason: "it came and went".to_owned() })
}

fn consumer_config(spec: &ConsumerSpec) -> Map<String, Value> {
    let unlimited = |value: u32| if value == 0 { json!(-1) } else { json!(value) };
    let mut config = Map::new();
    config.insert("durable_name".to_owned(), json!(spec.name));
    config.insert("name".to_owned(), json!(spec.name));
    config.insert("ack_policy".to_owned(), json!("explicit"));
    config.insert("deliver_policy".to_owned(), json!("all"));
    config.insert("replay_policy".to_owned(), json!("instant"));
    config.insert("ack_wait".to_owned(), json!(nanos(spec.ack_wait)));
    config.insert("max_deliver".to_owned(), unlimited(spec.max_deliver));
    config.insert("max_ack_pending".to_owned(), unlimited(spec.max_ack_pending));
    match spec.filter_subjects.as_slice() {
        [] => {}
        [one] => {
            config.insert("filter_subject".to_owned(), json!(one));
        }
        several => {
            config.insert("filter_subjects".to_owned(), json!(several));
        }
    }
    config
}

/// Whether an existing consumer is as wanted; what the server adds does not count, filters count in any order.
fn same_consumer(existing: &Map<String, Value>, wanted: &Map<String, Value>) -> bool {
    const FILTERS: [&str; 2] = ["filter_subject", "filter_subjects"];
    let filters = |config: &Map<String, Value>| {
        let mut all: Vec<String> = Vec::new();
        for value in FILTERS.iter().filter_map(|key| config.get(*key)) {
            let list = value.as_array().map(Vec::as_slice).unwrap_or(std::slice::from_ref(value));
            all.extend(list.iter().filter_map(Value::as_str).map(str::to_owned));
        }
        all.sort();
        all
    };
    let rest = |(key, value): (&String, &Value)| FILTERS.contains(&key.as_str()) || existing.get(key) == Some(value);
    filters(existing) == filters(wanted) && wanted.iter().all(rest)
}

/// Removes a consumer. Fine when it is not there.
pub(super) async fn delete_consumer(link: &Link, stream: &str, name: &str) -> Result<(), BusError> {
    let operation = "delete consumer";
    let done: Done = call(link, operation, format!("CONSUMER.DELETE.{stream}.{name}"), &Value::Null).await?;
    match done.error.map(|error| api_error(operation, &consumer_key(stream, name), error)) {
        None | Some(BusError::Missing(_)) => Ok(()),
        Some(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_apart_by_code() {
        let error = |json: &str| publish_error(serde_json::from_str(json).unwrap(), 9, || 5);
        assert_eq!(error(r#"{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}"#), BusError::Full);
        assert_eq!(error(r#"{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}"#), {
            BusError::TooLarge { size: 9, max: 5 }
        });
        assert!(matches!(error(r#"{"err_code":10077,"description":"disk"}"#), BusError::Maybe { .. }));
        // Tolerant of servers that leave the code out.
        assert!(matches!(error(r#"{"code":500,"description":"odd"}"#), BusError::Maybe { .. }));
        assert!(matches!(error("{}"), BusError::Maybe { .. }));
    }

    #[test]
    fn a_consumer_is_the_same_whatever_the_server_adds() {
        let spec = ConsumerSpec {
            stream: "S",
            name: "c".to_owned(),
            filter_subjects: vec!["a.b".to_owned(), "a.c".to_owned()],
            ack_wait: std::time::Duration::from_secs(30),
            max_deliver: 20,
            max_ack_pending: 100,
        };
        let wanted = consumer_config(&spec);
        let mut existing = wanted.clone();
        existing.insert("num_replicas".to_owned(), json!(0));
        existing.insert("filter_subjects".to_owned(), json!(["a.c", "a.b"]));
        assert!(same_consumer(&existing, &wanted));
        existing.insert("max_deliver".to_owned(), json!(3));
        assert!(!same_consumer(&existing, &wanted));
    }
}
