//! The history of a plan function: what it asked for and what it got, so that it can be brought back to where it was.

use std::collections::HashMap;

use ditto_contracts::{CallUid, ErrorClass, Json, JsonWriter, TaskId, WireError, codes};
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer};

use crate::{
    CallOutcome, Graph, GraphFailure,
    failure::{error, internal},
    graph_record::{Cursor, GraphRecord},
    graph_run::GraphRun,
};

/// Most entries of one journal. A plan that needs more is a state loop.
pub(crate) const ENTRIES_MAX: usize = 65_536;

/// What a plan asks for. Two runs of one plan ask for the same things in the same order.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Graph { graph: Graph, input: Json },
    Sleep { ms: u64 },
    Signal { name: String, ms: Option<u64> },
    Now,
}

/// What it gets.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Graph(Result<IndexMap<TaskId, Json>, GraphFailure>),
    Slept,
    /// `None`: time ran out.
    Signal(Option<Json>),
    Now(i64),
}

/// One answered question.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// As it stands in the checkpoint.
    pub(crate) written: Json,
    /// The calls whose outputs it refers to.
    pub(crate) kept: Vec<CallUid>,
}

/// An entry, or the question that is open, as it stands in the checkpoint.
#[derive(Debug, Deserialize)]
pub(crate) struct RawEntry {
    #[serde(default)]
    graph: Option<String>,
    #[serde(default)]
    shape: String,
    #[serde(default)]
    input: String,
    #[serde(default)]
    pub(crate) record: Option<GraphRecord>,
    #[serde(default)]
    failed: Option<(TaskId, WireError)>,
    #[serde(default)]
    sleep: Option<u64>,
    #[serde(default)]
    signal: Option<String>,
    #[serde(default)]
    ms: Option<u64>,
    #[serde(default, deserialize_with = "present")]
    body: Option<Json>,
    #[serde(default)]
    now: Option<i64>,
    #[serde(default)]
    pub(crate) until: Option<i64>,
}

/// Keeps `null` apart from an absent field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

fn hex(digest: &[u8; 32]) -> String {
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Ask {
    /// For people: what was asked, with everything that is compared.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Graph { graph, input } => describe_graph(graph.id(), &hex(&graph.shape()), &hex(&input.sha256())),
            Self::Sleep { ms } => format!("sleep of {ms} ms"),
            Self::Signal { name, ms: None } => format!("signal {name}"),
            Self::Signal { name, ms: Some(ms) } => format!("signal {name} within {ms} ms"),
            Self::Now => "the time".into(),
        }
    }

    /// Begins the text of an entry with the question.
    fn write(&self, w: &mut JsonWriter) {
        w.begin_object();
        match self {
            Self::Graph { graph, input } => {
                w.key("graph").string(graph.id()).key("shape").string(&hex(&graph.shape()));
                w.key("input").string(&hex(&input.sha256()));
            }
            Self::Sleep { ms } => {
                w.key("sleep").integer(*ms);
            }
            Self::Signal { name, ms } => {
                w.key("signal").string(name);
                if let Some(ms) = ms {
                    w.key("ms").integer(*ms);
                }
            }
            Self::Now => {}
        }
    }

    /// The text of a question that is still open.
    pub(crate) fn write_open(
        &self,
        w: &mut JsonWriter,
        run: Option<&GraphRun>,
        until_ms: Option<i64>,
        open: &mut Vec<CallUid>,
        kept: &mut Vec<CallUid>,
    ) {
        self.write(w);
        if let Some(run) = run {
            w.key("record");
            run.write(w, open, kept);
        }
        if let Some(until_ms) = until_ms {
            w.key("until").integer(until_ms);
        }
        w.end();
    }
}

fn describe_graph(id: &str, shape: &str, input: &str) -> String {
    let short = |text: &str| text.chars().take(8).collect::<String>();
    format!("graph {id} (shape {}, input {})", short(shape), short(input))
}

