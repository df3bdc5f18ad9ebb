//! What a message must look like before any bus takes it.

use ditto_contracts::wire::Headers;

use crate::{BusError, subject};

/// Bytes the headers take on the wire: the version line, `name: value` lines, an empty line.
pub(crate) fn header_bytes(headers: &Headers) -> usize {
    if headers.is_empty() {
        return 0;
    }
    const FRAME: usize = "NATS/1.0\r\n".len() + "\r\n".len();
    FRAME + headers.iter().map(|(name, value)| name.len() + value.len() + ": \r\n".len()).sum::<usize>()
}

/// Size of a message as the bus counts it.
pub(crate) fn size(headers: &Headers, body: &[u8]) -> usize {
    header_bytes(headers) + body.len()
}

/// Refuses what cannot be sent as it is: too large, no subject, a header that would break the frame.
pub(crate) fn check(subject: &str, headers: &Headers, body: &[u8], max: usize) -> Result<(), BusError> {
    let size = size(headers, body);
    if size > max {
        return Err(BusError::TooLarge { size, max });
    }
    if !subject::is_subject(subject) {
        return Err(BusError::Denied(format!("{subject:?} is not a subject")));
    }
    for (name, value) in headers.iter() {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && b != b':') {
            return Err(BusError::Denied(format!("{name:?} is not a header name")));
        }
        if value.bytes().any(|b| b == b'\r' || b == b'\n') {
            return Err(BusError::Denied(format!("the value of header {name} has a line break")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_the_frame_is_refused() {
        let mut headers = Headers::new();
        headers.push("A", "1").push("B", "");
        assert_eq!(header_bytes(&headers), "NATS/1.0\r\nA: 1\r\nB: \r\n\r\n".len());
        assert_eq!(check("a.b", &headers, b"body", 100), Ok(()));
        assert_eq!(check("a.b", &headers, b"body", 25), Err(BusError::TooLarge { size: 27, max: 25 }));
        assert!(matches!(check("a.>", &headers, b"", 100), Err(BusError::Denied(_))));
        assert!(matches!(check("a", headers.clone().push("C", "x\ny"), b"", 100), Err(BusError::Denied(_))));
        assert!(matches!(check("a", headers.push("C D", "x"), b"", 100), Err(BusError::Denied(_))));
    }
}
