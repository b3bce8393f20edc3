//! Plays steps: a line, its driver and its store.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::super::ReturnedGrant;
use super::super::waiters::Stage;
use super::super::{Asked, Duty, Line, LineSpec, Now, Waiter};
use super::{Action, Fault, Lines, ORDER, RESTS};
use crate::algorithm::{Correction, Op, Outcome};
use crate::clock::{Clock, VirtualClock};
use crate::key::{KeyId, OwnedKey};
use crate::limit::{Access, Limit, OnError};
use crate::local::Local;
use crate::reply::{Source, StoreError};
use crate::store::{Calls, Charge, Reply};
use crate::waiting::{Destination, OwnedPart, Ticket};

/// The length of a step of time.
pub(super) const TICK: Duration = Duration::from_millis(500);
const START: Duration = Duration::from_secs(1_000_000);
/// How long a grant is valid, and a request takes at most.
pub(super) const VALIDITY: Duration = Duration::from_secs(1);

/// A call that waits, or has waited.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) deadline: u64,
    pub(super) woken: Arc<Woken>,
    /// Whether it was not polled in its turn.
    pub(super) was_asleep: bool,
    pub(super) end: Option<End>,
}

/// Whether a call was woken since its last poll.
#[derive(Debug, Default)]
pub(super) struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Admitted(u64),
    Rejected,
    Dropped,
}

/// A line, its driver and its store, as a step after the other makes them.
pub(super) struct Play {
    pub(super) model: Lines,
    pub(super) line: Line,
    pub(super) charge: Arc<Charge>,
    pub(super) limit: Limit,
    pub(super) store: Local,
    pub(super) clock: VirtualClock,
    /// What the store has executed.
    pub(super) log: String,
    pub(super) pending: Option<Asked>,
    pub(super) reply: Option<Reply>,
    /// The pending give-backs, each with its requests.
    pub(super) returns: Vec<Vec<ReturnedGrant>>,
    pub(super) calls: Vec<Call>,
    /// The units that are taken: by calls, by other processes, and by replies that were lost.
    pub(super) taken_elsewhere: Vec<u64>,
    /// The units that requests of the line have taken from the store, without those of lost replies.
    pub(super) charged: usize,
    /// The units that the line has given back to the store.
    pub(super) given_back: usize,
    pub(super) ticks: usize,
    pub(super) drops: usize,
    pub(super) lost: usize,
    pub(super) foreign: usize,
    pub(super) resets: usize,
    pub(super) mistakes: Vec<&'static str>,
}

