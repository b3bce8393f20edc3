//! The player: plays operations of all kinds against processes that share a store, and writes down what was admitted.
//!
//! Times are multiples of a tick, in which each rate of a trace refills a whole part of a token. So each moment that a
//! bucket reserves is at a tick, and the player knows exactly when each call starts: it moves the clock tick by tick
//! while calls wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, RateLimiter, Rejection, RuleSet, Source};
use support::judge::{Judge, JudgedCall};

use crate::beside::Beside;
use crate::calls::{Admitted, Open, Verdict, Waiting};
use crate::exceptions::Excepted;
use crate::fleet::{Fleet, MOST_PROCESSES};
use crate::trace::{Kind, Operation, Setup, Trace};

/// How long other processes do not know of a closing or a reset, in microseconds; and how long leased units last.
pub(crate) const A_SECOND: u64 = 1_000_000;

/// The state of a trace that is played.
pub(crate) struct Player<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) setup: &'a Setup,
    pub(crate) judge: Judge,
    pub(crate) name: &'static str,
    pub(crate) key: String,
    /// The amounts of the next calls, by their place in the setup.
    pub(crate) amounts: usize,
    /// The amounts that a rule of each process sets.
    pub(crate) ruled: [Option<usize>; MOST_PROCESSES],
    /// The processes whose calls a rule exempts, or admits in any case.
    pub(crate) is_free: [bool; MOST_PROCESSES],
    pub(crate) beside: Beside,
    pub(crate) waiting: Vec<Waiting>,
    /// The threshold and the units of calls that were charged before they started.
    pub(crate) ahead: Vec<(u32, u32)>,
    /// Whether a call has waited since the lines were last seen at rest.
    has_waited: bool,
    permits: Vec<Open>,
    verdict: Verdict,
    /// Until when leased units of an excepted count are spent.
    pub(crate) leases_excepted_until: u64,
    /// Until when calls of other processes start although the key is closed.
    pub(crate) closing_is_new_until: u64,
    /// The process, the cost and the wait of the last rejection, if nothing happened since.
    retry: Option<(usize, u32, u64)>,
}

impl<'a> Player<'a> {
    /// Plays a trace, and returns the verdict of a judge.
    pub(crate) async fn play(fleet: &'a Fleet, trace: &'a Trace) -> Verdict {
        let (limit, align) = trace.setup.judged();
        Self::play_before(Judge::new(&limit, align), fleet, trace).await
    }

    /// Plays a trace before a judge.
    pub(crate) async fn play_before(judge: Judge, fleet: &'a Fleet, trace: &'a Trace) -> Verdict {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let setup = &trace.setup;
        // Every trace starts at a tick.
        let tick = setup.tick;
        fleet.advance((tick - fleet.now() % tick) % tick);
        let mut player = Self {
            fleet,
            setup,
            judge,
            name: "judged",
            key: NEXT.fetch_add(1, Ordering::Relaxed).to_string(),
            amounts: 0,
            ruled: [None; MOST_PROCESSES],
            is_free: [false; MOST_PROCESSES],
            beside: Beside::new(setup),
            waiting: Vec::new(),
            ahead: Vec::new(),
            has_waited: false,
            permits: Vec::new(),
            verdict: Verdict::default(),
            leases_excepted_until: 0,
            closing_is_new_until: 0,
            retry: None,
        };
        for process in &fleet.processes {
            process.set_rules(RuleSet::new()).expect("no rules");
        }
        for operation in &trace.operations {
            player.operate(*operation).await;
        }
        player.end().await
    }

    pub(crate) fn now(&self) -> u64 {
        self.fleet.now()
    }

    pub(crate) fn process(&self, number: usize) -> usize {
        number % self.setup.processes.min(self.fleet.processes.len())
    }

