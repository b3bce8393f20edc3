//! The player of calls in flight: plays operations by processes that share a store, and writes down which calls were
//! admitted, and when they ended.

mod calls;
mod comparison;
mod faults;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, Rule, RuleSet};
use support::judge::{BlockJudge, CallId, HolderId, HolderJudge, Judge, Moment};
use tokio::task::JoinHandle;

use super::Trace;
use super::operation::{MOST, Operation, RuleOf, What};
use crate::calls::{Gate, Verdict};
use crate::exceptions::Excepted;
use crate::fleet::{Fleet, Process};

const HOLD: Duration = Duration::from_secs(86_400);
const RATE: Limit = Limit::sliding("beside", 8, Duration::from_secs(2));
const LEASED: Limit = Limit::token_bucket("leased", 1_000, Duration::from_secs(10)).lease(40);
const TICK: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);

/// A call that runs.
struct Running {
    process: usize,
    cost: u64,
    holder: Option<HolderId>,
    /// For the judge of the fallback, if it has admitted the call.
    local: Option<HolderId>,
    /// The rate beside, if there is one.
    rate: Option<CallId>,
    /// One of the rate, if there is one, and one of the units in flight.
    permits: Vec<Permit>,
}

/// A call that waits.
struct WaitingCall {
    call: Begun,
    gate: Arc<Gate>,
    /// Since when the call is not polled.
    paused: Option<Moment>,
    task: JoinHandle<(u64, Result<Vec<Permit>, Rejection>)>,
}

/// A call that is not decided yet.
#[derive(Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Begun {
    process: usize,
    cost: u64,
    is_rated: bool,
    since: u64,
    /// What the judge had recorded when the call began.
    recorded: u64,
    /// The limit in the code when the call began.
    coded: u64,
    /// The largest limit since.
    most: u64,
    /// Whether rules admit it without units, or a reset can have lost them.
    is_free: bool,
    may_fail: bool,
    /// What the promise excepts of a call that may have been granted before.
    excepted: Excepted,
    /// Whether rules admit it without units in flight, or although there are none.
    is_unlimited: bool,
}

/// The blocks of the key, for the units in flight and for the rate beside them.
#[derive(Default)]
struct Blocks {
    slots: BlockJudge,
    rate: BlockJudge,
}

/// What the server knows of the resets in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resets {
    None,
    Known,
    /// It can learn of them again, from a process that knows them.
    Forgotten,
}

/// The state of a trace that is played.
pub(crate) struct SlotPlayer<'a> {
    fleet: &'a Fleet,
    key: String,
    key_of_rate: String,
    alive: Vec<Process>,
    /// The names of the processes for the judge: one that was killed and the one in its place differ.
    ids: Vec<usize>,
    crashed: Vec<(Process, Vec<Running>, Vec<WaitingCall>)>,
    rules: Vec<RuleOf>,
    most: u64,
    judge: HolderJudge,
    /// The judge of what the fallback of the first process admits.
    local: HolderJudge,
    rate: Judge,
    running: Vec<Running>,
    waiting: Vec<WaitingCall>,
    blocks: Blocks,
    /// Since when calls of each process are not polled. Grants may be as old.
    granted_from: Vec<Option<Moment>>,
    /// A call with a grant from before it keeps its turn, or passes it on, without units.
    last_reset: Option<Moment>,
    /// Whether the server can hold units that no call has, or not know of some.
    is_excused: bool,
    slot_moves: bool,
    resets: Resets,
    /// A process whose clock stands still.
    stopped: Option<usize>,
    verdict: Verdict,
}

