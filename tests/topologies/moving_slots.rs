//! A hash slot of a Redis Cluster that moves to another node: its keys are on two nodes. On the node that the slot
//! leaves, each command on a key that is not there fails, also within a script.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{Clock, Limit, Part, RateLimiter, Rejection, Source, VirtualClock};
use redis::Commands;
use support::cluster::Cluster;
use support::limits::{HOUR, MINUTE, SECOND, limits};
use support::proxy::relay;
use tokio::task::JoinSet;

use crate::{
    denying, denying_builder, first_decision, is_admitted, remaining, start_cluster, take,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_while_slots_move_under_load() {
    let (cluster, limiter) = start_cluster();
    let limit = Limit::sliding("moved", 40, HOUR);
    let bucket = Limit::token_bucket("moved", 40, HOUR);
    let slots: Vec<_> = (0..6).map(|key| cluster.slot(&format!("{{{key}}}"))).collect();
    first_decision(&limiter, &limit, "first").await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..48 {
        let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
        tasks.spawn(async move {
            let mut admitted = 0_u64;
            for call in (0_u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                // Half of the calls are of keys that move.
                let key = if call % 2 == 0 { (task + call) % 6 } else { (task + call) % 30 };
                let result = if call % 3 == 0 {
                    // The two keys of one call can be on two nodes for a moment.
                    let parts = [Part::new(&limit, &key, 1), Part::new(&bucket, &key, 1)];
                    limiter.check_all(&parts).await
                } else {
                    limiter.check(&limit, key, 1).await
                };
                admitted += u64::from(is_admitted(result));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            admitted
        });
    }
    let moves = tokio::task::spawn_blocking(move || {
        for (index, slot) in slots.into_iter().enumerate() {
            // The servers of today can move a slot with all its keys in one step.
            if index % 2 == 0 || !cluster.move_slot_at_once(slot) {
                cluster.move_slot(slot, Duration::from_millis(40));
            }
        }
        cluster
    });
    let cluster = moves.await.expect("no panic");
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    let admitted: u64 = tasks.join_all().await.into_iter().sum();
    assert_eq!(admitted, 30 * 40);
    assert_keys_expire(&cluster);
}

fn assert_blocked(result: &Result<impl std::fmt::Debug, Rejection>, limit: &Limit) {
    assert!(matches!(result, Err(Rejection::Blocked { .. })), "{limit:?}: {result:?}");
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
async fn a_correction_leaves_a_key_blocked() {
    let (cluster, clock) = (Cluster::start(0), VirtualClock::new());
    let builder = denying_builder(&cluster.url()).clock(Clock::Virtual(clock.clone()));
    let limiter = builder.build().expect("valid");
    // A move begins, and leaves all keys of the limits where they are.
    let (slot, moved) = (cluster.slot("{key}"), "other{key}");
    for limit in limits("moved", 10, MINUTE) {
        let permits = join_all([1, 1].map(|cost| limiter.acquire(&limit, "key", cost))).await;
        limiter.block(&limit, "key", 30 * SECOND).await.expect("blocked");
        cluster.begin_move(slot, moved);
        for permit in permits {
            permit.expect("admitted").settle(0);
            limiter.flush().await.expect("settled");
            assert_blocked(&limiter.check(&limit, "key", 1).await, &limit);
        }
        limiter.credit(&limit, "key", 1).await.expect("refunded");
        assert_blocked(&limiter.check(&limit, "key", 1).await, &limit);
        // The block is over: the first call begins a new count.
        clock.advance(30 * SECOND);
        assert_eq!(take(&limiter, &limit, "key").await, 9, "{limit:?}");
        cluster.move_slot(slot, Duration::ZERO);
    }

    // Several limits are charged all or none if a key was blocked before, and has no other state.
    let first = Limit::sliding("first", 10, HOUR);
    limiter.check(&first, "key", 1).await.expect("admitted");
    for limit in limits("blocked", 10, MINUTE) {
        limiter.block(&limit, "key", SECOND).await.expect("blocked");
    }
    cluster.begin_move(slot, moved);
    clock.advance(SECOND);
    for (charged, limit) in (2..).zip(limits("blocked", 10, MINUTE)) {
        let parts = [Part::new(&first, &"key", 1), Part::new(&limit, &"key", 1)];
        limiter.check_all(&parts).await.expect("admitted");
        assert_eq!(remaining(&limiter, &first, "key").await, 10 - charged, "{limit:?}");
        assert_eq!(remaining(&limiter, &limit, "key").await, 9, "{limit:?}");
    }
    assert_keys_expire(&cluster);
}

// Scripts to which a node replies that it does not serve their key.

const REPLY: &str = "-ERR Script attempted to access a non local key in a cluster node script: 0000, \
    on @user_script:1.\r\n";

struct Relay {
    port: u16,
    /// Whether the relay replies to the next script, which it then does not pass on to the node.
    replies: Arc<AtomicBool>,
}

impl Relay {
    fn start(node: u16) -> Self {
        let replies = Arc::new(AtomicBool::new(false));
        let next = Arc::clone(&replies);
        let port = relay(
            node,
            move |client, mut server| {
                copy(&client, |bytes| {
                    let is_script = bytes.windows(4).any(|word| word == b"EVAL");
                    if is_script && next.swap(false, Ordering::SeqCst) {
                        return (&client).write_all(REPLY.as_bytes());
                    }
                    server.write_all(bytes)
                });
            },
            move |server, mut client| {
                // Clients learn of the relay as the address of the node.
                let port = client.local_addr().expect("bound").port();
                let (of_node, of_relay) = (format!(":{node}\r\n"), format!(":{port}\r\n"));
                copy(&server, |bytes| {
                    let text = String::from_utf8_lossy(bytes);
                    if text.contains(&of_node) {
                        return client.write_all(text.replace(&of_node, &of_relay).as_bytes());
                    }
                    client.write_all(bytes)
                });
            },
        );
        Self { port, replies }
    }

    fn reply_once(&self) {
        self.replies.store(true, Ordering::SeqCst);
    }

    fn has_replied(&self) -> bool {
        !self.replies.load(Ordering::SeqCst)
    }
}

fn copy(mut from: &TcpStream, mut write: impl FnMut(&[u8]) -> std::io::Result<()>) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if write(&bytes[..length]).is_err() {
            return;
        }
    }
}

/// Starts a relay to the node of a key, and a limiter that has decided a call of it.
async fn through_relay(cluster: &Cluster, limit: &Limit, key: &str) -> (Relay, RateLimiter) {
    let node = cluster.port(cluster.owner(cluster.slot(key)));
    let relay = Relay::start(node);
    let url = format!("redis+cluster://127.0.0.1:{}", relay.port);
    let limiter = denying(&url);
    first_decision(&limiter, limit, key).await;
    (relay, limiter)
}

#[tokio::test]
async fn what_a_node_does_not_serve_is_sent_to_the_node_that_does() {
    let cluster = Cluster::start(0);
    let (first, other) = (Limit::sliding("first", 10, HOUR), Limit::fixed("other", 10, HOUR));
    let (relay, limiter) = through_relay(&cluster, &first, "one").await;
    relay.reply_once();
    let decision = limiter.check(&first, "one", 1).await.expect("admitted");
    assert!(relay.has_replied());
    assert_eq!((decision.source, decision.remaining), (Source::Redis, 8));
    // The limits of one key share a hash slot, so one script decides them.
    relay.reply_once();
    let parts = [Part::new(&first, &"one", 1), Part::new(&other, &"one", 1)];
    let both = limiter.check_all(&parts).await;
    assert!(relay.has_replied());
    both.expect("admitted");
    assert_eq!(remaining(&limiter, &other, "one").await, 9);
    // A charge is corrected once the node is known.
    let limit = Limit::sliding("settled", 10, HOUR);
    let (relay, limiter) = through_relay(&cluster, &limit, "one").await;
    let permit = limiter.acquire(&limit, "one", 4).await.expect("admitted");
    relay.reply_once();
    permit.settle(1);
    limiter.flush().await.expect("none is lost");
    assert!(relay.has_replied());
    assert_eq!(remaining(&limiter, &limit, "one").await, 8);
    // A call in flight takes and frees its slot there.
    let slots = Limit::in_flight("slots", 2).hold(Duration::from_secs(30));
    let (relay, limiter) = through_relay(&cluster, &limit, "one").await;
    relay.reply_once();
    let permit = limiter.acquire(&slots, "one", 1).await.expect("admitted");
    assert!(relay.has_replied());
    relay.reply_once();
    permit.release().await.expect("a reply");
    assert!(relay.has_replied());
    assert_eq!(remaining(&limiter, &slots, "one").await, 2);
}
