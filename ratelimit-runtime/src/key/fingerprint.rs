//! Fingerprints of keys: a hash of 122 bits under a secret, for which it is proven how rarely two keys
//! meet.
//!
//! What is hashed is the text of a key, but that its values are not escaped. A byte of its structure is
//! marked instead, by a byte before it that is in no UTF-8; where a value has that one, it is doubled.
//!
//! A text of `n` bytes is cut into blocks of 16, the last one filled up with zeros. A block is three
//! numbers: its first 60 bits, the next 60, and the last 8, to which the last block adds 256 × `n`.
//! So two texts differ in a block, or in their last ones. With secret numbers `k`, `a`, `b`, `c` and
//! `s`, each random below the prime `p` = 2⁶¹ − 1, the hash of the blocks `(x, y, z)` is
//!
//! ```text
//! h = 0;  for each block: h = h·k + x·a + y·b + z·c;  h = h + s   (mod p)
//! ```
//!
//! The difference of the hashes of two different texts is a polynomial in the secrets, not zero, of a
//! degree of at most the number of blocks: it is zero for at most that many parts of p of all secrets
//! (Schwartz 1980, Zippel 1979). This is done twice, with secrets of their own, so that two texts of
//! up to 1,024 bytes meet with a probability below (65 ÷ 2⁶¹)², less than 2⁻¹⁰⁹. Who tries keys, and sees
//! whether they meet, learns nothing of the secrets before the first two do.
//!
//! This is many times faster than hashes that withstand those who see them. Nobody sees these.

use std::hash::{BuildHasher, RandomState};

/// A Mersenne prime: what is above its 61 bits is added to what is below.
const P: u64 = (1 << 61) - 1;

/// Stands before a byte of the structure.
const MARK: u8 = 0xFF;

/// The secret numbers of a store.
#[derive(Clone)]
pub(crate) struct Secret([Lane; 2]);

#[derive(Clone, Copy)]
struct Lane {
    block: u64,
    words: [u64; 3],
    sum: u64,
}

impl Secret {
    pub(crate) fn random() -> Self {
        let random = RandomState::new();
        let mut drawn = 0_u32;
        // SipHash under a random key, of numbers that differ.
        let mut number = || loop {
            drawn += 1;
            let number = random.hash_one(drawn) >> 3;
            if number < P {
                return number;
            }
        };
        let mut lane =
            || Lane { block: number(), words: [number(), number(), number()], sum: number() };
        Self([lane(), lane()])
    }

    pub(super) fn begin(&self) -> Text<'_> {
        Text { secret: self, hashes: [0; 2], whole: 0, block: 0, filled: 0 }
    }
}

/// A text on its way into a fingerprint.
pub(super) struct Text<'a> {
    secret: &'a Secret,
    hashes: [u64; 2],
    /// How many bytes they are of.
    whole: u64,
    /// The bytes after those, and how many they are.
    block: u128,
    filled: u32,
}

impl Text<'_> {
    /// Adds a value.
    #[inline(always)]
    pub(super) fn write(&mut self, value: &[u8]) {
        if value.len() <= 16 {
            let piece = piece(value);
            if !has_mark(piece) {
                return self.add(piece, value.len() as u32);
            }
        }
        self.write_any(value);
    }

    fn write_any(&mut self, value: &[u8]) {
        for bytes in value.chunks(16) {
            let piece = piece(bytes);
            if has_mark(piece) {
                for byte in bytes {
                    let (piece, len) =
                        if *byte == MARK { (0xFFFF, 2) } else { ((*byte).into(), 1) };
                    self.add(piece, len);
                }
            } else {
                self.add(piece, bytes.len() as u32);
            }
        }
    }

    /// Adds a byte of the structure.
    #[inline]
    pub(super) fn mark(&mut self, byte: u8) {
        self.add(u128::from(MARK) | u128::from(byte) << 8, 2);
    }

    /// Adds a [`piece`] of so many bytes.
    #[inline(always)]
    fn add(&mut self, piece: u128, len: u32) {
        if self.filled < 16 && self.filled + len <= 16 {
            self.block |= piece << (8 * self.filled);
            self.filled += len;
        } else if len > 0 {
            self.add_beyond(piece, len);
        }
    }

    /// Ends the block. One that is full is kept until there is more: it may be the last.
    fn add_beyond(&mut self, piece: u128, len: u32) {
        let free = 16 - self.filled;
        self.block |= piece.checked_shl(8 * self.filled).unwrap_or(0);
        self.hashes = self.with_block(0);
        self.whole += 16;
        self.block = piece >> (8 * free);
        self.filled = len - free;
    }

    /// The hashes of what came, with the block.
    #[inline(always)]
    fn with_block(&self, len: u64) -> [u64; 2] {
        let low = |bits: u128| bits as u64 & ((1 << 60) - 1);
        let last = (self.block >> 120) as u64 | len << 8;
        let words = [low(self.block), low(self.block >> 60), last];
        let hash = |hash: u64, lane: &Lane| {
            let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
            let products =
                words.iter().zip(lane.words).map(|(word, secret)| product(*word, secret));
            reduce(products.sum::<u128>() + product(hash, lane.block))
        };
        let [first, second] = &self.secret.0;
        [hash(self.hashes[0], first), hash(self.hashes[1], second)]
    }

    #[inline(always)]
    pub(super) fn finish(self) -> u128 {
        let [first, second] = self.with_block(self.whole + u64::from(self.filled));
        let [one, other] = &self.secret.0;
        let (high, low) = (below_p(first + one.sum), below_p(second + other.sum));
        // Like texts have hashes at like distances, which would stand in ranks in a table; but
        // for this, which can be undone, so that no two more of them meet.
        let square = u128::from(low) * u128::from(low ^ 0x9E37_79B9_7F4A_7C15);
        let spread = (square >> 64) as u64 ^ square as u64;
        u128::from(high << 3 ^ spread) << 64 | u128::from(low)
    }
}

