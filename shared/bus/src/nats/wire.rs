//! Between the fleet's messages and those of the client library.

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};
use ditto_contracts::wire::Headers;

use crate::{BusError, Message, Received};

/// Headers as the client library wants them; `None` when there are none.
pub(super) fn headers_out(headers: &Headers) -> Result<Option<HeaderMap>, BusError> {
    if headers.is_empty() {
        return Ok(None);
    }
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter() {
        let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) else {
            return Err(BusError::Denied(format!("header {name:?} cannot be sent")));
        };
        map.append(name, value);
    }
    Ok(Some(map))
}

/// Headers as they came.
pub(super) fn headers_in(map: Option<&HeaderMap>) -> Headers {
    let mut headers = Headers::new();
    for (name, values) in map.into_iter().flat_map(HeaderMap::iter) {
        for value in values {
            headers.push_received(name.as_ref(), value.as_str());
        }
    }
    headers
}

/// A message as it came.
pub(super) fn message_in(message: async_nats::Message) -> Message {
    Message {
        headers: headers_in(message.headers.as_ref()),
        subject: message.subject.to_string(),
        body: message.payload,
    }
}

/// A plain message as it came.
pub(super) fn received(mut message: async_nats::Message) -> Received {
    let reply = message.reply.take().map(|reply| reply.to_string());
    Received { message: message_in(message), reply }
}

/// What the reply subject of a stored message says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) deliveries: u64,
}

/// Reads `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.…`; `None` for any other subject.
pub(super) fn stored(reply: &Subject) -> Option<Stored> {
    let tokens: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
    // Older servers send 7 tokens; newer ones two more in front and perhaps more at the end.
    let first = match tokens.len() {
        7 => 2,
        9.. => 4,
        _ => return None,
    };
    Some(Stored { deliveries: tokens.get(first)?.parse().ok()?, sequence: tokens.get(first + 1)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_subjects_of_all_servers_are_read() {
        let read = |text: &str| stored(&Subject::from(text));
        let expected = Some(Stored { deliveries: 3, sequence: 42 });
        assert_eq!(read("$JS.ACK.S.C.3.42.7.1700000000000000000.5"), expected);
        assert_eq!(read("$JS.ACK._.HASH.S.C.3.42.7.1700000000000000000.5"), expected);
        assert_eq!(read("$JS.ACK._.HASH.S.C.3.42.7.1700000000000000000.5.token"), expected);
        for bad in ["", "_INBOX.x", "$JS.ACK.", "$JS.ACK.a.b.c", "$JS.ACK.S.C.x.42.7.1.5", "$JS.ACK.1.2.3.4.5.6.7.8"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn headers_keep_names_values_and_repetitions() {
        let mut headers = Headers::new();
        headers.push("Ditto-Call", "x:y").push("Ditto-Call", "").push("traceparent", "00-ab");
        let map = headers_out(&headers).unwrap().unwrap();
        let back = headers_in(Some(&map));
        let sorted = |headers: &Headers| {
            let mut all: Vec<_> = headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&back), sorted(&headers));
        assert_eq!(headers_out(&Headers::new()).unwrap(), None);
        assert!(headers_out(Headers::new().push("bad name", "x")).is_err());
    }
}
