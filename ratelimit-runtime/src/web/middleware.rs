//! The part of a rate-limiting middleware that is the same in every framework. `service` (tower) and `actix` call it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::accept::prefers_json;
use super::address::Clients;
use super::address::sealed::RequestAccess;
use super::headers::{self, NO_STORE};
use super::limit_sources::LimitSources;
use super::rejected::{BodyFn, CustomBody, RejectedRequest, RequestHead, TextResponse};
use super::slots::{HeldSlots, RequestSlots};
use crate::check::{AdmittedCall, CallFuture, Permit};
use crate::reply::{Decision, Rejection};
use crate::report::request_log::{self, LoggedLimit, RequestLog, ResponseForm};

/// A request of a server, in the type of a framework.
pub(crate) trait ServerRequest: RequestAccess {
    /// Returns the part of the request that the body of a rejection can show.
    fn head(&self) -> RequestHead;

    /// Puts a value into the extensions of the request.
    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T);

    fn is_grpc(&self) -> bool {
        false
    }
}

/// The settings of a middleware.
pub(crate) struct MiddlewareConfig<R> {
    pub(super) limits: LimitSources<R, TextResponse>,
    pub(super) settings: ServerSettings,
}

/// Returns whether a request with this response counts.
type CountFn = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// The settings that do not depend on the type of requests.
#[derive(Clone, Default)]
pub(super) struct ServerSettings {
    pub(super) count_if: Option<CountFn>,
    /// In the extensions of each request.
    pub(super) clients: Option<Clients>,
    pub(super) body: Option<BodyFn>,
    pub(super) exposes_decision: bool,
    pub(super) requires_decision: bool,
    pub(super) has_legacy_headers: bool,
    /// A log with the limits of each request: the start of each request that is not exempt.
    log: RequestLog,
    /// `RateLimit-Policy` of this log. Saves writing it for each response (`benches/all -- layer`).
    policy: Option<HeaderValue>,
}

/// A request between its arrival and its response.
pub(crate) struct RequestScope {
    pub(super) log: RequestLog,
    /// The permits of the request. Dropped, they keep the charges of rates, and free slots.
    pub(super) permits: HeldSlots,
    /// The request, if a limit must decide about it.
    undecided: Option<Box<RequestHead>>,
}

impl<R: ServerRequest> MiddlewareConfig<R> {
    /// Changes the settings.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        let mut log = RequestLog::default();
        self.limits.fixed.iter().for_each(|limit| log.announce(limit));
        self.settings.policy = headers::policy(&log);
        self.settings.log = log;
    }

    /// Returns the scope of a request that has arrived.
    pub(crate) fn scope(&self, request: &mut R) -> RequestScope {
        let ServerSettings { clients, body, requires_decision, log, .. } = &self.settings;
        if let Some(clients) = clients {
            request.insert(clients.clone());
        }
        let custom = body
            .as_ref()
            .map(|function| CustomBody { function: Arc::clone(function), request: request.head() });
        // An outer layer can set the body.
        let outer = || request_log::with_current(|log| log.form.body.clone())?;
        let mut log = log.clone();
        log.form = ResponseForm {
            prefers_json: prefers_json(request.lines("accept").into_iter()),
            is_grpc: request.is_grpc(),
            body: custom.map(|body| Arc::new(body) as _).or_else(outer),
        };
        let undecided = requires_decision.then(|| Box::new(request.head()));
        RequestScope { log, permits: HeldSlots::default(), undecided }
    }

    /// Starts the check of a request; `None` if it has no limits. Returns the response to a request whose limits cannot
    /// be chosen.
    pub(crate) fn start(
        &self,
        request: &R,
        scope: &mut RequestScope,
    ) -> Result<Option<CallFuture<AdmittedCall>>, TextResponse> {
        if self.limits.is_exempt(request) {
            scope.log.clear();
            scope.undecided = None;
            return Ok(None);
        }
        scope.log.sync_scope(|| self.limits.start(request))
    }

    /// Puts into the extensions of an admitted request what its handler finds there: the decision, and its slots with
    /// those of the layers outside of this one, which are there already.
    pub(crate) fn admit(&self, scope: &RequestScope, decision: Option<Decision>, request: &mut R) {
        if self.limits.may_hold() {
            let mut slots = request.extension::<RequestSlots>().unwrap_or_default();
            slots.add(&scope.permits);
            request.insert(slots);
        }
        if let Some(decision) = decision.filter(|_| self.settings.exposes_decision) {
            request.insert(decision);
        }
    }

    /// Gives the charges of rates back if the response does not count. `counts` applies the setting to the response.
    pub(crate) fn settle(&self, scope: &RequestScope, counts: impl FnOnce(&CountFn) -> bool) {
        let Some(count_if) = &self.settings.count_if else { return };
        let rates = scope.permits.take(|permit| !permit.is_held());
        if !rates.is_empty() && !counts(count_if) {
            rates.into_iter().for_each(Permit::refund);
        }
    }

    /// Ends an admitted request: settles its charges by its response, and adds the headers that report the limits.
    ///
    /// # Panics
    ///
    /// If a limit had to decide about the request, and none has.
    pub(crate) fn finish(&self, scope: &RequestScope, head: &mut Parts) {
        if let Some(request) = &scope.undecided {
            assert!(
                scope.log.has_decided,
                "no limit has decided about `{} {}`: limit its handler, or exempt it in the layer that has \
                 `require_decision`",
                request.method,
                request.uri.path()
            );
        }
        self.settle(scope, |counts| counts(head));
        // A status or an error of the application is a response without the headers of the rejection.
        if let Some(retry_after) = scope.log.retry_after
            && head.status == StatusCode::TOO_MANY_REQUESTS
        {
            head.headers.entry(RETRY_AFTER).or_insert_with(|| retry_after.into());
            head.headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        }
        self.write_headers(scope, &mut head.headers);
    }

    /// Adds the headers that report the limits of a request.
    pub(crate) fn write_headers(&self, scope: &RequestScope, headers: &mut HeaderMap) {
        let ServerSettings { log: expected, policy, has_legacy_headers, .. } = &self.settings;
        let [limits, expected] =
            [&scope.log, expected].map(|log| log.limits().map(LoggedLimit::identity));
        let policy = if limits.eq(expected) { policy.clone() } else { headers::policy(&scope.log) };
        headers::write(headers, &scope.log, policy, *has_legacy_headers);
    }
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R> Clone for MiddlewareConfig<R> {
    fn clone(&self) -> Self {
        Self { limits: self.limits.clone(), settings: self.settings.clone() }
    }
}

