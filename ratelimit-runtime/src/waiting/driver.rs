//! Drives lines: sends their requests, gives units back, and wakes their calls.
//!
//! One task of the background thread looks at each line when its time has come, so that no call depends on the runtime
//! of another call, nor on being polled itself. It wakes a call at its moment, and at the end of its wait. Requests to
//! the embedded store need no connection: there, the thread that changes a line drives it at once as well.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep_until, timeout_at};

use super::line::{Asked, Duty, Now, ReturnedGrant, WakeTimes};
use super::{SharedLine, Ticket, Waiting};
use crate::algorithm::Correction;
use crate::background::{PendingWork, lock_own};
use crate::clock::{Clock, before};
use crate::limit::Name;
use crate::owner::{Agenda, ended, foreign, send};
use crate::reply::StoreError;
use crate::report::{self, Started, WaitEnd};
use crate::store::Reply;
use crate::threads::lock;

/// The most lines that the task drives before other tasks of its thread run.
const DRIVEN_AT_ONCE: usize = 64;

impl Waiting {
    pub(super) fn clock(&self) -> &Clock {
        self.backend.clock()
    }

    pub(super) fn now(&self) -> Now {
        Now { local: self.clock().steady(), real: Instant::now() }
    }

    /// Acts on a change of a line.
    pub(super) fn drive(self: &Arc<Self>, line: &Arc<SharedLine>) {
        line.wake_calls();
        let wake = if line.spec.is_shared { Some(WakeTimes::now()) } else { self.drive_line(line) };
        self.plan(line, wake);
    }

    /// Makes the task look at a line at these times, or before; without times, now if it would look later.
    fn plan(self: &Arc<Self>, line: &Arc<SharedLine>, wake: Option<WakeTimes>) {
        let (id, mut due) = (Arc::as_ptr(line) as usize, lock_own(&self.due));
        if wake.is_none() && !due.lines.contains_key(&id) {
            return;
        }
        // The last call may have left since the line was driven.
        let wake = wake.filter(|_| !lock(&line.line).is_empty()).unwrap_or_else(WakeTimes::now);
        let next = due.next();
        due.lines.entry(id).or_insert_with(|| Arc::clone(line));
        if let Some(at) = wake.local {
            due.local.plan_by(id, at);
        }
        if let Some(at) = wake.real {
            due.real.plan_by(id, at);
        }
        if due.next() != next {
            due.changed.notify_one();
        }
        let driver = (!mem::replace(&mut due.is_driven, true)).then(|| LineDriver::new(self));
        drop(due);
        if let Some(driver) = driver {
            self.backend.background.spawn(driver.run());
        }
    }

    /// Records that units could not be given back. They leave the window or drain as if they had been used. Only a
    /// shutdown reports the error.
    fn record_loss(&self, error: Option<StoreError>) {
        if error.is_some() && lock_own(&self.lines).is_shut_down {
            *lock(&self.lost) = error;
        }
    }

    /// Drives a line until it waits. Returns when to look again without a change; `None` if there is nothing left to
    /// do.
    fn drive_line(self: &Arc<Self>, line: &Arc<SharedLine>) -> Option<WakeTimes> {
        loop {
            let others_return = line.spec.is_shared && self.others_return(line);
            let duty = lock(&line.line).duty(others_return, self.now());
            line.wake_calls();
            match duty {
                Duty::Request(asked) if line.spec.is_shared => self.ask(line, *asked),
                Duty::Request(asked) => {
                    let reply = self.backend.execute_here(&asked.request);
                    lock(&line.line).replied(*asked, reply, self.now());
                }
                Duty::Return(returned) if line.spec.is_shared => self.give_back(line, returned),
                Duty::Return(returned) => self.give_back_here(line, returned),
                Duty::FollowRules => self.follow_rules(),
                Duty::Sleep(wake) => return Some(wake),
                Duty::Rest => {
                    self.remove_if_empty(line);
                    return None;
                }
            }
        }
    }

    /// Gives grants back to the embedded store.
    fn give_back_here(&self, line: &Arc<SharedLine>, returned: Vec<ReturnedGrant>) {
        for (_, charge, charged) in returned {
            let correction = Correction::give_back(charged, charge.cost);
            self.backend.local().correct((&*charge).into(), correction);
        }
        lock(&line.line).returned();
        // Other lines ask once all of it is back.
        for count in &line.spec.counts {
            self.backend.notices.released(count.key_id);
        }
    }

    /// Returns whether other lines of the same bucket are giving moments back: `line` would reserve moments behind
    /// these. Drives the lines that have moments to give back.
    fn others_return(self: &Arc<Self>, line: &Arc<SharedLine>) -> bool {
        let Some(key_id) = line.spec.bucket() else { return false };
        let (now, mut are_returning) = (self.now(), false);
        for other in self.lines_of(key_id).iter().filter(|other| !Arc::ptr_eq(other, line)) {
            let inner = lock(&other.line);
            let has_returns = inner.has_returns(now);
            are_returning |= inner.is_returning(now);
            drop(inner);
            if has_returns {
                self.drive(other);
            }
        }
        are_returning
    }

