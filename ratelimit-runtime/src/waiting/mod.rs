//! Waiting calls: the limiter admits them first come, first served. A call is admitted within its wait, or rejected.
//! A call that is dropped takes nothing.
//!
//! Calls of a process that wait for the same counts are in a [`Line`](line::Line). On Redis, a task of the background
//! thread drives a line: `driver.rs`. On the embedded store, the waiting calls drive it: `call.rs`.

mod call;
mod driver;
mod line;
mod slot;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use self::call::WaitingCall;
use self::line::{Line, LineSettings};
pub(crate) use self::slot::{WaitingCalls, WaitingSlot};
use crate::algorithm::Receipt;
use crate::backend::{Backend, GivenBack};
use crate::background::{JobSlot, OwnValue, WorkCount, is_in_runtime, lock_own};
use crate::key::KeyId;
use crate::limit::{Name, Policy};
use crate::reply::StoreError;
use crate::report;
use crate::store::{Calls, Charge, DecideOp, OneOrMany, Reply, Request};

/// The most requests of lines that are pending. With more, thousands of lines that ask at once would hold memory for
/// as many requests (`tests/waiting_memory.rs`). Suffices for 10,000 keys that ask each second, if Redis is 25 ms away.
const MAX_ASKING: usize = 256;

/// The waiting calls of a limiter.
pub(crate) struct Waiting {
    backend: Arc<Backend>,
    lines: Mutex<OwnValue<Lines>>,
    /// The number of calls in all lines, and its maximum.
    calls: AtomicUsize,
    max_calls: usize,
    /// Whether there are lines; changed while `lines` is locked. Saves the lock when units are given back and no call
    /// waits (`benches/all -- settling`).
    has_lines: Arc<AtomicBool>,
    /// The places for pending requests of lines.
    asking: Semaphore,
    /// The drivers and the give-backs of the lines of Redis.
    pending: WorkCount,
    /// Notified when a line of Redis has nothing left to do.
    rested: Notify,
    /// Why units could not be given back.
    lost: Mutex<Option<StoreError>>,
}

/// The lines of a limiter.
#[derive(Default)]
struct Lines {
    /// The lines by their counts: a line of several counts occurs once for each. A line exists while it holds a call or
    /// a grant.
    by_count: HashMap<KeyId, Vec<Arc<SharedLine>>>,
    /// Whether the limiter was shut down.
    is_shut_down: bool,
}

/// A line, its policy, and the task that drives it.
struct SharedLine {
    line: Mutex<Line>,
    /// The name of the first limit.
    name: Name,
    /// The policy of the call that created the line: of its scope, and of the reports about its requests.
    policy: Policy,
    /// Notified when the line changes; its driver waits for that.
    changed: Notify,
    driver: JobSlot,
    /// The number of threads that are waking calls.
    waking: AtomicUsize,
}

/// How a call begins to wait.
enum Entry {
    /// It waits in a line, under this number.
    InLine(Arc<SharedLine>, u64),
    /// It does not wait: the call is decided at once.
    Alone,
    /// It does not wait, and the calls of this line are before it.
    Behind(Arc<SharedLine>),
}

impl Waiting {
    pub(crate) fn new(backend: Arc<Backend>, max_calls: usize) -> Arc<Self> {
        let waiting = Arc::new(Self {
            backend,
            lines: Mutex::default(),
            calls: AtomicUsize::new(0),
            max_calls,
            has_lines: Arc::default(),
            asking: Semaphore::new(MAX_ASKING),
            pending: WorkCount::default(),
            rested: Notify::new(),
            lost: Mutex::default(),
        });
        let (weak, has_lines) = (Arc::downgrade(&waiting), Arc::clone(&waiting.has_lines));
        waiting.backend.on_give_back(move |given_back| {
            // A line is added before its first request. So a line that is not seen here finds the units in the store.
            if has_lines.load(Ordering::Relaxed)
                && let Some(waiting) = weak.upgrade()
            {
                waiting.record_give_back(given_back);
            }
        });
        waiting
    }

