//! Who awaits which run: one event stream of the server for all of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ditto_contracts::RunStatus;
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    sync::{oneshot, watch},
};

/// Ends kept for those who ask late: an end may be told before the answer to the submission has been read.
const EARLY_MAX: usize = 16_384;
/// Pause before the stream is opened again.
const PAUSE: Duration = Duration::from_millis(5);

/// Ends of runs. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    state: Arc<Mutex<State>>,
    open: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<String, oneshot::Sender<RunStatus>>,
    early: HashMap<String, RunStatus>,
    order: VecDeque<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ending {
    run_id: String,
    status: RunStatus,
}

impl Ends {
    /// The ends, and what has to run meanwhile.
    pub(super) fn of(address: &str) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (opened, open) = watch::channel(false);
        let ends = Self { state: Arc::default(), open };
        let (state, address) = (ends.state.clone(), address.to_owned());
        let reading = async move {
            loop {
                // Whoever waits looks for itself as well: what was missed between two streams is not lost.
                let _ = read(&address, &state, &opened).await;
                let _ = opened.send(false); // nobody may be looking
                tokio::time::sleep(PAUSE).await;
            }
        };
        (ends, reading)
    }

    /// Waits until the stream is open: ends from then on are told.
    pub(super) async fn opened(&mut self) {
        let _ = self.open.wait_for(|open| *open).await; // an ended reader: then every end is looked up
    }

    /// Waits for the end of a run, at most so long.
    pub(super) async fn of_run(&self, run: &str, within: Duration) -> Option<RunStatus> {
        let (tx, rx) = oneshot::channel();
        {
            let mut state = self.lock();
            if let Some(status) = state.early.remove(run) {
                return Some(status);
            }
            state.waiting.insert(run.to_owned(), tx);
        }
        let status = tokio::time::timeout(within, rx).await.ok().and_then(Result::ok);
        if status.is_none() {
            self.lock().waiting.remove(run);
        }
        status
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell(&mut self, ending: Ending) {
        match self.waiting.remove(&ending.run_id) {
            Some(waiter) => drop(waiter.send(ending.status)),
            None => {
                self.order.push_back(ending.run_id.clone());
                self.early.insert(ending.run_id, ending.status);
                while self.order.len() > EARLY_MAX {
                    if let Some(oldest) = self.order.pop_front() {
                        self.early.remove(&oldest);
                    }
                }
            }
        }
    }
}

/// Reads one stream to its end. As HTTP 1.0, so that the answer is lines and nothing else.
async fn read(address: &str, state: &Mutex<State>, opened: &watch::Sender<bool>) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET /v1/endings HTTP/1.0\r\nhost: {address}\r\n\r\n").as_bytes()).await?;
    let mut lines = BufReader::new(stream).lines();
    let mut head = true;
    while let Some(line) = lines.next_line().await? {
        if head {
            head = !line.trim_end().is_empty();
            if !head {
                let _ = opened.send(true); // nobody may be looking
            }
        } else if let Some(data) = line.strip_prefix("data: ")
            && let Ok(endings) = serde_json::from_str::<Vec<Ending>>(data)
        {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            endings.into_iter().for_each(|ending| state.tell(ending));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_reaches_who_waits_and_who_asks_late() {
        let (ends, _) = Ends::of("127.0.0.1:9");
        let ending = |run: &str| Ending { run_id: run.into(), status: RunStatus::Completed };
        ends.lock().tell(ending("early"));
        assert_eq!(ends.of_run("early", Duration::ZERO).await, Some(RunStatus::Completed));
        let waiting = tokio::spawn({
            let ends = ends.clone();
            async move { ends.of_run("late", Duration::from_secs(30)).await }
        });
        while !ends.lock().waiting.contains_key("late") {
            tokio::task::yield_now().await;
        }
        ends.lock().tell(ending("late"));
        assert_eq!(waiting.await.unwrap(), Some(RunStatus::Completed));
        assert_eq!(ends.of_run("never", Duration::ZERO).await, None);
        assert!(ends.lock().waiting.is_empty());
    }
}
