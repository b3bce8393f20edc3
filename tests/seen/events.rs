//! `tracing` events: what is refused or cannot be decided, and what a shadow would refuse.

use std::time::Duration;

use ratelimit_runtime::{Limit, OnError};
use redis::Commands;
use support::server::Server;

use crate::{KEY, Timed, calls, events_of, raw_events_of};

const LIMIT: Limit = Limit::sliding("events", 1, Duration::from_secs(3600));

#[tokio::test]
async fn a_refusal_is_an_event() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let source = on.source;
        assert_eq!(
            events_of(calls::plain(&on)).await,
            [
                format!(
                    "DEBUG refused limit=\"plain\" key=# retry_after=3600s source=\"{source}\""
                ),
                "INFO refused, however long it waits limit=\"plain\" key=# cost=2 capacity=1"
                    .to_owned(),
            ]
        );
        let narrow =
            format!("DEBUG refused limit=\"narrow\" key=# retry_after=3600s source=\"{source}\"");
        assert_eq!(events_of(calls::several(&on)).await, [narrow]);
    }
}

#[tokio::test]
async fn a_shadow_says_what_it_would_refuse() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let source = on.source;
        assert_eq!(
            events_of(calls::shadow(&on)).await,
            [
                format!(
                    "INFO would be refused limit=\"shadow\" key=# retry_after=3600s source=\"{source}\""
                ),
                "INFO would be refused, however long it waits limit=\"shadow\" key=# cost=2 capacity=1"
                    .to_owned(),
            ]
        );
    }
}

/// The keys in events that `work` causes.
async fn keys_of(work: impl Future<Output = ()>) -> Vec<String> {
    let events = raw_events_of(work).await;
    let key = |event: String| {
        let (_, key) = event.split_once(" key=").expect("a key");
        key.split(' ').next().expect("a word").to_owned()
    };
    events.into_iter().map(key).collect()
}

#[tokio::test]
async fn keys_are_told_apart_and_not_told() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let keys = keys_of(async {
            // By several limits, by one, by another, and at a cost that is never admitted.
            calls::several(&on).await;
            calls::plain(&on).await;
            calls::shadow(&on).await;
            for key in [KEY, "bob"] {
                let _ = on.limiter.check(&LIMIT, key, 2).await;
            }
        });
        let keys = keys.await;
        let (bob, alice) = keys.split_last().expect("events");
        assert_eq!(alice.len(), 6);
        assert!(alice.iter().all(|key| *key == alice[0] && *key != *bob), "{keys:?}");
        for key in &keys {
            assert!(key.len() == 16 && u64::from_str_radix(key, 16).is_ok(), "{key}");
        }
        // Another process has another secret, so that nobody finds a key by trying all.
        let other = Timed::embedded();
        let others = keys_of(async {
            let _ = other.limiter.check(&LIMIT, KEY, 2).await;
        });
        assert_ne!(others.await[0], alice[0]);
    }
}

#[tokio::test]
async fn a_wait_is_told_once() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let source = on.source;
        let refused = |limit, retry_after| {
            format!(
                "DEBUG refused limit=\"{limit}\" key=# retry_after={retry_after}s source=\"{source}\""
            )
        };
        let expected = [refused("line", 7200), refused("slot", 7200), refused("wide", 3600)];
        assert_eq!(events_of(calls::waits(&on)).await, expected);
    }
}

#[tokio::test]
async fn only_checks_are_told() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        assert_eq!(events_of(calls::quiet(&on)).await, [""; 0]);
    }
}

#[tokio::test]
async fn what_cannot_be_decided_is_told_without_its_key() {
    let server = Server::start();
    let on = Timed::redis(&server);
    let name = format!("ratelimit:sliding:1h:events{{{KEY}}}");
    let _: () = server.connection().set(name, "foreign").expect("SET");
    let foreign = events_of(async {
        assert!(on.limiter.check(&LIMIT, KEY, 1).await.is_err());
    });
    // The log names the limit, and says what to do.
    let error = "error=the Redis key `ratelimit:sliding:1h:events{…}` does not hold the state of a \
                 rate limit: delete it, or set another `key_prefix`";
    assert_eq!(foreign.await, [format!("DEBUG not decided limit=\"events\" {error}")]);

    drop(server);
    let events = events_of(async {
        assert!(on.limiter.check(&LIMIT, KEY, 1).await.is_err());
        assert!(on.limiter.check(&LIMIT.shadow(true), KEY, 1).await.is_ok());
        assert!(on.limiter.check(&LIMIT.on_error(OnError::Allow), KEY, 1).await.is_ok());
        // The local count takes over.
        let local = LIMIT.on_error(OnError::Local);
        assert!(on.limiter.check(&local, KEY, 1).await.is_ok());
        assert!(on.limiter.check(&local, KEY, 1).await.is_err());
        calls::nothing(&on).await;
    });
    let events = events.await;
    let down = "DEBUG not decided limit=\"events\" error=no connection to Redis: ";
    let (warned, events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| event.starts_with("WARN Redis receives no requests"));
    assert_eq!((warned.len(), events.len()), (1, 4), "{warned:#?}{events:#?}");
    assert!(events[..2].iter().all(|event| event.starts_with(down)), "{events:#?}");
    assert_eq!(
        events[2],
        "DEBUG refused limit=\"events\" key=# retry_after=3600s source=\"fallback\""
    );
    assert!(events[3].contains("the limits of one `check_all` are decided as one"), "{events:#?}");
    assert!(events.iter().all(|event| !event.contains(KEY)), "{events:#?}");
}

#[tokio::test]
async fn a_server_that_may_evict_keys_is_warned_of_once() {
    let server = Server::start();
    let warned = async |memory: &str, policy: &str| {
        let mut connection = server.connection();
        for (name, value) in [("maxmemory", memory), ("maxmemory-policy", policy)] {
            let mut set = redis::cmd("CONFIG");
            set.arg("SET").arg(name).arg(value).exec(&mut connection).expect("CONFIG SET");
        }
        let on = Timed::redis(&server);
        let events = events_of(async {
            for _ in 0..20 {
                on.limiter.check(&LIMIT, policy, 0).await.expect("admitted");
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        });
        events.await.into_iter().filter(|event| event.contains("may evict")).collect::<Vec<_>>()
    };
    assert_eq!(warned("0", "allkeys-lru").await, [""; 0]);
    assert_eq!(warned("1gb", "noeviction").await, [""; 0]);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let events = warned("1gb", policy).await;
        assert_eq!(events.len(), 1, "{events:#?}");
        assert!(events[0].starts_with("WARN") && events[0].contains(policy), "{events:#?}");
    }
}
