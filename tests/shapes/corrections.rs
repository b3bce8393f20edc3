//! Charges that are corrected by the result of the function, or by its body.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use ratelimit_runtime::{Limit, Permit, RateLimiter, Rejection, rate_limit};

const HOUR: Duration = Duration::from_secs(3600);
const TOKENS: Limit = Limit::sliding("corrections.tokens", 100, HOUR);
const REQUESTS: Limit = Limit::fixed("corrections.requests", 3, HOUR);

#[derive(Debug)]
struct Answer {
    tokens: u64,
}

impl Answer {
    fn tokens_of(result: &Result<Self, Rejection>) -> u64 {
        result.as_ref().map_or(0, |answer| answer.tokens)
    }
}

/// An error of a function that can fail by itself.
#[derive(Debug)]
struct Failure;

impl From<Rejection> for Failure {
    fn from(_: Rejection) -> Self {
        Self
    }
}

impl From<fmt::Error> for Failure {
    fn from(_: fmt::Error) -> Self {
        Self
    }
}

async fn left() -> u64 {
    let limiter = ratelimit_runtime::current().expect("a limiter");
    limiter.peek(&TOKENS, (), 1).await.expect("a decision").remaining
}

#[rate_limit(limit = TOKENS, cost = estimate, settle = |result| {
    result.as_ref().map_or(0, |answer| answer.tokens)
})]
async fn by_closure(estimate: u64, used: u64) -> Result<Answer, Rejection> {
    if used == 0 {
        return Ok(Answer { tokens: 0 });
    }
    tokio::task::yield_now().await;
    Ok(Answer { tokens: used })
}

#[rate_limit(limit = TOKENS, cost = 50, settle = Answer::tokens_of)]
async fn by_path() -> Result<Answer, Rejection> {
    Ok(Answer { tokens: 10 })
}

