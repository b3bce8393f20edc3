//! The keys in Redis have the names and the values that the guide "What Redis holds" shows. Applications with different
//! prefixes never share a key. Each key has a TTL, as long as its count is useful, and not much longer.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures::future::join_all;
use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Align, BuildError, Key, Limit, RateLimiter, key};
use redis::Commands;
use support::ALGORITHMS;
use support::limits::{DAY, HOUR, MINUTE, SECOND, limits};
use support::random;
use support::server::Server;
use tokio::time::sleep;

use crate::{TestLimiter, decision};

const GUIDE: &str = include_str!("../../../docs/redis.md");
const QUARTER: Duration = Duration::from_secs(900);

/// The cells of the table row that begins with `first`.
fn row(first: &str) -> Vec<&'static str> {
    let line = GUIDE.lines().find(|line| line.starts_with(&format!("| {first} |")));
    line.expect("a row").trim_matches('|').split(" | ").map(str::trim).collect()
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
    // As the key of a client is written: its network.
    let address = "2001:db8::/64";
    let function = Limit::token_bucket("shop::say_hi", 5, QUARTER);
    let daily = Limit::fixed("login", 5, DAY).align(Align::offset_minutes(480));
    let names = [
        key_of(&limiter, &server, &login, user).await,
        key_of(&limiter, &server, &login, (tenant, user)).await,
        key_of(&limiter, &server, &login, key!("{tenant}/{user}")).await,
        key_of(&limiter, &server, &login, ()).await,
        key_of(&limiter, &server, &login, address).await,
        key_of(&limiter, &server, &function, user).await,
        key_of(&limiter, &server, &daily, user).await,
    ];
    let rows = GUIDE.lines().filter(|line| line.ends_with("` |") && line.contains("`rl:"));
    let documented = rows.map(|line| {
        let (_, name) = line.trim_end_matches("` |").rsplit_once('`').expect("a name");
        name.to_owned()
    });
    assert_eq!(documented.collect::<Vec<_>>(), names);
    let other = limiter.check(&Limit::fixed("90", 1, Duration::from_secs(90)), "", 1).await;
    assert!(other.is_ok());
    assert_eq!(server.ttls()[0].0, "rl:fixed:90s:90{(}");
}

#[tokio::test]
async fn the_lines_of_the_guide_read_the_state() {
    let (server, limiter) = Server::with_limiter();
    let mut connection = server.connection();
    for (algorithm, first, threshold, used) in [
        (Algorithm::Fixed, "fixed", 1_000, 6),
        (Algorithm::SlidingCounter, "sliding counter", 1_000, 6),
        (Algorithm::TokenBucket, "token and leaky bucket", 1_000, 4),
        (Algorithm::Sliding, "sliding", 1_000, 5),
    ] {
        let limit = Limit::new("read", algorithm, threshold, QUARTER).expect("valid");
        let cost = threshold * 7 / 10;
        limiter.check(&limit, "ann", cost).await.expect("admitted");
        let [(name, _)] = &server.ttls()[..] else { panic!("one key") };
        let arguments = row(first)[1].trim_matches('`');
        let script = format!("return {{struct.unpack({arguments})}}");
        let mut eval = redis::cmd("EVAL");
        let numbers: Vec<i64> =
            eval.arg(&script).arg(1).arg(name).query(&mut connection).expect("numbers");
        // One number more: the position after the last byte.
        let meanings = row(first)[2];
        assert_eq!(numbers.len(), meanings.split(',').count() + 1, "{script}: {numbers:?}");
        let units = if first.contains("bucket") {
            numbers[used] / numbers[used + 1]
        } else {
            numbers[used]
        };
        assert_eq!(units, cost.cast_signed(), "{script}: {numbers:?}");
        let _: () = redis::cmd("FLUSHALL").query(&mut connection).expect("FLUSHALL");
    }
    let line = GUIDE.lines().find(|line| line.starts_with("redis-cli EVAL")).expect("a line");
    assert!(
        line.contains(&format!("struct.unpack({})", row("fixed")[1].trim_matches('`'))),
        "{line}"
    );
}

