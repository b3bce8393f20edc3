//! Searches of the reference [`model`](crate::model): waits and remaining units follow from its rule alone.

/// No wait is longer: 2^52 microseconds are more than 140 years.
const LIMIT: u64 = 1 << 52;

/// Returns the first number for which `holds`, given that it holds for all greater numbers.
pub(crate) fn first(holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, LIMIT);
    while low < high {
        let middle = low.midpoint(high);
        (low, high) = if holds(middle) { (low, middle) } else { (middle + 1, high) };
    }
    low
}

/// Returns the last number up to `most` for which `holds`, given that it holds for all smaller numbers.
pub(crate) fn last(most: u64, holds: impl Fn(u64) -> bool) -> u64 {
    first(|number| number >= most || !holds(number + 1))
}
