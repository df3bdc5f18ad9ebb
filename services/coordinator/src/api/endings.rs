//! `/v1/endings`: ends of runs as they happen, as server-sent events, for clients that await many runs at once: one
//! stream instead of one waiting request per run.
//!
//! It carries runs that this process drives, of all namespaces, by id and status only; whoever submitted a run knows its
//! id. It is news, not a record: after an event `lagged`, or a new connection, read the runs that are still awaited.

use std::convert::Infallible;

use axum::{
    Router,
    extract::State,
    response::sse::{Event, KeepAlive, Sse},
    routing::get,
};
use ditto_contracts::{RunId, RunStatus};
use futures_util::Stream;
use serde::Serialize;
use tokio::sync::broadcast::{
    Receiver,
    error::{RecvError, TryRecvError},
};

use crate::{core::RunChanged, service::Handle};

/// Most ends in one event.
const ENDS_MAX: usize = 256;

pub(super) fn routes() -> Router<Handle> {
    Router::new().route("/v1/endings", get(endings))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Ending {
    run_id: RunId,
    status: RunStatus,
}

/// Each event `ended` is an array of `{runId, status}`. Ends after the answer's head are not missed unless it says
/// `lagged`.
async fn endings(State(handle): State<Handle>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(futures_util::stream::unfold(handle.watch(), next)).keep_alive(KeepAlive::default())
}

async fn next(mut news: Receiver<RunChanged>) -> Option<(Result<Event, Infallible>, Receiver<RunChanged>)> {
    let mut ends = Vec::new();
    loop {
        match news.recv().await {
            Ok(changed) => take(&mut ends, changed),
            Err(RecvError::Lagged(_)) => return Some((Ok(lagged()), news)),
            Err(RecvError::Closed) => return None,
        }
        while ends.len() < ENDS_MAX {
            match news.try_recv() {
                Ok(changed) => take(&mut ends, changed),
                Err(TryRecvError::Lagged(_)) => return Some((Ok(lagged()), news)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        if !ends.is_empty() {
            let data = serde_json::to_string(&ends).unwrap_or_default();
            return Some((Ok(Event::default().event("ended").data(data)), news));
        }
    }
}

/// Whoever reads it looks at every run it awaits, those that were just collected included.
fn lagged() -> Event {
    Event::default().event("lagged").data("[]")
}

fn take(ends: &mut Vec<Ending>, changed: RunChanged) {
    if changed.status.is_ended() {
        ends.push(Ending { run_id: changed.run, status: changed.status });
    }
}
