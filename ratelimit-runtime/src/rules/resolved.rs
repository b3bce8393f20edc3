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

/// What a set of rules makes of a limit, for each key that the set does not name.
#[derive(Clone, Copy)]
struct ResolvedLimit {
    /// The version of the set of rules.
    version: u64,
    written: Limit,
    ruled: Limit,
    named: NamedKeys,
}

/// A bit for each key of a limit that the rules name, by its fingerprint. Other keys can have the same bit.
#[derive(Clone, Copy, Default)]
pub(crate) struct NamedKeys {
    bits: [u64; 16],
    has_any: bool,
}

/// What a thread remembers of a limit.
enum Memory {
    None,
    OfAllKeys,
    /// The limit of the keys that the rules do not name.
    OfOtherKeys(NamedKeys),
}

impl NamedKeys {
    pub(super) fn of(fingerprints: impl Iterator<Item = u128>) -> Self {
        let mut named = Self::default();
        for fingerprint in fingerprints {
            let (word, bit) = Self::place(fingerprint);
            named.bits[word] |= bit;
            named.has_any = true;
        }
        named
    }

    fn may_have(&self, fingerprint: u128) -> bool {
        let (word, bit) = Self::place(fingerprint);
        self.bits[word] & bit != 0
    }

    fn place(fingerprint: u128) -> (usize, u64) {
        ((fingerprint >> 6) as usize % 16, 1 << (fingerprint & 63))
    }
}

impl RulesInForce {
    /// Makes of the limits of a call what one set of rules says. Returns `false` if the rules of one of them may name
    /// the key of the call, depend on the time, or do more than set the amounts and the policy. `fingerprint` returns
    /// the fingerprint of the key of a limit, by its index.
    // The limits are changed where they are, because a returned one would be copied twice (`benches/all -- attribute`).
    #[inline(never)]
    pub(crate) fn apply(&self, limits: &mut [Limit], fingerprint: &dyn Fn(usize) -> u128) -> bool {
        if self.may_depend(limits) {
            return false;
        }
        let version = self.version.load(Ordering::Relaxed);
        limits.iter_mut().enumerate().all(|(index, limit)| {
            let place = (limit.terms().identity().hash() >> 1) as usize % PLACES;
            let fingerprint = || fingerprint(index);
            match remembered(place, version, limit) {
                Memory::None => self.apply_table(limit, &fingerprint, version, place),
                Memory::OfAllKeys => true,
                Memory::OfOtherKeys(named) => !named.may_have(fingerprint()),
            }
        })
    }

    /// Makes of a limit what a set of rules says, as [`apply`](Self::apply) does, and lets this thread remember it at a
    /// place. Also returns `false` if the set is not in force any more.
    #[cold]
    fn apply_table(
        &self,
        limit: &mut Limit,
        fingerprint: &dyn Fn() -> u128,
        version: u64,
        place: usize,
    ) -> bool {
        let (table, current) = self.versioned_table();
        let depends = Cell::new(false);
        let now = || {
            depends.set(true);
            0
        };
        // No rule names this key.
        let key_id = || KeyId::NONE;
        let ruled = table.as_ref().and_then(|it| it.resolve(limit, &key_id, &now, Asker::Call));
        if depends.get() || current != version {
            return false;
        }
        let ruled = match ruled {
            None => *limit,
            Some(ruled) if ruled.access == Access::Limited && ruled.trial.is_none() => ruled.limit,
            Some(_) => return false,
        };
        let named = table.map(|table| table.named_keys(limit)).unwrap_or_default();
        let resolved = ResolvedLimit { version, written: *limit, ruled, named };
        // A thread that ends remembers nothing.
        let _ = RESOLVED.try_with(|all| {
            let mut all = all.borrow_mut();
            all.resize(PLACES, None);
            all[place] = Some(resolved);
        });
        *limit = ruled;
        !named.has_any || !named.may_have(fingerprint())
    }
}

