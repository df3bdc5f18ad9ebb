//! Everything that can happen next, to anybody, at any moment. There is no time: a lease may end, a message may be lost
//! and a process may stop or wake whenever it likes.

use ditto_contracts::{EffectClass, ReceiptState};
use ditto_graph::receipt::{
    AnswerKind, AttemptEnd, KeyEvidence, QueryAnswer, Receipt, ReceiptEvent, Reconcile, ReconcileStart, Refused,
    reconcile_start,
};

use super::{
    rules::Rules,
    world::{Attempt, Cast, End, Memory, Reply, Worker, World},
};

/// One step, for the trace. Numbers are those of a coordinator or worker, then of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    TakesOver(u8),
    Decides(u8),
    DecidesReplyLost(u8),
    Consumes(u8),
    ConsumesReplyLost(u8),
    ReadsBack(u8),
    StartsWithoutClaim(u8),
    Claims(u8, u8),
    ClaimsAndCrashes(u8, u8),
    ReadsClaimBack(u8),
    Sends(u8, u8),
    RefusesItself(u8),
    StopsUnstarted(u8),
    TimesOut(u8),
    StoppedByCancel(u8),
    Crashes(u8),
    ResultRecorded(u8),
    ResultRecordedReplyLost(u8),
    ResultLogged(u8),
    RequestLost(u8, u8),
    BackendReplays(u8, u8),
    BackendApplies(u8, u8),
    BackendAppliesReplyLost(u8, u8),
    BackendRefuses(u8, u8),
    BackendRefusesReplyLost(u8, u8),
    BackendThrottles(u8, u8),
    SessionDeclaredDead,
    CancelAsked,
    DeadlinePasses,
    KeyWindowCloses,
    AttemptsUsedUp,
    DispatchesUsedUp,
    SearchEnds,
    Asks,
    AnswerLost,
    AnswerArrives,
    SendsAgainUnasked,
    PersonAuthorises,
}

/// Collects the successors of one state.
pub(crate) struct Steps<'a, R> {
    pub(crate) cast: &'a Cast,
    pub(crate) rules: &'a R,
    pub(crate) next: Vec<(Step, World)>,
}

