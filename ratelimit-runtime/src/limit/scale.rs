//! How fine a sliding counter measures the overlap of its windows.

/// The unit of time in which the overlap is counted.
///
/// `grain` is one microsecond, or as many as keep `threshold × span` within 2⁵². A coarser grain weighs
/// the previous window by less than a grain too much, never too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowScale {
    pub(crate) grain: u64,
    /// The period in grains, rounded up.
    pub(crate) span: u64,
}

impl WindowScale {
    pub(super) const fn new(threshold: u32, period_us: u64) -> Self {
        let product = threshold as u128 * period_us as u128;
        // The span is rounded up by less than one, that is `threshold` of the product.
        let room = (1u128 << 52) - threshold as u128;
        let grain = product.div_ceil(room) as u64;
        Self { grain, span: period_us.div_ceil(grain) }
    }

    /// Returns how far into a window, capped at `period`, the weight of `count` falls to `room`.
    pub(crate) fn until(self, count: u32, room: u32, period: u64) -> u64 {
        let fits = u64::from(room) * self.span / u64::from(count);
        (self.grain * (self.span - fits.min(self.span))).min(period)
    }
}
