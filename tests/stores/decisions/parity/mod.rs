//! Random traces: the reference model, the embedded store and Redis make the same decisions, with the same
//! `remaining`, `retry_after` and `reset_after`.

mod trace;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::__private::return_units;
use ratelimit_runtime::{
    Algorithm, Decision, Limit, Permit, RateLimiter, Rejection, Rule, RuleSet, VirtualClock,
};
use support::clocks::embedded_on;
use support::limits::{DAY, is_bucket, ruled};
use support::model::{ExpectedDecision, Model, ModelReceipt};
use support::server::Server;
use support::{ALGORITHMS, random};
use tokio::task::JoinSet;

use self::trace::{Call, KEYS, Step, Trace};
use crate::decision;

/// The decisions that are compared for each algorithm, at least: over 100,000 in all.
const DECISIONS: u64 = 25_000;

/// A bucket gives back exactly what the model says to this many charges.
const EXACT: usize = 15;

#[test]
fn charges_rules_and_steps_of_the_clock() {
    play_traces(trace::trace);
}

#[test]
fn settled_charges_and_blocks() {
    play_traces(trace::settled);
}

/// Plays random traces of each algorithm until [`DECISIONS`] were compared.
fn play_traces<S: Strategy<Value = Trace>>(traces: fn(Algorithm) -> S) {
    let play = |algorithm| {
        let server = Server::start();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let (traces, compared) = (traces(algorithm), Cell::new(0));
        while compared.get() < DECISIONS {
            let before = compared.get();
            random::play(50, &traces, |trace| {
                let decisions = runtime.block_on(Parity::new(&server, &trace).run())?;
                compared.set(compared.get() + decisions);
                Ok(())
            });
            assert!(compared.get() > before, "the traces compare no decisions");
        }
        println!("{algorithm}: {} decisions were compared", compared.get());
        server.assert_all_keys_expire();
    };
    std::thread::scope(|scope| {
        for algorithm in ALGORITHMS {
            scope.spawn(move || play(algorithm));
        }
    });
}

/// The bucket has drained what the settlement would give back. Later it drains at the rate of the last call.
#[tokio::test]
async fn a_settlement_that_gives_nothing_back_is_no_change() {
    use Step::*;
    let limits = [(7, 21), (1_553, 1_553)].map(|(rate, burst)| {
        Limit::leaky_bucket("settled", rate, Duration::from_millis(1)).burst(burst)
    });
    let acquire = |cost| Acquire(Call { key: 0, cost });
    let first = [acquire(7), acquire(4), Wait(8, 0), acquire(9), Settle(1, 0)];
    let later = [Wait(0, 1), Settle(0, 0), Change(1), acquire(1)];
    let trace = Trace { limits: limits.to_vec(), steps: [&first[..], &later].concat() };
    let compared = Parity::new(&Server::start(), &trace).run().await;
    assert_eq!(compared.expect("the model and both stores agree"), 6);
}

/// Debts of a sliding window, above what a record of 32 bits counts. A record that has left does not come back when the
/// state is written anew with longer records.
#[tokio::test]
async fn records_of_more_than_32_bits_leave_whole() {
    use Step::*;
    let server = Server::start();
    let limits = [100, 999_999_999_999_999].map(|it| Limit::sliding("records", it, DAY)).to_vec();
    let acquire = |cost| Acquire(Call { key: 0, cost });
    let (hour, debt) = (Wait(0, 3_600_000_000), Settle(0, 5_000_000_000));
    let charged = [acquire(10); 4];
    let look =
        [Change(1), Peek(Call { key: 0, cost: 1 }), Change(0), Peek(Call { key: 0, cost: 1 })];
    // The last settlement makes another debt, or gives units back to the record of the debts.
    let leaves = |last| {
        // The first of these moves the record of the debts into the ring.
        let settled = [debt, debt, hour, Settle(0, 35), hour, Settle(0, last)];
        // This charge drops the record that has left. An hour later, the debt of 25 units leaves.
        let charged_again = [acquire(20), hour];
        let later = [&look[..], &[Wait(7, 0)], &look, &[hour], &look, &charged_again, &look];
        [&charged[..], &settled, &later.concat()].concat()
    };
    let left = [hour, debt, debt, Wait(0, 23 * 3_600_000_000), Settle(0, 35)];
    let stays_out = [&charged[..], &left, &look, &[hour], &look].concat();
    for steps in [leaves(35), leaves(4), stays_out] {
        let trace = Trace { limits: limits.clone(), steps };
        let compared = Parity::new(&server, &trace).run().await;
        assert!(compared.expect("the model and both stores agree") > 10);
    }
}

type Decisions = (ExpectedDecision, Decision, Decision);

