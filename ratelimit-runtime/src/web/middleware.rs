//! The part of a rate-limiting middleware that is the same in every framework. `service` (tower) and `actix` call it.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};

use super::accept::prefers_json;
use super::address::Clients;
use super::address::sealed::RequestAccess;
use super::headers::{self, LimitTexts, NO_STORE};
use super::limit_sources::{Admission, LimitSources};
use super::rejected::{BodyFn, RejectedRequest, RequestFacts, RequestHead, TextResponse};
use super::slots::{HeldSlots, RequestPermits, RequestSlots};
use crate::check::{AdmittedCall, CallFuture};
use crate::reply::{Decision, Rejection};
use crate::report::request_log::{self, LoggedLimit, RequestLog};

tokio::task_local! {
    /// Set while a handler runs, together with the log of its request.
    static FACTS: RequestFacts;
}

/// A request of a server, in the type of a framework.
pub(crate) trait ServerRequest: RequestAccess {
    /// Returns the part of the request that the body of a rejection can show.
    fn head(&self) -> RequestHead;

    fn is_grpc(&self) -> bool {
        false
    }
}

/// The settings of a middleware.
pub(crate) struct MiddlewareConfig<R> {
    pub(super) limits: LimitSources<R, TextResponse>,
    pub(super) settings: ServerSettings,
    /// A log with `limits`: the start of each request that is not exempt.
    log: RequestLog,
    /// The texts of the limits in `log`.
    texts: LimitTexts,
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
}

/// A request between its arrival and its response.
#[derive(Default)]
pub(crate) struct RequestScope {
    log: RequestLog,
    facts: RequestFacts,
    permits: RequestPermits,
    /// The request, if a limit must decide about it.
    undecided: Option<Arc<RequestHead>>,
}

