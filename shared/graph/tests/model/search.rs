//! Breadth-first search over all reachable states, the invariants on every step, and whether every state can finish.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use ditto_contracts::{EffectClass, ReceiptState};

use super::{
    rules::Rules,
    steps::{Step, Steps},
    world::{Cast, World},
};

/// What a search found.
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    pub(crate) took: Duration,
    /// A broken invariant and a shortest way to it.
    pub(crate) violation: Option<(&'static str, Vec<String>)>,
    /// The outcomes that the loop can come to see.
    pub(crate) outcomes: BTreeSet<ReceiptState>,
    /// How many states can never finish, and one of them.
    pub(crate) stuck: (usize, Option<World>),
}

/// Visits every state that can be reached, up to `most_states`, until an invariant whose name starts with `wanted` is
/// broken. With `symmetric`, states with the same future count once; a trace then may rename workers on its way.
pub(crate) fn search<R: Rules>(cast: &Cast, rules: &R, symmetric: bool, wanted: &str, most_states: usize) -> Found {
    let began = Instant::now();
    let name = |world: &World| if symmetric { world.canonical(cast) } else { world.pack() };
    let mut steps = Steps { cast, rules, next: Vec::new() };
    let mut seen = Seen::new();
    seen.insert(name(&World::START));
    let mut parents: Vec<u32> = vec![u32::MAX];
    let mut offsets: Vec<u32> = vec![0];
    let mut targets: Vec<u32> = Vec::new();
    let mut finished: Vec<bool> = vec![false];
    let mut outcomes = BTreeSet::new();
    let mut violation = None;
    let mut at = 0;
    'states: while at < seen.states.len() {
        let world = World::unpack(seen.states[at]);
        steps.expand(&world);
        let first_target = targets.len();
        for (step, next) in &steps.next {
            let (index, new) = seen.insert(name(next));
            if new {
                parents.push(u32::try_from(at).unwrap());
                finished.push(next.consumed.is_some());
                outcomes.extend(next.consumed);
            }
            if let Some(why) = broken(cast, &world, next).into_iter().find(|why| why.starts_with(wanted)) {
                violation = Some((why, (at, *step)));
                break 'states;
            }
            if !targets[first_target..].contains(&index) {
                targets.push(index);
            }
        }
        offsets.push(u32::try_from(targets.len()).unwrap());
        assert!(seen.states.len() <= most_states, "more than {most_states} states: the search is not bounded");
        at += 1;
    }
    let violation = violation.map(|(why, (at, last))| (why, trace(&mut steps, &seen, &parents, at, last, symmetric)));
    let stuck = if violation.is_none() { stuck(&seen, &offsets, &targets, finished) } else { (0, None) };
    Found { states: seen.states.len(), steps: targets.len(), took: began.elapsed(), violation, outcomes, stuck }
}

/// The invariants that a step breaks.
fn broken(cast: &Cast, before: &World, after: &World) -> Vec<&'static str> {
    let mut broken = Vec::new();
    let mut check = |holds: bool, name| {
        if !holds {
            broken.push(name);
        }
    };
    let state = after.row.map(|row| row.state);
    let effect = after.effects > 0;
    let succeeded = Some(ReceiptState::Succeeded);
    let negative = |state| matches!(state, Some(ReceiptState::Failed | ReceiptState::Cancelled));
    check(!after.consumed_twice, "I17: outcome consumed twice");
    check(state != succeeded || effect, "I11: succeeded without an effect");
    check(
        after.consumed != succeeded || state == succeeded,
        "I18: the loop saw a success that the receipt does not say",
    );
    if let (Some(old), Some(new)) = (before.row, after.row)
        && old.settled
        && before.authorised == after.authorised
    {
        let by_evidence =
            old.state == ReceiptState::Unknown && matches!(new.state, ReceiptState::Succeeded | ReceiptState::Failed);
        check(old.state == new.state && new.settled || by_evidence, "I14: a settled outcome changed");
    }
    if cast.policy.class != EffectClass::ReadOnly {
        let permitted =
            if cast.policy.class == EffectClass::NonIdempotent { 1 + u8::from(after.authorised) } else { 1 };
        check(after.effects <= permitted, "I7, I8: the side effect happened twice");
        check(!effect || !negative(state), "I12: failed or cancelled, but the effect happened");
        check(!effect || !negative(after.consumed), "I12: the loop consumed a failure, but the effect happened");
    }
    broken
}

