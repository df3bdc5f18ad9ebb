//! A coordinator that does as it is told: it answers ledger requests from a table, takes results and confirms them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use data_encoding::{BASE64, HEXLOWER};
use ditto_bus::{Bus, ConsumerSpec, Message, Received, StreamSpec};
use ditto_contracts::{
    CallPolicy, CallUid, ClaimToken, Json, ReceiptState, SessionId,
    wire::{
        Headers, PayloadRef, ResultMessage,
        ledger::{
            AnnounceReply, AnnounceRequest, CancelNotice, ClaimAnswer, ClaimReply, ClaimRequest, CloseRequest,
            ConfirmNotice, GetReply, GetRequest, HeldItem, OpenReply, OpenRequest, PutReply, PutRequest, ReleaseItem,
            ReleaseReply, ReleaseRequest, RenewReply, RenewRequest,
        },
        names, subjects,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::Notify, task::JoinSet};

pub(crate) const KIND: &str = "probe";
pub(crate) const SHARD: &str = "ditto.results.SCRIPTED";

/// What the ledger knows of one call.
#[derive(Debug, Clone)]
pub(crate) struct Receipt {
    pub(crate) policy: CallPolicy,
    pub(crate) hash: String,
    pub(crate) earlier_unresolved: u32,
    /// Given instead of a grant.
    pub(crate) answer: Option<ClaimAnswer>,
    pub(crate) fence: u32,
    pub(crate) token: Option<ClaimToken>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) receipts: HashMap<CallUid, Receipt>,
    pub(crate) payloads: HashMap<String, Vec<u8>>,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) closed: Vec<SessionId>,
    pub(crate) announced: Vec<AnnounceRequest>,
    /// Every claim as it was asked, repeats included.
    pub(crate) claims: Vec<(CallUid, ClaimToken)>,
    pub(crate) claim_requests: usize,
    pub(crate) releases: Vec<ReleaseItem>,
    pub(crate) renewals: Vec<Vec<HeldItem>>,
    pub(crate) results: Vec<ResultMessage>,
    pub(crate) result_ids: Vec<String>,
    /// Claim requests that are carried out and not answered.
    pub(crate) lose_claim_replies: usize,
    pub(crate) mute_renew: bool,
    pub(crate) hold_claims: bool,
    pub(crate) dead: bool,
    pub(crate) unconfirming: bool,
    pub(crate) settled: Vec<CallUid>,
    pub(crate) ttl_ms: u64,
    pub(crate) margin_ms: u64,
}

pub(crate) struct ScriptedLedger {
    bus: Arc<dyn Bus>,
    state: Mutex<State>,
    changed: Notify,
    tasks: Mutex<JoinSet<()>>,
}

impl ScriptedLedger {
    /// The streams and consumers, without anybody to answer requests.
    pub(crate) async fn streams(bus: &Arc<dyn Bus>) {
        let spec = |name, subject: &str| StreamSpec {
            name,
            subjects: vec![subject.to_owned()],
            max_bytes: 1 << 26,
            max_age: Duration::from_secs(3_600),
            max_message_bytes: 512 * 1024,
            duplicate_window: Duration::from_secs(120),
            replicas: 1,
        };
        let consumer = |stream, name: &str, subject: &str| ConsumerSpec {
            stream,
            name: name.to_owned(),
            filter_subjects: vec![subject.to_owned()],
            ack_wait: Duration::from_secs(30),
            max_deliver: 20,
            max_ack_pending: 1_000,
        };
        bus.ensure_stream(&spec(subjects::JOBS_STREAM, subjects::JOBS_ALL)).await.unwrap();
        bus.ensure_stream(&spec(subjects::RESULTS_STREAM, subjects::RESULTS_ALL)).await.unwrap();
        bus.ensure_consumer(&consumer(subjects::JOBS_STREAM, KIND, subjects::JOBS_ALL)).await.unwrap();
        bus.ensure_consumer(&consumer(subjects::RESULTS_STREAM, "scripted", SHARD)).await.unwrap();
    }

