//! Functions that are not async. With `scope = "process"`, their calls are decided at once, unless they wait.

use std::panic::Location;
use std::time::{Duration, Instant};

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

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

#[tokio::test]
async fn functions_that_are_not_async_are_limited() {
    let run = async {
        let mut pool = Pool { name: "p".to_owned() };
        assert!(pool.take(3).is_none());
        assert_eq!(pool.take(2).map(|name| name.clone()).as_deref(), Some("px"));
        assert_eq!(format!("{:?}", hidden(true)), r#"Ok("early")"#);
        assert!(format!("{:?}", hidden(false)).starts_with("Err"));
        assert_eq!((several(1), several(2)), (0, 0));
        assert_eq!(several(1), concat!(module_path!(), "::several#2").len());
    };
    RateLimiter::embedded().scope(run).await;
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

#[rate_limit(period = "1h", threshold = 1, scope = "process", permit = _permit)]
#[track_caller]
fn tracked() -> Result<u32, Rejection> {
    Ok(Location::caller().line())
}

#[rate_limit(algo = "leaky_bucket", period = "1s", threshold = 20, wait = "1s", scope = "process")]
fn patient(id: u8) -> Result<u8, Rejection> {
    Ok(id)
}

/// A body that blocks on a future, or asks for its caller, and calls that wait.
#[test]
fn functions_are_limited_without_a_runtime() {
    assert_eq!([blocking(), blocking()], [Some(7), None]);
    assert_eq!([below_main(), below_main()], [Some(7), None]);
    assert_eq!(tracked(), Ok(line!()));
    let start = Instant::now();
    assert_eq!([1, 2, 3].map(patient), [1, 2, 3].map(Ok));
    assert!(start.elapsed() >= Duration::from_millis(100), "{:?}", start.elapsed());
}
