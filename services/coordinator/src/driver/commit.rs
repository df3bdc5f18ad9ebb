//! The two verbs through which results enter the ledger: with the run's next step, or on their own.

use ditto_bus::Message;
use ditto_contracts::{
    RunId, SessionId,
    wire::{Headers, subjects},
};
use ditto_runtime::fault::{FaultAction, point};
use tracing::{debug, warn};

use super::{Answered, Confirms, DriverSender, Msg};
use crate::{
    core::Core,
    dispatcher::WakeNotice,
    lanes::Verb,
    store::{Advance, Advanced, Settle, Settled, Store, StoreError, StoreResult},
};

/// Travels with an advance.
pub(crate) struct AdvanceContext {
    /// One per settlement of the item, in the same order.
    pub(crate) answered: Vec<Answered>,
}

/// T1 (with T3): settle and go on.
pub(crate) struct AdvanceVerb {
    pub(crate) session: SessionId,
    pub(crate) driver: DriverSender,
}

impl Verb for AdvanceVerb {
    type Item = Advance;
    type Answer = Advanced;
    type Context = AdvanceContext;
    type Key = RunId;

    const NAME: &'static str = "advance";

    fn key(item: &Advance) -> RunId {
        item.run.clone()
    }

    async fn run(&self, store: &dyn Store, items: &[Advance]) -> StoreResult<Vec<Advanced>> {
        if point("before_advance").await == FaultAction::Drop {
            return Err(StoreError::Unavailable("fault before the commit".into()));
        }
        let answers = store.advance(&self.session, items).await?;
        if point("after_advance").await == FaultAction::Drop {
            return Err(StoreError::Unavailable("fault after the commit".into()));
        }
        Ok(answers)
    }

    async fn deliver(&self, answers: Vec<(Advance, AdvanceContext, StoreResult<Advanced>)>) {
        if self.driver.send(Msg::Committed(answers)).is_err() {
            debug!("the driver has ended; the next owner reads these runs from the ledger");
        }
    }
}

/// T3 on its own: for runs that this process does not drive, and for calls that stay open.
pub(crate) struct SettleVerb {
    pub(crate) core: Core,
    pub(crate) driver: DriverSender,
}

impl Verb for SettleVerb {
    type Item = Settle;
    type Answer = Settled;
    type Context = Answered;
    type Key = ditto_contracts::CallUid;

    const NAME: &'static str = "settle";

    fn key(item: &Settle) -> Self::Key {
        item.call.clone()
    }

    async fn run(&self, store: &dyn Store, items: &[Settle]) -> StoreResult<Vec<Settled>> {
        if point("before_settle").await == FaultAction::Drop {
            return Err(StoreError::Unavailable("fault before the commit".into()));
        }
        let answers = store.settle(items).await?;
        if point("after_settle").await == FaultAction::Drop {
            return Err(StoreError::Unavailable("fault after the commit".into()));
        }
        Ok(answers)
    }

    async fn deliver(&self, answers: Vec<(Settle, Answered, StoreResult<Settled>)>) {
        let mut rung: Vec<(RunId, Option<SessionId>)> = Vec::new();
        let mut confirms = Confirms::default();
        for (settle, answered, answer) in answers {
            match answer {
                Ok(Settled::Done { run, owner, .. }) => rung.push((run, owner)),
                Ok(Settled::Logged) => {
                    debug!(call = %settle.call, fence = settle.fence, "late result kept in the attempt log")
                }
                Ok(Settled::Missing) => warn!(call = %settle.call, "result for a call without a receipt"),
                Err(error) => {
                    // Not acknowledged: the result comes again.
                    warn!(call = %settle.call, %error, "result could not be settled");
                    continue;
                }
            }
            confirms.settled(answered).await;
        }
        confirms.send(&self.core).await;
        ring(&self.core, &self.driver, rung).await;
    }
}

/// Wakes the owners of runs whose bell was rung: in memory when the owner is this process, else over the bus.
pub(crate) async fn ring(core: &Core, driver: &DriverSender, rung: Vec<(RunId, Option<SessionId>)>) {
    let mut mine = Vec::new();
    let mut others: std::collections::HashMap<SessionId, Vec<RunId>> = Default::default();
    for (run, owner) in rung {
        match owner {
            Some(owner) if owner != core.session => others.entry(owner).or_default().push(run),
            _ => mine.push(run),
        }
    }
    if !mine.is_empty() {
        let _ = driver.send(Msg::Wake(mine)); // a driver that has ended needs no doorbell
    }
    for (owner, runs) in others {
        let Ok(body) = serde_json::to_vec(&WakeNotice { runs, calls: Vec::new() }) else { continue };
        let message = Message { subject: subjects::wake(&owner), headers: Headers::new(), body: body.into() };
        if let Err(error) = core.bus.notify(message).await {
            debug!(%owner, %error, "doorbell was not rung; the owner's poll finds the run");
        }
    }
}
