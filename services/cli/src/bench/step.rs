//! The step that all workloads consist of: one appended line, as a reading node without a claim (class R) and as a
//! keyed node (class K).

use std::sync::Arc;

use async_trait::async_trait;
use ditto_contracts::{CallPolicy, codes};
use ditto_worker::{NodeContext, NodeError, NodeHandler, QueryAnswer, Worker, WorkerConfig, WorkerError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::effects::Effects;

/// Calls under way at once in one worker: enough for a fan-out of 500.
const CONCURRENCY: usize = 512;

/// What a step is told.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Input {
    /// `TAG-RUN`.
    run: String,
    /// Number of the step in the run.
    step: u32,
}

#[derive(Serialize)]
struct Output {}

/// Class R: executing again would change nothing, were it not counted.
struct StepR(Arc<Effects>);
/// Class K: the line is the key.
struct StepK(Arc<Effects>);

fn name(input: &Input) -> Result<String, NodeError> {
    let plain = |c: char| c.is_ascii_graphic();
    if input.run.is_empty() || input.run.len() > 128 || !input.run.chars().all(plain) {
        return Err(NodeError::invalid_input(codes::INVALID_INPUT, "run: 1 to 128 printable characters without space"));
    }
    Ok(format!("{} {}", input.run, input.step))
}

fn refused(error: &std::io::Error) -> NodeError {
    NodeError::invalid_input("EFFECTS_FILE", format!("the file of the effects cannot be written: {}", error.kind()))
}

#[async_trait]
impl NodeHandler for StepR {
    const NODE: &'static str = "BENCH.STEP.R";
    type Input = Input;
    type Output = Output;

    fn policy(&self) -> CallPolicy {
        CallPolicy::read_only()
    }

    async fn handle(&self, _: &NodeContext, input: Input) -> Result<Output, NodeError> {
        self.0.append(&name(&input)?).map_err(|error| refused(&error))?;
        Ok(Output {})
    }
}

#[async_trait]
impl NodeHandler for StepK {
    const NODE: &'static str = "BENCH.STEP.K";
    type Input = Input;
    type Output = Output;

    fn policy(&self) -> CallPolicy {
        CallPolicy { query: true, ..CallPolicy::keyed() }
    }

    async fn handle(&self, _: &NodeContext, input: Input) -> Result<Output, NodeError> {
        // One call, one run and step: the line stands for the call's key.
        self.0.append_once(&name(&input)?).map_err(|error| refused(&error))?;
        Ok(Output {})
    }

    async fn query(&self, _: &NodeContext, input: Input) -> QueryAnswer<Output> {
        match name(&input) {
            Ok(name) if self.0.has(&name) => QueryAnswer::Applied(Output {}),
            Ok(_) => QueryAnswer::Absent,
            Err(_) => QueryAnswer::Unanswered,
        }
    }
}

/// The worker that serves both.
pub(super) fn worker(effects: Effects) -> Result<Worker, WorkerError> {
    let effects = Arc::new(effects);
    Worker::builder("bench").handler(StepR(effects.clone())).handler(StepK(effects)).build()
}

/// Its settings.
pub(super) fn config(instance: Option<String>) -> WorkerConfig {
    WorkerConfig { name: "bench".into(), instance, concurrency: CONCURRENCY, ..WorkerConfig::default() }
}
