//! The future of a waiting call. It sleeps until its moment or the end of its wait, by timers of its own runtime.
//!
//! On the embedded store, the waiting calls drive their line: the first call that is polled when the line must act. The
//! timer of the first call is exact. The timers of the calls behind it are later, so that few calls wake for each
//! admission. If the first call is not polled, a call behind it drives the line, at most a second later.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::line::WakeTimes;
use super::{SharedLine, Ticket, Waiting, lock};
use crate::limit::Name;
use crate::reply::StoreError;
use crate::report::{self, Started, WaitEnd};
use crate::store::Reply;

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
