//! Why nothing is pulled at the moment.

use tokio::sync::watch;

/// No coordinator answers.
pub(crate) const LEDGER_AWAY: u8 = 1;
/// Too many bytes of results wait for confirmation.
pub(crate) const HELD_FULL: u8 = 2;

/// Open while no reason to pause is set.
#[derive(Debug)]
pub(crate) struct Gate(watch::Sender<u8>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Sets or clears a reason. Says whether that changed anything.
    pub(crate) fn set(&self, reason: u8, on: bool) -> bool {
        if (*self.0.borrow() & reason != 0) == on {
            return false;
        }
        self.0.send_if_modified(|reasons| {
            let new = if on { *reasons | reason } else { *reasons & !reason };
            std::mem::replace(reasons, new) != new
        })
    }

    /// Waits until nothing speaks against pulling.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn opened(&self) {
        let mut reasons = self.0.subscribe();
        // Fails only when the sender is gone, and it is in `self`.
        let _ = reasons.wait_for(|reasons| *reasons == 0).await;
    }

    /// Waits until there is a reason to pause.
    ///
    /// # Cancel safety
    /// Safe.
    pub(crate) async fn closed(&self) {
        let mut reasons = self.0.subscribe();
        let _ = reasons.wait_for(|reasons| *reasons != 0).await; // as above
    }
}
