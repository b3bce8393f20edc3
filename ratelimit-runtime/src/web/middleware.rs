//! The part of a rate-limiting middleware that is the same in every framework. `layer` with `response` (tower)
//! and `actix` call it: they read requests and build responses.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::accept::prefers_json;
use super::address::Clients;
use super::headers::{self, LimitTexts, ResponseHeaders};
use super::limit_sources::{Admission, LimitSources};
use super::rejected::{BodyFn, RejectedRequest, RequestFacts, RequestHead};
use super::request_check::RequestCheck;
use super::request_limits::RequestLimits;
use super::slots::{HeldSlots, RequestPermits, RequestSlots};
use super::text_response::TextResponse;
use crate::key::Key;
use crate::limit::Limit;
use crate::limiter::RateLimiter;
use crate::reply::{Decision, Rejection};
use crate::report::request_log::{self, LoggedLimit, RequestLog};

tokio::task_local! {
    /// Set while a handler runs, together with the log of its request.
    static FACTS: RequestFacts;
}

/// The part of a request that a middleware reads, in the type of a framework.
pub(crate) trait MiddlewareRequest {
    /// The headers of the responses.
    type Headers: ResponseHeaders;

    /// The status and the headers of the responses.
    type ResponseHead;

    /// Adds `Retry-After` and `Cache-Control: no-store` to a 429 that lacks them.
    fn complete(head: &mut Self::ResponseHead, retry_after: u64);

    /// Returns the headers of a response.
    fn headers(head: &mut Self::ResponseHead) -> &mut Self::Headers;

    /// Returns the part of the request that the body of a rejection can show.
    fn head(&self) -> Arc<dyn RequestHead>;

    /// Returns the lines of the `Accept` header.
    fn accept(&self) -> impl Iterator<Item = &[u8]>;

    #[cfg(feature = "tower")]
    fn is_grpc(&self) -> bool {
        false
    }
}

/// The extensions of a request, in the type of a framework.
pub(crate) trait RequestExtensions {
    fn put<T: Clone + Send + Sync + 'static>(&mut self, value: T);
    fn find<T: Send + Sync + 'static>(&self) -> Option<&T>;
}

/// Returns whether a request with this response counts.
type CountFn<H> = Arc<dyn Fn(&H) -> bool + Send + Sync>;

/// The settings of a middleware.
pub(crate) struct MiddlewareConfig<R: MiddlewareRequest> {
    limits: LimitSources<R, TextResponse>,
    count_if: Option<CountFn<R::ResponseHead>>,
    clients: Option<Clients>,
    body: Option<BodyFn>,
    exposes_decision: bool,
    requires_decision: bool,
    has_legacy_headers: bool,
    /// A log with `limits`: the start of each request that is not exempt.
    log: RequestLog,
    /// The texts of the limits in `log`.
    texts: LimitTexts<<R::Headers as ResponseHeaders>::Value>,
}

/// A request between its arrival and its response.
#[derive(Default)]
pub(crate) struct RequestScope {
    log: RequestLog,
    facts: RequestFacts,
    permits: RequestPermits,
    /// The request, if a limit must decide about it.
    undecided: Option<Arc<dyn RequestHead>>,
}

impl<R: MiddlewareRequest> MiddlewareConfig<R> {
    pub(crate) fn add_limit<K: Key>(
        &mut self,
        limit: Limit,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
        cost: impl Fn(&R) -> u64 + Send + Sync + 'static,
    ) {
        self.log.announce(&limit);
        self.texts = LimitTexts::of::<R::Headers>(&self.log);
        self.limits.add(limit, key, cost);
    }

    pub(crate) fn add_limits(
        &mut self,
        choose: impl Fn(&R, &mut RequestLimits) -> Result<(), TextResponse> + Send + Sync + 'static,
    ) {
        self.limits.add_chosen(choose);
    }

    pub(crate) fn set_count_if(
        &mut self,
        counts: impl Fn(&R::ResponseHead) -> bool + Send + Sync + 'static,
    ) {
        self.limits.set_settled();
        self.count_if = Some(Arc::new(counts));
    }

    pub(crate) fn set_exempt(&mut self, is_exempt: impl Fn(&R) -> bool + Send + Sync + 'static) {
        self.limits.set_exempt(is_exempt);
    }

