//! What the API shows of runs, receipts and definitions. All times are milliseconds since 1970 by the ledger's clock.

use std::fmt::Write as _;

use ditto_contracts::{
    CallPolicy, CallUid, EffectClass, Json, LoopName, Namespace, NodeType, Pool, ReceiptState, Revision, RunId,
    RunStatus, SessionId, SettledBy, SubmitKey, WireError,
};
use serde::{Deserialize, Serialize};

use crate::store::{AttemptRow, DefinitionRow, LedgerCounts, ReceiptRow, RunRow, SessionRole, SessionRow};

/// One page and where the next begins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Give it as `after` to get the next page; absent: this is the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct RunView {
    pub run_id: RunId,
    pub namespace: Namespace,
    pub name: LoopName,
    pub revision: Revision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<SubmitKey>,
    pub status: RunStatus,
    pub version: i64,
    pub created_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<SessionId>,
    pub input: Json,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

impl From<RunRow> for RunView {
    fn from(row: RunRow) -> Self {
        Self {
            run_id: row.run,
            namespace: row.namespace,
            name: row.name,
            revision: row.revision,
            key: row.key,
            status: row.status,
            version: row.version,
            created_ms: row.created_ms,
            ended_ms: row.ended_ms,
            wake_ms: row.wake_ms,
            deadline_ms: row.deadline_ms,
            cancel_ms: row.cancel_ms,
            owner: row.owner,
            input: row.input,
            output: row.output,
            error: row.error,
        }
    }
}

/// A receipt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct ReceiptView {
    pub call: CallUid,
    pub run_id: RunId,
    pub call_id: String,
    pub kind: String,
    pub node: NodeType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    pub task: String,
    pub class: EffectClass,
    pub state: ReceiptState,
    pub attempts: i32,
    pub unresolved: i32,
    pub dispatches: i32,
    pub key: String,
    pub settle_rev: i32,
    pub created_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_by: Option<SettledBy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

impl From<ReceiptRow> for ReceiptView {
    fn from(row: ReceiptRow) -> Self {
        Self {
            call: row.call,
            run_id: row.run,
            call_id: row.call_id.as_str().to_owned(),
            kind: row.kind.to_string(),
            node: row.node,
            source: row.source,
            pool: row.pool,
            task: row.label,
            class: row.policy.class,
            state: row.state,
            attempts: row.fence,
            unresolved: row.unresolved,
            dispatches: row.dispatch_no,
            key: row.idem_key,
            settle_rev: row.settle_rev,
            created_ms: row.created_ms,
            claimed_ms: row.claimed_ms,
            settled_ms: row.settled_ms,
            settled_by: row.settled_by,
            session: row.session,
            request: row.request,
            output: row.output,
            error: row.error,
        }
    }
}

/// A receipt with its pinned policy and attempt log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct ReceiptDetail {
    pub receipt: ReceiptView,
    pub policy: CallPolicy,
    pub log: Vec<AttemptView>,
}

/// One entry of an attempt log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct AttemptView {
    pub attempt: i32,
    pub event: String,
    pub at_ms: i64,
    pub detail: Json,
}

impl From<AttemptRow> for AttemptView {
    fn from(row: AttemptRow) -> Self {
        Self { attempt: row.fence, event: row.event, at_ms: row.at_ms, detail: row.detail }
    }
}

/// A registered definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct DefinitionView {
    pub namespace: Namespace,
    pub name: LoopName,
    pub revision: Revision,
    pub created_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl DefinitionView {
    /// The view of a row, with its source or without.
    pub fn new(row: DefinitionRow, with_source: bool) -> Self {
        Self {
            namespace: row.namespace,
            name: row.name,
            revision: row.revision,
            created_ms: row.created_ms,
            source: with_source.then_some(row.source),
        }
    }
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)]
pub struct SessionView {
    pub session: SessionId,
    pub role: String,
    pub kind: String,
    pub name: String,
    pub build: String,
    pub started_ms: i64,
    pub expires_ms: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_ms: Option<i64>,
}

impl From<SessionRow> for SessionView {
    fn from(row: SessionRow) -> Self {
        Self {
            session: row.session,
            role: match row.role {
                SessionRole::Coordinator => "coordinator".into(),
                SessionRole::Worker => "worker".into(),
            },
            kind: row.kind,
            name: row.name,
            build: row.build,
            started_ms: row.started_ms,
            expires_ms: row.expires_ms,
            dead_ms: row.dead_ms,
        }
    }
}

/// The ledger's numbers in Prometheus text format. Labels are bounded: states, and queues that live workers named.
pub(crate) fn counts_text(counts: &LedgerCounts) -> String {
    let mut out = String::new();
    let mut family = |name: &str, help: &str, rows: Vec<(String, u64)>| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge"); // writing to a String cannot fail
        for (labels, value) in rows {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let runs = RunStatus::ALL
        .iter()
        .filter(|s| !s.is_ended())
        .map(|s| (format!("{{status=\"{s}\"}}"), counts.runs.iter().find(|(k, _)| k == s).map_or(0, |(_, n)| *n)));
    family("ditto_runs_open", "Runs that are not over, by status.", runs.collect());
    let open = [ReceiptState::Planned, ReceiptState::Claimed, ReceiptState::Unknown];
    let receipts = open.iter().map(|s| {
        (format!("{{state=\"{s}\"}}"), counts.open_receipts.iter().find(|(k, _)| k == s).map_or(0, |(_, n)| *n))
    });
    family("ditto_receipts_open", "Receipts that are not settled, by state.", receipts.collect());
    family(
        "ditto_receipts_unknown",
        "Settled receipts whose outcome is unknown.",
        vec![(String::new(), counts.unknown_receipts)],
    );
    let queues = counts.backlog.iter().take(200);
    family(
        "ditto_backlog_jobs",
        "Planned receipts by queue.",
        queues.clone().map(|(q, n, _)| (format!("{{queue=\"{q}\"}}"), *n)).collect(),
    );
    family(
        "ditto_backlog_oldest_age_ms",
        "Age of the oldest planned receipt by queue, in milliseconds.",
        queues.map(|(q, _, age)| (format!("{{queue=\"{q}\"}}"), *age)).collect(),
    );
    out
}
