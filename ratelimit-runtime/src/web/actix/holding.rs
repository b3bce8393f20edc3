//! [`HoldingLimits`]: [`RateLimits`] whose responses hold slots. Twin of `HoldingLayer` for tower.

use std::fmt;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::Error;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{Service, ServiceRequest, ServiceResponse, Transform};

use super::{RateLimits, handle};
use crate::web::held_body::HeldBody;
use crate::web::middleware::MiddlewareConfig;
use crate::web::settings::{body_setting, limit_settings, server_settings};
use crate::web::text_response::TextResponse;

/// [`RateLimits`] that hold slots: they also take limits of calls [in flight](crate::Limit::in_flight).
/// [`RateLimits::holding`] creates them.
///
/// A request holds its slots until the body of its response ends, fails or is dropped, or until its handler is dropped
/// or returns an `Err`. A stream, server-sent events, and a WebSocket whose messages are the body of its response hold
/// them until they end. A handler whose work goes on after that takes the slots with it: see
/// [`RequestSlots`](crate::web::RequestSlots).
///
/// ```
/// use std::time::Duration;
/// use ratelimit_runtime::Limit;
/// use ratelimit_runtime::web::Client;
/// use ratelimit_runtime::web::actix::{HoldingLimits, RateLimits};
///
/// const REPORTS: Limit = Limit::sliding("reports", 100, Duration::from_secs(60));
/// const RUNNING: Limit = Limit::in_flight("running reports", 2).hold(Duration::from_secs(30));
///
/// /// At most 100 reports a minute and two at the same time, for each client, in one decision.
/// fn reports() -> HoldingLimits {
///     RateLimits::new().holding().limit(REPORTS, Client::of).limit(RUNNING, Client::of)
/// }
/// # let _ = reports();
/// ```
///
/// Bodies are of type [`HeldBody`]. Limits with a [lease](crate::Limit::lease) belong to a middleware that does not
/// hold.
#[derive(Clone)]
pub struct HoldingLimits {
    limits: RateLimits,
}

impl RateLimits {
    /// Returns this middleware as one that holds slots: it also takes limits of calls [in
    /// flight](crate::Limit::in_flight). A request holds its slots until the body of its response ends; see
    /// [`HoldingLimits`].
    ///
    /// # Panics
    ///
    /// If a limit has a [lease](crate::Limit::lease): add it to another middleware.
    #[must_use]
    pub fn holding(self) -> HoldingLimits {
        HoldingLimits { limits: self.configure(MiddlewareConfig::set_holding) }
    }
}

impl HoldingLimits {
    limit_settings!(ServiceRequest, TextResponse);
    server_settings!(
        actix_web::dev::ResponseHead,
        "HoldingLimits",
        "RateLimits::new().holding()",
        " use ratelimit_runtime::web::actix::{HoldingLimits, RateLimits};"
    );
    body_setting!();

    fn configure(self, change: impl FnOnce(&mut MiddlewareConfig<ServiceRequest>)) -> Self {
        Self { limits: self.limits.configure(change) }
    }
}

impl fmt::Debug for HoldingLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingLimits").finish_non_exhaustive()
    }
}

impl<S, B> Transform<S, ServiceRequest> for HoldingLimits
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<EitherBody<B>>>;
    type Error = Error;
    type Transform = HoldingMiddleware<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        let (config, service) = (Arc::clone(&self.limits.config), Rc::new(service));
        ready(Ok(HoldingMiddleware { config, service }))
    }
}

/// A service behind [`HoldingLimits`].
pub struct HoldingMiddleware<S> {
    config: Arc<MiddlewareConfig<ServiceRequest>>,
    service: Rc<S>,
}

impl<S> fmt::Debug for HoldingMiddleware<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingMiddleware").finish_non_exhaustive()
    }
}

impl<S, B> Service<ServiceRequest> for HoldingMiddleware<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<EitherBody<B>>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.service.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (config, service) = (Arc::clone(&self.config), Rc::clone(&self.service));
        Box::pin(async move {
            let (response, slots) = handle(&config, &*service, request).await?;
            Ok(response.map_body(|_, body| HeldBody::actix(body, slots)))
        })
    }
}
