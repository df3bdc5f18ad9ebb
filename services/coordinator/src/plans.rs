//! Which program a run executes: definitions registered in the ledger, plans written in Rust, and single nodes.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use ditto_contracts::{ErrorClass, Json, LoopName, Namespace, NodeType, Revision, WireError, wire::SubmitKind};
use ditto_definition::{Definition, Diagnostic};
use ditto_graph::{Plan, PureNode, PureNodes, StateLoop};

use crate::store::{DefinitionRow, Store};

/// How long the newest revision of a name is believed without asking the ledger.
const NEWEST_TTL: Duration = Duration::from_secs(1);
/// Most compiled definitions kept; beyond it the cache starts anew.
const CACHE_MAX: usize = 4096;

#[derive(Default)]
struct Cache {
    compiled: HashMap<(Namespace, LoopName, Revision), Arc<dyn Plan>>,
    newest: HashMap<(Namespace, LoopName), (Revision, Instant)>,
    registered: HashMap<LoopName, Arc<dyn Plan>>,
}

/// The programs this build can drive. Cheap to clone.
#[derive(Clone)]
pub struct Plans {
    cache: Arc<RwLock<Cache>>,
    pure: Arc<PureNodes>,
}

impl Default for Plans {
    fn default() -> Self {
        Self { cache: Arc::default(), pure: Arc::new(pure_nodes()) }
    }
}

impl Plans {
    /// Registers a plan written in Rust; it serves every namespace.
    pub fn register(&self, plan: Arc<dyn Plan>) {
        let name = plan.name().clone();
        self.write(|cache| drop(cache.registered.insert(name, plan)));
    }

    fn write<T>(&self, change: impl FnOnce(&mut Cache) -> T) -> T {
        match self.cache.write() {
            Ok(mut cache) => change(&mut cache),
            Err(poisoned) => change(&mut poisoned.into_inner()), // maps stay consistent between single inserts
        }
    }

    fn read<T>(&self, look: impl FnOnce(&Cache) -> T) -> T {
        match self.cache.read() {
            Ok(cache) => look(&cache),
            Err(poisoned) => look(&poisoned.into_inner()),
        }
    }

    /// The plan a submission asks for.
    ///
    /// # Errors
    /// `not_found` when nothing of that name is registered, `invalid_input` for a bad node type.
    pub(crate) async fn for_submit(
        &self,
        store: &dyn Store,
        namespace: &Namespace,
        kind: SubmitKind,
        name: &LoopName,
        revision: Option<&Revision>,
    ) -> Result<Arc<dyn Plan>, WireError> {
        if kind == SubmitKind::Node {
            return self.single_node(name);
        }
        self.find(store, namespace, name, revision).await
    }

    /// The plan of a run that is taken up again.
    ///
    /// # Errors
    /// `not_found` when this build does not serve it.
    pub(crate) async fn for_run(
        &self,
        store: &dyn Store,
        namespace: &Namespace,
        name: &LoopName,
        revision: &Revision,
    ) -> Result<Arc<dyn Plan>, WireError> {
        // A dotted upper-case name is a node type; definitions may not take one (see `Handle::register`).
        if NodeType::new(name.as_str()).is_ok() {
            return self.single_node(name);
        }
        self.find(store, namespace, name, Some(revision)).await
    }

    async fn find(
        &self,
        store: &dyn Store,
        namespace: &Namespace,
        name: &LoopName,
        revision: Option<&Revision>,
    ) -> Result<Arc<dyn Plan>, WireError> {
        let by_name = (namespace.clone(), name.clone());
        let cached = self.read(|cache| {
            if let Some(plan) = cache.registered.get(name)
                && revision.is_none_or(|r| r == plan.revision())
            {
                return Some(plan.clone());
            }
            let revision = match revision {
                Some(revision) => revision.clone(),
                None => cache.newest.get(&by_name).filter(|(_, at)| at.elapsed() < NEWEST_TTL)?.0.clone(),
            };
            cache.compiled.get(&(namespace.clone(), name.clone(), revision)).cloned()
        });
        if let Some(plan) = cached {
            return Ok(plan);
        }
        let row = store.definition_get(namespace, name, revision).await?.ok_or_else(|| {
            WireError::new(
                ErrorClass::NotFound,
                "DEFINITION_NOT_FOUND",
                match revision {
                    Some(revision) => format!("no definition {name} with revision {revision} in namespace {namespace}"),
                    None => format!("no definition {name} in namespace {namespace}; register it first"),
                },
            )
        })?;
        self.take(row, revision.is_none())
    }

    /// Compiles and keeps a definition; `newest` makes it the one that submissions without a revision get.
    ///
    /// # Errors
    /// When it does not compile with this build.
    pub(crate) fn take(&self, row: DefinitionRow, newest: bool) -> Result<Arc<dyn Plan>, WireError> {
        let known =
            self.read(|c| c.compiled.get(&(row.namespace.clone(), row.name.clone(), row.revision.clone())).cloned());
        let plan = match known {
            Some(plan) => plan,
            None => {
                self.compile(&row.source, row.name.as_str())
                    .map_err(|problems| {
                        let first = problems.first().map(ToString::to_string).unwrap_or_default();
                        WireError::new(
                            ErrorClass::Internal,
                            "DEFINITION_INVALID",
                            format!("definition {}: {first}", row.name),
                        )
                    })?
                    .plan
            }
        };
        self.write(|cache| {
            if cache.compiled.len() >= CACHE_MAX {
                cache.compiled.clear();
            }
            if newest {
                cache.newest.insert((row.namespace.clone(), row.name.clone()), (row.revision.clone(), Instant::now()));
            }
            cache.compiled.insert((row.namespace, row.name, row.revision), plan.clone());
        });
        Ok(plan)
    }

    /// Compiles a definition for this process: pure nodes are evaluated inside its decisions.
    ///
    /// # Errors
    /// Every problem of the text.
    pub(crate) fn compile(&self, text: &str, source_name: &str) -> Result<Definition, Vec<Diagnostic>> {
        ditto_definition::compile_with(text, source_name, self.pure.clone())
    }

    fn single_node(&self, name: &LoopName) -> Result<Arc<dyn Plan>, WireError> {
        let node = NodeType::new(name.as_str())
            .map_err(|error| WireError::invalid(ditto_contracts::codes::INVALID_INPUT, format!("name: {error}")))?;
        let built = StateLoop::single_node(node)?.pure_nodes(self.pure.clone()).build();
        let plan = built.map_err(|problems| {
            let first = problems.first().map(ToString::to_string).unwrap_or_default();
            WireError::new(ErrorClass::Internal, "NODE_PLAN", first)
        })?;
        Ok(Arc::new(plan))
    }
}

/// `INTERACTION.OBSERVE`: a pure function of its input, so no job is needed for it.
struct Observe {
    node: NodeType,
}

impl PureNode for Observe {
    fn node(&self) -> &NodeType {
        &self.node
    }

    fn evaluate(&self, input: &Json) -> Result<Json, WireError> {
        ditto_contracts::observe(input)
    }
}

fn pure_nodes() -> PureNodes {
    match NodeType::new(NodeType::OBSERVE) {
        Ok(node) => PureNodes::new().with(Arc::new(Observe { node })),
        Err(_) => PureNodes::new(), // the name is a constant of the contract, checked by its tests
    }
}
