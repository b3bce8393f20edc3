//! The player of calls in flight: plays operations by processes that share a store, and writes down which calls were
//! admitted, and when they ended.

mod calls;
mod faults;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::__private::lines;
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, Rule, RuleSet};
use support::judge::{BlockJudge, CallId, HolderId, HolderJudge, Judge, Moment};
use support::limits::{DAY, ruled};
use support::lines::wait_until_decided;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Trace;
use super::operation::{MOST, RuleOf, What};
use crate::calls::{Gate, Verdict};
use crate::exceptions::Excepted;
use crate::fleet::{Fleet, Process};
use crate::player::PATIENCE;

const HOLD: Duration = DAY;
const RATE: Limit = Limit::sliding("beside", 8, Duration::from_secs(2));
const LEASED: Limit = Limit::token_bucket("leased", 1_000, Duration::from_secs(10)).lease(40);
const TICK: Duration = Duration::from_millis(50);

/// How many milliseconds a call may take to end once it is decided.
const A_WHILE: u32 = 500;

struct Running {
    process: usize,
    cost: u64,
    holder: Option<HolderId>,
    /// For the judge of the fallback, if it has admitted the call.
    local: Option<HolderId>,
    rate: Option<CallId>,
    /// One of the rate, if there is one, and one of the units in flight.
    permits: Vec<Permit>,
}

impl Running {
    fn is_lost(&self) -> bool {
        self.permits.last().is_some_and(Permit::is_lost)
    }
}

