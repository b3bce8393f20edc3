//! The counts of calls in flight in the shared store that this process uses: what its calls hold (`held.rs`), and the
//! requests about them. One request about a count is pending at a time. It states what is held and, if calls want
//! units, takes them in the same script.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use super::agenda::Agenda;
use super::held::{HeldReply, SlotUnits, TakenUnits, charged};
use crate::algorithm::{Charged, Outcome, Receipt};
use crate::background::seen_process;
use crate::key::KeyId;
use crate::one_or_many::OneOrMany;
use crate::reply::StoreError;
use crate::store::{Calls, Charge, EqualCalls, MAX_CORRECTED, Reply, Stated, Statement};

/// How long a release waits for others, and for a call that states it as well, in microseconds.
const GATHERING: u64 = 2_000;

/// How long statements pause after a failure, in microseconds.
const PAUSE: u64 = 100_000;

/// The most requests without calls that are pending.
const MAX_STATEMENTS: usize = 256;

/// The most calls that one request decides for callers that do not know each other: of the same counts, and of counts
/// that have only the slots in common.
const MAX_CALLS: usize = 1024;
const MAX_MIXED: usize = 32;

/// The counts of this process.
#[derive(Default)]
pub(super) struct SlotCounts {
    /// What makes the number of this process random.
    hasher: RandomState,
    /// The last number of a statement, and of a want.
    last_seq: u64,
    counts: HashMap<KeyId, SlotCount>,
    wants: HashMap<u64, Want>,
    /// The next looks at counts: by real time, and by the time of the limiter.
    soon: Agenda<KeyId>,
    later: Agenda<KeyId>,
    statements: usize,
    /// The replies on their way to callers. One that does not arrive releases its units.
    pub(super) replies: usize,
    /// Notified when units were lost, and after each statement and each reply.
    pub(super) changed: Arc<Notify>,
    /// What has ended, until the caller takes it.
    pub(super) ends: SlotEnds,
}

struct SlotCount {
    charge: Arc<Charge>,
    units: SlotUnits,
    /// The calls that want units, by their numbers.
    queue: BTreeSet<u64>,
    /// Why the last statement has failed, and the end of the pause after it.
    failure: Option<(StoreError, u64)>,
    /// Whether the last request has not confirmed the units: a statement that is due then comes before other calls.
    is_unconfirmed: bool,
}

/// Calls that want units of some counts.
pub(super) struct Want {
    number: u64,
    calls: Calls,
    reply_to: WantReply,
    /// Whether the calls of others share no request with these.
    is_alone: bool,
}

pub(super) type WantReply = oneshot::Sender<Result<HeldReply, StoreError>>;

/// What the server replied to calls.
pub(super) type CallsReply = Result<(Reply, Calls), StoreError>;

/// A request that is due.
pub(super) enum SlotRequest {
    Take(TakeRequest),
    /// States counts of one hash slot.
    State(Vec<Arc<Charge>>),
}

pub(super) struct TakeRequest {
    pub(super) calls: Calls,
    wants: Vec<Want>,
}

/// What a reply or the time has ended.
#[derive(Default)]
pub(super) struct SlotEnds {
    pub(super) replies: Vec<(WantReply, CallsReply)>,
    /// The charges of counts whose units were lost, and how many.
    pub(super) lost: Vec<(Arc<Charge>, u64)>,
    /// Rates that were charged beside units that nobody may use.
    pub(super) returns: Vec<(Arc<Charge>, Charged)>,
}

impl SlotCount {
    /// Returns whether no call needs the count, and the store knows that.
    fn is_idle(&self) -> bool {
        self.units.is_idle() && self.queue.is_empty()
    }

    fn paused_until(&self) -> u64 {
        self.failure.as_ref().map_or(0, |(_, until)| *until)
    }
}

/// Returns the places and the charges of calls in flight that the shared store counts.
fn slots_of(charges: &[Arc<Charge>]) -> impl Iterator<Item = (usize, &Arc<Charge>)> {
    charges.iter().enumerate().filter(|(_, charge)| charge.statement.is_some())
}