    /// Sends a request. If the store fails, applies `on_error` to the calls.
    fn ask(self: &Arc<Self>, line: &Arc<SharedLine>, asked: Asked) {
        let (waiting, policy, request) = (Arc::clone(self), line.policy, asked.request.clone());
        let reply = async move {
            let _place = waiting.asking.acquire().await;
            // Boxed, so that a request that waits for its place does not keep room for it (`tests/waiting_memory.rs`).
            Box::pin(waiting.backend.try_execute(policy, &request)).await
        };
        let (waiting, line) = (Arc::clone(self), Arc::clone(line));
        send(reply, move |result| {
            waiting.answered(&line, asked, result.unwrap_or_else(|| Err(ended())));
            waiting.drive(&line);
        });
    }

    fn answered(&self, line: &SharedLine, mut asked: Asked, result: Result<Reply, StoreError>) {
        let error = match result {
            Ok(reply) => return lock(&line.line).replied(asked, reply, self.now()),
            Err(error) => error,
        };
        let asked = lock(&line.line).failed(&mut asked, &error, self.now());
        if let Some(asked) = asked {
            let reply = self.backend.apply_share(&asked.request);
            lock(&line.line).replied(asked, reply, self.now());
        }
    }

    /// Gives grants back. The owner sends later what Redis does not execute in time.
    fn give_back(self: &Arc<Self>, line: &Arc<SharedLine>, returned: Vec<ReturnedGrant>) {
        let (waiting, line, pending) = (Arc::clone(self), Arc::clone(line), self.pending.begin());
        let returned = returned.into_iter().map(|(source, charge, charged)| {
            self.backend.give_back(line.policy.scope, source, charge, charged)
        });
        // All of them are queued now, so that they leave together, and share a deadline.
        let (returned, deadline) = (returned.collect::<Vec<_>>(), self.backend.settings.deadline);
        let by = tokio::time::Instant::now() + deadline;
        let loss = async move {
            let mut loss = None;
            for returned in returned {
                let late = StoreError::Timeout { deadline };
                let result = timeout_at(by, returned).await.unwrap_or(Err(late));
                loss = result.err().or(loss);
            }
            loss
        };
        send(loss, move |loss| {
            waiting.record_loss(loss.unwrap_or_else(|| Some(ended())));
            lock(&line.line).returned();
            waiting.drive(&line);
            // Other lines of the bucket have waited for this.
            for other in line.spec.bucket().map_or_else(Vec::new, |key_id| waiting.lines_of(key_id))
            {
                waiting.drive(&other);
            }
            drop(pending);
        });
    }
}

impl SharedLine {
    /// Wakes the calls that have changed. The line is not locked: a waker is foreign code.
    fn wake_calls(&self) {
        self.waking.fetch_add(1, Ordering::SeqCst);
        let wakers = lock(&self.line).take_wakers();
        for waker in wakers {
            foreign(|| waker.wake());
        }
        self.waking.fetch_sub(1, Ordering::SeqCst);
    }

    /// Ends the calls, because nothing drives the line.
    fn abandon(&self) {
        lock(&self.line).abandon(&ended());
        self.wake_calls();
    }

    /// Returns whether the line would do nothing before the clock of the limiter moves; for tests.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        let line = lock(&self.line);
        line.is_idle(now) && !line.has_wakers() && self.waking.load(Ordering::SeqCst) == 0
    }
}

/// The lines that the task looks at, by their addresses.
#[derive(Default)]
pub(super) struct DueLines {
    lines: HashMap<usize, Arc<SharedLine>>,
    /// When it looks at them, by both clocks.
    local: Agenda<u64, usize>,
    real: Agenda<Instant, usize>,
    /// Whether the task runs.
    is_driven: bool,
    /// Notified when the task must look earlier.
    changed: Arc<Notify>,
}

impl DueLines {
    /// Returns the time of the next look.
    fn next(&self) -> WakeTimes {
        WakeTimes { local: self.local.first(), real: self.real.first() }
    }

    /// Takes a line whose time has come.
    fn take(&mut self, now: Now) -> Option<Arc<SharedLine>> {
        let id = self.local.take_due(now.local).or_else(|| self.real.take_due(now.real))?;
        self.local.plan(id, None);
        self.real.plan(id, None);
        self.lines.remove(&id)
    }
}

/// The task of the background thread that drives lines, until none has anything to do.
struct LineDriver {
    waiting: Arc<Waiting>,
    has_ended: bool,
    _pending: PendingWork,
}

impl LineDriver {
    fn new(waiting: &Arc<Waiting>) -> Self {
        let (waiting, pending) = (Arc::clone(waiting), waiting.pending.begin());
        Self { waiting, has_ended: false, _pending: pending }
    }

