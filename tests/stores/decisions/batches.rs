//! Concurrent calls share scripts. Each call gets the decision that it would get in a sequence of single calls.

use futures::future::join_all;
use ratelimit_runtime::{Limit, Rejection, StoreError};
use redis::Commands;
use support::limits::{HOUR, MINUTE, limits};
use support::server::Server;

use crate::decision;

/// Some keys and costs occur more often than others, by the clock of the server. `parity` plays equal calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_with_different_keys_and_costs_get_their_own_decisions() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    for limit in limits("mixture", 50, HOUR) {
        let call = |number: u64| (format!("key {}", number * number % 40), 1 + number % 3);
        let calls: Vec<_> = (0..600).map(call).collect();
        let before = server.script_calls();
        let check = |(key, cost): &(String, u64)| tokio::spawn(limiter.check(&limit, key, *cost));
        let tasks: Vec<_> = calls.iter().map(check).collect();
        let decisions = join_all(tasks).await.into_iter();
        let decisions: Vec<_> = decisions.map(|it| decision(it.expect("no panic"))).collect();
        let scripts = server.script_calls() - before;
        assert!(scripts < 300, "{scripts} scripts: the calls were not batched");
        for key in 0..40 {
            let key = format!("key {key}");
            let of_key = calls.iter().zip(&decisions).filter(|((other, _), _)| *other == key);
            let admitted: u64 = of_key
                .clone()
                .filter(|(_, decision)| decision.allowed)
                .map(|((_, cost), _)| cost)
                .sum();
            let requested: u64 = of_key.clone().map(|((_, cost), _)| cost).sum();
            let left = limiter.peek(&limit, &key, 0).await.expect("a decision").remaining;
            assert_eq!(left, 50 - admitted, "{limit:?}, {key}");
            // Each rejected call costs more than is left.
            let rejected = of_key.filter(|(_, decision)| !decision.allowed);
            let least = rejected.map(|((_, cost), _)| *cost).min();
            assert!(least.is_none_or(|least| least > left), "{limit:?}, {key}");
            assert!(least.is_some() == (requested > admitted));
        }
    }
}

/// The error of a foreign key reaches only the callers of that key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_in_a_batch_fails_only_its_own_calls() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    let limit = Limit::token_bucket("foreign", 5, MINUTE);
    for key in 0..200 {
        let name = format!("rl:token_bucket:1m:foreign{{{key}}}");
        match key % 4 {
            0 => connection.hset(name, "field", "value").expect("HSET"),
            1 => connection.set(name, "text").expect("SET"),
            _ => {}
        }
    }
    let calls = (0..200).map(|key| (key, tokio::spawn(limiter.check(&limit, key, 1))));
    for (key, call) in calls.collect::<Vec<_>>() {
        let result = call.await.expect("no panic");
        if key % 4 > 1 {
            assert_eq!(result.expect("admitted").remaining, 4);
            continue;
        }
        let Err(Rejection::Unavailable { error, .. }) = result else { panic!("{result:?}") };
        let StoreError::ForeignKey { key: named, .. } = &error else { panic!("{error:?}") };
        assert!(named.ends_with(&format!("{{{key}}}")), "{named}");
    }
}

/// A call that is dropped before its batch is sent is not charged, and delays no other call.
#[tokio::test]
async fn a_queued_call_that_is_dropped_is_not_charged() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let limit = Limit::fixed("dropped", 1_000, HOUR);
    limiter.check(&limit, "key", 1).await.expect("admitted");
    let mut calls: Vec<_> = (0..100).map(|_| Box::pin(limiter.check(&limit, "key", 1))).collect();
    for call in &mut calls {
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    // The first four are pending, and the others are queued.
    drop(calls.split_off(4));
    for call in calls {
        call.await.expect("admitted");
    }
    let left = limiter.peek(&limit, "key", 0).await.expect("a decision").remaining;
    assert_eq!(left, 1_000 - 5);
}
