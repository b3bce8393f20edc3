//! The player: plays operations of all kinds by processes that share a store, and writes down what was admitted.
//!
//! Times are multiples of a tick, in which each rate of a trace refills a whole part of a token. So each moment that a
//! bucket reserves is at a tick, and the player knows exactly when each call starts: it moves the clocks tick by tick
//! while calls wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, RateLimiter, Rejection, Rule, RuleSet, Source};
use support::judge::{BlockJudge, Exception, GrantedCall, Judge, JudgedCall, Moment};

use crate::beside::Beside;
use crate::calls::{Admitted, Open, Verdict, Waiting};
use crate::exceptions::Excepted;
use crate::faults::Crashed;
use crate::fleet::{Fleet, MOST_PROCESSES, Process};
use crate::operation::{Cost, Operation, What};
use crate::repeats::Repeats;
use crate::rest::Missing;
use crate::trace::{Setup, Trace};

/// How long other processes do not know of a reset, in microseconds; and how long leased units last.
pub(crate) const A_SECOND: u64 = 1_000_000;

/// How long a process may take to come to rest, in real time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The state of a trace that is played.
pub(crate) struct Player<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) setup: &'a Setup,
    pub(crate) judge: Judge,
    pub(crate) blocks: BlockJudge,
    pub(crate) name: &'static str,
    pub(crate) key: String,
    /// The processes, of which some have taken the place of one that was killed.
    pub(crate) alive: Vec<Process>,
    /// By how much the clock of each process is ahead.
    pub(crate) ahead_by: [i64; MOST_PROCESSES],
    /// The latest time of the clock of each process, in microseconds.
    pub(crate) latest: [u64; MOST_PROCESSES],
    pub(crate) crashed: Vec<Crashed>,
    /// The amounts of the next calls, by their place in the setup.
    pub(crate) amounts: usize,
    /// The amounts that a rule of each process sets.
    pub(crate) ruled: [Option<usize>; MOST_PROCESSES],
    /// The processes whose calls a rule exempts, or admits in any case.
    pub(crate) is_free: [bool; MOST_PROCESSES],
    pub(crate) beside: Beside,
    pub(crate) repeats: Repeats,
    pub(crate) waiting: Vec<Waiting>,
    /// The threshold and the units of calls that were charged before they started, and when they started.
    pub(crate) ahead: Vec<(u64, u64, u64)>,
    /// When calls were decided under each threshold and capacity, for as long as units that were leased then are spent.
    pub(crate) recent: Vec<(u64, u64, u64)>,
    /// Since when calls of each process are not polled. Grants may be as old.
    pub(crate) granted_from: [Option<Moment>; MOST_PROCESSES],
    /// Whether a call has waited since the lines were last seen at rest.
    pub(crate) has_waited: bool,
    pub(crate) permits: Vec<Open>,
    pub(crate) verdict: Verdict,
    /// Until when leased units of an excepted count are spent.
    pub(crate) leases_excepted_until: u64,
    /// Until when leased units are spent that were charged before a call has used more than its charge.
    pub(crate) debt_is_new_until: u64,
    /// The process, the cost and the wait of the last rejection, if nothing happened since.
    retry: Option<(usize, u64, u64)>,
    pub(crate) missing: Missing,
    pub(crate) slot_moves: bool,
}

