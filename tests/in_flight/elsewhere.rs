//! Calls of units in flight and rates whose keys are in different hash slots of a cluster, and many counts there.

use std::time::{Duration, Instant};

use futures::future::join_all;
use ratelimit_runtime::{Limit, Part, Permit, RateLimiter};
use support::cluster::Cluster;
use support::limits::{DAY, SECOND};
use support::server::Server;
use support::wait::wait_for;
use tokio::time::sleep;

const ONE: Limit = Limit::in_flight("one", 1).hold(Duration::from_secs(3_600));
const RATE: Limit = Limit::fixed("rate", 3, DAY);

fn process(url: &str) -> RateLimiter {
    RateLimiter::builder().redis(url).deadline(SECOND).build().expect("valid")
}

async fn acquire_soon(limiter: &RateLimiter) -> Permit {
    wait_for(async || limiter.acquire(&ONE, "a", 1).await.ok()).await
}

/// Whether the rate lacks before the slot is taken, or only after it.
#[tokio::test]
async fn a_slot_is_free_after_the_rate_has_rejected_the_call() {
    let cluster = Cluster::start(0);
    let limiters = [process(&cluster.url()), process(&cluster.url())];
    assert_ne!(cluster.slot("a"), cluster.slot("b"));
    for round in 0..10 {
        // Three of these calls have a unit of the rate, and many take a slot before they lack one.
        let rated = format!("b{round}");
        let parts = [Part::new(&ONE, &"a", 1), Part::new(&RATE, &rated, 1)];
        let call = async |limiter: &RateLimiter| limiter.acquire_all(&parts).await.map(drop);
        let admitted = join_all(limiters.iter().cycle().take(12).map(call)).await;
        assert!(admitted.iter().flatten().count() <= 3, "{admitted:?}");
        for limiter in &limiters {
            drop(acquire_soon(limiter).await);
        }
        let usage = async || limiters[0].operator().usage(&ONE, "a").await.expect("a reply").used;
        let started = Instant::now();
        while usage().await > 0 {
            assert!(started.elapsed() < 2 * SECOND, "a slot stays taken");
        }
    }
}

/// What a call that was aborted has taken goes back. Nothing else does: another call of the process keeps its slot.
#[tokio::test(flavor = "multi_thread")]
async fn an_aborted_call_frees_no_slot_of_another() {
    let cluster = Cluster::start(0);
    let (limiter, other) = (process(&cluster.url()), process(&cluster.url()));
    for round in 0..60_u64 {
        // The keys are in different hash slots.
        let rated = format!("b{round}");
        let parts = [Part::new(&ONE, &"a", 1), Part::new(&RATE, &rated, 1)];
        let aborted = tokio::spawn(limiter.acquire_all(&parts));
        sleep(Duration::from_micros(100 + round * 37 % 1_500)).await;
        aborted.abort();
        drop(aborted);
        let permit = acquire_soon(&limiter).await;
        for _ in 0..5 {
            let second = other.acquire(&ONE, "a", 1).await;
            assert!(second.is_err(), "two run under a limit of one");
            sleep(Duration::from_millis(2)).await;
        }
        assert!(!permit.is_lost());
        permit.release().await.expect("free");
    }
}

/// All hash slots of a cluster are stated at once, and statements about many counts of one server share scripts.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_counts_keep_their_slots() {
    let (cluster, server) = (Cluster::start(0), Server::start());
    for (url, count) in [(cluster.url(), 3_000), (server.url.clone(), 500)] {
        let (limiter, other) = (process(&url), process(&url));
        // Two cores that run other tests as well state 3,000 counts every second and a half, but not more often.
        let limit = ONE.hold(5 * SECOND);
        let mut permits = Vec::new();
        for keys in (0..count).collect::<Vec<_>>().chunks(100) {
            let calls = keys.iter().map(|key| limiter.acquire(&limit, key, 1));
            permits.extend(join_all(calls).await.into_iter().map(|it| it.expect("admitted")));
        }
        let started = Instant::now();
        while started.elapsed() < 8 * SECOND {
            let lost = permits.iter().filter(|permit| permit.is_lost()).count();
            assert_eq!(lost, 0, "after {:?}", started.elapsed());
            sleep(SECOND / 4).await;
        }
        for key in (0..count).step_by(100) {
            other.acquire(&limit, key, 1).await.expect_err("Redis counts it");
        }
        let released = Instant::now();
        drop(permits);
        let mut waits = Vec::new();
        for key in (0..count).step_by(100) {
            while other.acquire(&limit, key, 1).await.is_err() {}
            waits.push(released.elapsed());
        }
        assert!(waits[0] < SECOND, "{:?}", waits[0]);
    }
}
