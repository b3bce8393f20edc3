//! Warnings about two functions that have the same name, so that they share a count by mistake.

use std::fmt;

use ratelimit_runtime::{RateLimiter, rate_limit};
use support::log::Log;

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

    /// Another period is another count.
    #[rate_limit(period = 2, threshold = 10)]
    async fn call(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = "+08:00")]
    async fn groom(&self) -> Option<()> {
        Some(())
    }

    /// The author expects a shared count, but another align is another count.
    #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = "+08:00", name = "wash")]
    async fn wash(&self) -> Option<()> {
        Some(())
    }

    #[rate_limit(limit(period = 1, threshold = 10), limit(period = 30, threshold = 100))]
    async fn walk(&self) -> Option<()> {
        Some(())
    }
}

/// One call makes the functions of both, so they have one place.
macro_rules! pets {
    ($($pet:ident $align:literal)*) => {$(
        impl $pet {
            #[rate_limit(period = 1, threshold = 10)]
            async fn play(&self) -> Option<()> {
                Some(())
            }

            #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = $align, name = "brush")]
            async fn brush(&self) -> Option<()> {
                Some(())
            }
        }
    )*};
}

pets! { Cat "utc" Dog "+08:00" }

/// All instances of a generic function are the same function.
#[rate_limit(period = 1, threshold = 10)]
async fn greet<T: fmt::Debug>(_: T) -> Option<()> {
    Some(())
}

#[tokio::test]
async fn each_accidentally_shared_name_causes_one_warning() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false).finish();
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
                Cat.play().await,
                Dog.play().await,
                Cat.brush().await,
                Dog.brush().await,
                greet(1).await,
                greet("one").await,
            ] {
                assert!(admitted.is_some());
            }
        }
    };
    RateLimiter::embedded().scope(calls).await;
    let log = log.text();
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains("two functions share the counts")).collect();
    assert_eq!(warnings.len(), 3, "{log}");
    assert!(warnings[0].contains("name=\"names::feed\""), "{log}");
    assert!(warnings[0].contains("tests/names.rs:"), "{log}");
    assert!(warnings[1].contains("name=\"names::walk#1\""), "{log}");
    assert!(warnings[2].contains("name=\"names::play\""), "{log}");
    let separate: Vec<_> = log.lines().filter(|line| line.contains("count separately")).collect();
    assert_eq!(separate.len(), 3, "{log}");
    assert!(separate[0].contains("name=\"names::groom\""), "{log}");
    assert!(separate[1].contains("name=\"wash\""), "{log}");
    assert!(separate[2].contains("name=\"brush\""), "{log}");
}
