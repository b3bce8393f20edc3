//! The resolution at which a sliding counter measures the overlap of its windows.

/// The unit of time in which the overlap is counted.
///
/// `grain` is the smallest number of microseconds that keeps `threshold × span` within 2⁵². The rounding to grains
/// never shortens the overlap, and lengthens it by less than a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowScale {
    pub(crate) grain: u64,
    /// The period in grains, rounded up.
    pub(crate) span: u64,
}

impl WindowScale {
    pub(super) const fn new(threshold: u64, period_us: u64) -> Self {
        let product = threshold as u128 * period_us as u128;
        // Rounding up the span adds less than `threshold` to the product.
        let room = (1u128 << 52) - threshold as u128;
        let grain = product.div_ceil(room) as u64;
        Self { grain, span: period_us.div_ceil(grain) }
    }

    /// Returns whether a grain is at most a thousandth of the period.
    pub(super) const fn is_precise(self) -> bool {
        self.grain == 1 || self.span >= 1_000
    }

    /// Returns the time from the start of a window until `count`, the count of the window before it, weighs at
    /// most `room`; at most `period`.
    pub(crate) fn until(self, count: u64, room: u64, period: u64) -> u64 {
        let fits = room * self.span / count;
        (self.grain * (self.span - fits.min(self.span))).min(period)
    }
}