/// A call that has ended.
pub(crate) struct Ended {
    pub(crate) process: usize,
    pub(crate) cost: u64,
    pub(crate) limits: Vec<Limit>,
    pub(crate) decided: u64,
    /// The earliest moment at which it may have been granted, and when it has started.
    pub(crate) granted: Moment,
    pub(crate) at: u64,
    pub(crate) excepted: Excepted,
    /// Whether a rule has exempted the call when it began, or has made its limit a shadow.
    pub(crate) is_free: bool,
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
        fleet.begin_again();
        fleet.clock.advance(Duration::from_micros((tick - fleet.now() % tick) % tick));
        fleet.clear();
        let processes = setup.processes.min(fleet.processes.len());
        let mut player = Self {
            fleet,
            setup,
            judge: setup.with_exceptions(judge),
            blocks: setup.block_judge(),
            name: "judged",
            key: NEXT.fetch_add(1, Ordering::Relaxed).to_string(),
            alive: fleet.processes[..processes].to_vec(),
            ahead_by: [0; MOST_PROCESSES],
            latest: [0; MOST_PROCESSES],
            crashed: Vec::new(),
            amounts: 0,
            ruled: [None; MOST_PROCESSES],
            is_free: [false; MOST_PROCESSES],
            beside: Beside::new(setup),
            repeats: Repeats::new(setup),
            waiting: Vec::new(),
            ahead: Vec::new(),
            granted_from: [None; MOST_PROCESSES],
            has_waited: false,
            permits: Vec::new(),
            verdict: Verdict::default(),
            leases_excepted_until: 0,
            debt_is_new_until: 0,
            recent: Vec::new(),
            retry: None,
            missing: Missing::default(),
            slot_moves: false,
        };
        player.move_clocks();
        for process in player.processes() {
            process.limiter.set_rules(RuleSet::new()).expect("no rules");
        }
        for operation in &trace.operations {
            player.operate(*operation).await;
        }
        player.end().await
    }

    pub(crate) fn now(&self) -> u64 {
        self.fleet.now()
    }

    /// Returns the time, and the number of the operation that is played.
    pub(crate) fn moment(&self) -> Moment {
        (self.now(), self.verdict.operations)
    }

    pub(crate) fn process(&self, number: usize) -> usize {
        number % self.alive.len()
    }

    pub(crate) fn processes(&self) -> &[Process] {
        &self.alive
    }

    pub(crate) fn limiter(&self, number: usize) -> RateLimiter {
        self.alive[self.process(number)].limiter.clone()
    }

    pub(crate) fn tell(&mut self, what: impl std::fmt::Display) {
        let ticks = (self.now() % (1_000_000 * self.setup.tick)) / self.setup.tick;
        self.verdict.story.push(format!("{ticks}: {what}"));
    }

    async fn operate(&mut self, Operation { process, what }: Operation) {
        self.verdict.operations += 1;
        if !matches!(what, What::Retry) {
            self.retry = None;
        }
        match what {
            What::Check(cost) => {
                let limit = self.setup.leased(&self.limit(process));
                self.check(process, &limit, cost).await;
            }
            What::Burst(calls) => {
                let limit = self.setup.leased(&self.limit(process));
                for _ in 0..calls {
                    self.check(process, &limit, Cost::Units(self.setup.unit)).await;
                }
            }
            // Charges of a limit that leases are not settled.
            What::Acquire(cost) if self.setup.settles() => self.acquire(process, cost).await,
            // A call that waits does not lease, so in a window it would have another count.
            What::Wait { cost, ticks, acquires } if self.setup.settles() => {
                self.wait(process, cost.of(&self.limit(process)), ticks, acquires).await;
            }
            What::Several { cost, acquires } if self.setup.settles() => {
                self.several(process, cost, acquires).await;
            }
            What::Once { cost, id } if self.setup.settles() => self.once(process, cost, id).await,
            What::Acquire(_) | What::Wait { .. } | What::Several { .. } | What::Once { .. } => {}
            What::Drop(which) => self.drop_waiting(which).await,
            What::Pause(which) => self.pause(which).await,
            What::Settle { which, used } => self.settle(which, used).await,
            What::Keep(which) => {
                if let Some(open) = self.take_permit(which) {
                    open.permit.keep();
                }
            }
            What::Refund(units) => self.refund(process, units).await,
            What::Reset => self.reset(process).await,
            What::Block(ticks) => self.block(process, ticks).await,
            What::Unblock => self.unblock(process).await,
            What::Free { shadow } => self.free(process, shadow).await,
            What::Change(amounts) => self.change(amounts),
            What::Rule(amounts) => self.rule(process, amounts).await,
            What::Advance(ticks) => self.advance(ticks).await,
            What::Idle => self.idle().await,
            What::Step(ticks) => self.step(process, ticks).await,
            What::Retry => self.repeat().await,
            What::Evict => self.evict().await,
            What::LoseReply { request, cost } => self.lose_reply(request, cost).await,
            What::Crash => self.crash(process).await,
            What::MoveSlot => self.move_slot(),
        }
    }

    async fn check(&mut self, process: usize, limit: &Limit, cost: Cost) {
        let cost = cost.of(limit);
        let result = self.limiter(process).check(limit, &self.key, cost).await;
        if let Err(Rejection::Limited { decision, .. }) = &result
            && self.waiting.is_empty()
            // A cached rejection does not know of a surplus that was charged since.
            && decision.source != Source::Cache
        {
            self.retry = Some((process, cost, decision.retry_after.as_micros() as u64));
        }
        let result = result.map(|decision| (decision, None));
        self.ended(self.at_once(process, cost, limit), result);
    }

    async fn acquire(&mut self, process: usize, cost: Cost) {
        let limit = self.limit(process);
        let cost = cost.of(&limit);
        let result = self.limiter(process).acquire(&limit, &self.key, cost).await;
        let result = result.map(|permit| (permit.decision(), Some(permit)));
        self.ended(self.at_once(process, cost, &limit), result);
    }

    /// Returns a call that did not wait.
    pub(crate) fn at_once(&self, process: usize, cost: u64, limit: &Limit) -> Ended {
        let (limits, decided, excepted) = (vec![*limit], self.now(), Excepted::No);
        let is_free = self.is_free[self.process(process)];
        let (granted, at) = (self.moment(), decided);
        Ended { process, cost, limits, decided, granted, at, excepted, is_free }
    }

    /// Records a call that has ended.
    pub(crate) fn ended(&mut self, ended: Ended, result: Result<Admitted, Rejection>) {
        let Ended { process, cost, limits, decided, granted, at, mut excepted, is_free } = ended;
        let (limit, starts) = (limits.last().expect("a limit"), (granted.0, at));
        if is_free || self.is_free[self.process(process)] {
            // A shadow charges what the limit admits. The decision about an exempt call has no limit.
            if matches!(&result, Ok((decision, _)) if decision.limit < u64::MAX) {
                self.in_force(at, limit);
            }
            self.missing.units += cost;
            self.judge.unseen(starts);
            return;
        }
        let (decision, permit) = match result {
            Ok(admitted) => admitted,
            Err(Rejection::Limited { .. } | Rejection::Blocked { .. }) => {
                self.in_force(at, limit);
                if starts.0 < at {
                    // It was not polled, and did not take what it may have been granted.
                    self.judge.unseen(starts);
                    self.missing.units += cost;
                }
                self.tell(format_args!("p{process}: {cost} of {} rejected", show(limit)));
                return;
            }
            Err(Rejection::CostExceedsCapacity { .. }) => return,
            Err(other) => {
                self.verdict.faults.push(format!("{other:?}"));
                return;
            }
        };
        self.in_force(decided, limit);
        let is_leased = decision.source == Source::Lease;
        if is_leased && at < self.leases_excepted_until {
            excepted = Excepted::Call;
        }
        if is_leased && at < self.debt_is_new_until {
            excepted = excepted.max(Excepted::Start);
        }
        let amounts = limits.iter().map(|limit| (limit.threshold(), limit.capacity()));
        // Since leased units were charged, other calls may have filled the count under a larger limit.
        let beside = self.recent.iter().filter(|_| is_leased);
        let amounts = amounts.chain(beside.map(|(_, threshold, capacity)| (*threshold, *capacity)));
        let (threshold, capacity) =
            amounts.reduce(|one, other| (one.0.max(other.0), one.1.max(other.1))).unwrap_or((0, 0));
        let call =
            self.judge.admitted(JudgedCall { starts, decided, charged: cost, threshold, capacity });
        let is_ahead = is_leased || self.setup.is_bucket() && decided < at;
        let number = self.process(process);
        if self.blocks.objects_to(GrantedCall { process: number, granted, starts: at, is_ahead }) {
            self.verdict.faults.push(format!("{at}: p{number} admits a call of a blocked key"));
        }
        match excepted {
            Excepted::No => {}
            Excepted::Start => self.judge.except_start(call),
            Excepted::Call => {
                self.judge.except_call(call);
                self.missing.units += cost;
            }
        }
        if self.setup.is_bucket() && excepted != Excepted::Call && is_ahead {
            self.ahead.push((limit.threshold(), cost, at));
        }
        self.verdict.admitted += 1;
        let Decision { source, remaining, .. } = decision;
        self.tell(format_args!(
            "p{process}: {cost} of {} admitted by {source:?}, {remaining} remain",
            show(limit)
        ));
        if let Some(permit) = permit {
            let is_excepted = excepted == Excepted::Call;
            self.permits.push(Open { process, permit, cost, call, is_excepted });
        }
    }

    pub(crate) fn take_permit(&mut self, which: usize) -> Option<Open> {
        let length = self.permits.len();
        (length > 0).then(|| self.permits.swap_remove(which % length))
    }

    async fn settle(&mut self, which: usize, used: u64) {
        let Some(open) = self.take_permit(which) else { return };
        let Open { process, permit, cost, call, is_excepted } = open;
        let is_debt = used > cost;
        if is_debt && self.setup.leaves_out("debt") {
            return;
        }
        self.tell(format_args!("p{process} settles a call of {cost} to {used}"));
        permit.settle(used);
        self.limiter(process).flush().await.expect("settled");
        self.judge.settled(call, self.now(), used);
        if is_debt {
            self.missing.debts += used - cost;
            self.missing.units += if is_excepted { used - cost } else { 0 };
            self.except(None, Excepted::Start);
            self.except_paused(Excepted::Start);
            self.debt_is_new_until = self.now() + A_SECOND;
        }
        self.collect().await;
    }

    /// Moves the clocks, tick by tick while calls wait.
    pub(crate) async fn advance(&mut self, ticks: u64) {
        for passed in 0..ticks {
            if !self.has_waited {
                self.pass((ticks - passed) * self.setup.tick);
                return;
            }
            self.pass(self.setup.tick);
            self.collect().await;
        }
    }

    /// Repeats a call that was rejected, once it may be.
    async fn repeat(&mut self) {
        let Some((process, cost, wait)) = self.retry.take() else { return };
        let limit = self.setup.leased(&self.limit(process));
        // The player stays at its ticks. A clock that is behind the others does not know when a call may be repeated.
        let is_at_tick = wait.is_multiple_of(self.setup.tick) && wait <= 1_000_000_000_000;
        if !is_at_tick || self.setup.skew > 0 {
            return;
        }
        self.pass(wait);
        let before = self.verdict.admitted;
        self.check(process, &limit, Cost::Units(cost)).await;
        if self.verdict.admitted == before {
            self.verdict.faults.push(format!("`retry_after` of {wait} us was too short"));
        }
    }
}

