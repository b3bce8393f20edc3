//! The count of a blocked key: nothing of it is lost, and nothing of another is given away.

use std::time::Duration;

use ratelimit_runtime::{
    Algorithm, Clock, Limit, RateLimiter, Rejection, Source, VirtualClock, rate_limit,
};
use support::limits::{HOUR, MINUTE, SECOND, limits};
use support::proxy::Proxy;
use support::server::Server;

use crate::{on_both_stores, wait_until};

#[rate_limit(period = 60, threshold = 10_000, algo = "fixed", name = "left", block = |_| Some(MINUTE))]
async fn close_window() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    period = 60, threshold = 10_000, algo = "token_bucket", name = "left", block = |_| Some(MINUTE)
)]
async fn block_bucket() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = 60, threshold = 10, name = "queued", block = |_| Some(MINUTE))]
async fn block() -> Result<(), Rejection> {
    Ok(())
}

on_both_stores! {
    /// New keys make the embedded store reclaim what has expired.
    async fn a_count_outlives_its_block(test: TestLimiter) {
        for limit in limits("count", 10, HOUR) {
            test.limiter.check(&limit, "key", 10).await.expect("a new key");
            test.limiter.block(&limit, "key", SECOND).await.expect("blocked");
            test.clock.advance(2 * SECOND);
            for other in 0..2_000 {
                test.limiter.check(&limit, other, 1).await.expect("a new key");
            }
            test.limiter.check(&limit, "key", 10).await.expect_err("used up");
        }
    }

    async fn a_clock_that_steps_back_does_not_move_a_bucket_too_far(test: TestLimiter) {
        let limit = Limit::token_bucket("steps back", 1, SECOND).burst(10);
        test.clock.set(Duration::ZERO);
        test.limiter.check(&limit, "key", 10).await.expect("a new key");
        test.clock.set(5 * SECOND);
        test.limiter.block(&limit, "key", 10 * SECOND).await.expect("blocked");
        test.clock.set(2 * SECOND);
        test.limiter.unblock(&limit, "key").await.expect("unblocked");
        let peek = test.limiter.peek(&limit, "key", 10).await.expect("a decision");
        assert!(peek.retry_after <= 10 * SECOND, "{peek:?}");
    }
}

#[tokio::test]
async fn a_full_store_keeps_the_count_of_a_key_that_is_blocked() {
    let clock = VirtualClock::new();
    let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone())).max_keys(64);
    let limiter = builder.build().expect("valid settings");
    let limit = Limit::sliding("full", 10, HOUR);
    limiter.check(&limit, "key", 10).await.expect("a new key");
    limiter.block(&limit, "key", SECOND).await.expect("blocked");
    clock.advance(SECOND);
    limiter.check(&limit, "key", 10).await.expect_err("used up");
}

