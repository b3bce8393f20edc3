//! Charges that are corrected by the result of the function, or by its body.

use std::fmt;

use async_trait::async_trait;
use futures::FutureExt;
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, current, rate_limit};
use support::limits::HOUR;

const TOKENS: Limit = Limit::sliding("corrections.tokens", 100, HOUR);
const REQUESTS: Limit = Limit::fixed("corrections.requests", 3, HOUR);

type Answer = Result<u64, Rejection>;

fn used(answer: &Answer) -> u64 {
    *answer.as_ref().unwrap_or(&0)
}

/// An error of a function that can fail by itself.
#[derive(Debug)]
struct Failure;

impl<T: std::error::Error> From<T> for Failure {
    fn from(_: T) -> Self {
        Self
    }
}

async fn left() -> u64 {
    current().expect("a limiter").peek(&TOKENS, (), 1).await.expect("a decision").remaining
}

#[rate_limit(limit = TOKENS, cost = estimate, settle = |answer| answer.as_ref().map_or(0, |it| *it))]
async fn by_closure(estimate: u64, tokens: u64) -> Answer {
    if tokens == 0 {
        return Ok(0);
    }
    tokio::task::yield_now().await;
    Ok(tokens)
}

limited! {
    (limit = TOKENS, cost = 50, settle = used) async fn by_path() -> Answer { Ok(10) }
    // The `?` of the body converts the error, and the closure knows the type.
    (limit = TOKENS, cost = 50, count_if = |result| matches!(result, Err(Failure)))
        async fn counted(number: &str) -> Result<u64, Failure> { Ok(number.parse()?) }
}

#[rate_limit(limit = TOKENS, cost = 50, permit = tokens)]
async fn by_hand(used: u64) -> Result<Option<Permit>, Rejection> {
    if used > 50 {
        return Ok(Some(tokens));
    }
    tokens.settle(used);
    Ok(None)
}

#[rate_limit(limit = TOKENS, cost = 50, permit = tokens)]
async fn hidden() -> impl fmt::Debug {
    tokens.refund();
    "hidden"
}

#[tokio::test]
async fn charges_are_corrected() {
    let run = async {
        by_closure(30, 10).await.expect("admitted");
        by_closure(30, 0).await.expect("admitted");
        assert_eq!(left().await, 90);
        by_path().await.expect("admitted");
        assert_eq!(left().await, 80);
        counted("1").await.expect("admitted");
        assert_eq!(left().await, 80);
        counted("x").await.expect_err("fails");
        assert_eq!(left().await, 30);
        by_path().await.expect_err("a rejected call has nothing to settle");
        assert_eq!(left().await, 30);
    };
    RateLimiter::embedded().scope(run).await;
}

#[tokio::test]
async fn the_body_corrects_its_charge() {
    let run = async {
        assert!(by_hand(10).await.expect("admitted").is_none());
        assert_eq!(left().await, 90);
        let permit = by_hand(60).await.expect("admitted").expect("the permit");
        assert_eq!(left().await, 40);
        permit.settle(60);
        assert_eq!(left().await, 30);
        current().expect("a limiter").reset(&TOKENS, ()).await.expect("a reply");
        assert_eq!(format!("{:?}", hidden().await), r#"Ok("hidden")"#);
        assert_eq!(left().await, 100);
    };
    RateLimiter::embedded().scope(run).await;
}

limited! {
    (limit(limit = REQUESTS), limit(limit = TOKENS, cost = 40, settle = used))
        async fn several(tokens: u64) -> Answer { Ok(tokens) }
}

#[rate_limit(
    limit(limit = TOKENS, cost = 40, permit = by_hand),
    limit(limit = REQUESTS),
    count_if = Option::is_some
)]
async fn mixed(counts: bool) -> Option<()> {
    by_hand.settle(1);
    counts.then_some(())
}

