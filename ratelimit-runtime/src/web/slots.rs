//! The slots of a request: who holds them, and how a handler takes them.
//!
//! [`HeldBody`] is a response body that holds the slots of its request, for all frameworks.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::check::Permit;

/// The slots that the layers around a handler hold for its request. It is in the extensions of the
/// request.
///
/// A layer frees the slots of a request when the body of its response ends. If the work of a request goes on after its
/// response, such as a WebSocket after its 101, the handler takes the slots into the task that does the work:
///
/// ```
/// use axum::extract::WebSocketUpgrade;
/// use axum::response::Response;
/// use ratelimit_runtime::web::RequestSlots;
///
/// async fn connect(upgrade: WebSocketUpgrade, slots: RequestSlots) -> Response {
///     let held = slots.take();
///     upgrade.on_upgrade(async move |mut socket| {
///         while let Some(Ok(message)) = socket.recv().await {
///             // ...
///             # let _ = message;
///         }
///         drop(held);
///     })
/// }
/// # let _: axum::Router = axum::Router::new().route("/", axum::routing::get(connect));
/// ```
///
/// Handlers of axum and of actix-web extract it; if no layer around them can limit calls in flight, the extractor
/// responds with 500. A handler of another framework finds it in the extensions.
#[derive(Clone, Default)]
pub struct RequestSlots {
    /// The slots of each layer, from the outermost inwards.
    layers: Vec<Weak<SharedPermits>>,
}

/// The permits of a request in one layer: those with slots, and those of rates.
type SharedPermits = Mutex<Vec<Permit>>;

/// Holds the slots of a request in one layer until it is dropped; `None` if there are none.
#[derive(Default)]
pub(crate) struct HeldSlots(Option<Arc<SharedPermits>>);

/// The permits of a request in one layer, until its response. Dropped, they keep the charges of rates, and free slots.
pub(super) enum RequestPermits {
    Own(Vec<Permit>),
    /// With slots, which the handler can take. One field saves requests of other layers the larger scope
    /// (`benches/all -- layer`).
    Shared(HeldSlots),
}

/// What a handler that extracts [`RequestSlots`] responds if no layer around it can hold slots.
#[cfg(any(feature = "axum", feature = "actix"))]
pub(super) const NO_LAYER_HOLDS: &str =
    "no layer around this handler limits calls in flight: add a layer with such a limit";

impl RequestSlots {
    /// Takes the slots of all layers around the handler: the permit of each limit of calls in flight, which holds its
    /// slot until it is dropped. The layers then free nothing.
    ///
    /// Returns no permit if the slots were taken before, if the body of the response has ended, or if the request was
    /// admitted without a slot: because it is exempt, by a shadow, or by [`OnError::Allow`](crate::OnError::Allow).
    #[must_use = "permits that are dropped free their slots"]
    pub fn take(&self) -> Vec<Permit> {
        let held = self.layers.iter().filter_map(Weak::upgrade);
        held.flat_map(|permits| take(&permits, Permit::is_held)).collect()
    }
}

impl fmt::Debug for RequestSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.layers.iter().filter_map(Weak::upgrade);
        let count = |permits: &[Permit]| permits.iter().filter(|permit| permit.is_held()).count();
        let slots: usize = held.map(|permits| count(&lock(&permits))).sum();
        f.debug_struct("RequestSlots").field("slots", &slots).finish()
    }
}

impl HeldSlots {
    /// Frees the slots, unless the handler has taken them.
    pub(super) fn free(&mut self) {
        self.0 = None;
    }
}

