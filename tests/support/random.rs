//! Random choices: pseudorandom numbers of a seed, and traces of proptest.

use std::time::Duration;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

/// A pseudorandom generator (xorshift64), so that a seed names the same choices. The seed is not 0.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    pub fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Plays random traces.
pub fn play<S: Strategy>(cases: u32, traces: &S, play: impl Fn(S::Value) -> TestCaseResult) {
    let config =
        Config { cases, max_shrink_iters: 5_000, failure_persistence: None, ..Config::default() };
    if let Err(error) = TestRunner::new(config).run(traces, play) {
        panic!("{error}");
    }
}
