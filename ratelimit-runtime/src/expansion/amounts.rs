//! Limits whose amounts are computed for each call.

use std::array;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::sync::OnceCell;

use super::CallLimit;
use crate::limit::{Access, Lease, Limit, LimitError};

/// The amounts of an annotated function that it keeps, with their limits: the rate of a bucket takes longer to derive
/// than a decision. Other amounts are derived for each call. There are few plans: while half of the cells are free, the
/// first or second is the right one.
const KEPT: usize = 32;

/// A value of `threshold`, `burst` or `in_flight` that is computed for each call: `u64`, or `Option<u64>`, whose `None`
/// is no limit. No other integers: then the type of a literal would be unknown.
#[diagnostic::on_unimplemented(
    message = "`threshold`, `burst` and `in_flight` are of type `u64` or `Option<u64>`, not `{Self}`",
    label = "not a `u64`",
    note = "convert it: `u64::from(value)`, or `u64::try_from(value).unwrap_or(u64::MAX)`"
)]
pub trait Amount {
    /// Returns the amount, or `None` without one.
    fn amount(self) -> Option<u64>;
}

impl Amount for u64 {
    #[inline]
    fn amount(self) -> Option<u64> {
        Some(self)
    }
}

impl Amount for Option<u64> {
    #[inline]
    fn amount(self) -> Option<u64> {
        self
    }
}

/// Returns an amount.
#[inline]
pub fn amount(amount: impl Amount) -> Option<u64> {
    amount.amount()
}

/// The limits of an annotated function whose amounts are computed for each call.
#[derive(Debug)]
pub struct AmountsSite {
    kept: [OnceCell<KeptLimit>; KEPT],
    has_clamped: AtomicBool,
}

#[derive(Debug)]
struct KeptLimit {
    given: GivenAmounts,
    /// A generic function has one site, and a template for each of its types.
    template: &'static Limit,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GivenAmounts {
    threshold: u64,
    burst: Option<u64>,
    lease: Lease,
}

impl KeptLimit {
    #[inline]
    fn is_of(&self, template: &'static Limit, given: GivenAmounts) -> bool {
        self.given == given && (ptr::eq(self.template, template) || self.template == template)
    }
}

impl GivenAmounts {
    /// Returns the cell where the search for these amounts begins: from the highest bits of products with large odd
    /// numbers, which differ for amounts that are close together.
    #[inline]
    fn home(self) -> usize {
        let burst = self.burst.unwrap_or(0).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
        ((self.threshold.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ burst) >> 59) as usize
    }
}

impl AmountsSite {
    /// Creates the site of a function.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "only statics are created")]
    pub const fn new() -> Self {
        Self { kept: [const { OnceCell::new() }; KEPT], has_clamped: AtomicBool::new(false) }
    }

    /// Returns the limit of a call, with a lease as far as it fits. `template` has other amounts.
    #[inline]
    pub fn of(
        &'static self,
        template: &CallLimit,
        threshold: Option<u64>,
        burst: Option<u64>,
        lease: Lease,
    ) -> CallLimit {
        let CallLimit { kept: template, site, .. } = *template;
        let of = |access, kept, derived| CallLimit { site, kept, derived, access };
        let Some(threshold) = threshold else { return of(Access::Unlimited, template, None) };
        if threshold == 0 || burst == Some(0) {
            return of(Access::Blocked, template, None);
        }
        let given = GivenAmounts { threshold, burst, lease };
        let first = given.home();
        for offset in 0..KEPT {
            match self.kept[(first + offset) % KEPT].get() {
                Some(kept) if kept.is_of(template, given) => {
                    return of(Access::Limited, &kept.limit, None);
                }
                Some(_) => {}
                None => break,
            }
        }
        let (kept, derived) = self.derive(first, template, given);
        of(Access::Limited, kept, derived)
    }

    /// Derives the limit of amounts, and keeps it if there is room. Otherwise, returns it beside the template.
    #[cold]
    fn derive(
        &'static self,
        first: usize,
        template: &'static Limit,
        given: GivenAmounts,
    ) -> (&'static Limit, Option<Box<Limit>>) {
        let limit = self.limit(template, given);
        for cell in array::from_fn::<_, KEPT, _>(|offset| &self.kept[(first + offset) % KEPT]) {
            let kept = cell.get_or_init(|| KeptLimit { given, template, limit });
            if kept.is_of(template, given) {
                return (&kept.limit, None);
            }
        }
        (template, Some(Box::new(limit)))
    }

    fn limit(&self, template: &Limit, given: GivenAmounts) -> Limit {
        let GivenAmounts { threshold, burst, lease } = given;
        let limit = match template.try_amounts(threshold, burst) {
            Ok(limit) => limit,
            Err(LimitError(message)) => {
                if !self.has_clamped.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        limit = template.name(),
                        threshold,
                        burst,
                        message,
                        "the amounts of a call are too large, and the largest possible ones are used instead"
                    );
                }
                template.with_largest_amounts(threshold)
            }
        };
        limit.varying(lease)
    }
}
