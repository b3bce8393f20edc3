//! `wait` on a bucket: calls of all processes in the order in which they came, one question each,
//! never more than the bucket admits, and nothing lost by those who leave.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::{Clock, Decision, Limit, RateLimiter, Rejection, Source, VirtualClock};
use support::model::Model;
use support::server::Server;
use tokio::task::JoinHandle;

use crate::decision;

const TICK: Duration = Duration::from_millis(10);

/// A token each 100 ms.
fn limit(burst: u32) -> Limit {
    Limit::token_bucket("slots", 10, Duration::from_secs(1)).burst(burst)
}

fn long(burst: u32) -> Limit {
    limit(burst).wait(Duration::from_secs(60))
}

type Waiting = JoinHandle<(Duration, Result<Decision, Rejection>)>;

/// Processes with one store and one clock, and the calls that wait in them.
struct Fleet {
    processes: Vec<RateLimiter>,
    clock: VirtualClock,
    waiting: BTreeMap<usize, (u32, Waiting)>,
    /// Who was admitted, in order: number, time and cost.
    admitted: Vec<(usize, u64, u32)>,
    refused: Vec<(usize, Decision)>,
}

impl Fleet {
    async fn new(processes: Vec<RateLimiter>, clock: VirtualClock) -> Self {
        for process in &processes {
            // There is a connection.
            process.peek(&limit(1), "connect", 1).await.expect("a decision");
        }
        let (waiting, admitted, refused) = Default::default();
        Self { processes, clock, waiting, admitted, refused }
    }

    async fn embedded() -> Self {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
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

    /// A call comes to a process and is asked about.
    async fn come(&mut self, process: usize, number: usize, limit: &Limit, key: &str, cost: u32) {
        let check = self.processes[process].check(limit, key, cost);
        let clock = self.clock.clone();
        let task = tokio::spawn(async move {
            let answer = check.await;
            (clock.now(), answer)
        });
        self.waiting.insert(number, (cost, task));
        self.settle().await;
    }

    /// A call gives up.
    async fn leave(&mut self, number: usize) {
        if let Some((_, task)) = self.waiting.remove(&number) {
            task.abort();
            let _ = task.await;
            self.settle().await;
        }
    }

    /// Lets everything go on that does not wait for the clock, and notes who is done.
    async fn settle(&mut self) {
        for process in &self.processes {
            for _ in 0..if process.source() == Source::Redis { 4 } else { 1 } {
                yield_often().await;
                // What was sent before this is answered before it.
                process.peek(&limit(1), "settle", 1).await.expect("a decision");
            }
        }
        yield_often().await;
        self.note().await;
    }

    async fn note(&mut self) {
        let done: Vec<_> =
            self.waiting.iter().filter(|(_, (_, task))| task.is_finished()).collect();
        let done: Vec<_> = done.into_iter().map(|(number, _)| *number).collect();
        let mut admitted = Vec::new();
        for number in done {
            let (cost, task) = self.waiting.remove(&number).expect("it was there");
            let (at, answer) = task.await.expect("no panic");
            match answer {
                Ok(_) => admitted.push((number, at.as_micros() as u64, cost)),
                Err(Rejection::Limited { decision, .. }) => self.refused.push((number, decision)),
                Err(other) => panic!("{other}"),
            }
        }
        admitted.sort_by_key(|(number, at, _)| (*at, *number));
        self.admitted.extend(admitted);
    }

    async fn advance(&mut self, ticks: u32) {
        for _ in 0..ticks {
            self.clock.advance(TICK);
            yield_often().await;
            self.note().await;
        }
    }

    async fn peek(&self, limit: &Limit, key: &str) -> Decision {
        decision(self.processes[0].peek(limit, key, 1).await)
    }
}

async fn yield_often() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn processes_take_turns_in_the_order_of_their_calls() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 3).await;
    let limit = long(1);
    assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
    // Not round and round: a process may have several in a row.
    for (number, process) in [0, 0, 1, 2, 2, 2, 1, 0, 1, 1].into_iter().enumerate() {
        fleet.come(process, number, &limit, "key", 1).await;
    }
    // Who does not wait does not get in between, and is told when it would be its turn.
    let hasty = decision(fleet.processes[1].check(&self::limit(1), "key", 1).await);
    assert_eq!((hasty.allowed, hasty.retry_after), (false, Duration::from_millis(1_100)));
    fleet.advance(120).await;
    let order: Vec<_> = fleet.admitted.iter().map(|(number, ..)| *number).collect();
    assert_eq!(order, (0..10).collect::<Vec<_>>());
    let start = fleet.admitted[0].1;
    for (number, at, _) in &fleet.admitted {
        assert_eq!(at - start, *number as u64 * 100_000);
    }
}

#[tokio::test]
async fn each_waiter_asks_once() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 1).await;
    let before = server.script_calls();
    let limit = Limit::leaky_bucket("slots", 100, Duration::from_secs(1));
    let limit = limit.wait(Duration::from_secs(60));
    for number in 0..1_000 {
        let check = fleet.processes[0].check(&limit, "key", 1);
        let task = tokio::spawn(async move { (Duration::ZERO, check.await) });
        fleet.waiting.insert(number, (1, task));
    }
    fleet.settle().await;
    fleet.advance(1_000).await;
    assert_eq!(fleet.admitted.len(), 1_000);
    // A thousand, and those of `settle`.
    assert_eq!(server.script_calls() - before, 1_004);
}

