//! What a count belongs to beside its key, as a number: algorithm, period and name.

use super::Algorithm;

/// FNV-1a of 128 bits, of values that no stranger chooses; but one bit, so that no place is the one of
/// the embedded store that is free.
pub(super) const fn identity(algorithm: Algorithm, period_us: u64, name: &str) -> u128 {
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013B;
    let (mut hash, name) = (0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, name.as_bytes());
    let head = (period_us as u128) << 8 | algorithm as u128;
    let (mut byte, mut index) = (0, 0);
    while byte < 16 {
        hash = (hash ^ (head >> (8 * byte) & 0xff)).wrapping_mul(PRIME);
        byte += 1;
    }
    while index < name.len() {
        hash = (hash ^ name[index] as u128).wrapping_mul(PRIME);
        index += 1;
    }
    hash & !(1 << 63)
}
