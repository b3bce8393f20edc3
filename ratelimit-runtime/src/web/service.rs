//! [`RateLimitService`]: a service behind a [`RateLimitLayer`], and the future of its responses.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::layer::RateLimitLayer;
use super::middleware::{Admission, HandlerFuture, RequestScope};
use super::response::{Http, ResponseFormat};
use super::text_response::TextResponse;
use crate::check::Check;
use crate::reply::Rejection;

/// A service behind a [`RateLimitLayer`].
pub struct RateLimitService<S, F = Http> {
    pub(super) inner: S,
    pub(super) layer: RateLimitLayer<F>,
}

impl<S: Clone, F> Clone for RateLimitService<S, F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for RateLimitService<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, F, B, C> Service<Request<B>> for RateLimitService<S, F>
where
    S: Service<Request<B>, Response = Response<C>> + Clone,
    F: ResponseFormat<C>,
{
    type Response = Response<C>;
    type Error = S::Error;
    type Future = ResponseFuture<S, F, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        if let Some(clients) = self.layer.config.clients() {
            parts.extensions.insert(clients.clone());
        }
        let (scope, admission) = self.layer.config.start(&parts);
        let request = Request::from_parts(parts, body);
        let stage = match admission {
            Admission::Admitted => {
                RequestStage::Admitted { handler: scope.handle(self.inner.call(request)) }
            }
            Admission::Rejected(rejection) => {
                // Frees what the inner service reserved when it became ready, such as a permit.
                self.inner = self.inner.clone();
                RequestStage::Rejected { rejected: Some((rejection, scope)) }
            }
            Admission::Refused(response) => {
                self.inner = self.inner.clone();
                RequestStage::Refused { response: Some((response, scope)) }
            }
            Admission::Pending(check) => {
                // The service that is ready handles the request. Its clone must become ready first.
                let clone = self.inner.clone();
                let service = mem::replace(&mut self.inner, clone);
                RequestStage::Pending {
                    pending: Box::new(PendingRequest {
                        check,
                        scope,
                        service: Some((service, request)),
                    }),
                }
            }
        };
        ResponseFuture { stage, layer: self.layer.clone() }
    }
}

pin_project! {
    /// The response future of [`RateLimitService`].
    pub struct ResponseFuture<S, F, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: RequestStage<S, S::Future, B>,
        layer: RateLimitLayer<F>,
    }
}

pin_project! {
    #[project = RequestStageProjection]
    enum RequestStage<S, H, B> {
        Pending { pending: Box<PendingRequest<S, B>> },
        Admitted { #[pin] handler: HandlerFuture<H> },
        Rejected { rejected: Option<(Rejection, RequestScope)> },
        Refused { response: Option<(TextResponse, RequestScope)> },
    }
}

/// A request that waits for its check. Boxed: only checks in Redis and limits with `wait` are pending.
struct PendingRequest<S, B> {
    check: Check,
    scope: RequestScope,
    service: Option<(S, Request<B>)>,
}

impl<S, F, B, C> Future for ResponseFuture<S, F, B>
where
    S: Service<Request<B>, Response = Response<C>>,
    F: ResponseFormat<C>,
{
    type Output = Result<Response<C>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let config = &this.layer.config;
        loop {
            let next = match this.stage.as_mut().project() {
                RequestStageProjection::Pending { pending } => {
                    let PendingRequest { check, scope, service } = &mut **pending;
                    let result = ready!(scope.poll_check(check, context));
                    let scope = mem::take(scope);
                    match result {
                        Ok(()) => {
                            let (mut service, request) =
                                service.take().expect("`ResponseFuture` polled after completion");
                            RequestStage::Admitted { handler: scope.handle(service.call(request)) }
                        }
                        Err(rejection) => {
                            RequestStage::Rejected { rejected: Some((rejection, scope)) }
                        }
                    }
                }
                RequestStageProjection::Admitted { mut handler } => {
                    let mut response = ready!(handler.as_mut().poll(context))?;
                    let log = handler.take_value().map(RefCell::into_inner).unwrap_or_default();
                    config.write_headers(response.headers_mut(), &log);
                    return Poll::Ready(Ok(response));
                }
                RequestStageProjection::Rejected { rejected } => {
                    let (rejection, scope) =
                        rejected.take().expect("`ResponseFuture` polled after completion");
                    let mut response = F::build(&scope.rejected(&rejection));
                    config.write_headers(response.headers_mut(), scope.log());
                    return Poll::Ready(Ok(response));
                }
                RequestStageProjection::Refused { response } => {
                    let (response, scope) =
                        response.take().expect("`ResponseFuture` polled after completion");
                    return Poll::Ready(Ok(F::refuse(response, scope.is_grpc())));
                }
            };
            this.stage.set(next);
        }
    }
}

impl<S: Service<Request<B>>, F, B> fmt::Debug for ResponseFuture<S, F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
