//! Every kind of receiver, in the key, in a format string, and in the body.

use std::pin::Pin;
use std::sync::Arc;

use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

struct Tenant {
    name: String,
    calls: u64,
}

impl Tenant {
    fn new(name: &str) -> Self {
        Tenant { name: name.to_owned(), calls: 0 }
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name)]
    async fn by_reference(&self) -> Result<&str, Rejection> {
        Ok(&self.name)
    }

    #[rate_limit(period = "1h", threshold = 1, key = "{self.name}")]
    async fn by_mutable_reference(&mut self) -> Result<u64, Rejection> {
        self.calls += 1;
        Ok(self.calls)
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name)]
    async fn by_value(mut self) -> Result<String, Rejection> {
        self.name.push('!');
        Ok(self.name)
    }

    #[rate_limit(period = "1h", threshold = 1, key = self.name.as_str())]
    async fn by_arc(self: Arc<Self>) -> Result<Arc<Self>, Rejection> {
        Ok(self)
    }

    #[rate_limit(period = "1h", threshold = 1, key = "{self.name}")]
    async fn by_pin(self: Pin<&mut Self>) -> Result<u64, Rejection> {
        Ok(self.calls)
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn associated() -> Result<Self, Rejection> {
        Ok(Self::new("c"))
    }
}

async fn run() {
    let mut a = Tenant::new("a");
    assert_eq!(a.by_reference().await.unwrap(), "a");
    assert!(a.by_reference().await.is_err());
    assert!(Tenant::new("b").by_reference().await.is_ok());

    assert_eq!(a.by_mutable_reference().await.unwrap(), 1);
    assert!(a.by_mutable_reference().await.is_err());
    assert_eq!(a.calls, 1, "a rejected call does not run");

    assert_eq!(Tenant::new("a").by_value().await.unwrap(), "a!");
    assert!(Tenant::new("a").by_value().await.is_err());

    let shared = Arc::new(Tenant::new("a"));
    let shared = shared.by_arc().await.unwrap();
    assert!(shared.by_arc().await.is_err());

    assert!(Pin::new(&mut a).by_pin().await.is_ok());
    assert!(Pin::new(&mut a).by_pin().await.is_err());

    assert!(Tenant::associated().await.is_ok());
    assert!(Tenant::associated().await.is_err());
}

#[tokio::test]
async fn limits_methods_with_every_receiver() {
    RateLimiter::embedded().scope(run()).await;
}