// The amounts of calls: as their limits say, as computed for a call, or as a rule says.
impl Player<'_> {
    /// Returns the limit with the amounts that are in force for the calls of a process.
    pub(crate) fn limit(&self, process: usize) -> Limit {
        self.setup.limit(self.name, self.ruled[self.process(process)].unwrap_or(self.amounts))
    }

    /// Other amounts are in force for the next calls.
    pub(crate) fn change(&mut self, amounts: usize) {
        self.amounts = amounts % self.setup.amounts.len();
        let limit = self.setup.limit(self.name, self.amounts);
        self.tell(format_args!("the amounts are {}", show(&limit)));
    }

    /// A rule sets the amounts of the limit in one process.
    pub(crate) async fn rule(&mut self, process: usize, amounts: usize) {
        let amounts = amounts % self.setup.amounts.len();
        let number = self.process(process);
        (self.is_free[number], self.ruled[number]) = (false, Some(amounts));
        let amounts = self.setup.limit(self.name, amounts);
        let mut waits = false;
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.process == number) {
            waiting.limits.push(amounts);
            waits = true;
        }
        if waits {
            // These calls can reserve moments under it, also if they are dropped later.
            self.in_force(self.now(), &amounts);
        }
        let rule = Rule::new().threshold(amounts.threshold()).burst(amounts.capacity());
        let mut rules = RuleSet::new();
        rules.set(self.name, rule).expect("valid");
        self.limiter(process).set_rules(rules).expect("valid rules");
        self.tell(format_args!("a rule of p{number}: {}", show(&amounts)));
        self.collect().await;
    }
}

