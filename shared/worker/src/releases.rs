//! Giving attempts back.

use std::time::Duration;

use ditto_contracts::{
    Bucket, CallUid, ClaimToken, WireError,
    wire::{
        ledger::{ReleaseItem, ReleaseReply, ReleaseRequest},
        subjects,
    },
};
use tracing::debug;

use crate::{ledger::jitter, session::Session};

/// One granted attempt.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) bucket: Bucket,
    pub(crate) call: CallUid,
    pub(crate) fence: u32,
    pub(crate) token: ClaimToken,
}

/// Gives an attempt back and asks until the ledger has answered. Says whether it was put back.
pub(crate) async fn release(
    session: &Session,
    claim: &Claim,
    unstarted: bool,
    delay: Duration,
    error: Option<WireError>,
) -> bool {
    let item = ReleaseItem {
        bucket: claim.bucket,
        call: claim.call.clone(),
        fence: claim.fence,
        token: claim.token.clone(),
        unstarted,
        delay_ms: u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
        error,
    };
    let request = ReleaseRequest { session: session.id.clone(), items: vec![item] };
    loop {
        let timeout = session.config.request_timeout;
        match session.ledger.ask::<_, ReleaseReply>(subjects::LEDGER_RELEASE, &request, timeout).await {
            Ok(reply) => return reply.done.first().copied().unwrap_or(false),
            Err(error) => {
                debug!(call = %claim.call, %error, "a release has no answer yet: asking again");
                tokio::time::sleep(jitter(Duration::from_millis(250))).await;
            }
        }
    }
}
