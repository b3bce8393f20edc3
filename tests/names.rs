//! Two functions that count under one name by mistake are found.

use std::fmt;
use std::sync::{Arc, Mutex};

use ratelimit_runtime::{RateLimiter, rate_limit};
use tracing_subscriber::fmt::MakeWriter;

struct Cat;
struct Dog;

impl Cat {
    #[rate_limit(period = 1, threshold = 10)]
    async fn feed(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = 1, threshold = 10, name = "pet")]
    async fn pet(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = 1, threshold = 10)]
    async fn call(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = "utc")]
    async fn groom(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = "utc", name = "wash")]
    async fn wash(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(limit(period = 1, threshold = 10), limit(period = 60, threshold = 100))]
    async fn walk(&self) -> Option<()> {
        Some(())
    }
}

impl Dog {
    #[rate_limit(period = 1, threshold = 10)]
    async fn feed(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = 1, threshold = 10, name = "pet")]
    async fn pet(&self) -> Option<()> {
        Some(())
    }

    /// Of another period, and so another count.
    #[rate_limit(period = 2, threshold = 10)]
    async fn call(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = "+08:00")]
    async fn groom(&self) -> Option<()> {
        Some(())
    }

    /// Meant to share the count, and does not.
    #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = "+08:00", name = "wash")]
    async fn wash(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(limit(period = 1, threshold = 10), limit(period = 30, threshold = 100))]
    async fn walk(&self) -> Option<()> {
        Some(())
    }
}

/// All instances of a generic function are one function.
#[rate_limit(period = 1, threshold = 10)]
async fn greet<T: fmt::Debug>(_: T) -> Option<()> {
    Some(())
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn shared_by_mistake_is_said_once() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let calls = async {
        for _ in 0..3 {
            for admitted in [
                Cat.feed().await,
                Dog.feed().await,
                Cat.pet().await,
                Dog.pet().await,
                Cat.call().await,
                Dog.call().await,
                Cat.groom().await,
                Dog.groom().await,
                Cat.wash().await,
                Dog.wash().await,
                Cat.walk().await,
                Dog.walk().await,
                greet(1).await,
                greet("one").await,
            ] {
                assert!(admitted.is_some());
            }
        }
    };
    RateLimiter::embedded().scope(calls).await;
    let log = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("UTF-8");
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains("two functions share the counts")).collect();
    assert_eq!(warnings.len(), 2, "{log}");
    assert!(warnings[0].contains("name=\"names::feed\""), "{log}");
    assert!(warnings[0].contains("tests/names.rs:"), "{log}");
    assert!(warnings[1].contains("name=\"names::walk#1\""), "{log}");
    let apart: Vec<_> =
        log.lines().filter(|line| line.contains("so they count separately")).collect();
    assert_eq!(apart.len(), 2, "{log}");
    assert!(apart[0].contains("name=\"names::groom\""), "{log}");
    assert!(apart[1].contains("name=\"wash\""), "{log}");
}
