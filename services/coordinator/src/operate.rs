//! What people and programs do with runs and receipts beyond submitting: wait, cancel, signal, resolve, register.

use std::time::Duration;

use ditto_contracts::{CallUid, Json, Namespace, NodeType, RunId, WireError, codes};
use tokio::{sync::broadcast::error::RecvError, time::Instant};

use crate::{
    service::Handle,
    store::{DefinitionRow, Resolution, Resolved, RunRow, StoreError},
};

/// How long a waiter trusts the news of this process before it looks at the ledger: another coordinator may drive
/// the run.
const LOOK_AFTER: Duration = Duration::from_millis(250);

impl Handle {
    /// Reads a run, waiting up to `wait` for its end.
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn wait_ended(
        &self,
        namespace: &Namespace,
        run: &RunId,
        wait: Duration,
    ) -> Result<Option<RunRow>, StoreError> {
        let mut news = self.watch();
        let deadline = Instant::now() + wait;
        loop {
            let row = self.store().run_get(Some(namespace), run).await?;
            let over = row.as_ref().is_none_or(|row| row.status.is_ended());
            if over || Instant::now() >= deadline {
                return Ok(row);
            }
            let look = deadline.min(Instant::now() + LOOK_AFTER);
            loop {
                tokio::select! {
                    () = tokio::time::sleep_until(look) => break,
                    changed = news.recv() => match changed {
                        Ok(changed) if changed.run == *run && changed.status.is_ended() => break,
                        Ok(_) => {}
                        Err(RecvError::Lagged(_)) => break,
                        Err(RecvError::Closed) => {
                            tokio::time::sleep_until(look).await;
                            break;
                        }
                    },
                }
            }
        }
    }

    /// Asks to cancel a run; `None`: there is none. Repeating it is fine, also after its end.
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn cancel(&self, namespace: &Namespace, run: &RunId) -> Result<Option<RunRow>, StoreError> {
        let row = self.store().run_cancel(namespace, run).await?;
        if let Some(row) = &row
            && !row.status.is_ended()
        {
            self.ring_run(run, row.owner.clone()).await;
        }
        Ok(row)
    }

    /// Sends a signal to a run; `None`: there is none, or it is over.
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn signal(
        &self,
        namespace: &Namespace,
        run: &RunId,
        name: &str,
        body: &Json,
        request_id: Option<&str>,
    ) -> Result<Option<i64>, StoreError> {
        let n = self.store().signal_append(namespace, run, name, body, request_id).await?;
        if n.is_some() {
            let owner = self.store().run_get(Some(namespace), run).await?.and_then(|row| row.owner);
            self.ring_run(run, owner).await;
        }
        Ok(n)
    }

    /// Records a person's decision about an unknown outcome and wakes the run.
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn resolve(
        &self,
        call: &CallUid,
        settle_rev: i32,
        resolution: &Resolution,
        who: &str,
        reason: &str,
    ) -> Result<Resolved, StoreError> {
        let resolved = self.store().receipt_resolve(call, settle_rev, resolution, who, reason).await?;
        if let Resolved::Done(changed) = &resolved {
            self.ring(changed).await;
        }
        Ok(resolved)
    }

    /// Registers a compiled definition; submissions without a revision get it from now on.
    ///
    /// # Errors
    /// When the ledger does not answer.
    pub async fn register(
        &self,
        namespace: &Namespace,
        definition: &ditto_definition::Definition,
        source: String,
    ) -> Result<DefinitionRow, WireError> {
        if NodeType::new(definition.name.as_str()).is_ok() {
            return Err(WireError::invalid(codes::INVALID_INPUT, "loop: a node type is no name for a definition"));
        }
        let row = DefinitionRow {
            namespace: namespace.clone(),
            name: definition.name.clone(),
            revision: definition.revision.clone(),
            source,
            created_ms: self.core.clock.now_ms(),
        };
        self.store().definition_put(&row).await?;
        self.plans().take(row.clone(), true)?;
        Ok(row)
    }
}
