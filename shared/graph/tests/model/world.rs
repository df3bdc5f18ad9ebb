//! One state of the whole protocol: ledger, two coordinators, two workers, bus and backend, packed into 128 bits.

use ditto_contracts::{CallPolicy, ClaimToken, EffectClass, ReceiptState, SessionId};
use ditto_graph::receipt::{Claim, Receipt};

/// Highest number of an attempt in any search.
pub(crate) const MAX_FENCE: u8 = 3;

/// What a coordinator believes about the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Coordinator {
    /// The epoch in which it took the loop; 0: never.
    pub(crate) epoch: u8,
    /// The version it has seen.
    pub(crate) version: u8,
}

/// What the stored receipt says; the policy is that of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) state: ReceiptState,
    pub(crate) settled: bool,
    pub(crate) fence: u8,
    pub(crate) unresolved: u8,
    /// The worker whose token the latest claim carries.
    pub(crate) holder: Option<u8>,
    pub(crate) released: bool,
    pub(crate) cancel_asked: bool,
    pub(crate) deadline_passed: bool,
    pub(crate) window_open: bool,
}

/// How an attempt ended, as its worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum End {
    Success,
    Refused,
    TimedOut,
    /// Refused on our side.
    NothingSent,
    /// Throttled by the backend, or given back before it was sent.
    Unstarted,
    Cancelled,
}
const ENDS: [End; 6] = [End::Success, End::Refused, End::TimedOut, End::NothingSent, End::Unstarted, End::Cancelled];

/// An attempt as its worker remembers it; fence 0: without a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) fence: u8,
    pub(crate) earlier_unresolved: u8,
}

/// Where a worker stands. A crash makes it idle: a new session.
///
/// A job may reach an idle worker at any moment, published once, twice or never; and a claim request may wait as long as
/// it likes before the ledger handles it. So neither needs a state of its own: an idle worker may claim whenever the
/// ledger lets it. A worker that has not yet heard of its claim is one that holds it and does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worker {
    Idle,
    /// Its claim is committed.
    Holding(Attempt),
    /// Its request left.
    Sent(Attempt),
    /// The attempt ended; the result is not confirmed.
    Ended(Attempt, End),
}

/// The answer to a query by key, captured when it was asked, still under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reply {
    Applied,
    Refused,
    Absent,
}
const REPLIES: [Reply; 3] = [Reply::Applied, Reply::Refused, Reply::Absent];

/// What the backend remembers under the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Memory {
    Nothing,
    Applied,
    Refused,
}

/// One state of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct World {
    pub(crate) row: Option<Row>,
    pub(crate) workers: [Worker; 2],
    /// Requests on their way to the backend, a bit for each fence and worker; independent of the sender's fate.
    pub(crate) in_flight: u8,
    pub(crate) memory: Memory,
    /// Effects that happened, counted to three.
    pub(crate) effects: u8,
    /// Current epoch of the loop.
    pub(crate) epoch: u8,
    /// Version of the loop: 0 nothing, 1 call decided, 2 outcome consumed.
    pub(crate) version: u8,
    pub(crate) coordinators: [Coordinator; 2],
    /// The outcome the loop consumed.
    pub(crate) consumed: Option<ReceiptState>,
    pub(crate) consumed_twice: bool,
    pub(crate) reply: Option<(Reply, u8)>,
    /// A person has authorised one more attempt.
    pub(crate) authorised: bool,
}

impl World {
    /// Before anything.
    pub(crate) const START: Self = Self {
        row: None,
        workers: [Worker::Idle; 2],
        in_flight: 0,
        memory: Memory::Nothing,
        effects: 0,
        epoch: 0,
        version: 0,
        coordinators: [Coordinator { epoch: 0, version: 0 }; 2],
        consumed: None,
        consumed_twice: false,
        reply: None,
        authorised: false,
    };

    /// The bit of a request in flight.
    pub(crate) fn flight(fence: u8, worker: u8) -> u8 {
        1 << (fence * 2 + worker)
    }

    /// One name for all states with the same future: workers and coordinators are interchangeable, and what can no longer
    /// matter is forgotten. Only for the real rules: a broken rule may let it matter.
    pub(crate) fn canonical(mut self, cast: &Cast) -> u128 {
        self.forget(cast);
        if (self.coordinators[0].epoch, self.coordinators[0].version)
            < (self.coordinators[1].epoch, self.coordinators[1].version)
        {
            self.coordinators.swap(0, 1);
        }
        let this = self.pack();
        self.workers.swap(0, 1);
        if let Some(row) = &mut self.row {
            row.holder = row.holder.map(|worker| 1 - worker);
        }
        self.in_flight = ((self.in_flight & 0x55) << 1) | ((self.in_flight & 0xaa) >> 1);
        this.min(self.pack())
    }

