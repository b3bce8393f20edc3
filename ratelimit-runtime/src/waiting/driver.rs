//! Drives lines: sends their requests, gives units back, and wakes their calls.
//!
//! One task of the background thread drives all lines of Redis, so that no call depends on the runtime of another call.
//! The first thread that comes drives a line of the embedded store: of a call that is polled or dropped, or of a caller
//! that gives units back.
//!
//! The future of a waiting call sleeps until its moment or the end of its wait, by timers of its own runtime.
//!
//! On the embedded store, the waiting calls drive their line: the first call that is polled when the line must act. The
//! timer of the first call is exact. The timers of the calls behind it are later, so that few calls wake for each
//! admission. If the first call is not polled, a call behind it drives the line, at most a second later.

use std::collections::HashMap;
use std::future::pending;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{sleep_until, timeout_at};

use super::line::{Asked, Duty, Now, ReturnedGrant, WakeTimes};
use super::{SharedLine, Ticket, Waiting, lock};
use crate::algorithm::Correction;
use crate::background::{PendingWork, lock_own};
use crate::clock::{Clock, before};
use crate::limit::Name;
use crate::owner::{Agenda, ended, foreign, send};
use crate::reply::StoreError;
use crate::report::{self, Started, WaitEnd};
use crate::store::Reply;

/// The most lines that the task drives before other tasks of its thread run.
const DRIVEN_AT_ONCE: usize = 64;

impl Waiting {
    pub(super) fn clock(&self) -> &Clock {
        self.backend.clock()
    }

    pub(super) fn now(&self) -> Now {
        Now { local: self.clock().steady(), real: Instant::now() }
    }

    /// Lets the driver of a line act on a change.
    pub(super) fn drive(self: &Arc<Self>, line: &Arc<SharedLine>) {
        if !line.is_shared() {
            self.drive_here(line);
            self.remove_if_empty(line);
            return;
        }
        line.wake_calls();
        let mut due = lock_own(&self.due);
        due.lines.insert(id_of(line), Arc::clone(line));
        due.changed.notify_one();
        let driver = (!mem::replace(&mut due.is_driven, true)).then(|| LineDriver::new(self));
        drop(due);
        if let Some(driver) = driver {
            self.backend.background().spawn(driver.run());
        }
    }

    /// Records that units could not be given back. They leave the window or drain as if they had been used. Only a
    /// shutdown reports the error.
    fn record_loss(&self, error: Option<StoreError>) {
        if error.is_some() && lock_own(&self.lines).is_shut_down {
            *lock(&self.lost) = error;
        }
    }

    /// Drives a line of the embedded store, on this thread. Returns when the line must be driven next.
    fn drive_here(self: &Arc<Self>, line: &Arc<SharedLine>) -> WakeTimes {
        loop {
            let duty = lock(&line.line).duty(false, self.now());
            let wake = match duty {
                Duty::Request(asked) => {
                    let reply = self.backend.execute_here(&asked.request);
                    lock(&line.line).replied(*asked, reply, self.now());
                    continue;
                }
                Duty::Return(returned) => {
                    for (_, charge, charged) in returned {
                        let correction = Correction::give_back(charged, charge.cost);
                        self.backend.local().correct((&*charge).into(), correction);
                    }
                    let mut inner = lock(&line.line);
                    inner.returned();
                    let counts: Vec<_> = inner.counts().iter().map(|count| count.key_id).collect();
                    drop(inner);
                    // Other lines ask once all of it is back.
                    for key_id in counts {
                        self.backend.notices().released(key_id);
                    }
                    continue;
                }
                Duty::FollowRules => {
                    self.follow_rules();
                    continue;
                }
                Duty::Sleep(wake) => wake,
                Duty::Rest => WakeTimes::default(),
            };
            line.wake_calls();
            return wake;
        }
    }

    /// Drives a line of Redis, on the background thread. Returns when to look again without a change; `None` if there
    /// is nothing left to do.
    fn drive_shared(self: &Arc<Self>, line: &Arc<SharedLine>) -> Option<WakeTimes> {
        loop {
            let others_return = self.others_return(line);
            let duty = lock(&line.line).duty(others_return, self.now());
            line.wake_calls();
            match duty {
                Duty::Request(asked) => self.ask(line, *asked),
                Duty::Return(returned) => self.give_back(line, returned),
                Duty::FollowRules => self.follow_rules(),
                Duty::Sleep(wake) => return Some(wake),
                Duty::Rest => {
                    self.remove_if_empty(line);
                    return None;
                }
            }
        }
    }

