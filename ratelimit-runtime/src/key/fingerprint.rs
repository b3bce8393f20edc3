//! Fingerprints of keys: a hash of 122 bits under a secret, with a proven bound on the probability of a
//! collision.
//!
//! The hash is over the text of a key, except that the values are not escaped. Instead, the byte [`MARK`]
//! precedes each byte of the structure. `MARK` never occurs in UTF-8; if a value contains it, it is doubled.
//!
//! The text is split into blocks of 14 bytes. The last block may have fewer bytes, and the empty text is one
//! block of 0 bytes. A block is two numbers: its first 7 bytes and its other 7 bytes. In the last block, the
//! second number also has the term 2⁵⁶ × (1 + `m`), where `m` is the number of bytes in the block. So two
//! different texts differ in the number of blocks, or in at least one block. With secret numbers `k`, `a` and
//! `b`, each random below the prime `p` = 2⁶¹ − 1, the hash of the blocks `(x, y)` is
//!
//! ```text
//! h = 0;  for each block: h = h·k + (x + a)·(y + b)   (mod p)
//! ```
//!
//! Proof of the bound: the difference between the hashes of two different texts is a polynomial in `k`, `a`
//! and `b` that is not zero. The block with `i` blocks after it has the terms kⁱ·x·b and kⁱ·y·a, which no
//! other block has. If both texts have the same number of blocks, these terms do not cancel out for a block
//! in which the texts differ, because `x` and `y` are below 2⁶⁰. Otherwise, the first block of the longer
//! text has a term kⁱ·a·b, and the other text has no term with an `i` as large. The degree of the polynomial is
//! at most the number of blocks plus 1, so the polynomial is zero for at most a fraction of (blocks + 1) ÷ p of
//! all secrets (Schwartz 1980, Zippel 1979).
//!
//! A fingerprint has two such hashes with independent secrets. So two texts of up to 512 bytes, which are
//! 37 blocks, collide with a probability of at most (38 ÷ p)², less than 2⁻¹¹¹. An attacker who sends keys
//! and observes whether they collide learns nothing about the secrets until the first collision.
//!
//! This hash is many times faster than a hash that stays secure when an attacker sees its values.
//! Fingerprints are secret: events contain only a hash of them under another secret (`report/trace.rs`).

use std::hash::{BuildHasher, RandomState};

/// A Mersenne prime: to reduce a number, the bits above the lowest 61 are added to the lowest 61.
const P: u64 = (1 << 61) - 1;

/// Precedes each byte of the structure.
const MARK: u8 = 0xFF;

/// The number of bytes in a block.
const BLOCK: usize = 14;

/// The lowest and the highest bit of each byte. The highest bit is 0 in ASCII.
const LOWEST: u128 = u128::MAX / 255;
const HIGHEST: u128 = LOWEST << 7;

/// The secret numbers of a store, for the two hashes of a fingerprint.
#[derive(Clone)]
pub(crate) struct Secret([HashSecret; 2]);

#[derive(Clone, Copy)]
struct HashSecret {
    k: u64,
    a: u64,
    b: u64,
}

impl Secret {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        let mut counter = 0_u32;
        // Hashes a counter by SipHash under a random key.
        let mut number = || loop {
            counter += 1;
            let number = random.hash_one(counter) >> 3;
            if number < P {
                return number;
            }
        };
        let mut secret = || HashSecret { k: number(), a: number(), b: number() };
        Self([secret(), secret()])
    }

    #[inline(always)]
    pub(super) fn begin(&self) -> TextHasher<'_> {
        TextHasher { secret: self, hashes: None, blocks: 0, block: 0, filled: 0 }
    }
}

/// Computes the fingerprint of a text. The rare cases are out of line, and take and return the hasher by value.
/// So in all other cases the hasher stays in registers (`benches/all -- embedded`).
#[derive(Clone, Copy)]
pub(super) struct TextHasher<'a> {
    secret: &'a Secret,
    /// The hashes of the complete blocks; `None` before the first one.
    hashes: Option<[u64; 2]>,
    /// The number of complete blocks; if that is very high, a lower one.
    blocks: u32,
    /// The bytes after the complete blocks, and their number.
    block: u128,
    filled: u32,
}

