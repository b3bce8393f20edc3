//! The error of an invalid limit.

use std::fmt;

/// The error of a [`Limit`](crate::Limit) with a wrong value. Its text says what is wrong, and what to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LimitError(pub(crate) &'static str);

impl LimitError {
    pub(super) const SLOW_FILL: Self = Self(
        "this bucket takes more than 100 years to fill: lower `burst` or `period`, or raise `threshold`",
    );

    pub(crate) const TOO_LARGE: Self =
        Self("an amount is at most 999,999,999,999,999: count in a larger unit, such as thousands");

    pub(super) const IMPRECISE: Self = Self(
        "amounts of this size would be rounded by more than 0.1 %: count in a larger unit, such as thousands, or use \
         sliding or fixed",
    );

    /// The largest amount: what a header field can show (RFC 9651, section 3.3.1).
    pub(crate) const MAX_AMOUNT: u64 = 999_999_999_999_999;

    pub(super) const NO_NAME: Self =
        Self("the name of a limit must not be empty: write a name such as `login`");

    pub(super) const NO_THRESHOLD: Self =
        Self("`threshold` must be at least 1: 0 would reject every call");

    /// The longest period and the longest time a bucket may take to fill: 100 years.
    ///
    /// Lua computes times in `f64`, which is exact for integers below 2⁵³. With this bound, a time plus two
    /// periods stays below 2⁵³ microseconds.
    pub(crate) const MAX_US: u64 = 36_525 * 86_400_000_000;
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for LimitError {}

/// Implements `Debug` of errors by their text, because a `main` that returns an error prints its `Debug`.
macro_rules! debug_as_text {
    ($($error:ty),+ $(,)?) => {
        $(impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        })+
    };
}

pub(crate) use debug_as_text;

debug_as_text!(LimitError);