    fn forget(&mut self, cast: &Cast) {
        for coordinator in &mut self.coordinators {
            // No write of an old epoch is accepted, whatever version it names.
            if coordinator.epoch != self.epoch {
                coordinator.version = 0;
            }
        }
        if cast.policy.class == EffectClass::ReadOnly {
            // A read that nobody waits for changes nothing.
            for worker in 0..2 {
                let waits = match self.workers[usize::from(worker)] {
                    Worker::Sent(attempt) => Self::flight(attempt.fence, worker),
                    Worker::Idle | Worker::Holding(_) | Worker::Ended(..) => 0,
                };
                let mine = 0x55 << worker;
                self.in_flight &= !mine | waits;
            }
        }
        let Some(row) = self.row.as_mut().filter(|row| row.settled) else { return };
        let known = row.state != ReceiptState::Unknown;
        if known || !cast.person {
            // It is never claimed again, so nothing that guards a claim matters.
            (row.cancel_asked, row.deadline_passed, row.window_open) = (false, false, true);
        }
        if !known {
            return;
        }
        // A known outcome is never changed: only requests that are or may be under way still do something.
        (row.fence, row.unresolved, row.holder, row.released) = (0, 0, None, false);
        self.reply = None;
        for worker in &mut self.workers {
            match worker {
                Worker::Holding(attempt) => attempt.earlier_unresolved = 0,
                Worker::Idle | Worker::Sent(_) | Worker::Ended(..) => *worker = Worker::Idle,
            }
        }
    }

    /// All of it as a number.
    pub(crate) fn pack(&self) -> u128 {
        let mut bits = Bits { value: 0, at: 0 };
        match self.row {
            None => bits.put(0, 15),
            Some(row) => {
                bits.put(state_number(row.state), 3);
                bits.put(u8::from(row.settled), 1);
                bits.put(row.fence, 2);
                bits.put(row.unresolved, 2);
                bits.put(row.holder.map_or(0, |worker| worker + 1), 2);
                bits.put(u8::from(row.released), 1);
                bits.put(u8::from(row.cancel_asked), 1);
                bits.put(u8::from(row.deadline_passed), 1);
                bits.put(u8::from(row.window_open), 2);
            }
        }
        for worker in self.workers {
            let (kind, attempt, end) = match worker {
                Worker::Idle => (0, None, None),
                Worker::Holding(attempt) => (1, Some(attempt), None),
                Worker::Sent(attempt) => (2, Some(attempt), None),
                Worker::Ended(attempt, end) => (3, Some(attempt), Some(end)),
            };
            bits.put(kind, 2);
            bits.put(attempt.map_or(0, |a| a.fence), 2);
            bits.put(attempt.map_or(0, |a| a.earlier_unresolved), 2);
            bits.put(end.map_or(0, |e| e as u8), 3);
        }
        bits.put(self.in_flight, 8);
        bits.put(self.memory as u8, 2);
        bits.put(self.effects, 2);
        bits.put(self.epoch, 2);
        bits.put(self.version, 2);
        for coordinator in self.coordinators {
            bits.put(coordinator.epoch, 2);
            bits.put(coordinator.version, 2);
        }
        bits.put(self.consumed.map_or(0, state_number), 3);
        bits.put(u8::from(self.consumed_twice), 1);
        bits.put(self.reply.map_or(0, |(reply, _)| reply as u8 + 1), 2);
        bits.put(self.reply.map_or(0, |(_, fence)| fence), 2);
        bits.put(u8::from(self.authorised), 1);
        bits.value
    }

