//! Format strings as keys: text, escapes, fields and formats. Different values are different keys.

use ratelimit_runtime::{RateLimiter, rate_limit};

#[derive(Clone)]
struct User {
    id: u64,
    tenant: (String, u8),
}

#[rate_limit(period = "1h", threshold = 1, key = "user:{user.id}@{user.tenant.0}.{user.tenant.1}")]
async fn fields(user: User) -> Option<User> {
    Some(user)
}

#[rate_limit(period = "1h", threshold = 1, key = "{a}:{b}")]
async fn joined(a: &str, b: String) -> Option<String> {
    Some(a.to_owned() + &b)
}

#[rate_limit(period = "1h", threshold = 1, key = r"{{a\}}{a:#04x}{a:?}")]
async fn specified(a: u8) -> Option<()> {
    Some(())
}

#[rate_limit(period = "1h", threshold = 1, key = "{float:.1}")]
async fn rounded(float: f64) -> Option<()> {
    Some(())
}

async fn run() {
    let user = User { id: 1, tenant: ("t".to_owned(), 2) };
    assert!(fields(user.clone()).await.is_some());
    assert!(fields(user.clone()).await.is_none());
    assert!(fields(User { id: 2, ..user }).await.is_some());

    assert!(joined("a:b", "c".to_owned()).await.is_some());
    assert!(joined("a", "b:c".to_owned()).await.is_some());
    assert!(joined("a", "b:c".to_owned()).await.is_none());

    assert!(specified(1).await.is_some());
    assert!(specified(1).await.is_none());
    assert!(specified(2).await.is_some());

    assert!(rounded(1.01).await.is_some());
    assert!(rounded(1.02).await.is_none());
    assert!(rounded(1.12).await.is_some());
}

#[tokio::test]
async fn counts_each_formatted_key_separately() {
    RateLimiter::embedded().scope(run()).await;
}