impl<R: Rules> Steps<'_, R> {
    /// Fills `next` with everything that can happen in `world`.
    pub(crate) fn expand(&mut self, world: &World) {
        self.next.clear();
        for c in 0..2 {
            self.coordinator(world, c);
        }
        for w in 0..2 {
            self.worker(world, w);
            for fence in 0..=3 {
                self.backend(world, fence, w);
            }
        }
        if let Some(row) = world.row {
            let receipt = self.cast.to_receipt(row, world.authorised);
            self.sweepers(world, &receipt);
            self.search(world, &receipt);
            if self.cast.person && !world.authorised {
                // Even while the last attempt may still be running: nothing but the number of effects depends on that.
                let event = ReceiptEvent::AuthoriseAttempt { settle_rev: receipt.settle_rev, session_over: true };
                self.ledger(Step::PersonAuthorises, &World { authorised: true, ..*world }, &receipt, &event);
            }
        }
    }

    fn push(&mut self, step: Step, world: World) {
        self.next.push((step, world));
    }

    /// Applies an event and pushes the state after it, if the table allows the event.
    fn ledger(&mut self, step: Step, world: &World, receipt: &Receipt, event: &ReceiptEvent) {
        if let Ok(change) = self.rules.apply(receipt, event) {
            let row = Some(self.cast.to_row(&change.receipt));
            if row != world.row {
                self.push(step, World { row, ..*world });
            }
        }
    }

    fn coordinator(&mut self, world: &World, c: u8) {
        let me = world.coordinators[usize::from(c)];
        let seen = |mut world: World, epoch, version| {
            let mine = &mut world.coordinators[usize::from(c)];
            (mine.epoch, mine.version) = (epoch, version);
            world
        };
        if world.epoch < 2 {
            let epoch = world.epoch + 1;
            self.push(Step::TakesOver(c), seen(World { epoch, ..*world }, epoch, world.version));
        }
        if me.epoch == world.epoch && me.version != world.version {
            self.push(Step::ReadsBack(c), seen(*world, me.epoch, world.version));
        }
        if me.epoch == 0 || !self.rules.may_advance(me, world) {
            return;
        }
        let version = (world.version + 1).min(3);
        if me.version == 0 {
            // One receipt per call: deciding the same call again adds none.
            let row = world.row.or_else(|| Some(self.cast.decided()));
            let after = World { row, version, ..*world };
            self.push(Step::Decides(c), seen(after, me.epoch, 1));
            self.push(Step::DecidesReplyLost(c), after);
        }
        if let (1, Some(row)) = (me.version, world.row)
            && row.settled
        {
            let consumed_twice = world.consumed_twice || world.consumed.is_some();
            let after = World { consumed: Some(row.state), consumed_twice, version, ..*world };
            self.push(Step::Consumes(c), seen(after, me.epoch, 2));
            self.push(Step::ConsumesReplyLost(c), after);
        }
    }

    fn worker(&mut self, world: &World, w: u8) {
        let now = world.workers[usize::from(w)];
        let becomes = |worker| {
            let mut after = *world;
            after.workers[usize::from(w)] = worker;
            after
        };
        // A job whose receipt is missing is never executed.
        let Some(row) = world.row else { return };
        let receipt = self.cast.to_receipt(row, world.authorised);
        if now != Worker::Idle {
            self.push(Step::Crashes(w), becomes(Worker::Idle));
        }
        self.claim(world, &receipt, w);
        match now {
            Worker::Idle => {
                let bit = World::flight(0, w);
                if self.rules.may_skip_claim(&receipt) && world.in_flight & bit == 0 {
                    let sent = becomes(Worker::Sent(Attempt { fence: 0, earlier_unresolved: 0 }));
                    self.push(Step::StartsWithoutClaim(w), World { in_flight: world.in_flight | bit, ..sent });
                }
            }
            Worker::Holding(attempt) => {
                // The reply to the claim was lost: it asks again with the same token.
                let claim = self.cast.claim(w, attempt.fence).clone();
                match self.rules.apply(&receipt, &ReceiptEvent::Claim { claim, session_alive: true }) {
                    Err(refused) if refused.reason == Refused::Repeat => {}
                    Err(_) => self.push(Step::ReadsClaimBack(w), becomes(Worker::Idle)),
                    // Granted anew, see `claim`.
                    Ok(_) => {}
                }
                let bit = World::flight(attempt.fence, w);
                let in_flight = world.in_flight | bit;
                self.push(Step::Sends(w, attempt.fence), World { in_flight, ..becomes(Worker::Sent(attempt)) });
                self.push(Step::RefusesItself(w), becomes(Worker::Ended(attempt, End::NothingSent)));
                self.push(Step::StopsUnstarted(w), becomes(Worker::Ended(attempt, End::Unstarted)));
            }
            Worker::Sent(attempt) => {
                self.push(Step::TimesOut(w), becomes(Worker::Ended(attempt, End::TimedOut)));
                if row.cancel_asked && receipt.class == EffectClass::ReadOnly {
                    self.push(Step::StoppedByCancel(w), becomes(Worker::Ended(attempt, End::Cancelled)));
                }
            }
            Worker::Ended(attempt, end) => self.result(world, &receipt, w, attempt, end),
        }
    }

    /// The ledger handles a claim request of this worker. The worker may have crashed since it asked, even while its next
    /// life is busy with something else.
    fn claim(&mut self, world: &World, receipt: &Receipt, w: u8) {
        let claim = self.cast.claim(w, u8::try_from(receipt.fence).unwrap() + 1).clone();
        let Ok(change) = self.rules.apply(receipt, &ReceiptEvent::Claim { claim, session_alive: true }) else { return };
        let row = self.cast.to_row(&change.receipt);
        let earlier_unresolved = u8::try_from(change.receipt.earlier_unresolved()).unwrap();
        let granted = World { row: Some(row), ..*world };
        self.push(Step::ClaimsAndCrashes(w, row.fence), granted);
        if matches!(world.workers[usize::from(w)], Worker::Idle | Worker::Holding(_)) {
            let mut holds = granted;
            holds.workers[usize::from(w)] = Worker::Holding(Attempt { fence: row.fence, earlier_unresolved });
            self.push(Step::Claims(w, row.fence), holds);
        }
    }

    /// The ledger gets the result of an ended attempt, at any later moment.
    fn result(&mut self, world: &World, receipt: &Receipt, w: u8, attempt: Attempt, end: End) {
        let kind = match end {
            End::Success => AnswerKind::Success,
            End::Refused => AnswerKind::Refused,
            End::TimedOut => AnswerKind::TimedOut,
            End::NothingSent => AnswerKind::NothingSent,
            End::Unstarted => AnswerKind::Throttled,
            End::Cancelled => AnswerKind::Cancelled,
        };
        let mut idle = *world;
        idle.workers[usize::from(w)] = Worker::Idle;
        let fence = u32::from(attempt.fence);
        let token = self.cast.claim(w, attempt.fence).token.clone();
        let event = match self.rules.verdict(kind, receipt, u32::from(attempt.earlier_unresolved)) {
            // An unclaimed job goes back to the bus.
            AttemptEnd::Release if fence == 0 => return self.push(Step::ResultLogged(w), idle),
            AttemptEnd::Release => ReceiptEvent::Release { fence, token, unstarted: true },
            AttemptEnd::Report { verdict, .. } if fence == 0 => {
                ReceiptEvent::UnclaimedAnswer { hash_matches: true, verdict }
            }
            AttemptEnd::Report { verdict, .. } => ReceiptEvent::Answer { fence, token, verdict },
        };
        match self.rules.apply(receipt, &event) {
            Ok(change) => {
                let row = Some(self.cast.to_row(&change.receipt));
                self.push(Step::ResultRecorded(w), World { row, ..idle });
                self.push(Step::ResultRecordedReplyLost(w), World { row, ..*world });
            }
            Err(_) => self.push(Step::ResultLogged(w), idle),
        }
    }

    /// A request arrives at the backend, or is lost; whether its worker still waits does not matter.
    fn backend(&mut self, world: &World, fence: u8, w: u8) {
        let bit = World::flight(fence, w);
        if world.in_flight & bit == 0 {
            return;
        }
        let arrived = World { in_flight: world.in_flight & !bit, ..*world };
        let answered = |world: World, end| match world.workers[usize::from(w)] {
            Worker::Sent(attempt) if attempt.fence == fence => {
                let mut after = world;
                after.workers[usize::from(w)] = Worker::Ended(attempt, end);
                after
            }
            Worker::Idle | Worker::Holding(_) | Worker::Sent(_) | Worker::Ended(..) => world,
        };
        self.push(Step::RequestLost(w, fence), arrived);
        self.push(Step::BackendThrottles(w, fence), answered(arrived, End::Unstarted));
        let keyed = self.cast.policy.class == EffectClass::Keyed;
        match world.memory {
            Memory::Applied if keyed => self.push(Step::BackendReplays(w, fence), answered(arrived, End::Success)),
            Memory::Refused if keyed => self.push(Step::BackendReplays(w, fence), answered(arrived, End::Refused)),
            Memory::Nothing | Memory::Applied | Memory::Refused => {
                let most = if self.cast.policy.class == EffectClass::ReadOnly { 1 } else { 3 };
                let effects = (world.effects + 1).min(most);
                let applied = World { effects, memory: Memory::Applied, ..arrived };
                self.push(Step::BackendApplies(w, fence), answered(applied, End::Success));
                self.push(Step::BackendAppliesReplyLost(w, fence), applied);
                let stores = keyed && self.cast.policy.rejections_stored;
                let memory = if stores { Memory::Refused } else { world.memory };
                let refused = World { memory, ..arrived };
                self.push(Step::BackendRefuses(w, fence), answered(refused, End::Refused));
                self.push(Step::BackendRefusesReplyLost(w, fence), refused);
            }
        }
    }

    fn sweepers(&mut self, world: &World, receipt: &Receipt) {
        if let Some(claim) = &receipt.claim {
            // Any claim at any moment, whether its worker runs, is paused or gone: that covers every clock.
            let event = ReceiptEvent::SessionDied { session: claim.session.clone() };
            self.ledger(Step::SessionDeclaredDead, world, receipt, &event);
        }
        self.ledger(Step::CancelAsked, world, receipt, &ReceiptEvent::CancelAsked);
        self.ledger(Step::DeadlinePasses, world, receipt, &ReceiptEvent::DeadlinePassed);
        self.ledger(Step::KeyWindowCloses, world, receipt, &ReceiptEvent::WindowClosed);
        self.ledger(Step::AttemptsUsedUp, world, receipt, &ReceiptEvent::AttemptsExhausted);
        self.ledger(Step::DispatchesUsedUp, world, receipt, &ReceiptEvent::DispatchesExhausted);
        self.ledger(Step::SearchEnds, world, receipt, &ReceiptEvent::ReconcileExhausted);
    }

    /// The search for evidence by key. An answer may be as old as it likes when it arrives.
    fn search(&mut self, world: &World, receipt: &Receipt) {
        let settled_but_askable = receipt.query && receipt.state == ReceiptState::Unknown;
        match (world.reply, reconcile_start(receipt)) {
            (Some((reply, asked)), _) => {
                let without = World { reply: None, ..*world };
                self.push(Step::AnswerLost, without);
                let answer = match reply {
                    Reply::Applied => QueryAnswer::Known(KeyEvidence::Applied),
                    Reply::Refused => QueryAnswer::Known(KeyEvidence::Refused),
                    Reply::Absent => QueryAnswer::Absent,
                };
                match self.rules.reconcile(receipt, u32::from(asked), answer) {
                    Reconcile::Apply(event) => self.ledger(Step::AnswerArrives, &without, receipt, &event),
                    Reconcile::AskAgain | Reconcile::Nothing => {}
                }
            }
            (None, ReconcileStart::Apply(event)) => self.ledger(Step::SendsAgainUnasked, world, receipt, &event),
            (None, ReconcileStart::Ask) => self.ask(world, receipt),
            (None, ReconcileStart::Nothing) if settled_but_askable => self.ask(world, receipt),
            (None, ReconcileStart::Nothing) => {}
        }
    }

    fn ask(&mut self, world: &World, receipt: &Receipt) {
        let reply = match world.memory {
            Memory::Nothing => Reply::Absent,
            Memory::Applied => Reply::Applied,
            Memory::Refused => Reply::Refused,
        };
        let reply = Some((reply, u8::try_from(receipt.fence).unwrap()));
        self.push(Step::Asks, World { reply, ..*world });
    }
}
