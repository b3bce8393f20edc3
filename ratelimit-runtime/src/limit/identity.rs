//! The identity of a limit: what makes two calls share a count.

use std::hash::{Hash, Hasher};

use super::{Algorithm, Name, Period, Scope};

/// Name, algorithm, period, align and scope. Calls that agree on these and on the key share a count.
#[derive(Clone, Copy, Debug, Eq)]
pub(crate) struct Identity {
    pub(super) name: Name,
    pub(super) algorithm: Algorithm,
    pub(super) period: Period,
    pub(super) align: Option<Align>,
    scope: Scope,
    /// A hash of the name, below 64. [`RulesInForce`](crate::rules) skips limits without rules by it.
    name_bit: u8,
    /// A hash of the name, algorithm, period, align and scope.
    hash: u128,
}

impl Identity {
    pub(super) const fn new(name: Name, algorithm: Algorithm, period: Period) -> Self {
        let (align, scope, name_bit) = (None, Scope::Global, bit_of_name(name.as_str()));
        let identity = Self { name, algorithm, period, align, scope, name_bit, hash: 0 };
        identity.hashed()
    }

    const fn hashed(mut self) -> Self {
        self.hash = hash(&self);
        self
    }

    /// Changes the align.
    pub(super) const fn set_align(&mut self, align: Align) {
        self.align = Some(align);
        *self = self.hashed();
    }

    /// Changes the scope: a count of the process and a count of the fleet are different counts.
    pub(super) const fn set_scope(&mut self, scope: Scope) {
        self.scope = scope;
        *self = self.hashed();
    }

    /// Returns this identity with another name.
    pub(super) fn with_name(&self, name: Name) -> Self {
        Self { name, name_bit: bit_of_name(name.as_str()), ..*self }.hashed()
    }

    /// Returns this identity with another period.
    pub(super) fn with_period(&self, period: Period) -> Self {
        Self { period, ..*self }.hashed()
    }

    /// Returns a hash of the name, below 64.
    #[inline]
    pub(crate) const fn name_bit(&self) -> u8 {
        self.name_bit
    }

    /// Returns the hash of the identity. [`KeyId`](crate::key::KeyId) combines it with a key.
    #[inline]
    pub(crate) const fn hash(&self) -> u128 {
        self.hash
    }
}

/// Compares hashes: stores distinguish counts by the hash of their identity.
impl PartialEq for Identity {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}

impl Hash for Identity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// Where the windows of an aligned [`Limit::fixed`](crate::Limit::fixed) start: at calendar boundaries of
/// one UTC offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Align {
    pub(crate) offset_minutes: i32,
}

impl Align {
    /// Windows start at calendar boundaries of UTC.
    pub const UTC: Self = Self::offset_minutes(0);

    /// Windows start at calendar boundaries of local time `minutes` ahead of UTC: `480` is `+08:00`.
    ///
    /// # Panics
    ///
    /// Outside −14:00 to +14:00, the range of offsets in use. In a `const` that is a compile error.
    #[must_use]
    #[track_caller]
    pub const fn offset_minutes(minutes: i32) -> Self {
        assert!(
            minutes >= -14 * 60 && minutes <= 14 * 60,
            "the offset of `align` must lie between -14:00 and +14:00"
        );
        Self { offset_minutes: minutes }
    }

    /// Returns how many minutes local time is ahead of UTC.
    #[must_use]
    pub const fn get_offset_minutes(self) -> i32 {
        self.offset_minutes
    }
}

/// Hashes a name to a number below 64, by 64-bit FNV-1a.
pub(crate) const fn bit_of_name(name: &str) -> u8 {
    let (mut hash, mut index) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while index < name.len() {
        hash = (hash ^ name.as_bytes()[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    (hash >> 58) as u8
}

/// Hashes an identity by 128-bit FNV-1a. The hash needs no secret, because clients do not choose identities.
const fn hash(identity: &Identity) -> u128 {
    const PRIME: u128 = 0x0100_0000_0000_0000_0000_013B;
    let (mut hash, name) =
        (0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, identity.name.as_str().as_bytes());
    let align = match identity.align {
        None => 0,
        // Offsets are at least -14:00.
        Some(Align { offset_minutes }) => (offset_minutes + 14 * 60 + 1) as u128,
    };
    let head = (identity.scope as u128) << 96
        | align << 72
        | (identity.period.micros() as u128) << 8
        | identity.algorithm as u128;
    let (mut byte, mut index) = (0, 0);
    while byte < 16 {
        hash = (hash ^ (head >> (8 * byte) & 0xff)).wrapping_mul(PRIME);
        byte += 1;
    }
    while index < name.len() {
        hash = (hash ^ name[index] as u128).wrapping_mul(PRIME);
        index += 1;
    }
    hash
}
