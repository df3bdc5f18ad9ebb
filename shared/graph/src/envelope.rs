//! A run's checkpoint as stored: what the machine around the plan needs, and the plan's own part.
//!
//! Calls are written without their first ten characters, the creation time they share with their run.

use std::collections::HashSet;

use ditto_contracts::{CallUid, Json, JsonWriter, OnUnknown, RunStatus, WireError};
use serde::{Deserialize, Deserializer};

use crate::{Ending, References, failure::internal};

/// The format this build reads and writes.
const FORMAT: u32 = 1;
/// Length of the part that all calls of a run share.
const SHARED: usize = 10;

/// A checkpoint taken apart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Envelope {
    /// Highest signal taken in.
    pub(crate) seen: Option<i64>,
    /// In the order of the plan.
    pub(crate) open: Vec<OpenRecord>,
    /// In the order of the plan.
    pub(crate) kept: Vec<CallUid>,
    /// Open calls that wait for evidence.
    pub(crate) parked: Vec<ParkedRecord>,
    /// How the run ends once nothing is open.
    pub(crate) ending: Option<EndingRecord>,
    /// The plan's part.
    pub(crate) plan: Json,
}

/// A call decided and not consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenRecord {
    pub(crate) call: CallUid,
    pub(crate) on_unknown: OnUnknown,
    pub(crate) label: String,
}

/// An open call with an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParkedRecord {
    pub(crate) call: CallUid,
    pub(crate) until_ms: i64,
    pub(crate) settle_rev: i32,
}

/// How a run is going to end.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EndingRecord {
    pub(crate) ending: Ending,
    /// Cancels were asked for.
    pub(crate) cancelling: bool,
    /// Over: nothing is open any more.
    pub(crate) over: bool,
    /// Calls that ended unknown.
    pub(crate) unknown: Vec<(CallUid, String)>,
}

impl Envelope {
    pub(crate) fn write(&self) -> Json {
        let calls = self.open.iter().map(|open| &open.call).chain(&self.kept).chain(self.unknown().map(|(c, _)| c));
        let shared = calls.map(|call| shared(call).to_owned()).next().unwrap_or_default();
        let short = |call: &CallUid| -> String {
            let text = call.as_str();
            text.strip_prefix(&shared).unwrap_or(text).to_owned()
        };
        let mut w = JsonWriter::new();
        w.begin_object().key("format").integer(FORMAT).key("at").string(&shared);
        if let Some(seen) = self.seen {
            w.key("seen").integer(seen);
        }
        w.key("open").begin_array();
        for open in &self.open {
            w.begin_array().string(&short(&open.call)).integer(code(open.on_unknown)).string(&open.label).end();
        }
        w.end().key("kept").begin_array();
        for call in &self.kept {
            w.string(&short(call));
        }
        w.end().key("parked").begin_array();
        for parked in &self.parked {
            w.begin_array().string(&short(&parked.call)).integer(parked.until_ms).integer(parked.settle_rev).end();
        }
        w.end();
        if let Some(record) = &self.ending {
            w.key("ending").begin_object().key("status").string(record.ending.status.as_str());
            if let Some(output) = &record.ending.output {
                w.key("output").value(output);
            }
            if let Some(error) = record.ending.error.as_ref().and_then(|error| Json::from_serialize(error).ok()) {
                w.key("error").value(&error);
            }
            w.key("cancelling").value(&Json::bool(record.cancelling)).key("over").value(&Json::bool(record.over));
            w.key("unknown").begin_array();
            for (call, label) in &record.unknown {
                w.begin_array().string(&short(call)).string(label).end();
            }
            w.end().end();
        }
        w.key("plan").value(&self.plan);
        w.finish()
    }

    pub(crate) fn read(checkpoint: &Json) -> Result<Self, WireError> {
        let broken = |problem: &str| internal(&format!("the checkpoint cannot be read: {problem}"));
        let raw: Raw = checkpoint.to().map_err(|problem| broken(&problem.to_string()))?;
        if raw.format != FORMAT {
            return Err(broken(&format!("it has format {}, this build reads {FORMAT}", raw.format)));
        }
        let call = |text: &str| -> Result<CallUid, WireError> {
            let full = if text.len() < 26 { format!("{}{text}", raw.at) } else { text.to_owned() };
            CallUid::new(full).map_err(|problem| broken(&problem.to_string()))
        };
        let open = raw.open.iter().map(|(uid, on_unknown, label)| {
            let on_unknown = from_code(*on_unknown).ok_or_else(|| broken("it names no policy for unknown outcomes"))?;
            Ok(OpenRecord { call: call(uid)?, on_unknown, label: label.clone() })
        });
        let parked = raw.parked.iter().map(|(uid, until_ms, settle_rev)| {
            Ok(ParkedRecord { call: call(uid)?, until_ms: *until_ms, settle_rev: *settle_rev })
        });
        let ending = match &raw.ending {
            None => None,
            Some(ending) => {
                let status = RunStatus::from_text(&ending.status).filter(|status| status.is_ended());
                let status = status.ok_or_else(|| broken("it names no ended status"))?;
                let unknown = ending.unknown.iter().map(|(uid, label)| Ok((call(uid)?, label.clone())));
                Some(EndingRecord {
                    ending: Ending { status, output: ending.output.clone(), error: ending.error.clone() },
                    cancelling: ending.cancelling,
                    over: ending.over,
                    unknown: unknown.collect::<Result<_, WireError>>()?,
                })
            }
        };
        Ok(Self {
            seen: raw.seen,
            open: open.collect::<Result<_, WireError>>()?,
            kept: raw.kept.iter().map(|uid| call(uid)).collect::<Result<_, _>>()?,
            parked: parked.collect::<Result<_, WireError>>()?,
            ending,
            plan: raw.plan,
        })
    }

    /// The calls whose receipts the run needs, each once.
    pub(crate) fn references(&self) -> References {
        let once = |calls: &mut dyn Iterator<Item = &CallUid>| {
            let mut seen = HashSet::new();
            calls.filter(|call| seen.insert((*call).clone())).cloned().collect()
        };
        References { open: once(&mut self.open.iter().map(|open| &open.call)), kept: once(&mut self.kept.iter()) }
    }

    fn unknown(&self) -> impl Iterator<Item = &(CallUid, String)> {
        self.ending.iter().flat_map(|record| &record.unknown)
    }
}

fn shared(call: &CallUid) -> &str {
    call.as_str().get(..SHARED).unwrap_or_default()
}

fn code(on_unknown: OnUnknown) -> i32 {
    match on_unknown {
        OnUnknown::Park => 0,
        OnUnknown::Surface => 1,
        OnUnknown::Fail => 2,
    }
}

fn from_code(code: i32) -> Option<OnUnknown> {
    match code {
        0 => Some(OnUnknown::Park),
        1 => Some(OnUnknown::Surface),
        2 => Some(OnUnknown::Fail),
        _ => None,
    }
}

/// The text, before its calls are put together.
#[derive(Deserialize)]
struct Raw {
    format: u32,
    at: String,
    #[serde(default)]
    seen: Option<i64>,
    open: Vec<(String, i32, String)>,
    kept: Vec<String>,
    parked: Vec<(String, i64, i32)>,
    #[serde(default)]
    ending: Option<RawEnding>,
    plan: Json,
}

#[derive(Deserialize)]
struct RawEnding {
    status: String,
    #[serde(default, deserialize_with = "present")]
    output: Option<Json>,
    #[serde(default)]
    error: Option<WireError>,
    cancelling: bool,
    over: bool,
    unknown: Vec<(String, String)>,
}

/// Keeps `null` apart from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}
