//! Warnings about two functions that have the same name, so that they share a count by mistake.

use std::fmt;

use ratelimit_runtime::{RateLimiter, rate_limit};
use support::log::Log;

struct Cat;
struct Dog;

/// Of the two calls, another period is another count. So is another align, which the author of a shared name does not
/// expect.
macro_rules! pet {
    ($pet:ident, $period:literal, $second_period:literal, $align:literal) => {
        impl $pet {
            #[rate_limit(period = 1, threshold = 10)]
            async fn feed(&self) -> Option<()> {
                Some(())
            }

            #[rate_limit(period = 1, threshold = 10, name = "pet")]
            async fn pet(&self) -> Option<()> {
                Some(())
            }

            #[rate_limit(period = $period, threshold = 10)]
            async fn call(&self) -> Option<()> {
                Some(())
            }

            #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = $align)]
            async fn groom(&self) -> Option<()> {
                Some(())
            }

            #[rate_limit(period = "1d", threshold = 10, algo = "fixed", align = $align, name = "wash")]
            async fn wash(&self) -> Option<()> {
                Some(())
            }

            #[rate_limit(limit(period = 1, threshold = 10), limit(period = $second_period, threshold = 9))]
            async fn walk(&self) -> Option<()> {
                Some(())
            }
        }
    };
}

pet!(Cat, 1, 60, "utc");
pet!(Dog, 2, 30, "+08:00");

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
            let calls = [
                [Cat.feed().await, Dog.feed().await],
                [Cat.pet().await, Dog.pet().await],
                [Cat.call().await, Dog.call().await],
                [Cat.groom().await, Dog.groom().await],
                [Cat.wash().await, Dog.wash().await],
                [Cat.walk().await, Dog.walk().await],
                [Cat.play().await, Dog.play().await],
                [Cat.brush().await, Dog.brush().await],
                [greet(1).await, greet("one").await],
            ];
            assert!(calls.as_flattened().iter().all(Option::is_some));
        }
    };
    RateLimiter::embedded().scope(calls).await;
    let log = log.text();
    let assert_warned = |words: &str, expected: [&str; 3]| {
        let warnings: Vec<_> = log.lines().filter(|line| line.contains(words)).collect();
        assert_eq!(warnings.len(), expected.len(), "{log}");
        for (warning, name) in warnings.iter().zip(expected) {
            assert!(warning.contains(&format!("name=\"{name}\"")), "{log}");
            assert!(warning.contains("tests/names.rs:"), "{log}");
        }
    };
    assert_warned(
        "two functions share the counts",
        ["names::feed", "names::walk#1", "names::play"],
    );
    assert_warned("count separately", ["names::groom", "wash", "brush"]);
}
