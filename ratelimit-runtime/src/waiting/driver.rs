//! Drives lines: sends their requests, gives units back, and wakes their calls.
//!
//! A task of the background thread drives the line of a limit on Redis, so that no call depends on the runtime of
//! another call. The first thread that comes drives a line of the embedded store: of a call that is polled or dropped,
//! or of a caller that gives units back.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use tokio::time::{Instant, timeout, timeout_at};

use super::line::{Asked, Duty, Now, WakeTimes};
use super::{SharedLine, Waiting, lock};
use crate::algorithm::Correction;
use crate::background::{Job, PendingWork, RunningJob, lock_own};
use crate::clock::{Clock, before};
use crate::reply::StoreError;

impl Waiting {
    pub(super) fn clock(&self) -> &Clock {
        self.backend.clock()
    }

    pub(super) fn now(&self) -> Now {
        Now { local: self.clock().steady(), real: std::time::Instant::now() }
    }

    /// Lets the driver of a line act on a change.
    pub(super) fn drive(self: &Arc<Self>, line: &Arc<SharedLine>) {
        if !line.is_shared() {
            self.drive_here(line);
            self.remove_if_empty(line);
            return;
        }
        line.wake_calls();
        let driver = line.driver.start(1, || LineDriver {
            waiting: Arc::clone(self),
            line: Arc::clone(line),
            _pending: self.pending.begin(),
        });
        if let Some(driver) = driver {
            self.backend.background().spawn(LineDriver::run(driver));
        }
        line.changed.notify_one();
    }

    /// Records that units could not be given back. They leave the window or drain as if they had been used. Only a
    /// shutdown reports the error.
    fn record_loss(&self, error: Option<StoreError>) {
        if error.is_some() && lock_own(&self.lines).is_shut_down {
            *lock(&self.lost) = error;
        }
    }

    /// Drives a line of the embedded store, on this thread. Returns when the line must be driven next.
    pub(super) fn drive_here(self: &Arc<Self>, line: &Arc<SharedLine>) -> WakeTimes {
        loop {
            let duty = lock(&line.line).duty(self.now());
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
}

impl SharedLine {
    pub(super) fn is_shared(&self) -> bool {
        lock(&self.line).is_shared()
    }

    /// Wakes the calls that have changed. The line is not locked: a waker is foreign code.
    pub(super) fn wake_calls(&self) {
        let wakers = {
            let mut line = lock(&self.line);
            if !line.has_wakers() {
                return;
            }
            self.waking.fetch_add(1, Ordering::SeqCst);
            line.take_wakers()
        };
        wakers.into_iter().for_each(Waker::wake);
        self.waking.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns whether the line would do nothing before the clock of the limiter moves; for tests.
    pub(super) fn is_idle(&self, now: Now) -> bool {
        let line = lock(&self.line);
        line.is_idle(now) && !line.has_wakers() && self.waking.load(Ordering::SeqCst) == 0
    }
}

/// The task of the background thread that drives a line of Redis, until no call waits.
struct LineDriver {
    waiting: Arc<Waiting>,
    line: Arc<SharedLine>,
    _pending: PendingWork,
}

impl LineDriver {
    async fn run(mut job: RunningJob<Self>) {
        loop {
            let duty = lock(&job.line.line).duty(job.waiting.now());
            job.line.wake_calls();
            match duty {
                Duty::Request(asked) => {
                    let (waiting, deadline) = (&job.waiting, job.waiting.backend.deadline());
                    // Otherwise, it could reserve moments behind moments that are about to go back.
                    let _ = timeout(deadline, waiting.others_have_returned(&job.line)).await;
                    // Boxed, so that a line that sleeps does not keep room for it (`tests/waiting_memory.rs`).
                    let _place = waiting.asking.acquire().await;
                    Box::pin(job.ask(*asked)).await;
                    waiting.rested.notify_waiters();
                }
                Duty::Return(returned) => {
                    let (waiting, line) = (Arc::clone(&job.waiting), Arc::clone(&job.line));
                    let pending = waiting.pending.begin();
                    job.waiting.backend.background().spawn(async move {
                        let (backend, policy) = (&waiting.backend, line.policy);
                        let returned = returned.into_iter().map(|(source, charge, charged)| {
                            backend.give_back(policy.scope(), source, charge, charged)
                        });
                        // All of them are queued, so that they leave together, and share a deadline.
                        let by = Instant::now() + backend.deadline();
                        for returned in returned.collect::<Vec<_>>() {
                            // What waits for Redis goes back later.
                            let late = StoreError::Timeout { deadline: backend.deadline() };
                            let returned = timeout_at(by, returned).await;
                            waiting.record_loss(returned.unwrap_or(Err(late)).err());
                        }
                        lock(&line.line).returned();
                        waiting.rested.notify_waiters();
                        waiting.drive(&line);
                        drop(pending);
                    });
                }
                Duty::FollowRules => job.waiting.follow_rules(),
                Duty::Sleep(wake) => job.sleep(wake).await,
                Duty::Rest => {
                    if job.ends() {
                        job.waiting.rested.notify_waiters();
                        job.waiting.remove_if_empty(&job.line);
                        return;
                    }
                }
            }
        }
    }

    /// Sends a request. If the store fails, applies `on_error` to the calls.
    async fn ask(&self, mut asked: Asked) {
        let (backend, line) = (&self.waiting.backend, &self.line.line);
        let result = backend.try_execute(self.line.policy, &asked.request).await;
        let error = match result {
            Ok(reply) => return lock(line).replied(asked, reply, self.waiting.now()),
            Err(error) => error,
        };
        let asked = lock(line).failed(&mut asked, &error, self.waiting.now());
        if let Some(asked) = asked {
            let reply = backend.apply_share(&asked.request);
            lock(line).replied(asked, reply, self.waiting.now());
        }
    }

    async fn sleep(&self, WakeTimes { local, real }: WakeTimes) {
        let clock = self.waiting.clock();
        let local = async {
            match local {
                Some(at) => clock.sleep_until_steady(at).await,
                None => pending().await,
            }
        };
        let real = async {
            match real {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => pending().await,
            }
        };
        before(local, before(real, self.line.changed.notified())).await;
    }
}

impl Job for LineDriver {
    /// The thread could not start, or the driver has panicked. Ends the calls, because nothing else would wake them.
    fn abandon(&mut self) {
        let message = "the background thread of the rate limiter does not run".into();
        lock(&self.line.line).abandon(&StoreError::Connection { message });
        self.line.wake_calls();
    }
}