    /// Decides a call, as [`admit`](WaitingCalls::admit) says.
    async fn decide(
        self: Arc<Self>,
        policy: Policy,
        charges: OneOrMany<Arc<Charge>>,
        wait: Duration,
        settles: bool,
    ) -> Result<Reply, StoreError> {
        if !is_in_runtime() && !self.backend.clock().can_sleep() {
            return Err(StoreError::NoRuntime);
        }
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let takes_nothing = charges.iter().all(|charge| charge.cost == 0);
        let op = DecideOp::charging(settles);
        let request = |charges| Request::Decide(Calls::one(op, charges));
        if takes_nothing {
            // Only a closed key rejects it.
            let request = request(charges.clone());
            let result = Box::pin(self.backend.execute(policy, request)).await;
            let opens_in_time = |reply: &Reply| {
                !reply.is_allowed() && reply.outcomes.iter().all(|outcome| outcome.retry_us <= wait)
            };
            if !result.as_ref().is_ok_and(opens_in_time) {
                return result;
            }
        }
        let (line, arrival) = match self.enter(policy, &charges, wait, settles) {
            Entry::InLine(line, arrival) => (line, arrival),
            // Boxed, so that a call that waits does not keep room for them (`tests/waiting_memory.rs`).
            Entry::Alone => return Box::pin(self.backend.execute(policy, request(charges))).await,
            Entry::Behind(line) => {
                return Box::pin(self.reject_behind(&line, policy, charges)).await;
            }
        };
        let request = request(charges);
        let mut call = WaitingCall::new(Arc::clone(&self), line, arrival);
        match poll_fn(|context| call.poll(context)).await {
            Err(StoreError::ShuttingDown) => Err(StoreError::ShuttingDown),
            // No store has decided the call: its deadline has passed, or its line could not be driven.
            Err(error) => self.backend.fall_back(policy, &request, error),
            // The units were charged for an earlier call, which does not settle. They cannot be given back, but units
            // that are used beyond them can be charged.
            Ok(mut reply) if settles && reply.is_charged() && reply.receipts.is_empty() => {
                reply.receipts = reply.outcomes.map(|_| Receipt::default());
                Ok(reply)
            }
            result => result,
        }
    }

    /// Completes once all lines that share a count with `line`, and in which no call stays, hold no units.
    async fn others_have_left(&self, line: &Arc<SharedLine>) {
        loop {
            let rested = self.rested.notified();
            let mut rested = pin!(rested);
            rested.as_mut().enable();
            let has_left = {
                let lines = lock_own(&self.lines);
                let inner = lock(&line.line);
                if inner.is_deserted() {
                    return;
                }
                let counts: Vec<_> = inner.counts().iter().map(|charge| charge.key_id).collect();
                drop(inner);
                let mut others = counts.iter().filter_map(|id| lines.by_count.get(id)).flatten();
                others
                    .all(|other| Arc::ptr_eq(other, line) || { !lock(&other.line).is_cancelling() })
            };
            if has_left {
                return;
            }
            rested.await;
        }
    }

