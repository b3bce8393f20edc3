//! The leases of a limiter, key by key, and when to look at them again: bounded in the number of keys.
//!
//! Nothing here asks anybody. Under a lock it is only said who gets what; it is handed out without.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::Landed;
use super::entry::{Ask, Entry, Given, Held, Rest, Target, Waiter, What};
use crate::algorithm::Outcome;
use crate::decision::{Answered, Decision, Source};
use crate::error::StoreError;
use crate::limit::Algorithm;

/// Enough that threads rarely meet; a power of two.
const SHARDS: usize = 64;

/// How many keys of a shard are held at most. Of others, nothing is leased.
const KEYS: usize = 1024;

/// The leases of a limiter.
pub(crate) struct Leases {
    shards: Box<[Mutex<HashMap<u128, Entry>>]>,
    ends: Mutex<Ends>,
    /// There is an earlier end to wait for, or nobody to wait for it.
    pub(super) changed: Notify,
}

/// When to look at a key again.
#[derive(Default)]
struct Ends {
    queue: BinaryHeap<Reverse<(u64, u128)>>,
    watched: bool,
}

pub(super) enum Joined {
    Spent(Decision),
    /// The answer will come; from a flight that the caller starts, if it is the first.
    Waits {
        answer: oneshot::Receiver<Landed>,
        /// Names the call.
        arrival: u64,
        is_first: bool,
    },
    /// This key cannot be leased now.
    Not,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            ends: Mutex::default(),
            changed: Notify::new(),
        }
    }
}

impl Leases {
    /// Spends `cost` units that are held here, if nobody waits for them.
    #[inline]
    pub(super) fn spend(&self, place: u128, cost: u32, now: u64) -> Option<Decision> {
        let mut shard = self.shard(place);
        let entry = shard.get_mut(&place).filter(|entry| entry.waiting.is_empty())?;
        entry.take(cost, now)
    }

    /// How many units could be spent.
    pub(super) fn held(&self, place: u128, now: u64) -> u32 {
        let shard = self.shard(place);
        shard.get(&place).map_or(0, |entry| entry.held.spendable(now))
    }

    /// Spends what is held, or waits for more.
    pub(super) fn join(&self, place: u128, target: &Arc<Target>, cost: u32, now: u64) -> Joined {
        let mut shard = self.shard(place);
        if shard.len() >= KEYS && !shard.contains_key(&place) {
            return Joined::Not;
        }
        let entry = shard.entry(place).or_insert_with(|| Entry::new(Arc::clone(target)));
        let runtime = Handle::current().id();
        if now < entry.paused || entry.flying.is_some_and(|flying| flying != runtime) {
            return Joined::Not;
        }
        if entry.target.limit != target.limit || entry.target.permits != target.permits {
            if entry.flying.is_some() {
                return Joined::Not;
            }
            entry.target = Arc::clone(target);
        }
        if entry.waiting.is_empty()
            && let Some(decision) = entry.take(cost, now)
        {
            return Joined::Spent(decision);
        }
        let (sender, answer) = oneshot::channel();
        entry.arrivals += 1;
        let arrival = entry.arrivals;
        entry.waiting.push_back(Waiter { arrival, cost, answer: sender });
        let is_first = entry.flying.replace(runtime).is_none();
        Joined::Waits { answer, arrival, is_first }
    }

    /// Whether a call still waits, and the request that is under way does not include it.
    pub(super) fn is_left_behind(&self, place: u128, arrival: u64) -> bool {
        let shard = self.shard(place);
        let Some(entry) = shard.get(&place) else { return false };
        entry.waiting.iter().skip(entry.boarded).any(|waiter| waiter.arrival == arrival)
    }