impl TextHasher<'_> {
    /// Appends a value.
    #[inline(always)]
    pub(super) fn write(&mut self, value: &[u8]) {
        if value.len() <= BLOCK {
            let number = number(value);
            if number & HIGHEST == 0 {
                return self.append(number, value.len() as u32);
            }
        }
        *self = self.with_value(value);
    }

    /// Appends a value that can be longer than a block, and can contain [`MARK`].
    #[inline(never)]
    fn with_value(mut self, value: &[u8]) -> Self {
        for bytes in value.chunks(BLOCK) {
            let number = number(bytes);
            if has_mark(number) {
                for byte in bytes {
                    let (number, len) =
                        if *byte == MARK { (0xFFFF, 2) } else { ((*byte).into(), 1) };
                    self.append(number, len);
                }
            } else {
                self.append(number, bytes.len() as u32);
            }
        }
        self
    }

    /// Appends a byte of the structure.
    #[inline(always)]
    pub(super) fn write_structure(&mut self, byte: u8) {
        self.append(u128::from(MARK) | u128::from(byte) << 8, 2);
    }

    /// Appends the bytes of a [`number`].
    #[inline(always)]
    fn append(&mut self, number: u128, len: u32) {
        if self.filled + len <= BLOCK as u32 {
            self.block |= number << (8 * self.filled);
            self.filled += len;
        } else {
            *self = self.with_overflow(number, len);
        }
    }

    /// Completes the block and starts the next one. A full block is completed only when more bytes follow,
    /// because it may be the last.
    #[inline(never)]
    fn with_overflow(mut self, number: u128, len: u32) -> Self {
        let free = BLOCK as u32 - self.filled;
        self.block |= number << (8 * self.filled);
        let hashes = self.hashes_with_block(0);
        Self {
            hashes: Some(hashes),
            blocks: self.blocks.saturating_add(1),
            block: number >> (8 * free),
            filled: len - free,
            ..self
        }
    }

    /// Returns the hashes including the block. `end` is 1 plus the number of bytes in the last block, and 0
    /// for all other blocks.
    #[inline(always)]
    fn hashes_with_block(&self, end: u64) -> [u64; 2] {
        let half = |bits: u128| bits as u64 & ((1 << 56) - 1);
        let (x, y) = (half(self.block), half(self.block >> 56) | end << 56);
        // Each product is below 2¹²³: a hash is at most p + 4, `x + a` is below 2⁶¹ + 2⁵⁶, `y + b` is below
        // 2⁶¹ + 2⁶⁰.
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        let [one, other] = &self.secret.0;
        let now = |secret: &HashSecret| product(x + secret.a, y + secret.b);
        match self.hashes {
            None => [reduce(now(one)), reduce(now(other))],
            Some([first, second]) => [
                reduce(product(first, one.k) + now(one)),
                reduce(product(second, other.k) + now(other)),
            ],
        }
    }

    /// Returns whether the text of the key, in which values are escaped, may be above 256 bytes.
    #[inline(always)]
    pub(super) fn may_be_long(&self) -> bool {
        // An escape has three bytes.
        self.blocks >= 256 / (3 * BLOCK as u32)
    }

    #[inline(always)]
    pub(super) fn finish(self) -> u128 {
        let [high, low] = self.hashes_with_block(1 + u64::from(self.filled)).map(below_p);
        // Similar texts have hashes at regular distances, which would fill a table unevenly. This step
        // spreads them. It is invertible, so it causes no collisions.
        let square = u128::from(low) * u128::from(low ^ 0x9E37_79B9_7F4A_7C15);
        let spread = (square >> 64) as u64 ^ square as u64;
        u128::from(high << 3 ^ spread) << 64 | u128::from(low << 1)
    }
}

