//! What every part of one coordinator process shares.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use ditto_bus::Bus;
use ditto_contracts::{Json, RunId, RunStatus, SessionId, WireError};
use tokio::sync::broadcast;

use crate::{
    catalogue::Catalogue,
    config::CoordinatorConfig,
    plans::Plans,
    store::{Store, StoreError},
};

/// Handles that all parts use. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Core {
    pub(crate) config: Arc<CoordinatorConfig>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) session: SessionId,
    pub(crate) catalogue: Catalogue,
    pub(crate) plans: Plans,
    pub(crate) clock: LedgerClock,
    pub(crate) news: broadcast::Sender<RunChanged>,
}

/// Tells watchers in this process that a run has a new version.
#[derive(Debug, Clone)]
pub struct RunChanged {
    /// The run.
    pub run: RunId,
    /// Its version.
    pub version: i64,
    /// Its status.
    pub status: RunStatus,
    /// How it ended, once it did.
    pub ending: Option<Arc<(Option<Json>, Option<WireError>)>>,
}

/// The ledger's clock as this process last heard it, carried on by the monotonic clock. Decides nothing that matters
/// for safety: the ledger checks every time again inside its statements.
#[derive(Debug, Clone)]
pub(crate) struct LedgerClock {
    start: Instant,
    /// Ledger time at `start`.
    base_ms: Arc<AtomicI64>,
}

impl LedgerClock {
    pub(crate) fn new(now_ms: i64) -> Self {
        Self { start: Instant::now(), base_ms: Arc::new(AtomicI64::new(now_ms)) }
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    pub(crate) fn heard(&self, now_ms: i64) {
        self.base_ms.store(now_ms - self.elapsed_ms(), Ordering::Relaxed);
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.base_ms.load(Ordering::Relaxed) + self.elapsed_ms()
    }

    /// How long until this ledger time; zero when it has passed.
    pub(crate) fn until(&self, at_ms: i64) -> Duration {
        Duration::from_millis(u64::try_from(at_ms.saturating_sub(self.now_ms())).unwrap_or(0))
    }
}

impl From<StoreError> for WireError {
    fn from(error: StoreError) -> Self {
        use ditto_contracts::ErrorClass;
        match error {
            StoreError::Unavailable(_) => {
                Self::new(ErrorClass::Unavailable, "LEDGER_UNAVAILABLE", "the ledger does not answer").retryable()
            }
            StoreError::ReadOnly(_) => {
                Self::new(ErrorClass::Unavailable, "LEDGER_READ_ONLY", "the ledger takes no writes").retryable()
            }
            StoreError::BadItem(_) => Self::invalid("VALUE_REFUSED", "the ledger cannot store a value of this request"),
            StoreError::Schema(_) => Self::new(
                ErrorClass::Unavailable,
                "LEDGER_SCHEMA",
                "the ledger's schema is not the one this build knows",
            ),
            StoreError::Other(_) => Self::new(ErrorClass::Internal, "LEDGER_FAILED", "the ledger failed"),
        }
    }
}

impl Core {
    /// Life of a worker session in the ledger. The sweeper's grace is the coordinators'; a worker's own grace is
    /// longer and is added here.
    pub(crate) fn worker_ledger_ttl_ms(&self) -> u64 {
        self.config.worker_ttl_ms + self.config.worker_grace_ms.saturating_sub(self.config.session_grace_ms)
    }

    /// Reads what live workers offer.
    pub(crate) async fn read_catalogue(&self) -> Result<(), StoreError> {
        self.catalogue.replace(self.store.offers_live().await?);
        Ok(())
    }
}
