//! Waiting calls: the limiter admits them first come, first served. A call is admitted within its wait, or rejected.
//! A call that is dropped takes nothing.
//!
//! Calls of a process that wait for the same counts are in a [`Line`](line::Line). One task of the background thread
//! drives all lines: `driver.rs`.
//!
//! The ticket of a waiting call is what the code says about the call, and the line in which it waits now. Rules that
//! change move the call to another line by its arrival, and its ticket stays (`Waiting::follow_rules`).

mod driver;
mod line;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::{Notify, Semaphore};

use self::driver::WaitingCall;
#[cfg(model)]
pub use self::line::model;
use self::line::{Line, LineSpec, Waiter, WakeTimes};
use crate::algorithm::{BlockChange, Op};
use crate::backend::{Backend, ChargedCount, MergedCounts};
use crate::background::{OwnValue, WorkCount, lock_own};
use crate::key::{KeyId, OwnedKey};
use crate::limit::{Access, Limit, Policy};
use crate::one_or_many::OneOrMany;
use crate::reply::StoreError;
use crate::report;
use crate::rules::{Asker, RuleSet, RuleTable, Ruled, RulesInForce};
use crate::store::{Calls, Reply};
use crate::threads::{Mutex, lock};

/// The most requests of lines that are pending. With more, thousands of lines that ask at once would hold memory for
/// as many requests (`tests/waiting_memory.rs`). Suffices for 10,000 keys that ask each second, if Redis is 25 ms away.
const MAX_ASKING: usize = 256;

/// The waiting calls of a limiter.
pub(crate) struct Waiting {
    backend: Arc<Backend>,
    rules: Arc<RulesInForce>,
    lines: Mutex<OwnValue<Lines>>,
    /// The number of calls that have arrived.
    arrivals: AtomicU64,
    /// The number of calls in all lines, and its maximum.
    calls: Arc<AtomicUsize>,
    max_calls: usize,
    /// The places for pending requests of lines.
    asking: Semaphore,
    /// The task that drives the lines, and their give-backs.
    pending: WorkCount,
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

/// A line and its policy.
struct SharedLine {
    spec: Arc<LineSpec>,
    line: Mutex<Line>,
    /// The policy of the call that created the line: of its scope, and of the reports about its requests.
    policy: Policy,
    /// The number of threads that are waking calls.
    waking: AtomicUsize,
    /// When the task of the line looks at it next; `None` if no task runs.
    next_look: Mutex<Option<WakeTimes>>,
    /// Notified when the task must look earlier.
    changed: Notify,
}

impl Lines {
    fn find(&self, spec: &LineSpec) -> Option<Arc<SharedLine>> {
        let mut known = self.by_count.get(&spec.counts.first()?.key_id)?.iter();
        known.find(|known| known.spec.agrees_with(spec)).cloned()
    }
}

impl Waiting {
    pub(crate) fn new(
        backend: &Arc<Backend>,
        rules: &Arc<RulesInForce>,
        max_calls: usize,
    ) -> Arc<Self> {
        let (lines, arrivals, pending) = Default::default();
        let waiting = Arc::new(Self {
            backend: Arc::clone(backend),
            rules: Arc::clone(rules),
            lines,
            arrivals,
            calls: Arc::default(),
            max_calls,
            asking: Semaphore::new(MAX_ASKING),
            pending,
        });
        let (weak, calls) = (Arc::downgrade(&waiting), Arc::clone(&waiting.calls));
        let listener = move |key_id, change| {
            // Saves the lock of the lines when no call waits (`benches/all -- settling`). A call is counted before its
            // first request. So a call that is not seen here finds the units in the store.
            if calls.load(Ordering::Relaxed) > 0
                && let Some(waiting) = weak.upgrade()
            {
                waiting.record_return(key_id, change);
            }
        };
        let _ = waiting.backend.notices.on_return.set(Box::new(listener));
        waiting
    }

    /// Replaces the rules in force of the limiter. The calls that wait follow them.
    pub(crate) fn replace_rules(self: &Arc<Self>, set: RuleSet) {
        self.rules.replace(set, |key| self.backend.local().fingerprint(key));
        self.follow_rules();
    }

