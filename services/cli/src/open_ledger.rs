//! Opens the ledger that a configuration names.

use std::{path::Path, sync::Arc};

use ditto_coordinator::store::{Store, StoreError, postgres::PostgresStore, sqlite::SqliteStore};
use ditto_runtime::config::redact_url;

use crate::{exit::Failure, settings::LedgerConfig};

/// An open ledger, and how to close it.
#[derive(Clone)]
pub(crate) enum Ledger {
    Postgres(PostgresStore),
    Sqlite(Arc<SqliteStore>),
}

impl Ledger {
    /// Connects and brings the schema up to date.
    pub(crate) async fn open(config: &LedgerConfig) -> Result<Self, Failure> {
        let Some(address) = config.address() else {
            return Err(Failure::usage("ledger.url: is not set")
                .code("CONFIG_INVALID")
                .hint("set DITTO_LEDGER_URL, or `ledger: { url: postgres://user@host:5432/name }` in ditto.yaml"));
        };
        let opened = match address.strip_prefix("sqlite:") {
            Some(path) => Self::sqlite(Path::new(path.trim_start_matches("//"))).await,
            None => PostgresStore::open(&address, &config.options()).await.map(Self::Postgres),
        };
        opened.map_err(|error| failure(&redact_url(&address), &error))
    }

    async fn sqlite(path: &Path) -> Result<Self, StoreError> {
        SqliteStore::open(path).await.map(|store| Self::Sqlite(Arc::new(store)))
    }

    /// As the coordinator uses it.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Postgres(store) => Arc::new(store.clone()),
            Self::Sqlite(store) => store.clone(),
        }
    }

    /// Waits for what is under way and closes it.
    pub(crate) async fn close(&self) {
        match self {
            Self::Postgres(store) => store.close().await,
            Self::Sqlite(store) => store.close().await,
        }
    }
}

fn failure(shown: &str, error: &StoreError) -> Failure {
    let failure = Failure::unreachable(format!("ledger at {shown}: {error}")).code("LEDGER_UNUSABLE");
    match error {
        StoreError::Unavailable(_) => failure
            .code("LEDGER_UNAVAILABLE")
            .hint("is the database running, and may this user connect? `ditto doctor` looks closer"),
        StoreError::Schema(_) => failure.hint("every process of a fleet must be of a build that knows this schema"),
        StoreError::ReadOnly(_) | StoreError::BadItem(_) | StoreError::Other(_) => failure,
    }
}
