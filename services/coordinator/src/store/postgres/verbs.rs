//! The seam's verbs, each in a task of its own.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use ditto_contracts::{
    Bucket, CallUid, Json, LoopName, Namespace, Pool, Revision, RunId, SessionId,
    wire::{
        PayloadRef,
        ledger::{ClaimAnswer, ClaimItem, Offer, ReleaseItem},
    },
};

use super::{
    super::{
        Advance, Advanced, AttemptRow, Changed, DefinitionRow, DueJob, DueRuns, EventRow, Lease, LedgerCounts,
        LoadedRun, NewRun, NewSession, OfferRow, QueryAnswer, ReceiptFilter, ReceiptRow, Resolution, Resolved,
        RunFilter, RunNews, RunRow, SessionRow, Settle, Settled, Store, StoreResult, Submitted,
    },
    PostgresStore, advance, claim, definitions, numbers, payloads, receipts, reconcile, retention, runs, sessions,
    settle, submit, sweepers, take,
};

/// Takes what the verb needs along and runs it over the pool.
macro_rules! verb {
    ($store:ident, |$pool:ident| $body:expr) => {
        $store
            .run(move |store| async move {
                let $pool = &store.inner.pool;
                $body.await
            })
            .await
    };
}

#[async_trait]
impl Store for PostgresStore {
    async fn session_open(&self, session: &NewSession) -> StoreResult<Lease> {
        let session = session.clone();
        self.run(move |store| async move { sessions::open(&store.inner.pool, &session, &store.inner.mark).await }).await
    }

    async fn session_renew(&self, session: &SessionId, ttl_ms: u64) -> StoreResult<Lease> {
        let session = session.clone();
        verb!(self, |pool| sessions::renew(pool, &session, ttl_ms))
    }

    async fn session_close(&self, session: &SessionId) -> StoreResult<()> {
        let session = session.clone();
        verb!(self, |pool| sessions::close(pool, &session))
    }

    async fn sessions_expire(&self, grace: Duration) -> StoreResult<Vec<SessionId>> {
        verb!(self, |pool| sessions::expire(pool, grace))
    }

    async fn sessions_list(&self, limit: u32) -> StoreResult<Vec<SessionRow>> {
        verb!(self, |pool| sessions::list(pool, limit))
    }

    async fn offers_put(
        &self,
        session: &SessionId,
        kind: &str,
        queue: Option<&Pool>,
        offers: &[Offer],
    ) -> StoreResult<()> {
        let (session, kind, queue, offers) = (session.clone(), kind.to_owned(), queue.cloned(), offers.to_vec());
        verb!(self, |pool| sessions::offers_put(pool, &session, &kind, queue.as_ref(), &offers))
    }

    async fn offers_live(&self) -> StoreResult<Vec<OfferRow>> {
        verb!(self, |pool| sessions::offers_live(pool))
    }

