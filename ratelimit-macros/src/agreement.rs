//! The attribute checks literals, and the runtime checks constants: both accept the same limits.

use std::time::Duration;

use ratelimit_runtime::{Algorithm as RuntimeAlgorithm, Align, Limit as RuntimeLimit};

use crate::limit::Algorithm;
use crate::words::Word;

/// The values of a limit. Durations are in microseconds, offsets in minutes.
#[derive(Clone, Copy, Debug)]
struct Values {
    algorithm: Algorithm,
    threshold: u32,
    period_us: u64,
    burst: Option<u32>,
    offset: Option<i32>,
    lease: Option<Lease>,
}

#[derive(Clone, Copy, Debug)]
enum Lease {
    UpTo(u32),
    Auto,
}

impl Values {
    fn is_accepted_by_the_attribute(self) -> bool {
        let Self { algorithm, threshold, period_us, burst, offset, lease } = self;
        let mut arguments = vec![
            format!("period = \"{period_us}us\""),
            format!("threshold = {threshold}"),
            format!("algo = \"{}\"", algorithm.as_str()),
        ];
        arguments.extend(burst.map(|burst| format!("burst = {burst}")));
        arguments.extend(lease.map(|lease| match lease {
            Lease::UpTo(units) => format!("lease = {units}"),
            Lease::Auto => "lease = \"auto\"".to_owned(),
        }));
        arguments.extend(
            offset.map(|minutes| format!("align = \"+{:02}:{:02}\"", minutes / 60, minutes % 60)),
        );
        let arguments = arguments.join(", ").parse().expect("tokens");
        let item = "async fn call() -> Option<()> { None }".parse().expect("an item");
        let output = crate::rewrite::rewrite(&arguments, &item);
        !output.to_string().contains("compile_error")
    }

    fn is_accepted_by_the_runtime(self) -> bool {
        let Self { algorithm, threshold, period_us, burst, offset, lease } = self;
        let period = Duration::from_micros(period_us);
        let limit = RuntimeLimit::new("name", counterpart(algorithm), threshold, period);
        let limit = limit.and_then(|limit| match burst {
            Some(burst) => limit.try_burst(burst),
            None => Ok(limit),
        });
        let limit = limit.and_then(|limit| match offset {
            Some(minutes) => limit.try_align(Align::offset_minutes(minutes)),
            None => Ok(limit),
        });
        let limit = limit.and_then(|limit| match lease {
            Some(Lease::UpTo(units)) => limit.try_lease(units),
            Some(Lease::Auto) => limit.try_auto_lease(),
            None => Ok(limit),
        });
        limit.is_ok()
    }
}

fn counterpart(algorithm: Algorithm) -> RuntimeAlgorithm {
    match algorithm {
        Algorithm::Sliding => RuntimeAlgorithm::Sliding,
        Algorithm::Fixed => RuntimeAlgorithm::Fixed,
        Algorithm::SlidingCounter => RuntimeAlgorithm::SlidingCounter,
        Algorithm::TokenBucket => RuntimeAlgorithm::TokenBucket,
        Algorithm::LeakyBucket => RuntimeAlgorithm::LeakyBucket,
    }
}

#[test]
fn algorithms_have_the_same_words() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.as_str(), counterpart(*algorithm).as_str());
    }
}

#[test]
fn the_attribute_knows_every_algorithm_of_the_runtime() {
    for runtime in ratelimit_runtime::__private::ALGORITHMS {
        let is_known = Algorithm::ALL.iter().any(|known| known.as_str() == runtime.as_str());
        assert!(
            is_known,
            "the attribute does not know `{runtime}`: add it to `Algorithm` in limit.rs"
        );
    }
}

#[test]
fn both_accept_the_same_limits() {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;
    const PERIODS: [u64; 9] =
        [0, 1, 99_999, 100_000, SECOND, 7 * 3_600 * SECOND, DAY, 36_525 * DAY, 36_525 * DAY + 1];

    let units = [0, 1, 10, 11].map(|units| Some(Lease::UpTo(units)));
    let leases: Vec<_> = units.into_iter().chain([None, Some(Lease::Auto)]).collect();
    let (mut compared, mut accepted) = (0, 0);
    for &algorithm in Algorithm::ALL {
        for threshold in [0, 1, 99, 100, 1_000, u32::MAX] {
            for period_us in PERIODS {
                for burst in [None, Some(0), Some(1), Some(20), Some(u32::MAX)] {
                    for &lease in &leases {
                        for offset in [None, Some(480)] {
                            let values =
                                Values { algorithm, threshold, period_us, burst, offset, lease };
                            let is_accepted = values.is_accepted_by_the_runtime();
                            assert_eq!(
                                values.is_accepted_by_the_attribute(),
                                is_accepted,
                                "{values:?}"
                            );
                            compared += 1;
                            accepted += usize::from(is_accepted);
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 100 && accepted < compared, "{accepted} of {compared}");
}
