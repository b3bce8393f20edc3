//! Lints that the user forbids: the expansion neither allows nor causes any of them.

use std::time::Duration;

use self::functions::{Service, blocked, hidden, never};

mod functions {
    #![forbid(unused, unreachable_code, clippy::all, clippy::pedantic)]

    use std::time::Duration;

    use ratelimit_runtime::{Limit, Rejection, rate_limit};

    const CALLS: Limit = Limit::sliding("forbidden.calls", 100, Duration::from_secs(3600));
    const SLOTS: Limit = Limit::in_flight("forbidden.slots", 5).hold(Duration::from_secs(30));

    type Text = Box<dyn AsRef<str> + Send>;

    pub(super) struct Service {
        pub(super) calls: u64,
    }

    impl Service {
        #[rate_limit(limit = CALLS, count_if = Result::is_err)]
        pub(super) async fn counted(&mut self, more: u64) -> Result<Text, Rejection> {
            self.calls += more;
            tokio::task::yield_now().await;
            if more == 0 {
                return Ok(Box::new("text".to_owned()));
            }
            Ok(Box::new(String::new()))
        }

        #[rate_limit(limit = CALLS, scope = "process", settle = |result| result.as_ref().map_or(0, |it| **it))]
        pub(super) fn settled(&mut self) -> Result<&mut u64, Rejection> {
            Ok(&mut self.calls)
        }
    }

    #[rate_limit(
        limit(limit = CALLS, key = "{user}", block = |()| None, block_at_most = "5m"),
        limit(limit = SLOTS, key = user, permit = _slot),
        limit(period = "1s", threshold = limit, cost = 2),
        key = (user, "x"), on_limited = drop
    )]
    pub(super) async fn blocked(user: u64, limit: u64) {
        tokio::task::yield_now().await;
    }

    #[rate_limit(limit = CALLS, cost = 2, count_if = |_| true, on_limited = |rejection| panic!("{rejection}"))]
    pub(super) async fn never() -> std::convert::Infallible {
        std::future::pending().await
    }

    #[rate_limit(limit = CALLS)]
    pub(super) async fn hidden() -> impl std::fmt::Debug {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn compiles_under_forbidden_lints() {
    let mut service = Service { calls: 1 };
    assert_eq!((*service.counted(0).await.unwrap()).as_ref(), "text");
    assert_eq!(service.settled(), Ok(&mut 1));
    blocked(1, 5).await;
    assert_eq!(format!("{:?}", hidden().await), "Ok(())");
    let end = Duration::from_millis(1);
    assert!(tokio::time::timeout(end, never()).await.is_err());
}