static BASE: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Play {
    pub(super) fn new(model: Lines) -> Self {
        let second = Duration::from_secs(1);
        let limit = if model.is_bucket {
            Limit::token_bucket("line", 1, second)
        } else {
            Limit::sliding("line", 1, second)
        };
        let terms = *limit.terms();
        let key_id = KeyId::new(terms.identity(), 0);
        let charge =
            Arc::new(Charge { terms, key_id, count_name: Vec::new(), cost: 1, statement: None });
        let spec = Arc::new(destination(&charge).line);
        let clock = VirtualClock::at(START);
        Self {
            model,
            line: Line::new(spec),
            charge,
            limit,
            store: Local::new(64, Clock::Virtual(clock.clone())),
            clock,
            log: String::new(),
            pending: None,
            reply: None,
            returns: Vec::new(),
            calls: Vec::new(),
            taken_elsewhere: Vec::new(),
            charged: 0,
            given_back: 0,
            ticks: 0,
            drops: 0,
            lost: 0,
            foreign: 0,
            resets: 0,
            mistakes: Vec::new(),
        }
    }

    pub(super) fn now(&self) -> Now {
        let passed = self.clock.now().saturating_sub(START);
        Now { local: self.clock.now().as_micros() as u64, real: *BASE + passed }
    }

    fn execute(&mut self, calls: &Calls) -> Reply {
        let _ = write!(self.log, "{:?} {calls:?};", self.clock.now());
        self.store.apply(calls, Source::Redis)
    }

    /// Does what the driver does without waiting for the store.
    fn drive(&mut self) {
        for _ in 0..100 {
            let duty = self.line.duty(false, self.now());
            let wakers = self.line.take_wakers().into_iter();
            let is_woken = self.model.fault != Some(Fault::CallsAreNotWoken);
            wakers.filter(|_| is_woken).for_each(Waker::wake);
            match duty {
                Duty::Request(asked) => self.pending = Some(*asked),
                Duty::Return(returned) => self.returns.push(returned),
                Duty::FollowRules => {}
                Duty::Sleep(_) | Duty::Rest => {
                    let waiters = self.line.waiters.iter();
                    for (arrival, _) in
                        waiters.filter(|(_, it)| matches!(it.stage(), Stage::Asleep))
                    {
                        self.calls[arrival as usize].was_asleep = true;
                    }
                    return;
                }
            }
        }
        self.mistakes.push(RESTS);
    }

    fn poll(&mut self, index: usize) {
        let (now, arrival, call) = (self.now(), index as u64, &mut self.calls[index]);
        call.woken.0.store(false, Relaxed);
        let waker = Waker::from(Arc::clone(&call.woken));
        match self.line.poll(arrival, &waker, now) {
            Poll::Pending => {}
            Poll::Ready(result) => {
                let is_admitted = result.is_ok_and(|reply| reply.is_allowed());
                call.end = Some(if is_admitted { End::Admitted(now.local) } else { End::Rejected });
                // Calls before it that were polled whenever they were woken have their moments before it.
                let is_overtaken = |(arrival, call): (usize, &Call)| {
                    let waiter = self.line.waiters.get(arrival as u64);
                    let queues = |it: &Waiter| {
                        it.pinged.is_none() && matches!(it.stage(), Stage::Queued | Stage::Asked)
                    };
                    !call.was_asleep && waiter.is_some_and(queues)
                };
                if is_admitted && self.calls[..index].iter().enumerate().any(is_overtaken) {
                    self.mistakes.push(ORDER);
                }
            }
        }
    }

    pub(super) fn is_due(&self, index: usize) -> bool {
        let call = &self.calls[index];
        call.end.is_none() && call.woken.0.load(Relaxed)
    }

    pub(super) fn step(&mut self, action: Action) {
        let now = self.now();
        match action {
            Action::Arrive(ticks) => {
                let arrival = self.calls.len() as u64;
                let limit = self.limit.wait(TICK * u32::from(ticks));
                let part =
                    OwnedPart { limit, key: OwnedKey::of(&()), cost: 1, access: Access::Limited };
                let ticket = Ticket::new(vec![part].into(), false, arrival, now.local);
                self.calls.push(Call {
                    deadline: ticket.deadline,
                    woken: Arc::default(),
                    was_asleep: false,
                    end: None,
                });
                let to = destination(&self.charge);
                self.line.enter(Waiter::new(ticket, OnError::Deny), &to, now);
                self.poll(self.calls.len() - 1);
            }
            Action::Poll(index) => self.poll(index),
            Action::Drop(index) => {
                self.drops += 1;
                let passing = self.line.passing.len();
                self.line.leave(index as u64);
                match self.model.fault {
                    Some(Fault::GrantIsNotGivenBack) => self.line.passing.truncate(passing),
                    Some(Fault::GrantIsGivenBackTwice) => {
                        self.line.passing.extend_from_within(passing..);
                    }
                    Some(Fault::GrantIsUsedTwice) => {
                        let copies = self.line.passing[passing..].iter();
                        let copies: Vec<_> = copies.map(|(_, grant)| grant.clone()).collect();
                        self.line.spares.extend(copies);
                    }
                    _ => {}
                }
                self.calls[index].end = Some(End::Dropped);
            }
            Action::Execute => {
                let Some(asked) = &self.pending else { return };
                let request = asked.request.clone();
                let reply = self.execute(&request);
                // A moment that is given up for another one is not charged any more.
                let has_given_up = !reply.outcomes.is_empty() && !reply.first().is_blocked();
                let given_up = request.replaces.is_some() && has_given_up;
                self.given_back += usize::from(given_up);
                self.charged += admitted(&reply).count();
                self.reply = Some(reply);
            }
            Action::Deliver => {
                let (Some(asked), Some(reply)) = (self.pending.take(), self.reply.take()) else {
                    return;
                };
                let first = self.line.waiters.first();
                let first = first.filter(|_| self.model.fault == Some(Fault::FirstCallQueuesAgain));
                first.and_then(|first| self.line.waiters.set(first, Stage::Asleep));
                self.line.replied(asked, reply, now);
                first.and_then(|first| self.line.queue(first));
            }
            Action::Lose => {
                self.lost += 1;
                let (Some(mut asked), Some(reply)) = (self.pending.take(), self.reply.take())
                else {
                    return;
                };
                let admitted = admitted(&reply);
                self.charged -= admitted.clone().count();
                self.taken_elsewhere
                    .extend(admitted.map(|outcome| outcome.clock + outcome.retry_us));
                if self.model.fault == Some(Fault::FailureIsNotRecorded) {
                    return;
                }
                let error = StoreError::Timeout { deadline: VALIDITY };
                let here = self.line.failed(&mut asked, &error, now);
                debug_assert!(here.is_none(), "no call falls back to this process");
            }
            Action::GiveBack => {
                for (_, charge, charged) in self.returns.remove(0) {
                    let _ = write!(self.log, "{:?} {charged:?};", self.clock.now());
                    let correction = Correction::give_back(charged, charge.cost);
                    self.store.correct((&*charge).into(), correction);
                    self.given_back += charge.cost as usize;
                }
                self.line.returned();
                self.line.record_give_back(self.charge.key_id);
            }
            Action::TakeForeign => {
                self.foreign += 1;
                let charges = vec![Arc::clone(&self.charge)].into();
                let reply = self.execute(&Calls::one(Op::TAKE, charges));
                if reply.is_allowed() {
                    self.taken_elsewhere.push(now.local);
                }
            }
            Action::Reset => {
                self.resets += 1;
                self.log.push_str("reset;");
                self.store.remove(self.charge.key_id);
                self.line.record_reset_or_block(now);
            }
            Action::Tick => {
                self.ticks += 1;
                self.clock.advance(TICK);
            }
        }
        self.drive();
    }

    pub(super) fn enabled(&self) -> Vec<Action> {
        let model = self.model;
        let mut actions = Vec::new();
        if self.calls.len() < model.calls {
            actions.extend([Action::Arrive(2), Action::Arrive(4)]);
        }
        actions.extend((0..self.calls.len()).filter(|index| self.is_due(*index)).map(Action::Poll));
        if self.drops < model.drops {
            let waits = |index: &usize| self.calls[*index].end.is_none();
            actions.extend((0..self.calls.len()).filter(waits).map(Action::Drop));
        }
        match (&self.pending, &self.reply) {
            (Some(_), None) => actions.push(Action::Execute),
            (Some(_), Some(_)) => {
                actions.push(Action::Deliver);
                if self.lost < model.lost {
                    actions.push(Action::Lose);
                }
            }
            (None, _) => {}
        }
        if !self.returns.is_empty() {
            actions.push(Action::GiveBack);
        }
        if self.foreign < model.foreign {
            actions.push(Action::TakeForeign);
        }
        if self.resets < model.resets {
            actions.push(Action::Reset);
        }
        if self.ticks < model.ticks {
            actions.push(Action::Tick);
        }
        actions
    }
}

/// Returns the line of a call of the count.
fn destination(charge: &Arc<Charge>) -> Destination {
    let line = LineSpec {
        counts: vec![Arc::clone(charge)].into(),
        is_shared: true,
        is_blocked: false,
        is_virtual: true,
        validity: VALIDITY,
    };
    Destination { line, changes_at: None }
}

/// Returns the outcomes of the admitted calls of a request.
fn admitted(reply: &Reply) -> impl Iterator<Item = &Outcome> + Clone {
    reply.outcomes.iter().filter(|outcome| outcome.is_allowed())
}
