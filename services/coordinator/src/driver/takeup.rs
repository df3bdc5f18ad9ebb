//! Takes a run up again from the ledger.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ditto_contracts::{RunStatus, WireError, codes};
use ditto_graph::{Event, Plan, RunFacts, RunMachine};
use tracing::{error, info, warn};

use super::{AdvanceContext, AdvanceVerb, DriverSender, Live, Msg, step};
use crate::{
    core::Core,
    lanes::Lanes,
    store::{Advance, LoadedRun, Step},
};

/// How long a run that this build cannot drive is kept from being looked at again.
const GIVE_BACK_AFTER: Duration = Duration::from_secs(5);

/// Restores the machine of a run and hands it to the driver, with everything that happened while nobody drove it.
pub(crate) async fn restore(core: Core, loaded: LoadedRun, driver: DriverSender, advance: Lanes<AdvanceVerb>) {
    core.clock.heard(loaded.now_ms);
    let plan = match core.plans.for_run(&*core.store, &loaded.namespace, &loaded.name, &loaded.revision).await {
        Ok(plan) => plan,
        Err(error) => {
            // Another build may serve it: give it back. Nothing of the run has changed.
            error!(run = %loaded.run, definition = %loaded.name, revision = %loaded.revision, %error, "run cannot be driven by this build");
            tokio::time::sleep(GIVE_BACK_AFTER).await;
            if let Err(error) = core.store.runs_yield(&core.session, std::slice::from_ref(&loaded.run)).await {
                warn!(run = %loaded.run, %error, "run is not given back");
            }
            return;
        }
    };
    let (epoch, version, bell, run) = (loaded.epoch, loaded.version, loaded.bell, loaded.run.clone());
    match machine(&core, plan, loaded) {
        Ok(live) => {
            info!(%run, version, epoch, "run taken up");
            let _ = driver.send(Msg::Restored(Box::new(live))); // a driver that has ended gives its runs back itself
        }
        Err(error) if error.code == codes::PLAN_DIVERGED => {
            // Another build may serve it: nothing of the run has changed.
            error!(%run, %error, "run does not match the program of this build; it is given back");
            tokio::time::sleep(GIVE_BACK_AFTER).await;
            if let Err(error) = core.store.runs_yield(&core.session, std::slice::from_ref(&run)).await {
                warn!(%run, %error, "run is not given back");
            }
        }
        Err(error) => {
            warn!(%run, %error, "run cannot be taken up again; it ends");
            let ending = step::broken(&error);
            let step = Step {
                checkpoint: ditto_contracts::Json::null(),
                boundary: false,
                receipts: Vec::new(),
                cancels: Vec::new(),
                status: ending.status,
                wake_ms: None,
                signal_seen: None,
                bell_seen: bell,
                ending: Some(ending),
                progress: None,
            };
            let item = Advance { run, epoch, version, settles: Vec::new(), step };
            advance.send(item, AdvanceContext { answered: Vec::new() }).await;
        }
    }
}

fn machine(core: &Core, plan: Arc<dyn Plan>, loaded: LoadedRun) -> Result<Live, WireError> {
    let facts = RunFacts {
        run: loaded.run.clone(),
        namespace: loaded.namespace.clone(),
        name: loaded.name,
        revision: loaded.revision,
        input: loaded.input,
    };
    let options = core.config.run_options();
    let live = |machine, open, hold| Live {
        run: loaded.run.clone(),
        machine,
        status: if loaded.status == RunStatus::Queued { RunStatus::Running } else { loaded.status },
        epoch: loaded.epoch,
        version: loaded.version,
        bell: loaded.bell,
        signal_seen: 0,
        wake_ms: None,
        deadline_ms: loaded.deadline_ms,
        deadline_told: false,
        cancel_told: false,
        traceparent: loaded.traceparent.clone(),
        open,
        events: Vec::new(),
        results: Vec::new(),
        committing: false,
        reading: None,
        force: true,
        hold,
    };
    let Some(checkpoint) = &loaded.checkpoint else {
        let (machine, decision) = RunMachine::begin(plan, &facts, options, loaded.now_ms)?;
        let hold = super::Hold {
            decision,
            results: Vec::new(),
            until: tokio::time::Instant::now() + std::time::Duration::from_millis(core.config.worker_wait_ms),
        };
        let mut live = live(machine, Default::default(), Some(hold));
        if loaded.cancel_asked {
            live.tell(Event::CancelRequested);
        }
        return Ok(live);
    };
    let references = RunMachine::references(checkpoint)?;
    let outcomes: HashMap<_, _> =
        loaded.calls.iter().filter_map(|(call, stored)| Some((call.clone(), stored.outcome.clone()?))).collect();
    let machine = RunMachine::restore(plan, &facts, options, checkpoint, &outcomes)?;
    let mut live = live(machine, references.open.iter().map(|call| (call.clone(), None)).collect(), None);
    for call in references.open {
        if let Some(outcome) = outcomes.get(&call) {
            live.tell(Event::CallSettled { call, outcome: outcome.clone() });
        }
    }
    for signal in loaded.signals {
        live.tell(Event::Signal { n: signal.n, name: signal.name, body: signal.body });
    }
    if loaded.cancel_asked {
        live.tell(Event::CancelRequested);
    }
    if loaded.deadline_ms.is_some_and(|at_ms| at_ms <= loaded.now_ms) {
        live.tell(Event::DeadlinePassed);
    }
    live.tell(Event::Woke);
    Ok(live)
}
