//! Arguments and locals are dropped in the same order as without the attribute.

use std::cell::RefCell;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

thread_local! {
    static DROPPED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

struct DropRecorder(&'static str);

impl DropRecorder {
    fn touch(&self) -> usize {
        self.0.len()
    }
}

impl Drop for DropRecorder {
    fn drop(&mut self) {
        DROPPED.with_borrow_mut(|dropped| dropped.push(self.0));
    }
}

macro_rules! functions {
    ($($name:ident $(#[$attribute:meta])?;)*) => {$(
        $(#[$attribute])?
        async fn $name(first: DropRecorder, _: DropRecorder, _third: DropRecorder) -> Result<usize, Rejection> {
            let _local = DropRecorder("local");
            tokio::task::yield_now().await;
            Ok(first.touch() + DropRecorder("temporary").touch())
        }
    )*};
}

functions! {
    plain;
    limited #[rate_limit(period = "1h", threshold = 1, key = DropRecorder("key").touch())];
    settled #[rate_limit(period = "1h", threshold = 1, key = DropRecorder("key").touch(), count_if = Result::is_ok)];
    by_hand #[rate_limit(period = "1h", threshold = 1, key = DropRecorder("key").touch(), permit = _permit)];
}

fn dropped() -> Vec<&'static str> {
    DROPPED.take()
}

async fn run() {
    let arguments = || (DropRecorder("first"), DropRecorder("second"), DropRecorder("third"));
    let (a, b, c) = arguments();
    plain(a, b, c).await.unwrap();
    let expected = dropped();
    assert_eq!(expected.len(), 5);

    macro_rules! compare {
        ($($function:ident)*) => {$(
            let (a, b, c) = arguments();
            $function(a, b, c).await.unwrap();
            let mut actual = dropped();
            assert_eq!(actual.remove(0), "key");
            assert_eq!(actual, expected, stringify!($function));

            let (a, b, c) = arguments();
            assert!($function(a, b, c).await.is_err());
            assert_eq!(dropped(), ["key", "third", "second", "first"]);
        )*};
    }
    compare!(limited settled by_hand);
}

#[tokio::test]
async fn keeps_the_drop_order() {
    RateLimiter::embedded().scope(run()).await;
}
