//! A graph's progress as it stands in a checkpoint: one character a task, values only where no receipt has them.

use std::collections::{BTreeSet, HashMap};

use ditto_contracts::{CallUid, Json, JsonWriter, TaskId, WireError};
use serde::Deserialize;

use crate::{
    CallOutcome, Graph, GraphFailure,
    failure::internal,
    graph_run::{GraphRun, OpenCall, Origin, Slot},
    task_call::RequestHash,
};

const WAITING: u8 = b'.';
const OPEN: u8 = b'o';
const RECEIPT: u8 = b'r';
const INLINE: u8 = b'i';
const SKIPPED: u8 = b's';
const DROPPED: u8 = b'x';

/// What [`GraphRun::write`] wrote. Calls are in the lists of the checkpoint, in the order of the tasks.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct GraphRecord {
    pub(crate) graph: String,
    pub(crate) input: Json,
    tasks: String,
    /// Values of tasks marked inline.
    values: Vec<Json>,
    /// `[request hash, attempt]` of tasks marked open.
    open: Vec<(String, u16)>,
    #[serde(default)]
    failure: Option<(usize, WireError)>,
}

/// Takes calls from the lists of a checkpoint, in order.
pub(crate) struct Cursor<'a> {
    calls: std::slice::Iter<'a, CallUid>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(calls: &'a [CallUid]) -> Self {
        Self { calls: calls.iter() }
    }

    pub(crate) fn next(&mut self) -> Result<CallUid, WireError> {
        self.calls.next().cloned().ok_or_else(|| internal("the checkpoint lists fewer calls than it uses"))
    }
}

impl GraphRecord {
    /// How many calls of the kept list belong to it.
    pub(crate) fn kept_count(&self) -> usize {
        self.tasks.bytes().filter(|mark| *mark == RECEIPT).count()
    }

    /// Puts the progress back together.
    ///
    /// # Errors
    /// When it is not a record of this graph, or an output is not among the outcomes.
    pub(crate) fn restore(
        self,
        graph: Graph,
        open: &mut Cursor<'_>,
        kept: &mut Cursor<'_>,
        outcomes: &HashMap<CallUid, CallOutcome>,
    ) -> Result<GraphRun, WireError> {
        if graph.id() != self.graph || graph.tasks().len() != self.tasks.len() {
            let (id, count) = (graph.id(), graph.tasks().len());
            return Err(internal(&format!(
                "the checkpoint is of graph {} with {} tasks, not of {id} with {count}",
                self.graph,
                self.tasks.len()
            )));
        }
        let mut run = GraphRun::new(graph, self.input);
        let mut values = self.values.into_iter();
        let mut opens = self.open.into_iter();
        for (i, mark) in self.tasks.bytes().enumerate() {
            run.slots[i] = match mark {
                WAITING => Slot::Waiting,
                DROPPED => Slot::Dropped,
                SKIPPED => Slot::Done { value: Json::null(), origin: Origin::Skipped },
                INLINE => {
                    let value = values.next().ok_or_else(|| internal("the checkpoint lacks a value"))?;
                    Slot::Done { value, origin: Origin::Inline }
                }
                RECEIPT => {
                    let call = kept.next()?;
                    let value = outcomes.get(&call).and_then(|outcome| outcome.output.clone());
                    let value = value.ok_or_else(|| internal(&format!("the output of call {call} is missing")))?;
                    Slot::Done { value, origin: Origin::Receipt(call) }
                }
                OPEN => {
                    let call = open.next()?;
                    let (hash, attempt) = opens.next().ok_or_else(|| internal("the checkpoint lacks an open call"))?;
                    let hash = read_hash(&hash).ok_or_else(|| internal("the checkpoint has no request hash"))?;
                    let entry = run.calls.entry(call.clone()).or_insert(OpenCall { hash, tasks: Vec::new() });
                    entry.tasks.push(i);
                    run.open += 1;
                    Slot::Open { call, attempt }
                }
                other => return Err(internal(&format!("the checkpoint has a task marked {:?}", char::from(other)))),
            };
        }
        let inline = run.slots.iter().filter_map(|slot| match slot {
            Slot::Done { value, origin: Origin::Inline } => Some(value.len()),
            _ => None,
        });
        run.inline_bytes = inline.sum();
        run.done = run.slots.iter().filter(|slot| matches!(slot, Slot::Done { .. })).count();
        for i in 0..run.slots.len() {
            let undone = |need: &&usize| !matches!(run.slots[**need], Slot::Done { .. });
            run.missing[i] = run.graph.needs_of(i).iter().filter(undone).count();
        }
        if let Some((i, error)) = self.failure {
            let task = run.graph.tasks().get(i).ok_or_else(|| internal("the checkpoint names no task"))?;
            run.failure = Some(GraphFailure { graph: run.graph.id().into(), task: task.id.clone(), error });
        }
        let startable = |i: &usize| run.missing[*i] == 0 && run.slots[*i] == Slot::Waiting;
        run.ready = match run.failure {
            Some(_) => BTreeSet::new(),
            None => (0..run.slots.len()).filter(startable).collect(),
        };
        Ok(run)
    }
}

impl GraphRun {
    /// Writes the progress, and appends its calls to the lists of the checkpoint. A call that several tasks share is
    /// listed once for each of them.
    pub(crate) fn write(&self, w: &mut JsonWriter, open: &mut Vec<CallUid>, kept: &mut Vec<CallUid>) {
        let mut marks = String::with_capacity(self.slots.len());
        let mut values = Vec::new();
        let mut opens = Vec::new();
        for slot in &self.slots {
            marks.push(char::from(match slot {
                Slot::Waiting => WAITING,
                Slot::Dropped => DROPPED,
                Slot::Done { origin: Origin::Skipped, .. } => SKIPPED,
                Slot::Done { value, origin: Origin::Inline } => {
                    values.push(value);
                    INLINE
                }
                Slot::Done { origin: Origin::Receipt(call), .. } => {
                    kept.push(call.clone());
                    RECEIPT
                }
                Slot::Open { call, attempt } => {
                    let hash = self.calls.get(call).map(|open| open.hash).unwrap_or_default();
                    opens.push((hash, *attempt));
                    open.push(call.clone());
                    OPEN
                }
            }));
        }
        w.begin_object().key("graph").string(self.graph.id()).key("input").value(&self.input);
        w.key("tasks").string(&marks).key("values").begin_array();
        for value in values {
            w.value(value);
        }
        w.end().key("open").begin_array();
        for (hash, attempt) in opens {
            w.begin_array().string(&write_hash(&hash)).integer(attempt).end();
        }
        w.end();
        if let Some(failure) = &self.failure {
            let position = self.position(&failure.task);
            w.key("failure").begin_array().integer(position as u64);
            w.value(&Json::from_serialize(&failure.error).unwrap_or_default()).end();
        }
        w.end();
    }

    fn position(&self, task: &TaskId) -> usize {
        self.graph.tasks().iter().position(|other| other.id == *task).unwrap_or(0)
    }
}

fn write_hash(hash: &RequestHash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read_hash(text: &str) -> Option<RequestHash> {
    let mut hash = RequestHash::default();
    if text.len() != hash.len() * 2 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(hash)
}