struct WaitingCall {
    call: Begun,
    gate: Gate,
    paused: Option<Moment>,
    task: JoinHandle<Result<Vec<Permit>, Rejection>>,
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

/// What the server knows of the resets in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resets {
    None,
    Known,
    /// It can learn of them again, from a process that knows them.
    Forgotten,
}

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
    local: HolderJudge,
    rate: Judge,
    running: Vec<Running>,
    waiting: Vec<WaitingCall>,
    /// The blocks of the units in flight, and of the rate beside them.
    blocks: [BlockJudge; 2],
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
    pub(super) async fn play(fleet: &'a Fleet, trace: &Trace) -> (Verdict, HolderJudge) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fleet.command("FLUSHALL");
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
            blocks: [BlockJudge::default(), BlockJudge::default()],
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
        for (process, what) in &trace.operations {
            player.verdict.operations += 1;
            player.tell(format_args!("p{process}: {what:?}"));
            player.operate(process % player.alive.len(), *what).await;
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

    fn begin(&self, process: usize, cost: u64, is_rated: bool) -> Begun {
        Begun {
            process,
            cost,
            // A decision about keys on two nodes waits until the slot has moved.
            is_rated: is_rated && !self.slot_moves,
            since: self.now(),
            recorded: self.judge.recorded(),
            coded: self.most,
            most: if let RuleOf::InFlight(most) = self.rules[process] { most } else { self.most },
            is_free: self.rules[process] == RuleOf::Exempt,
            is_unlimited: matches!(self.rules[process], RuleOf::Exempt | RuleOf::Shadow),
            may_fail: false,
            excepted: Excepted::No,
        }
    }

    /// Records that replies to the requests of calls that wait may be lost.
    fn may_fail(&mut self, which: impl Fn(usize) -> bool) {
        for WaitingCall { call, .. } in &mut self.waiting {
            call.may_fail |= which(call.process);
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

    async fn operate(&mut self, process: usize, what: What) {
        match what {
            What::Call { cost, is_rated, ticks: None } => {
                let call = self.begin(process, cost, is_rated);
                let result = self.acquire(call, Duration::ZERO).await;
                self.granted(call, self.moment(), result);
            }
            What::Call { cost, is_rated, ticks: Some(ticks) } => {
                self.wait(self.begin(process, cost, is_rated), TICK * ticks as u32);
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
                self.blocks[usize::from(is_of_rate)].blocked(process, from, until);
            }
            What::Unblock { is_of_rate } => {
                let (limit, key) = self.part(is_of_rate);
                self.limiter(process).unblock(&limit, key).await.expect("unblocked");
                self.blocks[usize::from(is_of_rate)].unblocked(self.fleet.now());
            }
            What::Reset => {
                self.limiter(process).reset(&self.limit(), &self.key).await.expect("reset");
                self.judge.reset(self.now());
                self.local.reset(self.now());
                if self.resets == Resets::None {
                    self.resets = Resets::Known;
                }
                self.blocks[0].unblocked(self.now());
                self.last_reset = Some(self.moment());
                self.is_excused |= self.granted_from.iter().any(Option::is_some);
            }
            What::Advance(ticks) => self.pass(TICK * ticks as u32),
            What::LoseReply { cost, ends } => self.lose_reply(cost, ends).await,
            What::Disconnect => self.command("CLIENT KILL TYPE normal").await,
            What::FlushScripts => self.command("SCRIPT FLUSH").await,
            What::LoseMemory => {
                if self.fleet.command("FLUSHALL") && self.fleet.command("SCRIPT FLUSH") {
                    self.forget();
                }
            }
            What::Restart => self.restart().await,
            What::Outage { calls, cost, ends } => self.outage(calls, cost, ends).await,
            What::OutliveHold { stands_still } => {
                self.outlive_hold(stands_still.then_some(process)).await;
            }
            What::Crash => self.crash(process),
            What::MoveSlot if self.slot_moves => self.finish_move(),
            What::MoveSlot => {
                let may_move = self.waiting.iter().all(|waiting| !waiting.call.is_rated);
                self.slot_moves = may_move && self.fleet.begin_move(&self.key, true);
            }
        }
    }

    fn rule(&mut self, process: usize, rule: RuleOf) {
        let value = match rule {
            RuleOf::Nothing => Rule::new(),
            RuleOf::InFlight(most) => Rule::new().in_flight(most),
            RuleOf::Exempt => Rule::new().exempt(true),
            RuleOf::Shadow => Rule::new().shadow(true),
            RuleOf::Blocked => Rule::new().blocked(true),
            RuleOf::Trial(most) => Rule::new().trial(most),
        };
        self.limiter(process).set_rules(ruled("slots", value)).expect("valid");
        self.rules[process] = rule;
        let Begun { is_free, is_unlimited, .. } = self.begin(process, 0, false);
        for WaitingCall { call, .. } in &mut self.waiting {
            if call.process == process {
                let most = if let RuleOf::InFlight(most) = rule { most } else { call.coded };
                call.most = call.most.max(most);
                call.is_free |= is_free;
                call.is_unlimited |= is_unlimited;
            }
        }
    }

    fn finish_move(&mut self) {
        if self.slot_moves {
            self.fleet.finish_move(&self.key);
            self.slot_moves = false;
        }
    }
}

// What the store counts is compared with what the judge knows, after each step and at the end.
impl SlotPlayer<'_> {
    /// Waits until the server knows what a process has released and settled.
    async fn flush(&mut self, process: usize) {
        let limiter = self.limiter(process);
        let flushed = async {
            // A statement that has failed is made again after a pause, by the clock of the limiter.
            while !matches!(timeout(TICK, limiter.flush()).await, Ok(Ok(()))) {
                self.pass(2 * TICK);
            }
        };
        if timeout(PATIENCE, flushed).await.is_err() {
            self.verdict.faults.push(format!("p{process} is not flushed"));
        }
    }

    /// Lets everything happen that happens now, and records the calls that have ended their wait.
    async fn rest(&mut self) {
        loop {
            for process in 0..self.alive.len() {
                let limiter = self.limiter(process);
                if timeout(PATIENCE, wait_until_decided(&limiter)).await.is_err() {
                    self.verdict.faults.push(format!("p{process} does not come to rest"));
                }
                self.flush(process).await;
            }
            for _ in 0..A_WHILE {
                if !self.is_ending() {
                    break;
                }
                sleep(Duration::from_millis(1)).await;
            }
            self.end_lost_again();
            let ended: Vec<_> =
                self.waiting.extract_if(.., |waiting| waiting.task.is_finished()).collect();
            if ended.is_empty() {
                return self.forget_pauses();
            }
            for WaitingCall { mut call, task, .. } in ended {
                let result = task.await.expect("no panic");
                let from = self.granted_from[call.process];
                call.is_free |= from.is_some() && self.last_reset >= from;
                self.granted(call, from.unwrap_or(self.moment()), result);
            }
        }
    }

    /// Returns whether a call that waits in no line has not ended: a shadow can decide beside it.
    fn is_ending(&self) -> bool {
        self.waiting.iter().any(|WaitingCall { call, paused, task, .. }| {
            paused.is_none() && !task.is_finished() && lines(&self.limiter(call.process)) == 0
        })
    }

    /// Returns the units in flight that the server counts; `None` if the key is blocked.
    async fn counted(&self) -> Option<u64> {
        // Of a limiter without rules, which is not killed.
        let wide = self.limit().try_amounts(1_000, None).expect("valid");
        let process = (0..self.alive.len()).find(|it| self.rules[*it] == RuleOf::Nothing)?;
        let peeked = self.limiter(process).peek(&wide, &self.key, 0).await.ok()?;
        peeked.allowed.then(|| 1_000 - peeked.remaining)
    }

    async fn compare(&mut self) {
        let is_known = self.judge.knows_all() && !self.is_excused;
        if !is_known || !self.waiting.is_empty() {
            return;
        }
        let held = self.judge.held();
        if let Some(counted) = self.counted().await.filter(|counted| *counted != held) {
            self.verdict.faults.push(format!("the store counts {counted}, and {held} are held"));
        }
    }

    async fn end(mut self) -> (Verdict, HolderJudge) {
        for process in &self.alive {
            process.limiter.set_rules(RuleSet::new()).expect("no rules");
        }
        self.rules.fill(RuleOf::Nothing);
        let crashed = std::mem::take(&mut self.crashed);
        let stopped = crashed.into_iter().flat_map(|(process, _, stopped)| {
            process.clock.set(self.fleet.clock.now());
            stopped
        });
        let waiting: Vec<_> = stopped.chain(std::mem::take(&mut self.waiting)).collect();
        for waiting in &waiting {
            waiting.task.abort();
        }
        for waiting in waiting {
            let _ = waiting.task.await;
        }
        self.running.clear();
        self.finish_move();
        self.rest().await;
        let breaches = [self.judge.breaches(), self.local.breaches(), self.rate.breaches()];
        self.verdict.breaches.extend(breaches.concat());
        if self.blocks[0].knows_any() {
            self.limiter(0).unblock(&self.limit(), &self.key).await.expect("unblocked");
        }
        let is_free = async {
            while self.counted().await != Some(0) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(PATIENCE, is_free).await.is_err() {
            let left = self.counted().await;
            self.verdict.faults.push(format!("{left:?} units are left when all calls have ended"));
        }
        (self.verdict, self.judge)
    }
}
