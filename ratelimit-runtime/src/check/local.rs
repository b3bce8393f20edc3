//! The fast path: a check of one limit, or of several, that this process decides at once. No request; no
//! allocation for a few limits and a key that is not shortened.

#![allow(
    clippy::inline_always,
    reason = "an inlined result stays in registers (`benches/all -- embedded`)"
)]

use super::decide::{conclude, hardest};
use super::{AnyPart, Check, Checker, Part, expect};
use crate::algorithm::{Op, Outcome};
use crate::backend::Backend;
use crate::key::{Key, KeyId, OwnedKey};
use crate::limit::Access;
use crate::local::{Few, LocalCharge};
use crate::reply::{Decision, Source};
use crate::report::{self, Report, Started};

impl Checker {
    /// Checks a call against one limit, under the rules in force.
    #[inline]
    pub(crate) fn check(&self, part: Part<'_, impl Key>) -> Check {
        let (Part { limit, key, cost, access }, backend) = (part, &*self.backend);
        if access != Access::Limited
            || !backend.decides_here(limit, cost)
            || self.rules.may_apply(limit)
        {
            return self.start_all(&[Part { limit, key, cost, access }], false).into();
        }
        let (started, key_id) = (Started::now(), backend.key_id(limit.terms(), key));
        let charge = LocalCharge { key_id, terms: limit.terms(), cost };
        decide_here(backend, charge).unwrap_or_else(|outcome| {
            self.report_here(started, &[Part::of(limit, key, cost)], &[charge], &[outcome])
        })
    }
}

/// Decides a call. Returns the check if the call is admitted and nothing records it, otherwise the outcome.
#[inline(never)]
fn decide_here(backend: &Backend, charge: LocalCharge<'_>) -> Result<Check, Outcome> {
    let is_recorded = report::is_recorded();
    backend.local().apply_one_then(Op::TAKE, charge, |(outcome, _)| {
        if is_recorded || !outcome.is_allowed() {
            return Err(outcome);
        }
        let capacity = charge.terms.capacity;
        Ok(Check::from(Ok(Decision::new(capacity, &outcome, Source::Embedded))))
    })
}

impl Checker {
    /// Checks a call against several limits, under the rules in force.
    pub(crate) fn check_all<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Check {
        if let [Part { limit, key, cost, access }] = *parts {
            return self.check(Part { limit, key: &key, cost, access });
        }
        self.decide_few(parts).unwrap_or_else(|| {
            let parts: Vec<_> = parts.iter().map(Part::any).collect();
            self.start_all(&parts, false).into()
        })
    }

