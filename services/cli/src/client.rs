//! The API of a coordinator as the commands use it: bounded in time and size, and every error one clear line.

use std::time::Duration;

use bytes::Bytes;
use ditto_contracts::{Json, Namespace};
use futures_util::{Stream, StreamExt as _};
use reqwest::{Method, Response, StatusCode, Url, header, redirect};
use serde::de::DeserializeOwned;

use crate::{
    args::ServerArgs,
    exit::{Exit, Failure},
};

/// Time for one answer, besides what the request itself asks the server to wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Time without any byte of an event stream: the server sends a sign of life every 15 s.
const SILENT_WITHIN: Duration = Duration::from_secs(60);
/// Largest answer, in bytes: a page of runs with large inputs.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Largest event, in bytes.
const EVENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A client of one server.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    base: Url,
    http: reqwest::Client,
    namespace: Namespace,
}

impl Client {
    pub(crate) fn new(server: &ServerArgs) -> Result<Self, Failure> {
        let wrong =
            |what: &str| Failure::usage(format!("--server: {what}")).hint("an address such as http://127.0.0.1:7878");
        let text = if server.server.is_empty() { "http://127.0.0.1:7878" } else { &server.server };
        let base = Url::parse(text).map_err(|_| wrong("is no address"))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(wrong("is no http or https address"));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong("must hold no credentials"));
        }
        ditto_runtime::install_tls_provider();
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("ditto/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Failure::internal(format!("HTTP client: {}", cause(&error))))?;
        Ok(Self { base, http, namespace: server.namespace.clone() })
    }

    fn url(&self, path: &[&str], query: &[(&str, String)]) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url.set_query(None);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query.iter().map(|(name, value)| (*name, value.as_str())));
        }
        url
    }

    async fn send(
        &self,
        method: Method,
        url: Url,
        body: Option<Bytes>,
        within: Option<Duration>,
    ) -> Result<Response, Failure> {
        let mut request = self.http.request(method, url).header("ditto-namespace", self.namespace.as_str());
        if let Some(within) = within {
            request = request.timeout(within);
        }
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        request.send().await.map_err(|error| self.away(&error))
    }

    fn away(&self, error: &reqwest::Error) -> Failure {
        let server = self.base.as_str().trim_end_matches('/');
        if error.is_timeout() && !error.is_connect() {
            return Failure::unreachable(format!("the server at {server} did not answer in time"));
        }
        Failure::unreachable(format!("cannot reach the server at {server}: {}", cause(error)))
            .hint("start one with `ditto dev`, or name another with --server or DITTO_SERVER")
    }

    /// Reads a resource.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Json, Failure> {
        let response = self.send(Method::GET, self.url(path, query), None, Some(ANSWER_WITHIN)).await?;
        self.answer(response).await
    }

    /// Writes.
    pub(crate) async fn post(&self, path: &[&str], body: impl Into<Bytes>) -> Result<Json, Failure> {
        let response = self.send(Method::POST, self.url(path, &[]), Some(body.into()), Some(ANSWER_WITHIN)).await?;
        self.answer(response).await
    }

    /// Server-sent events of a run after a version: `(version, event, data)`.
    pub(crate) async fn events(
        &self,
        run: &str,
        after: i64,
    ) -> Result<impl Stream<Item = Result<(i64, String, Json), Failure>> + use<>, Failure> {
        let request = self
            .http
            .get(self.url(&["v1", "runs", run, "events"], &[]))
            .header("ditto-namespace", self.namespace.as_str())
            .header("last-event-id", after.to_string());
        let response = tokio::time::timeout(ANSWER_WITHIN, request.send()).await;
        let response = match response {
            Ok(response) => response.map_err(|error| self.away(&error))?,
            Err(_) => return Err(Failure::unreachable("the server did not answer in time")),
        };
        if !response.status().is_success() {
            return Err(self.answer(response).await.err().unwrap_or_else(|| Failure::internal("no events")));
        }
        let reader = EventReader { bytes: Box::pin(response.bytes_stream()), buffer: Vec::new(), done: false };
        Ok(futures_util::stream::unfold(reader, |mut reader| async move {
            let event = reader.next().await?;
            reader.done = event.is_err();
            Some((event, reader))
        }))
    }

    async fn answer(&self, response: Response) -> Result<Json, Failure> {
        let status = response.status();
        let mut body = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| self.away(&error))?;
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(Failure::internal(format!(
                    "the answer has more than {ANSWER_BYTES_MAX} bytes; ask for fewer with --limit"
                )));
            }
            body.extend_from_slice(&chunk);
        }
        // Values stand in pages of views.
        let json = Json::parse_around(body, 4);
        if status.is_success() {
            return json.map_err(|_| Failure::internal("the answer is no JSON: is this a Ditto server?"));
        }
        Err(problem(status, json.ok().as_ref()))
    }
}

