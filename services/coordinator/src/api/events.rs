//! `/v1/runs/{run}/events`: progress as server-sent events. The event id is the run's version, so a client that comes
//! back with `Last-Event-ID` misses nothing.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::HeaderMap,
    response::sse::{Event, KeepAlive, Sse},
    routing::get,
};
use ditto_contracts::{Namespace, RunId};
use futures_util::Stream;
use tokio::sync::broadcast;

use super::{
    problem::Problem,
    runs::{namespace, run_id},
    views::RunView,
};
use crate::{core::RunChanged, service::Handle};

/// Versions read at once.
const PAGE: u32 = 256;
/// How long a watcher waits without news before it looks at the ledger: another coordinator may drive the run.
const LOOK_AFTER: Duration = Duration::from_millis(500);

pub(super) fn routes() -> Router<Handle> {
    Router::new().route("/v1/runs/{run}/events", get(events))
}

async fn events(
    State(handle): State<Handle>,
    headers: HeaderMap,
    Path(run): Path<String>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let namespace = namespace(&headers)?;
    let run = run_id(&run)?;
    let after = match headers.get("last-event-id").and_then(|v| v.to_str().ok()) {
        None => 0,
        Some(text) => text.parse::<i64>().map_err(|_| Problem::invalid("Last-Event-ID", "is no version number"))?,
    };
    if handle.store().run_get(Some(&namespace), &run).await?.is_none() {
        return Err(Problem::not_found(format!("no run {run} in namespace {namespace}")));
    }
    let watcher = Watcher { news: handle.watch(), handle, namespace, run, after, queue: Vec::new(), done: false };
    Ok(Sse::new(futures_util::stream::unfold(watcher, next)).keep_alive(KeepAlive::default()))
}

struct Watcher {
    handle: Handle,
    namespace: Namespace,
    run: RunId,
    news: broadcast::Receiver<RunChanged>,
    after: i64,
    /// Events ready to be sent, last one first.
    queue: Vec<Event>,
    done: bool,
}

async fn next(mut watcher: Watcher) -> Option<(Result<Event, Infallible>, Watcher)> {
    loop {
        if let Some(event) = watcher.queue.pop() {
            return Some((Ok(event), watcher));
        }
        if watcher.done {
            return None;
        }
        if !watcher.read().await {
            watcher.wait().await;
        }
    }
}

impl Watcher {
    /// Reads what is new; `false`: nothing is.
    async fn read(&mut self) -> bool {
        // The status is read first: events written before the end are then surely in the page.
        let Ok(Some(row)) = self.handle.store().run_get(Some(&self.namespace), &self.run).await else { return false };
        let Ok(rows) = self.handle.store().events_after(&self.run, self.after, PAGE).await else { return false };
        let full = rows.len() >= PAGE as usize;
        for row in rows {
            self.after = self.after.max(row.version);
            let data = serde_json::json!({ "version": row.version, "atMs": row.at_ms, "progress": row.progress });
            self.queue.push(Event::default().id(row.version.to_string()).event("progress").data(data.to_string()));
        }
        if row.status.is_ended() && !full {
            self.done = true;
            let version = row.version;
            let data = serde_json::to_string(&RunView::from(row)).unwrap_or_default();
            self.queue.push(Event::default().id(version.to_string()).event("ended").data(data));
        }
        self.queue.reverse();
        !self.queue.is_empty()
    }

    async fn wait(&mut self) {
        let look = tokio::time::sleep(LOOK_AFTER);
        tokio::pin!(look);
        loop {
            tokio::select! {
                () = &mut look => return,
                changed = self.news.recv() => match changed {
                    Ok(changed) if changed.run == self.run => return,
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(_)) => return,
                    Err(broadcast::error::RecvError::Closed) => {
                        (&mut look).await;
                        return;
                    }
                },
            }
        }
    }
}