// What an operator does to a count.
impl Player<'_> {
    pub(crate) async fn refund(&mut self, process: usize, units: u64) {
        let limit = self.limit(process);
        self.limiter(process).credit(&limit, &self.key, units).await.expect("refunded");
        self.tell(format_args!("p{process} refunds {units}"));
        self.in_force(self.now(), &limit);
        self.judge.excepted(self.now(), Exception::Refund { units });
        // Some of the units may be of moments ahead.
        self.except(None, Excepted::Call);
        self.collect().await;
    }

    pub(crate) async fn reset(&mut self, process: usize) {
        self.limiter(process).reset(&self.limit(process), &self.key).await.expect("reset");
        self.tell(format_args!("p{process} resets"));
        self.lose(Some(process)).await;
    }

    pub(crate) async fn block(&mut self, process: usize, ticks: u64) {
        let (from, time) = (self.now(), ticks * self.setup.tick);
        let blocked = Duration::from_micros(time);
        let limiter = self.limiter(process);
        limiter.block(&self.limit(process), &self.key, blocked).await.expect("blocked");
        self.tell(format_args!("p{process} blocks for {ticks} ticks"));
        let by = self.process(process);
        self.blocks.blocked(by, self.moment(), from + time);
        self.collect().await;
    }

    pub(crate) async fn unblock(&mut self, process: usize) {
        self.limiter(process).unblock(&self.limit(process), &self.key).await.expect("unblocked");
        self.tell(format_args!("p{process} unblocks"));
        self.blocks.unblocked(self.now());
        self.collect().await;
    }
}