    pub(crate) async fn start(bus: Arc<dyn Bus>) -> Arc<Self> {
        Self::streams(&bus).await;
        let ledger = Arc::new(Self {
            bus,
            state: Mutex::new(State { ttl_ms: 15_000, margin_ms: 3_000, ..State::default() }),
            changed: Notify::new(),
            tasks: Mutex::default(),
        });
        ledger.answer().await;
        let results = ledger.clone();
        ledger.tasks.lock().unwrap().spawn(async move { results.take_results().await });
        ledger
    }

    /// Begins to answer requests.
    pub(crate) async fn answer(self: &Arc<Self>) {
        let mut requests = self.bus.subscribe(subjects::LEDGER_ALL, Some(subjects::COORDINATORS), 1_000).await.unwrap();
        let ledger = self.clone();
        self.tasks.lock().unwrap().spawn(async move {
            while let Some(request) = requests.next().await {
                ledger.one(request).await;
            }
        });
    }

    /// Nobody answers any more; results are not taken either.
    pub(crate) async fn go_away(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        tasks.shutdown().await;
    }

    /// Takes results again after [`ScriptedLedger::go_away`].
    pub(crate) async fn come_back(self: &Arc<Self>) {
        self.answer().await;
        let results = self.clone();
        self.tasks.lock().unwrap().spawn(async move { results.take_results().await });
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes the script.
    pub(crate) fn script(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    /// Waits until this holds; a test that waits too long fails with what is there.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let wait = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                changed.as_mut().enable();
                if holds(&self.state()) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
            panic!("never: {what}; {:?}", self.state());
        }
    }

    pub(crate) async fn results(&self, n: usize) -> Vec<ResultMessage> {
        self.until(&format!("{n} results"), |state| state.results.len() >= n).await;
        self.state().results.clone()
    }

    pub(crate) async fn cancel(&self, call: &CallUid) {
        let session = self.state().sessions.last().unwrap().clone();
        let body = serde_json::to_vec(&CancelNotice { calls: vec![call.clone()] }).unwrap();
        let subject = subjects::cancel(KIND, &session);
        self.bus.notify(Message { subject, headers: Headers::new(), body: body.into() }).await.unwrap();
    }

    pub(crate) async fn confirm(&self, session: &SessionId, call: &CallUid) {
        let body = serde_json::to_vec(&ConfirmNotice { calls: vec![call.clone()] }).unwrap();
        let subject = subjects::confirm(KIND, session);
        self.bus.notify(Message { subject, headers: Headers::new(), body: body.into() }).await.unwrap();
    }

    async fn take_results(&self) {
        loop {
            let pull = self.bus.pull(subjects::RESULTS_STREAM, "scripted", 100, Duration::from_secs(10)).await;
            let Ok(mut pull) = pull else { return };
            while let Ok(Some(delivery)) = pull.next().await {
                let result = ResultMessage::parse(&delivery.message.headers, delivery.message.body.clone()).unwrap();
                let id = delivery.message.headers.get(names::MSG_ID).unwrap().to_owned();
                delivery.acker.ack().await.unwrap();
                let confirm = (!self.state().unconfirming && result.fence > 0)
                    .then(|| (result.session.clone(), result.call.clone()));
                if let Some((session, call)) = confirm {
                    self.confirm(&session, &call).await;
                }
                self.script(|state| {
                    state.results.push(result);
                    state.result_ids.push(id);
                });
            }
        }
    }

