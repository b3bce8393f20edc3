//! [`HeldBody`]: a response body that holds the slots of its request, for all frameworks.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::slots::HeldSlots;

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
