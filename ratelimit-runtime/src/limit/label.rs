//! The label of a limit, for replies and reports.

use super::{Limit, Name, Quota, Terms};

/// The parts of a limit that decisions, rejections, logs and metrics contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitLabel {
    pub(crate) name: Name,
    pub(crate) quota: Quota,
    /// The most that can be admitted at once.
    pub(crate) capacity: u64,
    pub(crate) shadow: bool,
    /// Whether the amounts are computed for each call.
    pub(crate) varies: bool,
}

impl LimitLabel {
    /// Returns the label of a call without limits.
    pub(crate) fn unnamed() -> Self {
        Self { name: Name::new(""), quota: Quota::NONE, capacity: 0, shadow: false, varies: false }
    }
}

impl Limit {
    pub(crate) fn label(&self) -> LimitLabel {
        self.label_for(&self.terms)
    }

    /// Returns the label of calls that are charged under `terms`, which can be the terms of a lease.
    pub(crate) fn label_for(&self, terms: &Terms) -> LimitLabel {
        LimitLabel {
            name: self.terms.identity.name,
            quota: self.quota(),
            capacity: terms.capacity(),
            shadow: self.policy.shadow,
            varies: self.policy.varies,
        }
    }
}
