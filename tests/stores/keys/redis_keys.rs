//! The keys in Redis have the names and the values that the guide "What Redis holds" shows. Applications with different
//! prefixes never share a key. Each key has a TTL, as long as its count is useful, and not much longer.

use std::time::Duration;

use futures::future::join_all;
use ratelimit_runtime::{Algorithm, Align, BuildError, Key, Limit, RateLimiter, key};
use redis::Commands;
use support::ALGORITHMS;
use support::limits::{DAY, HOUR, MINUTE, SECOND, limits};
use support::server::Server;
use tokio::time::sleep;

use crate::{TestLimiter, decision};

const GUIDE: &str = include_str!("../../../docs/redis.md");
const QUARTER: Duration = Duration::from_secs(900);

/// The algorithms, and the rows of the guide about them.
const ROWS: [(Algorithm, &str); 4] = [
    (Algorithm::Fixed, "fixed"),
    (Algorithm::SlidingCounter, "sliding counter"),
    (Algorithm::TokenBucket, "token and leaky bucket"),
    (Algorithm::Sliding, "sliding"),
];

/// The cells of the last table row that begins with a name and a text.
fn row(first: &str, second: &str) -> Vec<&'static str> {
    let start = format!("| {first} | {second}");
    let line = GUIDE.lines().rfind(|line| line.starts_with(&start)).expect("a row");
    line.trim_matches('|').split(" | ").map(str::trim).collect()
}

/// Checks a call, and returns the name of its key.
async fn key_of(limiter: &RateLimiter, server: &Server, limit: &Limit, key: impl Key) -> String {
    limiter.check(limit, &key, 1).await.expect("admitted");
    let [(name, _)] = &server.ttls()[..] else { panic!("one key") };
    limiter.reset(limit, key).await.expect("a reply");
    name.clone()
}

#[tokio::test]
async fn keys_have_the_names_of_the_guide() {
    let (server, limiter) = Server::with_limiter();
    let login = Limit::sliding("login", 5, QUARTER);
    let (tenant, user) = ("acme", "ann");
    let function = Limit::token_bucket("shop::say_hi", 5, QUARTER);
    let daily = Limit::fixed("login", 5, DAY).align(Align::offset_minutes(480));
    let names = [
        key_of(&limiter, &server, &login, user).await,
        key_of(&limiter, &server, &login, (tenant, user)).await,
        key_of(&limiter, &server, &login, key!("{tenant}/{user}")).await,
        key_of(&limiter, &server, &login, ()).await,
        // As the key of a client is written: its network.
        key_of(&limiter, &server, &login, "2001:db8::/64").await,
        key_of(&limiter, &server, &function, user).await,
        key_of(&limiter, &server, &daily, user).await,
    ];
    let rows = GUIDE.lines().filter(|line| line.ends_with("` |") && line.contains("`rl:"));
    let documented = rows.map(|line| line.rsplit('`').nth(1).expect("a name"));
    assert_eq!(documented.collect::<Vec<_>>(), names);
    let other = Limit::fixed("90", 1, Duration::from_secs(90));
    assert_eq!(key_of(&limiter, &server, &other, "").await, "rl:fixed:90s:90{(}");
}

#[tokio::test]
async fn the_lines_of_the_guide_read_the_state() {
    let (server, limiter) = Server::with_limiter();
    let mut connection = server.connection();
    for (algorithm, first) in ROWS {
        let limit = Limit::new("read", algorithm, 1_000, QUARTER).expect("valid");
        limiter.check(&limit, "ann", 700).await.expect("admitted");
        let [(name, _)] = &server.ttls()[..] else { panic!("one key") };
        let cells = row(first, "`'");
        let (arguments, meanings) = (cells[1].trim_matches('`'), cells[2].split(", "));
        let script = format!("return {{struct.unpack({arguments})}}");
        let numbers = redis::cmd("EVAL").arg(&script).arg(1).arg(name).query(&mut connection);
        let numbers: Vec<i64> = numbers.expect("numbers");
        // One number more: the position after the last byte.
        assert_eq!(numbers.len(), meanings.clone().count() + 1, "{script}: {numbers:?}");
        let of =
            |meaning: &str| numbers[meanings.clone().position(|it| it == meaning).expect(meaning)];
        let units = match algorithm {
            Algorithm::TokenBucket => of("level") / of("level of one unit"),
            Algorithm::SlidingCounter => of("and of this window"),
            _ => of("used units"),
        };
        assert_eq!(units, 700, "{script}: {numbers:?}");
        redis::cmd("FLUSHALL").exec(&mut connection).expect("FLUSHALL");
    }
    let line = GUIDE.lines().find(|line| line.starts_with("redis-cli EVAL")).expect("a line");
    let arguments = row("fixed", "`'")[1].trim_matches('`');
    assert!(line.contains(&format!("struct.unpack({arguments})")), "{line}");
}

