//! The limits that a middleware or a client checks for each request, or an application chooses for one, and the start
//! of the check.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::check::{
    Acquire, AdmittedCall, AnyPart, CallFuture, CallOptions, Check, Part, undecided,
};
use crate::key::{Key, OwnedKey};
use crate::limit::{Limit, Scope};
use crate::limiter::{self, RateLimiter};
use crate::local::Few;
use crate::reply::{Rejection, Source};
use crate::report;

/// The limits of each request of type `R`. A request for which they cannot be chosen ends with an `E`.
pub(super) struct LimitSources<R, E> {
    sources: Vec<LimitSource<R, E>>,
    is_exempt: Option<ExemptFn<R>>,
    /// Whether the charges of each request can be settled.
    settles: bool,
    /// Whether requests can hold slots: the middleware is one of a server.
    holds: bool,
    /// `None` for the current limiter.
    limiter: Option<RateLimiter>,
}

/// Where a limit of a request comes from.
enum LimitSource<R, E> {
    /// One limit for each request.
    Fixed(Limit, ChargeFn<R>),
    /// Limits that the application chooses for each request.
    Chosen(ChooseFn<R, E>),
}

/// Adds the limits of a request, or returns why it ends.
type ChooseFn<R, E> = Arc<dyn Fn(&R, &mut RequestLimits) -> Result<(), E> + Send + Sync>;

/// Calls back with the key and the cost of a request. The key may borrow from the request, so it is not returned.
type ChargeFn<R> = Arc<dyn Fn(&R, &mut dyn FnMut(&dyn Key, u64)) + Send + Sync>;

/// Returns whether a request passes without a check.
type ExemptFn<R> = Arc<dyn Fn(&R) -> bool + Send + Sync>;

/// The state of the check of a request that has arrived.
pub(crate) enum Admission {
    /// `None` if the request has no limits.
    Admitted(Option<AdmittedCall>),
    Rejected(Rejection),
    /// Redis decides the check, or it waits.
    Pending(CallFuture<AdmittedCall>),
}

impl<R, E> LimitSources<R, E> {
    /// Creates sources without limits. If the middleware `holds` slots, calls in flight can be limited.
    pub(super) fn new(holds: bool) -> Self {
        Self { sources: Vec::new(), is_exempt: None, settles: false, holds, limiter: None }
    }

    /// Adds a limit of each request.
    ///
    /// # Panics
    ///
    /// If the limit cannot be decided together with the others, if it needs slots that are not held, or if one has a
    /// lease and the charges are settled.
    pub(super) fn add<K: Key>(
        &mut self,
        limit: Limit,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
        cost: impl Fn(&R) -> u64 + Send + Sync + 'static,
    ) {
        let agrees =
            self.fixed().next().is_none_or(|first| limit.policy().agrees_with(first.policy()));
        assert!(
            agrees,
            "the limits of one layer or middleware are decided together, but `{}` disagrees about \
             `scope`, `on_error`, `shadow` or `wait`: add it to a separate layer or middleware",
            limit.name()
        );
        assert!(
            self.holds || !limit.is_in_flight(),
            "`{}` limits calls in flight, and a layer around a client holds no slots: hold the permit of \
             `RateLimiter::acquire`",
            limit.name()
        );
        if limit.is_in_flight() {
            self.set_settled();
        } else if self.settles {
            assert_settles(&limit);
        }
        let charge: ChargeFn<R> = Arc::new(move |request, call| call(&key(request), cost(request)));
        self.sources.push(LimitSource::Fixed(limit, charge));
    }

    /// Adds limits that are chosen for each request.
    pub(super) fn add_chosen(
        &mut self,
        choose: impl Fn(&R, &mut RequestLimits) -> Result<(), E> + Send + Sync + 'static,
    ) {
        self.sources.push(LimitSource::Chosen(Arc::new(choose)));
    }

    /// Makes charges that can be settled.
    ///
    /// # Panics
    ///
    /// If a limit has a lease.
    pub(super) fn set_settled(&mut self) {
        self.fixed().for_each(assert_settles);
        self.settles = true;
    }

    /// Returns whether a request can hold slots.
    pub(super) fn may_hold(&self) -> bool {
        let may_hold = |source: &LimitSource<R, E>| match source {
            LimitSource::Fixed(limit, _) => limit.is_in_flight(),
            LimitSource::Chosen(_) => true,
        };
        self.sources.iter().any(may_hold)
    }

