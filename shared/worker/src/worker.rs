//! A worker put together: its kind, its pool and what it serves.

use std::{collections::HashMap, sync::Arc};

use ditto_bus::Bus;
use ditto_contracts::{NodeType, Pool};
use ditto_runtime::health::Health;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    DynHandler, NodeHandler, WorkerConfig, WorkerError,
    handler::Typed,
    metrics::Metrics,
    session::{self, Parts},
};

/// A worker that can be run, again and again.
#[derive(Clone)]
pub struct Worker(Arc<Parts>);

/// Puts a worker together.
pub struct WorkerBuilder {
    kind: String,
    pool: Option<Pool>,
    handlers: Vec<Result<Arc<dyn DynHandler>, WorkerError>>,
    health: Option<Health>,
}

impl WorkerBuilder {
    /// Serves a queue of its own.
    #[must_use]
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Serves a node.
    #[must_use]
    pub fn handler<H: NodeHandler>(mut self, handler: H) -> Self {
        self.handlers.push(Typed::new(handler).map(|typed| Arc::new(typed) as Arc<dyn DynHandler>));
        self
    }

    /// Serves a node whose types are not known at compile time.
    #[must_use]
    pub fn dyn_handler(mut self, handler: Arc<dyn DynHandler>) -> Self {
        self.handlers.push(Ok(handler));
        self
    }

    /// Shows in this health, as part `session`, whether the worker serves.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// Checks what was put together.
    ///
    /// # Errors
    /// A kind or node type breaks its rule, a node is served twice, or an input's schema cannot be compiled.
    pub fn build(self) -> Result<Worker, WorkerError> {
        let named = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.kind.is_empty() || self.kind.len() > 32 || !self.kind.chars().all(named) {
            return Err(WorkerError::Invalid("its kind is not 1 to 32 of a-z, 0-9 and -".into()));
        }
        let mut handlers = HashMap::new();
        let mut order = Vec::new();
        for handler in self.handlers {
            let handler = handler?;
            let node: NodeType = handler.node().clone();
            if handlers.insert(node.clone(), handler.clone()).is_some() {
                return Err(WorkerError::Invalid(format!("node {node} is served twice")));
            }
            order.push(handler);
        }
        if order.is_empty() {
            return Err(WorkerError::Invalid("it serves no node".into()));
        }
        Ok(Worker(Arc::new(Parts {
            kind: self.kind,
            pool: self.pool,
            handlers,
            order,
            metrics: Arc::new(Metrics::new()),
            health: self.health.map(|health| health.part("session")),
        })))
    }
}

impl Worker {
    /// Begins to put a worker of this kind together: `interaction`, `memory`, or a name of your own (`a-z`, `0-9`, `-`).
    pub fn builder(kind: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder { kind: kind.into(), pool: None, handlers: Vec::new(), health: None }
    }

    /// The node types it serves, in the order they were given.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeType> {
        self.0.order.iter().map(|handler| handler.node())
    }

    /// Serves one session: until `shutdown`, or until the session is lost. While no coordinator answers it waits.
    ///
    /// # Errors
    /// [`WorkerError::SessionLost`] when the session was declared dead: no effect was started since, what was held is
    /// reported. [`WorkerError::DrainTimeout`] when work was left at the end of the drain time.
    pub async fn run(
        &self,
        config: WorkerConfig,
        bus: Arc<dyn Bus>,
        shutdown: CancellationToken,
    ) -> Result<(), WorkerError> {
        session::run(self.0.clone(), config.bounded(), bus, shutdown).await
    }

    /// As [`Worker::run`], and opens a new session whenever one is lost.
    ///
    /// # Errors
    /// As [`Worker::run`], except for a lost session.
    pub async fn run_forever(
        &self,
        config: WorkerConfig,
        bus: Arc<dyn Bus>,
        shutdown: CancellationToken,
    ) -> Result<(), WorkerError> {
        loop {
            match self.run(config.clone(), bus.clone(), shutdown.clone()).await {
                Err(WorkerError::SessionLost) if !shutdown.is_cancelled() => {
                    warn!("the session is over: opening a new one");
                }
                Err(WorkerError::SessionLost) => return Ok(()),
                outcome => return outcome,
            }
        }
    }
}
