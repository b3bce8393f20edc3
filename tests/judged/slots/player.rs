//! The player of calls in flight: plays operations by processes that share a store, and writes down which calls were
//! admitted, and when they ended.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use ratelimit_runtime::{Limit, Part, Permit, RateLimiter, Rejection, Rule, RuleSet};
use support::judge::{CallId, HolderId, HolderJudge, Judge, JudgedCall};
use support::lines::{run_tasks, wait_until_idle};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::operation::{End, MOST, Operation, RuleOf};
use crate::calls::{Gate, Gated, Verdict};
use crate::fleet::{Fleet, Losing, Process};

const HOLD: Duration = Duration::from_secs(86_400);
const RATE: Limit = Limit::sliding("beside", 8, Duration::from_secs(2));
const LEASED: Limit = Limit::token_bucket("leased", 1_000, Duration::from_secs(10)).lease(40);
const TICK: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(20);

/// A call that runs.
struct Running {
    process: usize,
    cost: u32,
    holder: Option<HolderId>,
    /// The rate beside, if there is one.
    rate: Option<CallId>,
    /// One of the rate, if there is one, and one of the units in flight.
    permits: Vec<Permit>,
}

/// A call that waits.
struct WaitingCall {
    call: Begun,
    gate: Arc<Gate>,
    is_paused: bool,
    task: JoinHandle<(u64, Result<Vec<Permit>, Rejection>)>,
}

/// A call that is not decided yet.
#[derive(Clone, Copy)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Begun {
    process: usize,
    cost: u32,
    is_rated: bool,
    since: u64,
    /// The largest limit since.
    most: u32,
    /// Whether rules admit it without units, or a reset can have lost them.
    is_free: bool,
    may_fail: bool,
    /// Whether the key is closed, and the call does not wait.
    is_closed: bool,
}

/// The state of a trace that is played.
pub(crate) struct SlotPlayer<'a> {
    fleet: &'a Fleet,
    key: String,
    alive: Vec<Process>,
    /// The names of the processes for the judge: one that was killed and the one in its place differ.
    ids: Vec<usize>,
    crashed: Vec<(Process, Vec<Running>, Vec<WaitingCall>)>,
    rules: Vec<RuleOf>,
    most: u32,
    judge: HolderJudge,
    rate: Judge,
    running: Vec<Running>,
    waiting: Vec<WaitingCall>,
    closed_until: u64,
    /// Whether the server can hold units that no call has, or not know of some.
    is_excused: bool,
    slot_moves: bool,
    verdict: Verdict,
}

