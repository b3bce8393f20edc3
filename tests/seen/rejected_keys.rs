//! The list of the keys with the most rejected calls of a process, whatever decides the calls.

use std::time::{Duration, SystemTime};

use ratelimit_runtime::{
    Builder, Clock, Limit, OnError, Part, RateLimiter, Rejection, Rule, RuleSet, Scope,
    VirtualClock, rate_limit,
};
use support::cluster::Cluster;
use support::limits::{HOUR, MINUTE};
use support::server::Server;

use crate::{KEY, raw_events_of};

const LOGIN: Limit = Limit::fixed("login", 1, HOUR);
const WIDE: Limit = Limit::fixed("wide", 5, HOUR);

/// Returns the list: for each key its limit, its text and the number of its rejections.
fn listed(limiter: &RateLimiter) -> Vec<String> {
    let shadow = |is_shadow| if is_shadow { ", a shadow" } else { "" };
    let line = |key: ratelimit_runtime::RejectedKey| {
        format!("{} {}: {}{}", key.limit, key.key, key.rejected, shadow(key.is_shadow))
    };
    limiter.operator().rejected_keys(20).into_iter().map(line).collect()
}

#[rate_limit(name = "annotated", period = "1h", threshold = 1, key = user)]
async fn annotated(user: &str) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn each_rejected_call_counts_for_the_key_that_rejects_it() {
    let server = Server::start();
    let cluster = Cluster::start(0);
    let in_cluster = RateLimiter::builder().redis(cluster.url()).deadline(MINUTE);
    for builder in [RateLimiter::builder(), server.builder(), in_cluster] {
        let limiter = builder.log_keys(true).build().expect("valid settings");
        assert!(listed(&limiter).is_empty());
        limiter.check(&LOGIN, KEY, 1).await.expect("admitted");
        limiter.acquire(&WIDE, (), 5).await.expect("admitted").keep();
        for _ in 0..3 {
            // On Redis, the second rejection comes from the cache.
            limiter.check(&LOGIN, KEY, 1).await.expect_err("rejected");
            limiter.acquire(&LOGIN, KEY, 1).await.expect_err("rejected");
        }
        // A call that may wait, one of a limit with a lease, and one for which there is no key.
        limiter.check(&LOGIN.wait(Duration::from_millis(1)), KEY, 1).await.expect_err("rejected");
        limiter.check(&WIDE, (), 1).await.expect_err("rejected");
        let leased = Limit::sliding("leased", 10, HOUR).lease(2);
        while limiter.check(&leased, ("a", "{b}"), 1).await.is_ok() {}
        // Of several limits, and of two keys of one limit, the one that rejects.
        let other = ("acme", 7);
        let parts = [Part::new(&WIDE, &other, 1), Part::new(&LOGIN, &KEY, 1)];
        limiter.check_all(&parts).await.expect_err("rejected");
        let parts = [Part::new(&LOGIN, &"free", 1), Part::new(&LOGIN, &KEY, 1)];
        limiter.check_all(&parts).await.expect_err("rejected");
        limiter.acquire_all(&parts).await.expect_err("rejected");
        // Neither a peek, nor a cost above the capacity.
        limiter.peek(&LOGIN, KEY, 1).await.expect("a decision");
        limiter.check(&LOGIN, KEY, 2).await.expect_err("too costly");
        limiter.check(&LOGIN.shadow(true), KEY, 1).await.expect("a shadow");
        limiter.block(&WIDE, "mallory", MINUTE).await.expect("blocked");
        for _ in 0..2 {
            limiter.check(&WIDE, "mallory", 1).await.expect_err("blocked");
        }
        let of_process = LOGIN.scope(Scope::Process);
        limiter.check(&of_process, "here", 1).await.expect("admitted");
        limiter.check(&of_process, "here", 1).await.expect_err("rejected");
        let twice = async { (annotated("ann").await.is_ok(), annotated("ann").await.is_ok()) };
        assert_eq!(limiter.scope(twice).await, (true, false));
        assert_eq!(
            listed(&limiter),
            [
                format!("login {KEY}: 10"),
                "wide mallory: 2".into(),
                "annotated ann: 1".into(),
                "login here: 1".into(),
                format!("login {KEY}: 1, a shadow"),
                "leased (a:%7Bb%7D): 1".into(),
                "wide %: 1".into(),
            ],
            "{limiter:?}"
        );
        assert_eq!(limiter.operator().rejected_keys(1).len(), 1);
        assert_eq!(limiter.clone().operator().rejected_keys(20).len(), 7, "clones share the list");
    }
}

