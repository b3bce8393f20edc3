//! How a limit counts.

use crate::argument::ArgumentName;
use crate::words::word_enum;

word_enum! {
    /// How a limit counts. The word is also the name of the constructor in the runtime.
    Algorithm {
        Sliding = "sliding" | "sliding_window" | "sliding_log" | "rolling" | "rolling_window",
        Fixed = "fixed" | "fixed_window" | "window",
        SlidingCounter = "sliding_counter" | "sliding_window_counter",
        TokenBucket = "token_bucket" | "gcra" | "bucket" | "token",
        LeakyBucket = "leaky_bucket" | "leaky" | "pacing",
    }
}

impl Algorithm {
    pub(crate) fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }

    pub(crate) fn argument_of_capacity(self) -> ArgumentName {
        if self.is_bucket() { ArgumentName::Burst } else { ArgumentName::Threshold }
    }
}
