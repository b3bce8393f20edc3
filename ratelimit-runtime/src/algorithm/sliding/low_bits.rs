//! The lowest bits of a time: an entry of a [ring](super::ring).

/// The lowest bits of a time.
pub(crate) trait LowBits: Copy + Default + PartialEq {
    /// All of the bits.
    const MASK: u64;

    fn of(time: u64) -> Self;

    fn bits(self) -> u64;
}

/// The bits count 71 minutes: an hour, and the time by which a lease makes it longer.
impl LowBits for u32 {
    const MASK: u64 = (1 << 32) - 1;

    #[inline(always)]
    fn of(time: u64) -> Self {
        time as u32
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        self.into()
    }
}

/// The bits count 12 days.
impl LowBits for [u8; 5] {
    const MASK: u64 = (1 << 40) - 1;

    #[inline(always)]
    fn of(time: u64) -> Self {
        let mut low = [0; 5];
        low.copy_from_slice(&time.to_le_bytes()[..5]);
        low
    }

    #[inline(always)]
    fn bits(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..5].copy_from_slice(&self);
        u64::from_le_bytes(bytes)
    }
}
