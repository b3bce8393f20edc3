//! No unit is lost: once no call waits and all leases have ended, windows have exactly the units of the admitted calls,
//! and buckets have no moment. Processes start calls that wait, drop them at any time, lease units, and end without a
//! shutdown.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::{
    Algorithm, Check, Clock, Decision, Limit, RateLimiter, Rejection, VirtualClock,
};
use support::limits::{HOUR, SECOND, is_bucket};
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

use crate::{decision, wait_until, wait_until_idle};

const TICK: Duration = Duration::from_millis(10);
const CAPACITY: u64 = 12;
const LEASED_CAPACITY: u64 = 40;

#[derive(Clone, Debug)]
enum Step {
    /// Starts a call that waits up to some milliseconds.
    Wait {
        process: usize,
        cost: u64,
        wait: u64,
    },
    /// Polls a call that waits.
    Poll(prop::sample::Index),
    PollAll,
    Drop(prop::sample::Index),
    /// Makes some calls of a limit that leases.
    Lease {
        process: usize,
        calls: u64,
    },
    Advance(u32),
    /// Ends a process without a shutdown, and starts another.
    Restart(usize),
}

impl Step {
    fn kinds(&self) -> &'static [OperationKind] {
        use OperationKind as K;
        match self {
            Self::Wait { .. } => &[K::Wait],
            Self::Poll(_) | Self::PollAll => &[K::Pause],
            Self::Drop(_) => &[K::Drop],
            Self::Lease { .. } => &[K::Lease],
            Self::Advance(_) => &[K::Advance],
            Self::Restart(_) => &[K::Crash],
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let wait = prop_oneof![Just(60_000), 1_u64..2_000];
    let call = (0_usize..2, prop_oneof![3 => Just(1), 1 => 1_u64..=3], wait);
    prop_oneof![
        8 => call.prop_map(|(process, cost, wait)| Step::Wait { process, cost, wait }),
        3 => any::<prop::sample::Index>().prop_map(Step::Poll),
        3 => Just(Step::PollAll),
        4 => any::<prop::sample::Index>().prop_map(Step::Drop),
        2 => (0_usize..2, 1_u64..9).prop_map(|(process, calls)| Step::Lease { process, calls }),
        4 => (0_u32..40).prop_map(Step::Advance),
        1 => (0_usize..2).prop_map(Step::Restart),
    ]
}

/// A call that waits, and its process and cost.
struct WaitingCall {
    process: usize,
    cost: u64,
    check: Pin<Box<Check>>,
}

struct Fleet<'a> {
    /// Without a server, the processes are the clones of one limiter.
    server: Option<&'a Server>,
    processes: Vec<RateLimiter>,
    clock: VirtualClock,
    limit: Limit,
    leased: Limit,
    key: String,
    waiting: Vec<WaitingCall>,
    /// The units of the admitted calls.
    admitted: u64,
    admitted_by_leases: u64,
}

/// Returns a limit that admits [`CAPACITY`] units at once. A bucket refills ten units a second.
fn limit(algorithm: Algorithm) -> Limit {
    if is_bucket(algorithm) {
        let limit = Limit::new("conserved", algorithm, 10, SECOND);
        return limit.expect("valid").burst(CAPACITY);
    }
    Limit::new("conserved", algorithm, CAPACITY, HOUR).expect("valid")
}

impl<'a> Fleet<'a> {
    fn start(server: Option<&'a Server>, algorithm: Algorithm, key: &str) -> Self {
        // All steps are within one window.
        let clock = VirtualClock::at(HOUR * 500_000);
        let leased = Limit::sliding("conserved.leased", LEASED_CAPACITY, HOUR).lease(10);
        let mut fleet = Self {
            server,
            processes: Vec::new(),
            clock,
            limit: limit(algorithm),
            leased,
            key: key.to_owned(),
            waiting: Vec::new(),
            admitted: 0,
            admitted_by_leases: 0,
        };
        for _ in 0..2 {
            let process = fleet.process();
            fleet.processes.push(process);
        }
        fleet
    }

    fn process(&self) -> RateLimiter {
        let builder = self.server.map_or_else(RateLimiter::builder, Server::builder);
        let builder = builder.deadline(Duration::from_secs(30));
        let clone = self.processes.first().filter(|_| self.server.is_none()).cloned();
        clone.unwrap_or_else(|| {
            builder.clock(Clock::Virtual(self.clock.clone())).build().expect("valid settings")
        })
    }

    async fn run_until_idle(&mut self) {
        // The calls drive the lines of the embedded store.
        if self.server.is_none() {
            return tokio::task::yield_now().await;
        }
        for process in &self.processes {
            wait_until_idle(process).await;
        }
    }

