//! `wait` on a bucket: a process reserves the moments of its waiting calls, up to a second ahead. Calls are admitted in
//! the order of their arrival and never above the rate, and a dropped call cancels its reservation.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::{Clock, Decision, Limit, RateLimiter, Rejection, VirtualClock};
use support::model::Model;
use support::operations::{OperationKind, assert_plays};
use support::server::Server;
use tokio::task::JoinHandle;

use crate::{decision, wait_until_idle};

const TICK: Duration = Duration::from_millis(10);

/// A bucket that refills a token each 100 ms.
fn limit(burst: u64) -> Limit {
    Limit::token_bucket("reservations", 10, Duration::from_secs(1)).burst(burst)
}

/// The same bucket, with a wait that is long enough for all calls of a test.
fn patient_limit(burst: u64) -> Limit {
    limit(burst).wait(Duration::from_secs(60))
}

/// A waiting call: the time at which it ended, and its result.
type WaitingCall = JoinHandle<(Duration, Result<Decision, Rejection>)>;

/// Processes that share a store and a clock, and their calls.
struct Fleet {
    processes: Vec<RateLimiter>,
    clock: VirtualClock,
    /// The cost and the task of each waiting call, by its number.
    waiting: BTreeMap<usize, (u64, WaitingCall)>,
    /// The number, the time and the cost of each admitted call, in the order of admission.
    admitted: Vec<(usize, u64, u64)>,
    /// The units that were refunded.
    refunded: u64,
    rejected: Vec<(usize, Decision)>,
}

impl Fleet {
    async fn new(processes: Vec<RateLimiter>, clock: VirtualClock) -> Self {
        for process in &processes {
            // Connects.
            process.peek(&limit(1), "connect", 1).await.expect("a decision");
        }
        let (waiting, admitted, refunded, rejected) = Default::default();
        Self { processes, clock, waiting, admitted, refunded, rejected }
    }

    async fn embedded() -> Self {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
        // A busy test machine must not take a grant from a call that it does not poll for a while.
        let builder = builder.deadline(Duration::from_secs(30));
        Self::new(vec![builder.build().expect("valid settings")], clock).await
    }

    async fn redis(server: &Server, processes: usize) -> Self {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let process = |_| {
            let builder = server.builder().clock(Clock::Virtual(clock.clone()));
            builder.build().expect("valid settings")
        };
        Self::new((0..processes).map(process).collect(), clock.clone()).await
    }

    /// Starts a call in a process, and lets it reserve its moment.
    async fn start_call(
        &mut self,
        process: usize,
        number: usize,
        limit: &Limit,
        key: &str,
        cost: u64,
    ) {
        let check = self.processes[process].check(limit, key, cost);
        let clock = self.clock.clone();
        let task = tokio::spawn(async move {
            let result = check.await;
            (clock.now(), result)
        });
        self.waiting.insert(number, (cost, task));
        self.run_until_idle().await;
    }

    /// Drops a call.
    async fn drop_call(&mut self, number: usize) {
        if let Some((_, task)) = self.waiting.remove(&number) {
            task.abort();
            let _ = task.await;
            self.run_until_idle().await;
        }
    }

    /// Runs all tasks until they wait for the clock, and records the calls that have ended.
    async fn run_until_idle(&mut self) {
        for process in &self.processes {
            wait_until_idle(process).await;
        }
        self.record().await;
    }

    /// Records the calls that have ended.
    async fn record(&mut self) {
        let done: Vec<_> =
            self.waiting.iter().filter(|(_, (_, task))| task.is_finished()).collect();
        let done: Vec<_> = done.into_iter().map(|(number, _)| *number).collect();
        let mut admitted = Vec::new();
        for number in done {
            let (cost, task) = self.waiting.remove(&number).expect("the call was waiting");
            let (at, result) = task.await.expect("no panic");
            match result {
                Ok(_) => admitted.push((number, at.as_micros() as u64, cost)),
                Err(Rejection::Limited { decision, .. }) => self.rejected.push((number, decision)),
                Err(other) => panic!("{other}"),
            }
        }
        admitted.sort_by_key(|(number, at, _)| (*at, *number));
        self.admitted.extend(admitted);
    }

    async fn advance(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.clock.advance(TICK);
            self.run_until_idle().await;
        }
    }

    async fn peek(&self, limit: &Limit, key: &str) -> Decision {
        decision(self.processes[0].peek(limit, key, 1).await)
    }
}

