//! The attribute does not change whether a future is `Send`.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use ratelimit_runtime::{Limit, RateLimiter, Rejection, key, rate_limit};
use support::limits::MINUTE;

fn assert_send<F: Future + Send>(future: F) -> F {
    future
}

fn rc_of(id: u64) -> Rc<String> {
    Rc::new(id.to_string())
}

async fn price() -> u64 {
    tokio::task::yield_now().await;
    1
}

/// The temporaries of these expressions are not `Send`.
#[rate_limit(period = "1h", threshold = 9, key = (rc_of(id).as_str(), rc_of(id)))]
async fn expression(id: u64) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    Ok(())
}

/// Neither are those of a format string, beside which the cost is awaited.
#[rate_limit(period = "1h", threshold = 9, key = "{user}:{tenant:?}", cost = price().await)]
async fn priced(user: u64, tenant: &str) -> Result<(), Rejection> {
    Ok(())
}

/// `Cell<_>` is `Send`, and `&Cell<_>` is not.
#[rate_limit(period = "1h", threshold = 9, key = cell.get())]
async fn hidden(cell: Cell<u64>) -> impl std::fmt::Debug {
    tokio::task::yield_now().await;
    cell.set(1);
    cell
}

#[rate_limit(period = "1h", threshold = 9, key = cell.get(), settle = |result| *result.as_ref().unwrap_or(&0))]
async fn settled(cell: Cell<u64>) -> Result<u64, Rejection> {
    tokio::task::yield_now().await;
    cell.set(cell.get() + 1);
    Ok(cell.get())
}

#[rate_limit(period = "1h", threshold = 9, on_limited = |_| drop(rc_of(0)))]
async fn with_on_limited() {
    tokio::task::yield_now().await;
}

#[rate_limit(period = "1h", threshold = 9, key = rc.as_str())]
async fn not_send(rc: Rc<String>) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(
    limit(period = "1h", threshold = 9),
    limit(period = "1d", threshold = price().await + 9, key = price().await),
    limit(period = "1m", threshold = 9, key = "{user:x}", cost = price().await),
    limit(period = "2m", threshold = 9, key = (user, "a"), cost = price().await + 1),
    key = "{user}:{name:?}", cost = price().await
)]
async fn several(user: u64, name: &str) -> Result<(), Rejection> {
    Ok(())
}

#[tokio::test]
async fn keeps_futures_send() {
    const LIMIT: Limit = Limit::fixed("by hand", 1, MINUTE);
    let limiter = RateLimiter::embedded();
    let run = async {
        assert_send(expression(1)).await.unwrap();
        assert_send(priced(1, "a")).await.unwrap();
        assert_send(hidden(Cell::new(0))).await;
        assert_eq!(assert_send(settled(Cell::new(1))).await, Ok(2));
        assert_send(with_on_limited()).await;
        assert_send(several(1, "a")).await.unwrap();
        not_send(rc_of(1)).await.unwrap();
        // A key in an argument, across an `await`.
        let (tenant, user) = (7, "ann");
        let reset = async { limiter.reset(&LIMIT, key!("{tenant}:{user}")).await };
        assert_eq!(assert_send(reset).await, Ok(false));
    };
    limiter.scope(run).await;
}