impl<R> Default for MiddlewareConfig<R> {
    fn default() -> Self {
        Self { limits: LimitSources::new(true), settings: ServerSettings::default() }
    }
}

impl RequestScope {
    /// Returns the decision about the request, if it is made. Keeps its permits until the response.
    pub(crate) fn take_decided(
        &mut self,
        check: &mut Option<CallFuture<AdmittedCall>>,
    ) -> Option<Result<Option<Decision>, Rejection>> {
        match check {
            None => Some(Ok(None)),
            Some(CallFuture::Decided(decided)) => {
                Some(decided.take()?.map(|call| Some(self.keep(call))))
            }
            Some(CallFuture::Pending(_)) => None,
        }
    }

    fn keep(&mut self, call: AdmittedCall) -> Decision {
        self.permits = HeldSlots::of(call.permits);
        call.decision
    }

    /// Polls the check of the request. Keeps its permits until the response.
    pub(crate) fn poll_check(
        &mut self,
        check: &mut Option<CallFuture<AdmittedCall>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Decision>, Rejection>> {
        let Some(check) = check else { return Poll::Ready(Ok(None)) };
        let call = ready!(self.log.sync_scope(|| Pin::new(check).poll(context)))?;
        Poll::Ready(Ok(Some(self.keep(call))))
    }

    /// Polls the handler of the request.
    pub(crate) fn poll_handler<F: Future>(
        &mut self,
        handler: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        self.log.sync_scope(|| handler.poll(context))
    }

    /// Returns the request as rejected by `rejection`.
    pub(crate) fn rejected<'a>(&'a self, rejection: &'a Rejection) -> RejectedRequest<'a> {
        RejectedRequest::new(rejection, &self.log)
    }
}

/// Builds the response of a rejection that a handler returns. Behind a middleware, `build` receives the format
/// that the client prefers, and the middleware adds the headers. Elsewhere, this function adds the headers that
/// report the limit.
pub(crate) fn respond<B>(
    rejection: &Rejection,
    build: impl FnOnce(&RejectedRequest<'_>) -> Response<B>,
) -> Response<B> {
    let recorded = |log: &mut RequestLog| {
        record_rejection(log, rejection);
        log.clone()
    };
    if let Some(log) = request_log::with_current(recorded) {
        return build(&RejectedRequest::new(rejection, &log));
    }
    let mut log = RequestLog::default();
    record_rejection(&mut log, rejection);
    let mut response = build(&RejectedRequest::new(rejection, &log));
    headers::write(response.headers_mut(), &log, headers::policy(&log), false);
    response
}

/// Records a rejection that becomes a response without headers, for the middleware that adds them.
pub(crate) fn note(rejection: &Rejection) {
    request_log::with_current(|log| record_rejection(log, rejection));
}

fn record_rejection(log: &mut RequestLog, rejection: &Rejection) {
    if let Rejection::Limited { name, quota, decision }
    | Rejection::Blocked { name, quota, decision }
    | Rejection::Busy { name, quota, decision, .. } = rejection
        && request_log::wait(rejection).is_some()
    {
        log.record(name, *quota, decision);
    }
    log.reject(rejection);
}
