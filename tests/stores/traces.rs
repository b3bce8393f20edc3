//! Plays random traces of each algorithm.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::strategy::Strategy;
use proptest::test_runner::TestCaseError;
use ratelimit_runtime::Algorithm;
use support::random;
use support::server::Server;

/// The decisions that are compared for each algorithm, at least: over 100,000 in all.
const DECISIONS: u64 = 25_000;

/// Plays random traces until [`DECISIONS`] were compared. `play` returns the number of decisions that it has compared.
pub(crate) fn play_traces<T: Debug>(
    algorithm: Algorithm,
    trace: &impl Strategy<Value = T>,
    play: &impl AsyncFn(&Server, &T) -> Result<u64, TestCaseError>,
) {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let decisions = AtomicU64::new(0);
    let mut compared = 0;
    while compared < DECISIONS {
        random::play(50, trace, |trace| {
            decisions.fetch_add(runtime.block_on(play(&server, &trace))?, Ordering::Relaxed);
            Ok(())
        });
        let before = std::mem::replace(&mut compared, decisions.load(Ordering::Relaxed));
        assert!(compared > before, "the traces compare no decisions");
    }
    println!("{algorithm}: {compared} decisions were compared");
    server.assert_all_keys_expire();
}

/// Declares a test for each algorithm, which calls a function with it.
macro_rules! test_each_algorithm {
    ($function:ident) => {
        $crate::traces::test_each_algorithm! {
            $function: sliding Sliding, fixed Fixed, sliding_counter SlidingCounter, token_bucket TokenBucket,
            leaky_bucket LeakyBucket,
        }
    };
    ($function:ident: $($name:ident $algorithm:ident,)*) => {
        mod each_algorithm {
            use ratelimit_runtime::Algorithm;

            use super::$function;

            $(#[test]
            fn $name() {
                $function(Algorithm::$algorithm);
            })*
        }
    };
}

pub(crate) use test_each_algorithm;

#[test]
fn every_algorithm_has_a_test() {
    for algorithm in support::ALGORITHMS {
        let test = format!(" {algorithm} {algorithm:?},");
        assert!(include_str!("traces.rs").contains(&test), "traces.rs lacks `{test}`");
    }
}
