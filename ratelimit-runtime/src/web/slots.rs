//! The permits of a request: who holds its slots, and how a handler takes them.
//!
//! [`HeldBody`] is a response body that holds the slots of its request, for all frameworks.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::check::Permit;
use crate::printing::debug_by_name;
use crate::threads::{Mutex, lock};

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

/// Holds the permits of a request in one layer until it is dropped; `None` if there are none. The handler can take
/// those with slots.
#[derive(Default)]
pub(crate) struct HeldSlots(Option<Arc<SharedPermits>>);

/// What a handler that extracts [`RequestSlots`] responds if no layer around it can hold slots.
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

    /// Adds the slots of a layer inside of those before.
    pub(super) fn add(&mut self, slots: &HeldSlots) {
        self.layers.extend(slots.0.as_ref().map(Arc::downgrade));
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
    pub(super) fn of(permits: Vec<Permit>) -> Self {
        Self((!permits.is_empty()).then(|| Arc::new(Mutex::new(permits))))
    }

    /// Takes the permits for which `is_taken` returns true.
    pub(super) fn take(&self, is_taken: impl Fn(&Permit) -> bool) -> Vec<Permit> {
        self.0.as_ref().map(|permits| take(permits, is_taken)).unwrap_or_default()
    }

    /// Frees the slots, unless the handler has taken them, if nothing follows `item`, the next part of a body.
    pub(super) fn free_after<T, E>(&mut self, item: Option<&Result<T, E>>, is_at_end: bool) {
        if is_at_end || !matches!(item, Some(Ok(_))) {
            self.0 = None;
        }
    }
}

/// Takes the permits for which `is_taken` returns true.
fn take(permits: &SharedPermits, is_taken: impl Fn(&Permit) -> bool) -> Vec<Permit> {
    lock(permits).extract_if(.., |permit| is_taken(permit)).collect()
}

pin_project! {
    /// The body of a response behind a layer. It passes on the data, the trailers and the size of the body of the
    /// handler, and holds the slots of the request until that body ends, fails or is dropped. It allocates nothing, but
    /// axum boxes it, as it boxes each body that is not its own.
    pub struct HeldBody<B> {
        #[pin]
        pub(super) body: B,
        pub(super) slots: HeldSlots,
    }
}

impl<B> HeldBody<B> {
    /// Frees `slots` at once if the body `is_at_end`: a server does not ask such a body for data.
    pub(super) fn new(body: B, slots: HeldSlots, is_at_end: bool) -> Self {
        let slots = if is_at_end { HeldSlots::default() } else { slots };
        Self { body, slots }
    }

    /// Returns the body of a response without slots.
    pub(super) fn free(body: B) -> Self {
        Self { body, slots: HeldSlots::default() }
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

/// The body of a rejection by an outer layer.
impl<B: From<String>> From<String> for HeldBody<B> {
    fn from(text: String) -> Self {
        Self::free(text.into())
    }
}

/// The body of a rejection over gRPC by an outer layer.
impl<B: Default> Default for HeldBody<B> {
    fn default() -> Self {
        Self::free(B::default())
    }
}

debug_by_name!("HeldBody" [B] HeldBody<B>);