impl<R: ServerRequest> MiddlewareConfig<R> {
    /// Changes the settings.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.log = RequestLog::default();
        self.limits.fixed().for_each(|limit| self.log.announce(limit));
        self.texts = LimitTexts::of(&self.log);
    }

    /// Returns what an admitted request has in its extensions: the decision, and its slots with those of the layers
    /// outside of this one, which are there already.
    #[inline]
    pub(crate) fn admit(
        &self,
        scope: &mut RequestScope,
        decision: Option<Decision>,
        outer: impl FnOnce() -> Option<RequestSlots>,
    ) -> (Option<Decision>, Option<RequestSlots>) {
        let slots = self.limits.may_hold().then(|| {
            let mut slots = outer().unwrap_or_default();
            scope.permits.share_with(&mut slots);
            slots
        });
        (decision.filter(|_| self.settings.exposes_decision), slots)
    }

    /// Returns the scope of a request that has arrived.
    pub(crate) fn scope(&self, request: &R) -> RequestScope {
        let (body, head) = match &self.settings.body {
            Some(body) => (Some(Arc::clone(body)), Some(Arc::new(request.head()))),
            // The body that an outer layer has set.
            None => {
                FACTS.try_with(|outer| (outer.body.clone(), outer.head.clone())).unwrap_or_default()
            }
        };
        let facts = RequestFacts {
            prefers_json: prefers_json(|| request.lines("accept")),
            is_grpc: request.is_grpc(),
            body,
            head,
        };
        let undecided = self.settings.requires_decision.then(|| Arc::new(request.head()));
        let permits = RequestPermits::default();
        RequestScope { log: self.log.clone(), facts, permits, undecided }
    }

    /// Starts the check of a request. Returns the response to a request whose limits cannot be chosen.
    pub(crate) fn start(
        &self,
        request: &R,
        scope: &mut RequestScope,
    ) -> Result<Admission, TextResponse> {
        let RequestScope { log, permits, undecided, .. } = scope;
        if self.limits.is_exempt(request) {
            *log = RequestLog::default();
            *undecided = None;
            return Ok(Admission::Admitted(None));
        }
        if self.limits.is_empty() {
            return Ok(Admission::Admitted(None));
        }
        let mut admission = match self.limits.single() {
            // Records the decision itself. Saves the log of the task (`benches/all -- layer`).
            Some(limit)
                if !limit.is_shadow()
                    && !self.settings.requires_decision
                    && !request_log::is_open() =>
            {
                let admission = self.limits.start(request);
                match &admission {
                    Ok(Admission::Admitted(Some(call))) => {
                        log.record(limit.terms().name(), limit.quota(), &call.decision);
                    }
                    Ok(Admission::Rejected(rejection)) => record_rejection(log, rejection),
                    _ => {}
                }
                admission
            }
            _ => log.sync_scope(|| self.limits.start(request)),
        }?;
        if let Admission::Admitted(Some(call)) = &mut admission {
            *permits = RequestPermits::Own(mem::take(&mut call.permits));
        }
        Ok(admission)
    }

    /// Returns whether the response decides if the request counts.
    #[cfg(feature = "actix")]
    pub(crate) fn is_settled_by_response(&self, scope: &RequestScope) -> bool {
        self.settings.count_if.is_some() && !scope.permits.is_empty()
    }

    /// Gives back the charges of a request whose response does not count.
    pub(crate) fn settle(&self, scope: &mut RequestScope, head: &Parts) {
        if let Some(counts) = &self.settings.count_if
            && !scope.permits.is_empty()
            && !counts(head)
        {
            scope.permits.refund();
        }
    }

    /// Ends an admitted request: settles its charges by its response, and adds the headers that report the limits.
    ///
    /// # Panics
    ///
    /// If a limit had to decide about the request, and none has.
    pub(crate) fn finish(&self, scope: &mut RequestScope, head: &mut Parts) {
        if let Some(request) = &scope.undecided {
            assert!(
                scope.log.has_decided(),
                "no limit has decided about `{} {}`: limit its handler, or exempt it in the layer that has \
                 `require_decision`",
                request.method,
                request.uri.path()
            );
        }
        self.settle(scope, head);
        // A status or an error of the application is a response without the headers of the rejection.
        if let Some(retry_after) = scope.log.retry_after()
            && head.status == StatusCode::TOO_MANY_REQUESTS
        {
            head.headers.entry(RETRY_AFTER).or_insert_with(|| retry_after.into());
            head.headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        }
        self.write_headers(&mut head.headers, scope.log());
    }

    /// Adds the headers that report the limits in `log`.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap, log: &RequestLog) {
        let expected = self.log.limits().map(LoggedLimit::identity);
        if log.limits().map(LoggedLimit::identity).eq(expected) {
            headers::write(headers, log, &self.texts, self.settings.has_legacy_headers);
        } else {
            let texts = LimitTexts::of(log);
            headers::write(headers, log, &texts, self.settings.has_legacy_headers);
        }
    }
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R> Clone for MiddlewareConfig<R> {
    fn clone(&self) -> Self {
        let Self { limits, settings, log, texts } = self;
        let (limits, settings) = (limits.clone(), settings.clone());
        Self { limits, settings, log: log.clone(), texts: texts.clone() }
    }
}

impl<R> Default for MiddlewareConfig<R> {
    fn default() -> Self {
        let (settings, log, texts) = Default::default();
        Self { limits: LimitSources::new(true), settings, log, texts }
    }
}

impl RequestScope {
    /// Polls the check of the request. Keeps its permits until the response.
    pub(crate) fn poll_check(
        &mut self,
        check: &mut CallFuture<AdmittedCall>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Decision, Rejection>> {
        let call = ready!(self.log.sync_scope(|| Pin::new(check).poll(context)))?;
        self.permits = RequestPermits::Own(call.permits);
        Poll::Ready(Ok(call.decision))
    }

    /// Polls the handler of the request.
    pub(crate) fn poll_handler<F: Future>(
        &mut self,
        handler: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        // Without facts of an outer layer, the default needs no scope (`benches/all -- layer`).
        if self.facts.is_default() && FACTS.try_with(|_| ()).is_err() {
            return self.log.sync_scope(|| handler.poll(context));
        }
        let facts = self.facts.clone();
        FACTS.sync_scope(facts, || self.log.sync_scope(|| handler.poll(context)))
    }

    pub(crate) fn is_grpc(&self) -> bool {
        self.facts.is_grpc
    }

    /// Returns what holds the slots of the request from its response on.
    pub(crate) fn take_slots(&mut self) -> HeldSlots {
        self.permits.take_slots()
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
pub(crate) fn respond<B>(
    rejection: &Rejection,
    build: impl FnOnce(&RejectedRequest<'_>) -> Response<B>,
) -> Response<B> {
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
    let texts = LimitTexts::of(&scope.log);
    headers::write(response.headers_mut(), &scope.log, &texts, false);
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
