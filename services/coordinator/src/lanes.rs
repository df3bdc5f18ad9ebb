//! Batching in front of the ledger: while one commit is in flight, the next batch collects. There is no timer, so an
//! idle ledger answers after one commit.
//!
//! A lane task is never cancelled by whoever waits for an item. A batch whose reply was lost is given again (every verb
//! may be repeated); a batch refused for a bad value is halved until that item is alone.

use std::{
    collections::HashSet,
    future::Future,
    hash::Hash,
    sync::Arc,
    time::{Duration, Instant},
};

use ditto_contracts::limits::LEDGER_BATCH_MAX;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    metrics,
    store::{Store, StoreError, StoreResult},
};

/// A verb of the store over a batch of items.
pub(crate) trait Verb: Send + Sync + Sized + 'static {
    /// One item.
    type Item: Send + Sync + 'static;
    /// Its answer.
    type Answer: Send + 'static;
    /// Travels with an item and comes back with its answer.
    type Context: Send + 'static;
    /// Items with equal keys never share a batch.
    type Key: Eq + Hash + Send;

    /// For logs.
    const NAME: &'static str;

    /// The item's key.
    fn key(item: &Self::Item) -> Self::Key;
    /// Runs the batch; answers in order.
    fn run(
        &self,
        store: &dyn Store,
        items: &[Self::Item],
    ) -> impl Future<Output = StoreResult<Vec<Self::Answer>>> + Send;
    /// Takes the answers; the item is given back.
    fn deliver(&self, answers: Vec<Answered<Self>>) -> impl Future<Output = ()> + Send;
}

/// An item, what travelled with it, and its answer.
pub(crate) type Answered<V> = (<V as Verb>::Item, <V as Verb>::Context, StoreResult<<V as Verb>::Answer>);

/// Sends items to the lanes of one verb.
pub(crate) struct Lanes<V: Verb> {
    tx: mpsc::Sender<(V::Item, V::Context)>,
}

impl<V: Verb> Clone for Lanes<V> {
    fn clone(&self) -> Self {
        Self { tx: self.tx.clone() }
    }
}

impl<V: Verb> Lanes<V> {
    /// Starts `count` lanes in `tasks`. They end when every sender is gone, or once `abandon` is cancelled, after
    /// the last batch; a batch that cannot reach the ledger is then given up.
    pub(crate) fn start(
        tasks: &mut JoinSet<()>,
        store: &Arc<dyn Store>,
        verb: V,
        count: usize,
        capacity: usize,
        abandon: &CancellationToken,
    ) -> Self {
        let (tx, rx) = mpsc::channel(capacity);
        let rx = Arc::new(tokio::sync::Mutex::new(rx));
        let verb = Arc::new(verb);
        for _ in 0..count {
            tasks.spawn(lane(rx.clone(), verb.clone(), store.clone(), abandon.clone()));
        }
        Self { tx }
    }

    /// Queues an item; waits while the lanes are full. `false`: the lanes have ended.
    pub(crate) async fn send(&self, item: V::Item, context: V::Context) -> bool {
        self.tx.send((item, context)).await.is_ok()
    }
}

type Queue<V> = Arc<tokio::sync::Mutex<mpsc::Receiver<(<V as Verb>::Item, <V as Verb>::Context)>>>;

async fn lane<V: Verb>(queue: Queue<V>, verb: Arc<V>, store: Arc<dyn Store>, abandon: CancellationToken) {
    let mut carried: Vec<(V::Item, V::Context)> = Vec::new();
    loop {
        let mut taken = std::mem::take(&mut carried);
        if taken.is_empty() {
            // The lock is held only while waiting for work: the other lanes are then idle, too.
            let mut rx = queue.lock().await;
            let received = tokio::select! {
                biased;
                n = rx.recv_many(&mut taken, LEDGER_BATCH_MAX) => n,
                // Embedding programs may still hold a sender: what is queued is worked off, nothing more comes in.
                () = abandon.cancelled(), if !rx.is_closed() => {
                    rx.close();
                    continue;
                }
            };
            if received == 0 {
                return;
            }
        }
        let mut keys = HashSet::with_capacity(taken.len());
        let mut items = Vec::with_capacity(taken.len());
        let mut contexts = Vec::with_capacity(taken.len());
        for (item, context) in taken {
            if keys.insert(V::key(&item)) {
                items.push(item);
                contexts.push(context);
            } else {
                carried.push((item, context));
            }
        }
        let answers = commit(&*verb, &*store, &items, &abandon).await;
        let delivered = items.into_iter().zip(contexts).zip(answers).map(|((i, c), a)| (i, c, a)).collect();
        verb.deliver(delivered).await;
    }
}

/// Runs one batch until it is answered.
async fn commit<V: Verb>(
    verb: &V,
    store: &dyn Store,
    items: &[V::Item],
    abandon: &CancellationToken,
) -> Vec<StoreResult<V::Answer>> {
    let whole = 0..items.len();
    let mut stack = Vec::from([whole]);
    let mut answers: Vec<Option<StoreResult<V::Answer>>> = items.iter().map(|_| None).collect();
    let mut pause_ms = 20;
    while let Some(range) = stack.pop() {
        let start = Instant::now();
        match verb.run(store, &items[range.clone()]).await {
            Ok(batch) => {
                metrics::batch_committed(V::NAME, range.len(), start.elapsed());
                pause_ms = 20;
                for (slot, answer) in answers[range].iter_mut().zip(batch) {
                    *slot = Some(Ok(answer));
                }
            }
            Err(error) if error.is_transient() && !abandon.is_cancelled() => {
                warn!(verb = V::NAME, %error, items = range.len(), "ledger did not answer, giving the batch again");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(pause_ms)) => {}
                    () = abandon.cancelled() => {}
                }
                pause_ms = (pause_ms * 2).min(1_000);
                stack.push(range);
            }
            Err(StoreError::BadItem(reason)) if range.len() > 1 => {
                warn!(verb = V::NAME, %reason, items = range.len(), "halving a batch with a bad value");
                let middle = range.start + range.len() / 2;
                stack.push(middle..range.end);
                stack.push(range.start..middle);
            }
            Err(error) => {
                let text = error.to_string();
                let mut first = Some(error);
                for slot in &mut answers[range] {
                    let error = first.take().unwrap_or_else(|| StoreError::Other(text.clone()));
                    *slot = Some(Err(error));
                }
            }
        }
    }
    answers.into_iter().map(|a| a.unwrap_or_else(|| Err(StoreError::Other("no answer for an item".into())))).collect()
}
