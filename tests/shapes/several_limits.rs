//! Several `limit(…)`: all admit the call, or none is charged.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Clock, RateLimiter, Rejection, VirtualClock, rate_limit};

#[rate_limit(
    limit(period = "1s", threshold = 3, algo = "token_bucket"),
    limit(period = "1h", threshold = 5, algo = "fixed"),
    key = user
)]
async fn one_key(user: &str) -> Result<String, Rejection> {
    Ok(user.to_owned())
}

#[rate_limit(
    limit(period = "1m", threshold = 2, key = "{user}", name = "login.user"),
    limit(period = "1m", threshold = 3, key = address, name = "login.address"),
    on_limited = |rejection| Err(rejection.name().to_owned()),
)]
async fn login(user: String, address: [u8; 4]) -> Result<(String, [u8; 4]), String> {
    Ok((user, address))
}

#[rate_limit(
    name = "upload",
    key = (tenant.as_str(), "{tenant}".len()),
    cost = { EVALUATIONS.fetch_add(1, Ordering::Relaxed); size },
    limit(period = "1s", threshold = 100, algo = "leaky_bucket", burst = 50),
    limit(period = "1d", threshold = 120, algo = "sliding_counter"),
    limit(period = "1d", threshold = 4, cost = 1),
)]
async fn upload(tenant: String, size: u64) -> Result<String, Rejection> {
    Ok(tenant)
}

/// How often the shared cost was evaluated.
static EVALUATIONS: AtomicU32 = AtomicU32::new(0);

struct Service<const N: u64>;

impl<const N: u64> Service<N> {
    #[rate_limit(limit(period = "1h", threshold = N), limit(period = "1d", threshold = 9))]
    async fn call(&self) -> Option<()> {
        Some(())
    }
}

#[rate_limit(limit(period = "1h", threshold = 1))]
async fn only_one() -> impl std::fmt::Debug {
    'x'
}

async fn run(clock: &VirtualClock) {
    for _ in 0..3 {
        assert!(one_key("ann").await.is_ok());
    }
    let rejection = one_key("ann").await.unwrap_err();
    assert!(rejection.name().ends_with("one_key#1"), "{}", rejection.name());
    clock.advance(Duration::from_secs(1));
    assert!(one_key("ann").await.is_ok());
    assert!(one_key("ann").await.is_ok());
    let rejection = one_key("ann").await.unwrap_err();
    assert!(rejection.name().ends_with("one_key#2"), "{}", rejection.name());
    assert!(one_key("bob").await.is_ok());

    let login = async |user: &str| login(user.to_owned(), [127, 0, 0, 1]).await;
    assert!(login("ann").await.is_ok());
    assert!(login("ann").await.is_ok());
    assert_eq!(login("ann").await, Err("login.user".to_owned()));
    assert_eq!(login("bob").await.unwrap(), ("bob".to_owned(), [127, 0, 0, 1]));
    assert_eq!(login("bob").await, Err("login.address".to_owned()));

    let upload = async |size| upload("shop".to_owned(), size).await;
    assert_eq!(upload(50).await.unwrap(), "shop");
    assert_eq!(EVALUATIONS.load(Ordering::Relaxed), 1);
    assert_eq!(upload(50).await.unwrap_err().name(), "upload#1");
    clock.advance(Duration::from_secs(1));
    assert!(upload(50).await.is_ok());
    clock.advance(Duration::from_secs(1));
    assert_eq!(upload(50).await.unwrap_err().name(), "upload#2");
    assert!(upload(10).await.is_ok());
    assert!(upload(10).await.is_ok());
    assert_eq!(upload(0).await.unwrap_err().name(), "upload#3");
    assert!(matches!(upload(51).await.unwrap_err(), Rejection::CostExceedsCapacity { .. }));

    assert!(Service::<2>.call().await.is_some());
    assert!(Service::<2>.call().await.is_some());
    assert!(Service::<2>.call().await.is_none());

    assert_eq!(format!("{:?}", only_one().await), "Ok('x')");
    assert!(format!("{:?}", only_one().await).starts_with("Err(the limit `"));
}

#[tokio::test]
async fn decides_several_limits_together() {
    fn send<T: Send>(future: T) -> T {
        future
    }
    // Noon, so that no window of the sliding counter ends during the test.
    let clock = VirtualClock::at(Duration::from_secs(86_400 * 20_000 + 43_200));
    let limiter = RateLimiter::builder().clock(Clock::Virtual(clock.clone())).build().unwrap();
    limiter.scope(run(&clock)).await;
    drop(send(upload("Send".to_owned(), 1)));
    drop(send(login("Send".to_owned(), [0; 4])));
}