    async fn submit(&self, owner: &SessionId, runs: &[NewRun]) -> StoreResult<Vec<Submitted>> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let (owner, items) = (owner.clone(), runs.to_vec());
        verb!(self, |pool| submit::submit(pool, &owner, &items))
    }

    async fn advance(&self, owner: &SessionId, items: &[Advance]) -> StoreResult<Vec<Advanced>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let (owner, items) = (owner.clone(), items.to_vec());
        verb!(self, |pool| advance::advance(pool, &owner, &items))
    }

    async fn claim(&self, session: &SessionId, items: &[ClaimItem]) -> StoreResult<Vec<ClaimAnswer>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let (session, items) = (session.clone(), items.to_vec());
        verb!(self, |pool| claim::claim(pool, &session, &items))
    }

    async fn release(&self, session: &SessionId, items: &[ReleaseItem]) -> StoreResult<Vec<bool>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let (session, items) = (session.clone(), items.to_vec());
        verb!(self, |pool| claim::release(pool, &session, &items))
    }

    async fn settle(&self, items: &[Settle]) -> StoreResult<Vec<Settled>> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let items = items.to_vec();
        verb!(self, |pool| settle::settle(pool, &items))
    }

    async fn runs_due(&self, owner: &SessionId, take_max: u32) -> StoreResult<DueRuns> {
        let owner = owner.clone();
        verb!(self, |pool| take::due(pool, &owner, take_max))
    }

    async fn runs_owned(&self, owner: &SessionId, limit: u32) -> StoreResult<Vec<RunId>> {
        let owner = owner.clone();
        verb!(self, |pool| take::runs_owned(pool, &owner, limit))
    }

    async fn run_take(&self, owner: &SessionId, run: &RunId) -> StoreResult<Option<LoadedRun>> {
        let (owner, run) = (owner.clone(), run.clone());
        verb!(self, |pool| take::take(pool, &owner, &run))
    }

    async fn run_news(&self, run: &RunId, open: &[CallUid], signal_seen: i64) -> StoreResult<Option<RunNews>> {
        let (run, open) = (run.clone(), open.to_vec());
        verb!(self, |pool| take::news(pool, &run, &open, signal_seen))
    }

    async fn runs_yield(&self, owner: &SessionId, runs: &[RunId]) -> StoreResult<()> {
        let (owner, runs) = (owner.clone(), runs.to_vec());
        verb!(self, |pool| take::give_back(pool, &owner, &runs))
    }

    async fn run_cancel(&self, namespace: &Namespace, run: &RunId) -> StoreResult<Option<RunRow>> {
        let (namespace, run) = (namespace.clone(), run.clone());
        verb!(self, |pool| runs::cancel(pool, &namespace, &run))
    }

    async fn signal_append(
        &self,
        namespace: &Namespace,
        run: &RunId,
        name: &str,
        body: &Json,
        request_id: Option<&str>,
    ) -> StoreResult<Option<i64>> {
        let (namespace, run, name, body) = (namespace.clone(), run.clone(), name.to_owned(), body.clone());
        let request_id = request_id.map(str::to_owned);
        verb!(self, |pool| runs::signal(pool, &namespace, &run, &name, &body, request_id.as_deref()))
    }

    async fn run_get(&self, namespace: Option<&Namespace>, run: &RunId) -> StoreResult<Option<RunRow>> {
        let (namespace, run) = (namespace.cloned(), run.clone());
        verb!(self, |pool| runs::get(pool, namespace.as_ref(), &run))
    }

    async fn runs_list(&self, filter: &RunFilter, limit: u32) -> StoreResult<Vec<RunRow>> {
        let filter = filter.clone();
        verb!(self, |pool| runs::list(pool, &filter, limit))
    }

    async fn events_after(&self, run: &RunId, version: i64, limit: u32) -> StoreResult<Vec<EventRow>> {
        let run = run.clone();
        verb!(self, |pool| runs::events_after(pool, &run, version, limit))
    }

    async fn receipt_get(&self, call: &CallUid) -> StoreResult<Option<ReceiptRow>> {
        let call = call.clone();
        verb!(self, |pool| receipts::get(pool, &call))
    }

    async fn receipts_list(&self, filter: &ReceiptFilter, limit: u32) -> StoreResult<Vec<ReceiptRow>> {
        let filter = filter.clone();
        verb!(self, |pool| receipts::list(pool, &filter, limit))
    }

    async fn attempts_list(&self, call: &CallUid, limit: u32) -> StoreResult<Vec<AttemptRow>> {
        let call = call.clone();
        verb!(self, |pool| receipts::attempts(pool, &call, limit))
    }

    async fn attempt_log(&self, call: &CallUid, fence: u32, detail: &Json) -> StoreResult<()> {
        let (call, detail) = (call.clone(), detail.clone());
        verb!(self, |pool| receipts::attempt_log(pool, &call, fence, &detail))
    }

    async fn receipt_resolve(
        &self,
        call: &CallUid,
        settle_rev: i32,
        resolution: &Resolution,
        who: &str,
        reason: &str,
    ) -> StoreResult<Resolved> {
        let (call, resolution, who, reason) = (call.clone(), resolution.clone(), who.to_owned(), reason.to_owned());
        verb!(self, |pool| receipts::resolve(pool, &call, settle_rev, &resolution, &who, &reason))
    }

    async fn reconcile(&self, answers: &[(CallUid, QueryAnswer)]) -> StoreResult<Vec<Option<Changed>>> {
        let answers = answers.to_vec();
        verb!(self, |pool| reconcile::reconcile(pool, &answers))
    }

    async fn held_review(&self, session: &SessionId, calls: &[CallUid]) -> StoreResult<(Vec<CallUid>, Vec<CallUid>)> {
        let (session, calls) = (session.clone(), calls.to_vec());
        verb!(self, |pool| claim::held_review(pool, &session, &calls))
    }

    async fn sweep_lost_claims(&self, limit: u32) -> StoreResult<Vec<Changed>> {
        verb!(self, |pool| sweepers::lost_claims(pool, limit))
    }

    async fn sweep_dispatch(&self, limit: u32) -> StoreResult<Vec<DueJob>> {
        verb!(self, |pool| sweepers::dispatch(pool, limit))
    }

    async fn sweep_reconcile(&self, limit: u32) -> StoreResult<Vec<DueJob>> {
        verb!(self, |pool| reconcile::sweep(pool, limit))
    }

    async fn sweep_limits(&self, reconcile_window: Duration, limit: u32) -> StoreResult<Vec<Changed>> {
        verb!(self, |pool| sweepers::limits(pool, reconcile_window, limit))
    }

    async fn sweep_unserved(&self, wait: Duration, limit: u32) -> StoreResult<Vec<Changed>> {
        verb!(self, |pool| sweepers::unserved(pool, wait, limit))
    }

    async fn dispatch_runs(&self, runs: &[RunId]) -> StoreResult<u64> {
        let runs: Vec<RunId> = runs.to_vec();
        verb!(self, |pool| sweepers::dispatch_runs(pool, &runs))
    }

    async fn dispatch_all(&self) -> StoreResult<u64> {
        verb!(self, |pool| sweepers::dispatch_all(pool))
    }

    async fn sweep_retention(&self, retention: Duration) -> StoreResult<bool> {
        self.run(move |store| async move { retention::sweep(&store.inner.pool, &store.inner.prune, retention).await })
            .await
    }

    async fn payload_put(&self, bucket: Bucket, payload: &PayloadRef, offset: u32, chunk: &[u8]) -> StoreResult<bool> {
        let (payload, chunk) = (*payload, chunk.to_vec());
        verb!(self, |pool| payloads::put(pool, bucket, &payload, offset, &chunk))
    }

    async fn payload_get(&self, bucket: Bucket, payload: &PayloadRef) -> StoreResult<Option<Bytes>> {
        let payload = *payload;
        verb!(self, |pool| payloads::get(pool, bucket, &payload))
    }

    async fn definition_put(&self, definition: &DefinitionRow) -> StoreResult<()> {
        let definition = definition.clone();
        verb!(self, |pool| definitions::put(pool, &definition))
    }

    async fn definition_get(
        &self,
        namespace: &Namespace,
        name: &LoopName,
        revision: Option<&Revision>,
    ) -> StoreResult<Option<DefinitionRow>> {
        let (namespace, name, revision) = (namespace.clone(), name.clone(), revision.cloned());
        verb!(self, |pool| definitions::get(pool, &namespace, &name, revision.as_ref()))
    }

    async fn definitions_list(
        &self,
        namespace: &Namespace,
        after: Option<&LoopName>,
        limit: u32,
    ) -> StoreResult<Vec<DefinitionRow>> {
        let (namespace, after) = (namespace.clone(), after.cloned());
        verb!(self, |pool| definitions::list(pool, &namespace, after.as_ref(), limit))
    }

    async fn counts(&self) -> StoreResult<LedgerCounts> {
        verb!(self, |pool| numbers::counts(pool))
    }

    async fn now_ms(&self) -> StoreResult<i64> {
        verb!(self, |pool| sessions::now_ms(pool))
    }

    async fn describe(&self) -> StoreResult<Vec<(String, String)>> {
        verb!(self, |pool| numbers::describe(pool))
    }
}
