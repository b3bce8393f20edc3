//! The player: plays operations of all kinds by processes that share a store, and writes down what was admitted.
//!
//! Times are multiples of a tick, in which each rate of a trace refills a whole part of a token. So each moment that a
//! bucket reserves is at a tick, and the player knows exactly when each call starts: it moves the clocks tick by tick
//! while calls wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, Rule, RuleSet};
use support::judge::{BlockJudge, Exception, Judge, Moment};
use support::limits::ruled;

use crate::beside::{Beside, Repeats};
use crate::calls::{Open, Verdict, Waiting};
use crate::exceptions::{Excepted, Missing};
use crate::faults::Crashed;
use crate::fleet::{Fleet, MOST_PROCESSES, Process};
use crate::operation::{Cost, Operation, What};
use crate::trace::{Setup, Trace};

/// How long other processes do not know of a reset, in microseconds; and how long leased units last.
pub(crate) const A_SECOND: u64 = 1_000_000;

/// How long a process may take to come to rest, in real time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

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
    pub(crate) retry: Option<(usize, u64, u64)>,
    pub(crate) missing: Missing,
    pub(crate) slot_moves: bool,
}

impl<'a> Player<'a> {
    /// Plays a trace, and returns the verdict of a judge. A strict judge has a longer period.
    pub(crate) async fn play(fleet: &'a Fleet, trace: &'a Trace, is_strict: bool) -> Verdict {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let setup = &trace.setup;
        // Every trace starts at a tick.
        let tick = setup.tick;
        fleet.begin_again();
        fleet.clock.advance(Duration::from_micros((tick - fleet.now() % tick) % tick));
        fleet.command("FLUSHALL");
        let processes = setup.processes.min(fleet.processes.len());
        let mut player = Self {
            fleet,
            setup,
            judge: setup.judge(is_strict),
            blocks: BlockJudge::with_skew(setup.difference()),
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
        for process in &player.alive {
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

    pub(crate) fn limiter(&self, process: usize) -> RateLimiter {
        self.alive[process].limiter.clone()
    }

    pub(crate) fn tell(&mut self, what: impl std::fmt::Display) {
        let ticks = (self.now() % (1_000_000 * self.setup.tick)) / self.setup.tick;
        self.verdict.story.push(format!("{ticks}: {what}"));
    }

    async fn operate(&mut self, (process, what): Operation) {
        self.verdict.operations += 1;
        let process = process % self.alive.len();
        self.tell(format_args!("p{process} {what:?}"));
        if !matches!(what, What::Retry) {
            self.retry = None;
        }
        let (limit, settles) = (self.limit(process), self.setup.settles());
        let leased = self.setup.leased(&limit);
        match what {
            What::Check(cost) => self.call_at_once(process, &leased, cost, false).await,
            What::Burst(calls) => {
                for _ in 0..calls {
                    let cost = Cost::Units(self.setup.unit);
                    self.call_at_once(process, &leased, cost, false).await;
                }
            }
            // Charges of a limit that leases are not settled.
            What::Acquire(cost) if settles => {
                self.call_at_once(process, &limit, cost, true).await;
            }
            // A call that waits does not lease, so in a window it would have another count.
            What::Wait { cost, ticks, acquires } if settles => {
                self.wait(process, cost.of(&limit), ticks, acquires).await;
            }
            What::Several { cost, acquires } if settles => {
                self.several(process, cost, acquires).await;
            }
            What::Once { cost, id } if settles => self.once(process, cost, id).await,
            What::Acquire(_) | What::Wait { .. } | What::Several { .. } | What::Once { .. } => {}
            What::Drop(which) => self.drop_waiting(which).await,
            What::Pause(which) => self.pause(which).await,
            What::Settle { which, used } => self.settle(which, used).await,
            What::Keep(which) => {
                if let Some(open) = self.take_permit(which) {
                    open.permit.keep();
                }
            }
            What::Refund(units) => {
                self.limiter(process).credit(&limit, &self.key, units).await.expect("refunded");
                self.in_force(self.now(), &limit);
                self.judge.excepted(self.now(), Exception::Refund(units));
                // Some of the units may be of moments ahead.
                self.except(None, Excepted::Call);
                self.collect().await;
            }
            What::Reset => {
                self.limiter(process).reset(&limit, &self.key).await.expect("reset");
                self.lose(Some(process)).await;
            }
            What::Block(ticks) => {
                let time = ticks * self.setup.tick;
                let (until, blocked) = (self.now() + time, Duration::from_micros(time));
                self.limiter(process).block(&limit, &self.key, blocked).await.expect("blocked");
                self.blocks.blocked(process, self.moment(), until);
                self.collect().await;
            }
            What::Unblock => {
                self.limiter(process).unblock(&limit, &self.key).await.expect("unblocked");
                self.blocks.unblocked(self.now());
                self.collect().await;
            }
            What::Free { shadow } => self.free(process, shadow).await,
            What::Change(amounts) => self.amounts = amounts % self.setup.amounts.len(),
            What::Rule(amounts) => self.rule(process, amounts).await,
            What::Advance(ticks) => self.advance(ticks).await,
            What::Idle => self.idle().await,
            What::Step(ticks) => self.step(process, ticks).await,
            What::Retry => self.repeat().await,
            What::Evict => {
                if self.fleet.evict(self.name, &self.key) {
                    self.lose(None).await;
                }
            }
            What::LoseReply { request, cost } => self.lose_reply(request, cost).await,
            What::Crash => self.crash(process).await,
            // A decision about two keys would wait until both are on one node, so each trace has one.
            What::MoveSlot if self.slot_moves => {
                self.fleet.finish_move(&self.key);
                self.slot_moves = false;
            }
            What::MoveSlot => self.slot_moves = self.fleet.begin_move(&self.key, false),
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
        self.call_at_once(process, &limit, Cost::Units(cost), false).await;
        if self.verdict.admitted == before {
            self.verdict.faults.push(format!("`retry_after` of {wait} us was too short"));
        }
    }

    /// Returns the limit with the amounts that are in force for the calls of a process.
    pub(crate) fn limit(&self, process: usize) -> Limit {
        self.setup.limit(self.name, self.ruled[process].unwrap_or(self.amounts))
    }

    /// A rule sets the amounts of the limit in one process.
    async fn rule(&mut self, process: usize, amounts: usize) {
        let amounts = amounts % self.setup.amounts.len();
        (self.is_free[process], self.ruled[process]) = (false, Some(amounts));
        let amounts = self.setup.limit(self.name, amounts);
        let mut waits = false;
        for waiting in self.waiting.iter_mut().filter(|it| it.call.process == process) {
            waiting.call.limits.push(amounts);
            waits = true;
        }
        if waits {
            // These calls can reserve moments under it, also if they are dropped later.
            self.in_force(self.now(), &amounts);
        }
        let rule = Rule::new().threshold(amounts.threshold()).burst(amounts.capacity());
        self.limiter(process).set_rules(ruled(self.name, rule)).expect("valid rules");
        self.collect().await;
    }

    /// A rule exempts the calls of a process, or makes their limit a shadow. The judge does not know them.
    async fn free(&mut self, process: usize, shadow: bool) {
        (self.is_free[process], self.ruled[process]) = (true, None);
        // Calls that wait leave their line, and may be decided after the next change of the rules.
        for waiting in self.waiting.iter_mut().filter(|it| it.call.process == process) {
            waiting.call.is_free = true;
        }
        let rule = if shadow { Rule::new().shadow(true) } else { Rule::new().exempt(true) };
        self.limiter(process).set_rules(ruled(self.name, rule)).expect("valid rules");
        self.collect().await;
    }
}

// The time of the trace, and the clocks of the processes, which may be ahead or behind.
impl Player<'_> {
    pub(crate) fn pass(&mut self, micros: u64) {
        self.fleet.clock.advance(Duration::from_micros(micros));
        self.fleet.expire(micros);
        self.move_clocks();
    }

    /// Moves the clocks, tick by tick while calls wait.
    pub(crate) async fn advance(&mut self, ticks: u64) {
        for passed in 0..ticks {
            if !self.has_waited {
                return self.pass((ticks - passed) * self.setup.tick);
            }
            self.pass(self.setup.tick);
            self.collect().await;
        }
    }

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
    async fn step(&mut self, process: usize, ticks: u64) {
        let skew = self.setup.skew;
        if skew > 0 {
            let ahead_by = (ticks % (2 * skew + 1)) as i64 - skew as i64;
            self.ahead_by[process] = ahead_by * self.setup.tick as i64;
            self.move_clocks();
            self.collect().await;
        }
    }

    /// Lets so much time pass that the server expires an idle count. Calls that wait would make it busy.
    async fn idle(&mut self) {
        if !self.has_waited {
            // A key expires up to 10 seconds and a minute, or an eighth, after its state no longer matters.
            let time = 3 * self.setup.period + 130_000_000;
            self.pass(time.next_multiple_of(self.setup.tick));
            self.collect().await;
        }
    }
}

pub(crate) fn show(limit: &Limit) -> String {
    format!("{} (burst {})", limit.threshold(), limit.capacity())
}
