//! Streams whose items wait for a limit: an adaptor for each [`Stream`], such as a queue of jobs or the lines of a file.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::check::Check;
use crate::key::{Key, KeyWriter, OwnedKey};
use crate::limit::Limit;
use crate::limiter::{self, RateLimiter};
use crate::reply::{Rejection, StoreError};

/// Adds [`rate_limited`](Self::rate_limited) to each stream.
pub trait RateLimitStreamExt: Stream + Sized {
    /// Lets each item of this stream wait for one unit of `limit` for `key`.
    ///
    /// If the limit has a [`wait`](Limit::wait), no item waits longer. Otherwise, an item waits as long as it takes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use futures::{StreamExt, stream};
    /// use ratelimit_runtime::stream::RateLimitStreamExt;
    /// use ratelimit_runtime::{Limit, Rejection};
    ///
    /// const MAILS: Limit = Limit::leaky_bucket("mails", 50, Duration::from_secs(1));
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Rejection> {
    /// let mut mails = stream::iter(["ann", "bob", "eve"]).rate_limited(&MAILS, "newsletter");
    /// while let Some(name) = mails.next().await {
    ///     println!("a mail to {}", name?); // 20 ms apart
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn rate_limited(self, limit: &Limit, key: impl Key) -> RateLimited<Self> {
        let mut limit = limit.clone();
        if limit.max_wait().is_none() {
            limit = limit.wait(Duration::MAX);
        }
        let key = KeyWriter::owned(&key);
        RateLimited { stream: self, limit, key, limiter: None, item: None, check: None }
    }
}

impl<S: Stream> RateLimitStreamExt for S {}

pin_project! {
    /// A stream whose items wait for a limit: see [`rate_limited`](RateLimitStreamExt::rate_limited). It uses the
    /// [current](crate::current) limiter unless [another is set](Self::limiter).
    ///
    /// An item is an `Err` if its unit could not be taken: it would have waited for longer than the `wait` of the limit,
    /// or Redis could not decide and [`OnError`](crate::OnError) is `Deny`. No item is lost: the stream keeps it, and the
    /// next poll asks again.
    ///
    /// The stream takes an item first, and then its unit. So it takes no unit while there is no item, and holds at most
    /// one item. Items are decided one after the other: on Redis, each takes a round trip.
    #[must_use = "streams do nothing unless polled"]
    pub struct RateLimited<S: Stream> {
        #[pin]
        stream: S,
        limit: Limit,
        key: OwnedKey,
        // `None` for the current limiter.
        limiter: Option<RateLimiter>,
        // The item that waits.
        item: Option<S::Item>,
        check: Option<Check>,
    }
}

impl<S: Stream> RateLimited<S> {
    /// Uses `limiter`, instead of the [current](crate::current) one.
    pub fn limiter(self, limiter: RateLimiter) -> Self {
        Self { limiter: Some(limiter), ..self }
    }
}

impl<S: Stream> Stream for RateLimited<S> {
    type Item = Result<S::Item, Rejection>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if this.item.is_none() {
            *this.item = ready!(this.stream.poll_next(context));
        }
        let Some(item) = this.item.take() else { return Poll::Ready(None) };
        let (limit, key) = (&*this.limit, &*this.key);
        let check = this.check.get_or_insert_with(|| match this.limiter {
            Some(limiter) => limiter.check(limit, key, 1),
            None => limiter::with_current(
                |limiter| limiter.check(limit, key, 1),
                |error| Check::undecided(limit, StoreError::Configuration(error)),
            ),
        });
        let result = Pin::new(check).poll(context);
        if result.is_ready() {
            *this.check = None;
        }
        match result {
            Poll::Ready(Ok(_)) => Poll::Ready(Some(Ok(item))),
            Poll::Ready(Err(rejection)) => {
                *this.item = Some(item);
                Poll::Ready(Some(Err(rejection)))
            }
            Poll::Pending => {
                *this.item = Some(item);
                Poll::Pending
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, _) = self.stream.size_hint();
        // Any number of errors can come in between.
        (lower.saturating_add(usize::from(self.item.is_some())), None)
    }
}

impl<S: Stream + fmt::Debug> fmt::Debug for RateLimited<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimited")
            .field("stream", &self.stream)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
