//! The algorithms by which a limit can count. ARCHITECTURE.md, "Adding an algorithm", lists the other parts of
//! an algorithm.

use std::fmt;

/// Defines the variants, the constants `RATES` and `ALL`, and the words of the algorithms from one list.
macro_rules! algorithms {
    (
        rates { $($(#[$doc:meta])* $algorithm:ident = $word:literal,)* }
        slots { $(#[$slots_doc:meta])* $slots:ident = $slots_word:literal, }
    ) => {
        /// The algorithm by which a limit counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Algorithm {
            $($(#[$doc])* $algorithm,)*
            $(#[$slots_doc])* $slots,
        }

        impl Algorithm {
            /// The algorithms that limit a rate.
            pub(crate) const RATES: [Self; [$(Self::$algorithm),*].len()] = [$(Self::$algorithm),*];

            /// All algorithms.
            #[cfg(feature = "redis")]
            pub(crate) const ALL: [Self; Self::RATES.len() + 1] = [$(Self::$algorithm,)* Self::$slots];

            /// Returns the word for this algorithm in the attribute and in Redis keys.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$algorithm => $word,)*
                    Self::$slots => $slots_word,
                }
            }
        }
    };
}

algorithms! {
    rates {
        /// A log of the calls that were admitted in the last period: exact.
        Sliding = "sliding",
        /// A count that starts at zero in each window.
        Fixed = "fixed",
        /// The counts of two windows, and an estimate from them: close to `Sliding`, with as little memory as
        /// `Fixed`.
        SlidingCounter = "sliding_counter",
        /// A bucket whose tokens refill continuously, up to its burst.
        TokenBucket = "token_bucket",
        /// A token bucket whose burst is 1 unless set: evenly spaced calls.
        LeakyBucket = "leaky_bucket",
    }
    slots {
        /// The units of the calls that run now: [`Limit::in_flight`](crate::Limit::in_flight).
        InFlight = "in_flight",
    }
}

impl Algorithm {
    /// Returns the capacity of a limit without a burst.
    pub(super) const fn default_capacity(self, threshold: u64) -> u64 {
        match self {
            Self::LeakyBucket => 1,
            Self::Sliding
            | Self::Fixed
            | Self::SlidingCounter
            | Self::TokenBucket
            | Self::InFlight => threshold,
        }
    }

    pub(super) const fn is_bucket(self) -> bool {
        match self {
            Self::TokenBucket | Self::LeakyBucket => true,
            Self::Sliding | Self::Fixed | Self::SlidingCounter | Self::InFlight => false,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