    /// The state of a number made by [`World::pack`].
    pub(crate) fn unpack(number: u128) -> Self {
        let mut bits = Bits { value: number, at: 0 };
        let state = bits.take(3);
        let row = Row {
            state: state_of(state).unwrap_or(ReceiptState::Planned),
            settled: bits.take(1) == 1,
            fence: bits.take(2),
            unresolved: bits.take(2),
            holder: bits.take(2).checked_sub(1),
            released: bits.take(1) == 1,
            cancel_asked: bits.take(1) == 1,
            deadline_passed: bits.take(1) == 1,
            window_open: bits.take(2) == 1,
        };
        let mut worker = || {
            let kind = bits.take(2);
            let attempt = Attempt { fence: bits.take(2), earlier_unresolved: bits.take(2) };
            let end = ENDS[usize::from(bits.take(3))];
            match kind {
                0 => Worker::Idle,
                1 => Worker::Holding(attempt),
                2 => Worker::Sent(attempt),
                _ => Worker::Ended(attempt, end),
            }
        };
        let workers = [worker(), worker()];
        let in_flight = bits.take(8);
        let memory = [Memory::Nothing, Memory::Applied, Memory::Refused][usize::from(bits.take(2))];
        let (effects, epoch, version) = (bits.take(2), bits.take(2), bits.take(2));
        let mut coordinator = || Coordinator { epoch: bits.take(2), version: bits.take(2) };
        let coordinators = [coordinator(), coordinator()];
        let consumed = state_of(bits.take(3));
        let consumed_twice = bits.take(1) == 1;
        let (reply, asked) = (bits.take(2), bits.take(2));
        let authorised = bits.take(1) == 1;
        Self {
            row: (state != 0).then_some(row),
            workers,
            in_flight,
            memory,
            effects,
            epoch,
            version,
            coordinators,
            consumed,
            consumed_twice,
            reply: reply.checked_sub(1).map(|reply| (REPLIES[usize::from(reply)], asked)),
            authorised,
        }
    }
}

fn state_number(state: ReceiptState) -> u8 {
    u8::try_from(state.code()).unwrap()
}

fn state_of(number: u8) -> Option<ReceiptState> {
    ReceiptState::from_code(i16::from(number))
}

struct Bits {
    value: u128,
    at: u32,
}

impl Bits {
    fn put(&mut self, value: u8, width: u32) {
        debug_assert!(u32::from(value) < (1 << width) || width >= 8);
        self.value |= u128::from(value) << self.at;
        self.at += width;
    }

    fn take(&mut self, width: u32) -> u8 {
        let value = (self.value >> self.at) & ((1 << width) - 1);
        self.at += width;
        value as u8
    }
}

/// The identities used in the search and the policy it is about.
pub(crate) struct Cast {
    pub(crate) policy: CallPolicy,
    /// A person may authorise one attempt more.
    pub(crate) person: bool,
    template: Receipt,
    claims: [Vec<Claim>; 2],
}

impl Cast {
    /// A search with this many attempts, and one more if a person takes part.
    pub(crate) fn new(policy: CallPolicy, attempts: u8, person: bool) -> Self {
        assert!(attempts + u8::from(person) <= MAX_FENCE);
        let policy = CallPolicy { max_attempts: u16::from(attempts), ..policy };
        let claims = [0, 1].map(|worker| {
            let session = SessionId::new(format!("session-{worker}")).unwrap();
            let token = |fence| ClaimToken::new(format!("worker-{worker}-{fence}")).unwrap();
            (0..=MAX_FENCE + 1).map(|fence| Claim { token: token(fence), session: session.clone() }).collect()
        });
        Self { template: Receipt::planned(&policy), policy, person, claims }
    }

    /// The claim with which a worker got, or would get, this attempt. Tokens are chosen anew for every request, so the
    /// number of the attempt they were granted for names them.
    pub(crate) fn claim(&self, worker: u8, fence: u8) -> &Claim {
        &self.claims[usize::from(worker)][usize::from(fence)]
    }

    /// The row of a call that was just decided.
    pub(crate) fn decided(&self) -> Row {
        self.to_row(&self.template)
    }

    /// The stored receipt of a row.
    pub(crate) fn to_receipt(&self, row: Row, authorised: bool) -> Receipt {
        Receipt {
            state: row.state,
            settled: row.settled,
            fence: u32::from(row.fence),
            unresolved: u32::from(row.unresolved),
            max_attempts: self.template.max_attempts + u32::from(authorised),
            claim: row.holder.map(|worker| self.claim(worker, row.fence).clone()),
            released: row.released,
            cancel_asked: row.cancel_asked,
            deadline_passed: row.deadline_passed,
            window_open: row.window_open,
            ..self.template.clone()
        }
    }

    /// What of a receipt is stored.
    pub(crate) fn to_row(&self, receipt: &Receipt) -> Row {
        let holds = |worker: &u8| receipt.claim.as_ref().is_some_and(|c| c.session == self.claim(*worker, 0).session);
        Row {
            state: receipt.state,
            settled: receipt.settled,
            fence: u8::try_from(receipt.fence).unwrap(),
            unresolved: u8::try_from(receipt.unresolved).unwrap(),
            holder: [0, 1].into_iter().find(holds),
            released: receipt.released,
            cancel_asked: receipt.cancel_asked,
            deadline_passed: receipt.deadline_passed,
            window_open: receipt.window_open,
        }
    }
}
