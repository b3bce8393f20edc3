//! Blocking and unblocking a key.

use std::time::Duration;

/// The longest time for which a key is blocked, in microseconds: 100 years, as the longest period.
const LONGEST_BLOCK: u64 = 36_525 * 86_400_000_000;

/// A change of the block of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BlockChange {
    #[default]
    None,
    /// Blocks the key for this many microseconds. A later end stays.
    BlockFor(u64),
    Unblock,
    /// Unblocks the key, and removes its count.
    Reset,
}

impl BlockChange {
    /// Blocks a key for at most [`LONGEST_BLOCK`].
    pub(crate) fn block_for(duration: Duration) -> Self {
        let micros = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        Self::BlockFor(micros.min(LONGEST_BLOCK))
    }

    /// Returns this change for a store that learns of it `delay` microseconds later: its end does not move.
    pub(crate) fn after(self, delay: u64) -> Self {
        match self {
            Self::BlockFor(time) if time <= delay => Self::None,
            Self::BlockFor(time) => Self::BlockFor(time - delay),
            Self::None | Self::Unblock | Self::Reset => self,
        }
    }
}
