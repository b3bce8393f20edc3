//! Which limits a middleware asks, about which keys: the part of it that no framework has a say in.

use std::sync::Arc;

use super::rejected::RejectedRequest;
use super::seen::Seen;
use crate::check::Check;
use crate::decision::Source;
use crate::error::StoreError;
use crate::global;
use crate::key::{Key, KeyWriter};
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::part::Charge;

/// What a middleware does with requests of which it sees `P`.
pub(crate) struct Rules<P> {
    limits: Vec<(Limit, KeyOf<P>)>,
    exempt: Option<IsExempt<P>>,
    limiter: Option<RateLimiter>,
    /// The limits, as clients are told of them.
    pub(crate) told: Seen,
    pub(crate) has_legacy_headers: bool,
}

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decides {
    Here,
    Elsewhere,
}

/// Whether a request passes unchecked.
type IsExempt<P> = Arc<dyn Fn(&P) -> bool + Send + Sync>;

/// Shows the key that a request has. It may borrow from the request, so it is not returned.
type KeyOf<P> = Arc<dyn Fn(&P, &mut dyn FnMut(&dyn Key)) + Send + Sync>;

impl<P> Rules<P> {
    pub(crate) fn limit<K: Key>(
        &mut self,
        limit: Limit,
        key: impl Fn(&P) -> K + Send + Sync + 'static,
    ) {
        let agrees = self.limits.first().is_none_or(|(first, _)| limit.agrees_with(first));
        assert!(
            agrees,
            "the limits of one layer are decided together, and `{}` disagrees about `scope`, \
             `on_error`, `shadow` or `wait`: put it into a layer of its own",
            limit.name()
        );
        self.told.expect(&limit);
        self.limits.push((limit, Arc::new(move |request, show| show(&key(request)))));
    }

    pub(crate) fn exempt(&mut self, is_exempt: impl Fn(&P) -> bool + Send + Sync + 'static) {
        self.exempt = Some(Arc::new(is_exempt));
    }

    pub(crate) fn limiter(&mut self, limiter: RateLimiter) {
        self.limiter = Some(limiter);
    }

    pub(crate) fn body(
        &mut self,
        body: impl Fn(&RejectedRequest<'_>) -> (&'static str, String) + Send + Sync + 'static,
    ) {
        self.told.asked.body = Some(Arc::new(body));
    }

    /// Whether a request passes unchecked. It is told of no limits here.
    pub(crate) fn exempts(&self, request: &P) -> bool {
        self.exempt.as_ref().is_some_and(|is_exempt| is_exempt(request))
    }

    /// What is known of a request at first.
    pub(crate) fn seen(&self, is_exempt: bool) -> Seen {
        if is_exempt { Seen::new(self.told.asked.clone()) } else { self.told.clone() }
    }

    /// Begins the check of a request; `None` where there is nothing to check. It is ready at once where
    /// this process decides, unless calls may wait.
    pub(crate) fn check(&self, request: &P) -> Option<(Check, Decides)> {
        let (first, _) = self.limits.first()?;
        let begun = match &self.limiter {
            Some(limiter) => self.check_by(limiter, request),
            None => global::with_current(
                |limiter| self.check_by(limiter, request),
                |error| (Check::undecided(first, StoreError::Configuration(error)), Decides::Here),
            ),
        };
        Some(begun)
    }

    fn check_by(&self, limiter: &RateLimiter, request: &P) -> (Check, Decides) {
        let decides = match limiter.source() {
            Source::Embedded => Decides::Here,
            _ => Decides::Elsewhere,
        };
        (self.ask(limiter, request), decides)
    }

    fn ask(&self, limiter: &RateLimiter, request: &P) -> Check {
        if let [(limit, key)] = &*self.limits {
            let mut check = None;
            key(request, &mut |key| check = Some(limiter.check(limit, key, 1)));
            if let Some(check) = check {
                return check;
            }
        }
        let mut keys = Vec::with_capacity(self.limits.len());
        for (_, key) in &self.limits {
            key(request, &mut |key| keys.push(KeyWriter::written(key)));
        }
        let charges = self.limits.iter().zip(&keys);
        let charges: Vec<_> = charges.map(|((limit, _), key)| Charge::new(limit, key, 1)).collect();
        limiter.check_charges(&charges)
    }
}

// Not derived: `P` need not be anything.
impl<P> Clone for Rules<P> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            exempt: self.exempt.clone(),
            limiter: self.limiter.clone(),
            told: self.told.clone(),
            has_legacy_headers: self.has_legacy_headers,
        }
    }
}

impl<P> Default for Rules<P> {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            exempt: None,
            limiter: None,
            told: Seen::default(),
            has_legacy_headers: false,
        }
    }
}
