//! The least HTTP a load client needs: one kept-alive connection, one request at a time. A general client costs more
//! CPU per request than the steps that are measured.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// Longest answer.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest wait for an answer; more than the longest wait that a request may ask for.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

/// One connection; made when needed, made anew after an error.
#[derive(Debug)]
pub(super) struct Connection {
    address: String,
    stream: Option<BufReader<TcpStream>>,
    line: String,
    body: Vec<u8>,
}

impl Connection {
    /// To `host:port`.
    pub(super) fn to(address: &str) -> Self {
        Self { address: address.to_owned(), stream: None, line: String::new(), body: Vec::new() }
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// The connection failed; whether the request was worked on is then unknown.
    pub(super) async fn send(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<(u16, &[u8])> {
        let answered = tokio::time::timeout(ANSWER_WITHIN, self.exchange(method, path, body)).await;
        match answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(status) => Ok((status, &self.body)),
            Err(error) => {
                self.stream = None;
                Err(error)
            }
        }
    }

    async fn exchange(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<u16> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            closed => {
                let connected = TcpStream::connect(&self.address).await?;
                connected.set_nodelay(true)?;
                closed.insert(BufReader::new(connected))
            }
        };
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n", self.address, body.len())
                .into_bytes();
        request.extend_from_slice(body);
        stream.write_all(&request).await?;
        let (mut status, mut length) = (None, None);
        loop {
            self.line.clear();
            if stream.read_line(&mut self.line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = self.line.trim_end();
            if line.is_empty() {
                break;
            }
            if status.is_none() {
                status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let (Some(status), Some(length)) = (status, length.filter(|length| *length <= BODY_BYTES_MAX)) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        self.body.resize(length, 0);
        stream.read_exact(&mut self.body).await?;
        Ok(status)
    }
}

/// `host:port` of an `http://` address.
pub(super) fn address_of(url: &str) -> Option<String> {
    let rest = url.strip_prefix("http://")?;
    let host = rest.strip_suffix('/').unwrap_or(rest);
    (!host.is_empty() && !host.contains(['/', '@'])).then(|| match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:80"),
    })
}

/// One GET of a server that need not know how long its answer is.
pub(super) async fn get_whole(address: &str, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(BODY_BYTES_MAX as u64).read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let (_, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::InvalidData)?;
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_are_taken() {
        assert_eq!(address_of("http://127.0.0.1:7878/").as_deref(), Some("127.0.0.1:7878"));
        assert_eq!(address_of("http://host").as_deref(), Some("host:80"));
        for wrong in ["https://h", "http://", "http://h/base", "http://u@h"] {
            assert_eq!(address_of(wrong), None, "{wrong}");
        }
    }
}
