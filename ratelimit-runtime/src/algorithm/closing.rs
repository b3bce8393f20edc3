//! Changes of the time at which a key opens.

use std::time::Duration;

/// The longest time for which a key is closed, in microseconds: 100 years, as the longest period.
const LONGEST_CLOSING: u64 = 36_525 * 86_400_000_000;

/// A change of the time at which a key opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpeningChange {
    #[default]
    None,
    /// Closes the key for this many microseconds. A later opening stays.
    CloseFor(u64),
    Open,
    /// Opens the key, and removes its count.
    Reset,
}

impl OpeningChange {
    /// Closes a key for at most [`LONGEST_CLOSING`].
    pub(crate) fn close_for(duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::CloseFor(micros.min(LONGEST_CLOSING))
    }

    /// Returns this change for a store that learns of it `delay` microseconds later: the opening does not move.
    pub(crate) fn after(self, delay: u64) -> Self {
        match self {
            Self::CloseFor(time) if time <= delay => Self::None,
            Self::CloseFor(time) => Self::CloseFor(time - delay),
            Self::None | Self::Open | Self::Reset => self,
        }
    }
}