// The time of the trace, and the clocks of the processes, which may be ahead or behind.
impl Player<'_> {
    /// Lets time pass.
    pub(crate) fn pass(&mut self, micros: u64) {
        self.fleet.clock.advance(Duration::from_micros(micros));
        self.fleet.expire(micros);
        self.move_clocks();
    }

    /// Sets the clock of each process.
    pub(crate) fn move_clocks(&mut self) {
        for (number, process) in self.alive.iter().enumerate() {
            let time = self.clock_of(number);
            process.clock.set(Duration::from_micros(time));
            self.latest[number] = self.latest[number].max(time);
        }
    }

    /// Returns the time of the clock of a process, in microseconds.
    fn clock_of(&self, number: usize) -> u64 {
        self.now().saturating_add_signed(self.ahead_by[number])
    }

    /// Returns whether the clock of a process has been later than it is.
    pub(crate) fn is_behind(&self, number: usize) -> bool {
        self.clock_of(number) < self.latest[number]
    }

    /// Sets how much the clock of a process is ahead or behind.
    pub(crate) async fn step(&mut self, process: usize, ticks: u64) {
        if self.setup.skew == 0 {
            return;
        }
        let (number, skew) = (self.process(process), self.setup.skew);
        let ahead_by = (ticks % (2 * skew + 1)) as i64 - skew as i64;
        self.ahead_by[number] = ahead_by * self.setup.tick as i64;
        self.tell(format_args!("the clock of p{number} is {ahead_by} ticks ahead"));
        self.move_clocks();
        self.collect().await;
    }

    /// Lets so much time pass that the server expires an idle count. Calls that wait would make it busy.
    pub(crate) async fn idle(&mut self) {
        if self.has_waited {
            return;
        }
        // A key expires up to 10 seconds and a minute, or an eighth, after its state no longer matters.
        let time = 3 * self.setup.period + 130_000_000;
        let ticks = time.div_ceil(self.setup.tick);
        self.tell(format_args!("nothing happens for {ticks} ticks"));
        self.pass(ticks * self.setup.tick);
        self.collect().await;
    }
}

pub(crate) fn show(limit: &Limit) -> String {
    format!("{} (burst {})", limit.threshold(), limit.capacity())
}