impl SlotCounts {
    /// Adds calls that want units.
    pub(super) fn want(&mut self, calls: Calls, reply_to: WantReply, real: u64) {
        let number = self.next_seq();
        self.enqueue(Want { number, calls, reply_to, is_alone: false }, real);
    }

    /// Queues a want by its number, before all later wants.
    fn enqueue(&mut self, want: Want, real: u64) {
        for (_, charge) in slots_of(&want.calls.charges) {
            self.count(charge).queue.insert(want.number);
            self.plan(charge.key_id, real, 0);
        }
        self.wants.insert(want.number, want);
    }

    /// Takes units without the store.
    pub(super) fn take_locally(
        &mut self,
        charge: &Arc<Charge>,
        units: u64,
        real: u64,
    ) -> TakenUnits {
        let taken = self.count(charge).units.take_locally(units);
        self.plan(charge.key_id, real, GATHERING);
        taken
    }

    /// Releases units. The store learns of it after some time, or at once if it `hurries`.
    pub(super) fn release(&mut self, key_id: KeyId, taken: TakenUnits, hurries: bool, real: u64) {
        let Some(count) = self.counts.get_mut(&key_id) else { return };
        if count.units.release(taken) {
            self.plan(key_id, real, if hurries { 0 } else { GATHERING });
        }
    }

    /// Loses the units of a count that this process has reset, at the time `epoch` of the store.
    pub(super) fn reset(&mut self, key_id: KeyId, epoch: u64, real: u64) {
        let seq = self.next_seq();
        if let Some(count) = self.counts.get_mut(&key_id) {
            count.units.reset(seq, epoch);
            self.plan(key_id, real, 0);
        }
        self.changed.notify_waiters();
    }

    /// Looks at all counts again, after a panic: a request that was to be sent may be lost.
    pub(super) fn begin_anew(&mut self, real: u64) {
        (self.soon, self.later, self.statements) = Default::default();
        for key_id in self.counts.keys().copied().collect::<Vec<_>>() {
            if let Some(count) = self.counts.get_mut(&key_id) {
                count.units.unanswered();
            }
            self.plan(key_id, real, 0);
        }
    }

    /// Returns the time at which units are lost, as [`SlotUnits::lost_at`] does.
    pub(super) fn lost_at(&self, key_id: KeyId, taken: TakenUnits) -> Option<u64> {
        self.counts.get(&key_id).map_or(Some(0), |count| count.units.lost_at(taken))
    }

    /// Returns whether the store knows the units that are held of a count: `None` while a statement is due or pending,
    /// an error if the last statement failed.
    pub(super) fn is_stated(&self, key_id: KeyId) -> Option<Result<(), StoreError>> {
        match self.counts.get(&key_id).filter(|count| count.units.is_dirty()) {
            None => Some(Ok(())),
            Some(count) => count.failure.as_ref().map(|(error, _)| Err(error.clone())),
        }
    }

    /// Returns the units that are held, and whether the store knows all of it.
    pub(super) fn in_flight(&self) -> (u64, bool) {
        let are_received = self.replies == 0;
        self.counts.values().fold((0, are_received), |(units, is_known), count| {
            let of = &count.units;
            (units + of.units(), is_known && !of.is_dirty() && !of.is_pending())
        })
    }

