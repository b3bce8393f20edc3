//! Expressions as keys. The key is borrowed, so the body still owns the arguments.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

struct User {
    id: u64,
    tenant: String,
}

impl User {
    fn label(&self) -> String {
        format!("{}/{}", self.tenant, self.id)
    }
}

#[rate_limit(period = "1h", threshold = 1, key = (tenant, ip))]
async fn tuple(tenant: String, ip: String) -> Result<String, Rejection> {
    let (tenant, ip): (String, String) = (tenant, ip);
    Ok(tenant + &ip)
}

#[rate_limit(period = "1h", threshold = 1, key = ((user.tenant, (user.id, "x")), (method,)))]
async fn nested(user: User, method: &String) -> Result<User, Rejection> {
    let _ = method;
    Ok(user)
}

#[rate_limit(period = "1h", threshold = 1, key = user.label())]
async fn method(user: User) -> Result<String, Rejection> {
    Ok(user.tenant)
}

#[rate_limit(period = "1h", threshold = 1, key = &*user.tenant)]
async fn reference(user: &User) -> Result<(), Rejection> {
    let _ = user;
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = a + b)]
async fn operator(a: u64, b: u64) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = id as u8)]
async fn cast(id: u64) -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = if admin { "admin" } else { name.as_str() })]
async fn condition(admin: bool, name: String) -> Result<String, Rejection> {
    Ok(name)
}

#[rate_limit(period = "1h", threshold = 1, key = text.parse::<u64>()?)]
async fn fallible(text: &str) -> anyhow::Result<()> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, key = names.first().map_or("none", |name: &String| name))]
async fn with_comma(names: Vec<String>) -> Option<Vec<String>> {
    Some(names)
}

#[rate_limit(period = "1h", threshold = 1, key = user.label().await)]
async fn awaited(user: AsyncUser) -> Option<()> {
    Some(())
}

struct AsyncUser;

impl AsyncUser {
    async fn label(&self) -> String {
        "async".to_owned()
    }
}

async fn run() {
    let [a, b, ab] = ["a", "b", "ab"].map(str::to_owned);
    assert_eq!(tuple(a.clone(), b.clone()).await.unwrap(), "ab");
    assert!(tuple(a.clone(), b.clone()).await.is_err());
    assert!(tuple(ab, String::new()).await.is_ok());

    let user = || User { id: 1, tenant: "t".to_owned() };
    assert_eq!(nested(user(), &a).await.unwrap().tenant, "t");
    assert!(nested(user(), &a).await.is_err());
    assert!(nested(user(), &b).await.is_ok());

    assert!(method(user()).await.is_ok());
    assert!(method(user()).await.is_err());
    assert!(reference(&user()).await.is_ok());
    assert!(reference(&user()).await.is_err());

    assert!(operator(1, 2).await.is_ok());
    assert!(operator(2, 1).await.is_err());
    assert!(operator(2, 2).await.is_ok());

    assert!(cast(1).await.is_ok());
    assert!(cast(257).await.is_err());

    assert!(condition(true, a.clone()).await.is_ok());
    assert!(condition(true, b.clone()).await.is_err());
    assert!(condition(false, b).await.is_ok());

    assert!(fallible("x").await.unwrap_err().is::<std::num::ParseIntError>());
    assert!(fallible("1").await.is_ok());
    assert!(fallible("01").await.is_err());

    assert!(with_comma(vec![]).await.is_some());
    assert!(with_comma(vec![a]).await.is_some());
    assert!(with_comma(vec![]).await.is_none());

    assert!(awaited(AsyncUser).await.is_some());
    assert!(awaited(AsyncUser).await.is_none());
}

#[tokio::test]
async fn borrows_the_key() {
    RateLimiter::embedded().scope(run()).await;
}
