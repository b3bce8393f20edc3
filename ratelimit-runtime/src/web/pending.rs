//! A request that waits for its check: in Redis, or because its limit has a `wait`.

use std::mem;

use tower_service::Service;

use crate::check::{AdmittedCall, CallFuture};

/// The message of the panic of a future that is polled too often.
pub(super) const COMPLETED: &str = "a response future is polled after completion";

/// A request that waits for its check, and the service that is ready for it. Futures box it, because few requests wait.
pub(super) struct PendingRequest<S, R> {
    pub(super) check: CallFuture<AdmittedCall>,
    service: Option<(S, R)>,
}

impl<S: Service<R> + Clone, R> PendingRequest<S, R> {
    /// Leaves a clone in place of `service`, which must become ready first.
    pub(super) fn new(check: CallFuture<AdmittedCall>, service: &mut S, request: R) -> Self {
        let clone = service.clone();
        let ready = mem::replace(service, clone);
        Self { check, service: Some((ready, request)) }
    }
}

impl<S: Service<R>, R> PendingRequest<S, R> {
    /// Returns the request, unless the service was called.
    pub(super) fn request_mut(&mut self) -> Option<&mut R> {
        self.service.as_mut().map(|(_, request)| request)
    }

    /// Takes the request, instead of calling the service.
    pub(super) fn take_request(&mut self) -> Option<R> {
        self.service.take().map(|(_, request)| request)
    }

    /// Calls the service, once.
    pub(super) fn call(&mut self) -> S::Future {
        let (mut service, request) = self.service.take().expect(COMPLETED);
        service.call(request)
    }
}
