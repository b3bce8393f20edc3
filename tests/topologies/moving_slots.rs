//! A hash slot of a Redis Cluster that moves to another node: its keys are on two nodes. On the node that the slot
//! leaves, each command on a key that is not there fails, also within a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratelimit_runtime::{
    Clock, Limit, Part, Permit, RateLimiter, Rejection, VirtualClock, rate_limit,
};
use redis::Commands;
use support::cluster::Cluster;
use support::limits::{HOUR, MINUTE, SECOND, limits};
use tokio::task::JoinSet;

use crate::{admits, denying_builder};

fn assert_blocked(result: &Result<impl std::fmt::Debug, Rejection>, limit: &Limit) {
    assert!(matches!(result, Err(Rejection::Blocked { .. })), "{limit:?}: {result:?}");
}

/// Begins to move the hash slot of a key of a limit, and leaves all keys where they are.
fn begin_move(cluster: &Cluster, key: &str) {
    let tag = format!("{{{key}}}");
    cluster.begin_move(cluster.slot(&tag), &format!("other{tag}"));
}

/// A hash slot moves from node to node while calls charge its keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_and_calls_succeed_during_resharding() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let limit = Limit::sliding("moved", 300, HOUR);
    let bucket = Limit::token_bucket("moved", 300, HOUR);
    let slot = cluster.slot("rl:sliding:1h:moved{key}");
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut admitted = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                if task % 2 == 0 {
                    admitted += u64::from(admits(&limiter, &limit, "key").await);
                } else {
                    // The two keys of one call can be on two nodes for a moment.
                    let parts = [Part::new(&limit, &"key", 1), Part::new(&bucket, &"key", 1)];
                    match limiter.check_all(&parts).await {
                        Ok(_) => admitted += 1,
                        Err(Rejection::Limited { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            admitted
        });
    }
    let moves = tokio::task::spawn_blocking(move || {
        for _ in 0..6 {
            cluster.move_slot(slot, Duration::from_millis(40));
        }
        cluster
    });
    let cluster = moves.await.expect("no panic");
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(admitted, 300);
    drop(cluster);
}

/// While a hash slot moves, its keys are on two nodes. Calls of single keys are still decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_both_nodes_of_a_moving_slot_are_decided() {
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    // The two limits have the same key, so their keys in Redis share a hash slot.
    let (here, there) = (Limit::sliding("here", 150, HOUR), Limit::sliding("there", 150, HOUR));
    for limit in [&here, &there] {
        assert!(admits(&limiter, limit, "key").await);
    }
    let slot = cluster.slot("rl:sliding:1h:here{key}");
    cluster.begin_move(slot, "rl:sliding:1h:there{key}");
    let mut tasks = JoinSet::new();
    for call in 0..300 {
        let limiter = limiter.clone();
        let limit = if call % 2 == 0 { here } else { there };
        tasks.spawn(async move { limiter.check(&limit, "key", 1).await });
    }
    let results = tasks.join_all().await;
    let failed = results.iter().find(|it| matches!(it, Err(Rejection::Unavailable { .. })));
    assert!(failed.is_none(), "{failed:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2 * 149);
}

/// A correction that removes the last unit, and one that does not.
#[tokio::test]
async fn a_correction_leaves_a_key_blocked() {
    let cluster = Cluster::start(0);
    let clock = VirtualClock::new();
    let builder = denying_builder(&cluster.url()).clock(Clock::Virtual(clock.clone()));
    let limiter = builder.build().expect("valid");
    for limit in limits("moved", 10, MINUTE) {
        let permits: [Permit; 2] = [
            limiter.acquire(&limit, "key", 1).await.expect("admitted"),
            limiter.acquire(&limit, "key", 1).await.expect("admitted"),
        ];
        limiter.block(&limit, "key", 30 * SECOND).await.expect("blocked");
        begin_move(&cluster, "key");
        for permit in permits {
            permit.settle(0);
            limiter.flush().await.expect("settled");
            assert_blocked(&limiter.check(&limit, "key", 1).await, &limit);
        }
        limiter.credit(&limit, "key", 1).await.expect("refunded");
        assert_blocked(&limiter.check(&limit, "key", 1).await, &limit);
        // The block is over: the first call begins a new count.
        clock.advance(30 * SECOND);
        let left = limiter.check(&limit, "key", 1).await.expect("open").remaining;
        assert_eq!(left, 9, "{limit:?}");
        finish_move(&cluster, "key");
    }
    assert_keys_expire(&cluster);
}