/// A state may not expire before it equals that of an unused key. By the clock of the server: the TTL is in the state.
#[tokio::test]
async fn an_early_unblock_leaves_a_ttl_that_suffices() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid settings");
    for limit in limits("count", 10, 10 * SECOND) {
        for used in [1, 30] {
            let permit = limiter.acquire(&limit, "key", 2).await.expect("a new key");
            if used > 1 {
                limiter.reset(&limit, "key").await.expect("reset");
            }
            limiter.block(&limit, "key", HOUR).await.expect("blocked");
            permit.settle(used);
            limiter.flush().await.expect("settled");
            limiter.unblock(&limit, "key").await.expect("unblocked");
            for cost in [0, 8] {
                let _ = limiter.check(&limit, "key", cost).await;
                let ttl = Duration::from_millis(server.ttls()[0].1.unsigned_abs());
                let peek = limiter.peek(&limit, "key", 1).await.expect("a decision");
                assert!(ttl >= peek.reset_after, "{limit:?}: {ttl:?}, {peek:?}");
                assert!(ttl < MINUTE, "{limit:?}: {ttl:?}");
            }
            limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

/// A count whose TTL was removed by hand.
#[tokio::test]
async fn a_key_without_a_ttl_keeps_its_count() {
    let server = Server::start();
    let limiter = server.builder().cache_rejections(false).build().expect("valid");
    let mut connection = server.connection();
    for limit in limits("persists", 10, HOUR) {
        limiter.check(&limit, "key", 10).await.expect("a new key");
        let [(name, _)] = &server.ttls()[..] else { panic!("one key") };
        redis::cmd("PERSIST").arg(name).exec(&mut connection).expect("PERSIST");
        limiter.block(&limit, "key", MINUTE).await.expect("blocked");
        server.assert_all_keys_expire();
        limiter.unblock(&limit, "key").await.expect("unblocked");
        server.assert_all_keys_expire();
        limiter.check(&limit, "key", 10).await.expect_err("used up");
        redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
    }
}

/// A blocked key lives until the end of its block, and as long after it as the state of the open key.
#[tokio::test]
async fn corrections_do_not_lengthen_the_life_of_a_blocked_key() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let virtual_clock = server.builder().clock(Clock::Virtual(clock.clone()));
    for builder in [server.builder(), virtual_clock] {
        let limiter = builder.build().expect("valid settings");
        for limit in limits("count", 10, 10 * SECOND)
            .map(|limit| limit.try_amounts(1_000, None).expect("valid"))
        {
            let limit = if limit.capacity() == 1 { limit.burst(1_000) } else { limit };
            let mut permits = Vec::new();
            for _ in 0..400 {
                permits.push(limiter.acquire(&limit, "key", 2).await.expect("admitted"));
            }
            limiter.block(&limit, "key", MINUTE).await.expect("blocked");
            for permit in permits.drain(..300) {
                permit.settle(1);
            }
            limiter.flush().await.expect("settled");
            for permit in permits {
                permit.settle(1);
                limiter.flush().await.expect("settled");
            }
            limiter.credit(&limit, "key", 1).await.expect("refunded");
            // The block, two periods, the slack of the TTL, and a minute if the clock is not the server's.
            let ttl = Duration::from_millis(server.ttls()[0].1.unsigned_abs());
            assert!(ttl <= 2 * MINUTE + 40 * SECOND, "{limit:?}: {ttl:?}");
            limiter.reset(&limit, "key").await.expect("reset");
        }
    }
}

#[tokio::test]
async fn a_failed_correction_leaves_a_key_blocked() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    let limit = Limit::sliding("failed", 20_000, HOUR);
    for _ in 0..10_000 {
        limiter.check(&limit, "key", 1).await.expect("admitted");
        clock.advance(Duration::from_micros(1));
    }
    limiter.block(&limit, "key", HOUR).await.expect("blocked");
    let mut connection = server.connection();
    for (key, _) in server.ttls() {
        if !key.ends_with('}') {
            redis::cmd("DEL").arg(&key).exec(&mut connection).expect("DEL");
            redis::cmd("RPUSH").arg(&key).arg("foreign").exec(&mut connection).expect("RPUSH");
            redis::cmd("PEXPIRE").arg(&key).arg(1_000_000).exec(&mut connection).expect("PEXPIRE");
        }
    }
    // First the server has no memory. Then all of a segment counts that cannot be read.
    for (memory, cost) in [("1", 100), ("0", 9_000)] {
        redis::cmd("CONFIG").arg(&["SET", "maxmemory", memory]).exec(&mut connection).expect("set");
        let refunded = limiter.credit(&limit, "key", cost).await;
        assert_eq!(refunded.is_ok(), memory == "0", "{refunded:?}");
        server.assert_all_keys_expire();
        let rejection = limiter.check(&limit, "key", 1).await.expect_err("still blocked");
        assert!(matches!(rejection, Rejection::Blocked { .. }), "{rejection:?}");
    }
    limiter.unblock(&limit, "key").await.expect("unblocked");
    assert_eq!(limiter.peek(&limit, "key", 1).await.expect("open").remaining, 19_000);
}

/// Units that were leased before the block go back to their charge.
#[tokio::test]
async fn leased_units_go_back_to_a_blocked_bucket() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = || server.limiter_on(&clock);
    let [here, there] = [limiter(), limiter()];
    let plain = Limit::token_bucket("lease", 10_000, MINUTE).burst(10_000);
    let leased = plain.lease(500);
    for _ in 0..600 {
        there.check(&leased, "key", 1).await.expect("admitted");
    }
    here.block(&leased, "key", MINUTE).await.expect("blocked");
    clock.advance(SECOND);
    // 600 units were spent. The lease keeps back 167, and some of them drain before they go back.
    wait_until(async || {
        let peek = here.peek(&plain, "key", 10_000).await.expect("a decision");
        peek.retry_after < MINUTE + Duration::from_secs(4)
    })
    .await;
}

/// One function leases units of a count, another one blocks its key.
#[tokio::test]
async fn a_process_that_blocks_a_key_spends_no_leased_units() {
    let (server, clock) = (Server::start(), VirtualClock::new());
    let limiter = server.limiter_on(&clock);
    let window = Limit::fixed("left", 10_000, MINUTE).lease(50);
    let bucket = Limit::token_bucket("left", 10_000, MINUTE).lease(50);
    for limit in [window, bucket] {
        for _ in 0..201 {
            limiter.check(&limit, (), 1).await.expect("admitted");
        }
        let leased = limiter.check(&limit, (), 1).await.expect("admitted");
        assert_eq!(leased.source, Source::Lease, "{limit:?}");
        let blocked = if limit.algorithm() == Algorithm::Fixed {
            limiter.scope(close_window()).await
        } else {
            limiter.scope(block_bucket()).await
        };
        blocked.expect("admitted");
        let rejection = limiter.check(&limit, (), 1).await.expect_err("blocked");
        assert!(matches!(rejection, Rejection::Blocked { .. }), "{limit:?}: {rejection:?}");
    }
}

/// Redis blocks the key only after a while.
#[tokio::test]
async fn an_unblock_comes_after_the_blocks_before_it() {
    let server = Server::start();
    let proxy = Proxy::with_latency(server.port(), Duration::from_millis(30));
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let builder = RateLimiter::builder().redis(url).deadline(10 * SECOND);
    let limiter = builder.build().expect("valid settings");
    let limit = Limit::sliding("queued", 10, MINUTE);
    limiter.scope(block()).await.expect("admitted");
    assert!(limiter.unblock(&limit, ()).await.expect("unblocked"));
    limiter.check(&limit, (), 1).await.expect("open");
}
