//! The part of a rate-limiting middleware that is the same in every framework. `layer` with `response` (tower)
//! and `actix` call it: they read requests and build responses.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::task::futures::TaskLocalFuture;

use super::accept::prefers_json;
use super::address::Clients;
use super::headers::{self, ResponseHeaders};
use super::rejected::{BodyFn, RejectedRequest, RequestFacts, RequestHead};
use super::request_limits::RequestLimits;
use super::text_response::TextResponse;
use crate::check::Check;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::{self, RateLimiter};
use crate::reply::{Rejection, Source, StoreError};
use crate::report::request_log::{self, LoggedFuture, LoggedLimit, RequestLog};

tokio::task_local! {
    /// Set while a handler runs, together with the log of its request.
    static FACTS: RequestFacts;
}

/// A handler that runs with the log and the facts of its request. `take_value` returns the log.
pub(crate) type HandlerFuture<F> = LoggedFuture<TaskLocalFuture<RequestFacts, F>>;

/// The part of a request that a middleware reads, in the type of a framework.
pub(crate) trait MiddlewareRequest {
    /// The headers of the responses.
    type Headers: ResponseHeaders;

    /// Returns the part of the request that the body of a rejection can show.
    fn head(&self) -> Arc<dyn RequestHead>;

    /// Returns the lines of the `Accept` header.
    fn accept(&self) -> impl Iterator<Item = &[u8]>;

    #[cfg(feature = "tower")]
    fn is_grpc(&self) -> bool {
        false
    }
}

/// The settings of a middleware.
pub(crate) struct MiddlewareConfig<R: MiddlewareRequest> {
    limits: Vec<LimitSource<R>>,
    is_exempt: Option<ExemptFn<R>>,
    limiter: Option<RateLimiter>,
    clients: Option<Clients>,
    body: Option<BodyFn>,
    has_legacy_headers: bool,
    /// A log with `limits`: the start of each request that is not exempt.
    log: RequestLog,
    /// `RateLimit-Policy` for `log`.
    policy: Option<<R::Headers as ResponseHeaders>::Value>,
}

/// Where a limit of a request comes from.
enum LimitSource<R> {
    /// One limit for each request.
    Fixed(Limit, KeyFn<R>),
    /// Limits that the application chooses for each request.
    Chosen(ChooseFn<R>),
}

/// The check of a request; `None` if the request has no limits.
type RequestCheck = Result<Option<Check>, TextResponse>;

/// Adds the limits of a request, or returns the response to it.
type ChooseFn<R> = Arc<dyn Fn(&R, &mut RequestLimits) -> Result<(), TextResponse> + Send + Sync>;

/// Returns whether a request passes without a check.
type ExemptFn<R> = Arc<dyn Fn(&R) -> bool + Send + Sync>;

/// Calls back with the key of a request. The key may borrow from the request, so it is not returned.
type KeyFn<R> = Arc<dyn Fn(&R, &mut dyn FnMut(&dyn Key)) + Send + Sync>;

/// A request between its arrival and its response.
#[derive(Default)]
pub(crate) struct RequestScope {
    log: RequestLog,
    facts: RequestFacts,
}

/// The state of the check of a request that has arrived.
pub(crate) enum Admission {
    Admitted,
    Rejected(Rejection),
    /// The request has no key, and gets this response.
    Refused(TextResponse),
    /// Poll it with [`RequestScope::poll_check`].
    Pending(Check),
}

impl<R: MiddlewareRequest> MiddlewareConfig<R> {
    pub(crate) fn add_limit<K: Key>(
        &mut self,
        limit: Limit,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
    ) {
        let first = self.limits.iter().find_map(|source| match source {
            LimitSource::Fixed(first, _) => Some(first),
            LimitSource::Chosen(_) => None,
        });
        let agrees = first.is_none_or(|first| limit.policy().agrees_with(first.policy()));
        assert!(
            agrees,
            "the limits of one layer or middleware are decided together, but `{}` disagrees about \
             `scope`, `on_error`, `shadow` or `wait`: add it to a separate layer or middleware",
            limit.name()
        );
        self.log.expect(&limit);
        self.policy = headers::policy::<R::Headers>(&self.log);
        let key: KeyFn<R> = Arc::new(move |request, call| call(&key(request)));
        self.limits.push(LimitSource::Fixed(limit, key));
    }