/// How closely a decision must agree with that of the model. Both stores make the same decision.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Compared {
    Exactly,
    /// The stores admit no more.
    AsABound,
    /// The model does not know what an operator has given back of charges that are settled.
    Not,
}

/// A charge that is not settled, in the model and in both stores.
struct OpenCharge {
    key: usize,
    /// The limit of the call.
    limit: Limit,
    receipt: ModelReceipt,
    permits: [Permit; 2],
}

/// Returns the offset of aligned windows from UTC, in minutes.
fn align(limit: &Limit) -> Option<i64> {
    limit.get_align()?.get_offset_minutes().map(i64::from)
}

struct Parity<'a> {
    trace: &'a Trace,
    limit: Limit,
    /// The limit of the calls; rules can change its amounts to those of `limit`.
    called: Limit,
    /// For each key, a model for each align.
    models: Vec<BTreeMap<Option<i64>, Model>>,
    /// A store for each key, so that no key is evicted for another.
    embedded: Vec<RateLimiter>,
    redis: RateLimiter,
    clock: VirtualClock,
    names: Vec<String>,
    open: Vec<OpenCharge>,
    compared: Compared,
}

impl<'a> Parity<'a> {
    fn new(server: &Server, trace: &'a Trace) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let models = trace.limits.iter().map(|it| (align(it), Model::new(it, align(it))));
        Self {
            trace,
            limit: trace.limits[0],
            called: trace.limits[0],
            models: vec![models.collect(); KEYS],
            embedded: (0..KEYS).map(|_| embedded_on(&clock)).collect(),
            redis: server.limiter_on(&clock),
            names: (0..KEYS).map(|_| NEXT.fetch_add(1, Ordering::Relaxed).to_string()).collect(),
            clock,
            open: Vec::new(),
            compared: Compared::Exactly,
        }
    }

    /// Plays the trace, and returns the number of compared decisions.
    async fn run(mut self) -> Result<u64, TestCaseError> {
        let mut compared = 0;
        let mut retry: Option<(Call, Duration)> = None;
        for (index, step) in self.trace.steps.iter().enumerate() {
            let rejected = retry.take();
            let decisions = self.play(step, rejected).await?;
            if let (Step::Check(call) | Step::Acquire(call), [(_, store, _)]) =
                (step, &decisions[..])
            {
                retry = (!store.allowed).then_some((*call, store.retry_after));
            }
            if matches!(step, Step::Peek(_)) {
                retry = rejected;
            }
            for (model, store, redis) in &decisions {
                let (store, redis) = ((*store).into(), (*redis).into());
                prop_assert_eq!(store, redis, "the stores differ, step {}: {:?}", index, step);
                if self.compared == Compared::Exactly {
                    prop_assert_eq!(*model, store, "step {}: {:?}", index, step);
                }
                let is_bounded = (model.allowed || !store.allowed)
                    && (model.allowed != store.allowed || store.remaining <= model.remaining);
                let admits_no_more = is_bounded || self.compared == Compared::Not;
                prop_assert!(admits_no_more, "step {}: {:?}, {:?}", index, model, store);
            }
            compared += decisions.len() as u64;
        }
        Ok(compared)
    }

