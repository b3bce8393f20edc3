//! [`RateLimitService`]: a service behind a [`RateLimitLayer`], and the future of its responses.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Extensions, Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::held_body::HeldBody;
use super::layer::RateLimitLayer;
use super::limit_sources::Admission;
use super::middleware::RequestScope;
use super::response::{Http, ResponseFormat};
use super::slots::HeldSlots;
use super::text_response::TextResponse;
use super::unread::UnreadBody;
use crate::check::{AdmittedCall, CallFuture};
use crate::reply::{Decision, Rejection};

/// The message of the panic of a future that is polled too often.
const COMPLETED: &str = "a response future is polled after completion";

/// A service behind a [`RateLimitLayer`].
pub struct RateLimitService<S, F = Http> {
    inner: S,
    layer: RateLimitLayer<F>,
}

impl<S, F> Layer<S> for RateLimitLayer<F> {
    type Service = RateLimitService<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, layer: self.clone() }
    }
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
    B: Body,
    C: Body,
{
    type Response = Response<HeldBody<C>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, F, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        if let Some(clients) = &self.layer.config.settings.clients {
            parts.extensions.insert(clients.clone());
        }
        let mut scope = self.layer.config.scope(&parts);
        let admission = self.layer.config.start(&parts, &mut scope);
        let mut request = Request::from_parts(parts, body);
        let stage = match admission {
            Ok(Admission::Admitted(call)) => {
                let decision = call.map(|call| call.decision);
                self.layer.admit(&mut scope, decision, request.extensions_mut());
                RequestStage::Admitted { handler: self.inner.call(request) }
            }
            Ok(Admission::Pending(check)) => {
                let service = Some((self.take_ready(), request));
                RequestStage::Pending { pending: Box::new(PendingRequest { check, service }) }
            }
            Ok(Admission::Rejected(rejection)) => {
                drop(self.take_ready());
                RequestStage::unhandled(Ok(rejection), request)
            }
            Err(response) => {
                drop(self.take_ready());
                RequestStage::unhandled(Err(response), request)
            }
        };
        ResponseFuture { stage, scope, layer: self.layer.clone() }
    }
}

impl<S: Clone, F> RateLimitService<S, F> {
    /// Takes the inner service, which is ready, and leaves a clone, which must become ready first. A service that is
    /// dropped frees what it reserved when it became ready, such as a permit.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}

impl<F> RateLimitLayer<F> {
    /// Puts into the extensions of an admitted request what its handler finds there.
    #[inline]
    fn admit(
        &self,
        scope: &mut RequestScope,
        decision: Option<Decision>,
        extensions: &mut Extensions,
    ) {
        let (decision, slots) = self.config.admit(scope, decision, || extensions.get().cloned());
        decision.and_then(|decision| extensions.insert(decision));
        slots.and_then(|slots| extensions.insert(slots));
    }
}

pin_project! {
    /// The response future of [`RateLimitService`]. Dropped before the response, it frees the slots of its request.
    pub struct ResponseFuture<S, F, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: RequestStage<S, S::Future, B>,
        scope: RequestScope,
        layer: RateLimitLayer<F>,
    }
}

pin_project! {
    #[project = RequestStageProjection]
    enum RequestStage<S, H, B> {
        // Boxed, because few requests wait.
        Pending { pending: Box<PendingRequest<S, B>> },
        Admitted { #[pin] handler: H },
        // Boxed, because few requests with a body are rejected.
        Unhandled {
            reason: Option<Result<Rejection, TextResponse>>,
            unread: Option<Pin<Box<UnreadBody<B>>>>,
        },
    }
}

/// A request that waits for its check, and the service that is ready for it.
struct PendingRequest<S, B> {
    check: CallFuture<AdmittedCall>,
    service: Option<(S, Request<B>)>,
}

impl<S, H, B: Body> RequestStage<S, H, B> {
    fn unhandled(reason: Result<Rejection, TextResponse>, request: Request<B>) -> Self {
        Self::Unhandled { reason: Some(reason), unread: UnreadBody::of(request) }
    }
}

impl<S, F, B, C> Future for ResponseFuture<S, F, B>
where
    S: Service<Request<B>, Response = Response<C>>,
    F: ResponseFormat<C>,
    B: Body,
    C: Body,
{
    type Output = Result<Response<HeldBody<C>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (config, scope) = (&this.layer.config, this.scope);
        loop {
            let next = match this.stage.as_mut().project() {
                RequestStageProjection::Pending { pending } => {
                    let decided = ready!(scope.poll_check(&mut pending.check, context));
                    let (mut service, mut request) = pending.service.take().expect(COMPLETED);
                    match decided {
                        Ok(decision) => {
                            this.layer.admit(scope, Some(decision), request.extensions_mut());
                            RequestStage::Admitted { handler: service.call(request) }
                        }
                        Err(rejection) => RequestStage::unhandled(Ok(rejection), request),
                    }
                }
                RequestStageProjection::Admitted { handler } => {
                    let result = ready!(scope.poll_handler(handler, context));
                    let finished = result.map(|response| {
                        let (mut head, body) = response.into_parts();
                        config.finish(scope, &mut head);
                        (head, body)
                    });
                    // An error frees the slots.
                    let slots = scope.take_slots();
                    return Poll::Ready(finished.map(|(head, body)| {
                        Response::from_parts(head, HeldBody::http(body, slots))
                    }));
                }
                RequestStageProjection::Unhandled { reason, unread } => {
                    if let Some(unread) = unread {
                        ready!(unread.as_mut().poll(context));
                    }
                    let response = match reason.take().expect(COMPLETED) {
                        Ok(rejection) => {
                            let mut response = F::build(&scope.rejected(&rejection));
                            config.write_headers(response.headers_mut(), scope.log());
                            response
                        }
                        Err(response) => F::refuse(response, scope.is_grpc()),
                    };
                    let body = |body| HeldBody::http(body, HeldSlots::default());
                    return Poll::Ready(Ok(response.map(body)));
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
