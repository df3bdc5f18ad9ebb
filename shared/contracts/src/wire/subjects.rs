//! The subjects. Only names that are safe as tokens ever appear in one; ids travel in headers and bodies.

use crate::{LoopName, Namespace, NodeType, Pool, SessionId, wire::SubmitKind};

/// Stream of jobs.
pub const JOBS_STREAM: &str = "DITTO_JOBS";
/// Stream of results.
pub const RESULTS_STREAM: &str = "DITTO_RESULTS";
/// Stream of store-and-forward submissions.
pub const SUBMIT_STREAM: &str = "DITTO_SUBMIT";
/// What the jobs stream stores.
pub const JOBS_ALL: &str = "ditto.jobs.>";
/// What the results stream stores.
pub const RESULTS_ALL: &str = "ditto.results.>";
/// What the submit stream stores.
pub const INBOX_ALL: &str = "ditto.inbox.>";
/// Request–reply submissions.
pub const SUBMIT_ALL: &str = "ditto.submit.>";
/// The queue group of all coordinators.
pub const COORDINATORS: &str = "coordinators";

/// Opens a session.
pub const LEDGER_OPEN: &str = "ditto.ledger.open";
/// Announces what a worker serves.
pub const LEDGER_ANNOUNCE: &str = "ditto.ledger.announce";
/// Claims calls.
pub const LEDGER_CLAIM: &str = "ditto.ledger.claim";
/// Releases claims.
pub const LEDGER_RELEASE: &str = "ditto.ledger.release";
/// Renews a session and reports what it holds.
pub const LEDGER_RENEW: &str = "ditto.ledger.renew";
/// Closes a session.
pub const LEDGER_CLOSE: &str = "ditto.ledger.close";
/// Stores a payload.
pub const LEDGER_PUT: &str = "ditto.ledger.put";
/// Reads a payload.
pub const LEDGER_GET: &str = "ditto.ledger.get";
/// All ledger requests.
pub const LEDGER_ALL: &str = "ditto.ledger.*";

/// Where jobs of a node type wait, for a pool of their own where one is named.
pub fn jobs(node: &NodeType, pool: Option<&Pool>) -> String {
    match pool {
        Some(pool) => format!("ditto.jobs.{node}.pool.{pool}"),
        None => format!("ditto.jobs.{node}"),
    }
}

/// Where one coordinator takes results.
pub fn results(shard: &SessionId) -> String {
    format!("ditto.results.{shard}")
}

/// The doorbell of one coordinator.
pub fn wake(shard: &SessionId) -> String {
    format!("ditto.wake.{shard}")
}

/// Cancels for one worker session.
pub fn cancel(worker_kind: &str, session: &SessionId) -> String {
    format!("ditto.cancel.{worker_kind}.{session}")
}

/// Confirmations of settled results for one worker session.
pub fn confirm(worker_kind: &str, session: &SessionId) -> String {
    format!("ditto.confirm.{worker_kind}.{session}")
}

/// Live deltas of a run.
pub fn stream(run: &crate::RunId) -> String {
    format!("ditto.stream.{run}")
}

/// The durable consumer of a worker kind and pool.
pub fn worker_consumer(worker_kind: &str, pool: Option<&Pool>) -> String {
    match pool {
        Some(pool) => format!("{worker_kind}_{pool}"),
        None => worker_kind.to_owned(),
    }
}

/// Request–reply submission of one definition.
pub fn submit(namespace: &Namespace, kind: SubmitKind, name: &LoopName) -> String {
    format!("ditto.submit.{namespace}.{}.{name}", kind.as_str())
}

/// Store-and-forward submission of one definition.
pub fn inbox(namespace: &Namespace, kind: SubmitKind, name: &LoopName) -> String {
    format!("ditto.inbox.{namespace}.{}.{name}", kind.as_str())
}

/// Reads `<prefix>.<namespace>.<kind>.<name>` where prefix is `ditto.submit` or `ditto.inbox`.
pub fn parse_submit(subject: &str) -> Option<(Namespace, SubmitKind, LoopName)> {
    let rest = subject.strip_prefix("ditto.submit.").or_else(|| subject.strip_prefix("ditto.inbox."))?;
    let (namespace, rest) = rest.split_once('.')?;
    let (kind, name) = rest.split_once('.')?;
    Some((Namespace::new(namespace).ok()?, SubmitKind::from_text(kind)?, LoopName::new(name).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submit_subjects_are_read_back() {
        let (namespace, name) = (Namespace::new("acme").unwrap(), LoopName::new("INTERACTION.ACT.TOOL").unwrap());
        let subject = submit(&namespace, SubmitKind::Node, &name);
        assert_eq!(subject, "ditto.submit.acme.node.INTERACTION.ACT.TOOL");
        assert_eq!(parse_submit(&subject), Some((namespace.clone(), SubmitKind::Node, name.clone())));
        assert_eq!(
            parse_submit(&inbox(&namespace, SubmitKind::Loop, &name)),
            Some((namespace, SubmitKind::Loop, name))
        );
        assert_eq!(parse_submit("ditto.submit.acme.other.x"), None);
        assert_eq!(parse_submit("ditto.jobs.x"), None);
    }
}
