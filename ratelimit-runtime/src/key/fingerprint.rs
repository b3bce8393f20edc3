//! Fingerprints of keys: a hash of 122 bits under a secret, for which it is proven how rarely two keys
//! meet.
//!
//! What is hashed is the text of a key, but that its values are not escaped. A byte of its structure is
//! marked instead, by a byte before it that is in no UTF-8; where a value has that one, it is doubled.
//!
//! A text is cut into blocks of 14 bytes, of which the last may have fewer, and none in the text of no
//! bytes. A block is two numbers: its first 7 bytes, and the other 7. To the second one the last block
//! adds 2⁵⁶ × (1 + `m`), where `m` is how many bytes it has. So two texts differ in the number of their
//! blocks, or in a block. With secret numbers `k`, `a` and `b`, each random below the prime
//! `p` = 2⁶¹ − 1, the hash of the blocks `(x, y)` is
//!
//! ```text
//! h = 0;  for each block: h = h·k + (x + a)·(y + b)   (mod p)
//! ```
//!
//! The difference of the hashes of two different texts is a polynomial in the secrets that is not zero.
//! For the block that has `i` others behind it has the terms kⁱ·x·b and kⁱ·y·a, which no other block
//! has: where both texts have as many blocks, those of a block in which they differ do not cancel out,
//! as `x` and `y` are below 2⁶⁰. Else the first block of the longer text has a term kⁱ·a·b with a
//! greater `i` than any of the other text. The degree of the polynomial is at most the number of
//! blocks and one: it is zero for at most that many parts of p of all secrets (Schwartz 1980, Zippel
//! 1979). This is done twice, with secrets of their own, so that two texts of up to 1,024 bytes, which are
//! 74 blocks, meet with a probability of at most (75 ÷ p)², less than 2⁻¹⁰⁹. Who tries keys, and sees
//! whether they meet, learns nothing of the secrets before the first two do.
//!
//! This is many times faster than hashes that withstand those who see them. Nobody sees these.

use std::hash::{BuildHasher, RandomState};

/// A Mersenne prime: what is above its 61 bits is added to what is below.
const P: u64 = (1 << 61) - 1;

/// Stands before a byte of the structure.
const MARK: u8 = 0xFF;

/// How many bytes a block has.
const BLOCK: usize = 14;

/// The lowest bit of each byte, and the highest one, which is 0 in those of ASCII.
const LOWEST: u128 = u128::MAX / 255;
const HIGHEST: u128 = LOWEST << 7;

/// The secret numbers of a store.
#[derive(Clone)]
pub(crate) struct Secret([Lane; 2]);

#[derive(Clone, Copy)]
struct Lane {
    k: u64,
    a: u64,
    b: u64,
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
        let mut lane = || Lane { k: number(), a: number(), b: number() };
        Self([lane(), lane()])
    }

    #[inline(always)]
    pub(super) fn begin(&self) -> Text<'_> {
        Text { secret: self, hashes: None, block: 0, filled: 0 }
    }
}

/// A text on its way into a fingerprint. What is rare takes it and gives it back, so that it otherwise
/// stays in registers.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    secret: &'a Secret,
    /// Those of the blocks before, if there are any.
    hashes: Option<[u64; 2]>,
    /// The bytes after those, and how many they are.
    block: u128,
    filled: u32,
}

impl Text<'_> {
    /// Adds a value.
    #[inline(always)]
    pub(super) fn write(&mut self, value: &[u8]) {
        if value.len() <= BLOCK {
            let piece = piece(value);
            if piece & HIGHEST == 0 {
                return self.add(piece, value.len() as u32);
            }
        }
        *self = self.with_any(value);
    }

    #[inline(never)]
    fn with_any(mut self, value: &[u8]) -> Self {
        for bytes in value.chunks(BLOCK) {
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
        self
    }

    /// Adds a byte of the structure.
    #[inline(always)]
    pub(super) fn mark(&mut self, byte: u8) {
        self.add(u128::from(MARK) | u128::from(byte) << 8, 2);
    }

    /// Adds a [`piece`] of so many bytes.
    #[inline(always)]
    fn add(&mut self, piece: u128, len: u32) {
        if self.filled + len <= BLOCK as u32 {
            self.block |= piece << (8 * self.filled);
            self.filled += len;
        } else {
            *self = self.with_beyond(piece, len);
        }
    }

    /// Ends the block. One that is full is kept until there is more: it may be the last.
    #[inline(never)]
    fn with_beyond(mut self, piece: u128, len: u32) -> Self {
        let free = BLOCK as u32 - self.filled;
        self.block |= piece << (8 * self.filled);
        let hashes = self.with_block(0);
        Self { hashes: Some(hashes), block: piece >> (8 * free), filled: len - free, ..self }
    }

    /// The hashes of what came, with the block.
    #[inline(always)]
    fn with_block(&self, end: u64) -> [u64; 2] {
        let half = |bits: u128| bits as u64 & ((1 << 56) - 1);
        let (x, y) = (half(self.block), half(self.block >> 56) | end << 56);
        // Below 2¹²³ each: `hash` is at most p + 4, `x + a` below 2⁶¹ + 2⁵⁶, `y + b` below 2⁶¹ + 2⁶⁰.
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        let [one, other] = &self.secret.0;
        let now = |lane: &Lane| product(x + lane.a, y + lane.b);
        match self.hashes {
            None => [reduce(now(one)), reduce(now(other))],
            Some([first, second]) => [
                reduce(product(first, one.k) + now(one)),
                reduce(product(second, other.k) + now(other)),
            ],
        }
    }

    #[inline(always)]
    pub(super) fn finish(self) -> u128 {
        let [high, low] = self.with_block(1 + u64::from(self.filled)).map(below_p);
        // Like texts have hashes at like distances, which would stand in ranks in a table; but
        // for this, which can be undone, so that no two more of them meet.
        let square = u128::from(low) * u128::from(low ^ 0x9E37_79B9_7F4A_7C15);
        let spread = (square >> 64) as u64 ^ square as u64;
        u128::from(high << 3 ^ spread) << 64 | u128::from(low)
    }
}

/// The number of which these are the bytes, the first the lowest; at most [`BLOCK`].
#[inline(always)]
fn piece(bytes: &[u8]) -> u128 {
    // Two reads that overlap are faster than one of any length.
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

/// Whether one of the bytes is [`MARK`]: whether one is 0 in the complement.
#[inline(always)]
fn has_mark(piece: u128) -> bool {
    (!piece).wrapping_sub(LOWEST) & piece & HIGHEST != 0
}

/// To the same number modulo p, of at most p + 4, from one below 2¹²⁴.
#[inline(always)]
fn reduce(number: u128) -> u64 {
    let number = (number as u64 & P) + (number >> 61) as u64;
    (number & P) + (number >> 61)
}

/// To the same number modulo p, from one below 2p.
#[inline(always)]
fn below_p(number: u64) -> u64 {
    number.min(number.wrapping_sub(P))
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
        let mut blocks: Vec<&[u8]> = text.chunks(14).collect();
        if blocks.is_empty() {
            blocks.push(&[]);
        }
        let [high, low] = [0, 1].map(|lane| {
            let Lane { k, a, b } = secret.0[lane];
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
        let lane = Lane { k: P - 1, a: P - 1, b: P - 1 };
        let secret = Secret([lane; 2]);
        for len in [6, 7, 8, 13, 14, 15, 4096] {
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
