//! Redis Cluster, and processes whose clocks differ.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Clock, Limit, Part, VirtualClock};
use support::cluster::Cluster;
use support::limits::HOUR;
use tokio::task::JoinSet;

use crate::denying_builder;

/// 5 ms before the beginning of a window.
const BEGIN: Duration = Duration::from_millis(3_600_000 * 500_000 - 5);

/// Calls of two limits in different hash slots charge the first limit, and are rejected by the second. All of that is
/// rolled back, although the clock of the process is behind the clock of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_lags_does_not_prevent_a_rollback() {
    let cluster = Cluster::start(0);
    let [early, late] = [Duration::from_millis(5), Duration::ZERO].map(|ahead| {
        let time = BEGIN + ahead;
        let builder = denying_builder(&cluster.url());
        builder.clock(Clock::Virtual(VirtualClock::at(time))).build().expect("valid settings")
    });
    for algorithm in [Algorithm::Sliding, Algorithm::Fixed, Algorithm::SlidingCounter] {
        let first = Limit::new("lagging.first", algorithm, 1_000, HOUR).expect("valid");
        let second = Limit::fixed("lagging.second", 1, HOUR);
        let mut rolled_back = 0;
        for round in 0..60_u64 {
            let (a, b) = (("a", round), ("b", algorithm.to_string(), round));
            early.check(&first, a, 1).await.expect("admitted");
            let calls: JoinSet<_> = (0..4)
                .map(|_| late.check_all(&[Part::new(&first, &a, 10), Part::new(&second, &b, 1)]))
                .collect();
            let results = calls.join_all().await;
            let admitted = results.iter().filter(|result| result.is_ok()).count() as u64;
            assert!(admitted <= 1, "{results:?}");
            rolled_back += 4 - admitted;
            let left = early.peek(&first, a, 1).await.expect("a reply").remaining;
            assert_eq!(left, 1_000 - 1 - 10 * admitted, "{algorithm}, round {round}");
        }
        assert!(rolled_back > 60, "{rolled_back}");
    }
}
