//! Arguments and locals are dropped in the order they would be without the attribute.

use std::cell::RefCell;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

thread_local! {
    static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

struct Noisy(&'static str);

impl Noisy {
    fn touch(&self) -> usize {
        self.0.len()
    }
}

impl Drop for Noisy {
    fn drop(&mut self) {
        DROPPED.with_borrow_mut(|dropped| dropped.push(self.0));
    }
}

macro_rules! twins {
    ($($name:ident $(#[$attribute:meta])?;)*) => {$(
        $(#[$attribute])?
        async fn $name(first: Noisy, _: Noisy, _third: Noisy) -> Result<usize, Rejection> {
            let _local = Noisy("local");
            tokio::task::yield_now().await;
            Ok(first.touch() + Noisy("temporary").touch())
        }
    )*};
}

twins! {
    plain;
    limited #[rate_limit(period = "1h", threshold = 1, key = Noisy("key").touch())];
}

fn dropped() -> Vec<&'static str> {
    DROPPED.take()
}

async fn run() {
    let arguments = || (Noisy("first"), Noisy("second"), Noisy("third"));
    let (a, b, c) = arguments();
    plain(a, b, c).await.unwrap();
    let expected = dropped();
    assert_eq!(expected.len(), 5);

    let (a, b, c) = arguments();
    limited(a, b, c).await.unwrap();
    let mut seen = dropped();
    assert_eq!(seen.remove(0), "key");
    assert_eq!(seen, expected);

    let (a, b, c) = arguments();
    assert!(limited(a, b, c).await.is_err());
    assert_eq!(dropped(), ["key", "third", "second", "first"]);
}

#[tokio::test]
async fn runs() {
    RateLimiter::embedded().scope(run()).await;
}
