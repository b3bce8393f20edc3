//! What processes announce in Redis, and the keys that tools read.

use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, Rejection, Rules, rate_limit};
use redis::Commands;
use support::limits::MINUTE;
use support::server::Server;

use super::feeds::{API, IN_FORCE, set, until_capacity};

/// Each process announces its annotated limits, so that tools know them.
#[tokio::test]
async fn a_process_announces_its_limits() {
    #[rate_limit(name = "announced", period = "1m", threshold = 7, algo = "token_bucket")]
    async fn call() -> Result<(), Rejection> {
        Ok(())
    }

    let server = Server::start();
    let limiter = server.builder().rules(Rules::redis()).build().expect("valid");
    let mut shared = limiter.operator().shared_rules().await.expect("read");
    shared.rules = set("acme", 50);
    limiter.operator().share_rules(shared, "alice").await.expect("written");
    until_capacity(&limiter, "acme", 50).await;
    limiter.scope(call()).await.expect("admitted");
    let started = Instant::now();
    let announced = loop {
        let fleet = limiter.operator().fleet().await.expect("read");
        let process = fleet.into_iter().find(|process| process.rules.starts_with("1-"));
        let limits = process.map(|process| process.limits).unwrap_or_default();
        if let Some(found) = limits.into_iter().find(|it| it.limit.name() == "announced") {
            break found;
        }
        assert!(started.elapsed() < 30 * IN_FORCE, "not announced");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(announced.limit, Limit::token_bucket("announced", 7, MINUTE));
    assert!(announced.place.contains("announcements.rs:") && !announced.is_computed);
    let lasting: Vec<_> =
        server.ttls().into_iter().filter(|(_, ttl)| *ttl < 0).map(|(key, _)| key).collect();
    assert_eq!(lasting.len(), 2, "only rules have no TTL: {lasting:?}");
}

/// Whoever can write into Redis can announce any keys.
#[tokio::test]
async fn rejected_keys_of_a_hostile_announcement_are_bounded() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let key = |key: &str, since: u64| {
        let limit = r#""limit":"api","period":60000000,"is_shadow":false,"last":5"#;
        format!(r#"{{{limit},"key":"{key}","rejected":{},"since":{since}}}"#, u64::MAX)
    };
    let mut keys = vec![key(&"k".repeat(5_000), 1), key("late", u64::MAX)];
    keys.extend((0..50).map(|number| key(&number.to_string(), 1)));
    let announcement =
        format!(r#"{{"id":"~","rules":"","limits":[],"rejected":[{}]}}"#, keys.join(","));
    let mut connection = server.connection();
    let () = connection.set("rl:{rules}:process:~", announcement).expect("written");
    let () = connection.zadd("rl:{rules}:processes", "~", u64::MAX).expect("written");
    let fleet = limiter.operator().fleet().await.expect("read");
    assert!((1..=20).contains(&fleet[0].rejected.len()), "{}", fleet[0].rejected.len());
    assert!(fleet[0].rejected.iter().all(|key| key.key.len() <= 1_000));
}

/// Tools read the keys of a limit page by page.
#[tokio::test]
async fn the_keys_of_a_limit_are_read_page_by_page() {
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let other = Limit::sliding("api.other", 10, MINUTE);
    let mut expected = vec![String::from("%"), String::new(), "(a:7)".into(), "%2A".into()];
    limiter.check(&API, (), 1).await.expect("admitted");
    limiter.check(&API, "", 1).await.expect("admitted");
    limiter.check(&API, ("a", 7), 1).await.expect("admitted");
    limiter.check(&API, "%2A", 1).await.expect("admitted");
    expected[3] = "%252A".into();
    for key in 0..3_000 {
        limiter.check(&API, key, 1).await.expect("admitted");
        limiter.check(&other, key, 1).await.expect("admitted");
        expected.push(key.to_string());
    }
    let mut found = Vec::new();
    let (mut pages, mut next) = (0, None);
    loop {
        let page = limiter.operator().keys(&API, next).await.expect("read");
        pages += 1;
        for key in page.keys {
            assert_eq!(limiter.peek(&API, &key, 1).await.expect("a decision").remaining, 9);
            found.push(key.to_string());
        }
        let Some(cursor) = page.next else { break };
        next = Some(cursor);
    }
    assert!(pages > 3, "{pages} pages");
    found.sort();
    found.dedup();
    expected.sort();
    assert_eq!(found, expected);
}