#[tokio::test]
async fn those_behind_move_up() {
    let server = Server::start();
    for mut fleet in [Fleet::embedded().await, Fleet::redis(&server, 1).await] {
        let limit = long(1);
        assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
        for number in 0..6 {
            fleet.come(0, number, &limit, "key", 1).await;
        }
        for number in [1, 4, 0] {
            fleet.leave(number).await;
        }
        // Three are left, and the next to come is the fourth.
        assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(400));
        fleet.come(0, 6, &limit, "key", 1).await;
        fleet.advance(40).await;
        let order: Vec<_> = fleet.admitted.iter().map(|(number, ..)| *number).collect();
        assert_eq!(order, [2, 3, 5, 6]);
        let first = fleet.admitted[0].1;
        assert!(fleet.admitted.iter().zip(0..).all(|((_, at, _), n)| at - first == n * 100_000));
    }
}

/// A call of another process has been told its time, so that a slot in front of it passes unused:
/// less is admitted than could be, never more.
#[tokio::test]
async fn a_slot_in_front_of_another_process_passes() {
    let server = Server::start();
    let mut fleet = Fleet::redis(&server, 2).await;
    let limit = long(1);
    assert!(fleet.processes[0].check(&limit, "key", 1).await.is_ok());
    fleet.come(0, 0, &limit, "key", 1).await;
    fleet.come(1, 1, &limit, "key", 1).await;
    fleet.leave(0).await;
    fleet.come(0, 2, &limit, "key", 1).await;
    assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(400));
    fleet.leave(2).await;
    assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(300));
    // Nor is there anything to give back while somebody waits.
    fleet.processes[0].refund(&limit, "key", 1).await.expect("Redis");
    assert_eq!(fleet.peek(&limit, "key").await.retry_after, Duration::from_millis(300));
    fleet.advance(20).await;
    assert_eq!(fleet.admitted.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1]);
}

#[derive(Clone, Debug)]
enum Step {
    Come { process: usize, cost: u32, wait: u64 },
    Leave(prop::sample::Index),
    Advance(u32),
    Refund(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![Just(60_000), Just(0), 0_u64..2_000];
    let come = (0_usize..2, prop_oneof![3 => Just(1), 1 => 1_u32..=3], wait);
    prop_oneof![
        6 => come.prop_map(|(process, cost, wait)| Step::Come { process, cost, wait }),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
        3 => (1_u32..40).prop_map(Step::Advance),
        1 => (1_u32..3).prop_map(Step::Refund),
    ]
}

/// Runs a trace, and gives what can be seen of it from outside, step by step.
async fn run(mut fleet: Fleet, burst: u32, steps: &[Step], key: &str) -> (Vec<Decision>, Fleet) {
    let mut seen = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Come { process, cost, wait } => {
                let process = process % fleet.processes.len();
                let limit = limit(burst).wait(Duration::from_millis(*wait));
                fleet.come(process, number, &limit, key, (*cost).min(burst)).await;
            }
            Step::Leave(index) if !fleet.waiting.is_empty() => {
                let number = *index.get(&fleet.waiting.keys().collect::<Vec<_>>());
                fleet.leave(*number).await;
            }
            Step::Leave(_) => {}
            Step::Advance(ticks) => fleet.advance(*ticks).await,
            Step::Refund(cost) => {
                let refund = fleet.processes[0].refund(&limit(burst), key, *cost).await;
                refund.expect("a decision");
                // The model of what was admitted ends here.
                fleet.admitted.clear();
            }
        }
        seen.push(fleet.peek(&limit(burst), key).await);
    }
    (seen, fleet)
}

/// Whatever comes and goes, in one process or two: the stores agree, nobody is admitted that the
/// bucket would not have admitted at that moment, and who leaves last leaves an untouched bucket.
#[test]
fn traces_keep_the_rate() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let next = std::cell::Cell::new(0);
    let trace = (1_u32..4, vec(step(), 1..60));
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
            prop_assert_eq!(fleet.refused.len(), other.refused.len());

            let two = format!("{key}, by two");
            let (_, both) = run(Fleet::redis(&server, 2).await, burst, &steps, &two).await;
            for fleet in [&fleet, &both] {
                let mut model = Model::new(&limit(burst), None);
                for (number, at, cost) in &fleet.admitted {
                    let model = model.check(&limit(burst), *at, *cost);
                    prop_assert!(model.allowed, "{} at {} is one too many", number, at);
                }
            }
            for number in fleet.waiting.keys().copied().collect::<Vec<_>>() {
                fleet.leave(number).await;
            }
            let left = fleet.peek(&limit(burst), &key).await.retry_after;
            prop_assert!(left <= Duration::from_millis(100), "{left:?} for nobody");
            Ok(())
        })
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
