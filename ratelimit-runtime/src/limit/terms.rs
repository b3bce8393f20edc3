//! The words of a limit.

use std::fmt;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// The exact log of the calls admitted in the last period.
    Sliding,
    /// A count that starts anew with each window.
    Fixed,
    /// Two counts and an estimate: the sliding window at the memory of a fixed one.
    SlidingCounter,
    /// Tokens that refill continuously, up to a burst.
    TokenBucket,
    /// Calls spaced evenly; a token bucket whose burst is 1 unless said otherwise.
    LeakyBucket,
}

impl Algorithm {
    /// The word for this algorithm in the attribute and in Redis keys.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sliding => "sliding",
            Self::Fixed => "fixed",
            Self::SlidingCounter => "sliding_counter",
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
        }
    }

    pub(crate) const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where the windows of an aligned [`Limit::fixed`](crate::Limit::fixed) begin: at calendar boundaries of one UTC offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Align {
    pub(crate) offset_minutes: i32,
}

impl Align {
    /// Windows begin at calendar boundaries of UTC.
    pub const UTC: Self = Self::offset_minutes(0);

    /// Windows begin at calendar boundaries of local time `minutes` ahead of UTC: `480` is `+08:00`.
    ///
    /// # Panics
    ///
    /// Outside −14:00 to +14:00, the range of offsets in use. In a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn offset_minutes(minutes: i32) -> Self {
        assert!(
            minutes >= -14 * 60 && minutes <= 14 * 60,
            "the offset of `align` must lie between -14:00 and +14:00"
        );
        Self { offset_minutes: minutes }
    }
}

/// Who counts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scope {
    /// All who use the same store.
    #[default]
    Global,
    /// This process by itself, whatever store is configured.
    Process,
}

/// What becomes of a call when Redis cannot decide: because it is away, too slow, or in error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// This process decides by the same limit, on counts of its own. A fleet of `n` processes may
    /// then admit up to `n` times the limit, unless each is told to keep to its share:
    /// [`Builder::instances`](crate::Builder::instances).
    #[default]
    Local,
    /// The call is admitted.
    Allow,
    /// The call is refused as [`Rejection::Unavailable`](crate::Rejection::Unavailable).
    Deny,
}