    /// Returns whether other lines of the same bucket are giving moments back: `line` would reserve moments behind
    /// these. Drives the lines that have moments to give back.
    fn others_return(self: &Arc<Self>, line: &Arc<SharedLine>) -> bool {
        let Some(key_id) = lock(&line.line).bucket() else { return false };
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
            self.backend.give_back(line.policy.scope(), source, charge, charged)
        });
        // All of them are queued now, so that they leave together, and share a deadline.
        let (returned, deadline) = (returned.collect::<Vec<_>>(), self.backend.deadline());
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
            let bucket = {
                let mut inner = lock(&line.line);
                inner.returned();
                inner.bucket()
            };
            waiting.drive(&line);
            // Other lines of the bucket have waited for this.
            for other in bucket.map_or_else(Vec::new, |key_id| waiting.lines_of(key_id)) {
                waiting.drive(&other);
            }
            drop(pending);
        });
    }
}

impl SharedLine {
    pub(super) fn is_shared(&self) -> bool {
        lock(&self.line).is_shared()
    }

    /// Wakes the calls that have changed. The line is not locked: a waker is foreign code.
    fn wake_calls(&self) {
        let wakers = {
            let mut line = lock(&self.line);
            if !line.has_wakers() {
                return;
            }
            self.waking.fetch_add(1, Ordering::SeqCst);
            line.take_wakers()
        };
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

/// The lines that the task must look at.
#[derive(Default)]
pub(super) struct DueLines {
    /// By their addresses.
    lines: HashMap<usize, Arc<SharedLine>>,
    /// Whether the task runs.
    is_driven: bool,
    /// Notified when a line is added.
    changed: Arc<Notify>,
}

/// The task of the background thread that drives the lines of Redis, until none has anything to do.
struct LineDriver {
    waiting: Arc<Waiting>,
    /// The lines that have something to do now or later, by their addresses.
    lines: HashMap<usize, Arc<SharedLine>>,
    /// Their times, by both clocks.
    local: Agenda<u64, usize>,
    real: Agenda<Instant, usize>,
    has_ended: bool,
    _pending: PendingWork,
}

impl LineDriver {
    fn new(waiting: &Arc<Waiting>) -> Self {
        let (waiting, pending) = (Arc::clone(waiting), waiting.pending.begin());
        let (lines, local, real, has_ended) = Default::default();
        Self { waiting, lines, local, real, has_ended, _pending: pending }
    }

    async fn run(mut self) {
        loop {
            let (due, changed) = {
                let mut due = lock_own(&self.waiting.due);
                if due.lines.is_empty() && self.lines.is_empty() {
                    due.is_driven = false;
                    self.has_ended = true;
                    return;
                }
                (mem::take(&mut due.lines), Arc::clone(&due.changed))
            };
            let now = WakeTimes { local: None, real: Some(Instant::now()) };
            for line in due.into_values() {
                self.plan(line, now);
            }
            if !self.drive_due() {
                yield_now().await;
            } else if !self.lines.is_empty() {
                self.sleep(&changed).await;
            }
        }
    }

    /// Drives the lines whose time has come. Returns whether these were all.
    fn drive_due(&mut self) -> bool {
        for _ in 0..DRIVEN_AT_ONCE {
            let Some(line) = self.next(self.waiting.now()) else { return true };
            let driven = catch_unwind(AssertUnwindSafe(|| self.waiting.drive_shared(&line)));
            // The panic hook has reported a panic.
            let wake = driven.unwrap_or_else(|_| {
                line.abandon();
                None
            });
            if let Some(wake) = wake {
                self.plan(line, wake);
            }
        }
        false
    }

    /// Plans the next look at a line.
    fn plan(&mut self, line: Arc<SharedLine>, wake: WakeTimes) {
        let id = id_of(&line);
        self.local.plan(id, wake.local);
        self.real.plan(id, wake.real);
        self.lines.insert(id, line);
    }

    /// Takes a line whose time has come.
    fn next(&mut self, now: Now) -> Option<Arc<SharedLine>> {
        let id = self.local.take_due(now.local).or_else(|| self.real.take_due(now.real))?;
        self.local.plan(id, None);
        self.real.plan(id, None);
        self.lines.remove(&id)
    }

    /// Sleeps until a line has something to do.
    async fn sleep(&self, changed: &Notify) {
        let local = async {
            match self.local.first() {
                Some(at) => self.waiting.clock().sleep_until_steady(at).await,
                None => pending().await,
            }
        };
        let real = async {
            match self.real.first() {
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
            let mut due = lock_own(&self.waiting.due);
            due.is_driven = false;
            let all = mem::take(&mut due.lines).into_values();
            drop(due);
            let all = all.chain(self.lines.drain().map(|(_, line)| line));
            all.for_each(|line| line.abandon());
        }
    }
}

fn id_of(line: &Arc<SharedLine>) -> usize {
    Arc::as_ptr(line) as usize
}

/// How many calls of a line have timers that differ by their rank, which is the number of calls before them.
const RANKS: usize = 16;

/// The longest time between two polls of a call that waits for the embedded store.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

pub(super) struct WaitingCall {
    waiting: Arc<Waiting>,
    ticket: Arc<Ticket>,
    has_ended: bool,
    /// The name under which the wait is reported, and its start; `None` before the first poll is pending.
    waits: Option<(Name, Started)>,
    local: Timer<u64>,
    real: Timer<Instant>,
}

/// A timer that keeps its sleep while its time does not change.
struct Timer<T>(Option<(T, Sleep)>);

type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

impl WaitingCall {
    /// Creates the future of a call that has entered a line.
    pub(super) fn new(waiting: Arc<Waiting>, ticket: Arc<Ticket>) -> Self {
        let (local, real) = (Timer(None), Timer(None));
        Self { waiting, ticket, has_ended: false, waits: None, local, real }
    }

    /// Polls the call. The result is `None` if rules decide the call.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Reply, StoreError>>> {
        loop {
            let Some(line) = self.ticket.line() else { return Poll::Ready(None) };
            let (result, wake) = self.poll_line(&line, context);
            if let Poll::Ready(result) = result {
                self.has_ended = true;
                line.wake_calls();
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
            let local = self.local.poll(wake.local, context, |at| {
                let clock = self.waiting.clock().clone();
                async move { clock.sleep_until_steady(at).await }
            });
            // Without a runtime, the clock is virtual: only its moves wake the call.
            let real = wake.real.filter(|_| tokio::runtime::Handle::try_current().is_ok());
            let real = self.real.poll(real, context, |at| tokio::time::sleep_until(at.into()));
            if local.is_pending() && real.is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn record(&mut self, end: WaitEnd) {
        if let Some((name, started)) = self.waits.take() {
            report::wait_ended(&name, &started, end);
        }
    }

    /// Polls the call in its line, and drives the line if it is of the embedded store. Returns when to poll again.
    fn poll_line(
        &self,
        shared: &Arc<SharedLine>,
        context: &Context<'_>,
    ) -> (Poll<Result<Reply, StoreError>>, WakeTimes) {
        let (arrival, now) = (self.ticket.arrival, self.waiting.now());
        let mut line = lock(&shared.line);
        let result = line.poll(arrival, context.waker(), now);
        if line.is_shared() {
            let wake = WakeTimes { local: line.wake_time(arrival, now), real: None };
            // The line is driven even if this call has ended, because the next call may never be polled.
            let has_duty = line.has_duty(now);
            drop(line);
            if has_duty {
                self.waiting.drive(shared);
            }
            return (result, wake);
        }
        if result.is_ready() {
            return (result, WakeTimes::default());
        }
        drop(line);
        let wake = self.waiting.drive_here(shared);
        let now = self.waiting.now();
        let mut line = lock(&shared.line);
        let result = line.poll(arrival, context.waker(), now);
        let later = later_by(line.rank(arrival, RANKS + 1), line.validity());
        let local = wake.local.map(|at| at.saturating_add(later.as_micros() as u64));
        let longest = now.real + LONGEST_SLEEP;
        let wake = WakeTimes {
            local: local.into_iter().chain(line.wake_time(arrival, now)).min(),
            real: Some(wake.real.map_or(longest, |at| longest.min(at + later))),
        };
        (result, wake)
    }
}

/// Returns how much later than its line a call with `rank` calls before it wakes.
fn later_by(rank: usize, validity: Duration) -> Duration {
    let step = validity / RANKS as u32;
    if rank > RANKS { LONGEST_SLEEP } else { step * rank as u32 }
}

impl Drop for WaitingCall {
    fn drop(&mut self) {
        if !self.has_ended {
            self.record(WaitEnd::Dropped);
        }
        self.waiting.calls.fetch_sub(1, Ordering::Relaxed);
        let Some(shared) = lock(&self.ticket.place).line.take() else { return };
        let drives = {
            let mut line = lock(&shared.line);
            if !self.has_ended {
                line.leave(self.ticket.arrival);
            }
            // The last call of a line gives back the units that calls before it have not taken. Otherwise, a call
            // behind it drives the line of the embedded store. So calls that are dropped together cost little.
            line.is_deserted() || line.is_shared() && !self.has_ended
        };
        if drives {
            self.waiting.drive(&shared);
            self.waiting.remove_if_empty(&shared);
        } else if !self.has_ended {
            shared.wake_calls();
        }
    }
}

impl<T: Copy + PartialEq> Timer<T> {
    /// Sets the timer to `at` and polls it. Pending if `at` is `None`.
    fn poll<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        at: Option<T>,
        context: &mut Context<'_>,
        sleep: impl FnOnce(T) -> F,
    ) -> Poll<()> {
        let Some(at) = at else {
            self.0 = None;
            return Poll::Pending;
        };
        if self.0.as_ref().is_none_or(|(set, _)| *set != at) {
            self.0 = Some((at, Box::pin(sleep(at))));
        }
        let Some((_, sleep)) = &mut self.0 else { return Poll::Pending };
        let rung = sleep.as_mut().poll(context);
        if rung.is_ready() {
            self.0 = None;
        }
        rung
    }
}
