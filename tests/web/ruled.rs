//! Responses under rules: their fields and statuses are those of the limits in force.

use std::time::Duration;

use axum::Router;
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, Rejection, Rule, RuleSet, rate_limit};
use support::http::get;
use support::server::Server;

use crate::{MINUTE, limiters, reported, serve, timed};

#[rate_limit(name = "ruled", period = "1m", threshold = 2)]
async fn one() -> Result<&'static str, Rejection> {
    Ok("one")
}

#[rate_limit(
    wait = "90s",
    limit(name = "ruled", period = "1m", threshold = 2),
    limit(name = "other", period = "1h", threshold = 50)
)]
async fn waiting() -> Result<&'static str, Rejection> {
    Ok("waiting")
}

fn ruled(rule: Rule) -> RuleSet {
    let mut rules = RuleSet::new();
    rules.set("ruled", rule).expect("valid");
    rules
}

#[test]
fn fields_and_statuses_follow_the_rules() {
    let (limiter, clock) = timed();
    let app = Router::new().route("/one", route_get(one)).layer(RateLimitLayer::new());
    let server = serve(app, &limiter);
    let ask = || get(server.address, "/one", &[]);
    let answer = ask();
    assert_eq!(reported(&answer), (r#""ruled";q=2;w=60"#, r#""ruled";r=1;t=60"#));

    limiter.set_rules(ruled(Rule::new().threshold(5))).expect("valid");
    let answer = ask();
    assert_eq!(reported(&answer), (r#""ruled";q=5;w=60"#, r#""ruled";r=3;t=60"#));

    let until = std::time::SystemTime::UNIX_EPOCH + clock.now() + Duration::from_secs(30);
    limiter.set_rules(ruled(Rule::new().blocked(true).until(until))).expect("valid");
    let answer = ask();
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("30")));

    limiter.set_rules(ruled(Rule::new().blocked(true))).expect("valid");
    let answer = ask();
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));

    limiter.set_rules(ruled(Rule::new().exempt(true))).expect("valid");
    let answer = ask();
    assert_eq!((answer.status, answer.header("ratelimit")), (200, None));

    limiter.set_rules(ruled(Rule::new().shadow(true).threshold(1))).expect("valid");
    assert_eq!(ask().status, 200);
}

/// A layer reports each limit once, with the amounts in force.
#[test]
fn layers_report_the_limits_in_force() {
    let redis = Server::start();
    let (limit, other) = (Limit::fixed("ruled", 3, MINUTE), Limit::fixed("other", 50, MINUTE));
    for (limiter, _) in limiters(&redis) {
        let layer = |limit| RateLimitLayer::new().limit(limit, |_| ()).limiter(limiter.clone());
        let app = Router::new()
            .route("/one", route_get(async || ()).layer(layer(limit)))
            .route("/two", route_get(async || ()).layer(layer(other).limit(limit, |_| ())));
        let server = serve(app, &limiter);
        let ask = |path| get(server.address, path, &[]);
        let one = ask("/one");
        assert_eq!(reported(&one), (r#""ruled";q=3;w=60"#, r#""ruled";r=2;t=60"#));
        limiter.set_rules(ruled(Rule::new().threshold(5))).expect("valid");
        let one = ask("/one");
        assert_eq!(reported(&one), (r#""ruled";q=5;w=60"#, r#""ruled";r=3;t=60"#));
        let two = ask("/two");
        let policy = r#""other";q=50;w=60, "ruled";q=5;w=60"#;
        assert_eq!(reported(&two), (policy, r#""other";r=49;t=60, "ruled";r=2;t=60"#));

        limiter.set_rules(ruled(Rule::new().threshold(1))).expect("valid");
        // On Redis, the second rejection comes from the cache.
        for _ in 0..2 {
            let one = ask("/one");
            assert_eq!(one.status, 429);
            assert_eq!(reported(&one), (r#""ruled";q=1;w=60"#, r#""ruled";r=0;t=60"#));
        }
        for rule in [Rule::new().exempt(true), Rule::new().threshold(1).shadow(true)] {
            limiter.set_rules(ruled(rule)).expect("valid");
            let one = ask("/one");
            assert_eq!((one.status, one.header("ratelimit")), (200, None), "{rule:?}");
        }
    }
}

/// A call that starts again under a new rule reports its limits once.
#[test]
fn a_call_that_waits_reports_its_limits_once() {
    let (limiter, _) = timed();
    let app = Router::new().route("/waiting", route_get(waiting)).layer(RateLimitLayer::new());
    let server = serve(app, &limiter);
    let ruled_limit = Limit::sliding("ruled", 2, Duration::from_secs(60));
    server.runtime.block_on(async {
        limiter.check(&ruled_limit, (), 2).await.expect("admitted");
    });
    let address = server.address;
    let answer = std::thread::spawn(move || get(address, "/waiting", &[]));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!answer.is_finished(), "it waits");
    limiter.set_rules(ruled(Rule::new().threshold(1))).expect("valid");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!answer.is_finished(), "it waits");
    limiter.set_rules(ruled(Rule::new().threshold(9))).expect("valid");
    let answer = answer.join().expect("no panic");
    assert_eq!(answer.status, 200);
    let (policy, state) = reported(&answer);
    assert_eq!(policy, r#""ruled";q=9;w=60, "other";q=50;w=3600"#);
    assert_eq!(state, r#""ruled";r=6;t=60, "other";r=49;t=3600"#);
}
