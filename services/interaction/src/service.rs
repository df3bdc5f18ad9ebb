//! The service: tools, sandbox and sink put together into a worker.

use std::{path::Path, sync::Arc};

use ditto_bus::Bus;
use ditto_contracts::Pool;
use ditto_runtime::health::Health;
use ditto_worker::{Sandbox, SandboxError, Worker, WorkerError};
use tokio_util::sync::CancellationToken;

use crate::{
    ActTool, ConsoleSink, FileSink, InteractionConfig, Observe, Output, OutputConfig, OutputSink, RegistryError, Tool,
    ToolRegistry, read_text,
};

/// The kind of this worker.
const KIND: &str = "interaction";

/// Why the interaction worker does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum InteractionError {
    /// A tool cannot be registered.
    #[error("failed to register a tool")]
    Tool(#[from] RegistryError),
    /// Permissions or workspace are not usable.
    #[error("failed to set up the sandbox")]
    Sandbox(#[from] SandboxError),
    /// The sink cannot be opened.
    #[error("failed to open the output sink")]
    Sink(#[source] std::io::Error),
    /// The worker underneath.
    #[error("the worker failed")]
    Worker(#[from] WorkerError),
}

/// An interaction worker, ready to run.
#[derive(Clone)]
pub struct Interaction {
    worker: Worker,
    config: InteractionConfig,
    registry: ToolRegistry,
}

/// Puts an interaction worker together.
#[derive(Default)]
pub struct InteractionBuilder {
    config: InteractionConfig,
    kind: Option<String>,
    registry: ToolRegistry,
    tools: Vec<Tool>,
    sink: Option<Arc<dyn OutputSink>>,
    health: Option<Health>,
}

impl InteractionBuilder {
    /// Settings; the default allows nothing.
    #[must_use]
    pub fn config(mut self, config: InteractionConfig) -> Self {
        self.config = config;
        self
    }

    /// The worker kind when it is not `interaction`: a worker of a kind of its own has queues of its own.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Adds a tool. It runs only if the permissions name it.
    #[must_use]
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }

    /// Uses this registry, which may change while the worker runs.
    #[must_use]
    pub fn registry(mut self, registry: ToolRegistry) -> Self {
        self.registry = registry;
        self
    }

    /// Delivers to this sink instead of the configured one.
    #[must_use]
    pub fn sink(mut self, sink: impl OutputSink) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// Shows in this health whether the worker serves.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.health = Some(health);
        self
    }

    /// Checks everything and opens sandbox and sink.
    ///
    /// # Errors
    /// Names what cannot be used.
    pub fn build(self) -> Result<Interaction, InteractionError> {
        let Self { config, kind, registry, tools, sink, health } = self;
        let sandbox = Sandbox::new(&config.permissions, config.workspace.as_deref().map(Path::new))?;
        for mut tool in tools {
            tool.set_default_timeout(config.tool_timeout.as_duration());
            // For the life of the worker.
            let _registered = registry.register(tool)?;
        }
        let sink = match (sink, &config.output) {
            (Some(sink), _) => Some(sink),
            (None, Some(OutputConfig::Console {})) => Some(Arc::new(ConsoleSink::stderr()) as Arc<dyn OutputSink>),
            (None, Some(OutputConfig::File { dir })) => {
                Some(Arc::new(FileSink::open(dir).map_err(InteractionError::Sink)?) as Arc<dyn OutputSink>)
            }
            (None, None) => None,
        };
        let mut worker = Worker::builder(kind.unwrap_or_else(|| KIND.into()))
            .handler(ActTool::new(registry.clone(), sandbox))
            .handler(Observe);
        if let Some(sink) = sink {
            worker = worker.handler(Output::new(sink, config.tool_timeout.as_ms()));
        }
        if let Some(pool) = &config.pool {
            let pool = Pool::new(pool).map_err(|error| WorkerError::Invalid(error.to_string()))?;
            worker = worker.pool(pool);
        }
        if let Some(health) = health {
            worker = worker.health(health);
        }
        Ok(Interaction { worker: worker.build()?, config, registry })
    }
}

impl Interaction {
    /// Begins to put a worker together. Without tools and sink it serves `INTERACTION.ACT.TOOL` and
    /// `INTERACTION.OBSERVE`.
    pub fn builder() -> InteractionBuilder {
        InteractionBuilder::default()
    }

    /// The worker that the settings describe, with the built-in tools.
    pub fn from_config(config: InteractionConfig) -> InteractionBuilder {
        let read = read_text(config.read_bytes_max.as_bytes());
        Self::builder().config(config).tool(read)
    }

    /// Its tools; may change while it runs.
    pub fn registry(&self) -> &ToolRegistry {
        &self.registry
    }

    /// The nodes it serves, in order.
    pub fn nodes(&self) -> Vec<String> {
        self.worker.nodes().map(ToString::to_string).collect()
    }

    /// Most calls under way at once.
    pub fn concurrency(&self) -> usize {
        self.config.concurrency
    }

    /// Serves until `shutdown`; a lost session is replaced by a new one.
    ///
    /// # Errors
    /// The worker is put together wrongly, or work was left at the end of the drain time.
    pub async fn run(&self, bus: Arc<dyn Bus>, shutdown: CancellationToken) -> Result<(), InteractionError> {
        Ok(self.worker.run_forever(self.config.worker(), bus, shutdown).await?)
    }
}

/// The door of the service: serves with the built-in tools until `shutdown`.
///
/// # Errors
/// Names what cannot be used, or says that work was left at the end of the drain time.
pub async fn run(
    config: InteractionConfig,
    bus: Arc<dyn Bus>,
    shutdown: CancellationToken,
) -> Result<(), InteractionError> {
    Interaction::from_config(config).build()?.run(bus, shutdown).await
}
