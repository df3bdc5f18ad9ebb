//! What live workers serve: policies, queues and schemas, merged from their announcements.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, RwLock},
};

use ditto_contracts::{CallPolicy, NodeType, Pool, SessionId, wire::ledger::Offer};
use tokio::sync::watch;

use crate::store::OfferRow;

/// One thing that is served, over all live sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    /// Policy; the strictest where sessions disagree.
    pub policy: CallPolicy,
    /// Queues it is consumed from; `None` is the node's default queue and comes first.
    pub pools: Vec<Option<Pool>>,
    /// The newest description of it.
    pub offer: Offer,
    /// How many live sessions serve it.
    pub sessions: usize,
    /// Sessions contradict each other.
    pub conflict: bool,
}

type Key = (NodeType, Option<String>);

#[derive(Debug, Default)]
struct Snapshot {
    served: BTreeMap<Key, Served>,
    kinds: HashMap<SessionId, String>,
    rows: Vec<OfferRow>,
}

/// The catalogue as this coordinator last read it from the ledger. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Catalogue {
    snapshot: Arc<RwLock<Arc<Snapshot>>>,
    changed: watch::Sender<u64>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self { snapshot: Arc::default(), changed: watch::channel(0).0 }
    }
}

impl Catalogue {
    fn read(&self) -> Arc<Snapshot> {
        match self.snapshot.read() {
            Ok(snapshot) => snapshot.clone(),
            Err(poisoned) => poisoned.into_inner().clone(), // a snapshot is replaced whole, never half
        }
    }

    /// Takes what the ledger says. Returns whether anything changed.
    pub fn replace(&self, rows: Vec<OfferRow>) -> bool {
        if self.read().rows == rows {
            return false;
        }
        let mut snapshot = Snapshot::default();
        for row in &rows {
            snapshot.kinds.insert(row.session.clone(), row.kind.clone());
            let key = (row.offer.node.clone(), row.offer.source.clone());
            match snapshot.served.get_mut(&key) {
                None => {
                    snapshot.served.insert(
                        key,
                        Served {
                            policy: row.offer.policy.clone(),
                            pools: vec![row.pool.clone()],
                            offer: row.offer.clone(),
                            sessions: 1,
                            conflict: false,
                        },
                    );
                }
                Some(served) => {
                    served.conflict |= served.policy != row.offer.policy;
                    served.policy = served.policy.stricter(&row.offer.policy);
                    served.sessions += 1;
                    if !served.pools.contains(&row.pool) {
                        served.pools.push(row.pool.clone());
                        served.pools.sort();
                    }
                }
            }
        }
        snapshot.rows = rows;
        let snapshot = Arc::new(snapshot);
        match self.snapshot.write() {
            Ok(mut slot) => *slot = snapshot,
            Err(poisoned) => *poisoned.into_inner() = snapshot,
        }
        self.changed.send_modify(|n| *n += 1);
        true
    }

    /// What is served under a node and source; a node without sources serves every source.
    pub fn find(&self, node: &NodeType, source: Option<&str>) -> Option<Served> {
        let snapshot = self.read();
        let exact = (node.clone(), source.map(str::to_owned));
        snapshot.served.get(&exact).or_else(|| snapshot.served.get(&(exact.0, None))).cloned()
    }

    /// Everything served, in order of node and source.
    pub fn all(&self) -> Vec<Served> {
        self.read().served.values().cloned().collect()
    }

    /// The worker kind of a live session.
    pub fn kind_of(&self, session: &SessionId) -> Option<String> {
        self.read().kinds.get(session).cloned()
    }

    /// Ticks with every change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use ditto_contracts::EffectClass;

    use super::*;

    fn row(session: &str, pool: Option<&str>, policy: CallPolicy) -> OfferRow {
        OfferRow {
            session: SessionId::new(session).unwrap(),
            kind: "interaction".into(),
            pool: pool.map(|p| Pool::new(p).unwrap()),
            offer: Offer {
                node: NodeType::new(NodeType::ACT_TOOL).unwrap(),
                source: Some("refund".into()),
                policy,
                description: None,
                input_schema: None,
                effects: Vec::new(),
                requires_approval: false,
            },
        }
    }

    #[test]
    fn the_stricter_of_two_announcements_rules_and_is_marked() {
        let catalogue = Catalogue::default();
        assert!(
            catalogue
                .replace(vec![row("a", Some("pay"), CallPolicy::read_only()), row("b", None, CallPolicy::default())])
        );
        let node = NodeType::new(NodeType::ACT_TOOL).unwrap();
        let served = catalogue.find(&node, Some("refund")).unwrap();
        assert_eq!(served.policy.class, EffectClass::NonIdempotent);
        assert!(served.conflict && served.policy.is_claimed());
        assert_eq!(served.pools[0], None);
        assert_eq!(catalogue.find(&node, Some("other")), None);
        assert_eq!(catalogue.kind_of(&SessionId::new("a").unwrap()).as_deref(), Some("interaction"));
    }
}
