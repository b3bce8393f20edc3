//! Keys that the result of a function blocks.

use std::time::Duration;

use ratelimit_runtime::{Limit, Rejection, VirtualClock, current, rate_limit};
use support::clocks::embedded_on;
use support::limits::{HOUR, MINUTE};

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

type Answer = Result<u64, UpstreamError>;

fn retry_after<T>(result: &Result<T, UpstreamError>) -> Option<Duration> {
    match result {
        Err(UpstreamError::TryAgain(wait)) => Some(*wait),
        _ => None,
    }
}

fn answer(wait: u64) -> Answer {
    if wait == 0 { Ok(1) } else { Err(UpstreamError::TryAgain(Duration::from_secs(wait))) }
}

#[rate_limit(limit = TOKENS, key = host, block = retry_after)]
async fn block(host: &str, wait: u64) -> Answer {
    tokio::task::yield_now().await;
    answer(wait)
}

#[rate_limit(limit = TOKENS, key = host, block = retry_after, count_if = Result::is_ok)]
async fn block_and_counting(host: &str, wait: u64) -> Answer {
    answer(wait)
}

#[rate_limit(limit = TOKENS, key = host, block = retry_after, cost = 9, permit = tokens)]
async fn block_by_result(host: &str, wait: u64) -> Answer {
    tokens.settle(2);
    answer(wait)
}

/// The first limit is one of all hosts.
#[rate_limit(
    limit(limit = REQUESTS, key = ()),
    limit(limit = TOKENS, block = retry_after, block_at_most = "1m"),
    key = host
)]
async fn block_one_of_two(host: &str, wait: u64) -> Answer {
    answer(wait)
}

const CEILING: Duration = Duration::from_secs(5 * 3600);

#[rate_limit(limit = TOKENS, key = host, block_at_most = CEILING, block = retry_after)]
async fn block_for_hours(host: &str, wait: u64) -> Answer {
    answer(wait)
}

#[rate_limit(limit = TOKENS, key = host, scope = "process", block = retry_after)]
fn block_at_once(host: &str, wait: u64) -> Answer {
    answer(wait)
}

#[track_caller]
fn assert_blocked(result: Answer, expected: Duration) {
    match result {
        Err(UpstreamError::Limited(Rejection::Blocked { decision, .. })) => {
            assert_eq!(decision.retry_after, expected);
        }
        other => panic!("{other:?}"),
    }
}

/// Each call but the first says that it takes no more; the last is rejected.
#[tokio::test]
async fn a_result_blocks_the_key() {
    let run = async {
        let limiter = current().expect("a limiter");
        let left = async |host: &'static str| {
            limiter.unblock(&TOKENS, host).await.expect("unblocked");
            limiter.peek(&TOKENS, host, 1).await.expect("a decision").remaining
        };
        let end = Duration::from_secs(30);
        block("a", 0).await.expect("open");
        block("a", 30).await.expect_err("its own error");
        assert_blocked(block("a", 0).await, end);
        block("another", 0).await.expect("open");
        assert_eq!(left("a").await, 98);

        block_and_counting("b", 0).await.expect("open");
        block_and_counting("b", 30).await.expect_err("its own error");
        assert_blocked(block_and_counting("b", 0).await, end);
        assert_eq!(left("b").await, 99);

        block_by_result("c", 30).await.expect_err("its own error");
        assert_blocked(block_by_result("c", 0).await, end);
        assert_eq!(left("c").await, 98);

        block_one_of_two("d", 30).await.expect_err("its own error");
        assert_blocked(block_one_of_two("d", 0).await, end);
        block_one_of_two("not d", 0).await.expect("the key of all hosts is open");
        assert!(!limiter.unblock(&REQUESTS, ()).await.expect("unblocked"));
        assert_eq!(left("d").await, 99);

        block_at_once("e", 30).expect_err("its own error");
        assert_blocked(block_at_once("e", 0), end);
    };
    embedded_on(&VirtualClock::new()).scope(run).await;
}

/// A service that replies with a hundred years cannot stop the fleet for longer than the ceiling.
#[tokio::test]
async fn a_result_blocks_its_key_for_at_most_an_hour_or_the_ceiling() {
    let run = async {
        for (key, wait) in [("a", u64::MAX), ("b", 3_600)] {
            block(key, wait).await.expect_err("its own error");
            assert_blocked(block(key, 0).await, HOUR);
        }
        block_one_of_two("c", 3_600).await.expect_err("its own error");
        assert_blocked(block_one_of_two("c", 0).await, MINUTE);
        block_for_hours("d", u64::MAX).await.expect_err("its own error");
        assert_blocked(block_for_hours("d", 0).await, CEILING);
    };
    embedded_on(&VirtualClock::new()).scope(run).await;
}