    pub(crate) fn add_limits(
        &mut self,
        choose: impl Fn(&R, &mut RequestLimits) -> Result<(), TextResponse> + Send + Sync + 'static,
    ) {
        self.limits.push(LimitSource::Chosen(Arc::new(choose)));
    }

    pub(crate) fn set_exempt(&mut self, is_exempt: impl Fn(&R) -> bool + Send + Sync + 'static) {
        self.is_exempt = Some(Arc::new(is_exempt));
    }

    pub(crate) fn set_limiter(&mut self, limiter: RateLimiter) {
        self.limiter = Some(limiter);
    }

    pub(crate) fn set_clients(&mut self, clients: Clients) {
        self.clients = Some(clients);
    }

    /// Returns what a middleware puts into the extensions of each request.
    pub(crate) fn clients(&self) -> Option<&Clients> {
        self.clients.as_ref()
    }

    pub(crate) fn set_body<T: Into<TextResponse>>(
        &mut self,
        body: impl Fn(&RejectedRequest<'_>) -> T + Send + Sync + 'static,
    ) {
        self.body = Some(Arc::new(move |request| body(request).into()));
    }

    pub(crate) fn set_legacy_headers(&mut self) {
        self.has_legacy_headers = true;
    }

    /// Starts the check of a request that has arrived. If this process decides, the decision is made at once, unless
    /// the call waits. A call to Redis is sent when the check is polled.
    pub(crate) fn start(&self, request: &R) -> (RequestScope, Admission) {
        let (body, head) = match &self.body {
            Some(body) => (Some(Arc::clone(body)), Some(request.head())),
            // The body that an outer layer has set.
            None => {
                FACTS.try_with(|outer| (outer.body.clone(), outer.head.clone())).unwrap_or_default()
            }
        };
        let facts = RequestFacts {
            prefers_json: prefers_json(request.accept()),
            #[cfg(feature = "tower")]
            is_grpc: request.is_grpc(),
            body,
            head,
        };
        if self.is_exempt.as_ref().is_some_and(|is_exempt| is_exempt(request)) {
            return (RequestScope { log: RequestLog::default(), facts }, Admission::Admitted);
        }
        let mut log = self.log.clone();
        if self.limits.is_empty() {
            return (RequestScope { log, facts }, Admission::Admitted);
        }
        let admission = log.sync_scope(|| self.start_check(request));
        let admission = admission.unwrap_or_else(Admission::Refused);
        (RequestScope { log, facts }, admission)
    }

    /// Starts the check of a request with the current limiter, or with the one of this middleware.
    fn start_check(&self, request: &R) -> Result<Admission, TextResponse> {
        let (check, is_local) = match &self.limiter {
            Some(limiter) => self.check(limiter, request),
            None => limiter::with_current(
                |limiter| self.check(limiter, request),
                |error| (self.undecided(request, StoreError::Configuration(error)), true),
            ),
        };
        let Some(mut check) = check? else { return Ok(Admission::Admitted) };
        if !is_local {
            return Ok(Admission::Pending(check));
        }
        Ok(match Pin::new(&mut check).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(_)) => Admission::Admitted,
            Poll::Ready(Err(rejection)) => Admission::Rejected(rejection),
            Poll::Pending => Admission::Pending(check),
        })
    }

    /// Returns the check of a request, and whether this process decides it.
    fn check(&self, limiter: &RateLimiter, request: &R) -> (RequestCheck, bool) {
        let is_local = limiter.source() == Source::Embedded;
        if let [LimitSource::Fixed(limit, key)] = &*self.limits {
            let mut check = None;
            key(request, &mut |key| check = Some(limiter.check(limit, key, 1)));
            return (Ok(check), is_local);
        }
        (self.limits_of(request).map(|limits| limits.check(limiter)), is_local)
    }

    /// Returns the check of a request that no limiter decides.
    fn undecided(&self, request: &R, error: StoreError) -> RequestCheck {
        let limits = self.limits_of(request)?;
        Ok(limits.first().map(|first| Check::undecided(first, error)))
    }

    fn limits_of(&self, request: &R) -> Result<RequestLimits, TextResponse> {
        let mut limits = RequestLimits::default();
        for source in &self.limits {
            match source {
                LimitSource::Fixed(limit, key) => {
                    key(request, &mut |key| limits.add(limit, key, 1));
                }
                LimitSource::Chosen(choose) => choose(request, &mut limits)?,
            }
        }
        Ok(limits)
    }

    /// Adds the headers that report the limits in `log`.
    pub(crate) fn write_headers(&self, headers: &mut R::Headers, log: &RequestLog) {
        let expected = self.log.limits().map(LoggedLimit::identity);
        let policy = if log.limits().map(LoggedLimit::identity).eq(expected) {
            self.policy.clone()
        } else {
            headers::policy::<R::Headers>(log)
        };
        headers::write(headers, log, policy, self.has_legacy_headers);
    }
}