    /// Decides a call without rules that this process decides at once; `None` for any other call, which is not charged.
    fn decide_few<K: Key + ?Sized>(&self, parts: &[Part<'_, K>]) -> Option<Check> {
        if self.rules.may_apply_to_any(parts.iter().map(|part| part.limit)) {
            return None;
        }
        let started = Started::now();
        let (local, first) = (self.backend.local(), parts.first()?);
        let mut charges = Few::<LocalCharge<'_>>::new();
        let mut fingerprint = local.fingerprint(first.key);
        for (at, Part { limit, key, cost, access }) in parts.iter().enumerate() {
            let (terms, cost) = (limit.terms(), *cost);
            // Most limits of a call have one key.
            if at > 0 && !std::ptr::eq(*key, parts[at - 1].key) {
                fingerprint = local.fingerprint(*key);
            }
            let key_id = KeyId::new(&terms.identity, fingerprint);
            let is_known = charges.iter().any(|other| other.key_id == key_id);
            let is_plain = *access == Access::Limited && self.backend.decides_here(limit, cost);
            if is_known || !is_plain || !limit.policy().agrees_with(first.limit.policy()) {
                return None;
            }
            charges.push(LocalCharge { key_id, terms, cost });
        }
        let (charges, mut outcomes) = (&*charges, Few::new());
        local.decide_few(charges, &mut outcomes);
        let outcomes = &*outcomes;
        if report::is_recorded() || !outcomes.iter().all(Outcome::is_allowed) {
            let parts: Few<_> = parts.iter().map(Part::any).collect();
            return Some(self.report_here(started, &parts, charges, outcomes));
        }
        let index = hardest(outcomes, |_| false);
        let (capacity, outcome) = (charges[index].terms.capacity, &outcomes[index]);
        Some(Check::from(Ok(Decision::new(capacity, outcome, Source::Embedded))))
    }

    /// Reports a call as this process has decided it. Returns what the caller receives.
    #[inline(never)]
    fn report_here(
        &self,
        started: Started,
        parts: &[AnyPart<'_>],
        charges: &[LocalCharge<'_>],
        outcomes: &[Outcome],
    ) -> Check {
        expect(parts);
        let mut report = Report::since(started);
        if !outcomes.iter().all(Outcome::is_allowed) {
            let keys = parts.iter().zip(charges);
            let keys = keys.map(|(part, charge)| (charge.terms, charge.key_id, part.key));
            report = report.with_keys(&self.backend.settings.reports, keys);
        }
        let limits: Few<_> = parts.iter().map(|part| part.limit).collect();
        let reply = Ok((outcomes, Source::Embedded));
        Check::from(conclude(report, &limits, reply, false, |index| {
            let (Part { limit, key, .. }, charge) = (parts[index], &charges[index]);
            let at = outcomes[index].clock;
            self.backend.count_rejection(limit, charge.key_id, at, || OwnedKey::of(key));
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use proptest::prelude::*;

    use crate::check::{AnyPart, Check, Checker};
    use crate::reply::{Decision, Mistake, Rejection};
    use crate::{Clock, Limit, Part, RateLimiter, RejectedCall, VirtualClock};

    const WIDE: Limit = Limit::sliding("wide", 9, Duration::from_secs(60));
    const NARROW: Limit = Limit::token_bucket("narrow", 2, Duration::from_secs(60));
    const SHADOW: Limit = Limit::fixed("shadow", 1, Duration::from_secs(60)).shadow(true);

    fn check(limiter: &RateLimiter, parts: &[Part<'_>]) -> Result<Decision, Rejection> {
        limiter.check_all(parts).0.blocking(&limiter.checker().backend, || WIDE)
    }

    /// With and without the feature `metrics`, which records all calls.
    #[test]
    fn a_call_that_nothing_records_gets_the_decision_of_a_recorded_one() {
        let limiter = RateLimiter::embedded();
        let parts = [Part::new(&WIDE, &"key", 1), Part::new(&NARROW, &"key", 1)];
        for left in [1, 0] {
            let decision = check(&limiter, &parts).expect("admitted");
            assert_eq!((decision.limit, decision.remaining), (2, left));
            assert_eq!(decision.retry_after, Duration::ZERO);
        }
        for _ in 0..20 {
            let rejection = check(&limiter, &parts).expect_err("rejected");
            let Rejection::Limited { name, decision, .. } = rejection else {
                panic!("{rejection}")
            };
            assert_eq!((name, decision.remaining), ("narrow", 0));
            assert!(decision.retry_after > Duration::from_secs(20), "{decision:?}");
        }
        let keys = limiter.operator().rejected_keys(9);
        assert_eq!((keys.len(), keys[0].limit, keys[0].rejected), (1, "narrow", 20));
        // A call of one limit.
        check(&limiter, &[parts[1]]).expect_err("rejected");
        assert_eq!(limiter.operator().rejected_keys(9)[0].rejected, 21);
        // The rejected calls were not charged.
        let decision = check(&limiter, &parts[..1]).expect("admitted");
        assert_eq!((decision.limit, decision.remaining), (9, 6));

        let again = [parts[0], parts[0]];
        assert_eq!(check(&limiter, &again).expect("admitted").remaining, 4);
        let other = Limit::sliding("wide", 8, Duration::from_secs(60));
        let shared = [parts[0], Part::new(&other, &"key", 1)];
        let error = check(&limiter, &shared).expect_err("a mistake");
        assert!(
            matches!(&error, Rejection::Mistake { mistake: Mistake::SharedCount { .. }, .. }),
            "{error:?}"
        );
        let error = check(&limiter, &[parts[0], Part::new(&SHADOW, &"key", 1)]);
        let Err(Rejection::Mistake { mistake: Mistake::MixedLimits, .. }) = error else {
            panic!("{error:?}")
        };
        let costly = [parts[0], Part::new(&NARROW, &"key", 3)];
        let error = check(&limiter, &costly).expect_err("too costly");
        assert!(matches!(error, Rejection::CostExceedsCapacity { .. }), "{error:?}");
        // Each limit has a key of its own.
        let of_keys = |one, other| {
            check(&limiter, &[Part::new(&WIDE, one, 1), Part::new(&NARROW, other, 1)]).is_ok()
        };
        assert!(of_keys(&"one", &"one") && of_keys(&"other", &"other"));
        assert!(of_keys(&"one", &"other") && !of_keys(&"one", &"other"));
        assert!(check(&limiter, &[Part::new(&NARROW, &"one", 1)]).is_ok());
        for allowed in [true, false, false] {
            let shadow = check(&limiter, &[Part::new(&SHADOW, &"key", 1)]);
            assert_eq!(shadow.expect("a shadow admits").allowed, allowed);
        }
    }

    /// The limits of random calls, the keys, and whether they are shadows.
    const MIXED: [Limit; 5] = [
        Limit::sliding("sliding", 3, Duration::from_secs(1)),
        Limit::fixed("fixed", 4, Duration::from_secs(1)),
        Limit::token_bucket("hidden", 2, Duration::from_secs(1)).hidden(true),
        Limit::leaky_bucket("leaky", 5, Duration::from_secs(1)).burst(3),
        Limit::sliding_counter("counter", 3, Duration::from_secs(2)),
    ];

    /// A call: the microseconds since the one before, whether its limits are shadows, and its parts, each with the
    /// indexes of its limit and its key and its cost.
    type Step = (u64, bool, Vec<(usize, usize, u64)>);

    fn step() -> impl Strategy<Value = Step> {
        let part = (0..MIXED.len(), 0..2_usize, 0..4_u64);
        (0..400_000_u64, any::<bool>(), prop::collection::vec(part, 2..5))
    }

    /// What a limiter has said about the calls of a test.
    struct Heard {
        limiter: RateLimiter,
        said: Arc<Mutex<Vec<String>>>,
    }

    impl Heard {
        fn new(clock: &VirtualClock) -> Self {
            let said = Arc::new(Mutex::new(Vec::new()));
            let hears = Arc::clone(&said);
            let hear = move |call: &RejectedCall<'_>| {
                hears.lock().expect("no panic").push(format!("{call:?}"));
            };
            let limiter = RateLimiter::builder()
                .clock(Clock::Virtual(clock.clone()))
                .on_rejected(hear)
                .log_keys(true)
                .build();
            Self { limiter: limiter.expect("valid"), said }
        }

        /// Adds the result of a call, and what the log of a web request has of it.
        fn decide(&self, is_logged: bool, decide: impl FnOnce(&Checker) -> Check) {
            let decided = || {
                decide(self.limiter.checker()).0.blocking(&self.limiter.checker().backend, || WIDE)
            };
            let (result, log) =
                if is_logged { logged(decided) } else { (decided(), String::new()) };
            self.said.lock().expect("no panic").extend([format!("{result:?}"), log]);
        }

        /// Returns all of it, with the rejected keys.
        fn all(&self) -> Vec<String> {
            let mut said = self.said.lock().expect("no panic").clone();
            said.push(format!("{:?}", self.limiter.operator().rejected_keys(99)));
            said
        }
    }

    #[cfg(feature = "tower")]
    fn logged<T>(work: impl FnOnce() -> T) -> (T, String) {
        let mut log = Box::<crate::report::request_log::RequestLog>::default();
        let result = log.sync_scope(work);
        let limits = log.limits.iter().map(|limit| {
            let decision = limit.decided().map(|(it, at)| (it.remaining, at, it.allowed));
            format!("{} {decision:?}", limit.name)
        });
        let limits: Vec<_> = limits.collect();
        (result, format!("{limits:?} {}", log.has_decided))
    }

    #[cfg(not(feature = "tower"))]
    fn logged<T>(work: impl FnOnce() -> T) -> (T, String) {
        (work(), String::new())
    }

    proptest! {
        #[test]
        fn a_call_is_reported_as_one_that_becomes_a_request(
            steps in prop::collection::vec(step(), 1..40),
            is_logged: bool,
        ) {
            let clock = VirtualClock::new();
            let [few, requested] = [(); 2].map(|()| Heard::new(&clock));
            for (later, is_shadow, parts) in steps {
                clock.advance(Duration::from_micros(later));
                let limits = MIXED.map(|limit| limit.shadow(is_shadow));
                let part = |(limit, key, cost): &(usize, usize, u64)| {
                    Part::of(&limits[*limit], &["one", "other"][*key] as _, *cost)
                };
                let parts: Vec<AnyPart<'_>> = parts.iter().map(part).collect();
                few.decide(is_logged, |checker| checker.check_all(&parts));
                requested.decide(is_logged, |checker| checker.start_all(&parts, false).into());
            }
            prop_assert_eq!(few.all(), requested.all());
        }
    }
}