#[tokio::test]
async fn calls_of_several_processes_are_admitted_in_the_order_of_arrival() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 3).await;
    let limit = patient_limit(1);
    assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
    // Some calls that arrive one after the other belong to the same process.
    for (number, process) in [0, 0, 1, 2, 2, 2, 1, 0, 1, 1].into_iter().enumerate() {
        fleet.start_call(process, number, &limit, "key", 1).await;
    }
    // A call without `wait` does not overtake. Its `retry_after` is the moment after all reservations.
    let unqueued = decision(fleet.processes[1].check(&self::limit(1), "key", 1).await);
    assert_eq!((unqueued.allowed, unqueued.retry_after), (false, Duration::from_millis(1_100)));
    fleet.advance(120).await;
    let order: Vec<_> = fleet.admitted.iter().map(|(number, ..)| *number).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    let start = fleet.admitted[0].1;
    for (number, at, _) in &fleet.admitted {
        assert_eq!(at - start, *number as u64 * 100_000);
    }
}

#[tokio::test]
async fn waiting_calls_share_requests() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 1).await;
    let before = server.script_calls();
    let limit = Limit::leaky_bucket("reservations", 100, Duration::from_secs(1));
    let limit = limit.wait(Duration::from_secs(60));
    for number in 0..1_000 {
        let check = fleet.processes[0].check(&limit, "key", 1);
        let task = tokio::spawn(async move { (Duration::ZERO, check.await) });
        fleet.waiting.insert(number, (1, task));
    }
    fleet.run_until_idle().await;
    fleet.advance(1_000).await;
    assert_eq!(fleet.admitted.len(), 1_000);
    // The process reserves moments for a second, and asks again when half of them are left.
    let requests = server.script_calls() - before;
    assert!(requests < 50, "{requests} requests");
}

#[tokio::test]
async fn a_process_reserves_what_refills_in_a_second() {
    let server = Server::start();
    for mut fleet in [Fleet::embedded().await, Fleet::redis(&server, 1).await] {
        let limit = patient_limit(1);
        for number in 0..40 {
            fleet.start_call(0, number, &limit, "key", 1).await;
        }
        // The first call is admitted at once, and ten calls have moments.
        assert_eq!(fleet.admitted.len(), 1);
        let unqueued = fleet.peek(&self::limit(1), "key").await;
        assert_eq!(unqueued.retry_after, Duration::from_millis(1_100));
        for cost in [2, 3] {
            let other = Limit::token_bucket("reservations", 1, Duration::from_secs(1)).burst(3);
            let number = 100 + cost as usize;
            fleet.start_call(0, number, &other.wait(Duration::from_secs(60)), "slow", cost).await;
        }
        fleet.advance(410).await;
        assert_eq!(fleet.admitted.len(), 42);
    }
}

#[tokio::test]
async fn calls_behind_a_dropped_call_move_up() {
    let server = Server::start();
    for mut fleet in [Fleet::embedded().await, Fleet::redis(&server, 1).await] {
        let limit = patient_limit(1);
        assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
        for number in 0..6 {
            fleet.start_call(0, number, &limit, "key", 1).await;
        }
        for number in [1, 4, 0] {
            fleet.drop_call(number).await;
        }
        // Three calls wait, and the next call will be the fourth.
        assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(400));
        fleet.start_call(0, 6, &limit, "key", 1).await;
        fleet.advance(40).await;
        let order: Vec<_> = fleet.admitted.iter().map(|(number, ..)| *number).collect();
        assert_eq!(order, [2, 3, 5, 6]);
        let first = fleet.admitted[0].1;
        assert!(fleet.admitted.iter().zip(0..).all(|((_, at, _), n)| at - first == n * 100_000));
    }
}

/// A call of another process already knows its moment. So a cancelled reservation in front of it passes unused:
/// fewer calls are admitted than the rate allows, never more.
#[tokio::test]
async fn a_cancelled_reservation_in_front_of_another_process_passes_unused() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 2).await;
    let limit = patient_limit(1);
    assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
    fleet.start_call(0, 0, &limit, "key", 1).await;
    fleet.start_call(1, 1, &limit, "key", 1).await;
    fleet.drop_call(0).await;
    fleet.start_call(0, 2, &limit, "key", 1).await;
    assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(400));
    fleet.drop_call(2).await;
    assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(300));
    fleet.advance(20).await;
    assert_eq!(fleet.admitted.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1]);
}

