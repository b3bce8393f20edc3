//! The part of a rate-limiting middleware that is the same in every framework. `layer` (tower) and `actix` call it.

use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, Request, Response, StatusCode};

use super::accept::prefers_json;
use super::address::RequestAccess;
use super::config::{CountFn, LayerConfig, ServerSettings};
use super::headers::{self, NO_STORE};
use super::rejected::{CustomBody, RejectedRequest, TextResponse};
use super::slots::{HeldSlots, RequestSlots};
use crate::check::{AdmittedCall, CallFuture, Permit};
use crate::reply::Rejection;
use crate::report::request_log::{self, LoggedLimit, RequestLog};

/// A request of a server, in the type of a framework.
pub(crate) trait ServerRequest: RequestAccess {
    /// Returns the part of the request that the body of a rejection can show.
    fn head(&self) -> Request<()>;

    /// Puts a value into the extensions of the request.
    fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T);

    /// Returns whether the client prefers JSON to plain text.
    fn prefers_json(&self) -> bool {
        prefers_json(self.lines("accept"))
    }
}

/// A request between its arrival and its response.
pub(crate) struct RequestScope {
    pub(super) log: Box<RequestLog>,
    /// The permits of the request. Dropped, they keep the charges of rates, and free slots.
    pub(super) permits: HeldSlots,
    /// The check of the request; `None` if it has no limits.
    check: Option<CallFuture<AdmittedCall>>,
    /// The method and the path of the request, if a limit must decide about it.
    undecided: Option<String>,
}

/// The response to a request that is not handled; `None` if it is.
pub(crate) type Unhandled = Option<Response<String>>;

/// The result of a check of a request; `None` if the request has no limits.
type CheckedRequest = Result<Option<AdmittedCall>, Rejection>;

impl<R: ServerRequest> LayerConfig<R, TextResponse> {
    /// Returns the scope of a request that has arrived. If it `is_grpc`, the response to its rejection is a status.
    pub(crate) fn scope(&self, request: &mut R, is_grpc: bool) -> RequestScope {
        let ServerSettings { clients, body, requires_decision, log, .. } = &self.server;
        if let Some(clients) = clients {
            request.insert(clients.clone());
        }
        let custom = body
            .as_ref()
            .map(|function| CustomBody { function: Arc::clone(function), request: request.head() });
        // An outer layer can set the body.
        let outer = || request_log::with_current(|log| log.body.clone())?;
        let mut log = Box::new(log.clone());
        log.prefers_json = request.prefers_json();
        log.is_grpc = is_grpc;
        log.body = custom.map(|body| Arc::new(body) as _).or_else(outer);
        let undecided = requires_decision.then(|| {
            let head = request.head();
            format!("{} {}", head.method(), head.uri().path())
        });
        RequestScope { log, permits: HeldSlots::default(), check: None, undecided }
    }

    /// Starts the check of a request.
    pub(crate) fn start_check(&self, request: &mut R, scope: &mut RequestScope) -> Poll<Unhandled> {
        if self.is_exempt(request) {
            scope.log.limits.clear();
            scope.undecided = None;
        } else {
            let start = || self.start(request, &mut scope.check, |_, _| ());
            if let Err(refused) = scope.log.sync_scope(start) {
                #[cfg(feature = "tonic")]
                if scope.log.is_grpc {
                    return Poll::Ready(Some(super::tonic::refuse(refused)));
                }
                return Poll::Ready(Some(refused.into_http(400, None)));
            }
        }
        let checked = match &mut scope.check {
            None => Ok(None),
            Some(CallFuture::Decided(decided)) => match decided.take() {
                Some(decided) => decided.map(Some).map_err(|it| *it),
                None => return Poll::Pending,
            },
            Some(CallFuture::Pending(_)) => return Poll::Pending,
        };
        Poll::Ready(self.conclude(request, scope, checked))
    }