/// A problem document as one line.
fn problem(status: StatusCode, document: Option<&Json>) -> Failure {
    let field = |name: &str| document.and_then(|json| json.field(name)).and_then(|value| value.to_text());
    let detail = field("detail");
    let exit = match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Exit::Unreachable,
        status if status.is_server_error() => Exit::Unreachable,
        _ => Exit::Usage,
    };
    let mut message = detail.unwrap_or_else(|| match status {
        StatusCode::NOT_FOUND => "the server knows no such thing: is this a Ditto server of this version?".into(),
        status if status.is_redirection() => "the server points elsewhere; give the final address".into(),
        status => format!("the server answered {status}"),
    });
    // A list of problems belongs to one answer.
    let problems = document.and_then(|json| json.field("problems"));
    for problem in problems.iter().flat_map(Json::elements).take(50) {
        let text = |name: &str| problem.field(name).and_then(|value| value.to_text()).unwrap_or_default();
        let number = |name: &str| problem.field(name).map(|value| value.to_string()).unwrap_or_default();
        message.push_str(&format!(
            "\n  {}:{}: {}: {}",
            number("line"),
            number("column"),
            text("path"),
            text("message")
        ));
    }
    let code = field("code").unwrap_or_else(|| format!("HTTP_{}", status.as_u16()));
    Failure { exit, code, message, hint: None }
}

/// The innermost cause: the outer ones only repeat the address.
fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A typed view of an answer.
pub(crate) fn read<T: DeserializeOwned>(json: &Json) -> Result<T, Failure> {
    json.to().map_err(|error| Failure::internal(format!("the answer is not what this version expects: {error}")))
}

struct EventReader<S> {
    bytes: std::pin::Pin<Box<S>>,
    buffer: Vec<u8>,
    done: bool,
}

impl<S: Stream<Item = reqwest::Result<Bytes>>> EventReader<S> {
    async fn next(&mut self) -> Option<Result<(i64, String, Json), Failure>> {
        while !self.done {
            // An event ends with an empty line.
            while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.buffer.drain(..end + 2).collect();
                if let Some(event) = parse_event(&block) {
                    return Some(event);
                }
            }
            if self.buffer.len() > EVENT_BYTES_MAX {
                return Some(Err(Failure::internal("an event of the server is too large")));
            }
            match tokio::time::timeout(SILENT_WITHIN, self.bytes.next()).await {
                Ok(Some(Ok(bytes))) => self.buffer.extend_from_slice(&bytes),
                Ok(None) => return None,
                Ok(Some(Err(_))) | Err(_) => {
                    return Some(Err(Failure::unreachable("the connection to the server broke")));
                }
            }
        }
        None
    }
}

/// One block; `None` for a sign of life.
fn parse_event(block: &[u8]) -> Option<Result<(i64, String, Json), Failure>> {
    let text = String::from_utf8_lossy(block);
    let (mut id, mut event, mut data) = (0, String::new(), String::new());
    for line in text.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => id = value.parse().unwrap_or(0),
            "event" => value.clone_into(&mut event),
            "data" => data.push_str(value),
            _ => {}
        }
    }
    if data.is_empty() {
        return None;
    }
    Some(match Json::parse_around(data.into_bytes(), 4) {
        Ok(json) => Ok((id, event, json)),
        Err(_) => Err(Failure::internal("an event of the server is no JSON")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_document_becomes_one_line_and_an_exit_code() {
        let document = Json::parse(r#"{"detail":"limit: is 0; expected 1 to 500","code":"INVALID_INPUT"}"#).unwrap();
        let failure = problem(StatusCode::UNPROCESSABLE_ENTITY, Some(&document));
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Usage, "limit: is 0; expected 1 to 500"));
        assert_eq!(problem(StatusCode::BAD_GATEWAY, None).exit, Exit::Unreachable);
    }

    #[test]
    fn addresses_are_checked_and_paths_escaped() {
        let server = |text: &str| ServerArgs { server: text.into(), namespace: Namespace::default_namespace() };
        for wrong in ["nope", "ftp://x", "http://user:pw@h"] {
            let failure = Client::new(&server(wrong)).unwrap_err();
            assert!(failure.message.starts_with("--server") && !failure.message.contains("pw"), "{failure}");
        }
        let client = Client::new(&server("http://h:1/base/")).unwrap();
        assert_eq!(
            client.url(&["v1", "a/b ?"], &[("x", "1&2".into())]).as_str(),
            "http://h:1/base/v1/a%2Fb%20%3F?x=1%262"
        );
    }

    #[test]
    fn events_are_read_and_signs_of_life_skipped() {
        assert!(parse_event(b":\n\n").is_none());
        let (id, event, data) = parse_event(b"id: 7\nevent: progress\ndata: {\"a\":1}\n\n").unwrap().unwrap();
        assert_eq!((id, event.as_str(), data.as_str()), (7, "progress", r#"{"a":1}"#));
    }
}
