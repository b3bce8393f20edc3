//! Responses under rules: their fields and statuses are those of the limits in force.

use std::time::Duration;

use axum::Router;
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Limit, Rejection, Rule, RuleSet, rate_limit};
use support::http::get;

use crate::{reported, serve, timed};

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
    limiter.set_rules(ruled(Rule::new().closed(true).until(until))).expect("valid");
    let answer = ask();
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("30")));

    limiter.set_rules(ruled(Rule::new().closed(true))).expect("valid");
    let answer = ask();
    assert_eq!((answer.status, answer.header("retry-after")), (429, None));

    limiter.set_rules(ruled(Rule::new().exempt(true))).expect("valid");
    let answer = ask();
    assert_eq!((answer.status, answer.header("ratelimit")), (200, None));

    limiter.set_rules(ruled(Rule::new().shadow(true).threshold(1))).expect("valid");
    assert_eq!(ask().status, 200);
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