    /// Ends the check of a request. Keeps the permits of an admitted one until its response, and puts into its
    /// extensions what its handler finds there: the decision, and its slots with those of the layers outside of this
    /// one, which are there already.
    pub(crate) fn conclude(
        &self,
        request: &mut R,
        scope: &mut RequestScope,
        checked: CheckedRequest,
    ) -> Unhandled {
        let admitted = match checked {
            Ok(admitted) => admitted,
            Err(rejection) => {
                let mut response = rejected(&rejection, &scope.log);
                self.write_headers(scope, response.headers_mut());
                return Some(response);
            }
        };
        if let Some(call) = admitted {
            scope.permits = HeldSlots::of(call.permits);
            if let Some(expose) = self.expose {
                expose(request, call.decision);
            }
        }
        if self.may_hold() {
            let mut slots = request.extension::<RequestSlots>().unwrap_or_default();
            slots.add(&scope.permits);
            request.insert(slots);
        }
        None
    }

    /// Gives the charges of rates back if the response does not count. `counts` applies the setting to the response.
    pub(crate) fn settle(&self, scope: &RequestScope, counts: impl FnOnce(&CountFn) -> bool) {
        let Some(count_if) = &self.server.count_if else { return };
        let rates = scope.permits.take(|permit| !permit.is_held());
        if !rates.is_empty() && !counts(count_if) {
            rates.into_iter().for_each(Permit::refund);
        }
    }

    /// Ends an admitted request: settles its charges by its response, and adds the headers that report the limits.
    /// Returns its slots, which the body of the response holds.
    ///
    /// # Panics
    ///
    /// If a limit had to decide about the request, and none has.
    pub(crate) fn finish(&self, scope: &mut RequestScope, head: &mut Parts) -> HeldSlots {
        if let Some(request) = &scope.undecided {
            assert!(
                scope.log.has_decided,
                "no limit has decided about `{request}`: limit its handler, or exempt it in the layer that has \
                 `require_decision`"
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
        take(&mut scope.permits)
    }

    /// Adds the headers that report the limits of a request. An outer middleware reports them beside its own.
    fn write_headers(&self, scope: &RequestScope, headers: &mut HeaderMap) {
        if request_log::with_current(|outer| outer.join(&scope.log)).is_some() {
            return;
        }
        let ServerSettings { log: expected, policy, .. } = &self.server;
        let [limits, expected] =
            [&scope.log, expected].map(|log| log.limits.iter().map(LoggedLimit::identity));
        let policy = if limits.eq(expected) { policy.clone() } else { headers::policy(&scope.log) };
        headers::write(headers, &scope.log, policy);
    }
}

impl RequestScope {
    /// Polls the check of the request.
    pub(crate) fn poll_check(&mut self, context: &mut Context<'_>) -> Poll<CheckedRequest> {
        let Some(check) = &mut self.check else { return Poll::Ready(Ok(None)) };
        self.log.sync_scope(|| Pin::new(check).poll(context)).map_ok(Some)
    }
}

/// Builds the response of a rejection that a handler returns. Behind a middleware, it has the format that the client
/// prefers, and the middleware adds the headers. Elsewhere, this function adds the headers that report the limit.
pub(crate) fn respond(rejection: &Rejection) -> Response<String> {
    let recorded = |log: &mut RequestLog| {
        log.reject(rejection);
        log.clone()
    };
    if let Some(log) = request_log::with_current(recorded) {
        return rejected(rejection, &log);
    }
    let mut log = RequestLog::default();
    log.reject(rejection);
    let mut response = rejected(rejection, &log);
    headers::write(response.headers_mut(), &log, headers::policy(&log));
    response
}

/// Builds the response of a rejection, without the headers that report limits.
fn rejected(rejection: &Rejection, log: &RequestLog) -> Response<String> {
    #[cfg(feature = "tonic")]
    if log.is_grpc {
        return super::tonic::response(rejection.into());
    }
    RejectedRequest { rejection, log }.response()
}
