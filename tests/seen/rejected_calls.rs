//! What an application observes of rejected calls if it asks: a function that is called with each, and keys in events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_runtime::{
    Builder, Limit, OnError, Part, RateLimiter, RejectedCall, Rejection, key, rate_limit,
};
use support::limits::HOUR;
use support::server::Server;

use crate::{KEY, raw_events_of};

const LOGIN: Limit = Limit::fixed("login", 1, HOUR);
const WIDE: Limit = Limit::fixed("wide", 5, HOUR);

/// Adds a function that records the rejected calls.
fn observed(builder: Builder) -> (RateLimiter, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&calls);
    let builder = builder.on_rejected(move |call: &RejectedCall<'_>| {
        let what = match call.rejection() {
            Rejection::Limited { decision, .. } => format!("limited {}", decision.remaining),
            Rejection::CostExceedsCapacity { cost, .. } => format!("cost {cost}"),
            Rejection::Blocked { .. } => "blocked".to_owned(),
            Rejection::Unavailable { .. } => "undecided".to_owned(),
            other => panic!("{other:?}"),
        };
        let shadow = if call.is_shadow() { ", a shadow" } else { "" };
        let text = format!("{} {}: {what}{shadow}", call.limit(), call.key());
        record.lock().expect("no panic").push(text);
    });
    (builder.build().expect("valid settings"), calls)
}

#[rate_limit(name = "amounts", period = 60, threshold = threshold, key = user)]
async fn by_amounts(user: &str, threshold: u64) -> Result<(), Rejection> {
    Ok(())
}

/// A call whose threshold is 0 makes no request, and is observed all the same.
#[tokio::test]
async fn a_function_observes_calls_without_amounts() {
    let (limiter, calls) = observed(RateLimiter::builder());
    let run = async {
        by_amounts("ann", 0).await.expect_err("nothing is admitted");
        by_amounts("bob", 1).await.expect("admitted");
    };
    limiter.scope(run).await;
    assert_eq!(*calls.lock().expect("no panic"), ["amounts ann: blocked"]);
}

/// Without a subscriber, so that no event asks for the key.
#[tokio::test]
async fn a_function_observes_each_rejected_call() {
    let server = Server::start();
    for builder in [RateLimiter::builder(), server.builder()] {
        let (limiter, calls) = observed(builder);
        let (tenant, id) = ("acme", 7);
        assert!(limiter.check(&LOGIN, KEY, 1).await.is_ok());
        // On Redis, the second rejection comes from the cache.
        for _ in 0..2 {
            assert!(limiter.check(&LOGIN, KEY, 1).await.is_err());
        }
        assert!(limiter.check(&LOGIN, key!("{tenant}:{id}"), 2).await.is_err());
        assert!(limiter.check(&LOGIN.shadow(true), KEY, 1).await.is_ok());
        let other = (tenant, id);
        let parts = [Part::new(&WIDE, &other, 1), Part::new(&LOGIN, &KEY, 1)];
        assert!(limiter.check_all(&parts).await.is_err());
        assert!(limiter.check(&LOGIN.wait(Duration::from_secs(1)), KEY, 1).await.is_err());
        // Of two keys of one limit, the one that rejects.
        let parts = [Part::new(&LOGIN, &"free", 1), Part::new(&LOGIN, &KEY, 1)];
        assert!(limiter.check_all(&parts).await.is_err());
        assert!(limiter.peek(&LOGIN, KEY, 1).await.is_ok());
        assert_eq!(
            *calls.lock().expect("no panic"),
            [
                "login alice@example.org: limited 0",
                "login alice@example.org: limited 0",
                "login (acme):(7): cost 2",
                "login alice@example.org: limited 0, a shadow",
                "login alice@example.org: limited 0",
                "login alice@example.org: limited 0",
                "login alice@example.org: limited 0",
            ]
        );
    }
}

#[tokio::test]
async fn a_function_observes_calls_that_redis_does_not_decide() {
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
    let (limiter, calls) = observed(builder.deadline(Duration::from_secs(5)));
    assert!(limiter.check(&LOGIN, "bob", 1).await.is_err());
    assert_eq!(*calls.lock().expect("no panic"), ["login bob: undecided"]);
}

/// Returns the keys in the events of two rejected calls with different keys.
async fn logged(limiter: RateLimiter) -> Vec<String> {
    let events = raw_events_of(async {
        for key in [KEY, "bob"] {
            let _ = limiter.check(&LOGIN, key, 2).await;
        }
    });
    let key = |event: String| {
        let (_, key) = event.split_once(" key=").expect("a key");
        key.split(' ').next().expect("a word").to_owned()
    };
    events.await.into_iter().map(key).collect()
}

#[tokio::test]
async fn events_contain_keys_if_the_application_allows_it() {
    let server = Server::start();
    for builder in [RateLimiter::builder(), server.builder()] {
        let limiter = builder.clone().log_keys(true).build().expect("valid settings");
        assert_eq!(logged(limiter.clone()).await, [KEY, "bob"]);
        let forged = raw_events_of(async {
            let _ = limiter.check(&LOGIN, "a\nWARN forged", 2).await;
        });
        assert!(forged.await[0].contains("key=a%0AWARN forged cost"), "one line");
        // The secret stays when the texts are turned off.
        let both = builder.log_hash_secret("0123456789abcdef").log_keys(true);
        let limiter = both.clone().build().expect("valid settings");
        assert_eq!(logged(limiter).await, [KEY, "bob"]);
        let limiter = both.log_keys(false).build().expect("valid settings");
        assert_eq!(logged(limiter).await, ["656290f3f8eb0450", "c981f0623f4d65b4"]);
    }
}

#[tokio::test]
async fn hashes_agree_between_processes_with_one_secret() {
    let server = Server::start();
    let of = async |builder: Builder, secret: &str| {
        logged(builder.log_hash_secret(secret).build().expect("valid settings")).await
    };
    let here = of(RateLimiter::builder(), "0123456789abcdef").await;
    assert_ne!(here[0], here[1]);
    assert_eq!(of(server.builder(), "0123456789abcdef").await, here);
    assert_ne!(of(RateLimiter::builder(), "0123456789abcdeg").await, here);
    // The same in every process and every build.
    assert_eq!(here, ["656290f3f8eb0450", "c981f0623f4d65b4"]);
}