#[tokio::test]
async fn each_of_several_limits_is_corrected() {
    let run = async {
        for used in [10, 0, 20] {
            several(used).await.expect("admitted");
        }
        assert!(several(0).await.is_err(), "the requests are used");
        assert_eq!(left().await, 70);
        for limit in [&TOKENS, &REQUESTS] {
            current().expect("a limiter").reset(limit, ()).await.expect("a reply");
        }
        for counts in [false, false, false, false, true, true, true] {
            assert_eq!(mixed(counts).await.is_some(), counts);
        }
        assert!(mixed(true).await.is_none(), "three calls count");
        assert_eq!(left().await, 93);
    };
    RateLimiter::embedded().scope(run).await;
}

#[rate_limit(limit = TOKENS, cost = 50, scope = "process", settle = |result| result.unwrap_or(0))]
fn synchronous(used: u64) -> Option<u64> {
    if used == 7 {
        return Some(7);
    }
    Some(used)
}

limited! {
    // The reference to a `Vec` becomes one to a slice, as without the attribute.
    (limit = TOKENS, count_if = Result::is_err)
        async fn borrowed(texts: &Vec<String>) -> Result<&[String], Rejection> { Ok(texts) }
}

struct Service {
    tokens: u64,
}

impl Service {
    #[rate_limit(limit = TOKENS, cost = 50, settle = |result| result.as_ref().map_or(0, |it| **it))]
    async fn method<'a>(&'a mut self, more: &'a u64) -> Result<&'a u64, Rejection> {
        self.tokens += *more;
        Ok(&self.tokens)
    }

    /// The feature of a parameter is never enabled.
    #[rate_limit(limit = TOKENS, cost = 50, settle = |result| result.as_ref().map_or(0, |it| it.tokens))]
    async fn consumed(
        mut self,
        _: String,
        (more, _): (u64, String),
        #[cfg(any())] absent: u64,
        #[cfg(not(any()))] present: u64,
    ) -> Result<Self, Rejection> {
        self.tokens += more + present;
        Ok(self)
    }
}

#[async_trait]
trait Complete {
    async fn complete(&self, prompt: &str) -> Answer;
}

#[async_trait]
impl Complete for Service {
    #[rate_limit(limit = TOKENS, cost = 50, settle = used)]
    async fn complete(&self, prompt: &str) -> Answer {
        Ok(self.tokens + prompt.len() as u64)
    }
}

#[tokio::test]
async fn functions_of_every_shape_settle() {
    let run = async {
        assert_eq!((synchronous(7), synchronous(3)), (Some(7), Some(3)));
        let process = TOKENS.scope(ratelimit_runtime::Scope::Process);
        let limiter = current().expect("a limiter");
        assert_eq!(limiter.peek(&process, (), 1).await.expect("a decision").remaining, 90);
        assert_eq!(borrowed(&vec![String::new(); 2]).await.expect("admitted").len(), 2);
        let mut service = Service { tokens: 1 };
        assert_eq!(service.method(&2).await, Ok(&3));
        assert_eq!(left().await, 97);
        let consumed = service.consumed(String::new(), (1, String::new()), 2);
        let service = consumed.await.expect("admitted");
        assert_eq!(left().await, 91);
        assert_eq!(service.complete("one").await, Ok(9));
        assert_eq!(left().await, 82);
    };
    RateLimiter::embedded().scope(run).await;
}

/// The charge is kept exactly once wherever the call is dropped, and if it panics.
#[tokio::test]
async fn a_call_that_does_not_end_keeps_its_charge() {
    #[rate_limit(limit = TOKENS, cost = 30, settle = used)]
    async fn slow(yields: u64) -> Answer {
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        assert!(yields < 9, "a panic");
        Ok(0)
    }
    let run = async {
        drop(slow(1));
        assert_eq!(left().await, 100);
        for polls in 1..=3 {
            let mut call = Box::pin(slow(5));
            for _ in 0..polls {
                assert!(call.as_mut().now_or_never().is_none());
            }
            drop(call);
            assert_eq!(left().await, 100 - 30 * polls);
        }
        current().expect("a limiter").reset(&TOKENS, ()).await.expect("a reply");
        std::panic::AssertUnwindSafe(slow(9)).catch_unwind().await.expect_err("a panic");
        assert_eq!(left().await, 70);
    };
    RateLimiter::embedded().scope(run).await;
}
