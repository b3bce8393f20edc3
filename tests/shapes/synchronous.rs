//! Functions that are not async. With `scope = "process"`, their calls are decided at once, unless they wait.

use std::panic::Location;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, OnError, RateLimiter, Rejection, Scope, rate_limit};

#[rate_limit(period = "1h", threshold = 2, scope = "process", key = id)]
fn log_warning(id: u64, text: &str) -> Result<usize, Rejection> {
    if text.is_empty() {
        return Ok(0);
    }
    Ok(text.len())
}

struct Pool {
    name: String,
}

impl Pool {
    #[rate_limit(period = "1h", threshold = 2, scope = "process", key = "{self.name}", cost = n)]
    fn take(&mut self, n: u64) -> Option<&mut String> {
        self.name.push('x');
        Some(&mut self.name)
    }
}

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn hidden(early: bool) -> impl std::fmt::Debug {
    if early {
        return "early";
    }
    "late"
}

#[rate_limit(
    limit(period = "1s", threshold = 5),
    limit(period = "1h", threshold = 1, key = id),
    scope = "process",
    on_limited = |rejection| rejection.name().len()
)]
fn several(id: u8) -> usize {
    usize::from(id) - usize::from(id)
}

#[rate_limit(algo = "leaky_bucket", period = "1s", threshold = 20, wait = "1s", scope = "process")]
fn patient(id: u8) -> Result<u8, Rejection> {
    Ok(id)
}

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn blocking() -> Option<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { Some(7) })
}

#[tokio::main(flavor = "current_thread")]
#[rate_limit(period = "1h", threshold = 1, scope = "process")]
async fn below_main() -> Option<u8> {
    tokio::task::yield_now().await;
    Some(7)
}

/// A function that blocks on a future is limited before it blocks.
#[test]
fn a_body_can_block_on_a_future() {
    assert_eq!([blocking(), blocking()], [Some(7), None]);
    assert_eq!([below_main(), below_main()], [Some(7), None]);
}

#[rate_limit(period = "1h", threshold = 1, scope = "process", permit = _permit)]
#[track_caller]
fn tracked() -> Result<u32, Rejection> {
    Ok(Location::caller().line())
}

#[test]
fn the_body_knows_the_caller() {
    assert_eq!(tracked(), Ok(line!()));
}

#[test]
fn calls_that_wait_block_their_thread() {
    let start = Instant::now();
    assert_eq!([1, 2, 3].map(patient), [1, 2, 3].map(Ok));
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test]
async fn functions_that_are_not_async_are_limited() {
    let run = async {
        let calls = [log_warning(1, "abc"), log_warning(1, ""), log_warning(2, "ab")];
        assert_eq!(calls.map(Result::unwrap), [3, 0, 2]);
        assert!(log_warning(1, "abc").is_err());

        let mut pool = Pool { name: "p".to_owned() };
        assert!(pool.take(3).is_none());
        assert_eq!(pool.take(2).map(|name| name.clone()).as_deref(), Some("px"));

        assert_eq!(format!("{:?}", hidden(true)), r#"Ok("early")"#);
        assert!(format!("{:?}", hidden(false)).starts_with("Err"));
        assert_eq!(several(1), 0);
        assert_eq!(several(1), concat!(module_path!(), "::several#2").len());
    };
    RateLimiter::embedded().scope(run).await;
}

/// Without a runtime, and without Redis for a limit of the process.
#[test]
fn a_limit_of_the_process_is_checked_without_a_runtime() {
    const HERE: Limit = Limit::fixed("here", 1, Duration::from_secs(3_600));
    let limiter = RateLimiter::builder().redis("redis://127.0.0.1:1").build().expect("a URL");
    let local = HERE.scope(Scope::Process).wait(Duration::from_millis(1));
    assert!(limiter.check_blocking(&local, "key", 1).is_ok());
    assert!(matches!(limiter.check_blocking(&local, "key", 1), Err(Rejection::Limited { .. })));
    assert!(matches!(
        limiter.check_blocking(&local, "key", 2),
        Err(Rejection::CostExceedsCapacity { .. })
    ));
    let rejection = limiter.check_blocking(&HERE.on_error(OnError::Deny), "key", 1);
    assert!(matches!(rejection, Err(Rejection::Unavailable { .. })), "{rejection:?}");
    assert!(limiter.check_blocking(&local.shadow(true), "key", 1).is_ok());
}
