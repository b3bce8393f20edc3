//! The model of leases, with which the bench simulates large fleets, decides each call as limiters on Redis do. The
//! judge decides about the calls that were admitted.

use std::cell::Cell;
use std::iter;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ratelimit_runtime::__private::{busy_cell, leases_are_idle};
use ratelimit_runtime::{Limit, RateLimiter, Rejection, Source, VirtualClock};
use support::judge::Judge;
use support::leases::{Fleet, Leasing, Quota, Verdict};
use support::limits::MINUTE;
use support::operations::{OperationKind, assert_plays};
use support::server::Server;

use crate::wait_until;

const PROCESSES: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Calls {
    /// The time before them, in microseconds.
    wait: u64,
    process: usize,
    key: u64,
    number: u64,
}

fn calls() -> impl Strategy<Value = Calls> {
    let wait =
        prop_oneof![3 => Just(0), 3 => 0..20_000_u64, 2 => 0..700_000_u64, 1 => Just(599_400)];
    // Many calls leave nothing in a bucket.
    let number = prop_oneof![6 => 1..60_u64, 1 => 500..1_500_u64];
    (wait, 0..PROCESSES, 0..2_u64, number).prop_map(|(wait, process, key, number)| Calls {
        wait,
        process,
        key,
        number,
    })
}

#[test]
fn plays_calls_of_limits_that_lease() {
    use OperationKind::*;
    let kinds = |_: &Calls| &[Check, Burst, Lease, Return, Advance][..];
    assert_plays(&calls(), kinds, |kind| match kind {
        Check | Burst | Lease | Return | Advance => true,
        Acquire | Wait | Drop | Pause | Settle | Debt | Keep | Refund | Peek | Reset | Block
        | Unblock | Change | Rule | Free | Several | Idle | Step | Retry | Evict | LostReply
        | Crash | MoveSlot => false,
    });
}

fn limit(quota: &Quota, leasing: Leasing) -> Limit {
    let limit = Limit::token_bucket("model", quota.threshold, MINUTE).burst(quota.burst);
    match leasing {
        Leasing::None => limit,
        Leasing::UpTo(units) => limit.lease(units),
        Leasing::Auto => limit.auto_lease(),
    }
}

/// Plays a trace. Returns whether the calls that were admitted reach the burst.
async fn play(quota: Quota, leasing: Leasing, trace: &[Calls]) -> Result<bool, TestCaseError> {
    // A server of its own: the limiters of another trace can still give units back.
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = || server.limiter_on(&clock);
    let (observer, plain) = (limiter(), limit(&quota, Leasing::None));
    // The cells of keys follow from a random secret of the limiter. The model knows no keys that share a cell.
    let is_modelled = |it: &RateLimiter| busy_cell(it, &plain, 0) != busy_cell(it, &plain, 1);
    let limiters: [RateLimiter; PROCESSES] =
        std::array::from_fn(|_| iter::repeat_with(limiter).find(is_modelled).expect("endless"));
    let limit = limit(&quota, leasing);
    let mut fleet = Fleet::new(quota, leasing, PROCESSES);
    let mut judges = [(); 2].map(|()| Judge::new(&plain, None));
    let mut reaches_burst = false;
    // The intervals in which busy keys are found begin at multiples of a term.
    let mut now = clock.now().as_micros() as u64;
    for &calls in trace {
        let Calls { wait, process, key, number } = calls;
        clock.advance(Duration::from_micros(wait));
        now += wait;
        fleet.end_leases(now);
        // Limiters give units back in the background.
        wait_until(async || limiters.iter().all(leases_are_idle)).await;
        for key in 0..2 {
            let expected = fleet.remaining(key, now);
            wait_until(async || {
                let left = observer.peek(&plain, key, 1).await.expect("a reply");
                left.remaining == expected
            })
            .await;
        }
        let (scripts, requests) = (server.script_calls(), fleet.requests);
        let mut admitted = 0;
        for call in 0..number {
            let verdict = match limiters[process].check(&limit, key, 1).await {
                Ok(decision) if decision.source == Source::Lease => Verdict::Lease,
                Ok(_) => Verdict::Redis,
                Err(Rejection::Limited { .. }) => Verdict::Rejected,
                Err(other) => panic!("{other:?}"),
            };
            let expected = fleet.call(process, key, now);
            prop_assert_eq!(verdict, expected, "call {} of {:?}", call, calls);
            admitted += u64::from(verdict != Verdict::Rejected);
        }
        let judge = &mut judges[key as usize];
        judge.admitted_between(&plain, (now, now), admitted);
        reaches_burst |= judge.objects_to_more(&plain, 1);
        let (scripts, requests) = (server.script_calls() - scripts, fleet.requests - requests);
        prop_assert_eq!(scripts, requests, "{:?}", calls);
    }
    for judge in judges {
        prop_assert_eq!(judge.breaches(), []);
    }
    Ok(reaches_burst)
}

#[test]
fn the_model_decides_as_limiters_do() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("one");
    let config =
        Config { cases: 40, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    // A hundredth of the threshold refills in a term, and is kept for leased units.
    let quotas = (3_000..60_000_u64, 100..700_u64).prop_map(|(threshold, burst)| Quota {
        threshold,
        burst: threshold.div_ceil(100) + burst,
        period: 60_000_000,
    });
    let leasings = prop_oneof![Just(Leasing::Auto), Just(Leasing::UpTo(20)), Just(Leasing::None)];
    let traces = prop::collection::vec(calls(), 1..40);
    let reaching = Cell::new(0);
    let outcome =
        TestRunner::new(config).run(&(quotas, leasings, traces), |(quota, leasing, trace)| {
            let reaches_burst = runtime.block_on(play(quota, leasing, &trace))?;
            reaching.set(reaching.get() + u64::from(reaches_burst));
            Ok(())
        });
    if let Err(error) = outcome {
        panic!("{error}");
    }
    assert!(reaching.get() > 0, "no trace reaches the burst, so the judge would object to none");
}
