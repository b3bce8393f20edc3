//! The keys in Redis have the names and the values that the guide "What Redis holds" shows.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Align, Key, Limit, RateLimiter, key};
use support::server::Server;
use tokio::time::sleep;

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
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let login = Limit::sliding("login", 5, QUARTER);
    let (tenant, user) = ("acme", "ann");
    // As the key of a client is written: its network.
    let address = "2001:db8::/64";
    let function = Limit::token_bucket("shop::say_hi", 5, QUARTER);
    let daily = Limit::fixed("login", 5, Duration::from_secs(86_400));
    let daily = daily.align(Align::offset_minutes(480));
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
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    let mut connection = server.connection();
    for (algorithm, first, threshold, used) in [
        (Algorithm::Fixed, "fixed", 1_000, 5),
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
        let limit = Limit::new("app::login", algorithm, 1_000, Duration::from_secs(86_400));
        let limit = limit.expect("valid");
        let server = Server::start();
        let limiter = server.builder().build().expect("valid");
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
            for call in futures::future::join_all(calls).await {
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
