//! Keys of any bytes and any length: a client that chooses its key does not choose how much Redis keeps, and the short
//! text of a long key is the same key for operators.

use ratelimit_runtime::{Limit, OwnedKey, RateLimiter, Rejection, Rule, RuleSet};
use support::limits::HOUR;
use support::server::Server;

const LIMIT: Limit = Limit::sliding("names", 2, HOUR);

/// A key as long as a body that a framework accepts.
fn long(last: char) -> String {
    let mut key = "n".repeat(2 << 20);
    key.push(last);
    key
}

fn limiter(server: &Server) -> RateLimiter {
    server.builder().build().expect("valid")
}

#[tokio::test]
async fn keys_can_be_any_bytes() {
    let server = Server::start();
    let limit = Limit::sliding("bytes", 1, HOUR);
    let all: Vec<u8> = (0..=255).collect();
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.extend([all.clone(), all.repeat(4096), [&all.repeat(4096)[..], b"x"].concat(), vec![]]);
    for limiter in [RateLimiter::embedded(), limiter(&server)] {
        for key in &keys {
            let (length, key) = (key.len(), &**key);
            assert!(limiter.check(&limit, key, 1).await.is_ok(), "{length} bytes");
            assert!(limiter.check(&limit, key, 1).await.is_err(), "{length} bytes");
        }
    }
    assert_eq!(server.ttls().len(), keys.len());
}

#[tokio::test]
async fn a_long_key_takes_no_more_memory_than_a_short_one() {
    let server = Server::start();
    let limiter = limiter(&server);
    for last in ['a', 'b'] {
        for _ in 0..2 {
            limiter.check(&LIMIT, long(last), 1).await.expect("admitted");
        }
        let rejected = limiter.check(&LIMIT, long(last), 1).await;
        assert!(matches!(rejected, Err(Rejection::Limited { .. })), "{rejected:?}");
    }
    let names: Vec<Vec<u8>> =
        redis::cmd("KEYS").arg("*").query(&mut server.connection()).expect("KEYS");
    assert_eq!(names.len(), 2);
    assert!(names.iter().all(|name| name.len() < 300), "{names:?}");
}

#[tokio::test]
async fn operators_find_a_long_key_and_use_its_short_text() {
    let server = Server::start();
    let (limiter, operator) = (limiter(&server), limiter(&server));
    limiter.check(&LIMIT, long('a'), 1).await.expect("admitted");
    let page = operator.operator().keys(&LIMIT, None).await.expect("read");
    let [key] = &page.keys[..] else { panic!("{} keys", page.keys.len()) };
    let short = key.to_string();
    assert!(short.len() < 256, "{short}");
    assert_eq!(*key, OwnedKey::parse(&short).expect("a key"));
    assert_eq!(*key, OwnedKey::parse(&long('a')).expect("a key"));

    assert_eq!(operator.peek(&LIMIT, key, 1).await.expect("read").remaining, 1);
    limiter.check(&LIMIT, long('a'), 1).await.expect("admitted");
    limiter.check(&LIMIT, long('a'), 1).await.expect_err("the threshold is 2");
    // The process that has cached the rejection obeys its own reset at once.
    limiter.reset(&LIMIT, key).await.expect("reset");
    limiter.check(&LIMIT, long('a'), 1).await.expect("admitted");
    limiter.block(&LIMIT, key, HOUR).await.expect("blocked");
    let blocked = limiter.check(&LIMIT, long('a'), 1).await;
    assert!(matches!(blocked, Err(Rejection::Blocked { .. })), "{blocked:?}");
    limiter.check(&LIMIT, long('b'), 1).await.expect("another key");
}

#[tokio::test]
async fn a_rule_of_a_long_key_names_its_whole_text_or_its_short_text() {
    let server = Server::start();
    let limiter = limiter(&server);
    for key in [long('a'), OwnedKey::parse(&long('a')).expect("a key").to_string()] {
        let mut rules = RuleSet::default();
        rules.set_key("names", &key, Rule::new().threshold(9)).expect("valid");
        assert_eq!(rules.key_rule("names", &long('a')), rules.key_rule("names", &key));
        limiter.set_rules(rules).expect("set");
        assert_eq!(limiter.check(&LIMIT, long('a'), 1).await.expect("admitted").limit, 9);
        assert_eq!(limiter.check(&LIMIT, long('b'), 1).await.expect("admitted").limit, 2);
        limiter.reset(&LIMIT, long('b')).await.expect("reset");
    }
}
