//! Streams whose items wait for a limit: an adaptor for each [`Stream`], such as a queue of jobs or the lines of a
//! file.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::check::undecided;
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::limiter::{self, RateLimiter};
use crate::printing::debug_by_name;
use crate::reply::{Decision, Rejection};

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
        let mut limit = *limit;
        if limit.max_wait().is_none() {
            limit = limit.wait(Duration::MAX);
        }
        let key = OwnedKey::of(&key);
        RateLimited { stream: self, limit, key, limiter: None, item: None, turn: None }
    }
}

impl<S: Stream> RateLimitStreamExt for S {}

pin_project! {
    /// A stream whose items wait for a limit: see [`rate_limited`](RateLimitStreamExt::rate_limited). It uses the
    /// [current](crate::current) limiter unless [another is set](Self::limiter).
    ///
    /// An item is an `Err` if its unit could not be taken: it would have waited for longer than the `wait` of the
    /// limit, or Redis could not decide and [`OnError`](crate::OnError) is `Deny`. No item is lost: the stream keeps
    /// it, and yields it later. It asks again after the time that the rejection reports; without such a time, after 100
    /// ms.
    ///
    /// Adaptors that end at the first error, such as `try_for_each_concurrent`, drop the pending work. To go on after
    /// errors, report them and continue: `.filter_map(async |item| item.inspect_err(log).ok())`.
    ///
    /// After [`shutdown`](RateLimiter::shutdown), items no longer wait for their turn in line: a rejected item is an
    /// `Err`, and the stream asks again after its time.
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
        // Takes its unit: after a pause, if it was rejected before.
        turn: Option<Turn>,
    }
}

/// Takes the unit of an item.
type Turn = Pin<Box<dyn Future<Output = Result<Decision, Rejection>> + Send>>;

/// The pause after a rejection without a time, for instance while Redis is down.
const PAUSE: Duration = Duration::from_millis(100);

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
            let Some(item) = ready!(this.stream.poll_next(context)) else {
                return Poll::Ready(None);
            };
            *this.item = Some(item);
        }
        let start = |wait| take_unit(this.limiter.as_ref(), *this.limit, this.key.clone(), wait);
        let result = ready!(this.turn.get_or_insert_with(|| start(None)).as_mut().poll(context));
        *this.turn = None;
        let Err(rejection) = result else { return Poll::Ready(this.item.take().map(Ok)) };
        *this.turn = Some(start(Some(rejection.retry_after().unwrap_or(PAUSE))));
        Poll::Ready(Some(Err(rejection)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, _) = self.stream.size_hint();
        // Any number of errors can come in between.
        (lower.saturating_add(usize::from(self.item.is_some())), None)
    }
}

/// Starts to take a unit from `limiter`, or from the current one, after `wait`.
fn take_unit(
    limiter: Option<&RateLimiter>,
    limit: Limit,
    key: OwnedKey,
    wait: Option<Duration>,
) -> Turn {
    let scope = || limit.policy().scope;
    let limiter = limiter::with_current(limiter, scope, |it| Ok(it.clone()), Err);
    Box::pin(async move {
        let limiter = match limiter {
            Ok(limiter) => limiter,
            Err(error) => return undecided(&limit, error),
        };
        if let Some(wait) = wait {
            limiter.pause(wait).await;
        }
        limiter.check(&limit, &key, 1).await
    })
}

debug_by_name!("RateLimited" [S: Stream] RateLimited<S>);
