//! The corrections that wait for the shared store, as a plain value: no clock, no lock, no I/O. `models/` checks it.
//!
//! A lane has the corrections of one hash slot, and one request of a lane is pending at a time: a second one would only
//! wait behind the first in the server, and might fail. Corrections of one key keep their order, except that a block
//! passes settlements and give-backs, and is not sent once the key is unblocked. A correction that was certainly not
//! executed stays in its lane, which pauses. After a request without a reply, the lane first sends one that corrects
//! nothing, so that a server that stands still does not lose what waits.

#[cfg(model)]
#[path = "../../../models/src/corrections/mod.rs"]
pub mod model;

use std::collections::{BTreeMap, VecDeque};
use std::mem;

use super::agenda::Agenda;
use crate::algorithm::BlockChange;
use crate::key::KeyId;
use crate::reply::StoreError;
use crate::store::{Failure, MAX_CORRECTED};

/// The most corrections that wait for one server. As many blocks again wait at most.
pub(super) const MAX_WAITING: usize = 65_536;

/// The most requests that are pending.
const MAX_REQUESTS: usize = 64;

/// How long a lane pauses after a failure, in microseconds: so much later are corrections sent at most when a server
/// answers again.
pub(super) const PAUSE: u64 = 200_000;

/// A correction in a lane.
pub(super) trait Queueable {
    fn key_id(&self) -> KeyId;

    fn kind(&self) -> Kind;

    /// Returns the change of the block of the key. Once it is unblocked, blocks that wait need not be sent.
    fn block(&self) -> BlockChange;

    /// Returns whether something is left to correct at `now`, by the clock of the limiter.
    fn is_due(&self, now: u64) -> bool;
}

/// What a lane does with a correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Units that go back. The first that a full lane drops.
    GiveBack,
    /// A settlement that is more than a give-back.
    Settlement,
    /// Passes give-backs and settlements.
    Block,
    /// A caller waits for it: it ends with the first failure, and is sent during a pause. It passes corrections of
    /// other keys.
    Awaited,
}