/// A rule that blocks a limit makes no request, and a store that fails makes no decision.
#[tokio::test]
async fn calls_that_no_store_decides() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").deadline(MINUTE);
    let limiter = builder.log_keys(true).build().expect("valid settings");
    // This process decides, because Redis is down.
    for _ in 0..3 {
        let _ = limiter.check(&LOGIN, KEY, 1).await;
    }
    let denied = LOGIN.on_error(OnError::Deny);
    limiter.check(&denied, "bob", 1).await.expect_err("not decided");
    let mut rules = RuleSet::new();
    rules.set_key("wide", "mallory", Rule::new().blocked(true)).expect("valid");
    rules.set_key("wide", "trudy", Rule::new().blocked(true).shadow(true)).expect("valid");
    limiter.set_rules(rules).expect("valid");
    limiter.check(&WIDE, "mallory", 0).await.expect_err("blocked");
    limiter.check(&WIDE, "trudy", 0).await.expect("a shadow");
    let expected =
        [format!("login {KEY}: 2"), "wide mallory: 1".into(), "wide trudy: 1, a shadow".into()];
    let mut listed = listed(&limiter);
    listed[1..].sort();
    assert_eq!(listed, expected);
}

#[tokio::test]
async fn the_list_shows_a_key_as_events_do() {
    let server = Server::start();
    for builder in [RateLimiter::builder(), server.builder()] {
        let limiter = builder.clone().build().expect("valid settings");
        let events = raw_events_of(async {
            for _ in 0..2 {
                let _ = limiter.check(&LOGIN, KEY, 1).await;
            }
        });
        let event = &events.await[0];
        let hash = limiter.operator().rejected_keys(1).remove(0).key;
        assert!(hash.len() == 16 && event.contains(&format!("key={hash} ")), "{hash}: {event}");
        let hash_by_secret = async |builder: Builder| {
            let limiter = builder.build().expect("valid settings");
            for _ in 0..2 {
                let _ = limiter.check(&LOGIN, KEY, 1).await;
            }
            limiter.operator().rejected_keys(1).remove(0).key
        };
        let with_secret = builder.key_prefix("other").log_hash_secret("0123456789abcdef");
        assert_eq!(hash_by_secret(with_secret).await, "656290f3f8eb0450");
    }
}

#[tokio::test]
async fn a_key_that_is_not_limited_any_more_leaves_the_list() {
    let server = Server::start();
    for builder in [RateLimiter::builder(), server.builder()] {
        let clock = VirtualClock::at(Duration::from_secs(1_000_000));
        let builder = builder.clock(Clock::Virtual(clock.clone())).log_keys(true);
        let limiter = builder.build().expect("valid settings");
        limiter.check(&LOGIN, KEY, 1).await.expect("admitted");
        for _ in 0..3 {
            clock.advance(MINUTE);
            limiter.check(&LOGIN, KEY, 1).await.expect_err("rejected");
        }
        let [key] = &limiter.operator().rejected_keys(20)[..] else { panic!("one key") };
        let at =
            |minutes| SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + minutes * MINUTE;
        assert_eq!((key.rejected, key.since, key.last), (3, at(1), at(3)));
        assert_eq!((key.limit.as_str(), key.period), ("login", HOUR));
        clock.advance(11 * MINUTE);
        assert!(limiter.operator().rejected_keys(20).is_empty());
        limiter.check(&LOGIN, KEY, 1).await.expect_err("rejected");
        let [key] = &limiter.operator().rejected_keys(20)[..] else { panic!("one key") };
        assert_eq!((key.rejected, key.since), (1, at(14)));
    }
}
