//! Async functions in traits: implementations and default bodies.

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

trait Mailer {
    const DAILY: u64;

    fn domain(&self) -> &str;

    async fn send(&self, to: &str) -> Result<String, Rejection>;

    #[rate_limit(period = "1d", threshold = Self::DAILY, key = self.domain())]
    async fn ping(&self) -> Result<(), Rejection> {
        Ok(())
    }
}

struct Smtp(String);

impl Mailer for Smtp {
    const DAILY: u64 = 2;

    fn domain(&self) -> &str {
        &self.0
    }

    #[rate_limit(period = "1d", threshold = 1, key = (self.domain(), to))]
    async fn send(&self, to: &str) -> Result<String, Rejection> {
        Ok(format!("{to}@{}", self.domain()))
    }
}

async fn run() {
    let smtp = Smtp("example.org".to_owned());
    assert_eq!(smtp.send("ann").await.unwrap(), "ann@example.org");
    assert!(smtp.send("ann").await.is_err());
    assert!(smtp.send("bob").await.is_ok());

    assert!(smtp.ping().await.is_ok());
    assert!(smtp.ping().await.is_ok());
    assert!(smtp.ping().await.is_err());
}

#[tokio::test]
async fn limits_trait_methods() {
    RateLimiter::embedded().scope(run()).await;
}
