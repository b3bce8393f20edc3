//! Streams whose items wait for a limit.

use std::task::Poll;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use ratelimit_runtime::stream::RateLimitStreamExt;
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection};
use support::ALGORITHMS;
use support::limits::SECOND;
use support::server::Server;

use crate::{on_both_stores, wait_until_idle};

on_both_stores! {
    async fn items_come_at_the_rate_of_the_limit(test: TestLimiter) {
        for algorithm in ALGORITHMS {
            let limit = Limit::new("paced", algorithm, 5, SECOND).expect("valid");
            let start = test.clock.now();
            let items = stream::iter(0..21).rate_limited(&limit, "key");
            let items = items.limiter(test.limiter.clone());
            let items = tokio::spawn(items.map(|item| item.expect("it waits")).collect::<Vec<_>>());
            while !items.is_finished() {
                wait_until_idle(&test.limiter).await;
                test.clock.advance(Duration::from_millis(20));
            }
            assert!(items.await.expect("no panic").into_iter().eq(0..21), "{algorithm}");
            let took = test.clock.now().abs_diff(start);
            // The first five at once, except for the leaky bucket; the others at five a second.
            assert!(took >= Duration::from_millis(2_400) && took <= SECOND * 7, "{algorithm}: {took:?}");
            test.limiter.reset(&limit, "key").await.expect("a reply");
        }
    }

    async fn an_item_that_is_rejected_is_kept(test: TestLimiter) {
        let limit = Limit::fixed("kept", 1, SECOND * 60).wait(SECOND);
        let mut items = stream::iter(["a", "b"]).rate_limited(&limit, "key").limiter(test.limiter.clone());
        assert_eq!(items.next().await.expect("an item").expect("a unit"), "a");
        assert_eq!(items.size_hint(), (1, None));
        let rejection = items.next().await.expect("a rejection").expect_err("the wait is too short");
        assert_eq!(rejection.retry_after(), Some(SECOND * 60));
        // A consumer that only reports errors does not spin: the stream asks again when it helps.
        assert!(futures::poll!(items.next()).is_pending());
        test.clock.advance(SECOND * 60);
        assert_eq!(items.next().await.expect("an item").expect("a unit"), "b");
        assert!(items.next().await.is_none());
    }
}

#[tokio::test]
async fn no_unit_is_taken_while_there_is_no_item() {
    let (limiter, mut polls) = (RateLimiter::embedded(), 0);
    let limit = Limit::fixed("empty", 1, SECOND * 60);
    let empty = stream::poll_fn(|_| -> Poll<Option<()>> {
        polls += 1;
        Poll::Pending
    });
    let mut items = empty.rate_limited(&limit, "key").limiter(limiter.clone());
    assert!(futures::poll!(items.next()).is_pending());
    assert!(futures::poll!(items.next()).is_pending());
    drop(items);
    assert_eq!(polls, 2);
    assert!(limiter.check(&limit, "key", 1).await.is_ok());
}

#[tokio::test]
async fn a_stream_uses_the_limiter_of_its_scope() {
    let limiter = RateLimiter::embedded();
    let limit = Limit::fixed("scoped", 1, SECOND * 60).wait(Duration::ZERO);
    let mut items = stream::iter(0..2).rate_limited(&limit, "key");
    let results = limiter.scope(async { (items.next().await, items.next().await) }).await;
    assert!(matches!(results, (Some(Ok(0)), Some(Err(_)))), "{results:?}");
    assert!(limiter.check(&limit, "key", 1).await.is_err());
}

#[tokio::test]
async fn a_dead_server_loses_no_item() {
    let server = Server::start();
    let limiter = server.builder().deadline(SECOND).build().expect("valid");
    let port = server.port();
    let limit = Limit::leaky_bucket("down", 1_000, SECOND).on_error(OnError::Deny);
    let mut items = stream::iter(0..2).rate_limited(&limit, "key").limiter(limiter);
    assert_eq!(items.next().await.expect("an item").expect("a unit"), 0);
    drop(server);
    for _ in 0..2 {
        let rejection = items.next().await.expect("a rejection").expect_err("no server");
        assert!(matches!(rejection, Rejection::Unavailable { .. }), "{rejection:?}");
    }
    let _restarted = Server::start_on(port);
    let second = loop {
        if let Ok(item) = items.next().await.expect("an item, or a rejection") {
            break item;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(second, 1);
    assert!(items.next().await.is_none());
}
