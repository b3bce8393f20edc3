//! The settings of a layer, and how it starts the check of a request. A layer has limits for all requests, and the
//! application can choose further limits for each one.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use http::response::Parts;

use super::address::Clients;
use super::headers;
use super::rejected::BodyFn;
use crate::check::{AdmittedCall, AnyPart, CallFuture, Part, undecided};
use crate::key::{Key, KeyWriter, OwnedKey};
use crate::limit::Limit;
use crate::limiter::{self, RateLimiter};
use crate::local::Few;
use crate::one_or_many::OneOrMany;
use crate::reply::Decision;
use crate::report;
use crate::report::request_log::RequestLog;

/// Whether a request passes without a check.
type Exempts<R> = dyn Fn(&R) -> bool + Send + Sync;

/// The settings of a layer for requests of type `R`. A request whose limits cannot be chosen ends with an `E`.
pub(crate) struct LayerConfig<R, E> {
    /// The limits that each request has.
    fixed: Vec<Limit>,
    /// What adds the limits of a request: one for each fixed limit, and those of the application.
    sources: Vec<Arc<LimitSource<R, E>>>,
    pub(super) is_exempt: Option<Arc<Exempts<R>>>,
    /// Puts the decision about an admitted request into it.
    pub(super) expose: Option<fn(&mut R, Decision)>,
    /// `None` for the current limiter.
    pub(super) limiter: Option<RateLimiter>,
    /// Whether the charges of each request can be settled.
    settles: bool,
    /// Whether requests can hold slots: the layer is one of a server.
    holds: bool,
    pub(super) server: ServerSettings,
}