impl<'a> SlotPlayer<'a> {
    /// Plays a trace, and returns the verdict.
    pub(super) async fn play(fleet: &'a Fleet, trace: &Trace) -> (Verdict, HolderJudge) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fleet.clear();
        let alive = fleet.processes[..trace.processes.min(fleet.processes.len())].to_vec();
        let key = format!("slots{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut player = Self {
            fleet,
            key_of_rate: if trace.is_apart { format!("rate of {key}") } else { key.clone() },
            key,
            rules: vec![RuleOf::Nothing; alive.len()],
            ids: (0..alive.len()).collect(),
            granted_from: vec![None; alive.len()],
            alive,
            crashed: Vec::new(),
            most: trace.most,
            judge: HolderJudge::default(),
            local: HolderJudge::default(),
            rate: Judge::new(&RATE, None),
            running: Vec::new(),
            waiting: Vec::new(),
            blocks: Blocks::default(),
            last_reset: None,
            is_excused: false,
            slot_moves: false,
            resets: Resets::None,
            stopped: None,
            verdict: Verdict::default(),
        };
        player.pass(Duration::ZERO);
        for process in &player.alive {
            process.limiter.set_rules(RuleSet::new()).expect("no rules");
        }
        if !fleet.is_embedded() {
            // The trace before may have restarted the server, and waited for fewer processes.
            player.connect().await;
        }
        for operation in &trace.operations {
            player.verdict.operations += 1;
            player.tell(format_args!("{operation:?}"));
            player.operate(*operation).await;
            player.rest().await;
            player.compare().await;
        }
        player.end().await
    }

    fn now(&self) -> u64 {
        self.fleet.now()
    }

    /// Returns the time, and the number of the operation that is played.
    fn moment(&self) -> Moment {
        (self.now(), self.verdict.operations)
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        let at = self.now() / 1_000 % 1_000_000_000;
        self.verdict.story.push(format!("{at}: {what}"));
    }

    fn process(&self, number: usize) -> usize {
        number % self.alive.len()
    }

    fn limiter(&self, process: usize) -> RateLimiter {
        self.alive[process].limiter.clone()
    }

    fn limit(&self) -> Limit {
        let limit = Limit::in_flight("slots", MOST).hold(HOLD);
        limit.try_amounts(self.most, None).expect("valid")
    }

    /// Returns the limit and the key of the rate, or of the units in flight.
    fn part(&self, is_of_rate: bool) -> (Limit, &str) {
        if is_of_rate { (RATE, &self.key_of_rate) } else { (self.limit(), &self.key) }
    }

    /// Returns the number that is in force for a call of a process with a limit in its code.
    fn most_of(&self, process: usize, coded: u64) -> u64 {
        match self.rules[process] {
            RuleOf::InFlight(most) => most,
            _ => coded,
        }
    }

    fn begin(&self, process: usize, cost: u64, is_rated: bool) -> Begun {
        let (since, recorded, coded) = (self.now(), self.judge.recorded(), self.most);
        let most = self.most_of(process, coded);
        // A decision about keys on two nodes waits until the slot has moved.
        let is_rated = is_rated && !self.slot_moves;
        let is_free = self.rules[process] == RuleOf::Exempt;
        let is_unlimited = is_free || self.rules[process] == RuleOf::Shadow;
        let (may_fail, excepted) = (false, Excepted::No);
        Begun {
            process,
            cost,
            is_rated,
            since,
            recorded,
            coded,
            most,
            is_free,
            may_fail,
            excepted,
            is_unlimited,
        }
    }

    /// Excepts calls that may be granted and are not polled, or that can receive such a grant.
    fn except_paused(&mut self, excepted: Excepted) {
        if self.waiting.iter().any(|waiting| waiting.paused.is_some()) {
            for WaitingCall { call, .. } in &mut self.waiting {
                call.excepted = call.excepted.max(excepted);
            }
        }
    }

    fn pass(&self, time: Duration) {
        self.fleet.clock.advance(time);
        self.fleet.expire(time.as_micros() as u64);
        for (number, process) in self.alive.iter().enumerate() {
            if self.stopped != Some(number) {
                process.clock.set(self.fleet.clock.now());
            }
        }
    }

