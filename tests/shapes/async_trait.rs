//! Methods of an `#[async_trait]`, which expands first: the check goes into its boxed block.

use async_trait::async_trait;
use ratelimit_runtime::{RateLimiter, Rejection, rate_limit};

struct Tag {
    name: String,
    weight: u64,
}

#[async_trait]
trait Repository: Sync {
    async fn load(&self, id: u64) -> Result<String, Rejection>;

    async fn store(&mut self, id: u64, mut text: String) -> Result<usize, Rejection>;

    #[rate_limit(period = "1h", threshold = 1, key = "{id}")]
    async fn exists(&self, id: u64) -> Option<bool> {
        Some(self.load(id).await.is_ok())
    }

    async fn count() -> Option<u64>
    where
        Self: Sized;

    async fn find(&self, Tag { name, .. }: Tag, (id, _): (u64, u64)) -> Option<String>;
}

struct Memory {
    name: String,
    texts: Vec<String>,
}

#[async_trait]
impl Repository for Memory {
    #[rate_limit(period = "1h", threshold = 2, key = (self.name, id))]
    async fn load(&self, id: u64) -> Result<String, Rejection> {
        if id > 100 {
            return Ok("none".to_owned());
        }
        tokio::task::yield_now().await;
        Ok(format!("{} {id}", self.name))
    }

    #[rate_limit(period = "1h", threshold = 1, key = "{self.name}:{id}:{text}")]
    async fn store(&mut self, id: u64, mut text: String) -> Result<usize, Rejection> {
        text.push_str(&id.to_string());
        self.texts.push(text);
        Ok(self.texts.len())
    }

    #[rate_limit(period = "1h", threshold = 1)]
    async fn count() -> Option<u64> {
        Some(1)
    }

    #[rate_limit(period = "1h", threshold = 3, key = "{self.name}:{name}:{id}", cost = weight)]
    async fn find(&self, Tag { name, weight }: Tag, (id, _): (u64, u64)) -> Option<String> {
        Some(format!("{name} {id} {weight}"))
    }
}

fn assert_send<T: Send>(value: T) -> T {
    value
}

#[tokio::test]
async fn limits_async_trait_methods() {
    let run = async {
        let mut memory = Memory { name: "m".to_owned(), texts: Vec::new() };
        let find = async |name: &str, weight, id| {
            assert_send(memory.find(Tag { name: name.to_owned(), weight }, (id, 0))).await
        };
        assert_eq!(find("a", 3, 1).await.as_deref(), Some("a 1 3"));
        assert_eq!((find("a", 1, 1).await, find("a", 4, 2).await), (None, None));
        assert_eq!(find("a", 3, 2).await.as_deref(), Some("a 2 3"));
        assert_eq!(assert_send(memory.load(1)).await.unwrap(), "m 1");
        assert_eq!(memory.load(101).await.unwrap(), "none");
        assert_eq!((memory.exists(1).await, memory.exists(1).await), (Some(true), None));
        assert!(memory.load(1).await.is_err());
        assert_eq!(memory.store(1, "a".to_owned()).await, Ok(1));
        assert!(memory.store(1, "a".to_owned()).await.is_err());
        assert_eq!(memory.store(1, "b".to_owned()).await, Ok(2));
        assert_eq!(memory.texts, ["a1", "b1"]);
        assert_eq!((Memory::count().await, Memory::count().await), (Some(1), None));
    };
    RateLimiter::embedded().scope(run).await;
}