impl<R> Clone for LimitSource<R> {
    fn clone(&self) -> Self {
        match self {
            Self::Fixed(limit, key) => Self::Fixed(limit.clone(), Arc::clone(key)),
            Self::Chosen(choose) => Self::Chosen(Arc::clone(choose)),
        }
    }
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R: MiddlewareRequest> Clone for MiddlewareConfig<R> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            is_exempt: self.is_exempt.clone(),
            limiter: self.limiter.clone(),
            clients: self.clients.clone(),
            body: self.body.clone(),
            has_legacy_headers: self.has_legacy_headers,
            log: self.log.clone(),
            policy: self.policy.clone(),
        }
    }
}

impl<R: MiddlewareRequest> Default for MiddlewareConfig<R> {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            is_exempt: None,
            limiter: None,
            clients: None,
            body: None,
            has_legacy_headers: false,
            log: RequestLog::default(),
            policy: None,
        }
    }
}

impl RequestScope {
    /// Polls the check of the request.
    pub(crate) fn poll_check(
        &mut self,
        check: &mut Check,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Rejection>> {
        self.log.sync_scope(|| Pin::new(check).poll(context)).map_ok(drop)
    }

    /// Runs the handler of the request.
    pub(crate) fn handle<F: Future>(self, handler: F) -> HandlerFuture<F> {
        self.log.scope(FACTS.scope(self.facts, handler))
    }

    #[cfg(feature = "tower")]
    pub(crate) fn is_grpc(&self) -> bool {
        self.facts.is_grpc
    }

    pub(crate) fn log(&self) -> &RequestLog {
        &self.log
    }

    /// Returns the request as rejected by `rejection`.
    pub(crate) fn rejected<'a>(&'a self, rejection: &'a Rejection) -> RejectedRequest<'a> {
        RejectedRequest::new(rejection, &self.facts, &self.log)
    }
}

/// Builds the response of a rejection that a handler returns. Behind a middleware, `build` receives the format
/// that the client prefers, and the middleware adds the headers. Elsewhere, this function adds the headers that
/// report the limit.
pub(crate) fn respond<T, H: ResponseHeaders>(
    rejection: &Rejection,
    build: impl FnOnce(&RejectedRequest<'_>) -> T,
    headers: impl FnOnce(&mut T) -> &mut H,
) -> T {
    let recorded = |log: &mut RequestLog| {
        record_rejection(log, rejection);
        log.clone()
    };
    if let Some(log) = request_log::with_current(recorded) {
        let facts = FACTS.try_with(RequestFacts::clone).unwrap_or_default();
        return build(&RejectedRequest::new(rejection, &facts, &log));
    }
    let mut scope = RequestScope::default();
    record_rejection(&mut scope.log, rejection);
    let mut response = build(&scope.rejected(rejection));
    let policy = headers::policy::<H>(&scope.log);
    headers::write(headers(&mut response), &scope.log, policy, false);
    response
}

fn record_rejection(log: &mut RequestLog, rejection: &Rejection) {
    if let Rejection::Limited { name, quota, decision } = rejection {
        log.record(name, *quota, decision);
    }
}