    async fn operate(&mut self, Operation { process, what }: Operation) {
        let process = self.process(process);
        match what {
            What::Call { cost, is_rated, ticks } => {
                let call = self.begin(process, cost, is_rated);
                match ticks {
                    None => {
                        let future = self.acquire(call, Duration::ZERO);
                        let result = future.await;
                        self.decided(call, result);
                    }
                    Some(ticks) => self.wait(call, TICK * ticks as u32),
                }
            }
            What::End { which, end } => self.end_call(which, end).await,
            What::DropWaiting(which) => {
                if !self.waiting.is_empty() {
                    let waiting = self.waiting.swap_remove(which % self.waiting.len());
                    waiting.task.abort();
                    let _ = waiting.task.await;
                    self.rate.unseen((waiting.call.since, self.now()));
                }
            }
            What::DropEarly { polls, ticks } => {
                let call = self.begin(process, 1, true);
                self.drop_early(call, polls, TICK * ticks.unwrap_or(0) as u32).await;
            }
            What::Pause(which) => {
                self.pause(which);
                self.except_paused(Excepted::Start);
            }
            What::Lease(calls) => {
                for _ in 0..calls {
                    let call = self.limiter(process).check(&LEASED, &self.key, 1);
                    call.await.expect("admitted");
                }
            }
            What::Rule(rule) => self.rule(process, rule),
            What::Change(most) => self.most = most,
            What::Block { ticks, is_of_rate } => {
                let time = TICK * ticks as u32;
                let ((limit, key), from) = (self.part(is_of_rate), self.moment());
                self.limiter(process).block(&limit, key, time).await.expect("blocked");
                let until = from.0 + time.as_micros() as u64;
                self.blocks.of(is_of_rate).blocked(process, from, until);
            }
            What::Unblock { is_of_rate } => {
                let (limit, key) = self.part(is_of_rate);
                self.limiter(process).unblock(&limit, key).await.expect("unblocked");
                let now = self.now();
                self.blocks.of(is_of_rate).unblocked(now);
            }
            What::Reset => {
                self.limiter(process).reset(&self.limit(), &self.key).await.expect("reset");
                self.judge.reset(self.now());
                self.local.reset(self.now());
                if self.resets == Resets::None {
                    self.resets = Resets::Known;
                }
                self.blocks.slots.unblocked(self.now());
                self.last_reset = Some(self.moment());
                self.is_excused |= self.granted_from.iter().any(Option::is_some);
            }
            What::Advance(ticks) => self.pass(TICK * ticks as u32),
            What::LoseReply { cost, ends } => self.lose_reply(cost, ends).await,
            What::Disconnect => self.command(&["CLIENT", "KILL", "TYPE", "normal"]).await,
            What::FlushScripts => self.command(&["SCRIPT", "FLUSH"]).await,
            What::LoseMemory => {
                if self.fleet.command(&["FLUSHALL"]) && self.fleet.command(&["SCRIPT", "FLUSH"]) {
                    self.forget();
                }
            }
            What::Restart => self.restart().await,
            What::Outage { calls, cost, ends } => self.outage(calls, cost, ends).await,
            What::OutliveHold { stands_still } => {
                self.outlive_hold(stands_still.then_some(process)).await;
            }
            What::Crash => self.crash(process),
            What::MoveSlot => {
                if self.slot_moves {
                    self.fleet.finish_move(&self.key);
                    self.slot_moves = false;
                } else if self.waiting.iter().all(|waiting| !waiting.call.is_rated) {
                    self.slot_moves = self.fleet.begin_move(&self.key, true);
                }
            }
        }
    }

    fn rule(&mut self, process: usize, rule: RuleOf) {
        let mut rules = RuleSet::new();
        let value = match rule {
            RuleOf::Nothing => Rule::new(),
            RuleOf::InFlight(most) => Rule::new().in_flight(most),
            RuleOf::Exempt => Rule::new().exempt(true),
            RuleOf::Shadow => Rule::new().shadow(true),
            RuleOf::Blocked => Rule::new().blocked(true),
            RuleOf::Trial(most) => Rule::new().trial(most),
        };
        rules.set("slots", value).expect("valid");
        self.limiter(process).set_rules(rules).expect("valid");
        self.rules[process] = rule;
        let Begun { is_free, is_unlimited, .. } = self.begin(process, 0, false);
        let mut waiting = std::mem::take(&mut self.waiting);
        for waiting in waiting.iter_mut().filter(|waiting| waiting.call.process == process) {
            let call = &mut waiting.call;
            call.most = call.most.max(self.most_of(process, call.coded));
            call.is_free |= is_free;
            call.is_unlimited |= is_unlimited;
        }
        self.waiting = waiting;
    }
}

impl Blocks {
    fn of(&mut self, is_of_rate: bool) -> &mut BlockJudge {
        if is_of_rate { &mut self.rate } else { &mut self.slots }
    }
}
