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

const CEILING: Duration = Duration::from_secs(5 * 3600);

#[rate_limit(limit = TOKENS, key = host, block = retry_after, block_at_most = CEILING, cost = 9,
    permit = tokens)]
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

/// The second call says that it takes no more, and the third is rejected.
#[tokio::test]
async fn a_result_blocks_the_key() {
    let run = async {
        let limiter = current().expect("a limiter");
        macro_rules! assert_blocks {
            ($($function:ident $host:literal leaves $left:literal,)*) => {$(
                $function($host, 0).await.expect("open");
                $function($host, 30).await.expect_err("its own error");
                assert_blocked($function($host, 0).await, Duration::from_secs(30));
                $function(concat!("not ", $host), 0).await.expect("open");
                limiter.unblock(&TOKENS, $host).await.expect("unblocked");
                let left = limiter.peek(&TOKENS, $host, 1).await.expect("a decision").remaining;
                assert_eq!(left, $left, "{}", stringify!($function));
            )*};
        }
        assert_blocks! {
            block "a" leaves 98,
            block_and_counting "b" leaves 99,
            block_by_result "c" leaves 96,
            block_one_of_two "d" leaves 98,
        }
        assert!(!limiter.unblock(&REQUESTS, ()).await.expect("the key of all hosts is open"));
        block_at_once("e", 30).expect_err("its own error");
        assert_blocked(block_at_once("e", 0), Duration::from_secs(30));
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
        block_by_result("d", u64::MAX).await.expect_err("its own error");
        assert_blocked(block_by_result("d", 0).await, CEILING);
    };
    embedded_on(&VirtualClock::new()).scope(run).await;
}
