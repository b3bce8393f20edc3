//! What the rules in force make of a limit, as each thread remembers it: a usual call then neither locks nor searches
//! the table of rules.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Asker, RulesInForce};
use crate::key::KeyId;
use crate::limit::{Access, Limit};

/// The number of limits that a thread remembers.
const PLACES: usize = 8;

thread_local! {
    /// Empty in a thread that knows none, so that a thread without rules pays nothing for it.
    static RESOLVED: RefCell<Vec<Option<ResolvedLimit>>> = const { RefCell::new(Vec::new()) };
}

/// What a set of rules makes of a limit, for each of its keys.
#[derive(Clone, Copy)]
struct ResolvedLimit {
    /// The version of the set of rules.
    version: u64,
    written: Limit,
    ruled: Limit,
}

impl RulesInForce {
    /// Makes of the limits of a call what one set of rules says. Returns `false` if the rules of one of them depend on
    /// the key or on the time, or do more than set the amounts and the policy.
    // The limits are changed where they are, because a returned one would be copied twice (`benches/all -- attribute`).
    #[inline(never)]
    pub(crate) fn apply(&self, limits: &mut [Limit]) -> bool {
        if self.may_depend(limits) {
            return false;
        }
        let version = self.version.load(Ordering::Relaxed);
        limits.iter_mut().all(|limit| {
            let place = (limit.terms().identity().hash() >> 1) as usize % PLACES;
            let is_known = RESOLVED.with_borrow(|resolved| match resolved.get(place) {
                Some(Some(known)) if known.version == version && known.written == *limit => {
                    *limit = known.ruled;
                    true
                }
                _ => false,
            });
            is_known || self.apply_table(limit, version, place)
        })
    }

    /// Makes of a limit what a set of rules says, as [`apply`](Self::apply) does, and lets this thread remember it at a
    /// place. Also returns `false` if the set is not in force any more.
    #[cold]
    fn apply_table(&self, limit: &mut Limit, version: u64, place: usize) -> bool {
        let (table, current) = self.versioned_table();
        let depends = Cell::new(false);
        let key_id = || {
            depends.set(true);
            KeyId::NONE
        };
        let now = || {
            depends.set(true);
            0
        };
        let ruled = table.as_ref().and_then(|it| it.resolve(limit, &key_id, &now, Asker::Call));
        if depends.get() || current != version {
            return false;
        }
        let ruled = match ruled {
            None => *limit,
            Some(ruled) if ruled.access == Access::Limited && ruled.trial.is_none() => ruled.limit,
            Some(_) => return false,
        };
        let resolved = ResolvedLimit { version, written: *limit, ruled };
        RESOLVED.with_borrow_mut(|all| {
            all.resize(PLACES, None);
            all[place] = Some(resolved);
        });
        *limit = ruled;
        true
    }
}

/// Returns a version that no other set of rules of this process has.
pub(super) fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::{Limit, Part, RateLimiter, Rule, RuleSet};

    const ONE: Limit = Limit::fixed("one", 3, Duration::from_secs(60));
    const OTHER: Limit = Limit::fixed("other", 3, Duration::from_secs(60));

    /// Returns the threshold of a call of one limit, and the least threshold of a call of both.
    fn thresholds(limiter: &RateLimiter, key: &str) -> [u32; 2] {
        let one = limiter.check_now(&ONE, key, 0).expect("admitted").limit;
        let parts = [Part::new(&ONE, &key, 0), Part::new(&OTHER, &key, 0)];
        let both = limiter.check_all(&parts).now(|| ONE.label()).expect("admitted").limit;
        [one, both]
    }

    fn set(limiter: &RateLimiter, write: impl FnOnce(&mut RuleSet)) {
        let mut rules = RuleSet::new();
        write(&mut rules);
        limiter.set_rules(rules).expect("valid");
    }

    #[test]
    fn a_thread_that_knows_a_limit_follows_the_next_rules() {
        let limiter = RateLimiter::embedded();
        assert_eq!(thresholds(&limiter, "key"), [3, 3]);
        for threshold in [1, 2, 5] {
            set(&limiter, |rules| {
                rules.set("one", Rule::new().threshold(threshold)).expect("valid");
            });
            assert_eq!(thresholds(&limiter, "key"), [threshold, threshold.min(3)]);
        }
        set(&limiter, |rules| {
            rules.set("one", Rule::new().threshold(5)).expect("valid");
            rules.set_key("one", "vip", Rule::new().threshold(2)).expect("valid");
        });
        assert_eq!(thresholds(&limiter, "key"), [5, 3]);
        assert_eq!(thresholds(&limiter, "vip"), [2, 2]);
        set(&limiter, |rules| {
            rules.set("one", Rule::new().exempt(true)).expect("valid");
        });
        assert_eq!(thresholds(&limiter, "key"), [u32::MAX, 3]);
        set(&limiter, |_| {});
        assert_eq!(thresholds(&limiter, "key"), [3, 3]);
    }

    #[test]
    fn limiters_with_other_rules_share_a_thread() {
        let limiters = [1, 2].map(|threshold| {
            let limiter = RateLimiter::embedded();
            set(&limiter, |rules| {
                rules.set("one", Rule::new().threshold(threshold)).expect("valid");
            });
            limiter
        });
        for _ in 0..3 {
            assert_eq!(limiters.each_ref().map(|it| thresholds(it, "key")[0]), [1, 2]);
        }
    }
}