    /// Serves those that wait from what is held; says what to ask for the next of them, or ends the
    /// flight when there is none.
    pub(super) fn board(&self, place: u128, now: u64) -> (Vec<Given>, Option<Ask>) {
        let mut given = Vec::new();
        let mut shard = self.shard(place);
        let Some(entry) = shard.get_mut(&place) else { return (given, None) };
        while let Some(first) = entry.waiting.front() {
            let is_gone = first.answer.is_closed();
            let cost = first.cost;
            let decision = if is_gone { None } else { entry.take(cost, now) };
            if decision.is_none() && !is_gone {
                break;
            }
            let first = entry.waiting.pop_front();
            if let (Some(first), Some(decision)) = (first, decision) {
                given.push(entry.gives(first, decision));
            }
        }
        let ask = entry.ask(now);
        if ask.is_none() {
            entry.flying = None;
            // What was never held is not watched.
            if !entry.watched {
                shard.remove(&place);
            }
        }
        (given, ask)
    }

    /// The store has charged `size` units: those that waited for them get theirs, and the rest is
    /// held. Gives as well what cannot be held.
    pub(super) fn charged(
        &self,
        place: u128,
        size: u32,
        sent: u64,
        now: u64,
        outcome: Outcome,
    ) -> (Vec<Given>, Option<Rest>) {
        let mut given = Vec::new();
        let mut shard = self.shard(place);
        let Some(entry) = shard.get_mut(&place) else { return (given, None) };
        let target = Arc::clone(&entry.target);
        let lasts = match target.limit.algorithm() {
            Algorithm::Fixed => target.term_us.min(outcome.reset_us),
            _ => target.term_us,
        };
        entry.held = Held {
            units: size,
            of: size,
            at: outcome.clock,
            sent,
            // The clock of the store may run a little faster.
            until: sent + lasts - lasts.div_ceil(1_000),
            remaining: outcome.remaining,
            reset_us: outcome.reset_us,
        };
        // The store has decided these calls while they waited, however long its answer took.
        let mut source = Source::Redis;
        for _ in 0..std::mem::take(&mut entry.boarded) {
            let Some(cost) = entry.waiting.front().map(|first| first.cost) else { break };
            if cost > entry.held.units {
                break;
            }
            let Some(first) = entry.waiting.pop_front().filter(Waiter::is_there) else { continue };
            entry.held.units -= cost;
            given.push(entry.gives(first, entry.decision(now, source)));
            source = Source::Lease;
        }
        let keeps = if now < entry.held.until { target.permits } else { 0 };
        let mut units = entry.held.units.saturating_sub(keeps);
        entry.held.units -= units;
        let end = entry.held.until;
        if std::mem::take(&mut entry.reset) {
            // What is left counts nowhere any more.
            (units, entry.held) = (0, Held { until: end, ..Held::default() });
        }
        let was_watched = std::mem::replace(&mut entry.watched, true);
        drop(shard);
        self.watch(place, end, was_watched);
        (given, Rest::of(target, units, outcome.clock))
    }

    fn watch(&self, place: u128, end: u64, was_watched: bool) {
        if !was_watched {
            self.ends().queue.push(Reverse((end, place)));
            self.changed.notify_one();
        }
    }

    /// The store has refused so many units, which is the answer to who wanted as many. The flight is
    /// over, and nothing is leased for a term.
    pub(super) fn refused(&self, place: u128, size: u32, now: u64, answer: Answered) -> Vec<Given> {
        let mut shard = self.shard(place);
        let Some(entry) = shard.get_mut(&place) else { return Vec::new() };
        (entry.flying, entry.reset) = (None, false);
        entry.paused = now + entry.target.term_us;
        let boarded = std::mem::take(&mut entry.boarded);
        let waiting: Vec<_> = entry.waiting.drain(..).enumerate().collect();
        let (end, was_watched) = (entry.paused, std::mem::replace(&mut entry.watched, true));
        drop(shard);
        self.watch(place, end, was_watched);
        let told = |(index, waiter): (usize, Waiter)| {
            let is_answer = index < boarded && waiter.cost == size;
            let what = if is_answer { What::Refusal(answer) } else { What::Nothing };
            Given { to: waiter.answer, what }
        };
        waiting.into_iter().map(told).collect()
    }

