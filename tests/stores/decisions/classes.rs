//! Classes of calls on one count: those of a low class stop earlier, so that units are kept for those of a high one.

use ratelimit_runtime::{Algorithm, Limit, RateLimiter, Rejection, VirtualClock};
use support::ALGORITHMS;
use support::clocks::embedded_on;
use support::limits::{MINUTE, is_bucket};
use support::server::Server;
use tokio::task::JoinSet;

use crate::{on_both_stores, wait_until_idle};

/// The units of both classes, and those of the low class.
const ALL: u64 = 100;
const LOW: u64 = 80;

/// Returns the limits of the high and of the low class. Buckets have one rate.
fn classes(algorithm: Algorithm) -> [Limit; 2] {
    let limit = Limit::new("classes", algorithm, ALL, MINUTE).expect("valid");
    [ALL, LOW].map(|units| {
        let limit = if is_bucket(algorithm) {
            limit.try_amounts(ALL, Some(units))
        } else {
            limit.try_amounts(units, None)
        };
        limit.expect("valid")
    })
}

/// Returns how many of `calls` calls one after the other are admitted.
async fn admitted(limiter: &RateLimiter, limit: &Limit, key: u64, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        match limiter.check(limit, key, 1).await {
            Ok(_) => admitted += 1,
            Err(Rejection::Limited { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    admitted
}

/// Under load from three processes, each call of the high class is admitted, whatever the low class does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_low_class_never_takes_what_is_kept_for_a_high_one() {
    let server = Server::start();
    let clock = VirtualClock::new();
    let embedded = embedded_on(&clock);
    let fleets = [[(); 3].map(|()| embedded.clone()), [(); 3].map(|()| server.limiter_on(&clock))];
    for (fleet, algorithm) in fleets.iter().flat_map(|fleet| ALGORITHMS.map(|it| (fleet, it))) {
        let [high, low] = classes(algorithm);
        for key in 0..4 {
            let mut tasks = JoinSet::new();
            for task in 0..12 {
                let limiter = fleet[task % 3].clone();
                // 360 calls of the low class, and, at the same time, as many of the high one as are kept for it.
                tasks.spawn(async move {
                    let (limit, calls) = if task < 9 { (low, 40) } else { (high, 6) };
                    (task < 9, admitted(&limiter, &limit, key, calls).await)
                });
            }
            let mut units = [0, 0];
            for (is_low, admitted) in tasks.join_all().await {
                units[usize::from(is_low)] += admitted;
            }
            let [of_high, of_low] = units;
            assert_eq!(of_high, 18, "{algorithm}: {units:?}");
            // The low class gets what is left of its units, and no more.
            assert!((LOW - 18..=LOW).contains(&of_low), "{algorithm}: {units:?}");
            assert_eq!(admitted(&fleet[0], &low, key, 10).await, 0, "{algorithm}");
            let rest = admitted(&fleet[1], &high, key, 200).await;
            assert_eq!(of_high + of_low + rest, ALL, "{algorithm}: {units:?}");
            assert_eq!(admitted(&fleet[2], &low, key, 1).await, 0, "{algorithm}");
        }
    }
}

on_both_stores! {
    /// Calls of the low class that wait in a line, or whose rejection is cached, are not in the way of the high class.
    async fn a_waiting_low_class_is_not_in_the_way_of_a_high_one(test: TestLimiter) {
        for algorithm in ALGORITHMS.into_iter().filter(|algorithm| !is_bucket(*algorithm)) {
            let [high, low] = classes(algorithm);
            assert_eq!(admitted(&test.limiter, &low, 0, 200).await, LOW, "{algorithm}");
            let waiting: Vec<_> = (0..5)
                .map(|_| tokio::spawn(test.limiter.check(&low.wait(10 * MINUTE), 0, 1)))
                .collect();
            wait_until_idle(&test.limiter).await;
            assert_eq!(admitted(&test.limiter, &high, 0, 200).await, ALL - LOW, "{algorithm}");
            assert!(waiting.iter().all(|call| !call.is_finished()), "{algorithm}");
            for _ in 0..6 {
                test.clock.advance(MINUTE / 2);
                wait_until_idle(&test.limiter).await;
            }
            for call in waiting {
                call.await.expect("no panic").expect("admitted");
            }
            test.limiter.reset(&high, 0).await.expect("reset");
        }
    }
}
