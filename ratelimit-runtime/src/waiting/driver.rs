//! Drives lines: sends their requests, gives units back, and wakes their calls.
//!
//! One task of the background thread looks at each line when its time has come, so that no call depends on the runtime
//! of another call, nor on being polled itself. It wakes a call at its moment, and at the end of its wait. Requests to
//! the embedded store need no connection: there, the thread that changes a line drives it at once as well.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::line::{Asked, Duty, Now, ReturnedGrant, WakeTimes};
use super::{SharedLine, Ticket, Waiting};
use crate::algorithm::Correction;
use crate::clock::{Clock, before};
use crate::limit::Name;
use crate::owner::{ended, foreign, send};
use crate::reply::StoreError;
use crate::report::{self, Started};
use crate::store::Reply;
use crate::threads::lock;

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
        let wake = if line.spec.is_shared { WakeTimes::now() } else { self.drive_line(line) };
        self.plan(line, wake);
    }

    /// Makes the task of a line look at it at these times, or before. Without times, a task that runs looks now.
    fn plan(self: &Arc<Self>, line: &Arc<SharedLine>, wake: WakeTimes) {
        let mut next = lock(&line.next_look);
        let is_timed = wake != WakeTimes::default();
        if let Some(planned) = *next {
            *next = Some(planned.or_earlier(if is_timed { wake } else { WakeTimes::now() }));
            if *next != Some(planned) {
                line.changed.notify_one();
            }
        } else if is_timed {
            *next = Some(wake);
            drop(next);
            self.start_driver(line);
        }
    }

    /// Drives a line until it waits. Returns when to look again without a change.
    fn drive_line(self: &Arc<Self>, line: &Arc<SharedLine>) -> WakeTimes {
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
                Duty::Sleep(wake) => {
                    if wake == WakeTimes::default() {
                        self.remove_if_empty(line);
                    }
                    return wake;
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
        let returned = returned
            .into_iter()
            .map(|(source, charge, charged)| self.backend.give_back(source, charge, charged));
        // All of them are queued now, so that they leave together, and share a deadline.
        let (returned, deadline) = (returned.collect::<Vec<_>>(), self.backend.settings.deadline);
        let ended = timeout(deadline, async move {
            for returned in returned {
                let _ = returned.await;
            }
        });
        send(ended, move |_| {
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
}

/// The task of the background thread that drives a line.
impl Waiting {
    fn start_driver(self: &Arc<Self>, line: &Arc<SharedLine>) {
        let (waiting, driven, pending) = (Arc::clone(self), Arc::clone(line), self.pending.begin());
        let line = Arc::clone(line);
        let run = async move { waiting.run_driver(&driven).await };
        // If the thread could not start or has ended, or the line has panicked, nothing else would wake the calls.
        let abandon = move || {
            *lock(&line.next_look) = None;
            lock(&line.line).abandon(&ended());
            line.wake_calls();
            drop(pending);
        };
        self.backend.background.spawn_or(run, abandon);
    }

    /// Drives a line until it has nothing to do.
    async fn run_driver(self: &Arc<Self>, line: &Arc<SharedLine>) {
        loop {
            *lock(&line.next_look) = Some(WakeTimes::default());
            let wake = self.drive_line(line);
            let next = {
                let mut next = lock(&line.next_look);
                let wake = next.unwrap_or_default().or_earlier(wake);
                *next = Some(wake).filter(|wake| *wake != WakeTimes::default());
                *next
            };
            let Some(WakeTimes { local, real }) = next else { return };
            // Without a time, a sleep does not end.
            let local = self.clock().sleep_until_steady(local.unwrap_or(u64::MAX));
            let real =
                real.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            before(local, before(sleep(real), line.changed.notified())).await;
        }
    }
}

/// A call that has entered a line.
pub(super) struct WaitingCall {
    pub(super) waiting: Arc<Waiting>,
    pub(super) ticket: Arc<Ticket>,
    /// The name under which the wait is reported, and its start; `None` before the first poll is pending.
    pub(super) waits: Option<(Name, Started)>,
}

impl WaitingCall {
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
            if let Poll::Ready(result) = self.poll_line(&line, context) {
                self.record(match &result {
                    Ok(reply) if reply.is_allowed() => "admitted",
                    Ok(_) => "rejected",
                    // The store could not decide.
                    Err(_) => "failed",
                });
                return Poll::Ready(Some(result));
            }
            if !self.ticket.line().is_some_and(|present| Arc::ptr_eq(&present, &line)) {
                // Moved before its line had this waker.
                continue;
            }
            let name = line.spec.name();
            self.waits.get_or_insert_with(|| (name, report::wait_started(name)));
            return Poll::Pending;
        }
    }

    /// Reports the end of the wait, once.
    fn record(&mut self, end: &'static str) {
        if let Some((name, started)) = self.waits.take() {
            report::wait_ended(name, &started, end);
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
                self.waiting.plan(shared, WakeTimes { local: look, real: None });
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
        self.record("dropped");
        self.waiting.calls.fetch_sub(1, Ordering::Relaxed);
        let Some(shared) = lock(&self.ticket.place).line.take() else { return };
        let (was_waiting, is_deserted) = {
            let mut line = lock(&shared.line);
            (line.leave(self.ticket.arrival).is_some(), line.is_deserted())
        };
        // The last call gives back the units that no call has taken. Before it, the task does, so that calls that are
        // dropped together cost little; but a program that moves a virtual clock expects to see it at once.
        if is_deserted || was_waiting && self.waiting.clock().is_virtual() {
            self.waiting.drive(&shared);
            self.waiting.remove_if_empty(&shared);
        } else if was_waiting {
            self.waiting.plan(&shared, WakeTimes::now());
        }
    }
}