/// Passes limits of a request on, each with the key and the cost of the request, or returns why the request ends.
type LimitSource<R, E> = dyn Fn(&R, &mut PutFn<'_>) -> Result<(), E> + Send + Sync;

type PutFn<'a> = dyn FnMut(&Limit, &dyn Key, u64) + 'a;

/// Returns whether a request with this response counts.
pub(super) type CountFn = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// The settings of a layer of a server.
#[derive(Clone, Default)]
pub(super) struct ServerSettings {
    pub(super) count_if: Option<CountFn>,
    /// In the extensions of each request.
    pub(super) clients: Option<Clients>,
    pub(super) body: Option<BodyFn>,
    pub(super) requires_decision: bool,
    /// A log with the limits of each request: the start of each request that is not exempt.
    pub(super) log: RequestLog,
    /// `RateLimit-Policy` of this log. Saves writing it for each response (`benches/all -- layer`).
    pub(super) policy: Option<HeaderValue>,
}

impl<R, E> LayerConfig<R, E> {
    /// Creates the settings of a layer without limits. If it `holds` slots, calls in flight can be limited.
    pub(super) fn new(holds: bool) -> Self {
        Self {
            fixed: Vec::new(),
            sources: Vec::new(),
            is_exempt: None,
            expose: None,
            limiter: None,
            settles: false,
            holds,
            server: ServerSettings::default(),
        }
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
            self.fixed.first().is_none_or(|first| limit.policy().agrees_with(first.policy()));
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
        self.fixed.push(limit);
        self.settle_if(limit.is_in_flight());
        self.server.log.expect(&limit);
        self.server.policy = headers::policy(&self.server.log);
        self.sources.push(Arc::new(move |request, put| {
            put(&limit, &key(request), cost(request));
            Ok(())
        }));
    }

    /// Adds limits that are chosen for each request.
    pub(super) fn add_chosen(
        &mut self,
        choose: impl Fn(&R, &mut RequestLimits) -> Result<(), E> + Send + Sync + 'static,
    ) {
        self.sources.push(Arc::new(move |request, put| {
            let mut limits = RequestLimits::default();
            choose(request, &mut limits)?;
            limits.charges.iter().for_each(|charge| put(&charge.limit, charge, charge.cost));
            Ok(())
        }));
    }

    /// Makes charges that can be settled if a setting or a limit needs it.
    ///
    /// # Panics
    ///
    /// If the charges are settled, and a limit has a lease.
    pub(super) fn settle_if(&mut self, is_needed: bool) {
        self.settles |= is_needed;
        if let Some(limit) = self.fixed.iter().find(|limit| self.settles && limit.leases()) {
            panic!(
                "`{}` has a lease, and leased units belong to no request, so a layer with `count_if` or with a limit \
                 of calls in flight cannot give them back: remove the lease, or add the limit to another layer or \
                 middleware",
                limit.name()
            );
        }
    }

    /// Returns whether a request can hold slots.
    pub(super) fn may_hold(&self) -> bool {
        let is_chosen = self.sources.len() > self.fixed.len();
        is_chosen || self.fixed.iter().any(Limit::is_in_flight)
    }

    pub(super) fn is_exempt(&self, request: &R) -> bool {
        self.is_exempt.as_ref().is_some_and(|is_exempt| is_exempt(request))
    }

    /// Puts the check of a request into `check`, if it has limits: from there, it is not copied
    /// (`benches/all -- layer`). If this process decides, the check is ready at once, unless the call waits. A call to
    /// Redis is sent when the check is polled.
    ///
    /// `keep` receives each limit of the request, with its key.
    pub(super) fn start(
        &self,
        request: &R,
        check: &mut Option<CallFuture<AdmittedCall>>,
        mut keep: impl FnMut(&Limit, &dyn Key),
    ) -> Result<(), E> {
        if let ([only], [_]) = (&*self.sources, &*self.fixed) {
            // Saves copying the key (`benches/all -- layer`).
            return only(request, &mut |limit, key, cost| {
                keep(limit, key);
                *check = Some(self.check(&[Part::of(limit, key, cost)]));
            });
        }
        let mut limits = RequestLimits::default();
        for source in &self.sources {
            source(request, &mut |limit, key, cost| {
                keep(limit, key);
                limits.add(limit, key, cost);
            })?;
        }
        let parts = limits.charges.iter().map(|it| Part::of(&it.limit, it as _, it.cost));
        let parts: Few<AnyPart<'_>> = parts.collect();
        if let [only] = &*parts {
            report::expect(only.limit);
        }
        *check = (!parts.is_empty()).then(|| self.check(&parts));
        Ok(())
    }

    /// Starts the check of a request with these limits. If it settles, it has permits: the response decides whether the
    /// request counts, or the request holds slots.
    fn check(&self, parts: &[AnyPart<'_>]) -> CallFuture<AdmittedCall> {
        let first = parts[0].limit;
        let settles = self.settles || self.holds && parts.iter().any(|it| it.limit.is_in_flight());
        let start = |limiter: &RateLimiter| {
            if settles {
                limiter.checker().start_all(parts, true)
            } else {
                limiter.checker().check_all(parts).0.map(AdmittedCall::from)
            }
        };
        limiter::with_current(
            self.limiter.as_ref(),
            || first.policy().scope,
            start,
            |error| CallFuture::decided(undecided(first, error).map(AdmittedCall::from)),
        )
    }
}

// Not derived: a request type need not implement `Clone`.
impl<R, E> Clone for LayerConfig<R, E> {
    fn clone(&self) -> Self {
        Self {
            fixed: self.fixed.clone(),
            sources: self.sources.clone(),
            is_exempt: self.is_exempt.clone(),
            limiter: self.limiter.clone(),
            server: self.server.clone(),
            ..*self
        }
    }
}

/// The limits of one request: see [`limits`](super::RateLimitLayer::limits). They are decided together, all or nothing.
#[derive(Default)]
pub struct RequestLimits {
    charges: OneOrMany<RequestCharge>,
}

/// What a request takes of one limit.
struct RequestCharge {
    limit: Limit,
    key: OwnedKey,
    lacks_secret: bool,
    cost: u64,
}

impl RequestLimits {
    /// Limits the request by `limit`: it takes `cost` units for `key`. The key can borrow from the request.
    pub fn add(&mut self, limit: &Limit, key: impl Key, cost: u64) {
        let (key, lacks_secret) = OwnedKey::and_secret_of(&key);
        self.charges.push(RequestCharge { limit: *limit, key, lacks_secret, cost });
    }
}

impl Key for RequestCharge {
    fn write(&self, out: &mut KeyWriter<'_>) {
        self.key.write(out);
        out.lacks_secret |= self.lacks_secret;
    }
}

impl fmt::Debug for RequestLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.charges.iter().map(|charge| &charge.limit)).finish()
    }
}