    /// Returns what a peek states of a count: what is held, unless a request is about to change it.
    pub(super) fn peeked(&self, charge: &Arc<Charge>) -> Arc<Charge> {
        let count = self.counts.get(&charge.key_id).filter(|count| !count.units.is_pending());
        let Some(count) = count else { return Arc::clone(charge) };
        let (process, seq) = (self.process(), self.last_seq + 1);
        let statement = Some(Statement { process, seq, ..count.units.peeked() });
        Arc::new(Charge { statement, ..(**charge).clone() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.values().all(SlotCount::is_idle)
    }

    /// Returns the next time to look at the counts: by real time, and by the time of the limiter.
    pub(super) fn next_looks(&self) -> [Option<u64>; 2] {
        [&self.soon, &self.later].map(Agenda::first)
    }

    /// Returns the requests that are due. `slot_of` is the hash slot of a charge.
    pub(super) fn due(
        &mut self,
        now: u64,
        real: u64,
        slot_of: impl Fn(&Charge) -> u16,
    ) -> Vec<SlotRequest> {
        let (mut requests, mut groups) = (Vec::new(), Vec::<(u16, Vec<Arc<Charge>>)>::new());
        while let Some(key_id) = self.soon.take_due(real).or_else(|| self.later.take_due(now)) {
            self.soon.plan(key_id, None);
            self.later.plan(key_id, None);
            let has_room = self.statements < MAX_STATEMENTS;
            let Some(count) = self.expired(key_id, now) else { continue };
            let (is_pending, head) = (count.units.is_pending(), count.queue.first().copied());
            if count.is_idle() && count.units.kept_until() <= now {
                self.counts.remove(&key_id);
                continue;
            }
            let is_due =
                count.units.is_dirty() || count.units.next_statement().is_some_and(|at| at <= now);
            let paused_until = count.paused_until();
            let can_state = is_due && paused_until <= real && has_room;
            let states_first = count.is_unconfirmed && can_state;
            let charge = Arc::clone(&count.charge);
            if let Some(number) = head.filter(|_| !is_pending && !states_first) {
                match self.take(number, now, &slot_of) {
                    Some(request) => requests.push(SlotRequest::Take(request)),
                    // Another count of the call is not free.
                    None => self.plan(key_id, real, GATHERING),
                }
                continue;
            }
            if !is_due || is_pending {
                self.plan(key_id, real, 0);
            } else if !can_state {
                // Its statement cannot be sent before.
                self.soon.plan(key_id, Some(paused_until.max(real + GATHERING)));
            } else {
                let charge = self.state(&charge, now, 0);
                let slot = slot_of(&charge);
                let has_room =
                    |(it, of): &&mut (u16, Vec<_>)| *it == slot && of.len() < MAX_CORRECTED;
                if let Some((_, of)) = groups.iter_mut().find(has_room) {
                    of.push(charge);
                } else {
                    self.statements += 1;
                    groups.push((slot, vec![charge]));
                }
            }
        }
        requests.extend(groups.into_iter().map(|(_, charges)| SlotRequest::State(charges)));
        requests
    }

    /// Ends a request that states counts.
    pub(super) fn stated(
        &mut self,
        charges: &[Arc<Charge>],
        results: Vec<Result<Stated, StoreError>>,
        (now, real): (u64, u64),
    ) {
        self.statements = self.statements.saturating_sub(1);
        for (charge, result) in charges.iter().zip(results) {
            if let Some(count) = self.counts.get_mut(&charge.key_id) {
                let until = real + PAUSE;
                count.failure = result.as_ref().err().map(|error| (error.clone(), until));
            }
            self.end(charge.key_id, result.as_ref().map(|it| Some(*it)), false, (now, real));
        }
        self.changed.notify_waiters();
    }

    /// Ends a request that takes units. `is_split` says whether it was several requests, one for each hash slot.
    pub(super) fn taken(
        &mut self,
        TakeRequest { calls, wants }: TakeRequest,
        is_split: bool,
        result: Result<Reply, StoreError>,
        (now, real): (u64, u64),
    ) {
        let (charges, width) = (&calls.charges, calls.charges.len());
        let mut places = Vec::new();
        for (index, (place, charge)) in slots_of(charges).enumerate() {
            let stated =
                result.as_ref().map(|reply| reply.statements.get(index).copied().flatten());
            let granted = stated.map_or(0, |it| it.map_or(0, |it| it.granted));
            let stamp = self.end(charge.key_id, stated, is_split, (now, real));
            places.push((place, charge.key_id, granted, stamp));
        }
        self.changed.notify_waiters();
        let mut reply = match result {
            Ok(reply) => reply,
            Err(error) => {
                let refused = |want: Want| (want.reply_to, Err(error.clone()));
                return self.ends.replies.extend(wants.into_iter().map(refused));
            }
        };
        let is_late = places.iter().any(|(_, _, granted, stamp)| *granted > 0 && stamp.is_none());
        let is_admitted = |(_, call): &(usize, &[Outcome])| call.iter().all(Outcome::is_allowed);
        let admitted = reply.outcomes.chunks(width).enumerate().filter(is_admitted);
        let admitted: Vec<_> = admitted.filter_map(|(call, _)| calls.costs_of(call)).collect();
        for (place, key_id, granted, stamp) in places {
            let Some(stamp) = stamp else { continue };
            // Units of calls that do not start: another limit has rejected them, or a reply is late.
            let costs = admitted.iter().filter_map(|costs| costs.get(place).copied());
            let used = if is_late { 0 } else { costs.sum::<u64>() };
            let units = granted.saturating_sub(used);
            self.release(key_id, TakenUnits { units, stamp, is_local: false }, true, real);
            for receipt in reply.receipts.iter_mut().skip(place).step_by(width) {
                *receipt = Receipt { birth: 1, place: stamp };
            }
        }
        if is_late {
            // Others may have the units by now, so the calls ask again.
            let rates = charged(&calls, &reply).filter(|(charge, receipt, cost)| {
                charge.statement.is_none() && *cost > 0 && receipt.birth > 0
            });
            let back = |(charge, receipt, cost): (&Arc<Charge>, _, _)| {
                (charge.with_cost(cost), Charged::By(receipt))
            };
            self.ends.returns.extend(rates.map(back));
            return wants.into_iter().for_each(|want| self.enqueue(want, real));
        }
        self.answer(wants, &calls, &reply, real);
    }

    /// Gives each want what the request has decided about it.
    fn answer(&mut self, wants: Vec<Want>, calls: &Calls, reply: &Reply, real: u64) {
        if wants.len() == 1 && !calls.is_mixed {
            let whole = |want: Want| (want.reply_to, Ok((reply.clone(), calls.clone())));
            return self.ends.replies.extend(wants.into_iter().map(whole));
        }
        let width = calls.charges.len();
        let (mut outcomes, mut receipts) =
            (reply.outcomes.chunks(width), reply.receipts.chunks(width));
        let place = |charge: &Arc<Charge>| place_of(charge, &calls.charges);
        let mut rejected: Option<(Calls, OneOrMany<Outcome>)> = None;
        for mut want in wants {
            let places: Vec<_> = want.calls.charges.iter().filter_map(place).collect();
            let (call, receipts) = (outcomes.next(), receipts.next());
            let has_failed = call.is_some_and(|call| call.contains(&Outcome::FAILED));
            want.is_alone |= has_failed;
            let call = call.map(|call| places.iter().map(|place| call[*place]).collect());
            // A call of other costs than the rejected one may fit.
            let like = rejected.as_ref().filter(|(of, _)| of.runs == want.calls.runs);
            let call = call.or_else(|| like.map(|(_, outcomes)| outcomes.clone()));
            let Some(call) = call.filter(|_| !has_failed) else {
                self.enqueue(want, real);
                continue;
            };
            let mut of_call = Reply::new(call, reply.source);
            if of_call.is_allowed() {
                let of = |place: &usize| receipts?.get(*place).copied();
                of_call.receipts = places.iter().filter_map(of).collect();
            } else {
                rejected = Some((want.calls.clone(), of_call.outcomes.clone()));
            }
            self.ends.replies.push((want.reply_to, Ok((of_call, want.calls))));
        }
    }

    /// Records what a request has done to a count. Returns the stamp of what it has taken. Without a statement in the
    /// reply, the store has not executed it.
    fn end(
        &mut self,
        key_id: KeyId,
        result: Result<Option<Stated>, &StoreError>,
        is_split: bool,
        (now, real): (u64, u64),
    ) -> Option<u64> {
        let count = self.counts.get_mut(&key_id)?;
        count.is_unconfirmed = !matches!(result, Ok(Some(_)));
        let mut stamp = None;
        match result {
            Ok(Some(stated)) => {
                count.failure = None;
                let replied = count.units.replied(stated, now);
                if replied.lost > 0 {
                    self.ends.lost.push((Arc::clone(&count.charge), replied.lost));
                }
                stamp = replied.stamp;
            }
            Ok(None) => count.units.not_sent(),
            // Of several requests, another one may have been executed.
            Err(StoreError::CircuitOpen { .. } | StoreError::Overloaded { .. }) if !is_split => {
                count.units.not_sent();
            }
            Err(_) => count.units.unanswered(),
        }
        self.plan(key_id, real, 0);
        stamp
    }

    /// Begins a request for the want with a number, if all its counts are free. Takes others of the same counts along.
    fn take(
        &mut self,
        number: u64,
        now: u64,
        slot_of: &impl Fn(&Charge) -> u16,
    ) -> Option<TakeRequest> {
        let want = self.wants.get(&number)?;
        let mut charges = want.calls.charges.to_vec();
        let key_ids: Vec<_> = slots_of(&charges).map(|(_, charge)| charge.key_id).collect();
        if !key_ids.iter().all(|key_id| self.is_next(*key_id, number)) {
            return None;
        }
        let mut wants = vec![self.dequeue(number)?];
        let mut is_mixed = false;
        while let Some(next) =
            self.counts.get(&key_ids[0]).and_then(|count| count.queue.first().copied())
            && let Some(want) = self.wants.get(&next)
            && is_single(&wants[0])
            && is_single(want)
            && key_ids.iter().all(|key_id| self.is_next(*key_id, next))
        {
            let is_like = !is_mixed && have_equal_counts(&want.calls.charges, &charges);
            if !is_like && can_mix(&wants, want, &charges, slot_of) {
                is_mixed = true;
                for charge in &*want.calls.charges {
                    if place_of(charge, &charges).is_none() {
                        charges.push(Arc::clone(charge));
                    }
                }
            } else if !is_like || wants.len() == MAX_CALLS {
                break;
            }
            wants.extend(self.dequeue(next));
        }
        // A call whose caller has dropped it takes nothing.
        wants.retain(|want| !want.reply_to.is_closed());
        let first = wants.first()?.calls.clone();
        let charges = charges.iter().map(|charge| match charge.statement {
            Some(_) => self.state(charge, now, first.waited_us),
            None => Arc::clone(charge),
        });
        let charges: OneOrMany<_> = charges.collect();
        let mut runs: Vec<EqualCalls> = Vec::new();
        for want in &wants {
            for run in &*want.calls.runs {
                let costs = if is_mixed { costs_in(&charges, want) } else { run.costs.clone() };
                match runs.last_mut().filter(|last| last.costs == costs && !is_mixed) {
                    Some(last) => last.count += run.count,
                    None => runs.push(EqualCalls { costs, ..run.clone() }),
                }
            }
        }
        let calls = Calls { charges, runs: runs.into(), is_mixed, ..first };
        Some(TakeRequest { calls, wants })
    }

    /// Begins a statement of a known count. Returns the charge with it.
    fn state(&mut self, charge: &Arc<Charge>, now: u64, waited_us: u64) -> Arc<Charge> {
        let (seq, process) = (self.next_seq(), self.process());
        let statement = self.expired(charge.key_id, now).map(|count| {
            let stated = count.units.state(seq, now);
            Statement { process, seq, waited_us, ..stated }
        });
        Arc::new(Charge { statement, ..(**charge).clone() })
    }

    /// Returns the count of a charge.
    fn count(&mut self, charge: &Arc<Charge>) -> &mut SlotCount {
        let seq = self.next_seq();
        let count = self.counts.entry(charge.key_id).or_insert_with(|| SlotCount {
            charge: Arc::clone(charge),
            units: SlotUnits::new(seq),
            queue: BTreeSet::new(),
            failure: None,
            is_unconfirmed: false,
        });
        count.units.set_hold(charge.statement.map_or(0, |statement| statement.hold_us));
        count
    }

    fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// Returns a random number of this process: 52 bits, which the numbers of scripts hold exactly.
    fn process(&self) -> u64 {
        (self.hasher.hash_one(seen_process()) >> 12).max(1)
    }

    /// Returns a count once the units are lost whose time has come.
    fn expired(&mut self, key_id: KeyId, now: u64) -> Option<&mut SlotCount> {
        let count = self.counts.get_mut(&key_id)?;
        let lost = count.units.expire(now);
        if lost > 0 {
            self.ends.lost.push((Arc::clone(&count.charge), lost));
            self.changed.notify_waiters();
        }
        Some(count)
    }

    /// Returns whether a want is the next one of a count without a pending request.
    fn is_next(&self, key_id: KeyId, number: u64) -> bool {
        let count = self.counts.get(&key_id);
        count.is_some_and(|it| !it.units.is_pending() && it.queue.first() == Some(&number))
    }

    fn dequeue(&mut self, number: u64) -> Option<Want> {
        let want = self.wants.remove(&number)?;
        for (_, charge) in slots_of(&want.calls.charges) {
            if let Some(count) = self.counts.get_mut(&charge.key_id) {
                count.queue.remove(&number);
            }
        }
        Some(want)
    }

    /// Plans the next look at a count, at the earliest after `delay`.
    fn plan(&mut self, key_id: KeyId, real: u64, delay: u64) {
        let Some(count) = self.counts.get(&key_id) else { return };
        let soon = if count.units.is_pending() {
            None
        } else if !count.queue.is_empty() {
            Some(real + delay)
        } else {
            count.units.is_dirty().then(|| (real + delay).max(count.paused_until()))
        };
        let kept_until = count.is_idle().then(|| count.units.kept_until());
        let later = [count.units.next_statement(), count.units.alive_until(), kept_until];
        let later = later.into_iter().flatten().min().filter(|_| !count.units.is_pending());
        self.later.plan(key_id, later);
        match soon {
            Some(at) => self.soon.plan_by(key_id, at),
            None => self.soon.plan(key_id, None),
        }
    }
}

/// Returns whether a call can share a request with others that have only its count of calls in flight in common.
fn can_mix(
    wants: &[Want],
    want: &Want,
    charges: &[Arc<Charge>],
    slot_of: impl Fn(&Charge) -> u16,
) -> bool {
    // It takes units from each of its counts, and from one of calls in flight.
    let is_mixable = |it: &Want| {
        let takes_all = it.calls.runs[0].costs.iter().all(|cost| *cost > 0);
        takes_all && !it.is_alone && slots_of(&it.calls.charges).count() == 1
    };
    let is_known = |charge: &Arc<Charge>| {
        let known = place_of(charge, charges).map(|place| is_equal(&charges[place], charge));
        known.unwrap_or(charge.statement.is_none())
    };
    let mut all = charges.iter().chain(&want.calls.charges);
    wants.len() < MAX_MIXED
        && is_mixable(&wants[0])
        && is_mixable(want)
        && want.calls.charges.iter().all(is_known)
        && all.all(|charge| slot_of(charge) == slot_of(&charges[0]))
}

fn is_single(want: &Want) -> bool {
    want.calls.waited_us == 0 && want.calls.runs.len() == 1 && want.calls.runs[0].count == 1
}

/// Returns the costs of a single call for `charges`, which contain its counts.
fn costs_in(charges: &[Arc<Charge>], want: &Want) -> OneOrMany<u64> {
    let of = |charge: &Arc<Charge>| {
        place_of(charge, &want.calls.charges).map_or(0, |place| want.calls.runs[0].costs[place])
    };
    charges.iter().map(of).collect()
}

/// Returns the place of the count of a charge among others.
fn place_of(charge: &Charge, charges: &[Arc<Charge>]) -> Option<usize> {
    charges.iter().position(|it| it.key_id == charge.key_id)
}

/// Returns whether calls take from the same counts under the same amounts.
fn have_equal_counts(one: &[Arc<Charge>], other: &[Arc<Charge>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
}

fn is_equal(one: &Charge, other: &Charge) -> bool {
    one.key_id == other.key_id && one.terms == other.terms && one.count_name == other.count_name
}
