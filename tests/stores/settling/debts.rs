//! Debts, which a call has used beyond its charge, and estimates above what calls use.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{Limit, VirtualClock};
use support::clocks::embedded_on;
use support::limits::{DAY, MINUTE, limits};
use support::server::Server;

use super::{acquire, limiters, remaining};
use crate::decision;

/// The product of the debt and its weight is above what a script counts exactly.
#[tokio::test]
async fn a_debt_of_a_counter_counts_whole_over_a_long_period() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    let limit = Limit::sliding_counter("permits", 1_000_000, DAY);
    clock.set(20_000 * DAY);
    for limiter in &limiters {
        acquire(limiter, &limit, 1).await.settle(5_000_000);
        limiter.flush().await.expect("settled");
    }
    // A fifth of the window before weighs as much as the limit.
    for (later, used) in [(Duration::ZERO, 5_000_000), (DAY + 2 * DAY / 3, 1_666_667)] {
        clock.advance(later);
        for limiter in &limiters {
            let usage = limiter.operator().usage(&limit, "key").await.expect("counted");
            assert_eq!(usage.used, used, "{:?}", limiter.source());
            assert!(!decision(limiter.peek(&limit, "key", 1).await).allowed);
        }
    }
    clock.advance(DAY * 4 / 5 - 2 * DAY / 3 + MINUTE);
    for limiter in &limiters {
        acquire(limiter, &limit, 1).await.keep();
    }
}

#[tokio::test]
async fn a_debt_saturates() {
    let server = Server::start();
    let (limiters, clock) = limiters(&server);
    for limit in limits("permits", 1_000, MINUTE) {
        // The clock ends in the year 2112, so the longest debt drains only if it starts long before.
        clock.set(MINUTE);
        let mut resets = Vec::new();
        for limiter in &limiters {
            // The permit of a call that costs nothing can be settled as well.
            for permit in join_all([(); 3].map(|()| acquire(limiter, &limit, 0))).await {
                permit.settle(u64::MAX);
                assert_eq!(remaining(limiter, &limit).await, 0, "{limit:?}");
            }
            resets.push(decision(limiter.peek(&limit, "key", 1).await).reset_after);
        }
        assert_eq!(resets[0], resets[1], "{limit:?}");
        assert!(resets[0] <= Duration::from_secs(36_525 * 86_400), "{limit:?}: {resets:?}");
        clock.advance(resets[0]);
        for limiter in &limiters {
            assert_eq!(remaining(limiter, &limit).await, 1_000, "{limit:?}");
        }
    }
    server.assert_all_keys_expire();
}

/// A stream of calls that use a tenth of their estimates is admitted at the rate of what they use. The burst is well
/// above what the running calls hold.
#[tokio::test]
async fn a_steady_stream_uses_the_whole_limit() {
    const CALLS: u64 = 1_000;
    let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
    let limiter = embedded_on(&clock);
    for limit in limits("permits", CALLS * 100, MINUTE) {
        // Each call takes two ticks. A tick is a thousandth of a period. The first two periods fill the bucket or the
        // window.
        let (mut running, mut used) = (VecDeque::from([vec![], vec![]]), 0);
        for tick in 0..22 * 1_000 {
            let mut started = Vec::new();
            while let Ok(permit) = limiter.acquire(&limit, "key", 1_000).await {
                started.push(permit);
            }
            running.push_back(started);
            for permit in running.pop_front().expect("the calls of two ticks before") {
                permit.settle(100);
                used += if tick >= 2_000 { 100 } else { 0 };
            }
            clock.advance(MINUTE / 1_000);
        }
        let share = f64::from(used) / (20 * CALLS * 100) as f64;
        assert!((0.95..=1.001).contains(&share), "{limit:?}: {share}");
    }
}
