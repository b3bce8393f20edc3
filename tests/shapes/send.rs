//! The attribute does not change whether a future is `Send`.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use ratelimit_runtime::{Limit, RateLimiter, Rejection, key, rate_limit};

fn assert_send<F: Future + Send>(future: F) -> F {
    future
}

/// The temporaries of a format string are not `Send`.
#[rate_limit(period = "1h", threshold = 9, key = "{id:?}:{name}")]
async fn format(id: u64, name: &str) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    Ok(())
}

fn rc_of(id: u64) -> Rc<String> {
    Rc::new(id.to_string())
}

/// The temporaries of this expression are not `Send`.
#[rate_limit(period = "1h", threshold = 9, key = (rc_of(id).as_str(), rc_of(id)))]
async fn expression(id: u64) -> Result<(), Rejection> {
    tokio::task::yield_now().await;
    Ok(())
}

/// `Cell<_>` is `Send`, and `&Cell<_>` is not.
#[rate_limit(period = "1h", threshold = 9, key = cell.get())]
async fn cell(cell: Cell<u64>) -> impl std::fmt::Debug {
    tokio::task::yield_now().await;
    cell.set(1);
    cell
}

#[rate_limit(period = "1h", threshold = 9, on_limited = |_| drop(rc_of(0)))]
async fn with_on_limited() {
    tokio::task::yield_now().await;
}

#[rate_limit(period = "1h", threshold = 9, key = rc.as_str())]
async fn not_send(rc: Rc<String>) -> Result<(), Rejection> {
    Ok(())
}

async fn price() -> u64 {
    tokio::task::yield_now().await;
    1
}

/// The cost is awaited beside the temporaries of a format string.
#[rate_limit(period = "1h", threshold = 9, key = "{user}:{tenant:?}", cost = price().await)]
async fn priced(user: u64, tenant: &str) -> Result<(), Rejection> {
    Ok(())
}

async fn tenant_of(user: u64) -> String {
    tokio::task::yield_now().await;
    format!("tenant {user}")
}

#[rate_limit(
    limit(period = "1h", threshold = 9),
    limit(period = "1d", threshold = price().await + 9, key = tenant_of(user).await),
    limit(period = "1m", threshold = 9, key = "{user:x}", cost = price().await),
    limit(period = "2m", threshold = 9, key = (user, "a"), cost = price().await + 1),
    key = "{user}:{name:?}",
    cost = price().await
)]
async fn several(user: u64, name: &str) -> Result<(), Rejection> {
    Ok(())
}

async fn run() {
    assert_send(priced(1, "a")).await.unwrap();
    assert_send(several(1, "a")).await.unwrap();
    assert_send(format(1, "a")).await.unwrap();
    assert_send(expression(1)).await.unwrap();
    assert_send(cell(Cell::new(0))).await;
    assert_send(with_on_limited()).await;
    not_send(rc_of(1)).await.unwrap();
}

#[tokio::test]
async fn keeps_futures_send() {
    RateLimiter::embedded().scope(run()).await;
}

/// A key in an argument, across an `await`.
#[tokio::test]
async fn a_key_by_hand_is_send() {
    const LIMIT: Limit = Limit::fixed("by hand", 1, std::time::Duration::from_secs(60));
    let limiter = RateLimiter::embedded();
    let (tenant, user) = (7, "ann");
    let reset = async { limiter.reset(&LIMIT, key!("{tenant}:{user}")).await };
    assert_eq!(assert_send(reset).await, Ok(false));
}