    pub(crate) fn set_limiter(&mut self, limiter: RateLimiter) {
        self.limits.set_limiter(limiter);
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

    pub(crate) fn set_exposed(&mut self) {
        self.exposes_decision = true;
    }

    /// Puts into the extensions of an admitted request what its handler finds there.
    #[inline]
    pub(crate) fn admit(
        &self,
        scope: &mut RequestScope,
        decision: Option<Decision>,
        extensions: &mut impl RequestExtensions,
    ) {
        if let Some(decision) = decision.filter(|_| self.exposes_decision) {
            extensions.put(decision);
        }
        if self.limits.may_hold() {
            scope.share_slots(extensions);
        }
    }

    pub(crate) fn set_required(&mut self) {
        self.requires_decision = true;
    }

    pub(crate) fn set_legacy_headers(&mut self) {
        self.has_legacy_headers = true;
    }

    /// Returns the scope of a request that has arrived.
    pub(crate) fn scope(&self, request: &R) -> RequestScope {
        let (body, head) = match &self.body {
            Some(body) => (Some(Arc::clone(body)), Some(request.head())),
            // The body that an outer layer has set.
            None => {
                FACTS.try_with(|outer| (outer.body.clone(), outer.head.clone())).unwrap_or_default()
            }
        };
        let facts = RequestFacts {
            prefers_json: prefers_json(|| request.accept()),
            #[cfg(feature = "tower")]
            is_grpc: request.is_grpc(),
            body,
            head,
        };
        let undecided = self.requires_decision.then(|| request.head());
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
                if !limit.is_shadow() && !self.requires_decision && !request_log::is_open() =>
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
        self.count_if.is_some() && !scope.permits.is_empty()
    }

    /// Gives back the charges of a request whose response does not count.
    pub(crate) fn settle(&self, scope: &mut RequestScope, head: &R::ResponseHead) {
        if let Some(counts) = &self.count_if
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
    pub(crate) fn finish(&self, scope: &mut RequestScope, head: &mut R::ResponseHead) {
        if let Some(request) = &scope.undecided {
            assert!(
                scope.log.has_decided(),
                "no limit has decided about `{} {}`: limit its handler, or exempt it in the layer that has \
                 `require_decision`",
                request.method(),
                request.path()
            );
        }
        self.settle(scope, head);
        // A status or an error of the application is a response without the headers of the rejection.
        if let Some(retry_after) = scope.log.retry_after() {
            R::complete(head, retry_after);
        }
        self.write_headers(R::headers(head), scope.log());
    }

    /// Adds the headers that report the limits in `log`.
    pub(crate) fn write_headers(&self, headers: &mut R::Headers, log: &RequestLog) {
        let expected = self.log.limits().map(LoggedLimit::identity);
        if log.limits().map(LoggedLimit::identity).eq(expected) {
            headers::write(headers, log, &self.texts, self.has_legacy_headers);
        } else {
            let texts = LimitTexts::of::<R::Headers>(log);
            headers::write(headers, log, &texts, self.has_legacy_headers);
        }
    }
}

// Not derived: a request type need not implement `Clone` or `Default`.
impl<R: MiddlewareRequest> Clone for MiddlewareConfig<R> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            count_if: self.count_if.clone(),
            clients: self.clients.clone(),
            body: self.body.clone(),
            exposes_decision: self.exposes_decision,
            requires_decision: self.requires_decision,
            has_legacy_headers: self.has_legacy_headers,
            log: self.log.clone(),
            texts: self.texts.clone(),
        }
    }
}

impl<R: MiddlewareRequest> Default for MiddlewareConfig<R> {
    fn default() -> Self {
        Self {
            limits: LimitSources::new(true),
            count_if: None,
            clients: None,
            body: None,
            exposes_decision: false,
            requires_decision: false,
            has_legacy_headers: false,
            log: RequestLog::default(),
            texts: LimitTexts::default(),
        }
    }
}

impl RequestScope {
    /// Polls the check of the request. Keeps its permits until the response.
    pub(crate) fn poll_check(
        &mut self,
        check: &mut RequestCheck,
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

    #[cfg(feature = "tower")]
    pub(crate) fn is_grpc(&self) -> bool {
        self.facts.is_grpc
    }

    /// Puts the slots of the request into its extensions, with those of the layers outside of this one.
    fn share_slots(&mut self, extensions: &mut impl RequestExtensions) {
        let mut slots = extensions.find::<RequestSlots>().cloned().unwrap_or_default();
        self.permits.share_with(&mut slots);
        extensions.put(slots);
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
    let texts = LimitTexts::of::<H>(&scope.log);
    headers::write(headers(&mut response), &scope.log, &texts, false);
    response
}

/// Records a rejection that becomes a response without headers, for the middleware that adds them.
#[cfg(feature = "tower")]
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
