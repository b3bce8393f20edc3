//! The player: plays operations of all kinds by processes that share a store, and writes down what was admitted.
//!
//! Times are multiples of a tick, in which each rate of a trace refills a whole part of a token. So each moment that a
//! bucket reserves is at a tick, and the player knows exactly when each call starts: it moves the clocks tick by tick
//! while calls wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Decision, Limit, RateLimiter, Rejection, RuleSet, Source};
use support::judge::{BlockJudge, GrantedCall, Judge, JudgedCall, Moment};
use support::operations::OperationKind;

use crate::beside::Beside;
use crate::calls::{Admitted, Open, Verdict, Waiting};
use crate::exceptions::Excepted;
use crate::faults::Crashed;
use crate::fleet::{Fleet, MOST_PROCESSES, Process};
use crate::operation::{Cost, Operation};
use crate::rest::Missing;
use crate::trace::{Setup, Trace};

/// How long other processes do not know of a reset, in microseconds; and how long leased units last.
pub(crate) const A_SECOND: u64 = 1_000_000;

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
    pub(crate) waiting: Vec<Waiting>,
    /// The threshold and the units of calls that were charged before they started.
    pub(crate) ahead: Vec<(u64, u64)>,
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

    async fn operate(&mut self, operation: Operation) {
        self.verdict.operations += 1;
        if !matches!(operation, Operation::Retry) {
            self.retry = None;
        }
        match operation {
            Operation::Check { process, cost } => {
                let limit = self.setup.leased(&self.limit(process));
                self.check(process, &limit, cost).await;
            }
            Operation::Burst { process, calls } => {
                let limit = self.setup.leased(&self.limit(process));
                for _ in 0..calls {
                    self.check(process, &limit, Cost::Units(1)).await;
                }
            }
            // Charges of a limit that leases are not settled.
            Operation::Acquire { process, cost } if self.setup.settles() => {
                self.acquire(process, cost).await;
            }
            // A call that waits does not lease, so in a window it would have another count.
            Operation::Wait { process, cost, ticks, acquires } if self.setup.settles() => {
                self.wait(process, cost.of(&self.limit(process)), ticks, acquires).await;
            }
            Operation::Together { process, cost, acquires } if self.setup.settles() => {
                self.together(process, cost, acquires).await;
            }
            Operation::Acquire { .. } | Operation::Wait { .. } | Operation::Together { .. } => {}
            Operation::DropWaiting { which } => self.drop_waiting(which).await,
            Operation::Pause { which } => self.pause(which).await,
            Operation::Settle { which, used } => self.settle(which, used).await,
            Operation::Keep { which } => {
                if let Some(open) = self.take_permit(which) {
                    open.permit.keep();
                }
            }
            Operation::Refund { process, units } => self.refund(process, units).await,
            Operation::Reset { process } => self.reset(process).await,
            Operation::Block { process, ticks } => self.block(process, ticks).await,
            Operation::Unblock { process } => self.unblock(process).await,
            Operation::Free { process, shadow } => self.free(process, shadow).await,
            Operation::Change { amounts } => self.change(amounts),
            Operation::Rule { process, amounts } => self.rule(process, amounts).await,
            Operation::Advance { ticks } => self.advance(ticks).await,
            Operation::Idle => self.idle().await,
            Operation::Step { process, ticks } => self.step(process, ticks).await,
            Operation::Retry => self.repeat().await,
            Operation::Evict => self.evict().await,
            Operation::LoseReply { request, cost } => self.lose_reply(request, cost).await,
            Operation::Crash { process } => self.crash(process).await,
            Operation::MoveSlot => self.move_slot(),
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
            self.ahead.push((limit.threshold(), cost));
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
        let left = if is_debt { OperationKind::Debt } else { OperationKind::Settle };
        if self.setup.leaves_out(left) {
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

pub(crate) fn show(limit: &Limit) -> String {
    format!("{} (burst {})", limit.threshold(), limit.capacity())
}