    /// Polls a call. Returns whether it has ended.
    fn poll(&mut self, index: usize) -> bool {
        let WaitingCall { cost, check, .. } = &mut self.waiting[index];
        let cost = *cost;
        match check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return false,
            Poll::Ready(Ok(_)) => self.admitted += cost,
            Poll::Ready(Err(Rejection::Limited { .. })) => {}
            Poll::Ready(Err(other)) => panic!("{other:?}"),
        }
        drop(self.waiting.remove(index));
        true
    }

    async fn poll_all(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            if !self.poll(index) {
                index += 1;
            }
        }
        self.run_until_idle().await;
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Wait { process, cost, wait } => {
                let limit = self.limit.wait(Duration::from_millis(*wait));
                let check = self.processes[*process].check(&limit, &*self.key, *cost);
                let (process, cost, check) = (*process, *cost, Box::pin(check));
                self.waiting.push(WaitingCall { process, cost, check });
                self.poll(self.waiting.len() - 1);
                self.run_until_idle().await;
            }
            Step::Poll(index) if !self.waiting.is_empty() => {
                self.poll(index.index(self.waiting.len()));
            }
            Step::Drop(index) if !self.waiting.is_empty() => {
                drop(self.waiting.remove(index.index(self.waiting.len())));
                self.run_until_idle().await;
            }
            Step::Poll(_) | Step::Drop(_) => {}
            Step::PollAll => self.poll_all().await,
            Step::Lease { process, calls } => {
                for _ in 0..*calls {
                    match self.processes[*process].check(&self.leased, &*self.key, 1).await {
                        Ok(_) => self.admitted_by_leases += 1,
                        Err(Rejection::Limited { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }
            Step::Advance(ticks) => {
                self.clock.advance(TICK * *ticks);
                self.run_until_idle().await;
            }
            Step::Restart(process) => {
                self.waiting.retain(|call| call.process != *process);
                self.processes[*process] = self.process();
            }
        }
    }

    /// Drops all calls, and ends all leases.
    async fn rest(&mut self) {
        self.waiting.clear();
        self.run_until_idle().await;
        self.clock.advance(Duration::from_secs(2));
        self.run_until_idle().await;
    }

    async fn peek(&self, limit: &Limit) -> Decision {
        decision(self.processes[0].peek(limit, &*self.key, 1).await)
    }
}

#[test]
fn plays_what_holds_units() {
    assert_plays(&step(), Step::kinds, |kind| {
        use OperationKind::*;
        match kind {
            Wait | Drop | Pause | Lease | Advance | Crash => true,
            Check | Burst | Acquire | Return | Settle | Debt | Keep | Refund | Peek | Reset
            | Block | Unblock | Change | Rule | Free | Several | Idle | Step | Retry | Evict
            | LostReply | MoveSlot => false,
        }
    });
}

/// Plays random traces on both stores, and calls `judge` with each fleet at rest.
fn play(algorithm: Algorithm, cases: u32, judge: &impl AsyncFn(&Fleet<'_>)) {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    // A trace that fails takes long, because the test waits for the store.
    let max_shrink_iters = 0;
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let next = Cell::new(0);
    let traces = prop::collection::vec(step(), 1..50);
    let outcome = TestRunner::new(config).run(&traces, |steps| {
        next.set(next.get() + 1);
        for server in [None, Some(&server)] {
            let key = format!("{algorithm} {}", next.get());
            runtime.block_on(async {
                let mut fleet = Fleet::start(server, algorithm, &key);
                for step in &steps {
                    fleet.take(step).await;
                }
                fleet.rest().await;
                judge(&fleet).await;
            });
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{algorithm}: {error}");
    }
}

#[test]
fn windows_have_exactly_the_units_of_admitted_calls() {
    for algorithm in [Algorithm::Sliding, Algorithm::Fixed, Algorithm::SlidingCounter] {
        play(algorithm, 40, &async |fleet: &Fleet<'_>| {
            let left = CAPACITY - fleet.admitted;
            let by_leases = LEASED_CAPACITY - fleet.admitted_by_leases;
            wait_until(async || fleet.peek(&fleet.limit).await.remaining == left).await;
            wait_until(async || fleet.peek(&fleet.leased).await.remaining == by_leases).await;
        });
    }
}

#[test]
fn buckets_keep_no_moments() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        play(algorithm, 40, &async |fleet: &Fleet<'_>| {
            // A process reserves at most what refills in a second. All moments have passed.
            let left = fleet.peek(&fleet.limit).await;
            assert!(left.allowed, "{left:?}");
        });
    }
}
