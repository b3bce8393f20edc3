//! Keys that the result of a function closes.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, RateLimiter, Rejection, VirtualClock, rate_limit};

const HOUR: Duration = Duration::from_secs(3600);
const TOKENS: Limit = Limit::sliding("closings.tokens", 100, HOUR);
const REQUESTS: Limit = Limit::fixed("closings.requests", 3, HOUR);

/// An error of another service, which says when it takes calls again.
#[derive(Debug)]
enum UpstreamError {
    TryAgain(Duration),
    Limited(Rejection),
}

impl From<Rejection> for UpstreamError {
    fn from(rejection: Rejection) -> Self {
        Self::Limited(rejection)
    }
}

fn retry_after<T>(result: &Result<T, UpstreamError>) -> Option<Duration> {
    match result {
        Err(UpstreamError::TryAgain(wait)) => Some(*wait),
        _ => None,
    }
}

async fn answer(wait: u64) -> Result<u64, UpstreamError> {
    tokio::task::yield_now().await;
    if wait == 0 { Ok(1) } else { Err(UpstreamError::TryAgain(Duration::from_secs(wait))) }
}

#[rate_limit(limit = TOKENS, key = host, close = retry_after)]
async fn closing(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

#[rate_limit(limit = TOKENS, key = host, close = retry_after, count_if = Result::is_ok)]
async fn closing_and_counting(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

#[rate_limit(limit = TOKENS, key = host, close = retry_after, cost = 9, permit = tokens)]
async fn closing_by_result(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    tokens.settle(2);
    answer(wait).await
}

/// The first limit is one of all hosts.
#[rate_limit(
    limit(limit = REQUESTS, key = ()),
    limit(limit = TOKENS, close = retry_after, close_at_most = "1m"),
    key = host
)]
async fn closing_one_of_two(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

const CEILING: Duration = Duration::from_secs(5 * 3600);

#[rate_limit(limit = TOKENS, key = host, close_at_most = CEILING, close = retry_after)]
async fn closing_for_hours(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

#[rate_limit(limit = TOKENS, key = host, scope = "process", close = retry_after)]
fn closing_at_once(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    if wait == 0 { Ok(1) } else { Err(UpstreamError::TryAgain(Duration::from_secs(wait))) }
}

/// Each call but the first says that it takes no more; the last is rejected.
#[tokio::test]
async fn a_result_closes_the_key() {
    let run = async {
        let limiter = ratelimit_runtime::current().expect("a limiter");
        let left = async |host: &'static str| {
            limiter.open(&TOKENS, host).await.expect("opened");
            limiter.peek(&TOKENS, host, 1).await.expect("a decision").remaining
        };
        let is_closed = |result: Result<u64, UpstreamError>| match result {
            Err(UpstreamError::Limited(Rejection::Closed { decision, .. })) => {
                decision.retry_after == Duration::from_secs(30)
            }
            _ => false,
        };
        closing("a", 0).await.expect("open");
        closing("a", 30).await.expect_err("its own error");
        assert!(is_closed(closing("a", 0).await));
        closing("another", 0).await.expect("open");
        assert_eq!(left("a").await, 98);

        closing_and_counting("b", 0).await.expect("open");
        closing_and_counting("b", 30).await.expect_err("its own error");
        assert!(is_closed(closing_and_counting("b", 0).await));
        assert_eq!(left("b").await, 99);

        closing_by_result("c", 30).await.expect_err("its own error");
        assert!(is_closed(closing_by_result("c", 0).await));
        assert_eq!(left("c").await, 98);

        closing_one_of_two("d", 30).await.expect_err("its own error");
        assert!(is_closed(closing_one_of_two("d", 0).await));
        closing_one_of_two("not d", 0).await.expect("the key of all hosts is open");
        assert!(!limiter.open(&REQUESTS, ()).await.expect("opened"));
        assert_eq!(left("d").await, 99);

        closing_at_once("e", 30).expect_err("its own error");
        assert!(is_closed(closing_at_once("e", 0)));
    };
    let builder = RateLimiter::builder().clock(Clock::Virtual(VirtualClock::new()));
    builder.build().expect("valid settings").scope(run).await;
}

/// Returns for how long the key of a call stays closed after a call that asked for `asked` seconds.
fn closed_for(result: Result<u64, UpstreamError>) -> Duration {
    match result {
        Err(UpstreamError::Limited(Rejection::Closed { decision, .. })) => decision.retry_after,
        other => panic!("{other:?}"),
    }
}

/// A service that replies with a hundred years cannot stop the fleet for longer than the ceiling.
#[tokio::test]
async fn a_result_closes_its_key_for_at_most_an_hour_or_the_ceiling() {
    let run = async {
        closing("a", u64::MAX).await.expect_err("its own error");
        assert_eq!(closed_for(closing("a", 0).await), HOUR);
        closing("b", 3_600).await.expect_err("its own error");
        assert_eq!(closed_for(closing("b", 0).await), HOUR);
        closing_one_of_two("c", 3_600).await.expect_err("its own error");
        assert_eq!(closed_for(closing_one_of_two("c", 0).await), Duration::from_secs(60));
        closing_for_hours("d", u64::MAX).await.expect_err("its own error");
        assert_eq!(closed_for(closing_for_hours("d", 0).await), CEILING);
    };
    let builder = RateLimiter::builder().clock(Clock::Virtual(VirtualClock::new()));
    builder.build().expect("valid settings").scope(run).await;
}
