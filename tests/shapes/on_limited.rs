//! `on_limited` as a path and as a closure.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

mod replies {
    use ratelimit_runtime::Rejection;

    pub(crate) fn busy(rejection: Rejection) -> u16 {
        rejection.retry_after().map_or(503, |_| 429)
    }
}

#[rate_limit(period = "1h", threshold = 1, on_limited = replies::busy)]
async fn by_path() -> u16 {
    200
}

#[rate_limit(
    period = "1h",
    threshold = 1,
    key = name,
    on_limited = |rejection| format!("{name}: {}", rejection.name().ends_with("by_closure"))
)]
async fn by_closure(name: String) -> String {
    name
}

#[rate_limit(period = "1h", threshold = 1, on_limited = move |_: Rejection| -> () { *hits += 1 })]
async fn of_unit(hits: &mut u64) {}

struct Page(&'static str);

impl Page {
    fn sorry(_: Rejection) -> Self {
        Page("sorry")
    }

    #[rate_limit(period = "1h", threshold = 1, on_limited = Self::sorry)]
    async fn show() -> Self {
        Page("hello")
    }
}

async fn run() {
    assert_eq!(by_path().await, 200);
    assert_eq!(by_path().await, 429);

    assert_eq!(by_closure("n".to_owned()).await, "n");
    assert_eq!(by_closure("n".to_owned()).await, "n: true");

    let mut hits = 0;
    of_unit(&mut hits).await;
    of_unit(&mut hits).await;
    of_unit(&mut hits).await;
    assert_eq!(hits, 2);

    assert_eq!(Page::show().await.0, "hello");
    assert_eq!(Page::show().await.0, "sorry");
}

#[tokio::test]
async fn returns_the_value_of_on_limited() {
    RateLimiter::embedded().scope(run()).await;
}
