//! The streams and consumers of the fleet; only coordinators create them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ditto_bus::{BusError, ConsumerSpec, StreamSpec, StreamState};
use ditto_contracts::{ErrorClass, NodeType, Pool, WireError, wire::subjects};

use tracing::warn;

use crate::core::Core;

/// How long the streams keep a message.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(86_400);
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// Looks at the announcements of other replicas after the consumer was updated.
const LOOKS_MAX: usize = 3;
/// Largest job or result message; larger values travel as payloads.
const MESSAGE_BYTES_MAX: u32 = 512 * 1024;

/// The streams as the contract wants them.
pub(crate) fn specs(core: &Core) -> [StreamSpec; 3] {
    let spec = |name, subject: &str, max_bytes| StreamSpec {
        name,
        subjects: vec![subject.to_owned()],
        max_bytes,
        max_age: MAX_AGE,
        max_message_bytes: MESSAGE_BYTES_MAX,
        duplicate_window: DUPLICATE_WINDOW,
        replicas: core.config.stream_replicas,
    };
    [
        spec(subjects::JOBS_STREAM, subjects::JOBS_ALL, core.config.jobs_bytes_max),
        spec(subjects::RESULTS_STREAM, subjects::RESULTS_ALL, core.config.results_bytes_max),
        spec(subjects::SUBMIT_STREAM, subjects::INBOX_ALL, core.config.jobs_bytes_max),
    ]
}

/// Creates what is missing. Answers whether the jobs stream lost messages since `before`.
pub(crate) async fn ensure(core: &Core, before: Option<StreamState>) -> Result<(StreamState, bool), BusError> {
    let mut jobs = None;
    for spec in specs(core) {
        let state = core.bus.ensure_stream(&spec).await?;
        jobs.get_or_insert(state);
    }
    let Some(jobs) = jobs else { return Err(BusError::Missing(subjects::JOBS_STREAM.into())) };
    let lost = match before {
        None => jobs.created_now,
        Some(before) => jobs.created_ms != before.created_ms || jobs.last_sequence < before.last_sequence,
    };
    core.bus.ensure_consumer(&inbox_consumer(core)).await?;
    Ok((jobs, lost))
}

/// The consumer of store-and-forward submissions, shared by all coordinators.
pub(crate) fn inbox_consumer(core: &Core) -> ConsumerSpec {
    ConsumerSpec {
        stream: subjects::SUBMIT_STREAM,
        name: "coordinators".into(),
        filter_subjects: vec![subjects::INBOX_ALL.into()],
        ack_wait: Duration::from_millis(core.config.ack_wait_ms),
        max_deliver: 1_000,
        max_ack_pending: 8_192,
    }
}

/// A worker kind becomes part of a consumer name and of subjects.
pub(crate) fn check_worker_kind(kind: &str) -> Result<(), WireError> {
    let ok = (1..=32).contains(&kind.len())
        && kind.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !matches!(kind, "coordinators" | "results");
    if ok { Ok(()) } else { Err(WireError::invalid("BAD_REQUEST", "workerKind: expected 1 to 32 of a-z 0-9 -")) }
}

/// Creates or updates the durable consumer of a worker kind and pool for everything that its live replicas announced,
/// and names it. Announcements of other replicas at the same moment are seen by looking again afterwards; what slips
/// through even so, the sweeper repairs.
pub(crate) async fn worker_consumer(core: &Core, kind: &str, pool: Option<&Pool>) -> Result<String, WireError> {
    let mut nodes = announced(core, kind, pool).await?;
    for _ in 0..LOOKS_MAX {
        ensure_worker_consumer(core, kind, pool, &nodes).await?;
        let now = announced(core, kind, pool).await?;
        if now == nodes {
            break;
        }
        nodes = now;
    }
    Ok(subjects::worker_consumer(kind, pool))
}

/// Brings the consumers of all live worker kinds and pools into line with what was announced.
pub(crate) async fn ensure_worker_consumers(core: &Core) -> Result<(), WireError> {
    let mut queues: BTreeMap<(String, Option<Pool>), BTreeSet<NodeType>> = BTreeMap::new();
    for row in core.store.offers_live().await? {
        queues.entry((row.kind, row.pool)).or_default().insert(row.offer.node);
    }
    for ((kind, pool), nodes) in queues {
        if let Err(error) = ensure_worker_consumer(core, &kind, pool.as_ref(), &nodes).await {
            warn!(kind, ?pool, %error, "the consumer of a worker kind is not as announced");
        }
    }
    Ok(())
}

async fn announced(core: &Core, kind: &str, pool: Option<&Pool>) -> Result<BTreeSet<NodeType>, WireError> {
    let rows = core.store.offers_live().await?;
    let of_queue = rows.into_iter().filter(|row| row.kind == kind && row.pool.as_ref() == pool);
    Ok(of_queue.map(|row| row.offer.node).collect())
}

async fn ensure_worker_consumer(
    core: &Core,
    kind: &str,
    pool: Option<&Pool>,
    nodes: &BTreeSet<NodeType>,
) -> Result<(), WireError> {
    if nodes.is_empty() {
        return Err(WireError::invalid("BAD_REQUEST", "offers: expected at least one"));
    }
    let spec = ConsumerSpec {
        stream: subjects::JOBS_STREAM,
        name: subjects::worker_consumer(kind, pool),
        filter_subjects: nodes.iter().map(|node| subjects::jobs(node, pool)).collect(),
        ack_wait: Duration::from_millis(core.config.ack_wait_ms),
        max_deliver: 20,
        max_ack_pending: 65_536,
    };
    match core.bus.ensure_consumer(&spec).await {
        Ok(()) => Ok(()),
        Err(BusError::Conflict { difference, .. }) => Err(WireError::new(
            ErrorClass::Conflict,
            "CONSUMER_CONFLICT",
            format!(
                "another worker kind serves one of these nodes from the same queue ({difference}); name a pool of its own"
            ),
        )),
        Err(error) => Err(WireError::new(ErrorClass::Unavailable, "BUS_UNAVAILABLE", error.to_string()).retryable()),
    }
}
