//! The positions of annotated functions, to count their calls, and to find limits that share a name by mistake.
//!
//! The default name of a limit is `crate::module::function`. It does not contain the type of a method, because a
//! macro on a method cannot see the type. So two methods with one name would share their counts without a warning.
//! Functions may share a name that the user chose. If their aligns differ, that is a mistake, because they then
//! count separately.

use once_cell::sync::OnceCell;

use super::CallLimit;
use crate::limit::{Access, Align, Lease, Limit, LimitError};
use crate::registry::{self, CallEnd, RegisteredLimit, Tally};
use crate::reply::Rejection;

/// An annotated function with a limit.
pub struct Site {
    /// The file, the line and the column.
    place: &'static str,
    name: SiteName,
    is_computed: bool,
    /// The limit of the first call. Generic functions have one site for all types.
    limit: OnceCell<Limit>,
    tally: Tally,
    has_clamped: OnceCell<()>,
}

/// Where the name of a limit comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SiteName {
    /// From the path of the function.
    Default,
    /// The user chose it.
    Chosen,
    /// From a constant, which functions share on purpose.
    Constant,
}

impl Site {
    /// Creates the site of a limit at a place, whose amounts each call computes or not.
    #[must_use]
    pub const fn new(place: &'static str, name: SiteName, is_computed: bool) -> Self {
        let (tally, has_clamped) = (Tally::new(), OnceCell::new());
        Self { place, name, is_computed, limit: OnceCell::new(), tally, has_clamped }
    }

    /// Returns the limit with its site. Registers it once, and warns if another function shares its name by mistake.
    #[must_use]
    #[inline]
    pub fn visit(&'static self, limit: &'static Limit) -> CallLimit {
        if self.limit.get().is_none() {
            self.register(limit);
        }
        CallLimit { site: self, kept: limit, computed: None, access: Access::Limited }
    }

    /// Returns the limit with computed amounts.
    pub(super) fn compute(
        &self,
        template: &Limit,
        threshold: u64,
        burst: Option<u64>,
        lease: Lease,
    ) -> Limit {
        let (limit, error) = template.with_computed(threshold, burst, lease);
        if let Some(LimitError(message)) = error
            && self.has_clamped.set(()).is_ok()
        {
            tracing::warn!(
                limit = template.name(),
                threshold,
                burst,
                message,
                "the amounts of a call are too large, and the largest possible ones are used instead"
            );
        }
        limit
    }

    /// Returns the limit with windows that begin where `align` says, and months on `day`; `None` if it cannot have
    /// them.
    pub(super) fn align(&self, limit: &Limit, align: Align, day: Option<u8>) -> Option<Limit> {
        let aligned = day.map_or(Ok(align), |day| align.try_day(day));
        let aligned = aligned.and_then(|align| limit.with_align(align));
        if let Err(LimitError(message)) = aligned
            && self.has_clamped.set(()).is_ok()
        {
            let name = limit.name();
            tracing::warn!(
                limit = name,
                ?align,
                day,
                message,
                "the windows of a call cannot begin there, so they begin as if `align` and `align_day` were not given"
            );
        }
        aligned.ok()
    }

    /// Returns whether a rejection names the limit.
    fn has_rejected(&self, rejection: &Rejection) -> bool {
        self.limit.get().is_some_and(|limit| {
            limit.name() == rejection.name()
                && match rejection {
                    Rejection::Limited { quota, .. } | Rejection::Blocked { quota, .. } => {
                        quota.period() == limit.period()
                    }
                    _ => true,
                }
        })
    }

    #[cold]
    fn register(&'static self, limit: &Limit) {
        let Self { place, is_computed, .. } = *self;
        let mut first = None;
        self.limit.get_or_init(|| {
            let added = RegisteredLimit { limit: *limit, place, is_computed };
            first = registry::add(added, &self.tally);
            *limit
        });
        // Once the site is initialised, because a subscriber can call this function. The first is another site: each
        // registers once. Its place can be the same, if one call of a macro made both functions.
        let Some(first) = first else { return };
        let is_aligned = first.limit.terms().identity.align == limit.terms().identity.align;
        let message = match self.name {
            SiteName::Default | SiteName::Chosen if !is_aligned => {
                "two functions use one rate limit name with different `align`, so they count separately: set the same \
                 `align` on both, or a different `name` on each"
            }
            SiteName::Default => {
                "two functions share the counts of one rate limit: set a different `name` on each, or, to share the \
                 counts, the same `name` on both"
            }
            SiteName::Chosen | SiteName::Constant => return,
        };
        tracing::warn!(name = limit.name(), first = first.place, second = place, "{message}");
    }
}

/// Counts a call at the sites of its limits. Only the limit that a rejection names counts the rejection.
pub(super) fn count_call(sites: &[&Site], rejection: Option<&Rejection>) {
    let end = match rejection {
        None => CallEnd::Admitted,
        Some(Rejection::Unavailable { .. } | Rejection::Mistake { .. }) => CallEnd::Undecided,
        Some(rejection) => {
            let is_rejecting = |site: &&&Site| sites.len() == 1 || site.has_rejected(rejection);
            if let Some(site) = sites.iter().find(is_rejecting) {
                site.tally.add(CallEnd::Rejected);
            }
            return;
        }
    };
    for site in sites {
        site.tally.add(end);
    }
}