    async fn one(&self, request: Received) {
        let body = request.message.body.clone();
        let answer = match request.message.subject.as_str() {
            subjects::LEDGER_OPEN => self.with(body, |state, r: OpenRequest| {
                if state.sessions.last() != Some(&r.session) {
                    state.sessions.push(r.session);
                }
                Some(OpenReply { ttl_ms: state.ttl_ms, margin_ms: state.margin_ms })
            }),
            subjects::LEDGER_ANNOUNCE => self.with(body, |state, r: AnnounceRequest| {
                state.announced.push(r);
                Some(AnnounceReply { consumer: KIND.into(), conflicts: Vec::new() })
            }),
            subjects::LEDGER_CLAIM => {
                let held = async {
                    while self.state().hold_claims {
                        self.changed.notified().await;
                    }
                };
                self.script(|state| state.claim_requests += 1);
                held.await;
                self.with(body, claim)
            }
            subjects::LEDGER_RELEASE => self.with(body, |state, r: ReleaseRequest| {
                let done = r.items.iter().map(|_| true).collect();
                state.releases.extend(r.items);
                Some(ReleaseReply { done })
            }),
            subjects::LEDGER_RENEW => self.with(body, |state, r: RenewRequest| {
                state.renewals.push(r.held);
                let reply = RenewReply {
                    alive: !state.dead,
                    ttl_ms: state.ttl_ms,
                    settled: state.settled.clone(),
                    cancel: Vec::new(),
                };
                (!state.mute_renew).then_some(reply)
            }),
            subjects::LEDGER_CLOSE => self.with(body, |state, r: CloseRequest| {
                state.closed.push(r.session);
                Some(serde_json::json!({}))
            }),
            subjects::LEDGER_PUT => self.with(body, |state, r: PutRequest| {
                let wanted: PayloadRef = r.payload.parse().unwrap();
                let value = state.payloads.entry(r.payload).or_default();
                let chunk = BASE64.decode(r.chunk.as_bytes()).unwrap();
                let end = r.offset as usize + chunk.len();
                if value.len() < end {
                    value.resize(end, 0);
                }
                value[r.offset as usize..end].copy_from_slice(&chunk);
                Some(PutReply { stored: value.len() == wanted.size as usize })
            }),
            subjects::LEDGER_GET => self.with(body, |state, r: GetRequest| {
                let chunk = state.payloads.get(&r.payload).map(|value| {
                    let start = r.offset as usize;
                    BASE64.encode(&value[start..(start + 256 * 1024).min(value.len())])
                });
                Some(GetReply { chunk })
            }),
            other => panic!("unexpected request {other}"),
        };
        if let (Some(answer), Some(reply)) = (answer, request.reply) {
            self.bus.respond(&reply, Headers::new(), answer.to_bytes()).await.unwrap();
        }
    }

    fn with<Q: DeserializeOwned, A: Serialize>(
        &self,
        body: bytes::Bytes,
        run: impl FnOnce(&mut State, Q) -> Option<A>,
    ) -> Option<Json> {
        let request = Json::parse(body).unwrap().to().unwrap();
        let answer = run(&mut self.state(), request);
        self.changed.notify_waiters();
        answer.map(|answer| Json::from_serialize(&answer).unwrap())
    }
}

fn claim(state: &mut State, request: ClaimRequest) -> Option<ClaimReply> {
    assert!(request.items.len() <= 64);
    let mut answers = Vec::new();
    for item in request.items {
        state.claims.push((item.call.clone(), item.token.clone()));
        let Some(receipt) = state.receipts.get_mut(&item.call) else {
            answers.push(ClaimAnswer::Missing);
            continue;
        };
        if let Some(answer) = &receipt.answer {
            answers.push(answer.clone());
            continue;
        }
        match &receipt.token {
            Some(token) if *token != item.token => {
                answers.push(ClaimAnswer::Taken);
                continue;
            }
            Some(_) => {}
            None => {
                receipt.fence += 1;
                receipt.token = Some(item.token);
            }
        }
        answers.push(ClaimAnswer::Granted {
            fence: receipt.fence,
            earlier_unresolved: receipt.earlier_unresolved,
            key: format!("ditto:{}", item.call),
            request_hash: receipt.hash.clone(),
            policy: receipt.policy.clone(),
            budget_ms: None,
        });
    }
    if state.lose_claim_replies > 0 {
        state.lose_claim_replies -= 1;
        return None;
    }
    Some(ClaimReply { answers })
}

/// The hash of a request as a receipt has it.
pub(crate) fn hash(request: &Json) -> String {
    HEXLOWER.encode(&request.sha256())
}

/// An answer that is no grant.
pub(crate) fn settled() -> ClaimAnswer {
    ClaimAnswer::Settled { state: ReceiptState::Succeeded }
}