impl RequestPermits {
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Own(permits) => permits.is_empty(),
            Self::Shared(HeldSlots(permits)) => permits.is_none(),
        }
    }

    /// Shares the permits with the handler, which finds them in `slots`, if some have slots.
    pub(super) fn share_with(&mut self, slots: &mut RequestSlots) {
        if let Self::Own(permits) = self
            && permits.iter().any(Permit::is_held)
        {
            let permits = Arc::new(Mutex::new(mem::take(permits)));
            slots.layers.push(Arc::downgrade(&permits));
            *self = Self::Shared(HeldSlots(Some(permits)));
        }
    }

    /// Returns what holds the slots from the response on.
    pub(super) fn take_slots(&mut self) -> HeldSlots {
        match mem::take(self) {
            Self::Own(_) => HeldSlots::default(),
            Self::Shared(held) => held,
        }
    }

    /// Gives the charges of rates back: the request does not count.
    pub(super) fn refund(&mut self) {
        match self {
            Self::Own(permits) => permits.drain(..).for_each(Permit::refund),
            Self::Shared(HeldSlots(permits)) => {
                let rates = permits.iter().flat_map(|permits| take(permits, |it| !it.is_held()));
                rates.for_each(Permit::refund);
            }
        }
    }
}

impl Default for RequestPermits {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

/// Takes the permits for which `is_taken` returns true.
fn take(permits: &SharedPermits, is_taken: impl Fn(&Permit) -> bool) -> Vec<Permit> {
    lock(permits).extract_if(.., |permit| is_taken(permit)).collect()
}

fn lock(permits: &SharedPermits) -> MutexGuard<'_, Vec<Permit>> {
    permits.lock().unwrap_or_else(PoisonError::into_inner)
}

pin_project! {
    /// The body of a response behind a layer. It passes on the data, the trailers and the size of the body of the
    /// handler, and holds the slots of the request until that body ends, fails or is dropped. It allocates nothing, but
    /// axum boxes it, as it boxes each body that is not its own.
    pub struct HeldBody<B> {
        #[pin]
        body: B,
        slots: HeldSlots,
    }
}

impl<B> HeldBody<B> {
    /// Frees `slots` at once if `is_at_end`: a server does not ask such a body for data.
    fn new(body: B, mut slots: HeldSlots, is_at_end: bool) -> Self {
        if is_at_end {
            slots.free();
        }
        Self { body, slots }
    }
}

impl HeldSlots {
    /// Frees the slots if nothing follows `item`, the next part of a body.
    fn free_after<T, E>(&mut self, item: Option<&Result<T, E>>, is_at_end: bool) {
        if is_at_end || !matches!(item, Some(Ok(_))) {
            self.free();
        }
    }
}

impl<B: http_body::Body> HeldBody<B> {
    /// Returns the body of a response of the `http` crate.
    pub(super) fn http(body: B, slots: HeldSlots) -> Self {
        let is_at_end = body.is_end_stream();
        Self::new(body, slots, is_at_end)
    }
}

impl<B: http_body::Body> http_body::Body for HeldBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let frame = ready!(this.body.as_mut().poll_frame(context));
        this.slots.free_after(frame.as_ref(), this.body.is_end_stream());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(feature = "actix")]
impl<B: actix_web::body::MessageBody> HeldBody<B> {
    /// Returns the body of a response of actix-web.
    pub(super) fn actix(body: B, slots: HeldSlots) -> Self {
        let is_at_end = body.size().is_eof();
        Self::new(body, slots, is_at_end)
    }
}

#[cfg(feature = "actix")]
impl<B: actix_web::body::MessageBody> actix_web::body::MessageBody for HeldBody<B> {
    type Error = B::Error;

    fn size(&self) -> actix_web::body::BodySize {
        self.body.size()
    }

    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<actix_web::web::Bytes, B::Error>>> {
        let this = self.project();
        let chunk = ready!(this.body.poll_next(context));
        this.slots.free_after(chunk.as_ref(), false);
        Poll::Ready(chunk)
    }

    fn try_into_bytes(self) -> Result<actix_web::web::Bytes, Self> {
        let Self { body, slots } = self;
        body.try_into_bytes().map_err(|body| Self { body, slots })
    }
}

/// The body of a rejection by an outer layer.
impl<B: From<String>> From<String> for HeldBody<B> {
    fn from(text: String) -> Self {
        Self { body: text.into(), slots: HeldSlots::default() }
    }
}

/// The body of a rejection over gRPC by an outer layer.
impl<B: Default> Default for HeldBody<B> {
    fn default() -> Self {
        Self { body: B::default(), slots: HeldSlots::default() }
    }
}

impl<B> fmt::Debug for HeldBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldBody").finish_non_exhaustive()
    }
}