    /// The store does not decide.
    pub(super) fn failed(&self, place: u128, error: &StoreError) -> Vec<Given> {
        let mut shard = self.shard(place);
        let Some(entry) = shard.get_mut(&place) else { return Vec::new() };
        let failed = |it: Waiter| Given { to: it.answer, what: What::Failure(error.clone()) };
        entry.waiting.drain(..).map(failed).collect()
    }

    /// The flight has ended before its time: who waits is told by the end of the channel.
    pub(super) fn abandoned(&self, place: u128) {
        let mut shard = self.shard(place);
        let Some(entry) = shard.get_mut(&place) else { return };
        entry.flying = None;
        let waiting = std::mem::take(&mut entry.waiting);
        if !entry.watched {
            shard.remove(&place);
        }
        drop(shard);
        drop(waiting);
    }

    /// Units that were handed out come back; those of another charge have to be given back.
    pub(super) fn put_back(&self, place: u128, units: u32, at: u64) -> bool {
        let mut shard = self.shard(place);
        let entry = shard.get_mut(&place).filter(|entry| entry.held.at == at && at > 0);
        entry.map(|entry| entry.held.units += units).is_some()
    }

    /// The key starts anew: what is held of it counts nowhere any more.
    pub(crate) fn forget(&self, place: u128) {
        if let Some(entry) = self.shard(place).get_mut(&place) {
            let until = entry.held.until;
            entry.held = Held { until, ..Held::default() };
            (entry.reset, entry.paused) = (entry.flying.is_some(), 0);
        }
    }

    /// Takes everything that is held.
    pub(super) fn take_all(&self) -> Vec<Rest> {
        let shards = self.shards.iter().map(|shard| lock(shard));
        shards
            .flat_map(|mut shard| shard.values_mut().filter_map(Entry::rest).collect::<Vec<_>>())
            .collect()
    }

    /// Takes what is held beyond its term, and forgets the keys that nobody uses.
    pub(super) fn take_expired(&self, now: u64) -> Vec<Rest> {
        let mut rests = Vec::new();
        while let Some(place) = self.next_due(now) {
            let mut shard = self.shard(place);
            let Some(entry) = shard.get_mut(&place) else { continue };
            let end = entry.held.until.max(entry.paused);
            if end > now || entry.flying.is_some() {
                // Looked at again when it may be over.
                let again = end.max(now + entry.target.term_us);
                drop(shard);
                self.ends().queue.push(Reverse((again, place)));
            } else {
                rests.extend(entry.rest());
                shard.remove(&place);
            }
        }
        rests
    }

    fn next_due(&self, now: u64) -> Option<u128> {
        let mut ends = self.ends();
        let Reverse((end, _)) = ends.queue.peek()?;
        if *end > now {
            return None;
        }
        ends.queue.pop().map(|Reverse((_, place))| place)
    }

    /// Whether somebody has to begin to wait for ends.
    pub(super) fn starts_watch(&self) -> bool {
        let mut ends = self.ends();
        !ends.queue.is_empty() && !std::mem::replace(&mut ends.watched, true)
    }

    /// When to look again; never, and nobody watches, when nothing is held.
    pub(super) fn next_end(&self) -> Option<u64> {
        let mut ends = self.ends();
        let end = ends.queue.peek().map(|Reverse((end, _))| *end);
        ends.watched = end.is_some();
        end
    }

    pub(super) fn ends_watch(&self) {
        self.ends().watched = false;
    }

    fn ends(&self) -> MutexGuard<'_, Ends> {
        lock(&self.ends)
    }

    fn shard(&self, place: u128) -> MutexGuard<'_, HashMap<u128, Entry>> {
        lock(&self.shards[(place >> 122) as usize % SHARDS])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