/// Makes of a limit what this thread remembers at a place.
#[inline]
fn remembered(place: usize, version: u64, limit: &mut Limit) -> Memory {
    let known = RESOLVED.try_with(|resolved| match resolved.borrow().get(place) {
        Some(Some(known)) if known.version == version && known.written == *limit => {
            *limit = known.ruled;
            if known.named.has_any { Memory::OfOtherKeys(known.named) } else { Memory::OfAllKeys }
        }
        _ => Memory::None,
    });
    known.unwrap_or(Memory::None)
}

/// Returns a version that no other set of rules of this process has.
pub(super) fn next_version() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;
    use std::sync::mpsc;
    use std::time::Duration;
    use std::{fmt, thread};

    use crate::key::{Key, KeyWriter};
    use crate::reply::{Mistake, Rejection};
    use crate::{Limit, Part, RateLimiter, Rule, RuleSet};

    const ONE: Limit = Limit::fixed("one", 3, Duration::from_secs(60));
    const OTHER: Limit = Limit::fixed("other", 3, Duration::from_secs(60));

    /// Returns the threshold of a call of one limit, and the least threshold of a call of both.
    fn thresholds(limiter: &RateLimiter, key: &str) -> [u32; 2] {
        let one = limiter.check_blocking(&ONE, key, 0).expect("admitted").limit;
        let parts = [Part::new(&ONE, &key, 0), Part::new(&OTHER, &key, 0)];
        let both = limiter
            .check_all(&parts)
            .blocking(&limiter.checker().backend, || ONE.label())
            .expect("admitted")
            .limit;
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

    #[test]
    fn rules_do_not_make_limits_agree_that_disagree_in_the_code() {
        let (limiter, shadow) = (RateLimiter::embedded(), OTHER.shadow(true));
        set(&limiter, |rules| {
            rules.set("other", Rule::new().shadow(false)).expect("valid");
        });
        let parts = [Part::new(&ONE, &"key", 1), Part::new(&shadow, &"key", 1)];
        let result = limiter.check_all(&parts).blocking(&limiter.checker().backend, || ONE.label());
        let Err(Rejection::Mistake { mistake: Mistake::MixedLimits, .. }) = result else {
            panic!("{result:?}")
        };
    }

    #[test]
    fn a_call_of_a_thread_that_ends_follows_the_rules() {
        struct AtEnd(RateLimiter, mpsc::Sender<u32>);

        impl Drop for AtEnd {
            fn drop(&mut self) {
                let decision = self.0.check_blocking(&ONE, "key", 0).expect("admitted");
                self.1.send(decision.limit).expect("received");
            }
        }

        thread_local! {
            static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
        }

        let limiter = RateLimiter::embedded();
        set(&limiter, |rules| {
            rules.set("one", Rule::new().threshold(9)).expect("valid");
        });
        let (sender, limits) = mpsc::channel();
        let ends = thread::spawn(move || {
            // Dropped after what the call below remembers, because it is first.
            AT_END.set(Some(AtEnd(limiter.clone(), sender)));
            limiter.check_blocking(&ONE, "key", 0).expect("admitted").limit
        });
        assert_eq!((ends.join().expect("no panic"), limits.recv()), (9, Ok(9)));
    }

    #[test]
    fn a_key_can_call_a_limiter_while_it_is_written() {
        struct CallingKey<'a>(&'a RateLimiter);

        impl fmt::Display for CallingKey<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // A limit that this thread does not know yet.
                let limit =
                    self.0.check_blocking(&OTHER, "inner", 0).map(|decision| decision.limit);
                write!(f, "{limit:?}")
            }
        }

        impl Key for CallingKey<'_> {
            fn write(&self, out: &mut KeyWriter<'_>) {
                out.display(self);
            }
        }

        let limiter = RateLimiter::embedded();
        set(&limiter, |rules| {
            rules.set("one", Rule::new().threshold(4)).expect("valid");
            rules.set_key("one", "vip", Rule::new().threshold(5)).expect("valid");
            rules.set("other", Rule::new().threshold(6)).expect("valid");
        });
        for _ in 0..2 {
            let decision = limiter.check_blocking(&ONE, CallingKey(&limiter), 0);
            assert_eq!(decision.expect("admitted").limit, 4);
        }
    }
}
