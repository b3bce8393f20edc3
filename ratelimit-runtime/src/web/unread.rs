//! The unread body of a request that is not handled. An HTTP/1 client can lose the response if the server closes the
//! connection before the client has sent its body. So a layer reads a small body to its end before it responds.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf;
use http::Version;
use http::header::EXPECT;
use http::request::Parts;
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

/// The most bytes that are read.
const MOST: u64 = 64 * 1024;

/// The longest time that a layer waits for a slow client.
const LONGEST: Duration = Duration::from_secs(1);

pin_project! {
    /// Ends when the body ends or fails, when more than [`MOST`] bytes are read, or after [`LONGEST`].
    pub(super) struct UnreadBody<B> {
        #[pin]
        body: B,
        left: u64,
        #[pin]
        end: Sleep,
    }
}

impl<B: Body> UnreadBody<B> {
    /// Returns the body of `request`; `None` if there is nothing to read, if reading would not help, or outside of
    /// Tokio, which has the timer.
    pub(super) fn of(request: &Parts, body: B) -> Option<Pin<Box<Self>>> {
        // Over HTTP/2, the end of a stream resets no connection. A client that expects `100 Continue` waits.
        let is_lost = request.version < Version::HTTP_2 && !request.headers.contains_key(EXPECT);
        let is_short = !body.is_end_stream() && body.size_hint().lower() <= MOST;
        let is_read = is_lost && is_short && Handle::try_current().is_ok();
        is_read.then(|| Box::pin(Self { body, left: MOST, end: sleep(LONGEST) }))
    }
}

impl<B: Body> Future for UnreadBody<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while let Poll::Ready(frame) = this.body.as_mut().poll_frame(context) {
            let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
            let length = frame.data_ref().map_or(0, Buf::remaining);
            let Some(left) = this.left.checked_sub(length as u64) else { return Poll::Ready(()) };
            *this.left = left;
        }
        this.end.poll(context)
    }
}