    /// Decides a call, as [`admit`](Self::admit) says.
    async fn decide(self: &Arc<Self>, ticket: &Arc<Ticket>) -> Option<Result<Reply, StoreError>> {
        if ticket.parts.iter().all(|part| part.cost == 0)
            && let Some(line) = self.resolve(ticket).filter(|line| !line.is_blocked)
        {
            // It passes the calls that wait for units. Boxed, so that a call that waits does not keep room for the
            // request (`tests/waiting_memory.rs`).
            let op = Op::Take { wait: 0, receipt: ticket.settles };
            let request = Calls::one(op, line.counts);
            let result = Box::pin(self.backend.execute(ticket.policy(), &request)).await;
            let wait = ticket.deadline.saturating_sub(self.clock().steady());
            let is_unblocked_in_time = |reply: &Reply| {
                !reply.is_allowed() && reply.outcomes.iter().all(|it| it.retry_us <= wait)
            };
            if !result.as_ref().is_ok_and(is_unblocked_in_time) {
                return Some(result);
            }
        }
        while self.enter(ticket) {
            let (waiting, ticket) = (Arc::clone(self), Arc::clone(ticket));
            let result = WaitingCall { waiting, ticket, waits: None }.ended().await;
            // Without a result, rules have ended the wait. Others may be in force now.
            if result.is_some() {
                return result;
            }
        }
        None
    }

    /// Moves calls to other lines, in the order of their arrival, if rules have changed their counts or amounts. A call
    /// that does not wait under the new rules leaves its line. A call whose turn has come keeps its grant.
    // Locks are taken in this order everywhere: the lines, the place of a ticket, a line. None is held while the
    // backend is called, because it notifies the lines of give-backs.
    fn follow_rules(self: &Arc<Self>) {
        let mut lines = lock_own(&self.lines);
        if lines.is_shut_down {
            return;
        }
        let (table, now, mut tickets) = (self.rules.table(), self.now(), BTreeMap::new());
        for line in lines.by_count.values().flatten() {
            tickets.extend(lock(&line.line).tickets().map(|ticket| (ticket.arrival, ticket)));
        }
        let by_place = |line: Arc<SharedLine>| (Arc::as_ptr(&line), line);
        let (mut left, mut entered) = (BTreeMap::new(), BTreeMap::new());
        for ticket in tickets.into_values() {
            let mut place = lock(&ticket.place);
            let Some(line) = place.line.clone() else { continue };
            let ruled = ticket.under(&self.backend, table.as_deref());
            let destination = ticket.destination(&self.backend, &ruled);
            let mut inner = lock(&line.line);
            if let Some(same) = destination.as_ref().filter(|it| line.spec.agrees_with(it)) {
                inner.change_by(same.changes_at);
                drop(inner);
                place.ruled = ruled;
                entered.extend(same.changes_at.map(|_| by_place(line)));
            } else if let Some(waiter) = inner.take(ticket.arrival, now) {
                drop(inner);
                place.ruled = ruled;
                place.line = destination.map(|to| self.join(&mut lines, waiter, &to));
                entered.extend(place.line.clone().map(by_place));
                left.extend([by_place(line)]);
            }
        }
        drop(lines);
        // First the lines that give moments back, so that the others can reserve these.
        for line in left.into_values().chain(entered.into_values()) {
            self.drive(&line);
        }
    }

    /// Returns the lines of a count.
    fn lines_of(&self, key_id: KeyId) -> Vec<Arc<SharedLine>> {
        lock_own(&self.lines).by_count.get(&key_id).cloned().unwrap_or_default()
    }

    /// Returns the line of a call under the rules in force. Its ticket then has these rules.
    fn resolve(&self, ticket: &Ticket) -> Option<LineSpec> {
        let ruled = ticket.under(&self.backend, self.rules.table().as_deref());
        let destination = ticket.destination(&self.backend, &ruled);
        lock(&ticket.place).ruled = ruled;
        destination
    }

