//! Calls whose charge is an estimate well above what they use.

use std::collections::VecDeque;
use std::time::Duration;

use ratelimit_runtime::VirtualClock;
use support::clocks::embedded_on;
use support::limits::{HOUR, MINUTE, limits};
use support::server::Server;
use tokio::task::JoinSet;

use super::{limiters, remaining};

/// A hundred calls at once with an estimate of a tenth: ten start. Nine tenths are back once they are settled.
#[tokio::test]
async fn only_estimates_that_fit_start() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("permits", 10_000, MINUTE) {
            let calls: JoinSet<_> =
                (0..100).map(|_| limiter.acquire(&limit, "key", 1_000)).collect();
            let permits: Vec<_> =
                calls.join_all().await.into_iter().filter_map(Result::ok).collect();
            assert_eq!(permits.len(), 10, "{limit:?}");
            for permit in permits {
                permit.settle(100);
            }
            assert_eq!(remaining(limiter, &limit).await, 9_000, "{limit:?}");
        }
    }
}

/// An estimate of one unit: a budget of ten admits calls until ten units are used, and the last call can use more.
#[tokio::test]
async fn an_estimate_of_one_admits_while_a_unit_is_left() {
    let server = Server::start();
    let (limiters, _) = limiters(&server);
    for limiter in &limiters {
        for limit in limits("budget", 10, HOUR) {
            let mut used = 0;
            for _ in 0..100 {
                if let Ok(permit) = limiter.acquire(&limit, "key", 1).await {
                    permit.settle(8);
                    limiter.flush().await.expect("settled");
                    used += 8;
                }
            }
            assert_eq!(used, 16, "{limit:?}");
        }
    }
}

/// A stream of calls that use a tenth of their estimates is admitted at the rate of what they use. The burst is well
/// above what the running calls hold.
#[tokio::test]
async fn a_steady_stream_uses_the_whole_limit() {
    const CALLS: u64 = 1_000;
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    let limiter = embedded_on(&clock);
    for limit in limits("permits", CALLS * 100, MINUTE) {
        // Each call takes two ticks. A tick is a thousandth of a period.
        let (mut running, mut used, mut ticks) = (VecDeque::new(), 0_u64, 0_u64);
        // The first two periods fill the bucket or the window.
        while ticks < 22 * 1_000 {
            while let Ok(permit) = limiter.acquire(&limit, "key", 1_000).await {
                running.push_back((ticks + 2, permit));
            }
            while running.front().is_some_and(|(end, _)| *end <= ticks) {
                let (_, permit) = running.pop_front().expect("a call");
                permit.settle(100);
                used += if ticks >= 2_000 { 100 } else { 0 };
            }
            clock.advance(MINUTE / 1_000);
            ticks += 1;
        }
        let share = used as f64 / (20 * CALLS * 100) as f64;
        assert!((0.95..=1.001).contains(&share), "{limit:?}: {share}");
    }
}