    /// Plays a step, and returns the decisions to compare. `retry` is the call that was rejected just before.
    async fn play(
        &mut self,
        step: &Step,
        retry: Option<(Call, Duration)>,
    ) -> Result<Vec<Decisions>, TestCaseError> {
        let (limit, now) = (self.limit, self.now());
        match *step {
            Step::Wait(eighths, micros) => {
                let period = limit.period().as_micros() as i64;
                self.wait(eighths * period / 8 + micros).await;
            }
            Step::Idle(years) => self.travel(years * 31_557_600_000_000),
            Step::Retry(early) => {
                // A virtual clock does not pass this time.
                let is_in_time = |(_, wait): &(Call, Duration)| {
                    self.clock.now() + *wait <= Duration::from_micros(1 << 52)
                };
                let Some((call, wait)) = retry.filter(is_in_time) else { return Ok(vec![]) };
                self.clock.advance(wait - Duration::from_micros(early.into()));
                let decisions = self.check(call, false).await?;
                prop_assert!(decisions.1.allowed != early, "the wait is not tight");
                return Ok(vec![decisions]);
            }
            Step::Change(amounts) => {
                (self.limit, self.called) =
                    (self.trace.limits[amounts], self.trace.limits[amounts]);
                self.set_rules(&RuleSet::new());
            }
            Step::Rule(amounts, for_keys) => {
                let other = self.trace.limits[amounts];
                if align(&other) == align(&limit) {
                    self.limit = other;
                    self.set_rules(&self.rules(for_keys));
                }
            }
            Step::Reset(key) => {
                self.reset(key, self.called).await;
                self.compared = Compared::Exactly;
            }
            Step::Check(Call { key, cost })
            | Step::Acquire(Call { key, cost })
            | Step::Peek(Call { key, cost })
                if cost > limit.capacity() =>
            {
                let result = self.redis.check(&self.called, &self.names[key], cost).await;
                let exceeds = matches!(result, Err(Rejection::CostExceedsCapacity { .. }));
                prop_assert!(exceeds, "{:?}", result);
            }
            Step::Check(call) => return Ok(vec![self.check(call, false).await?]),
            Step::Acquire(call) => return Ok(vec![self.check(call, true).await?]),
            Step::Burst(call, _) if call.cost > limit.capacity() => {}
            Step::Burst(call, count) => return self.burst(call, count).await,
            Step::Peek(call) => return Ok(vec![self.peek(call).await]),
            Step::Refund(Call { key, cost }) => {
                if is_bucket(limit.algorithm()) && !self.open.is_empty() {
                    self.compared = Compared::Not;
                }
                let model = self.model(key).refund(&limit, now, cost);
                let credit =
                    async |it: &RateLimiter, name: &str| it.credit(&self.called, name, cost).await;
                let [store, redis] =
                    self.on_stores(key, credit).await.map(|it| it.expect("a reply"));
                return Ok(vec![(model, store, redis)]);
            }
            Step::Return(call, eighths, micros) => {
                return Ok(vec![self.return_units(call, eighths, micros).await]);
            }
            Step::Settle(..) | Step::Drop(_) if self.open.is_empty() => {}
            Step::Drop(which) => drop(self.open.swap_remove(which % self.open.len())),
            Step::Settle(which, used) => {
                let open = self.open.swap_remove(which % self.open.len());
                let OpenCharge { key, limit, receipt, permits } = open;
                if self.model(key).charges() > EXACT && self.compared == Compared::Exactly {
                    self.compared = Compared::AsABound;
                }
                self.model(key).settle(&limit, now, receipt, used);
                for permit in permits {
                    permit.settle(used);
                }
                self.redis.flush().await.expect("Redis");
                return Ok(vec![self.peek(Call { key, cost: 1 }).await]);
            }
            Step::Block(key, eighths, micros) => {
                let time = limit.period().as_micros() as u64 * eighths / 8 + micros;
                self.model(key).block(now, time);
                let time = Duration::from_micros(time);
                let blocked =
                    self.on_stores(key, async |it, name| it.block(&limit, name, time).await);
                prop_assert_eq!(blocked.await, [Ok(()), Ok(())]);
            }
            Step::Unblock(key) => {
                let was_blocked = self.model(key).unblock(now);
                let opened = self.on_stores(key, async |it, name| it.unblock(&limit, name).await);
                prop_assert_eq!(opened.await, [Ok(was_blocked), Ok(was_blocked)]);
            }
        }
        Ok(vec![])
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    /// Calls both stores about a key.
    async fn on_stores<T>(
        &self,
        key: usize,
        call: impl AsyncFn(&RateLimiter, &str) -> T,
    ) -> [T; 2] {
        let name = &self.names[key];
        [call(&self.embedded[key], name).await, call(&self.redis, name).await]
    }

    /// Moves the clock, within the years 1970 to 2096: a virtual clock ends in 2112. A retry can have moved it further;
    /// a clock that then came back would find counts that a store has reclaimed.
    fn travel(&self, micros: i64) {
        let end = self.now().max(4_000_000_000_000_000);
        let moved = self.now().saturating_add_signed(micros).min(end);
        self.clock.set(Duration::from_micros(moved));
    }

    /// Moves the clock. Before it goes back, resets the counts with another align: the store may have reclaimed those
    /// that have ended, and the model would find them again.
    async fn wait(&mut self, micros: i64) {
        let (trace, limit) = (self.trace, self.limit);
        for other in trace.limits.iter().filter(|it| micros < 0 && align(it) != align(&limit)) {
            for key in 0..KEYS {
                self.reset(key, *other).await;
            }
        }
        self.travel(micros);
    }

    async fn reset(&mut self, key: usize, limit: Limit) {
        self.models[key].get_mut(&align(&limit)).expect("a model for each align").reset();
        self.on_stores(key, async |it, name| it.reset(&limit, name).await.expect("a reply")).await;
    }

    fn model(&mut self, key: usize) -> &mut Model {
        self.models[key].get_mut(&align(&self.limit)).expect("a model for each align")
    }

    fn set_rules(&self, rules: &RuleSet) {
        for limiter in self.embedded.iter().chain([&self.redis]) {
            limiter.set_rules(rules.clone()).expect("valid rules");
        }
    }

    /// Returns rules with the amounts of the limit in force.
    fn rules(&self, for_keys: bool) -> RuleSet {
        let rule = Rule::new().threshold(self.limit.threshold()).burst(self.limit.capacity());
        if !for_keys {
            return ruled("parity", rule);
        }
        let mut rules = RuleSet::new();
        for name in &self.names {
            rules.set_key("parity", name, rule).expect("valid");
        }
        rules
    }

    async fn peek(&mut self, Call { key, cost }: Call) -> Decisions {
        let (limit, now) = (self.limit, self.now());
        let model = self.model(key).peek(&limit, now, cost);
        let peek = async |it: &RateLimiter, name: &str| it.peek(&self.called, name, cost).await;
        let [store, redis] = self.on_stores(key, peek).await.map(decision);
        (model, store, redis)
    }

    /// Decides a call. The model is charged what the stores admit.
    async fn check(&mut self, call: Call, settles: bool) -> Result<Decisions, TestCaseError> {
        let (called, name) = (&self.called, &self.names[call.key]);
        let redis = decide(&self.redis, called, name, call.cost, settles).await;
        self.compare(call, settles, redis).await
    }

    /// Decides a call as Redis has decided it.
    async fn compare(
        &mut self,
        Call { key, cost }: Call,
        settles: bool,
        (redis, permit): Decided,
    ) -> Result<Decisions, TestCaseError> {
        let (limit, now) = (self.limit, self.now());
        let expected = self.model(key).clone().check(&limit, now, cost);
        let (embedded, name) = (&self.embedded[key], &self.names[key]);
        let (store, here) = decide(embedded, &self.called, name, cost, settles).await;
        for result in [&store, &redis] {
            let is_blocked = matches!(result, Err(Rejection::Blocked { .. }));
            prop_assert_eq!(is_blocked, self.model(key).is_blocked(now));
        }
        let (store, redis) = (decision(store), decision(redis));
        if store.allowed {
            let receipt = self.model(key).charge(&limit, now, cost);
            if let (Some(here), Some(there)) = (here, permit) {
                self.open.push(OpenCharge { key, limit, receipt, permits: [here, there] });
            }
        }
        Ok((expected, store, redis))
    }

    /// Makes equal calls and one of another key, one after the other in the model and the embedded store and
    /// concurrently on Redis.
    async fn burst(&mut self, call: Call, count: usize) -> Result<Vec<Decisions>, TestCaseError> {
        let name = &self.names[call.key];
        let check = |_| self.redis.check(&self.called, name, call.cost);
        let calls: JoinSet<_> = (0..count).map(check).collect();
        let other = Call { key: (call.key + 1) % KEYS, cost: 1 };
        let mut decisions = vec![self.check(other, false).await?];
        let mut results = calls.join_all().await;
        // The order in which Redis made them.
        results.sort_by_key(|result| {
            let made = decision(result.clone());
            (!made.allowed, u64::MAX - made.remaining, made.reset_after)
        });
        for redis in results {
            decisions.push(self.compare(call, false, (redis, None)).await?);
        }
        Ok(decisions)
    }

    /// Returns units that were charged some eighths of a period and some microseconds ago.
    async fn return_units(
        &mut self,
        Call { key, cost }: Call,
        eighths: u64,
        micros: u64,
    ) -> Decisions {
        let (limit, now) = (self.limit, self.now());
        let ago = limit.period().as_micros() as u64 * eighths / 8 + micros;
        // Half of the returns name a moment at which something was charged.
        let charged = self.model(key).charged_at();
        let chosen = charged.get((cost as usize + micros as usize) % charged.len().max(1));
        let chosen = chosen.copied().filter(|_| eighths.is_multiple_of(2));
        let at = chosen.unwrap_or(now.saturating_sub(ago));
        let model = self.model(key).return_units(&limit, now, cost, at);
        let give =
            async |it: &RateLimiter, name: &str| return_units(it, &limit, name, cost, at).await;
        let [store, redis] = self.on_stores(key, give).await.map(|it| it.expect("a reply"));
        (model, store, redis)
    }
}

/// The decision of a call, and its permit if its charge can be settled.
type Decided = (Result<Decision, Rejection>, Option<Permit>);

async fn decide(
    limiter: &RateLimiter,
    limit: &Limit,
    key: &str,
    cost: u64,
    settles: bool,
) -> Decided {
    if !settles {
        return (limiter.check(limit, key, cost).await, None);
    }
    match limiter.acquire(limit, key, cost).await {
        Ok(permit) => (Ok(permit.decision()), Some(permit)),
        Err(rejection) => (Err(rejection), None),
    }
}