impl<'a> SlotPlayer<'a> {
    /// Plays operations with a limit of `most`, and returns the verdict.
    pub(crate) async fn play(
        fleet: &'a Fleet,
        processes: usize,
        most: u32,
        operations: &[Operation],
    ) -> (Verdict, HolderJudge) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        fleet.clear();
        let alive = fleet.processes[..processes.min(fleet.processes.len())].to_vec();
        let mut player = Self {
            fleet,
            key: format!("slots{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            rules: vec![RuleOf::Nothing; alive.len()],
            ids: (0..alive.len()).collect(),
            alive,
            crashed: Vec::new(),
            most,
            judge: HolderJudge::default(),
            rate: Judge::new(&RATE, None),
            running: Vec::new(),
            waiting: Vec::new(),
            closed_until: 0,
            is_excused: false,
            slot_moves: false,
            verdict: Verdict::default(),
        };
        player.pass(Duration::ZERO);
        for process in &player.alive {
            process.limiter.set_rules(RuleSet::new()).expect("no rules");
        }
        for operation in operations {
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

    /// Returns the number that is in force for calls of a process.
    fn most_of(&self, process: usize) -> u32 {
        match self.rules[process] {
            RuleOf::InFlight(most) => most,
            _ => self.most,
        }
    }

    fn begin(&self, process: usize, cost: u32, is_rated: bool) -> Begun {
        let (since, most) = (self.now(), self.most_of(process));
        let is_free = self.rules[process] == RuleOf::Exempt;
        let is_closed = since < self.closed_until && self.rules[process] != RuleOf::Shadow;
        Begun { process, cost, is_rated, since, most, is_free, may_fail: false, is_closed }
    }

    fn pass(&self, time: Duration) {
        self.fleet.clock.advance(time);
        self.fleet.expire(time.as_micros() as u64);
        for process in &self.alive {
            process.clock.set(self.fleet.clock.now());
        }
    }

    async fn operate(&mut self, operation: Operation) {
        match operation {
            Operation::Call { process, cost, is_rated, ticks } => {
                let process = self.process(process);
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
            Operation::End { which, end } => self.end_call(which, end).await,
            Operation::DropWaiting { which } => {
                if !self.waiting.is_empty() {
                    let waiting = self.waiting.swap_remove(which % self.waiting.len());
                    waiting.task.abort();
                    let _ = waiting.task.await;
                    self.rate.unseen((waiting.call.since, self.now()));
                }
            }
            Operation::DropEarly { process, polls, ticks } => {
                let process = self.process(process);
                let call = Begun { is_closed: false, ..self.begin(process, 1, true) };
                self.drop_early(call, polls, TICK * ticks.unwrap_or(0) as u32).await;
            }
            Operation::Pause { which } => {
                let length = self.waiting.len();
                if let Some(waiting) = self.waiting.get_mut(which % length.max(1)) {
                    waiting.is_paused = !waiting.is_paused;
                    if waiting.is_paused { waiting.gate.shut() } else { waiting.gate.open() }
                }
            }
            Operation::Lease { process, calls } => {
                let limiter = self.limiter(self.process(process));
                for _ in 0..calls {
                    limiter.check(&LEASED, &self.key, 1).await.expect("admitted");
                }
            }
            Operation::Rule { process, rule } => self.rule(process, rule),
            Operation::Change { most } => self.most = most,
            Operation::Close { process, ticks } => {
                let (limiter, time) = (self.limiter(self.process(process)), TICK * ticks as u32);
                limiter.close(&self.limit(), &self.key, time).await.expect("closed");
                self.closed_until = self.closed_until.max(self.now() + time.as_micros() as u64);
            }
            Operation::Open { process } => {
                let limiter = self.limiter(self.process(process));
                limiter.open(&self.limit(), &self.key).await.expect("opened");
                self.closed_until = 0;
            }
            Operation::Reset { process } => {
                let limiter = self.limiter(self.process(process));
                limiter.reset(&self.limit(), &self.key).await.expect("reset");
                self.judge.reset(self.now());
                self.closed_until = 0;
                // A call whose turn has come keeps it, without units.
                for waiting in self.waiting.iter_mut().filter(|waiting| waiting.is_paused) {
                    (waiting.call.is_free, self.is_excused) = (true, true);
                }
            }
            Operation::Advance { ticks } => self.pass(TICK * ticks as u32),
            Operation::LoseReply { cost, ends } => self.lose_reply(cost, ends).await,
            Operation::Disconnect => self.command(&["CLIENT", "KILL", "TYPE", "normal"]).await,
            Operation::FlushScripts => self.command(&["SCRIPT", "FLUSH"]).await,
            Operation::LoseMemory => {
                if self.fleet.command(&["FLUSHALL"]) && self.fleet.command(&["SCRIPT", "FLUSH"]) {
                    let now = self.now();
                    self.judge.lost_memory(now);
                    self.rate.excepted(now, support::judge::Exception::Lost);
                    self.closed_until = 0;
                }
            }
            Operation::Crash { process } => self.crash(process),
            Operation::MoveSlot => {
                if self.slot_moves {
                    self.fleet.finish_move(&self.key);
                    self.slot_moves = false;
                } else {
                    self.slot_moves = self.fleet.begin_move(&self.key, true);
                }
            }
        }
    }

    /// Returns the future of a call.
    fn acquire(
        &self,
        call: Begun,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Permit>, Rejection>> + Send + 'static {
        let limiter = self.limiter(call.process);
        let (limit, key) = (self.limit(), self.key.clone());
        let (limit, rate) =
            if wait.is_zero() { (limit, RATE) } else { (limit.wait(wait), RATE.wait(wait)) };
        let Begun { cost, is_rated, .. } = call;
        async move {
            let rate = is_rated.then(|| Part::new(&rate, &key, cost));
            let parts: Vec<_> = rate.into_iter().chain([Part::new(&limit, &key, cost)]).collect();
            limiter.acquire_all(&parts).await
        }
    }

    fn wait(&mut self, call: Begun, wait: Duration) {
        let (gate, clock) = (Arc::new(Gate::default()), self.fleet.clock.clone());
        let future = self.acquire(call, wait);
        let task = tokio::spawn(Gated::new(&gate, async move {
            let result = future.await;
            (clock.now().as_micros() as u64, result)
        }));
        let call = Begun { is_closed: false, ..call };
        self.waiting.push(WaitingCall { call, gate, is_paused: false, task });
    }

    async fn drop_early(&mut self, call: Begun, polls: u32, wait: Duration) {
        let mut future = Box::pin(self.acquire(call, wait));
        let mut left = polls;
        let result = poll_fn(|context| {
            if left == 0 {
                return Poll::Ready(None);
            }
            left -= 1;
            let polled = future.as_mut().poll(context).map(Some);
            if polled.is_pending() {
                context.waker().wake_by_ref();
            }
            polled
        });
        let result = result.await;
        drop(future);
        self.rate.unseen((self.now(), self.now()));
        if let Some(result) = result {
            self.decided(call, result);
        }
    }

    /// Records the result of a call.
    fn decided(&mut self, call: Begun, result: Result<Vec<Permit>, Rejection>) {
        let Begun { process, cost, is_rated, since, most, is_free, may_fail, is_closed } = call;
        let now = self.now();
        let permits = match result {
            Ok(permits) => permits,
            Err(Rejection::Unavailable { .. }) if may_fail => {
                return self.rate.unseen((since, now));
            }
            Err(
                Rejection::Busy { .. }
                | Rejection::Limited { .. }
                | Rejection::Closed { .. }
                | Rejection::CostExceedsCapacity { .. },
            ) => return self.tell(format_args!("p{process}: {cost} rejected")),
            Err(other) => return self.verdict.faults.push(format!("{other:?}")),
        };
        self.tell(format_args!("p{process}: {cost} of {most} admitted, free {is_free}"));
        self.verdict.admitted += 1;
        if is_closed && !is_free {
            self.verdict.faults.push("a closed key has admitted a call".to_owned());
        }
        let slot = permits.last().expect("a permit of each part");
        let holds = !is_free && slot.decision().allowed && !slot.is_lost();
        let holder =
            holds.then(|| self.judge.admitted(self.ids[process], (since, now), cost, most));
        if holds {
            self.judge.stated(self.ids[process], now);
        }
        let rate = (is_rated && cost > 0).then(|| {
            self.rate.admitted(JudgedCall {
                starts: (since, now),
                decided: since,
                charged: cost.into(),
                threshold: RATE.threshold(),
                capacity: RATE.capacity(),
            })
        });
        self.running.push(Running { process, cost, holder, rate, permits });
    }

    async fn end_call(&mut self, which: usize, end: End) {
        if self.running.is_empty() {
            return;
        }
        let call = self.running.swap_remove(which % self.running.len());
        let Running { process, cost, holder, rate, mut permits } = call;
        let (slot, now) = (permits.pop().expect("a permit of each part"), self.now());
        if let (End::Settle(used), Some(permit), Some(rate)) = (end, permits.pop(), rate) {
            permit.settle(used);
            self.rate.settled(rate, now, used.into());
            // Before the units are free for calls that wait.
            self.flush(process).await;
        }
        match end {
            End::Drop | End::Settle(_) => drop(slot),
            End::Keep => slot.keep(),
            End::Release => {
                if let Err(error) = slot.release().await {
                    self.verdict.faults.push(format!("a release has failed: {error:?}"));
                }
            }
        }
        if let Some(holder) = holder {
            self.judge.ended(holder, now);
        }
        self.tell(format_args!("p{process} ends a call of {cost}"));
        self.flush(process).await;
        // What is released is stated, with all that the process holds.
        self.judge.stated(self.ids[process], now);
    }

    fn rule(&mut self, process: usize, rule: RuleOf) {
        let process = self.process(process);
        let mut rules = RuleSet::new();
        let value = match rule {
            RuleOf::Nothing => Rule::new(),
            RuleOf::InFlight(most) => Rule::new().in_flight(most),
            RuleOf::Exempt => Rule::new().exempt(true),
            RuleOf::Shadow => Rule::new().shadow(true),
            RuleOf::Closed => Rule::new().closed(true),
            RuleOf::Trial(most) => Rule::new().trial(most),
        };
        rules.set("slots", value).expect("valid");
        self.limiter(process).set_rules(rules).expect("valid");
        self.rules[process] = rule;
        let (now, most) = (self.begin(process, 0, false), self.most_of(process));
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.call.process == process) {
            waiting.call.most = waiting.call.most.max(most);
            waiting.call.is_free |= now.is_free;
        }
    }

    /// The first process loses a reply: to a call, or to the statement about the end of a call.
    async fn lose_reply(&mut self, cost: u32, ends: Option<usize>) {
        let Some(proxy) = self.fleet.network() else { return };
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.call.process == 0) {
            waiting.call.may_fail = true;
        }
        let of_first = |call: &Running| call.process == 0;
        let at = self.running.iter().position(of_first).filter(|_| ends.is_some());
        let losing = Losing::replies(proxy);
        if let Some(at) = at {
            let Running { holder, permits, .. } = self.running.swap_remove(at);
            drop(permits);
            // Until the statement is sent.
            let _ = timeout(Duration::from_millis(20), self.limiter(0).flush()).await;
            drop(losing);
            let now = self.now();
            if let Some(holder) = holder {
                self.judge.ended(holder, now);
            }
        } else {
            let call = Begun { may_fail: true, ..self.begin(0, cost, false) };
            let future = self.acquire(call, Duration::ZERO);
            let result = future.await;
            drop(losing);
            self.decided(call, result);
        }
        self.connect().await;
    }

    /// Runs a command on the server, if there is one.
    async fn command(&mut self, words: &[&str]) {
        if self.fleet.command(words) {
            for waiting in &mut self.waiting {
                waiting.call.may_fail = true;
            }
            self.connect().await;
        }
    }

    fn crash(&mut self, process: usize) {
        if self.fleet.is_embedded() {
            return;
        }
        let number = self.process(process);
        let process = std::mem::replace(&mut self.alive[number], self.fleet.process(number));
        self.ids[number] = self.alive.len() * (self.crashed.len() + 1) + number;
        self.pass(Duration::ZERO);
        let running = std::mem::take(&mut self.running);
        let (dead, running) = running.into_iter().partition(|call| call.process == number);
        let waiting = std::mem::take(&mut self.waiting);
        let (stopped, waiting) = waiting.into_iter().partition(|it| it.call.process == number);
        (self.running, self.waiting, self.rules[number]) = (running, waiting, RuleOf::Nothing);
        // Nothing of it is polled any more.
        let stopped: Vec<WaitingCall> = stopped;
        for waiting in &stopped {
            waiting.gate.shut();
        }
        self.is_excused |= !stopped.is_empty();
        self.crashed.push((process, dead, stopped));
        self.rate.unseen((self.now(), self.now()));
    }

    /// Waits until each process reaches the server, by the connection of its callers and by the one of its background
    /// thread.
    async fn connect(&mut self) {
        for process in 0..self.alive.len() {
            let limiter = self.limiter(process);
            let replies = async {
                while limiter.ping().await.is_err()
                    || limiter.check(&RATE.wait(TICK), "connect", 0).await.is_err()
                {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            if timeout(PATIENCE, replies).await.is_err() {
                self.verdict.faults.push(format!("p{process} does not reach the server"));
            }
            self.flush(process).await;
        }
    }

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
                if self.fleet.is_embedded() {
                    // The calls drive their line. One that is not polled does not.
                    run_tasks().await;
                } else {
                    wait_until_idle(&self.limiter(process)).await;
                }
                self.flush(process).await;
            }
            let waiting = std::mem::take(&mut self.waiting);
            let (ended, waiting): (Vec<_>, Vec<_>) =
                waiting.into_iter().partition(|waiting| waiting.task.is_finished());
            self.waiting = waiting;
            if ended.is_empty() {
                return;
            }
            for waiting in ended {
                let (_, result) = waiting.task.await.expect("no panic");
                self.decided(waiting.call, result);
            }
        }
    }

    /// Returns the units in flight that the server counts; `None` if the key is closed.
    async fn counted(&self) -> Option<u64> {
        // Of a limiter without rules, which is not killed.
        let wide = self.limit().try_amounts(1_000, None).expect("valid");
        let process = (0..self.alive.len()).find(|it| self.rules[*it] == RuleOf::Nothing)?;
        match self.limiter(process).peek(&wide, &self.key, 0).await {
            Ok(peeked) if peeked.allowed => Some(u64::from(1_000 - peeked.remaining)),
            Ok(_) | Err(_) => None,
        }
    }

    /// Compares what the server counts with the calls that run.
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

    /// Ends all calls. Then nothing is held.
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
        if self.slot_moves {
            self.fleet.finish_move(&self.key);
        }
        self.rest().await;
        self.verdict.breaches = self.judge.breaches();
        self.verdict.breaches.extend(self.rate.breaches());
        if self.closed_until > 0 {
            self.limiter(0).open(&self.limit(), &self.key).await.expect("opened");
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
