//! What the rules in force make of a limit.

use std::sync::Arc;
use std::time::Duration;

use super::{Asker, RuleTable};
use crate::key::KeyId;
use crate::limit::{Access, Limit};

/// A limit under the rules in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruled {
    pub(crate) limit: Limit,
    pub(crate) access: Access,
    /// The end of the rule that blocks the limit.
    pub(crate) blocked_until: Option<u64>,
    /// Whether a rule sets the threshold.
    pub(crate) has_threshold: bool,
    /// When the first of the rules ends.
    pub(crate) changes_at: Option<u64>,
    /// The shadow that decides each call beside the limit.
    pub(crate) trial: Option<Arc<Limit>>,
}

impl Ruled {
    /// Returns a limit without rules.
    pub(crate) fn as_written(limit: &Limit) -> Self {
        Self {
            limit: *limit,
            access: Access::Limited,
            blocked_until: None,
            has_threshold: false,
            changes_at: None,
            trial: None,
        }
    }

    /// Returns a limit under the rules of `table` at `now`, for a key. `access` is what the code says: a rule that sets
    /// a threshold or an access has precedence.
    pub(crate) fn under(
        table: Option<&RuleTable>,
        limit: &Limit,
        access: Access,
        key_id: &dyn Fn() -> KeyId,
        now: &dyn Fn() -> u64,
        asker: Asker,
    ) -> Self {
        let ruled = table.and_then(|table| table.resolve(limit, key_id, now, asker));
        let mut ruled = ruled.unwrap_or_else(|| Self::as_written(limit));
        if !ruled.has_threshold && ruled.access == Access::Limited {
            ruled.access = access;
        }
        ruled
    }

    /// Returns for how long a rule blocks the limit after `now`; `Duration::MAX` if it has no end.
    pub(crate) fn blocked_for(&self, now: u64) -> Duration {
        let rest = |until: u64| Duration::from_micros(until.saturating_sub(now));
        self.blocked_until.map_or(Duration::MAX, rest)
    }
}
