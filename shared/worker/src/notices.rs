//! Plain messages to this session: calls to stop, and results that are settled. Losing them costs time only.

use std::sync::Arc;

use ditto_bus::{Received, Subscription};
use ditto_contracts::{
    Json,
    wire::ledger::{CancelNotice, ConfirmNotice},
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::session::Session;

/// Notices that may wait unread.
pub(crate) const CAPACITY: usize = 4_096;

/// Listens until `end`.
pub(crate) async fn listen(
    session: Arc<Session>,
    mut cancels: Box<dyn Subscription>,
    mut confirms: Box<dyn Subscription>,
    end: CancellationToken,
) {
    loop {
        tokio::select! {
            () = end.cancelled() => return,
            notice = confirms.next() => match notice {
                Some(notice) => {
                    if let Some(ConfirmNotice { calls }) = read(notice) {
                        for call in &calls {
                            session.confirm(call);
                        }
                    }
                }
                None => break,
            },
            notice = cancels.next() => match notice {
                Some(notice) => {
                    if let Some(CancelNotice { calls }) = read(notice) {
                        for call in &calls {
                            session.held.cancel(call);
                        }
                    }
                }
                None => break,
            },
        }
    }
    // The bus is closed; the session ends on its own terms.
    end.cancelled().await;
}

fn read<T: DeserializeOwned>(notice: Received) -> Option<T> {
    let parsed = Json::parse(notice.message.body).map_err(|error| error.to_string());
    match parsed.and_then(|json| json.to().map_err(|error| error.to_string())) {
        Ok(notice) => Some(notice),
        Err(error) => {
            debug!(error, "a notice is unreadable");
            None
        }
    }
}