    /// Adds a call to its line, and returns whether it has one: not after the limiter was shut down. Beyond
    /// [`max_calls`](Self::max_calls), a call only enters a line in which calls are before it, and does not wait there.
    fn enter(&self, ticket: &Arc<Ticket>) -> bool {
        // Locked until the call is in the line: an empty line is removed, and new rules find the calls in lines.
        let mut lines = lock_own(&self.lines);
        let Some(destination) = self.resolve(ticket).filter(|_| !lines.is_shut_down) else {
            return false;
        };
        let mut waiter = Waiter::new(Arc::clone(ticket), self.backend.on_error(ticket.policy()));
        // It grows only while the lines are locked, and falls at any time.
        if self.calls.load(Ordering::Relaxed) >= self.max_calls {
            let is_behind = |line: Arc<SharedLine>| !lock(&line.line).is_deserted();
            if destination.is_blocked || !lines.find(&destination).is_some_and(is_behind) {
                return false;
            }
            waiter.deadline = self.clock().steady();
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let line = self.join(&mut lines, waiter, &destination);
        lock(&ticket.place).line = Some(Arc::clone(&line));
        let long = lock(&line.line).outgrown();
        drop(lines);
        if let Some(calls) = long {
            report::long_line(line.spec.name(), calls);
        }
        true
    }

    /// Adds a waiter to its line, and creates the line if there is none.
    fn join(&self, lines: &mut Lines, waiter: Waiter, to: &LineSpec) -> Arc<SharedLine> {
        let line = lines.find(to).unwrap_or_else(|| {
            let (spec, policy) = (Arc::new(to.clone()), waiter.ticket.policy());
            let line = Mutex::new(Line::new(Arc::clone(&spec)));
            let (waking, next_look, changed) = Default::default();
            let line = Arc::new(SharedLine { spec, line, policy, waking, next_look, changed });
            for charge in &to.counts {
                lines.by_count.entry(charge.key_id).or_default().push(Arc::clone(&line));
            }
            line
        });
        lock(&line.line).enter(waiter, to, self.now());
        line
    }

    /// Removes a line that holds nothing.
    fn remove_if_empty(&self, line: &Arc<SharedLine>) {
        let mut lines = lock_own(&self.lines);
        let inner = lock(&line.line);
        if !inner.is_deserted() || inner.holds_units() {
            return;
        }
        for charge in &line.spec.counts {
            if let Some(of_count) = lines.by_count.get_mut(&charge.key_id) {
                of_count.retain(|other| !Arc::ptr_eq(other, line));
                if of_count.is_empty() {
                    lines.by_count.remove(&charge.key_id);
                }
            }
        }
    }

    /// Records that units were given back to a count, and wakes the lines of the count.
    fn record_return(self: &Arc<Self>, key_id: KeyId, change: BlockChange) {
        for line in self.lines_of(key_id) {
            let mut inner = lock(&line.line);
            match change {
                BlockChange::None | BlockChange::Unblock => inner.record_give_back(key_id),
                BlockChange::Reset | BlockChange::BlockFor(_) => {
                    inner.record_reset_or_block(self.now());
                }
            }
            drop(inner);
            self.drive(&line);
        }
    }

    /// Waits until the call is admitted, or until it is known that it cannot be admitted within its wait. Returns no
    /// reply if the call is decided without a line, under the rules that its ticket then has. `settles` says whether
    /// its charges can be settled.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        parts: OneOrMany<OwnedPart>,
        settles: bool,
    ) -> (Arc<Ticket>, Option<Result<Reply, StoreError>>) {
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket::new(parts, settles, arrival, self.clock().steady());
        let reply = self.decide(&ticket).await;
        (ticket, reply)
    }

    /// Rejects the calls that wait, and gives their units back. Later calls do not wait.
    pub(crate) fn shut_down(self: &Arc<Self>) {
        let mut lines = lock_own(&self.lines);
        lines.is_shut_down = true;
        let all: Vec<_> = lines.by_count.values().flatten().cloned().collect();
        drop(lines);
        for line in all {
            lock(&line.line).end_all(&StoreError::ShuttingDown, |_| true);
            self.drive(&line);
        }
    }

    /// Completes once no line holds units of a call, after [`shut_down`](Self::shut_down).
    pub(crate) async fn rested(&self) {
        self.pending.all_ended().await;
    }

    /// Returns whether all lines would do nothing before the clock of the limiter moves; for tests.
    pub(crate) fn is_idle(&self) -> bool {
        let (lines, now) = (lock_own(&self.lines), self.now());
        lines.by_count.values().flatten().all(|shared| {
            let line = lock(&shared.line);
            line.is_idle(now) && !line.has_wakers() && shared.waking.load(Ordering::SeqCst) == 0
        })
    }