/// Calls start at the moments that are at most a second ahead, also after a refund: another call has its units.
#[tokio::test]
async fn near_moments_stay_where_they_are() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 2).await;
    let limit = patient_limit(1);
    assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
    for (number, process) in [0, 1, 1, 0].into_iter().enumerate() {
        fleet.start_call(process, number, &limit, "key", 1).await;
    }
    fleet.processes[0].credit(&self::limit(1), "key", 1).await.expect("a decision");
    fleet.run_until_idle().await;
    assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(400));
    fleet.advance(40).await;
    let start = fleet.clock.now().as_micros() as u64 - 400_000;
    let moments: Vec<_> =
        fleet.admitted.iter().map(|(number, at, _)| (*number, (at - start) / 1_000)).collect();
    assert_eq!(moments, [(0, 100), (1, 200), (2, 300), (3, 400)]);
}

/// Starts a call that waits ten seconds for its moment, beside calls of another process.
async fn start_far_call(server: &Server) -> (Fleet, Limit) {
    let mut fleet = Fleet::redis(server, 3).await;
    let limit = Limit::token_bucket("far", 100, Duration::from_secs(100)).burst(10);
    fleet.processes[0].check(&limit, "key", 10).await.expect("a new key");
    let waiting = limit.wait(Duration::from_secs(60));
    fleet.start_call(0, 0, &waiting, "key", 10).await;
    assert!(fleet.admitted.is_empty());
    (fleet, limit)
}

/// Units that go back let a call start at once that has reserved a far moment: in its own process immediately, in
/// another one within a second.
#[tokio::test]
async fn a_far_moment_moves_forward_after_a_refund() {
    let server = Server::start();
    for (refunds, ticks) in [(0, 0), (1, 101)] {
        let (mut fleet, limit) = start_far_call(&server).await;
        fleet.processes[refunds].credit(&limit, "key", 10).await.expect("a decision");
        fleet.advance(ticks).await;
        fleet.run_until_idle().await;
        assert_eq!(fleet.admitted.len(), 1, "{refunds}");
        assert_eq!(fleet.peek(&limit, "key").await.remaining, 0);
        fleet.processes[0].reset(&limit, "key").await.expect("a decision");
    }
}

/// A moment that another process has reserved behind a far one keeps it where it is. That other moment is the last, so
/// it moves forward.
#[tokio::test]
async fn a_far_moment_before_another_stays() {
    let server = Server::start();
    let (mut fleet, limit) = start_far_call(&server).await;
    fleet.start_call(1, 1, &limit.wait(Duration::from_secs(60)), "key", 1).await;
    fleet.processes[0].credit(&limit, "key", 5).await.expect("a decision");
    fleet.advance(999).await;
    assert_eq!(fleet.admitted.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1]);
    fleet.advance(1).await;
    assert_eq!(fleet.admitted.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1, 0]);
}

/// Another process blocks the key of a call that has reserved a far moment. The call does not start, and its units are
/// free once the block ends.
#[tokio::test]
async fn a_far_moment_goes_back_when_another_process_blocks_the_key() {
    let server = Server::start();
    let (mut fleet, limit) = start_far_call(&server).await;
    fleet.processes[1].block(&limit, "key", Duration::from_secs(70)).await.expect("a decision");
    let (_, call) = fleet.waiting.remove(&0).expect("it waits");
    fleet.advance(1_100).await;
    let (at, result) = call.await.expect("no panic");
    // It learns within a second that the block ends too late for it.
    let took = at - (fleet.clock.now() - 1_100 * TICK);
    assert!(result.is_err() && took <= Duration::from_secs(1), "{took:?}: {result:?}");
    fleet.processes[1].unblock(&limit, "key").await.expect("a decision");
    assert_eq!(fleet.peek(&limit, "key").await.remaining, 10);
}

/// The same, while another process has a later moment.
#[tokio::test]
async fn a_far_moment_before_another_goes_back_when_another_process_blocks_the_key() {
    let server = Server::start();
    let (mut fleet, limit) = start_far_call(&server).await;
    fleet.advance(10).await;
    fleet.start_call(1, 1, &limit.wait(Duration::from_secs(60)), "key", 1).await;
    fleet.processes[2].block(&limit, "key", Duration::from_secs(70)).await.expect("a decision");
    let calls = [0, 1].map(|number| fleet.waiting.remove(&number).expect("it waits"));
    for ((_, call), ticks) in calls.into_iter().zip([90, 10]) {
        fleet.advance(ticks).await;
        assert!(call.is_finished(), "it learns within a second");
        call.await.expect("no panic").1.expect_err("the block ends too late for it");
    }
    fleet.advance(1_000).await;
    fleet.processes[2].unblock(&limit, "key").await.expect("a decision");
    assert_eq!(fleet.peek(&limit, "key").await.remaining, 10);
}