impl Entry {
    /// Notes a finished graph. Of a failed one only the failure is kept.
    pub(crate) fn graph(ask: &Ask, run: &mut GraphRun) -> Self {
        let (mut open, mut kept) = (Vec::new(), Vec::new());
        let mut w = JsonWriter::new();
        ask.write(&mut w);
        if let Some(failure) = &run.failure {
            let failed = Json::from_serialize(&(&failure.task, &failure.error)).unwrap_or_default();
            w.key("failed").value(&failed);
        } else {
            run.input = Json::null(); // its hash is in the entry; nothing will read it again
            w.key("record");
            run.write(&mut w, &mut open, &mut kept);
        }
        w.end();
        Self { written: w.finish(), kept }
    }

    /// Notes anything else.
    pub(crate) fn other(ask: &Ask, answer: &Answer) -> Self {
        let mut w = JsonWriter::new();
        ask.write(&mut w);
        match answer {
            Answer::Signal(Some(body)) => drop_ref(w.key("body").value(body)),
            Answer::Now(now_ms) => drop_ref(w.key("now").integer(*now_ms)),
            Answer::Signal(None) | Answer::Slept | Answer::Graph(_) => {}
        }
        w.end();
        Self { written: w.finish(), kept: Vec::new() }
    }

    /// Answers a question as it was answered before.
    ///
    /// # Errors
    /// `PLAN_DIVERGED` when another question was answered here.
    pub(crate) fn replay(
        &self,
        n: usize,
        ask: &Ask,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<Answer, WireError> {
        let raw = RawEntry::read(&self.written)?;
        raw.check(n, ask)?;
        match ask {
            Ask::Sleep { .. } => Ok(Answer::Slept),
            Ask::Signal { .. } => Ok(Answer::Signal(raw.body)),
            Ask::Now => Ok(Answer::Now(raw.now.unwrap_or_default())),
            Ask::Graph { graph, .. } => {
                if let Some((task, error)) = raw.failed {
                    return Ok(Answer::Graph(Err(GraphFailure { graph: graph.id().into(), task, error })));
                }
                let record = raw.record.ok_or_else(|| internal(&format!("entry {n} of the journal has no outputs")))?;
                let run =
                    record.restore(graph.clone(), &mut Cursor::new(&[]), &mut Cursor::new(&self.kept), outcomes)?;
                Ok(Answer::Graph(Ok(run.outputs())))
            }
        }
    }
}

fn drop_ref(_: &mut JsonWriter) {}

impl RawEntry {
    pub(crate) fn read(written: &Json) -> Result<Self, WireError> {
        written.to().map_err(|problem| internal(&format!("an entry of the journal cannot be read: {problem}")))
    }

    /// Compares the question with the recorded one.
    ///
    /// # Errors
    /// `PLAN_DIVERGED`, naming the entry, what was recorded and what was asked.
    pub(crate) fn check(&self, n: usize, ask: &Ask) -> Result<(), WireError> {
        let same = match ask {
            Ask::Graph { graph, input } => {
                self.graph.as_deref() == Some(graph.id())
                    && self.shape == hex(&graph.shape())
                    && self.input == hex(&input.sha256())
            }
            Ask::Sleep { ms } => self.sleep == Some(*ms),
            Ask::Signal { name, ms } => self.signal.as_ref() == Some(name) && self.ms == *ms,
            Ask::Now => self.now.is_some(),
        };
        if same { Ok(()) } else { Err(diverged(n, &self.describe(), &ask.describe())) }
    }

    pub(crate) fn describe(&self) -> String {
        match (&self.graph, self.sleep, &self.signal, self.ms) {
            (Some(graph), ..) => describe_graph(graph, &self.shape, &self.input),
            (None, Some(ms), ..) => format!("sleep of {ms} ms"),
            (None, None, Some(name), None) => format!("signal {name}"),
            (None, None, Some(name), Some(ms)) => format!("signal {name} within {ms} ms"),
            (None, None, None, _) => "the time".into(),
        }
    }
}

/// The program is not the one that wrote the journal.
pub(crate) fn diverged(n: usize, recorded: &str, asked: &str) -> WireError {
    let message = format!("entry {n} of the journal: recorded {recorded}, asked for {asked}");
    error(ErrorClass::Conflict, codes::PLAN_DIVERGED, &message)
}