    /// Adds a call to the line of its counts, and creates the line if there is none. Adds none after the limiter was
    /// shut down, and none beyond [`max_calls`](Self::max_calls).
    fn enter(
        &self,
        policy: Policy,
        charges: &OneOrMany<Arc<Charge>>,
        wait: u64,
        settles: bool,
    ) -> Entry {
        let costs = charges.map(|charge| charge.cost);
        let (now, on_error) = (self.now(), self.backend.on_error(policy));
        // Locked until the call is in the line, because an empty line is removed.
        let mut lines = lock_own(&self.lines);
        let first = charges.first().map_or(KeyId::NONE, |charge| charge.key_id);
        if lines.is_shut_down {
            return Entry::Alone;
        }
        let known = lines.by_count.get(&first).into_iter().flatten();
        let is_shared = self.backend.is_shared(policy);
        let mut known = known.filter(|known| lock(&known.line).is_of(charges, is_shared));
        let known = known.next().cloned();
        // It grows only while the lines are locked, and falls at any time.
        if self.calls.load(Ordering::Relaxed) >= self.max_calls {
            let behind = known.filter(|known| !lock(&known.line).is_deserted());
            return behind.map_or(Entry::Alone, Entry::Behind);
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let line = known.unwrap_or_else(|| {
            let line = self.new_line(policy, charges, is_shared);
            self.has_lines.store(true, Ordering::Relaxed);
            for charge in charges.iter() {
                lines.by_count.entry(charge.key_id).or_default().push(Arc::clone(&line));
            }
            line
        });
        let mut inner = lock(&line.line);
        if settles {
            inner.keep_receipts();
        }
        let arrival = inner.enter(costs, now.local.saturating_add(wait), on_error, now);
        let long = inner.outgrown();
        drop((inner, lines));
        if let Some(calls) = long {
            report::long_line(line.name.as_str(), calls);
        }
        Entry::InLine(line, arrival)
    }

    /// Rejects a call that may not wait, because calls before it wait for its counts.
    async fn reject_behind(
        &self,
        line: &SharedLine,
        policy: Policy,
        charges: OneOrMany<Arc<Charge>>,
    ) -> Result<Reply, StoreError> {
        let costs = charges.map(|charge| charge.cost);
        let known = lock(&line.line).rejection_behind(&costs, self.now());
        if let Some(rejection) = known {
            return Ok(rejection);
        }
        let peek = Request::Decide(Calls::one(DecideOp::Peek, charges));
        let peeked = self.backend.execute(policy, peek).await?;
        if peeked.is_allowed() && !peeked.is_charged() {
            // Admitted by `on_error`.
            return Ok(peeked);
        }
        let rejection = lock(&line.line).rejection_after(&costs, &peeked, self.now());
        Ok(rejection)
    }

    fn new_line(
        &self,
        policy: Policy,
        charges: &OneOrMany<Arc<Charge>>,
        is_shared: bool,
    ) -> Arc<SharedLine> {
        let clock = self.backend.clock();
        let settings = LineSettings {
            is_shared,
            is_virtual: clock.is_virtual(),
            settles: false,
            validity: self.backend.deadline(),
        };
        let line = Mutex::new(Line::new(charges.clone(), settings));
        let (changed, driver, waking) = Default::default();
        let name = charges.first().map_or(Name::new(""), |charge| *charge.terms.name());
        Arc::new(SharedLine { line, name, policy, changed, driver, waking })
    }

    /// Removes a line that holds nothing.
    fn remove_if_empty(&self, line: &Arc<SharedLine>) {
        let mut lines = lock_own(&self.lines);
        let inner = lock(&line.line);
        if !inner.is_empty() {
            return;
        }
        for charge in inner.counts() {
            if let Some(of_count) = lines.by_count.get_mut(&charge.key_id) {
                of_count.retain(|other| !Arc::ptr_eq(other, line));
                if of_count.is_empty() {
                    lines.by_count.remove(&charge.key_id);
                }
            }
        }
        self.has_lines.store(!lines.by_count.is_empty(), Ordering::Relaxed);
    }

    /// Records that units were given back to a count, and wakes the lines of the count.
    fn record_give_back(self: &Arc<Self>, given_back: GivenBack) {
        let lines =
            lock_own(&self.lines).by_count.get(&given_back.key_id).cloned().unwrap_or_default();
        for line in lines {
            if given_back.is_reset {
                lock(&line.line).record_reset(given_back.key_id, self.now());
            } else {
                lock(&line.line).record_give_back(given_back.end);
            }
            self.drive(&line);
            if !line.is_shared() {
                self.remove_if_empty(&line);
            }
        }
    }
}

impl WaitingCalls for Waiting {
    fn admit(
        self: Arc<Self>,
        policy: Policy,
        charges: OneOrMany<Arc<Charge>>,
        wait: Duration,
        settles: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Reply, StoreError>> + Send>> {
        Box::pin(self.decide(policy, charges, wait, settles))
    }

    fn dissolve(self: Arc<Self>, charge: &Charge) {
        let lines = lock_own(&self.lines).by_count.get(&charge.key_id).cloned().unwrap_or_default();
        for line in lines {
            let now = self.now();
            let is_first = {
                let mut inner = lock(&line.line);
                let is_first = inner.has(charge) && !inner.dissolves(now);
                if is_first {
                    inner.dissolve(now);
                }
                is_first
            };
            if is_first {
                self.drive(&line);
            }
        }
    }

    fn shut_down(self: Arc<Self>) {
        let mut lines = lock_own(&self.lines);
        lines.is_shut_down = true;
        let all: Vec<_> = lines.by_count.values().flatten().cloned().collect();
        drop(lines);
        for line in all {
            lock(&line.line).shut_down(&StoreError::ShuttingDown);
            self.drive(&line);
        }
    }

    fn rested(self: Arc<Self>) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>> {
        Box::pin(async move {
            self.pending.all_ended().await;
            lock(&self.lost).take().map_or(Ok(()), Err)
        })
    }

    fn is_idle(&self) -> bool {
        let lines = lock_own(&self.lines);
        let mut all = lines.by_count.values().flatten();
        all.all(|line| line.is_idle(self.now()))
    }

    fn lines(&self) -> usize {
        lock_own(&self.lines).by_count.len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
