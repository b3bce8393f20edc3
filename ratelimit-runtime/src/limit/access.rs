//! Whether a limit counts a call.

use super::Limit;

/// How much a call may take: the code says it, or a rule, which has precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As much as the amounts of the limit admit.
    Limited,
    /// Anything: the limit does not count the call.
    Unlimited,
    /// Nothing.
    Blocked,
}

impl Limit {
    /// Returns how much the code says that a call may take.
    #[inline]
    pub(crate) const fn access(&self) -> Access {
        if self.policy.blocked { Access::Blocked } else { Access::Limited }
    }
}