/// The correction removes the last unit of the count that is then blocked.
#[tokio::test]
async fn a_key_is_blocked_with_the_correction_of_its_call() {
    #[rate_limit(
        period = 60, threshold = 10, name = "block", key = key,
        settle = |_| 0, block = |_| Some(MINUTE)
    )]
    async fn block(cluster: &Cluster, key: &str) -> Result<(), Rejection> {
        begin_move(cluster, key);
        Ok(())
    }
    let cluster = Cluster::start(0);
    let limiter = denying_builder(&cluster.url()).build().expect("valid");
    let there = denying_builder(&cluster.url()).build().expect("valid");
    limiter.scope(block(&cluster, "key")).await.expect("admitted");
    limiter.flush().await.expect("settled");
    let limit = Limit::sliding("block", 10, MINUTE);
    assert_blocked(&there.check(&limit, "key", 1).await, &limit);
}

/// One of the keys was blocked before, and has no other state.
#[tokio::test]
async fn several_limits_are_charged_all_or_none_after_a_block() {
    let cluster = Cluster::start(0);
    let clock = VirtualClock::new();
    let builder = denying_builder(&cluster.url()).clock(Clock::Virtual(clock.clone()));
    let limiter = builder.build().expect("valid");
    let first = Limit::sliding("first", 10, HOUR);
    limiter.check(&first, "key", 1).await.expect("admitted");
    for limit in limits("moved", 10, MINUTE) {
        limiter.block(&limit, "key", SECOND).await.expect("blocked");
    }
    begin_move(&cluster, "key");
    clock.advance(SECOND);
    for (charged, limit) in (2..).zip(limits("moved", 10, MINUTE)) {
        let parts = [Part::new(&first, &"key", 1), Part::new(&limit, &"key", 1)];
        limiter.check_all(&parts).await.expect("admitted");
        let left = limiter.peek(&first, "key", 1).await.expect("a decision").remaining;
        assert_eq!(left, 10 - charged, "{limit:?}");
        let left = limiter.peek(&limit, "key", 1).await.expect("a decision").remaining;
        assert_eq!(left, 9, "{limit:?}");
    }
    assert_keys_expire(&cluster);
}

/// Redis and the embedded store, on one clock.
struct WindowPair {
    redis: RateLimiter,
    embedded: RateLimiter,
    clock: VirtualClock,
    limit: Limit,
}

impl WindowPair {
    fn on(cluster: &Cluster) -> Self {
        let clock = VirtualClock::new();
        let shared = || Clock::Virtual(clock.clone());
        Self {
            redis: denying_builder(&cluster.url()).clock(shared()).build().expect("valid"),
            embedded: RateLimiter::builder().clock(shared()).build().expect("valid"),
            limit: Limit::sliding("moved", 40_000, HOUR),
            clock,
        }
    }

    /// Charges single units, with a tenth of a second after each. Returns their permits.
    async fn acquire(&self, calls: u64) -> Vec<[Permit; 2]> {
        let mut permits = Vec::new();
        for _ in 0..calls {
            permits.push([
                self.redis.acquire(&self.limit, "key", 1).await.expect("admitted"),
                self.embedded.acquire(&self.limit, "key", 1).await.expect("admitted"),
            ]);
            self.clock.advance(SECOND / 10);
        }
        permits
    }

    async fn settle(&self, permits: impl IntoIterator<Item = [Permit; 2]>) {
        for permit in permits.into_iter().flatten() {
            permit.settle(0);
        }
        self.redis.flush().await.expect("settled");
    }

    /// Returns the units that are left in Redis and in the embedded store.
    async fn left(&self) -> [u64; 2] {
        let redis = self.redis.peek(&self.limit, "key", 1).await.expect("a decision");
        let embedded = self.embedded.peek(&self.limit, "key", 1).await.expect("a decision");
        [redis.remaining, embedded.remaining]
    }

    /// Asserts that both stores make the same decisions until all units have left the window.
    async fn assert_equal_until_empty(&self) {
        for _ in 0..80 {
            let [redis, embedded] = self.left().await;
            assert_eq!(redis, embedded);
            self.acquire(1).await;
            self.clock.advance(MINUTE);
        }
    }
}

fn finish_move(cluster: &Cluster, key: &str) {
    cluster.move_slot(cluster.slot(&format!("{{{key}}}")), Duration::ZERO);
}

fn assert_keys_expire(cluster: &Cluster) {
    for node in 0..3 {
        let mut connection = cluster.connection(node);
        for key in cluster.keys(node) {
            let ttl: i64 = connection.pttl(&key).expect("PTTL");
            assert!(ttl > 0, "{key} has no TTL");
        }
    }
}

#[tokio::test]
async fn a_sliding_window_grows_while_its_slot_moves() {
    let cluster = Cluster::start(0);
    let windows = WindowPair::on(&cluster);
    windows.acquire(1_000).await;
    begin_move(&cluster, "key");
    let permits = windows.acquire(1_500).await;
    windows.settle(permits.into_iter().skip(100).step_by(3)).await;
    let [redis, embedded] = windows.left().await;
    assert_eq!(redis, embedded);
    finish_move(&cluster, "key");
    let permits = windows.acquire(1_500).await;
    windows.settle(permits.into_iter().step_by(3)).await;
    windows.assert_equal_until_empty().await;
    assert_keys_expire(&cluster);
}