    pub(super) fn set_exempt(&mut self, is_exempt: impl Fn(&R) -> bool + Send + Sync + 'static) {
        self.is_exempt = Some(Arc::new(is_exempt));
    }

    pub(super) fn is_exempt(&self, request: &R) -> bool {
        self.is_exempt.as_ref().is_some_and(|is_exempt| is_exempt(request))
    }

    pub(super) fn set_limiter(&mut self, limiter: RateLimiter) {
        self.limiter = Some(limiter);
    }

    /// Returns the limits of each request.
    pub(super) fn fixed(&self) -> impl Iterator<Item = &Limit> {
        self.sources.iter().filter_map(|source| match source {
            LimitSource::Fixed(limit, _) => Some(limit),
            LimitSource::Chosen(_) => None,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns the limit of each request, if it is one and the same, this process counts it, and no rule can apply to
    /// it.
    pub(super) fn single(&self) -> Option<&Limit> {
        let [LimitSource::Fixed(limit, _)] = &*self.sources else { return None };
        let is_plain = |limiter: &RateLimiter| {
            limiter.source() == Source::Embedded && !limiter.checker().rules.may_apply(limit)
        };
        let is_plain = match &self.limiter {
            Some(limiter) => is_plain(limiter),
            None => limiter::with_set(is_plain).unwrap_or(false),
        };
        is_plain.then_some(limit)
    }

    /// Starts the check of a request. If this process decides, the decision is made at once, unless the call waits. A
    /// call to Redis is sent when the check is polled.
    pub(super) fn start(&self, request: &R) -> Result<Admission, E> {
        match &self.limiter {
            Some(limiter) => self.start_with(limiter, request),
            None => limiter::with_current(
                || self.scope(request),
                |limiter| self.start_with(limiter, request),
                |error| {
                    // No limiter decides the request.
                    let limits = self.limits_of(request)?;
                    let first = limits.first();
                    let check = |first| Check::from(undecided(first, error)).into_admitted();
                    Ok(Admission::of(first.map(check), true))
                },
            ),
        }
    }

    fn start_with(&self, limiter: &RateLimiter, request: &R) -> Result<Admission, E> {
        let is_local = limiter.source() == Source::Embedded;
        let is_chosen = |source: &_| matches!(source, LimitSource::Chosen(_));
        if self.sources.iter().any(is_chosen) {
            let limits = self.limits_of(request)?;
            let settles = self.settles || self.holds && limits.are_in_flight();
            return Ok(Admission::of(limits.check(limiter, settles), is_local));
        }
        let mut admission = Admission::Admitted(None);
        // Saves a usual layer the copies of its part (`benches/all -- layer`).
        if let ([LimitSource::Fixed(limit, charge)], false) = (&*self.sources, self.settles) {
            charge(request, &mut |key, cost| {
                let check = limiter.check(limit, key, cost).into_admitted();
                admission = Admission::of(Some(check), is_local);
            });
            return Ok(admission);
        }
        with_fixed_parts(&self.sources, request, &[], &mut |parts| {
            admission = Admission::of(start(limiter, parts, self.settles), is_local);
        });
        Ok(admission)
    }

    /// Returns the scope of the limits of a request, which are decided together.
    fn scope(&self, request: &R) -> Scope {
        let scope = |limit: &Limit| limit.policy().scope();
        match self.sources.first() {
            Some(LimitSource::Fixed(limit, _)) => scope(limit),
            _ => self
                .limits_of(request)
                .ok()
                .and_then(|it| it.first().map(scope))
                .unwrap_or(Scope::Global),
        }
    }

    fn limits_of(&self, request: &R) -> Result<RequestLimits, E> {
        let mut limits = RequestLimits::default();
        for source in &self.sources {
            match source {
                LimitSource::Fixed(limit, charge) => {
                    charge(request, &mut |key, cost| limits.add(limit, key, cost));
                }
                LimitSource::Chosen(choose) => choose(request, &mut limits)?,
            }
        }
        Ok(limits)
    }
}

/// Calls `start` with `parts` and those of the fixed sources. A key lives only while its source
/// calls back, so the next source is asked inside this callback.
fn with_fixed_parts<R, E>(
    sources: &[LimitSource<R, E>],
    request: &R,
    parts: &[AnyPart<'_>],
    start: &mut impl FnMut(&[AnyPart<'_>]),
) {
    let [LimitSource::Fixed(limit, charge), rest @ ..] = sources else {
        debug_assert!(sources.is_empty(), "a chosen source has no part of its own");
        return start(parts);
    };
    charge(request, &mut |key, cost| {
        let mut all: Few<_> = parts.into();
        all.push(Part::of(limit, key, cost));
        with_fixed_parts(rest, request, &all, start);
    });
}

impl Admission {
    /// `is_local` means that this process decides the check at once, unless it waits.
    fn of(check: Option<CallFuture<AdmittedCall>>, is_local: bool) -> Self {
        let Some(mut check) = check else { return Self::Admitted(None) };
        if !is_local {
            return Self::Pending(check);
        }
        match Pin::new(&mut check).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(call)) => Self::Admitted(Some(call)),
            Poll::Ready(Err(rejection)) => Self::Rejected(rejection),
            Poll::Pending => Self::Pending(check),
        }
    }
}

/// Asserts that charges of a limit can be settled.
fn assert_settles(limit: &Limit) {
    assert!(
        !limit.leases(),
        "`{}` has a lease, and leased units belong to no request, so a layer with `count_if` or with a limit of calls \
         in flight cannot give them back: remove the lease, or add the limit to another layer or middleware",
        limit.name()
    );
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R, E> Clone for LimitSources<R, E> {
    fn clone(&self) -> Self {
        Self {
            sources: self.sources.clone(),
            is_exempt: self.is_exempt.clone(),
            settles: self.settles,
            holds: self.holds,
            limiter: self.limiter.clone(),
        }
    }
}

impl<R, E> Clone for LimitSource<R, E> {
    fn clone(&self) -> Self {
        match self {
            Self::Fixed(limit, charge) => Self::Fixed(*limit, Arc::clone(charge)),
            Self::Chosen(choose) => Self::Chosen(Arc::clone(choose)),
        }
    }
}

/// The limits of one request: see [`limits`](super::RateLimitLayer::limits). They are decided together, all or nothing.
#[derive(Default)]
pub struct RequestLimits {
    charges: Vec<(Limit, OwnedKey, u64)>,
}

impl RequestLimits {
    /// Limits the request by `limit`: it takes `cost` units for `key`. The key can borrow from the request.
    pub fn add(&mut self, limit: &Limit, key: impl Key, cost: u64) {
        self.charges.push((*limit, OwnedKey::of(&key), cost));
    }

    /// Starts the check of the request; `None` if it has no limits.
    pub(super) fn check(
        &self,
        limiter: &RateLimiter,
        settles: bool,
    ) -> Option<CallFuture<AdmittedCall>> {
        if let [(limit, ..)] = &*self.charges {
            report::expect(limit);
        }
        let parts = self.charges.iter().map(|(limit, key, cost)| Part::of(limit, key as _, *cost));
        let parts: Vec<AnyPart<'_>> = parts.collect();
        start(limiter, &parts, settles)
    }

    /// Returns whether one of them limits calls in flight.
    fn are_in_flight(&self) -> bool {
        self.charges.iter().any(|(limit, ..)| limit.is_in_flight())
    }

    pub(super) fn first(&self) -> Option<&Limit> {
        self.charges.first().map(|(limit, ..)| limit)
    }
}

/// Starts the check of a request with these limits; `None` if there are none. It has permits if the response decides
/// whether the request counts, or if the request holds slots.
pub(super) fn start(
    limiter: &RateLimiter,
    parts: &[AnyPart<'_>],
    settles: bool,
) -> Option<CallFuture<AdmittedCall>> {
    let (checker, options) = (limiter.checker(), CallOptions::ACQUIRE);
    Some(match (parts, settles) {
        ([], _) => return None,
        (parts, false) => checker.check_all(parts).into_admitted(),
        ([part], true) => {
            let part = Part::of(part.limit, &part.key, part.cost);
            checker.start::<Acquire>(part, options, None).into_admitted()
        }
        (parts, true) => checker.start_all(parts, options).into(),
    })
}

impl fmt::Debug for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.charges.iter().map(|(limit, ..)| limit);
        f.debug_list().entries(limits).finish()
    }
}