/// The memory of a server with many keys is at most a tenth above the table of the guide.
#[tokio::test]
async fn a_key_takes_the_memory_of_the_guide() {
    // Fewer than the next power of two: at that number of keys, the server begins to double its tables.
    const KEYS: u64 = 14_336;
    for (algorithm, first) in [
        (Algorithm::Fixed, "fixed"),
        (Algorithm::SlidingCounter, "sliding counter"),
        (Algorithm::TokenBucket, "token and leaky bucket"),
        (Algorithm::Sliding, "sliding"),
    ] {
        let limit = Limit::new("app::login", algorithm, 1_000, DAY).expect("valid");
        let (server, limiter) = Server::with_limiter();
        let mut connection = server.connection();
        let mut info = |name| {
            let info: redis::InfoDict = redis::cmd("INFO").query(&mut connection).expect("INFO");
            info.get::<f64>(name).expect("a number")
        };
        // Loads the script.
        limiter.check(&limit, 1, 1).await.expect("admitted");
        let before = info("used_memory");
        for thousand in 0..KEYS / 1_024 {
            let calls = (0..1_024).map(|call| 1_000_000_000 + thousand * 1_024 + call);
            let calls = calls.map(|key| limiter.check(&limit, key, 1));
            for call in join_all(calls).await {
                call.expect("admitted");
            }
        }
        // Frees the buffers of its connections.
        drop(limiter);
        while info("connected_clients") > 1.0 {
            sleep(Duration::from_millis(1)).await;
        }
        let bytes = (info("used_memory") - before) / KEYS as f64;
        let line = GUIDE.lines().rfind(|line| {
            line.starts_with(&format!("| {first} | 2"))
                || line.starts_with(&format!("| {first} | 3"))
        });
        let documented = line.expect("a row").split(" | ").nth(1).expect("a cell");
        let documented = documented.split(|letter: char| !letter.is_ascii_digit()).next();
        let documented: f64 = documented.expect("a number").parse().expect("a number");
        assert!(
            bytes < documented * 1.1 && bytes > documented * 0.5,
            "{first}: {bytes} of {documented}"
        );
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
                assert!(
                    (useful_ms - 1_000..=longest).contains(ttl) && *ttl > 0,
                    "{key}: {ttl} ms, useful for {useful_ms}"
                );
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
    join_all(cases.into_iter().map(async |(limit, before, pause, after)| {
        let mut connection = server.connection();
        let key = format!("rl:{}:*", limit.algorithm());
        limiter.check(&limit, "key", before).await.expect("admitted");
        let keys: Vec<String> = connection.keys(&key).expect("KEYS");
        let [key] = &keys[..] else { panic!("one key of {key}: {keys:?}") };
        let removed: bool = connection.persist(key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        sleep(pause + Duration::from_millis(100)).await;
        limiter.check(&limit, "key", after).await.expect("admitted");
        let ttl: i64 = connection.pttl(key).expect("PTTL");
        assert!(ttl > 0, "{key}: {ttl}");
    }))
    .await;
}

/// If the limiter sends its own clock, the script reads the TTL at each call, so the next call sets it again.
#[tokio::test]
async fn a_removed_ttl_comes_back_at_once_with_another_clock() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    for limit in limits("ttl", 20, HOUR) {
        assert!(test.limiter.check(&limit, "key", 8).await.is_ok());
        let key = format!("rl:{}:1h:ttl{{key}}", limit.algorithm());
        let removed: bool = server.connection().persist(&key).expect("PERSIST");
        assert!(removed, "{key} had no TTL");
        assert!(test.limiter.check(&limit, "key", 1).await.is_ok());
    }
    server.assert_all_keys_expire();
}

fn builds(prefix: &str) -> Result<RateLimiter, BuildError> {
    RateLimiter::builder().redis("redis://localhost").key_prefix(prefix).build()
}

#[test]
fn a_prefix_with_an_algorithm_and_a_period_is_an_error() {
    let aligned =
        ["1d+0800", "1h-0330", "1d@Europe/Berlin", "month+0000", "year@Etc/GMT+1", "month-0330.15"];
    let periods = ["1us", "250ms", "30s", "1m", "12h", "7d"].into_iter().chain(aligned);
    let periods: Vec<_> = periods.collect();
    let pairs = |algorithm| periods.iter().map(move |period| (algorithm, period));
    for (algorithm, period) in ALGORITHMS.into_iter().flat_map(pairs) {
        let part = format!("{algorithm}:{period}");
        for (before, after) in
            [("", ""), ("shop:", ""), ("", ":shop"), (":", ":"), ("sliding:", "")]
        {
            let error = builds(&format!("{before}{part}{after}")).expect_err(&part);
            assert!(matches!(error, BuildError::LimitInPrefix { .. }), "{part}: {error:?}");
            assert!(error.to_string().contains(&part), "{error}");
            // The message suggests this prefix instead.
            let other = format!("{before}{algorithm}-{period}{after}");
            assert!(builds(&other).is_ok(), "{other}");
        }
    }
    for prefix in [
        "",
        "shop",
        "shop:eu",
        "sliding",
        "shop:sliding",
        "1m:sliding",
        "sliding:eu:1m",
        "sliding::1m",
        "sliding:m",
        "sliding:1",
        "sliding:1w",
        "sliding:1m+08",
        "sliding:month+08",
        "sliding:months",
        "sliding:+0800",
        "slidings:1m",
        "sliding-1m",
    ] {
        assert!(builds(prefix).is_ok(), "{prefix}");
    }
}

/// The words of a key in Redis. Many pairs of them are an algorithm and a period.
fn words() -> impl Strategy<Value = Vec<&'static str>> {
    let algorithm = || prop::sample::select(ALGORITHMS.map(Algorithm::as_str).to_vec());
    let period = || prop::sample::select(vec!["1m", "1d", "10s", "1d+0800"]);
    let words = prop_oneof![
        2 => (algorithm(), period()).prop_map(|(algorithm, period)| vec![algorithm, period]),
        1 => algorithm().prop_map(|algorithm| vec![algorithm]),
        1 => period().prop_map(|period| vec![period]),
        1 => prop::sample::select(vec!["p", "", "60s"]).prop_map(|word| vec![word]),
    ];
    prop::collection::vec(words, 2..7).prop_map(|words| words.concat())
}