    pub(crate) fn limiter(&self, number: usize) -> &'a RateLimiter {
        &self.fleet.processes[self.process(number)]
    }

    pub(crate) fn tell(&mut self, what: impl std::fmt::Display) {
        let ticks = (self.now() % (1_000_000 * self.setup.tick)) / self.setup.tick;
        self.verdict.story.push(format!("{ticks}: {what}"));
    }

    async fn operate(&mut self, operation: Operation) {
        if !matches!(operation, Operation::Retry) {
            self.retry = None;
        }
        match operation {
            Operation::Check { process, cost } => {
                let limit = self.setup.leased(&self.limit(process));
                self.check(process, &limit, cost).await;
            }
            // Charges of a limit that leases are not settled.
            Operation::Acquire { process, cost } if self.setup.settles() => {
                let limit = self.limit(process);
                let cost = cost.of(&limit);
                let result = self.limiter(process).acquire(&limit, &self.key, cost).await;
                let result = result.map(|permit| (permit.decision(), Some(permit)));
                self.ended(process, cost, &[limit], (self.now(), self.now()), Excepted::No, result);
            }
            // A call that waits does not lease, so in a window it would have another count.
            Operation::Wait { process, cost, ticks, acquires } if self.setup.settles() => {
                let wait = Duration::from_micros(ticks * self.setup.tick);
                self.wait(process, cost.of(&self.limit(process)), wait, acquires).await;
            }
            Operation::DropWaiting { which } if !self.waiting.is_empty() => {
                let waiting = self.waiting.swap_remove(which % self.waiting.len());
                waiting.task.abort();
                let _ = waiting.task.await;
                self.tell(format_args!("p{} drops its call of {}", waiting.process, waiting.cost));
                self.collect().await;
            }
            Operation::Settle { which, used } if !self.permits.is_empty() => {
                let open = self.permits.swap_remove(which % self.permits.len());
                self.settle(open, used.into()).await;
            }
            Operation::Keep { which } if !self.permits.is_empty() => {
                self.permits.swap_remove(which % self.permits.len()).permit.keep();
            }
            Operation::Refund { process, units } => self.refund(process, units).await,
            Operation::Reset { process } => self.reset(process).await,
            Operation::Close { process, ticks } => self.close(process, ticks).await,
            Operation::Open { process } => self.open(process).await,
            Operation::Together { process, cost, acquires } if self.setup.settles() => {
                self.together(process, cost, acquires).await;
            }
            Operation::Acquire { .. }
            | Operation::Wait { .. }
            | Operation::DropWaiting { .. }
            | Operation::Settle { .. }
            | Operation::Keep { .. }
            | Operation::Together { .. } => {}
            Operation::Evict => self.evict().await,
            Operation::Free { process, shadow } => self.free(process, shadow).await,
            Operation::Change { amounts } => self.change(amounts),
            Operation::Rule { process, amounts } => self.rule(process, amounts).await,
            Operation::Advance { ticks } => self.advance(ticks).await,
            Operation::Retry => self.repeat().await,
        }
    }

    async fn check(&mut self, process: usize, limit: &Limit, cost: crate::trace::Cost) {
        let cost = cost.of(limit);
        let result = self.limiter(process).check(limit, &self.key, cost).await;
        if let Err(Rejection::Limited { decision, .. }) = &result
            && self.waiting.is_empty()
        {
            self.retry = Some((process, cost, decision.retry_after.as_micros() as u64));
        }
        let result = result.map(|decision| (decision, None));
        self.ended(
            process,
            cost,
            std::slice::from_ref(limit),
            (self.now(), self.now()),
            Excepted::No,
            result,
        );
    }

    async fn wait(&mut self, process: usize, cost: u32, wait: Duration, acquires: bool) {
        let limit = self.limit(process);
        let (waits, clock) = (limit.clone().wait(wait), self.fleet.clock.clone());
        let limiter = self.limiter(process).clone();
        let key = self.key.clone();
        let task = tokio::spawn(async move {
            let result = if acquires {
                let permit = limiter.acquire(&waits, key, cost).await;
                permit.map(|permit| (permit.decision(), Some(permit)))
            } else {
                limiter.check(&waits, key, cost).await.map(|decision| (decision, None))
            };
            (clock.now().as_micros() as u64, result)
        });
        self.tell(format_args!("p{process} waits {wait:?} for {cost} of {}", show(&limit)));
        let (decided, process) = (self.now(), self.process(process));
        // It starts after the calls before it, or takes the moment of one that is dropped.
        let before = self.waiting.iter().filter(|waiting| waiting.process == process);
        let excepted = before.map(|waiting| waiting.excepted).max().unwrap_or(Excepted::No);
        self.in_force(decided, &limit);
        let limits = vec![limit];
        self.has_waited = true;
        self.waiting.push(Waiting { process, cost, limits, decided, excepted, task });
        self.collect().await;
    }

    /// Records the calls that have ended.
    pub(crate) async fn collect(&mut self) {
        if !self.has_waited {
            return;
        }
        self.fleet.settle(self.setup.processes.min(self.fleet.processes.len())).await;
        self.has_waited = !self.waiting.is_empty();
        let mut index = 0;
        while index < self.waiting.len() {
            if !self.waiting[index].task.is_finished() {
                index += 1;
                continue;
            }
            let waiting = self.waiting.remove(index);
            let Waiting { process, cost, limits, decided, excepted, task } = waiting;
            let (at, result) = task.await.expect("no panic");
            self.ended(process, cost, &limits, (decided, at), excepted, result);
        }
    }

    /// Records a call that was decided at one time and ended at another.
    pub(crate) fn ended(
        &mut self,
        process: usize,
        cost: u32,
        limits: &[Limit],
        (decided, at): (u64, u64),
        mut excepted: Excepted,
        result: Result<Admitted, Rejection>,
    ) {
        let limit = limits.last().expect("a limit");
        if self.is_free[self.process(process)] {
            return;
        }
        let (decision, permit) = match result {
            Ok(admitted) => admitted,
            Err(Rejection::Limited { .. } | Rejection::Closed { .. }) => {
                self.in_force(at, limit);
                self.tell(format_args!("p{process}: {cost} of {} rejected", show(limit)));
                return;
            }
            Err(Rejection::CostExceedsCapacity { .. }) => return,
            Err(other) => {
                self.verdict.faults.push(format!("{other}"));
                return;
            }
        };
        self.in_force(decided, limit);
        let is_leased = decision.source == Source::Lease;
        if is_leased && at < self.leases_excepted_until {
            excepted = Excepted::Call;
        }
        let call = self.judge.admitted(JudgedCall {
            starts: (at, at),
            decided,
            charged: cost.into(),
            threshold: limits.iter().map(Limit::threshold).max().unwrap_or(0),
            capacity: limits.iter().map(Limit::capacity).max().unwrap_or(0),
        });
        let knows_no_closing = (is_leased || decided < at) && at < self.closing_is_new_until;
        match excepted {
            Excepted::No => {}
            Excepted::Start => self.judge.except_start(call),
            Excepted::Call => self.judge.except_call(call),
        }
        if knows_no_closing {
            self.judge.except_closing(call);
        }
        if self.setup.is_bucket() && excepted != Excepted::Call && (decided < at || is_leased) {
            self.ahead.push((limit.threshold(), cost));
        }
        self.verdict.admitted += 1;
        let Decision { source, remaining, .. } = decision;
        self.tell(format_args!(
            "p{process}: {cost} of {} admitted by {source:?}, {remaining} remain",
            show(limit)
        ));
        if let Some(permit) = permit {
            self.permits.push(Open { process, permit, cost, call });
        }
    }

    async fn settle(&mut self, open: Open, used: u64) {
        let Open { process, permit, cost, call } = open;
        let used =
            if self.setup.left.contains(&Kind::Debts) { used.min(cost.into()) } else { used };
        self.tell(format_args!("p{process} settles a call to {used}"));
        permit.settle(used as u32);
        self.limiter(process).flush().await.expect("settled");
        self.judge.settled(call, self.now(), used);
        if used > cost.into() {
            self.except(None, Excepted::Start);
        }
        self.collect().await;
    }

    /// Moves the clock, tick by tick while calls wait.
    async fn advance(&mut self, ticks: u64) {
        for passed in 0..ticks {
            if !self.has_waited {
                self.fleet.advance((ticks - passed) * self.setup.tick);
                return;
            }
            self.fleet.advance(self.setup.tick);
            self.collect().await;
        }
    }

    /// Repeats a call that was rejected, once it may be.
    async fn repeat(&mut self) {
        let Some((process, cost, wait)) = self.retry.take() else { return };
        let limit = self.setup.leased(&self.limit(process));
        // The player stays at its ticks.
        if !wait.is_multiple_of(self.setup.tick) || wait > 1_000_000_000_000 {
            return;
        }
        self.fleet.advance(wait);
        let before = self.verdict.admitted;
        self.check(process, &limit, crate::trace::Cost::Units(cost)).await;
        if self.verdict.admitted == before {
            self.verdict.faults.push(format!("`retry_after` of {wait} us was too short"));
        }
    }

    /// Ends all calls. Then nothing is held, and no unit is missing once all is drained or has left its window.
    async fn end(mut self) -> Verdict {
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.task.abort();
            let _ = waiting.task.await;
        }
        let processes = self.setup.processes.min(self.fleet.processes.len());
        self.fleet.settle(processes).await;
        for process in &self.fleet.processes {
            process.set_rules(RuleSet::new()).expect("no rules");
        }
        self.permits.clear();
        self.verdict.breaches = self.judge.breaches();
        self.verdict.breaches.extend(self.beside.breaches());
        self.verdict.faults.extend(self.missing_beside().await);
        for amounts in 0..self.setup.amounts.len() {
            let limit = self.setup.limit(self.name, amounts);
            // Of what was charged, the debts are the largest part.
            let rejected = match self.limiter(0).peek(&limit, &self.key, limit.capacity()).await {
                Err(Rejection::Limited { decision, .. } | Rejection::Closed { decision, .. }) => {
                    decision.retry_after
                }
                _ => Duration::ZERO,
            };
            self.fleet.clock.advance(rejected);
            let left = self.limiter(0).peek(&limit, &self.key, limit.capacity()).await;
            if left.is_err() {
                self.verdict.faults.push(format!("{rejected:?} after the end: {left:?}"));
            }
        }
        self.verdict
    }
}

pub(crate) fn show(limit: &Limit) -> String {
    format!("{} (burst {})", limit.threshold(), limit.capacity())
}
