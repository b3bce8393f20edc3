//! Keys that the result of a function blocks.

use std::time::Duration;

use ratelimit_runtime::{Clock, Limit, RateLimiter, Rejection, VirtualClock, rate_limit};

const HOUR: Duration = Duration::from_secs(3600);
const TOKENS: Limit = Limit::sliding("blocks.tokens", 100, HOUR);
const REQUESTS: Limit = Limit::fixed("blocks.requests", 3, HOUR);

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

#[rate_limit(limit = TOKENS, key = host, block = retry_after)]
async fn block(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

#[rate_limit(limit = TOKENS, key = host, block = retry_after, count_if = Result::is_ok)]
async fn block_and_counting(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

#[rate_limit(limit = TOKENS, key = host, block = retry_after, cost = 9, permit = tokens)]
async fn block_by_result(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    tokens.settle(2);
    answer(wait).await
}

/// The first limit is one of all hosts.
#[rate_limit(
    limit(limit = REQUESTS, key = ()),
    limit(limit = TOKENS, block = retry_after, block_at_most = "1m"),
    key = host
)]
async fn block_one_of_two(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

const CEILING: Duration = Duration::from_secs(5 * 3600);

#[rate_limit(limit = TOKENS, key = host, block_at_most = CEILING, block = retry_after)]
async fn block_for_hours(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    answer(wait).await
}

#[rate_limit(limit = TOKENS, key = host, scope = "process", block = retry_after)]
fn block_at_once(host: &str, wait: u64) -> Result<u64, UpstreamError> {
    if wait == 0 { Ok(1) } else { Err(UpstreamError::TryAgain(Duration::from_secs(wait))) }
}

/// Each call but the first says that it takes no more; the last is rejected.
#[tokio::test]
async fn a_result_blocks_the_key() {
    let run = async {
        let limiter = ratelimit_runtime::current().expect("a limiter");
        let left = async |host: &'static str| {
            limiter.unblock(&TOKENS, host).await.expect("unblocked");
            limiter.peek(&TOKENS, host, 1).await.expect("a decision").remaining
        };
        let is_blocked = |result: Result<u64, UpstreamError>| match result {
            Err(UpstreamError::Limited(Rejection::Blocked { decision, .. })) => {
                decision.retry_after == Duration::from_secs(30)
            }
            _ => false,
        };
        block("a", 0).await.expect("open");
        block("a", 30).await.expect_err("its own error");
        assert!(is_blocked(block("a", 0).await));
        block("another", 0).await.expect("open");
        assert_eq!(left("a").await, 98);

        block_and_counting("b", 0).await.expect("open");
        block_and_counting("b", 30).await.expect_err("its own error");
        assert!(is_blocked(block_and_counting("b", 0).await));
        assert_eq!(left("b").await, 99);

        block_by_result("c", 30).await.expect_err("its own error");
        assert!(is_blocked(block_by_result("c", 0).await));
        assert_eq!(left("c").await, 98);

        block_one_of_two("d", 30).await.expect_err("its own error");
        assert!(is_blocked(block_one_of_two("d", 0).await));
        block_one_of_two("not d", 0).await.expect("the key of all hosts is open");
        assert!(!limiter.unblock(&REQUESTS, ()).await.expect("unblocked"));
        assert_eq!(left("d").await, 99);

        block_at_once("e", 30).expect_err("its own error");
        assert!(is_blocked(block_at_once("e", 0)));
    };
    let builder = RateLimiter::builder().clock(Clock::Virtual(VirtualClock::new()));
    builder.build().expect("valid settings").scope(run).await;
}

/// Returns for how long the key of a call stays blocked after a call that asked for `asked` seconds.
fn blocked_for(result: Result<u64, UpstreamError>) -> Duration {
    match result {
        Err(UpstreamError::Limited(Rejection::Blocked { decision, .. })) => decision.retry_after,
        other => panic!("{other:?}"),
    }
}

/// A service that replies with a hundred years cannot stop the fleet for longer than the ceiling.
#[tokio::test]
async fn a_result_blocks_its_key_for_at_most_an_hour_or_the_ceiling() {
    let run = async {
        block("a", u64::MAX).await.expect_err("its own error");
        assert_eq!(blocked_for(block("a", 0).await), HOUR);
        block("b", 3_600).await.expect_err("its own error");
        assert_eq!(blocked_for(block("b", 0).await), HOUR);
        block_one_of_two("c", 3_600).await.expect_err("its own error");
        assert_eq!(blocked_for(block_one_of_two("c", 0).await), Duration::from_secs(60));
        block_for_hours("d", u64::MAX).await.expect_err("its own error");
        assert_eq!(blocked_for(block_for_hours("d", 0).await), CEILING);
    };
    let builder = RateLimiter::builder().clock(Clock::Virtual(VirtualClock::new()));
    builder.build().expect("valid settings").scope(run).await;
}