/// A shortest way to the broken step: parents, re-expanded to find the step that leads from each to the next.
fn trace<R: Rules>(
    steps: &mut Steps<'_, R>,
    seen: &Seen,
    parents: &[u32],
    at: usize,
    last: Step,
    symmetric: bool,
) -> Vec<String> {
    let cast = steps.cast;
    let mut path = vec![at];
    while let Some(parent) = parents.get(path[path.len() - 1]).filter(|parent| **parent != u32::MAX) {
        path.push(usize::try_from(*parent).unwrap());
    }
    path.reverse();
    let mut lines: Vec<String> = Vec::new();
    for pair in path.windows(2) {
        let (from, to) = (World::unpack(seen.states[pair[0]]), seen.states[pair[1]]);
        steps.expand(&from);
        let leads = |next: &World| if symmetric { next.canonical(cast) == to } else { next.pack() == to };
        let step = steps.next.iter().find(|(_, next)| leads(next)).expect("a child comes from its parent");
        lines.push(format!("{:?}", step.0));
    }
    lines.push(format!("{last:?}"));
    lines
}

/// The states from which no consumed outcome can be reached any more.
fn stuck(seen: &Seen, offsets: &[u32], targets: &[u32], mut can_finish: Vec<bool>) -> (usize, Option<World>) {
    // Backward reachability. Most steps lead to later states, so a backward pass settles nearly all of them at once.
    loop {
        let mut changed = false;
        for at in (0..can_finish.len()).rev() {
            if can_finish[at] {
                continue;
            }
            let range = usize::try_from(offsets[at]).unwrap()..usize::try_from(offsets[at + 1]).unwrap();
            if targets[range].iter().any(|target| can_finish[usize::try_from(*target).unwrap()]) {
                can_finish[at] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    let count = can_finish.iter().filter(|can| !**can).count();
    let example = can_finish.iter().position(|can| !can).map(|at| World::unpack(seen.states[at]));
    (count, example)
}

/// All states seen, in order, with an open-addressing table of their places.
struct Seen {
    states: Vec<u128>,
    places: Vec<u32>,
}

const EMPTY: u32 = u32::MAX;

impl Seen {
    fn new() -> Self {
        Self { states: Vec::new(), places: vec![EMPTY; 1 << 12] }
    }

    /// The place of a state, and whether it is new.
    fn insert(&mut self, state: u128) -> (u32, bool) {
        if self.states.len() * 2 >= self.places.len() {
            let mut places = vec![EMPTY; self.places.len() * 2];
            for (place, state) in self.states.iter().enumerate() {
                let slot = Self::slot(&places, &self.states, *state);
                places[slot] = u32::try_from(place).unwrap();
            }
            self.places = places;
        }
        let slot = Self::slot(&self.places, &self.states, state);
        if self.places[slot] != EMPTY {
            return (self.places[slot], false);
        }
        let place = u32::try_from(self.states.len()).unwrap();
        self.places[slot] = place;
        self.states.push(state);
        (place, true)
    }

    /// The slot that holds a state or is free for it.
    fn slot(places: &[u32], states: &[u128], state: u128) -> usize {
        let folded = (state as u64) ^ ((state >> 64) as u64).rotate_left(32);
        let hash = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mask = places.len() - 1;
        let mut slot = (hash ^ (hash >> 32)) as usize & mask;
        while places[slot] != EMPTY && states[places[slot] as usize] != state {
            slot = (slot + 1) & mask;
        }
        slot
    }
}