/// The memory of a server with many keys is at most a tenth above the table of the guide.
#[tokio::test]
async fn a_key_takes_the_memory_of_the_guide() {
    // Fewer than the next power of two: at that number of keys, the server begins to double its tables.
    const KEYS: u64 = 14_336;
    for (algorithm, first) in ROWS {
        let limit = Limit::new("app::login", algorithm, 1_000, DAY).expect("valid");
        let (server, limiter) = Server::with_limiter();
        // Loads the script.
        limiter.check(&limit, 1, 1).await.expect("admitted");
        let before = server.stat("used_memory:");
        for thousand in 0..KEYS / 1_024 {
            let calls = (0..1_024).map(|call| 1_000_000_000 + thousand * 1_024 + call);
            let calls = calls.map(|key| limiter.check(&limit, key, 1));
            assert!(join_all(calls).await.iter().all(Result::is_ok));
        }
        // Frees the buffers of its connections.
        drop(limiter);
        while server.stat("connected_clients:") > 1 {
            sleep(Duration::from_millis(1)).await;
        }
        let bytes = (server.stat("used_memory:") - before) / KEYS;
        let documented = row(first, "2")[1].split(' ').next().expect("a number");
        let documented: u64 = documented.parse().expect("a number");
        let range = documented / 2..documented * 11 / 10;
        assert!(range.contains(&bytes), "{first}: {bytes} of {documented}");
    }
}

#[tokio::test]
async fn the_ttl_covers_the_useful_life_of_a_key() {
    let (server, limiter) = Server::with_limiter();
    for period in [HOUR, Duration::from_millis(20)] {
        for limit in limits("ttl", 100, period) {
            for _ in 0..5 {
                let decided = decision(limiter.check(&limit, "key", 1).await);
                let useful_ms = decided.reset_after.as_micros().div_ceil(1000) as i64;
                let [(key, ttl)] = &server.ttls()[..] else { panic!("one key") };
                let longest = useful_ms + (useful_ms / 8).max(10_000) + 1_000;
                let range = (useful_ms - 1_000).max(1)..=longest;
                assert!(range.contains(ttl), "{key}: {ttl} ms, useful for {useful_ms}");
            }
            limiter.reset(&limit, "key").await.expect("a reply");
        }
    }
}

/// The state contains the end of the TTL, so a script does not read the TTL. The script sets a TTL that an
/// operator removed at the times that "Running it in production" documents.
#[tokio::test]
async fn a_removed_ttl_comes_back_at_the_documented_times() {
    let (server, limiter) = Server::with_limiter();
    let test = TestLimiter::redis(&server);
    // The limit, the units before the removal, the pause after it, and the units then.
    let cases = [
        // After ten seconds, which are longer than an eighth of the period.
        (Limit::sliding("ttl", 20, MINUTE), 1, 10 * SECOND, 1),
        // With a window that ends after the removed TTL would have.
        (Limit::fixed("ttl", 20, SECOND), 1, 11 * SECOND, 1),
        (Limit::sliding_counter("ttl", 20, SECOND), 1, 11 * SECOND, 1),
        // When the level is an eighth higher than before.
        (Limit::token_bucket("ttl", 100, HOUR), 80, Duration::ZERO, 11),
        (Limit::leaky_bucket("ttl", 100, HOUR).burst(100), 80, Duration::ZERO, 11),
    ];
    let cases = cases.map(|case| (&limiter, case));
    // With another clock, the script reads the TTL at each call: the next call sets it again.
    let at_once = limits("clock", 20, HOUR).map(|limit| (limit, 8, Duration::ZERO, 1));
    let cases = cases.into_iter().chain(at_once.map(|case| (&test.limiter, case)));
    join_all(cases.map(async |(limiter, (limit, before, pause, after))| {
        limiter.check(&limit, "key", before).await.expect("admitted");
        let key = format!("rl:{}:*:{}{{key}}", limit.algorithm(), limit.name());
        let keys: Vec<String> = server.connection().keys(&key).expect("KEYS");
        let [key] = &keys[..] else { panic!("one key of {key}: {keys:?}") };
        assert_eq!(server.connection().persist(key), Ok(true), "{key} had no TTL");
        sleep(pause + Duration::from_millis(100)).await;
        limiter.check(&limit, "key", after).await.expect("admitted");
    }))
    .await;
    server.assert_all_keys_expire();
}

fn builds(prefix: &str) -> Result<RateLimiter, BuildError> {
    RateLimiter::builder().redis("redis://localhost").key_prefix(prefix).build()
}

#[test]
fn a_prefix_with_the_name_of_an_algorithm_is_an_error() {
    for algorithm in ALGORITHMS.into_iter().chain([Algorithm::InFlight]) {
        for (before, after) in [("", ""), ("shop:", ""), ("", ":shop"), (":", ":"), ("", ":1m")] {
            let error = builds(&format!("{before}{algorithm}{after}")).expect_err("a name");
            assert!(matches!(error, BuildError::LimitInPrefix { .. }), "{algorithm}: {error:?}");
            assert!(error.to_string().contains(&format!("`{algorithm}`")), "{error}");
            builds(&format!("{before}{algorithm}s{after}")).expect("another word");
        }
    }
    for prefix in ["", "shop", "shop:eu", "1m:", "sliding-1m"] {
        builds(prefix).expect(prefix);
    }
}

/// A key can be read as that of two limits. The prefix of one of them is an error.
#[tokio::test]
async fn limits_of_two_prefixes_never_have_the_same_key() {
    let server = Server::start();
    let limiter = server.builder().key_prefix("p").build().expect("valid");
    for (first, second) in ALGORITHMS.into_iter().flat_map(|it| ALGORITHMS.map(|other| (it, other)))
    {
        let name = Limit::kept_name(&format!("{second}:1d:name")).expect("a name");
        let limit = Limit::new(name, first, 5, MINUTE).expect("valid");
        let key = key_of(&limiter, &server, &limit, "key").await;
        assert_eq!(key, format!("p:{first}:1m:{second}:1d:name{{key}}"));
        builds(&format!("p:{first}:1m")).expect_err("another limit could have this key");
    }
}
