//! The limits that are not annotated: those of layers, and those that code checks by hand. Bounded, because code can
//! make any number of limits.

#[cfg(feature = "tower")]
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::RegisteredLimit;
use crate::limit::Limit;

/// The most limits that are kept.
const MOST: usize = 256;

static OTHERS: Mutex<Others> = Mutex::new(Others { limits: Vec::new(), version: 0 });

struct Others {
    limits: Vec<RegisteredLimit>,
    version: usize,
}

/// Registers a limit of a layer.
#[cfg(feature = "tower")]
pub(crate) fn add_of_layer(limit: &Limit, place: &'static Location<'static>) {
    lock().add(limit, || {
        // Leaked once for each limit, of which there are few.
        format!("{}:{}:{}", place.file(), place.line(), place.column()).leak()
    });
}

/// Registers a limit of a call, if it is not registered. Returns whether its calls have different amounts, as far as it
/// is known.
#[cold]
pub(crate) fn see(limit: &Limit) -> bool {
    // Annotated limits were registered by their first calls.
    super::seen().iter().any(|annotated| annotated.shares_count(limit)) || lock().see(limit)
}

/// Returns the limits, in the order of their registration.
#[cfg(feature = "rules")]
pub(super) fn limits() -> Vec<RegisteredLimit> {
    lock().limits.clone()
}

/// Returns a number that grows with each change of the limits.
#[cfg(feature = "rules")]
pub(super) fn version() -> usize {
    lock().version
}

impl Others {
    /// Adds a limit, unless it is there.
    fn add(&mut self, limit: &Limit, place: impl FnOnce() -> &'static str) {
        let is_known = self.limits.iter().any(|other| other.shares_count(limit));
        if is_known || self.limits.len() >= MOST {
            return;
        }
        // A rule, or a computed amount, as 0 always is: neither is what the code says of each call.
        let is_computed = limit.varies() || limit.threshold() == 0;
        let limit = if is_computed { without_amounts(limit) } else { *limit };
        self.limits.push(RegisteredLimit { limit, place: place(), is_computed });
        self.version += 1;
    }

    /// Adds the limit of a call, unless it is there. Returns whether its calls have different amounts.
    fn see(&mut self, limit: &Limit) -> bool {
        self.add(limit, || "");
        let Some(known) = self.limits.iter_mut().find(|other| other.shares_count(limit)) else {
            return true;
        };
        let has_other_amounts = (known.limit.threshold(), known.limit.capacity())
            != (limit.threshold(), limit.capacity());
        if !known.is_computed && !limit.varies() && has_other_amounts {
            known.is_computed = true;
            known.limit = without_amounts(limit);
            self.version += 1;
        }
        known.is_computed
    }
}

/// Returns a limit of which each call computes the amounts: they are 1.
fn without_amounts(limit: &Limit) -> Limit {
    limit.try_amounts(1, None).unwrap_or(*limit)
}

fn lock() -> MutexGuard<'static, Others> {
    OTHERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn others() -> Others {
        Others { limits: Vec::new(), version: 0 }
    }

    const LIMIT: Limit = Limit::token_bucket("by hand", 5, Duration::from_secs(60));

    #[test]
    fn a_limit_with_other_amounts_is_a_computed_one() {
        let mut others = others();
        assert!(!others.see(&LIMIT) && !others.see(&LIMIT));
        assert_eq!((others.version, others.limits[0].limit), (1, LIMIT));
        let (ruled, _) = LIMIT.under_rule(Some(50), None);
        assert!(!others.see(&ruled), "a rule does not change what the code says");
        let other = LIMIT.try_amounts(50, Some(7)).expect("valid");
        assert!(others.see(&other) && others.see(&LIMIT));
        assert_eq!((others.version, others.limits.len()), (2, 1));
        let amount_and_kind =
            |others: &Others| (others.limits[0].limit.threshold(), others.limits[0].is_computed);
        assert_eq!(amount_and_kind(&others), (1, true));
        let (mut others, blocked) = (self::others(), LIMIT.try_amounts(0, None).expect("valid"));
        assert!(others.see(&blocked));
        assert_eq!(amount_and_kind(&others), (1, true), "0 is no amount that all calls have");
    }

    #[test]
    fn limits_are_bounded_in_number() {
        let mut others = others();
        for period in 1..=2 * MOST as u64 {
            others.see(&Limit::fixed("by hand", 5, Duration::from_secs(period)));
        }
        assert_eq!(others.limits.len(), MOST);
    }
}