/// The number of which these are the bytes, the first the lowest; at most 16.
#[inline(always)]
fn piece(bytes: &[u8]) -> u128 {
    // Two reads that overlap are faster than one of any length.
    let behind = |by: usize| 8 * (bytes.len() - by) as u32;
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk()) {
        let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
        u128::from(first) | u128::from(last) << behind(8)
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        u128::from(u64::from(first) | u64::from(last) << behind(4))
    } else {
        bytes.iter().rev().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

/// Whether one of the bytes is [`MARK`]: whether one is 0 in the complement.
#[inline(always)]
fn has_mark(piece: u128) -> bool {
    const LOWEST: u128 = u128::MAX / 255;
    (!piece).wrapping_sub(LOWEST) & piece & (LOWEST << 7) != 0
}

/// To the same number modulo p, of at most 62 bits.
#[inline(always)]
fn reduce(number: u128) -> u64 {
    fold((number as u64 & P) + fold((number >> 61) as u64))
}

#[inline(always)]
fn fold(number: u64) -> u64 {
    (number & P) + (number >> 61)
}

#[inline(always)]
fn below_p(number: u64) -> u64 {
    let number = fold(number);
    if number < P { number } else { number - P }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn fingerprint(secret: &Secret, pieces: &[&[u8]]) -> u128 {
        let mut text = secret.begin();
        for piece in pieces {
            text.write(piece);
        }
        text.finish()
    }

    /// The same, as it is defined.
    fn defined(secret: &Secret, value: &[u8]) -> u128 {
        let doubled = |byte: &u8| vec![*byte; if *byte == MARK { 2 } else { 1 }];
        let text: Vec<u8> = value.iter().flat_map(doubled).collect();
        let p = u128::from(P);
        let blocks: Vec<&[u8]> =
            if text.is_empty() { vec![&[]] } else { text.chunks(16).collect() };
        let [high, low] = [0, 1].map(|lane| {
            let Lane { block, words, sum } = secret.0[lane];
            let words = words.map(u128::from);
            let mut hash = 0;
            for (index, bytes) in blocks.iter().enumerate() {
                let mut number = [0; 16];
                number[..bytes.len()].copy_from_slice(bytes);
                let number = u128::from_le_bytes(number);
                let len = if index + 1 == blocks.len() { text.len() as u128 } else { 0 };
                let number =
                    [number % (1 << 60), (number >> 60) % (1 << 60), (number >> 120) + 256 * len];
                hash = hash * u128::from(block) % p;
                for (number, secret) in number.iter().zip(words) {
                    hash = (hash + number * secret) % p;
                }
            }
            (hash + u128::from(sum)) % p
        });
        let square = low * (low ^ 0x9E37_79B9_7F4A_7C15);
        let spread = (square >> 64) as u64 ^ square as u64;
        u128::from((high as u64) << 3 ^ spread) << 64 | low
    }

    proptest! {
        #[test]
        fn is_what_it_is_defined_to_be(
            text in prop::collection::vec(prop_oneof![Just(0), Just(255), any::<u8>()], 0..100),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        ) {
            let secret = Secret::random();
            let expected = defined(&secret, &text);
            prop_assert_eq!(fingerprint(&secret, &[&text]), expected);

            // However it is cut.
            cuts.sort_by_key(|cut| cut.index(text.len() + 1));
            let (mut pieces, mut from) = (Vec::new(), 0);
            for to in cuts.iter().map(|cut| cut.index(text.len() + 1)).chain([text.len()]) {
                pieces.push(&text[from..to]);
                from = to;
            }
            prop_assert_eq!(fingerprint(&secret, &pieces), expected);
        }
    }

    #[test]
    fn numbers_that_are_all_ones_do_not_overflow() {
        let lane = Lane { block: P - 1, words: [P - 1; 3], sum: P - 1 };
        let secret = Secret([lane; 2]);
        for len in [15, 16, 17, 31, 32, 33, 4096] {
            let text = vec![255; len];
            assert_eq!(fingerprint(&secret, &[&text]), defined(&secret, &text), "{len}");
        }
    }

    #[test]
    fn zeros_count() {
        let secret = Secret::random();
        let zeros = [0; 100];
        let all: HashSet<_> = (0..=100).map(|len| fingerprint(&secret, &[&zeros[..len]])).collect();
        assert_eq!(all.len(), 101);
    }

    /// Keys that differ little are spread like any others, in the highest bits and in those that follow.
    #[test]
    fn counted_keys_are_spread_evenly() {
        const BINS: usize = 64;
        const KEYS: usize = 64 * 1_000;
        for _ in 0..20 {
            let secret = Secret::random();
            let mut bins = [[0_u32; BINS]; 2];
            for index in 0..KEYS {
                let place = fingerprint(&secret, &[b"user:", index.to_string().as_bytes()]);
                bins[0][(place >> 122) as usize] += 1;
                bins[1][(place >> 64) as usize % BINS] += 1;
            }
            for bins in bins {
                // The mean is 1,000 and the standard deviation 31, if they are random.
                assert!(bins.iter().all(|count| (800..1_200).contains(count)), "{bins:?}");
            }
        }
    }
}
