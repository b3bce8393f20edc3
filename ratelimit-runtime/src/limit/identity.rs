//! The identity of a limit as a number: limits with one identity share their counts.

use super::{Algorithm, Align};

/// Hashes algorithm, period, align and name by 128-bit FNV-1a; no client chooses these values. One bit
/// stays 0, so that no fingerprint in the embedded store equals the mark of a free slot.
pub(super) const fn identity(
    algorithm: Algorithm,
    period_us: u64,
    align: Option<Align>,
    name: &str,
) -> u128 {
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013B;
    let (mut hash, name) = (0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, name.as_bytes());
    let align = match align {
        None => 0,
        // Offsets are at least -14:00.
        Some(Align { offset_minutes }) => (offset_minutes + 14 * 60 + 1) as u128,
    };
    let head = align << 72 | (period_us as u128) << 8 | algorithm as u128;
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