    /// Returns the number of lines; for tests.
    pub(crate) fn lines(&self) -> usize {
        lock_own(&self.lines).by_count.len()
    }
}

/// A limit of a call with the key and the cost, as the code says. Borrows nothing.
pub(crate) struct OwnedPart {
    pub(crate) limit: Limit,
    pub(crate) key: OwnedKey,
    pub(crate) cost: u64,
    pub(crate) access: Access,
}

/// A call that may wait.
pub(crate) struct Ticket {
    pub(crate) parts: OneOrMany<OwnedPart>,
    /// Whether the charges can be settled.
    settles: bool,
    /// The place of the call in the order of all calls.
    arrival: u64,
    /// The end of the wait, by the clock of the limiter.
    deadline: u64,
    place: Mutex<Place>,
}

/// Where a call waits, and what the rules make of its limits there.
struct Place {
    /// `None` if the call does not wait: it was dropped, or rules decide it.
    line: Option<Arc<SharedLine>>,
    ruled: OneOrMany<Ruled>,
}

impl Ticket {
    fn new(parts: OneOrMany<OwnedPart>, settles: bool, arrival: u64, now: u64) -> Arc<Self> {
        let wait = parts.first().and_then(|part| part.limit.policy().wait).unwrap_or_default();
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let place = Mutex::new(Place { line: None, ruled: Vec::new().into() });
        Arc::new(Self { parts, settles, arrival, deadline: now.saturating_add(wait), place })
    }

    /// Returns the policy of the call. Rules change only one part of it: whether a limit is a shadow.
    fn policy(&self) -> Policy {
        self.parts[0].limit.policy()
    }

    fn line(&self) -> Option<Arc<SharedLine>> {
        lock(&self.place).line.clone()
    }

    /// Returns the limits of the call under the rules that have decided it.
    pub(crate) fn ruled(&self) -> OneOrMany<Ruled> {
        lock(&self.place).ruled.clone()
    }

    /// Returns the limits of the call under `rules`.
    fn under(&self, backend: &Backend, rules: Option<&RuleTable>) -> OneOrMany<Ruled> {
        let now = backend.clock().local();
        let under = |OwnedPart { limit, key, access, .. }: &OwnedPart| {
            let key_id = || backend.key_id(limit.terms(), key);
            Ruled::under(rules, limit, *access, &key_id, &|| now, Asker::Call)
        };
        self.parts.iter().map(under).collect()
    }

    /// Returns the line in which the call waits with these limits. Returns `None` if it does not wait: no limit can
    /// reject it, a rule blocks it for longer, it costs more than a capacity, or the limits have a mistake.
    fn destination(&self, backend: &Arc<Backend>, ruled: &[Ruled]) -> Option<LineSpec> {
        let (clock, mut is_blocked) = (backend.clock(), false);
        let (now, rest) = (clock.local(), self.deadline.saturating_sub(clock.steady()));
        let can_reject =
            |ruled: &Ruled| ruled.access != Access::Unlimited && !ruled.limit.policy().shadow;
        for blocked in ruled.iter().filter(|it| can_reject(it) && it.access == Access::Blocked) {
            blocked.blocked_until.filter(|until| until.saturating_sub(now) <= rest)?;
            is_blocked = true;
        }
        let parts = self.parts.iter().zip(ruled).filter(|(_, ruled)| can_reject(ruled));
        let mut parts =
            parts.map(|(part, Ruled { limit, .. })| backend.count(limit, &part.key, part.cost));
        let MergedCounts { counts, .. } = MergedCounts::of(&mut parts).ok()?;
        let can_wait = |ChargedCount { limit, charge, .. }: &ChargedCount<'_>| {
            let is_mistaken = if self.settles { limit.leases() } else { limit.is_in_flight() };
            charge.cost <= charge.terms.capacity && !is_mistaken
        };
        if counts.is_empty() || !counts.iter().all(can_wait) {
            return None;
        }
        let end = ruled.iter().filter_map(|ruled| ruled.changes_at).min();
        Some(LineSpec {
            counts: counts.into_iter().map(|count| count.address(backend)).collect(),
            is_shared: backend.is_shared(self.policy().scope),
            is_blocked,
            is_virtual: clock.is_virtual(),
            validity: backend.settings.deadline,
            changes_at: end.map(|end| clock.steady().saturating_add(end.saturating_sub(now))),
        })
    }
}