/// Returns each pair of a prefix and a limit whose key in Redis would begin with these words.
fn interpretations(words: &[&'static str]) -> Vec<(String, Limit)> {
    let mut interpretations = Vec::new();
    for (index, pair) in words.windows(2).enumerate() {
        let algorithm: Option<Algorithm> =
            ALGORITHMS.into_iter().find(|algorithm| algorithm.as_str() == pair[0]);
        let seconds = match pair[1] {
            "1m" => 60,
            "1d" => 86_400,
            "10s" => 10,
            _ => continue,
        };
        let name: &'static str = words[index + 2..].join(":").leak();
        let prefix = words[..index].join(":");
        if let Some(algorithm) = algorithm
            && index > 0
            && let Ok(limit) = Limit::new(name, algorithm, 5, Duration::from_secs(seconds))
        {
            interpretations.push((prefix, limit));
        }
    }
    interpretations
}

#[test]
fn limits_of_two_prefixes_never_have_the_same_key() {
    let server = Server::start();
    let connection = RefCell::new(server.connection());
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ambiguous = Cell::new(0);
    random::play(1_500, &words(), |words| {
        let interpretations = interpretations(&words);
        ambiguous.set(ambiguous.get() + u64::from(interpretations.len() > 1));
        let mut built = Vec::new();
        for (prefix, limit) in interpretations {
            let Ok(limiter) = server.builder().key_prefix(&*prefix).build() else { continue };
            let text = format!("{}{{key}}", words.join(":"));
            runtime.block_on(limiter.check(&limit, "key", 1)).expect("admitted");
            let mut connection = connection.borrow_mut();
            let keys: Vec<String> = connection.keys("*").expect("KEYS");
            prop_assert_eq!(keys, [text.clone()]);
            let _: () = connection.del(text).expect("DEL");
            built.push(prefix);
        }
        prop_assert!(built.len() <= 1, "the prefixes {:?} have the same key", built);
        Ok(())
    });
    assert!(ambiguous.get() > 100, "only {} keys have two interpretations", ambiguous.get());
}
