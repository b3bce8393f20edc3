//! The headers that report limits, of the layer and of the handlers behind it.

use axum::extract::Request;
use axum::response::AppendHeaders;
use ratelimit_runtime::Scope;

use super::{again, assert_reports_all_limits, legacy_of, router};
use crate::prelude::*;

#[rate_limit(period = "1s", threshold = 1, algo = "fixed", key = (), name = "second")]
async fn second() -> Result<(), Rejection> {
    Ok(())
}

fn layer(limit: Limit) -> RateLimitLayer {
    RateLimitLayer::new().legacy_headers().limit(limit, |_| ())
}

fn plain() -> Router {
    Router::new().fallback(async || ())
}

#[test]
fn reports_all_limits_on_every_response() {
    let (limiter, clock) = timed();
    let server = serve(router().layer(layer(ALL)), &limiter);
    assert_reports_all_limits(server.address, &clock);
}

/// A limit of this process alone, leased units, and rejections that the process has cached.
#[test]
fn reports_what_the_process_decides_beside_redis() {
    let redis = Server::start();
    let [_, (limiter, _)] = limiters(&redis);
    let local = Limit::fixed("local", 2, MINUTE).scope(Scope::Process);
    let leased = Limit::token_bucket("leased", 6_000, MINUTE).lease(50);
    let route = |limit| route_get(async || ()).layer(layer(limit));
    let router = Router::new()
        .route("/counted", route(Limit::fixed("counted", 2, MINUTE)))
        .route("/local", route(local))
        .route("/leased", route(leased));
    let server = serve(router, &limiter);
    let mut calls = 0;
    for name in ["counted", "local"] {
        for (status, remaining) in [(200, 1), (200, 0), (429, 0), (429, 0)] {
            calls = redis.script_calls();
            let answer = get(server.address, &format!("/{name}"), &[]);
            assert_eq!(answer.status, status);
            let state = format!(r#""{name}";r={remaining};t=60"#);
            assert_eq!(reported(&answer), (&*format!(r#""{name}";q=2;w=60"#), &*state));
        }
        assert_eq!(redis.script_calls(), calls, "this process makes the last decision");
    }
    let left = |_| items(reported(&get(server.address, "/leased", &[])).1)[0].1[0].1;
    let left: Vec<_> = (0..9).map(left).collect();
    assert!(left.is_sorted_by(|one, next| one > next), "{left:?}");
    assert!(redis.script_calls() < calls + 9, "no call spends leased units");
}

/// Nor those of a layer to a request that is exempt.
#[test]
fn does_not_report_shadow_limits() {
    let server = serve(router().layer(layer(ALL).exempt(|_| true)), &timed().0);
    for path in ["/tried", "/tried", "/plain"] {
        let answer = get(server.address, path, &[]);
        assert_eq!((answer.status, answer.header("ratelimit-policy")), (200, None));
        assert_eq!(answer.header("ratelimit"), None);
    }
    let hi = (r#""hi";q=2;w=30"#, r#""hi";r=1;t=30"#);
    assert_eq!(reported(&get(server.address, "/hi/1", &[])), hi);
}

#[test]
fn reports_all_limits_that_are_decided_together() {
    let (limiter, clock) = timed();
    let (hour, day) =
        (Limit::sliding("same", 2, MINUTE * 60), Limit::sliding("same", 3, MINUTE * 1440));
    let server = serve(router().layer(layer(hour).limit(day, |_| "all")), &limiter);
    let same = r#""same";q=2;w=3600, "same#2";q=3;w=86400"#;
    let both = format!(r#"{same}, "wide";q=9;w=3, "narrow";q=3;w=86400"#);
    let first = r#""same";r=1;t=3600, "same#2";r=2;t=86400, "wide";r=8;t=1, "narrow";r=2;t=86400"#;
    for (advance, path, policy, states) in [
        (0, "/both", &*both, first),
        (0, "/plain", same, r#""same";r=0;t=3600, "same#2";r=1;t=86400"#),
        (0, "/plain", same, r#""same";r=0;t=3600, "same#2";r=1"#),
        (60, "/plain", same, r#""same";r=1;t=3600, "same#2";r=0;t=86400"#),
        (0, "/plain", same, r#""same#2";r=0;t=82800, "same";r=1;t=3600"#),
    ] {
        clock.advance(advance * MINUTE);
        assert_eq!(reported(&get(server.address, path, &[])), (policy, states));
    }
    // The problem details use the same names as the headers.
    let rejected = get(server.address, "/plain", &["accept: application/json"]);
    assert!(rejected.body.ends_with(r#""violated-policies":["same#2"]}"#), "{}", rejected.body);
}

/// A limit of requests and one of tokens, in one decision. The legacy headers report the first item of a rejection.
#[test]
fn reports_first_the_limit_of_a_group_that_rejects() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let tokens = Limit::fixed("tokens", 10, MINUTE * 60);
        let cost = |head: &Parts| head.uri.query().and_then(|it| it.parse().ok()).unwrap_or(1);
        let requests = layer(Limit::fixed("requests", 3, MINUTE));
        let server = serve(plain().layer(requests.limit_with_cost(tokens, |_| (), cost)), &limiter);
        for (path, status, states, legacy) in [
            ("/?4", 200, r#""requests";r=2;t=60, "tokens";r=6;t=3600"#, ["3", "2", "60"]),
            ("/?7", 429, r#""tokens";r=6;t=3600, "requests";r=2;t=60"#, ["10", "6", "3600"]),
            ("/?0", 200, r#""requests";r=1;t=60, "tokens";r=6;t=3600"#, ["3", "1", "60"]),
            ("/?2", 200, r#""requests";r=0;t=60, "tokens";r=4;t=3600"#, ["3", "0", "60"]),
            ("/?1", 429, r#""requests";r=0;t=60, "tokens";r=4"#, ["3", "0", "60"]),
            ("/?9", 429, r#""tokens";r=4;t=3600, "requests";r=0;t=60"#, ["10", "4", "3600"]),
        ] {
            let answer = get(server.address, path, &[]);
            assert_eq!((answer.status, reported(&answer).1), (status, states), "{path}");
            assert_eq!(legacy_of(&answer), legacy, "{path}");
        }
    }
    redis.assert_all_keys_expire();
}

/// A limit that decides about two keys has one item: the item of the key with fewer units.
#[test]
fn reports_a_limit_of_two_keys_once() {
    let redis = Server::start();
    for (limiter, _) in limiters(&redis) {
        let by_path = |request: &Parts| request.uri.path().to_owned();
        let inner = || RateLimitLayer::new().limit(ALL, by_path);
        let all = |key: &'static str| RateLimitLayer::new().limit(ALL, move |_| key);
        let one = plain().layer(all("one").limit(ALL, by_path));
        let two = plain().layer(inner()).layer(all("two"));
        let other = plain().layer(all("other")).layer(inner());
        for (app, path) in [(one, "one"), (two, "two"), (other, "other")] {
            let server = serve(app, &limiter);
            for (key, status, remaining) in
                [("a", 200, 3), ("b", 200, 2), ("b", 200, 1), ("c", 200, 0), ("d", 429, 0)]
            {
                let answer = get(server.address, &format!("/{path}/{key}"), &[]);
                let state = format!(r#""all";r={remaining};t=60"#);
                let expected = (r#""all";q=4;w=60"#, &*state);
                assert_eq!((answer.status, reported(&answer)), (status, expected), "{path}/{key}");
            }
        }
    }
    redis.assert_all_keys_expire();
}

/// Caches between the service and its clients store responses for all clients.
#[test]
fn reports_nothing_in_responses_that_shared_caches_store() {
    let echo = async |request: Request| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let lines = query.split('&').map(|line| line.split_once(':').expect("a header"));
        let lines = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
        AppendHeaders(lines.collect::<Vec<_>>()).into_response()
    };
    let limit = Limit::fixed("cached", 99, MINUTE);
    let server = serve(Router::new().fallback(echo).layer(layer(limit)), &timed().0);
    // Queries with the headers of a response.
    let stored = "cache-control:public cache-control:max-age=60,Public cache-control:s-maxage=60 \
        cache-control:max-age=60 cache-control:no-transform&cache-control:PUBLIC \
        cache-control:private=a,max-age=60 cache-control:private&cdn-cache-control:max-age=60";
    let private = "cache-control:private cache-control:private,max-age=60 \
        cache-control:max-age=60&cache-control:private cache-control:no-store,public \
        cache-control:max-age=0,must-revalidate cache-control:no-cache x-cache-control:public";
    let stored = stored.split(' ').map(|query| (query, false));
    for (query, is_reported) in stored.chain(private.split(' ').map(|query| (query, true))) {
        let answer = get(server.address, &format!("/?{query}"), &[]);
        for name in ["ratelimit", "ratelimit-policy", "x-ratelimit-remaining"] {
            assert_eq!(answer.header(name).is_some(), is_reported, "{name} beside {query}");
        }
    }
}

#[test]
fn reports_no_time_after_retry_after() {
    let handler = async || if again().await.is_err() { second().await } else { Ok(()) };
    let [day, outer] = ["day", "outer"].map(|name| layer(Limit::fixed(name, 1000, MINUTE * 1440)));
    let router = Router::new().route("/", route_get(handler)).layer(day).layer(outer);
    let server = serve(router, &timed().0);
    let ask = || get(server.address, "/", &[]);
    assert!((0..4).all(|_| ask().status == 200));
    let (admitted, rejected) = (ask(), ask());
    // A rejection that the handler survives hides no limit.
    let states = r#""all";r=0;t=60, "outer";r=995;t=86400, "day";r=995;t=86400, "second";r=0;t=1"#;
    assert_eq!((admitted.status, reported(&admitted).1), (200, states));
    assert_eq!((rejected.status, rejected.header("retry-after")), (429, Some("1")));
    let policies =
        r#""outer";q=1000;w=86400, "day";q=1000;w=86400, "all";q=4;w=60, "second";q=1;w=1"#;
    let states = r#""second";r=0;t=1, "outer";r=994, "day";r=994, "all";r=0"#;
    assert_eq!(reported(&rejected), (policies, states));
    assert_eq!(legacy_of(&rejected), ["1", "0", "1"]);
}

/// The limit that rejects comes first, and the limit of a layer that was not asked is missing.
#[test]
fn joins_the_headers_of_several_layers() {
    for (limits, policy, states) in [
        ([("a", 9), ("b", 2)], r#""a";q=9;w=60, "b";q=2;w=60"#, r#""b";r=0;t=60, "a";r=6;t=60"#),
        ([("c", 2), ("d", 9)], r#""c";q=2;w=60"#, r#""c";r=0;t=60"#),
    ] {
        let [outer, inner] =
            limits.map(|(name, threshold)| layer(Limit::fixed(name, threshold, MINUTE)));
        let server = serve(plain().layer(inner).layer(outer), &timed().0);
        for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
            let answer = get(server.address, "/", &[]);
            assert_eq!((answer.status, legacy_of(&answer)), (status, ["2", remaining, "60"]));
            assert!(status == 200 || reported(&answer) == (policy, states), "{answer:?}");
        }
    }
}

#[test]
fn joins_headers_that_the_handler_sets() {
    let upstream = async || {
        AppendHeaders([
            ("ratelimit", r#""x";r=1;t=1"#),
            ("ratelimit", r#""y,\";z";r=2;t=2"#),
            ("ratelimit-policy", r#""x";q=1;w=1"#),
            ("ratelimit-policy", r#""y,\";z";q=2;w=2"#),
        ])
    };
    let server = serve(Router::new().route("/", route_get(upstream)).layer(layer(ALL)), &timed().0);
    let policies = r#""all";q=4;w=60, "x";q=1;w=1, "y,\";z";q=2;w=2"#;
    let states = r#""all";r=3;t=60, "x";r=1;t=1, "y,\";z";r=2;t=2"#;
    assert_eq!(reported(&get(server.address, "/", &[])), (policies, states));
}
