//! Which program a run executes: definitions registered in the ledger, plans written in Rust, and single nodes.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
    time::{Duration, Instant},
};

use ditto_contracts::{ErrorClass, LoopName, Namespace, NodeType, Revision, WireError, wire::SubmitKind};
use ditto_graph::{Plan, StateLoop};

use crate::store::{DefinitionRow, Store};

/// How long the newest revision of a name is believed without asking the ledger.
const NEWEST_TTL: Duration = Duration::from_secs(1);
/// Revision of the plan that executes one node.
const NODE_REVISION: &str = "node";
/// Most compiled definitions kept; beyond it the cache starts anew.
const CACHE_MAX: usize = 4096;

#[derive(Default)]
struct Cache {
    compiled: HashMap<(Namespace, LoopName, Revision), Arc<dyn Plan>>,
    newest: HashMap<(Namespace, LoopName), (Revision, Instant)>,
    registered: HashMap<LoopName, Arc<dyn Plan>>,
}

/// The programs this build can drive. Cheap to clone.
#[derive(Clone, Default)]
pub struct Plans {
    cache: Arc<RwLock<Cache>>,
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
            return single_node(name);
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
        if revision.as_str() == NODE_REVISION {
            return single_node(name);
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
        let known = self.read(|c| c.compiled.get(&(row.namespace.clone(), row.name.clone(), row.revision.clone())).cloned());
        let plan = match known {
            Some(plan) => plan,
            None => ditto_definition::compile(&row.source, row.name.as_str())
                .map_err(|problems| {
                    let first = problems.first().map(ToString::to_string).unwrap_or_default();
                    WireError::new(ErrorClass::Internal, "DEFINITION_INVALID", format!("definition {}: {first}", row.name))
                })?
                .plan,
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
}

fn single_node(name: &LoopName) -> Result<Arc<dyn Plan>, WireError> {
    let node = NodeType::new(name.as_str())
        .map_err(|error| WireError::invalid(ditto_contracts::codes::INVALID_INPUT, format!("name: {error}")))?;
    let revision = Revision::new(NODE_REVISION).map_err(|error| WireError::invalid("REVISION", error.to_string()))?;
    Ok(Arc::new(StateLoop::single_node(name.clone(), revision, node)))
}