#[derive(Clone, Debug)]
enum Step {
    Start { process: usize, cost: u64, wait: u64 },
    Drop(prop::sample::Index),
    Advance(u64),
    Refund(u64),
}

impl Step {
    fn kinds(&self) -> &'static [OperationKind] {
        use OperationKind as K;
        match self {
            Self::Start { .. } => &[K::Wait],
            Self::Drop(_) => &[K::Drop],
            Self::Advance(_) => &[K::Advance],
            Self::Refund(_) => &[K::Refund],
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![Just(60_000), Just(0), 0_u64..2_000];
    let call = (0_usize..2, prop_oneof![3 => Just(1), 1 => 1_u64..=3], wait);
    prop_oneof![
        6 => call.prop_map(|(process, cost, wait)| Step::Start { process, cost, wait }),
        2 => any::<prop::sample::Index>().prop_map(Step::Drop),
        3 => (1_u64..40).prop_map(Step::Advance),
        1 => (1_u64..3).prop_map(Step::Refund),
    ]
}

#[test]
fn plays_calls_that_wait_for_moments() {
    assert_plays(&step(), Step::kinds, |kind| {
        use OperationKind::*;
        match kind {
            Wait | Drop | Refund | Advance => true,
            Check | Burst | Acquire | Pause | Lease | Return | Settle | Debt | Keep | Peek
            | Reset | Block | Unblock | Change | Rule | Free | Several | Idle | Step | Retry
            | Evict | LostReply | Crash | MoveSlot => false,
        }
    });
}

/// Runs a trace, and returns the decision of a peek after each step.
async fn run(mut fleet: Fleet, burst: u64, steps: &[Step], key: &str) -> (Vec<Decision>, Fleet) {
    let mut peeks = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Start { process, cost, wait } => {
                let process = process % fleet.processes.len();
                let limit = limit(burst).wait(Duration::from_millis(*wait));
                fleet.start_call(process, number, &limit, key, (*cost).min(burst)).await;
            }
            Step::Drop(index) if !fleet.waiting.is_empty() => {
                let number = *index.get(&fleet.waiting.keys().collect::<Vec<_>>());
                fleet.drop_call(*number).await;
            }
            Step::Drop(_) => {}
            Step::Advance(ticks) => fleet.advance(*ticks).await,
            Step::Refund(cost) => {
                let refund = fleet.processes[0].credit(&limit(burst), key, *cost).await;
                refund.expect("a decision");
                fleet.refunded += cost;
                fleet.run_until_idle().await;
            }
        }
        peeks.push(fleet.peek(&limit(burst), key).await);
    }
    (peeks, fleet)
}

/// With calls that start and are dropped at random, in one process or in two: both stores make the same
/// decisions, each call is admitted only when the bucket admits it, and the last dropped call leaves no
/// reservation.
#[test]
fn random_traces_keep_the_rate() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let next = std::cell::Cell::new(0);
    let trace = (1_u64..4, vec(step(), 1..60));
    let outcome = TestRunner::new(config).run(&trace, |(burst, steps)| {
        next.set(next.get() + 1);
        let key = format!("{}", next.get());
        runtime.block_on(async {
            let (embedded, mut fleet) = run(Fleet::embedded().await, burst, &steps, &key).await;
            let (redis, other) = run(Fleet::redis(&server, 1).await, burst, &steps, &key).await;
            for (step, (embedded, redis)) in embedded.iter().zip(&redis).enumerate() {
                let mut same = *redis;
                same.source = embedded.source;
                prop_assert_eq!(embedded, &same, "step {}: {:?}", step, &steps[step]);
            }
            prop_assert_eq!(&fleet.admitted, &other.admitted);
            prop_assert_eq!(fleet.rejected.len(), other.rejected.len());

            let key_of_two = format!("{key}, two processes");
            let pair = Fleet::redis(&server, 2).await;
            let (_, pair) = run(pair, burst, &steps, &key_of_two).await;
            for fleet in [&fleet, &pair] {
                // A refund lets as many units more pass, at any time.
                let limit = limit(burst + fleet.refunded);
                let mut model = Model::new(&limit, None);
                for (number, at, cost) in &fleet.admitted {
                    let model = model.check(&limit, *at, *cost);
                    prop_assert!(model.allowed, "call {} at {} is above the rate", number, at);
                }
            }
            for number in fleet.waiting.keys().copied().collect::<Vec<_>>() {
                fleet.drop_call(number).await;
            }
            let left = fleet.peek(&limit(burst), &key).await.retry_after;
            prop_assert!(left <= Duration::from_millis(100), "{left:?} is reserved for no call");
            Ok(())
        })
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
