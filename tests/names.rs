//! Warnings about two functions that have the same name, so that they share a count by mistake.

use std::fmt;

use ratelimit_runtime::{RateLimiter, rate_limit};
use support::log::Log;

struct Cat;
struct Dog;

macro_rules! limited {
    ($($name:ident($($argument:tt)*);)*) => {$(
        #[rate_limit($($argument)*)]
        async fn $name(&self) -> Option<()> {
            Some(())
        }
    )*};
}

/// Of the two calls, another period is another count. So is another align, which the author of a shared name does not
/// expect.
macro_rules! pet {
    ($pet:ident, $period:literal, $second_period:literal, $align:literal) => {
        impl $pet {
            limited! {
                feed(period = 1, threshold = 10);
                pet(period = 1, threshold = 10, name = "pet");
                call(period = $period, threshold = 10);
                groom(period = "1d", threshold = 10, algo = "fixed", align = $align);
                wash(period = "1d", threshold = 10, algo = "fixed", align = $align, name = "wash");
                walk(limit(period = 1, threshold = 10), limit(period = $second_period, threshold = 9));
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
            limited! {
                play(period = 1, threshold = 10);
                brush(period = "1d", threshold = 10, algo = "fixed", align = $align, name = "brush");
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
    let shared = ["names::feed", "names::walk#1", "names::play"];
    assert_warned("two functions share the counts", shared);
    assert_warned("count separately", ["names::groom", "wash", "brush"]);
}