    async fn run(mut self) {
        let mut driven = 0;
        loop {
            let now = self.waiting.now();
            let (line, next, changed) = {
                let mut due = lock_own(&self.waiting.due);
                if due.lines.is_empty() {
                    due.is_driven = false;
                    self.has_ended = true;
                    return;
                }
                (due.take(now), due.next(), Arc::clone(&due.changed))
            };
            let Some(line) = line else {
                self.sleep(next, &changed).await;
                continue;
            };
            let drive = || self.waiting.drive_line(&line);
            // The panic hook has reported a panic.
            let wake = catch_unwind(AssertUnwindSafe(drive)).unwrap_or_else(|_| {
                line.abandon();
                None
            });
            self.waiting.plan(&line, wake);
            driven += 1;
            if driven % DRIVEN_AT_ONCE == 0 {
                yield_now().await;
            }
        }
    }

    /// Sleeps until a line has something to do.
    async fn sleep(&self, next: WakeTimes, changed: &Notify) {
        let local = async {
            match next.local {
                Some(at) => self.waiting.clock().sleep_until_steady(at).await,
                None => pending().await,
            }
        };
        let real = async {
            match next.real {
                Some(at) => sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        before(local, before(real, changed.notified())).await;
    }
}

impl Drop for LineDriver {
    /// Ends the calls if the thread could not start, or has ended: nothing else would wake them.
    fn drop(&mut self) {
        if !self.has_ended {
            let due = mem::take(&mut **lock_own(&self.waiting.due));
            due.lines.into_values().for_each(|line| line.abandon());
        }
    }
}

pub(super) struct WaitingCall {
    waiting: Arc<Waiting>,
    ticket: Arc<Ticket>,
    has_ended: bool,
    /// The name under which the wait is reported, and its start; `None` before the first poll is pending.
    waits: Option<(Name, Started)>,
}

impl WaitingCall {
    /// Creates the future of a call that has entered a line.
    pub(super) fn new(waiting: Arc<Waiting>, ticket: Arc<Ticket>) -> Self {
        Self { waiting, ticket, has_ended: false, waits: None }
    }

    /// Completes once the call is decided. The result is `None` if rules decide the call.
    pub(super) async fn ended(mut self) -> Option<Result<Reply, StoreError>> {
        let clock = self.waiting.clock().clone();
        loop {
            // A program that moves a virtual clock expects that the calls see it at once.
            let moved = clock.moved();
            let decided = before(moved, poll_fn(|context| self.poll(context))).await;
            if let Some(result) = decided {
                return result;
            }
        }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Option<Result<Reply, StoreError>>> {
        loop {
            let Some(line) = self.ticket.line() else { return Poll::Ready(None) };
            let result = self.poll_line(&line, context);
            if let Poll::Ready(result) = result {
                self.has_ended = true;
                self.record(match &result {
                    Ok(reply) if reply.is_allowed() => WaitEnd::Admitted,
                    Ok(_) => WaitEnd::Rejected,
                    Err(_) => WaitEnd::Failed,
                });
                return Poll::Ready(Some(result));
            }
            if !self.ticket.line().is_some_and(|present| Arc::ptr_eq(&present, &line)) {
                // Moved before its line had this waker.
                continue;
            }
            if self.waits.is_none() {
                self.waits = Some((line.name, report::wait_started(&line.name)));
            }
            return Poll::Pending;
        }
    }

    fn record(&mut self, end: WaitEnd) {
        if let Some((name, started)) = self.waits.take() {
            report::wait_ended(&name, &started, end);
        }
    }

    /// Polls the call in its line, and drives the line if that is due: also if this call has ended, because the next
    /// one may never be polled.
    fn poll_line(
        &self,
        shared: &Arc<SharedLine>,
        context: &Context<'_>,
    ) -> Poll<Result<Reply, StoreError>> {
        let (arrival, now) = (self.ticket.arrival, self.waiting.now());
        let mut line = lock(&shared.line);
        let result = line.poll(arrival, context.waker(), now);
        let (has_duty, look) = (line.has_duty(now), line.first_look());
        drop(line);
        if !has_duty {
            shared.wake_calls();
            if look.is_some() {
                self.waiting.plan(shared, Some(WakeTimes { local: look, real: None }));
            }
            return result;
        }
        self.waiting.drive(shared);
        if shared.spec.is_shared || result.is_ready() {
            return result;
        }
        lock(&shared.line).poll(arrival, context.waker(), self.waiting.now())
    }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        if !self.has_ended {
            self.record(WaitEnd::Dropped);
        }
        self.waiting.calls.fetch_sub(1, Ordering::Relaxed);
        let Some(shared) = lock(&self.ticket.place).line.take() else { return };
        let is_deserted = {
            let mut line = lock(&shared.line);
            if !self.has_ended {
                line.leave(self.ticket.arrival);
            }
            line.is_deserted()
        };
        // The last call gives back the units that no call has taken. Before it, the task does, so that calls that are
        // dropped together cost little; but a program that moves a virtual clock expects to see it at once.
        if is_deserted || !self.has_ended && self.waiting.clock().is_virtual() {
            self.waiting.drive(&shared);
            self.waiting.remove_if_empty(&shared);
        } else if !self.has_ended {
            self.waiting.plan(&shared, Some(WakeTimes::now()));
        }
    }
}
