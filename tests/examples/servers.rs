//! Examples that serve HTTP, asked as their `curl` lines ask.

use support::http::{Response, get, post};
use support::server::Server;

use crate::{Running, example};

/// Checks that an answer says when to come back, within so many seconds.
fn is_refused(result: &Response, seconds: u32) {
    assert_eq!(result.status, 429, "{result:?}");
    let wait: u32 = result.header("retry-after").expect("a wait").parse().expect("seconds");
    assert!((1..=seconds).contains(&wait), "{wait}");
    assert_eq!(result.header("cache-control"), Some("no-store"));
}

/// The limits that rejected, in this order; with that, it was told of whom and for how long.
fn are_told(server: Running, limits: &[&str]) {
    let told = server.rejections();
    assert_eq!(told.iter().map(|(limit, ..)| &**limit).collect::<Vec<_>>(), limits);
    for (_, key, wait) in told {
        assert!(key.len() == 16 && u64::from_str_radix(&key, 16).is_ok(), "{key}");
        assert!(wait == "None" || wait.ends_with('s'), "{wait}");
    }
}

#[test]
fn axum_answers_as_its_curl_lines_say() {
    let server = Running::start(example("axum"));
    let ask = |path: &str| get(server.address, path, &[]);
    for left in ["r=1", "r=0"] {
        let greeting = ask("/hi/7");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 7, from 127.0.0.1\n"));
        let fields = greeting.header("ratelimit").expect("what is left");
        assert!(fields.contains(r#""all";r="#) && fields.contains(left), "{fields}");
    }
    let rejected = ask("/hi/7");
    is_refused(&rejected, 30);
    assert_eq!(rejected.header("content-type"), Some("application/json"));
    let body: serde_json::Value = serde_json::from_str(&rejected.body).expect("JSON");
    assert_eq!(body["retry_after"].to_string(), rejected.header("retry-after").expect("a wait"));
    let error = body["error"].as_str().expect("a text");
    assert!(error.starts_with("too many requests, try again in"), "{error}");
    assert_eq!(ask("/hi/8").status, 200);

    let search = |key: &str, pages: u32| {
        let path = format!("/search?pages={pages}");
        get(server.address, &path, &[&format!("x-api-key: {key}")]).status
    };
    assert_eq!(search("secret", 4), 200);
    assert_eq!(search("secret", 4), 429);
    assert_eq!(search("secret", 6), 413);
    assert_eq!(search("other", 4), 200);
    assert_eq!(search("invented", 1), 401);

    let metrics = ask("/metrics");
    assert_eq!(metrics.header("content-type"), Some("text/plain; version=0.0.4"));
    let count = |limit: &str, outcome: &str| {
        let lines = metrics.body.lines().filter(|line| {
            line.starts_with("ratelimit_decisions_total{")
                && line.contains(&format!("limit=\"{limit}\""))
                && line.contains(&format!("outcome=\"{outcome}\""))
        });
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok()).sum::<u32>()
    };
    assert_eq!((count("axum::hi", "allowed"), count("axum::hi", "limited")), (3, 1));
    assert_eq!((count("axum::search", "allowed"), count("axum::search", "limited")), (2, 1));
    assert_eq!(count("axum::search", "cost_exceeds_capacity"), 1);
    assert_eq!(count("all", "allowed"), 9);
    assert!(metrics.body.contains("ratelimit_decision_duration_seconds_bucket{"));
    are_told(server, &["axum::hi", "axum::search"]);
}

#[test]
fn actix_answers_as_its_curl_lines_say() {
    let server = Running::start(example("actix"));
    let ask = |path: &str| get(server.address, path, &[]);
    for _ in 0..2 {
        let greeting = ask("/hi/7");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 7, from 127.0.0.1\n"));
        let fields = greeting.header("ratelimit").expect("what is left");
        assert!(fields.contains(r#""all";r="#) && fields.contains(r#""actix::hi";r="#), "{fields}");
    }
    let rejected = ask("/hi/7");
    is_refused(&rejected, 30);
    assert!(rejected.body.starts_with("too many requests, try again in"), "{}", rejected.body);
    let problem = get(server.address, "/hi/7", &["accept: application/json"]);
    is_refused(&problem, 30);
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));

    let note = |bytes| post(server.address, "/notes", &[], &vec![0; bytes]);
    assert_eq!(note(6000).body, "6000 bytes kept for 127.0.0.1\n");
    is_refused(&note(6000), 60);
    assert_eq!(note(11_000).status, 413);
    let health = ask("/health");
    assert_eq!((health.status, health.header("ratelimit")), (200, None));
    are_told(server, &["actix::hi", "actix::hi", "actix::notes"]);
}

#[test]
fn tower_layer_tells_clients_apart_behind_proxies() {
    let mut behind = example("tower_layer");
    behind.env("TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8");
    let server = Running::start(behind);
    let ask = |by: &str| get(server.address, "/", &[&format!("x-forwarded-for: {by}")]);
    for _ in 0..3 {
        let greeting = ask("203.0.113.7");
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 203.0.113.7\n"));
    }
    is_refused(&ask("203.0.113.7"), 10);
    is_refused(&ask("1.1.1.1, 203.0.113.7, 10.0.0.9"), 10);
    assert_eq!(ask("203.0.113.8").status, 200);
    are_told(server, &["client", "client"]);
}

#[test]
fn tower_layer_takes_nobodys_word() {
    let server = Running::start(example("tower_layer"));
    let ask = |by: u8| get(server.address, "/", &[&format!("x-forwarded-for: 203.0.113.{by}")]);
    assert!((0..3).all(|by| ask(by).body == "hi 127.0.0.1\n"));
    is_refused(&ask(3), 10);
}

fn log_in(server: &Running, user: &str, password: &str) -> Response {
    let form = "content-type: application/x-www-form-urlencoded";
    let body = format!("user={user}&password={password}");
    post(server.address, "/login", &[form], body.as_bytes())
}

#[test]
fn login_counts_what_fails() {
    let redis = Server::start();
    for url in ["", &redis.url] {
        let mut command = example("login");
        command.env("RATELIMIT_REDIS_URL", url);
        let server = Running::start(command);
        // As often as they like: more often than anybody may fail from one address.
        for _ in 0..21 {
            let greeting = log_in(&server, "ann", "opensesame");
            assert_eq!((greeting.status, &*greeting.body), (200, "hi ann\n"));
        }
        for guess in 0..5 {
            assert_eq!(log_in(&server, "ann", &guess.to_string()).status, 401);
        }
        is_refused(&log_in(&server, "ann", "5"), 900);
        is_refused(&log_in(&server, "ann", "opensesame"), 900);
        assert_eq!(log_in(&server, "bob", "letmein").status, 200);
        // Five are counted, and what was rejected is not: fifteen are left of the address.
        for user in 0..15 {
            assert_eq!(log_in(&server, &format!("user-{user}"), "x").status, 401);
        }
        is_refused(&log_in(&server, "bob", "letmein"), 60);
        are_told(server, &["login.user", "login.user", "login.address"]);
    }
    assert!(!redis.ttls().is_empty(), "nothing was counted on Redis");
}

#[test]
fn servers_share_their_counts_on_redis() {
    let redis = Server::start();
    for name in ["axum", "actix"] {
        let [one, other] = [(), ()].map(|()| {
            let mut command = example(name);
            command.env("RATELIMIT_REDIS_URL", &redis.url);
            Running::start(command)
        });
        assert_eq!(get(one.address, "/hi/7", &[]).status, 200);
        assert_eq!(get(other.address, "/hi/7", &[]).status, 200);
        is_refused(&get(one.address, "/hi/7", &[]), 30);
        is_refused(&get(other.address, "/hi/7", &[]), 30);
    }
}
