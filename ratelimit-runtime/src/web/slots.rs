//! The slots of a request: who holds them, and how a handler takes them.

use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::check::Permit;

/// The slots that the layers with `holding()` around a handler hold for its request. It is in the extensions of the
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
/// Handlers of axum and of actix-web extract it; without a layer that holds, the extractor responds with 500. A handler
/// of another framework finds it in the extensions.
#[derive(Clone, Default)]
pub struct RequestSlots {
    /// The slots of each layer, from the outermost inwards.
    layers: Vec<Weak<SharedSlots>>,
}

/// The slots that one layer holds for a request.
type SharedSlots = Mutex<Vec<Permit>>;

/// Holds the slots of one layer until it is dropped. None if the layer holds no slots.
#[derive(Default)]
pub(crate) struct HeldSlots(Option<Arc<SharedSlots>>);

/// What a handler that extracts [`RequestSlots`] responds if no layer around it holds slots.
#[cfg(any(feature = "axum", feature = "actix"))]
pub(super) const NO_LAYER_HOLDS: &str =
    "no layer around this handler holds slots: call `holding()` on the layer with its limits";

impl RequestSlots {
    /// Takes the slots of all layers around the handler: the permit of each limit of calls in flight, which holds its
    /// slot until it is dropped. The layers then free nothing.
    ///
    /// Returns no permit if the slots were taken before, if the body of the response has ended, or if the request was
    /// admitted without a slot: because it is exempt, by a shadow, or by [`OnError::Allow`](crate::OnError::Allow).
    #[must_use = "permits that are dropped free their slots"]
    pub fn take(&self) -> Vec<Permit> {
        let held = self.layers.iter().filter_map(Weak::upgrade);
        held.flat_map(|slots| mem::take(&mut *lock(&slots))).collect()
    }

    /// Adds the slots of a layer inside of those that are known.
    pub(super) fn add(&mut self, HeldSlots(slots): &HeldSlots) {
        self.layers.extend(slots.as_ref().map(Arc::downgrade));
    }
}

impl fmt::Debug for RequestSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.layers.iter().filter_map(Weak::upgrade);
        let slots: usize = held.map(|slots| lock(&slots).len()).sum();
        f.debug_struct("RequestSlots").field("slots", &slots).finish()
    }
}

impl HeldSlots {
    /// Holds the slots of `permits`, and takes these permits out.
    pub(super) fn of(permits: &mut Vec<Permit>) -> Self {
        let slots: Vec<_> = permits.extract_if(.., |permit| permit.is_held()).collect();
        Self((!slots.is_empty()).then(|| Arc::new(Mutex::new(slots))))
    }

    /// Frees the slots, unless the handler has taken them.
    pub(super) fn free(&mut self) {
        self.0 = None;
    }
}

fn lock(slots: &SharedSlots) -> std::sync::MutexGuard<'_, Vec<Permit>> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}
