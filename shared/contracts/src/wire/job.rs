//! One job: a node execution offered to whichever worker takes it. Identity in headers, the node's input as the body.

use bytes::Bytes;
use data_encoding::HEXLOWER;

use super::{Headers, WIRE_VERSION, WireFormatError, names};
use crate::{Bucket, CallUid, EffectClass, NodeType, RunId};

/// Whether a job executes the call or only asks the backend about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobMode {
    /// Perform the call.
    Execute,
    /// Ask the backend by key what became of it; no effect.
    Query,
}

/// A value kept in the payload store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PayloadRef {
    /// SHA-256 of the bytes.
    pub digest: [u8; 32],
    /// Length in bytes.
    pub size: u32,
}

impl std::fmt::Display for PayloadRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", HEXLOWER.encode(&self.digest), self.size)
    }
}

impl std::str::FromStr for PayloadRef {
    type Err = WireFormatError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || WireFormatError::Header { name: names::PAYLOAD, expected: "<sha256 hex>.<size in bytes>" };
        let (digest, size) = text.split_once('.').ok_or_else(bad)?;
        Ok(Self { digest: parse_digest(digest).ok_or_else(bad)?, size: size.parse().map_err(|_| bad())? })
    }
}

/// Reads 64 hexadecimal digits.
pub(super) fn parse_digest(text: &str) -> Option<[u8; 32]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

/// A job as it stands on the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The call.
    pub call: CallUid,
    /// Day of its run.
    pub bucket: Bucket,
    /// Its run.
    pub run: RunId,
    /// What to execute.
    pub node: NodeType,
    /// For the worker's first decision; the ledger's value wins.
    pub class: EffectClass,
    /// Whether the worker must claim before it acts. Skipping also needs the worker's own registration to say so.
    pub claim: bool,
    /// Execute or query.
    pub mode: JobMode,
    /// Counts the times this call was published.
    pub dispatch_no: u32,
    /// SHA-256 of the request bytes.
    pub request_hash: [u8; 32],
    /// Where the request is when it is not the body.
    pub payload: Option<PayloadRef>,
    /// Remaining time when it was published, in milliseconds.
    pub budget_ms: Option<u64>,
    /// Where the result goes; opaque to the worker.
    pub reply: String,
    /// Key to ask by, in query mode.
    pub key: Option<String>,
    /// W3C trace context.
    pub traceparent: Option<String>,
    /// W3C trace state.
    pub tracestate: Option<String>,
}

impl Job {
    /// The headers of this job.
    pub fn to_headers(&self) -> Headers {
        let mut h = Headers::new();
        h.push(names::MSG_ID, format!("{}.{}", self.call, self.dispatch_no));
        h.push(names::WIRE, WIRE_VERSION);
        h.push(names::CALL, self.call.as_str());
        h.push(names::BUCKET, self.bucket.to_string());
        h.push(names::LOOP, self.run.as_str());
        h.push(names::NODE, self.node.as_str());
        h.push(names::CLASS, self.class.as_str());
        h.push(names::CLAIM, if self.claim { "required" } else { "none" });
        h.push(names::MODE, if self.mode == JobMode::Execute { "execute" } else { "query" });
        h.push(names::DISPATCH, self.dispatch_no.to_string());
        h.push(names::REQUEST_HASH, HEXLOWER.encode(&self.request_hash));
        h.push(names::REPLY, self.reply.as_str());
        if let Some(payload) = &self.payload {
            h.push(names::PAYLOAD, payload.to_string());
        }
        if let Some(budget_ms) = self.budget_ms {
            h.push(names::BUDGET_MS, budget_ms.to_string());
        }
        if let Some(key) = &self.key {
            // Header values are ASCII; a key may be any text.
            h.push(names::KEY, HEXLOWER.encode(key.as_bytes()));
        }
        if let Some(traceparent) = &self.traceparent {
            h.push(names::TRACEPARENT, traceparent.as_str());
        }
        if let Some(tracestate) = &self.tracestate {
            h.push(names::TRACESTATE, tracestate.as_str());
        }
        h
    }

    /// Reads a job.
    ///
    /// # Errors
    /// Names the header that is missing or malformed.
    pub fn from_headers(h: &Headers) -> Result<Self, WireFormatError> {
        h.check_version()?;
        let class = h.require(names::CLASS)?;
        let key = match h.get(names::KEY) {
            None => None,
            Some(hex) => Some(
                HEXLOWER
                    .decode(hex.as_bytes())
                    .ok()
                    .and_then(|bytes| String::from_utf8(bytes).ok())
                    .ok_or(WireFormatError::Header { name: names::KEY, expected: "UTF-8 text in hexadecimal" })?,
            ),
        };
        Ok(Self {
            call: h.read_required(names::CALL, "a call uid")?,
            bucket: h.read_required(names::BUCKET, "a day number")?,
            run: h.read_required(names::LOOP, "a run id")?,
            node: h.read_required(names::NODE, "a node type")?,
            class: EffectClass::from_text(class)
                .ok_or(WireFormatError::Header { name: names::CLASS, expected: "R, K or N" })?,
            claim: match h.get(names::CLAIM) {
                None | Some("required") => true,
                Some("none") => false,
                Some(_) => return Err(WireFormatError::Header { name: names::CLAIM, expected: "required or none" }),
            },
            mode: match h.get(names::MODE) {
                None | Some("execute") => JobMode::Execute,
                Some("query") => JobMode::Query,
                Some(_) => return Err(WireFormatError::Header { name: names::MODE, expected: "execute or query" }),
            },
            dispatch_no: h.read_required(names::DISPATCH, "a number")?,
            request_hash: parse_digest(h.require(names::REQUEST_HASH)?)
                .ok_or(WireFormatError::Header { name: names::REQUEST_HASH, expected: "64 hexadecimal digits" })?,
            payload: h.get(names::PAYLOAD).map(str::parse).transpose()?,
            budget_ms: h.read(names::BUDGET_MS, "a number of milliseconds")?,
            reply: h.require(names::REPLY)?.to_owned(),
            key,
            traceparent: h.get(names::TRACEPARENT).map(str::to_owned),
            tracestate: h.get(names::TRACESTATE).map(str::to_owned),
        })
    }

    /// Whether these bytes are the request that the receipt names.
    pub fn matches(&self, request: &Bytes) -> bool {
        use sha2::Digest as _;
        self.request_hash == <[u8; 32]>::from(sha2::Sha256::digest(request))
    }
}
