//! The limit of a call: a constant, or a limit whose amounts are computed for the call.

use super::{CallLimit, Site, SiteLimit};
use crate::limit::{Access, Limit};

/// A limit that a call is checked against.
pub trait CheckedLimit {
    /// Returns the limit. If the code admits everything or nothing, it is a template, for rules.
    fn limit(&self) -> &Limit;

    /// Returns how much the code says that the call may take.
    fn access(&self) -> Access;

    /// Returns the limit if it is never dropped.
    fn kept(&self) -> Option<&'static Limit>;

    fn site(&self) -> &'static Site;
}

impl CheckedLimit for SiteLimit<'static> {
    #[inline]
    fn limit(&self) -> &Limit {
        self.limit
    }

    #[inline]
    fn access(&self) -> Access {
        Access::Limited
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        Some(self.limit)
    }

    #[inline]
    fn site(&self) -> &'static Site {
        self.site
    }
}

impl CheckedLimit for CallLimit {
    #[inline]
    fn limit(&self) -> &Limit {
        self.derived.as_ref().unwrap_or(self.kept)
    }

    #[inline]
    fn access(&self) -> Access {
        self.access
    }

    #[inline]
    fn kept(&self) -> Option<&'static Limit> {
        if self.derived.is_some() { None } else { Some(self.kept) }
    }

    #[inline]
    fn site(&self) -> &'static Site {
        self.site
    }
}