/// The `?` of the body converts the error, and the closure knows the type.
#[rate_limit(limit = TOKENS, cost = 50, count_if = |result| matches!(result, Err(Failure)))]
async fn counted(fails: bool) -> Result<u64, Failure> {
    if fails {
        Err(fmt::Error)?;
    }
    Ok(1)
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

#[rate_limit(
    limit(limit = REQUESTS),
    limit(limit = TOKENS, cost = 40, settle = |result| result.as_ref().map_or(0, |tokens| *tokens))
)]
async fn several(tokens: u64) -> Result<u64, Rejection> {
    Ok(tokens)
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

#[rate_limit(limit = TOKENS, cost = 50, scope = "process", settle = |result| result.unwrap_or(0))]
fn synchronous(used: u64) -> Option<u64> {
    if used == 7 {
        return Some(7);
    }
    Some(used)
}

/// Values of the body coerce to the return type, as without the attribute.
#[rate_limit(limit = TOKENS, count_if = Result::is_err)]
async fn coerced(
    texts: &[String; 2],
    number: u64,
) -> Result<Box<dyn fmt::Debug + Send>, Rejection> {
    if number == 0 {
        return Ok(Box::new(texts.len()));
    }
    Ok(Box::new(number))
}

#[rate_limit(limit = TOKENS, count_if = Result::is_err)]
async fn borrowed(texts: &Vec<String>) -> Result<&[String], Rejection> {
    Ok(texts)
}

/// The feature is never enabled.
#[rate_limit(limit = TOKENS, count_if = Result::is_err)]
async fn conditional(
    #[cfg(any())] absent: u64,
    #[cfg(not(any()))] present: u64,
) -> Result<u64, Rejection> {
    Ok(present)
}

struct Service {
    tokens: u64,
}

impl Service {
    #[rate_limit(limit = TOKENS, scope = "process", count_if = Result::is_err)]
    fn tokens(&mut self) -> Result<&mut u64, Rejection> {
        Ok(&mut self.tokens)
    }

    #[rate_limit(limit = TOKENS, cost = 50, settle = |result| result.as_ref().map_or(0, |it| **it))]
    async fn method<'a>(&'a mut self, more: &'a u64) -> Result<&'a u64, Rejection> {
        self.tokens += *more;
        Ok(&self.tokens)
    }

    #[rate_limit(limit = TOKENS, cost = 50, settle = |result| result.as_ref().map_or(0, |it| it.tokens))]
    async fn consumed(mut self, _: String, (more, _): (u64, String)) -> Result<Self, Rejection> {
        self.tokens += more;
        Ok(self)
    }
}

#[async_trait]
trait Complete {
    async fn complete(&self, prompt: &str) -> Result<u64, Rejection>;
}

#[async_trait]
impl Complete for Service {
    #[rate_limit(limit = TOKENS, cost = 50, settle = |result| result.as_ref().map_or(0, |used| *used))]
    async fn complete(&self, prompt: &str) -> Result<u64, Rejection> {
        Ok(self.tokens + prompt.len() as u64)
    }
}

async fn run() {
    by_closure(30, 10).await.expect("admitted");
    assert_eq!(left().await, 90);
    by_closure(30, 0).await.expect("admitted");
    by_path().await.expect("admitted");
    assert_eq!(left().await, 80);
    counted(false).await.expect("admitted");
    assert_eq!(left().await, 80);
    counted(true).await.expect_err("fails");
    assert_eq!(left().await, 30);
    // A rejected call has nothing to settle.
    by_path().await.expect_err("rejected");
    assert_eq!(left().await, 30);
}

async fn run_by_hand() {
    assert!(by_hand(10).await.expect("admitted").is_none());
    assert_eq!(left().await, 90);
    let permit = by_hand(60).await.expect("admitted").expect("the permit");
    assert_eq!(left().await, 40);
    permit.settle(60);
    assert_eq!(left().await, 30);
}

async fn run_hidden() {
    assert_eq!(format!("{:?}", hidden().await), r#"Ok("hidden")"#);
    assert_eq!(left().await, 100);
}

async fn run_several() {
    for used in [10, 0, 20] {
        several(used).await.expect("admitted");
    }
    assert_eq!(left().await, 70);
    assert!(several(0).await.is_err(), "the requests are used");
    assert_eq!(left().await, 70);
}

async fn run_mixed() {
    for counts in [false, false, false, false, true, true, true] {
        assert_eq!(mixed(counts).await.is_some(), counts);
    }
    assert!(mixed(true).await.is_none(), "three calls count");
    assert_eq!(left().await, 93);
}

async fn run_methods() {
    let texts = [String::new(), String::new()];
    assert_eq!(format!("{:?}", coerced(&texts, 0).await.expect("admitted")), "2");
    assert_eq!(borrowed(&texts.to_vec()).await.expect("admitted").len(), 2);
    assert_eq!(conditional(7).await.expect("admitted"), 7);
    let mut service = Service { tokens: 0 };
    *service.tokens().expect("admitted") += 1;
    assert_eq!(service.method(&2).await.expect("admitted"), &3);
    assert_eq!(left().await, 97);
    let service = service.consumed(String::new(), (1, String::new())).await.expect("admitted");
    assert_eq!(left().await, 93);
    assert_eq!(service.complete("one").await.expect("admitted"), 7);
    assert_eq!(left().await, 86);
}

#[tokio::test]
async fn charges_are_corrected() {
    RateLimiter::embedded().scope(run()).await;
    RateLimiter::embedded().scope(run_by_hand()).await;
    RateLimiter::embedded().scope(run_hidden()).await;
    RateLimiter::embedded().scope(run_several()).await;
    RateLimiter::embedded().scope(run_mixed()).await;
    RateLimiter::embedded().scope(run_methods()).await;
}

#[tokio::test]
async fn a_synchronous_function_settles() {
    let run = async {
        assert_eq!(synchronous(7), Some(7));
        assert_eq!(synchronous(3), Some(3));
        let limiter = ratelimit_runtime::current().expect("a limiter");
        let process = TOKENS.scope(ratelimit_runtime::Scope::Process);
        assert_eq!(limiter.peek(&process, (), 1).await.expect("a decision").remaining, 90);
    };
    RateLimiter::embedded().scope(run).await;
}

/// The charge is kept exactly once wherever the call is dropped, and if it panics.
#[tokio::test]
async fn a_call_that_does_not_end_keeps_its_charge() {
    #[rate_limit(limit = TOKENS, cost = 30, settle = |result| result.as_ref().map_or(0, |used| *used))]
    async fn slow(yields: u64) -> Result<u64, Rejection> {
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        assert!(yields < 9, "a panic");
        Ok(0)
    }
    let run = async {
        let unpolled = slow(1);
        drop(unpolled);
        assert_eq!(left().await, 100);
        for polls in 1..=3 {
            let mut call = Box::pin(slow(5));
            for _ in 0..polls {
                assert!(call.as_mut().now_or_never().is_none());
            }
            drop(call);
            assert_eq!(left().await, 100 - 30 * polls);
        }
        let limiter = ratelimit_runtime::current().expect("a limiter");
        limiter.reset(&TOKENS, ()).await.expect("a reply");
        let panicked = std::panic::AssertUnwindSafe(slow(9)).catch_unwind().await;
        assert!(panicked.is_err());
        assert_eq!(left().await, 70);
    };
    RateLimiter::embedded().scope(run).await;
}

/// A parameter that is `Send` and not `Sync` does not make the future one that is not `Send`.
#[tokio::test]
async fn the_future_stays_send() {
    #[rate_limit(limit = TOKENS, settle = |result| result.as_ref().map_or(0, |used| *used))]
    async fn owns(number: std::cell::Cell<u64>) -> Result<u64, Rejection> {
        number.set(number.get() + 1);
        tokio::task::yield_now().await;
        Ok(number.get())
    }
    fn send<T: Send>(value: T) -> T {
        value
    }
    let run = send(owns(std::cell::Cell::new(1)));
    assert_eq!(RateLimiter::embedded().scope(run).await.expect("admitted"), 2);
}
