//! Debts, which a call has used beyond its charge, and estimates above what calls use.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{Limit, VirtualClock};
use support::clocks::embedded_on;
use support::limits::{DAY, MINUTE, limits};
use support::server::Server;

use crate::TestLimiter;

crate::on_both_stores! {
    /// The product of the debt and its weight is above what a script counts exactly.
    async fn a_debt_of_a_counter_counts_whole_over_a_long_period(test: TestLimiter) {
        let limit = Limit::sliding_counter("permits", 1_000_000, DAY);
        test.clock.set(20_000 * DAY);
        test.settle(test.acquire(&limit, 1).await, 5_000_000).await;
        // A fifth of the window before weighs as much as the limit.
        for (later, used) in [(Duration::ZERO, 5_000_000), (DAY + 2 * DAY / 3, 1_666_667)] {
            test.clock.advance(later);
            let usage = test.limiter.operator().usage(&limit, "key").await.expect("counted");
            assert_eq!(usage.used, used);
            assert!(!test.peek(&limit, 1).await.allowed);
        }
        test.clock.advance(DAY * 4 / 5 - 2 * DAY / 3 + MINUTE);
        assert!(test.allows(&limit, 1).await);
    }
}

#[tokio::test]
async fn a_debt_saturates() {
    let server = Server::start();
    let tests = [TestLimiter::embedded(), TestLimiter::redis(&server)];
    for limit in limits("permits", 1_000, MINUTE) {
        let mut resets = Vec::new();
        for test in &tests {
            // The clock ends in the year 2112, so the longest debt drains only if it starts long before.
            test.clock.set(MINUTE);
            // The permit of a call that costs nothing can be settled as well.
            for permit in join_all([(); 3].map(|()| test.acquire(&limit, 0))).await {
                test.settle(permit, u64::MAX).await;
                assert_eq!(test.peek(&limit, 1).await.remaining, 0, "{limit:?}");
            }
            let reset = test.peek(&limit, 1).await.reset_after;
            assert!(reset <= Duration::from_secs(36_525 * 86_400), "{limit:?}: {reset:?}");
            test.clock.advance(reset);
            assert_eq!(test.peek(&limit, 1).await.remaining, 1_000, "{limit:?}");
            resets.push(reset);
        }
        assert_eq!(resets[0], resets[1], "{limit:?}");
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