/// Returns the number with these bytes in little-endian order; at most [`BLOCK`] bytes.
#[inline(always)]
fn number(bytes: &[u8]) -> u128 {
    // Two overlapping reads of a fixed length save a copy of a variable length (`benches/all -- instructions`).
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        let last = (last >> 8) >> (8 * (15 - bytes.len()));
        u128::from(first) | u128::from(last) << 64
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        u128::from(u64::from(first) | u64::from(last) << (8 * (bytes.len() - 4)))
    } else {
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

/// Returns whether one of the bytes is [`MARK`]: whether a byte of the complement is 0.
#[inline(always)]
fn has_mark(number: u128) -> bool {
    (!number).wrapping_sub(LOWEST) & number & HIGHEST != 0
}

/// Reduces a number below 2¹²⁴ modulo p, to at most p + 4.
#[inline(always)]
fn reduce(number: u128) -> u64 {
    let number = (number as u64 & P) + (number >> 61) as u64;
    (number & P) + (number >> 61)
}

/// Reduces a number below 2p modulo p, to below p.
#[inline(always)]
fn below_p(number: u64) -> u64 {
    number.min(number.wrapping_sub(P))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn fingerprint(secret: &Secret, values: &[&[u8]]) -> u128 {
        let mut hasher = secret.begin();
        for value in values {
            hasher.write(value);
        }
        hasher.finish()
    }

    /// Computes a fingerprint by the definition above, one byte at a time.
    fn by_definition(secret: &Secret, value: &[u8]) -> u128 {
        let doubled = |byte: &u8| vec![*byte; if *byte == MARK { 2 } else { 1 }];
        let text: Vec<u8> = value.iter().flat_map(doubled).collect();
        let p = u128::from(P);
        let mut blocks: Vec<&[u8]> = text.chunks(14).collect();
        if blocks.is_empty() {
            blocks.push(&[]);
        }
        let [high, low] = [0, 1].map(|index| {
            let HashSecret { k, a, b } = secret.0[index];
            let [k, a, b] = [k, a, b].map(u128::from);
            let mut hash = 0;
            for (index, bytes) in blocks.iter().enumerate() {
                let mut number = [0; 16];
                number[..bytes.len()].copy_from_slice(bytes);
                let number = u128::from_le_bytes(number);
                let end = if index + 1 == blocks.len() { 1 + bytes.len() as u128 } else { 0 };
                let (first, second) = (number % (1 << 56), (number >> 56) + (end << 56));
                hash = (hash * k % p + (first + a) * (second + b)) % p;
            }
            hash
        });
        let square = low * (low ^ 0x9E37_79B9_7F4A_7C15);
        let spread = (square >> 64) as u64 ^ square as u64;
        u128::from((high as u64) << 3 ^ spread) << 64 | low << 1
    }

    proptest! {
        #[test]
        fn a_fingerprint_agrees_with_its_definition(
            text in prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..100),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let secret = Secret::random();
            let expected = by_definition(&secret, &text);
            prop_assert_eq!(fingerprint(&secret, &[&text]), expected);

            // The text can be written in any parts.
            cuts.sort_by_key(|cut| cut.index(text.len() + 1));
            let (mut parts, mut from) = (Vec::new(), 0);
            for to in cuts.iter().map(|cut| cut.index(text.len() + 1)).chain([text.len()]) {
                parts.push(&text[from..to]);
                from = to;
            }
            prop_assert_eq!(fingerprint(&secret, &parts), expected);
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let secret = HashSecret { k: P - 1, a: P - 1, b: P - 1 };
        let secret = Secret([secret; 2]);
        for len in [6, 7, 8, 13, 14, 15, 4096] {
            let text = vec![255; len];
            assert_eq!(fingerprint(&secret, &[&text]), by_definition(&secret, &text), "{len}");
        }
    }

    #[test]
    fn zero_bytes_change_the_fingerprint() {
        let secret = Secret::random();
        let zeros = [0; 100];
        let all: HashSet<_> = (0..=100).map(|len| fingerprint(&secret, &[&zeros[..len]])).collect();
        assert_eq!(all.len(), 101);
    }

    /// Similar keys are spread evenly, by the highest bits and by bits 64 to 69.
    #[test]
    fn similar_keys_are_spread_evenly() {
        const BINS: usize = 64;
        const KEYS: usize = 64 * 1_000;
        for _ in 0..20 {
            let secret = Secret::random();
            let mut bins = [[0_u32; BINS]; 2];
            for index in 0..KEYS {
                let fingerprint = fingerprint(&secret, &[b"user:", index.to_string().as_bytes()]);
                bins[0][(fingerprint >> 122) as usize] += 1;
                bins[1][(fingerprint >> 64) as usize % BINS] += 1;
            }
            for bins in bins {
                // For random numbers, the mean is 1,000 and the standard deviation is 31.
                assert!(bins.iter().all(|count| (800..1_200).contains(count)), "{bins:?}");
            }
        }
    }
}