/// What a lane has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// Its [corrections](Corrections::sent).
    Corrections,
    /// A request that corrects nothing, in the place of a correction that waits.
    Probe,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Corrections<E> {
    lanes: BTreeMap<u16, Lane<E>>,
    /// The lanes that have something to send and no pending request, by the real time from which they send.
    agenda: Agenda<u16>,
    /// How many requests are pending.
    requests: usize,
    /// How many corrections wait for each server, and how many blocks.
    waiting: BTreeMap<usize, [usize; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lane<E> {
    /// The server of the hash slot when the lane began.
    server: usize,
    /// Blocks and what callers wait for: sent before the others.
    first: VecDeque<E>,
    rest: VecDeque<E>,
    /// How many corrections of each kind are in `rest`.
    kinds: [usize; 4],
    /// What the pending request has. What was not executed comes back: blocks to `first`, and all else to `rest`.
    sent: Option<Vec<E>>,
    /// The end of the pause after the last request, if that was not executed.
    paused_until: u64,
    /// Whether the last request had no reply.
    is_silent: bool,
}

impl<E: Queueable> Corrections<E> {
    /// Adds a correction of a hash slot at the real time `real`. If too many wait for the server, returns one that is
    /// lost: this one, or an earlier give-back in its place. Adds to `left` what need not be sent any more.
    pub(super) fn add(
        &mut self,
        slot: u16,
        server: usize,
        added: E,
        real: u64,
        left: &mut Vec<E>,
    ) -> Option<E> {
        let lane = self.lanes.entry(slot).or_insert_with(|| Lane::new(server));
        let (kind, mut lost) = (added.kind(), None);
        let waiting = self.waiting.entry(lane.server).or_default();
        if matches!(added.block(), BlockChange::Unblock | BlockChange::Reset) {
            let is_undone = |it: &E| it.kind() == Kind::Block && it.key_id() == added.key_id();
            let first = mem::take(&mut lane.first).into_iter();
            let (undone, kept): (Vec<_>, Vec<_>) = first.partition(is_undone);
            lane.first = kept.into();
            waiting[index_of(Kind::Block)] -= undone.len();
            left.extend(undone);
        }
        if waiting[index_of(kind)] < MAX_WAITING {
            waiting[index_of(kind)] += 1;
        } else {
            lost = if kind == Kind::Settlement { lane.take_give_back() } else { None };
            if lost.is_none() {
                self.plan(slot, real, false);
                return Some(added);
            }
        }
        let is_first = lane.lets_pass(&added);
        if is_first {
            lane.first.push_back(added);
        } else {
            lane.count(&added, true);
            lane.rest.push_back(added);
        }
        self.plan(slot, real, kind == Kind::Awaited && is_first);
        lost
    }

    /// Begins the next request, if one is due: returns its hash slot, and adds to `left` what has nothing left to
    /// correct. `now` is the time of the limiter.
    pub(super) fn next(&mut self, now: u64, real: u64, left: &mut Vec<E>) -> Option<(u16, Sent)> {
        while self.requests < MAX_REQUESTS
            && let Some(slot) = self.agenda.take_due(real)
        {
            let Some(lane) = self.lanes.get_mut(&slot) else { continue };
            let before = left.len();
            let sent = lane.take(now, real, left);
            let waiting = self.waiting.entry(lane.server).or_default();
            for entry in &left[before..] {
                waiting[index_of(entry.kind())] -= 1;
            }
            if let Some(sent) = sent {
                self.requests += 1;
                return Some((slot, sent));
            }
            self.plan(slot, real, false);
        }
        None
    }

    /// Returns what the pending request of a hash slot corrects; for a probe, the correction in whose place it is.
    pub(super) fn sent(&self, slot: u16) -> impl Iterator<Item = &E> {
        let lane = self.lanes.get(&slot);
        let sent = lane.into_iter().flat_map(|lane| lane.sent.iter().flatten());
        let probed = lane.filter(|lane| lane.sent.as_ref().is_some_and(Vec::is_empty));
        let probed = probed.and_then(|lane| lane.first.front().or(lane.rest.front()));
        sent.chain(probed)
    }

    /// Ends the pending request of a hash slot. `results` has one result for each correction; a probe has one. Returns
    /// the corrections that are done.
    pub(super) fn replied<T>(
        &mut self,
        slot: u16,
        results: Vec<Result<T, Failure>>,
        real: u64,
    ) -> Vec<(E, Result<T, Failure>)> {
        let Some(lane) = self.lanes.get_mut(&slot) else { return Vec::new() };
        let Some(sent) = lane.sent.take() else { return Vec::new() };
        self.requests -= 1;
        lane.record(&results, real);
        let mut done = Vec::new();
        // The last one first, so that what comes back keeps its order.
        for (entry, result) in sent.into_iter().zip(results).rev() {
            match (result, entry.kind()) {
                (Err(Failure::NotExecuted(_)), Kind::Block) => lane.first.push_front(entry),
                (Err(Failure::NotExecuted(_)), Kind::GiveBack | Kind::Settlement) => {
                    lane.count(&entry, true);
                    lane.rest.push_front(entry);
                }
                (result, _) => done.push((entry, result)),
            }
        }
        done.reverse();
        let waiting = self.waiting.entry(lane.server).or_default();
        for (entry, _) in &done {
            waiting[index_of(entry.kind())] -= 1;
        }
        let is_awaited = lane.first.iter().any(|it| it.kind() == Kind::Awaited);
        self.plan(slot, real, is_awaited);
        done
    }

    /// Returns the real time at which a request is due without a reply or another correction.
    pub(super) fn next_wake(&self) -> Option<u64> {
        self.agenda.first().filter(|_| self.requests < MAX_REQUESTS)
    }

    /// Removes all corrections that wait and are not sent.
    pub(super) fn drain(&mut self) -> Vec<E> {
        let mut all = Vec::new();
        for lane in self.lanes.values_mut() {
            all.extend(lane.first.drain(..).chain(lane.rest.drain(..)));
            lane.kinds = Default::default();
        }
        self.agenda = Agenda::default();
        self.lanes.retain(|_, lane| lane.sent.is_some());
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Makes the agenda anew, after a panic.
    pub(super) fn begin_anew(&mut self, real: u64) {
        self.agenda = Agenda::default();
        self.requests = self.lanes.values().filter(|lane| lane.sent.is_some()).count();
        for slot in self.lanes.keys().copied().collect::<Vec<_>>() {
            self.plan(slot, real, false);
        }
    }

    /// Plans the next request of a lane, without its pause if `is_awaited`. Removes a lane that is done.
    fn plan(&mut self, slot: u16, real: u64, is_awaited: bool) {
        let Some(lane) = self.lanes.get_mut(&slot).filter(|lane| lane.sent.is_none()) else {
            return;
        };
        if !lane.first.is_empty() || !lane.rest.is_empty() {
            // A lane keeps its turn.
            self.agenda.plan_by(slot, if is_awaited { real } else { real.max(lane.paused_until) });
        } else {
            self.agenda.plan(slot, None);
            let server = self.lanes.remove(&slot).map_or(0, |lane| lane.server);
            if self.waiting.get(&server) == Some(&[0, 0]) {
                self.waiting.remove(&server);
            }
        }
    }
}

impl<E> Default for Corrections<E> {
    fn default() -> Self {
        let (lanes, agenda, requests, waiting) = Default::default();
        Self { lanes, agenda, requests, waiting }
    }
}

impl<E: Queueable> Lane<E> {
    fn new(server: usize) -> Self {
        let (first, rest, kinds, sent) = Default::default();
        Self { server, first, rest, kinds, sent, paused_until: 0, is_silent: false }
    }

    /// Counts a correction that comes to `rest`, or leaves it.
    fn count(&mut self, entry: &E, comes: bool) {
        let count = &mut self.kinds[entry.kind() as usize];
        *count = if comes { *count + 1 } else { *count - 1 };
    }

    /// Takes the oldest give-back.
    fn take_give_back(&mut self) -> Option<E> {
        let give_backs = &mut self.kinds[Kind::GiveBack as usize];
        *give_backs = give_backs.checked_sub(1)?;
        let index = self.rest.iter().position(|it| it.kind() == Kind::GiveBack)?;
        self.rest.remove(index)
    }

    /// Returns whether a correction may be sent before those in `rest`.
    fn lets_pass(&self, added: &E) -> bool {
        let is_of_key = |it: &E| it.key_id() == added.key_id();
        let sent = || self.sent.iter().flatten();
        match added.kind() {
            Kind::GiveBack | Kind::Settlement => false,
            Kind::Block | Kind::Awaited if matches!(added.block(), BlockChange::BlockFor(_)) => {
                let is_before = |it: &E| it.kind() == Kind::Awaited && is_of_key(it);
                self.kinds[Kind::Awaited as usize] == 0
                    || !self.rest.iter().chain(sent()).any(is_before)
            }
            Kind::Block | Kind::Awaited => !self.rest.iter().chain(sent()).any(is_of_key),
        }
    }

    /// Takes what is sent next; `None` if nothing is to be sent now. Adds to `left` what has nothing left to correct.
    fn take(&mut self, now: u64, real: u64, left: &mut Vec<E>) -> Option<Sent> {
        let is_paused = real < self.paused_until;
        if self.is_silent && !is_paused {
            self.sent = Some(Vec::new());
            return Some(Sent::Probe);
        }
        let (mut sent, mut skipped) = (Vec::new(), VecDeque::new());
        while sent.len() < MAX_CORRECTED {
            let first = self.first.pop_front();
            let is_first = first.is_some();
            let rest = if is_first || is_paused { None } else { self.rest.pop_front() };
            let Some(taken) = first.or(rest) else { break };
            let is_skipped = |it: &E| {
                it.kind() != Kind::Awaited
                    || skipped.iter().any(|before: &E| before.key_id() == it.key_id())
            };
            if is_paused && is_skipped(&taken) {
                skipped.push_back(taken);
                continue;
            }
            if !is_first {
                self.count(&taken, false);
            }
            if taken.is_due(now) {
                sent.push(taken);
            } else {
                left.push(taken);
            }
        }
        skipped.append(&mut self.first);
        self.first = skipped;
        (!sent.is_empty()).then(|| {
            self.sent = Some(sent);
            Sent::Corrections
        })
    }

    /// Records whether a request was executed.
    fn record<T>(&mut self, results: &[Result<T, Failure>], real: u64) {
        let is_silent = |it: &Result<T, _>| matches!(it, Err(Failure::NoReply(_)));
        let is_refused = |it: &Result<T, _>| matches!(it, Err(Failure::NotExecuted(_)));
        // A request that was not sent does not show that the server replies; a refusal does.
        let is_unsent = |it: &Result<T, Failure>| {
            let Err(Failure::NotExecuted(error)) = it else { return false };
            !matches!(error, StoreError::Server { .. })
        };
        self.is_silent =
            results.iter().any(is_silent) || self.is_silent && results.iter().any(is_unsent);
        let has_failed = self.is_silent || results.iter().any(is_refused);
        self.paused_until = if has_failed { real + PAUSE } else { 0 };
    }
}

/// Returns the place of a kind in the numbers of waiting corrections.
fn index_of(kind: Kind) -> usize {
    usize::from(kind == Kind::Block)
}
