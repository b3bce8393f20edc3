//! The memory of the embedded store: a decision about a key that it holds allocates nothing, and
//! neither a flood of keys nor of calls makes it grow beyond its bounds.

use std::hint::black_box;
use std::net::{IpAddr, Ipv6Addr};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{Clock, Key, Limit, RateLimiter, Rejection, VirtualClock, rate_limit};

const LIMITS: [Limit; 5] = [
    Limit::sliding("allocations", 3, Duration::from_secs(3600)),
    Limit::fixed("allocations", 3, Duration::from_secs(3600)),
    Limit::sliding_counter("allocations", 3, Duration::from_secs(3600)),
    Limit::token_bucket("allocations", 3, Duration::from_secs(3600)),
    Limit::leaky_bucket("allocations", 3, Duration::from_secs(3600)),
];

#[rate_limit(period = "1h", threshold = 3, algo = "fixed", key = "{tenant}:{user}")]
async fn annotated(tenant: &str, user: u64) -> Result<(), Rejection> {
    black_box((tenant, user));
    Ok(())
}

/// The answer of a future that is ready at once, without a runtime that might allocate.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the embedded store is waited for"),
    }
}

fn allocates_nothing(limiter: &RateLimiter, key: impl Key + Copy) {
    for limit in LIMITS {
        now(limiter.check(&limit, key, 1)).expect("the first call");
        // Some of these are admitted, the rest are rejected.
        let allocations = allocation_counter::measure(|| {
            for _ in 0..6 {
                let _ = black_box(now(limiter.check(&limit, key, 1)));
            }
        });
        assert_eq!(allocations.count_total, 0, "{}", limit.algorithm());
    }
}

#[test]
fn keys_on_their_way_to_the_embedded_store() {
    let limiter = RateLimiter::embedded();
    let long = "long ".repeat(1_000);
    allocates_nothing(&limiter, "alice");
    allocates_nothing(&limiter, &*long);
    allocates_nothing(&limiter, &String::from("bob"));
    allocates_nothing(&limiter, 42_u64);
    allocates_nothing(&limiter, -1_i128);
    allocates_nothing(&limiter, IpAddr::V6(Ipv6Addr::LOCALHOST));
    allocates_nothing(&limiter, uuid::Uuid::nil());
    allocates_nothing(&limiter, ("tenant", 7, (true, 'x')));
    allocates_nothing(&limiter, ());
}

#[test]
fn an_annotated_call() {
    let limiter = RateLimiter::embedded();
    now(limiter.scope(annotated("shop", 7))).expect("the first call");
    let allocations = allocation_counter::measure(|| {
        for _ in 0..6 {
            let _ = black_box(now(limiter.scope(annotated("shop", 7))));
        }
    });
    assert_eq!(allocations.count_total, 0);
}

#[test]
fn a_flood_of_keys_stays_within_its_bound() {
    let limiter = RateLimiter::builder().max_keys(10_000).build().expect("valid");
    let flood = |keys: std::ops::Range<u64>| {
        allocation_counter::measure(|| {
            for key in keys {
                now(limiter.check(&LIMITS[1], key, 1)).expect("a new key");
            }
        })
    };
    let first = flood(0..100_000);
    assert!(first.bytes_current < 10_000 * 400, "{} bytes for 10,000 keys", first.bytes_current);
    let then = flood(100_000..500_000);
    assert!(then.bytes_current < 100_000, "{} bytes more", then.bytes_current);
}

#[test]
fn a_log_keeps_its_window_and_no_more() {
    let clock = VirtualClock::new();
    let limiter =
        RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build().expect("valid");
    let limit = Limit::sliding("log", 1_000, Duration::from_secs(1));
    let busy = |calls: u32| {
        allocation_counter::measure(|| {
            for _ in 0..calls {
                now(limiter.check(&limit, "key", 1)).expect("one a millisecond");
                clock.advance(Duration::from_millis(1));
            }
        })
    };
    busy(5_000);
    let more = busy(100_000);
    assert!(more.bytes_current <= 0, "{} bytes more", more.bytes_current);
    // A quiet hour after a busy one.
    let quiet = allocation_counter::measure(|| {
        for _ in 0..10 {
            clock.advance(Duration::from_millis(600));
            now(limiter.check(&limit, "key", 1)).expect("hardly used");
        }
    });
    assert!(quiet.bytes_current < -8_000, "{} bytes", quiet.bytes_current);
}

/// Calls that were queued for Redis when their runtime ended leave nothing behind.
#[test]
fn a_runtime_that_ends_takes_its_queued_calls_along() {
    let server = support::server::Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::sliding("queued", 1_000, Duration::from_secs(3600));
    let key = "k".repeat(10_000);
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut context = Context::from_waker(Waker::noop());
            let mut calls: Vec<_> =
                (0..100).map(|call| Box::pin(limiter.check(&limit, (call, &key), 1))).collect();
            for call in &mut calls {
                // Once each: all of them are queued, and none is decided.
                assert!(call.as_mut().poll(&mut context).is_pending());
            }
        });
    };
    run();
    let ten = allocation_counter::measure(|| (0..10).for_each(|_| run()));
    assert!(ten.bytes_current < 1_000_000, "{} bytes; the keys were 10 MB", ten.bytes_current);
}
