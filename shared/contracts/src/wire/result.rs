//! One result: what a worker says about one attempt. Identity in headers, verdict and values in the body.

use data_encoding::HEXLOWER;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Headers, PayloadRef, WIRE_VERSION, WireFormatError, job::parse_digest, names};
use crate::{Bucket, CallUid, ClaimToken, Json, JsonWriter, RunId, SessionId, Verdict, WireError};

/// The body of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResultBody {
    /// What the attempt amounts to.
    pub verdict: Verdict,
    /// The node's output; may accompany any verdict (an external result that says `failed` is an output).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Json>,
    /// `<sha256 hex>.<size>` of an output above the inline limit, stored before this result was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_ref: Option<String>,
    /// Why; required unless succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// Keeps a `null` output apart from none.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

impl ResultBody {
    /// The text of this body.
    pub fn to_json(&self) -> Json {
        let mut w = JsonWriter::new();
        w.begin_object().key("verdict").string(self.verdict.as_str());
        if let Some(output) = &self.output {
            w.key("output").value(output);
        }
        if let Some(output_ref) = &self.output_ref {
            w.key("outputRef").string(output_ref);
        }
        if let Some(error) = self.error.as_ref().and_then(|error| Json::from_serialize(error).ok()) {
            w.key("error").value(&error);
        }
        w.finish()
    }

    /// Reads and checks a body.
    ///
    /// # Errors
    /// When it is no acceptable JSON, has another shape, or a verdict without its error.
    pub fn parse(body: impl Into<bytes::Bytes>) -> Result<Self, WireFormatError> {
        // The output is as deep as a value may be; the message around it adds a level.
        let json = Json::parse_around(body, 1).map_err(|e| WireFormatError::Body(e.to_string()))?;
        let body: Self = json.to().map_err(|e| WireFormatError::Body(e.to_string()))?;
        if body.verdict != Verdict::Succeeded && body.error.is_none() {
            return Err(WireFormatError::Body(format!("verdict {} needs an error", body.verdict)));
        }
        if let Some(reference) = &body.output_ref {
            reference.parse::<PayloadRef>()?;
        }
        Ok(body)
    }
}

/// A result as it stands on the bus.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultMessage {
    /// The call.
    pub call: CallUid,
    /// Day of its run.
    pub bucket: Bucket,
    /// Its run.
    pub run: RunId,
    /// The attempt; 0 for a call that was not claimed.
    pub fence: u32,
    /// Proof of the claim; `None` for a call that was not claimed.
    pub token: Option<ClaimToken>,
    /// Which session answers.
    pub session: SessionId,
    /// SHA-256 of the request that was executed.
    pub request_hash: [u8; 32],
    /// Number of the dispatch it answers: a call may be executed or asked about more than once in one session, and each
    /// answer is a message of its own.
    pub dispatch_no: u32,
    /// How often this result was sent, from 1.
    pub attempt_no: u32,
    /// Whether this answers a query job.
    pub query: bool,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// The verdict and its values.
    pub body: ResultBody,
}

impl ResultMessage {
    /// The headers.
    pub fn to_headers(&self) -> Headers {
        let mut h = Headers::new();
        let token = self.token.as_ref().map_or(self.session.as_str(), ClaimToken::as_str);
        h.push(
            names::MSG_ID,
            format!("{}.{}.{}.{}.{}", self.call, self.fence, self.dispatch_no, self.attempt_no, token),
        );
        h.push(names::WIRE, WIRE_VERSION);
        h.push(names::CALL, self.call.as_str());
        h.push(names::BUCKET, self.bucket.to_string());
        h.push(names::LOOP, self.run.as_str());
        h.push(names::FENCE, self.fence.to_string());
        h.push(names::DISPATCH, self.dispatch_no.to_string());
        h.push(names::SESSION, self.session.as_str());
        h.push(names::REQUEST_HASH, HEXLOWER.encode(&self.request_hash));
        if self.query {
            h.push(names::MODE, "query");
        }
        if let Some(token) = &self.token {
            h.push(names::TOKEN, token.as_str());
        }
        if let Some(traceparent) = &self.traceparent {
            h.push(names::TRACEPARENT, traceparent.as_str());
        }
        h
    }

    /// Reads a result.
    ///
    /// # Errors
    /// Names the header or the part of the body that is missing or malformed.
    pub fn parse(h: &Headers, body: bytes::Bytes) -> Result<Self, WireFormatError> {
        h.check_version()?;
        Ok(Self {
            call: h.read_required(names::CALL, "a call uid")?,
            bucket: h.read_required(names::BUCKET, "a day number")?,
            run: h.read_required(names::LOOP, "a run id")?,
            fence: h.read(names::FENCE, "a number")?.unwrap_or(0),
            token: h.read(names::TOKEN, "a claim token")?,
            session: h.read_required(names::SESSION, "a session id")?,
            request_hash: parse_digest(h.require(names::REQUEST_HASH)?)
                .ok_or(WireFormatError::Header { name: names::REQUEST_HASH, expected: "64 hexadecimal digits" })?,
            dispatch_no: h.read(names::DISPATCH, "a number")?.unwrap_or(0),
            attempt_no: 1,
            query: h.get(names::MODE) == Some("query"),
            traceparent: h.get(names::TRACEPARENT).map(str::to_owned),
            body: ResultBody::parse(body)?,
        })
    }
}
