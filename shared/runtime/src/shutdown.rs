//! Stopping a process: the first SIGTERM or SIGINT asks, the second one ends it at once, and draining has a bound.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Exit code after a second signal: 128 + SIGINT, as shells show it.
const FORCED_EXIT: i32 = 130;

/// Listens for signals as long as it lives.
#[derive(Debug)]
pub struct Shutdown {
    token: CancellationToken,
    listener: JoinHandle<()>,
}

impl Shutdown {
    /// Starts to listen. Must be called inside a Tokio runtime, once per process.
    ///
    /// # Errors
    /// The system refused to install a signal handler.
    pub fn listen() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let token = CancellationToken::new();
        let cancel = token.clone();
        let listener = tokio::spawn(async move {
            let first = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            info!(signal = first, "stopping: a second signal ends the process at once");
            cancel.cancel();
            let second = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            warn!(signal = second, "ended before the work in hand was finished");
            std::process::exit(FORCED_EXIT);
        });
        Ok(Self { token, listener })
    }

    /// Cancelled by the first signal, or by cancelling it.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }
}

impl Drop for Shutdown {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// Waits for all tasks, at most `limit`, then aborts the rest. Returns how many were aborted.
///
/// A task that panicked counts as finished and is logged.
///
/// # Cancel safety
/// Cancelling leaves the remaining tasks in the set.
pub async fn drain<T: 'static>(tasks: &mut JoinSet<T>, limit: Duration) -> usize {
    let finish = async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                warn!(%error, "a task did not end by itself");
            }
        }
    };
    if tokio::time::timeout(limit, finish).await.is_ok() {
        return 0;
    }
    let left = tasks.len();
    warn!(left, limit_ms = limit.as_millis(), "aborting what did not finish in time");
    tasks.shutdown().await;
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn draining_waits_for_what_ends_and_aborts_the_rest() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async {});
        tasks.spawn(std::future::pending::<()>());
        assert_eq!(drain(&mut tasks, Duration::from_millis(20)).await, 1);
        assert!(tasks.is_empty());
        tasks.spawn(async {});
        assert_eq!(drain(&mut tasks, Duration::from_secs(60)).await, 0);
    }
}
