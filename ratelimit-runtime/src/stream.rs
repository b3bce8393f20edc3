//! Streams whose items wait for a limit: an adaptor for each [`Stream`], such as a queue of jobs or the lines of a
//! file.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::check::{Check, undecided};
use crate::key::{Key, OwnedKey};
use crate::limit::Limit;
use crate::limiter::{self, Pause, RateLimiter};
use crate::reply::{BuildError, Rejection};

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
        RateLimited { stream: self, limit, key, limiter: None, item: None, stage: Stage::Ask }
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
        stage: Stage,
    }
}

/// What the stream does about its item.
enum Stage {
    Ask,
    Check(Check),
    /// Pauses after a rejection.
    Pause(Pause),
}

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
            *this.item = ready!(this.stream.poll_next(context));
        }
        if this.item.is_none() {
            return Poll::Ready(None);
        }
        let result = loop {
            *this.stage = match this.stage {
                Stage::Ask => {
                    Stage::Check(with_limiter(this.limiter.as_ref(), this.limit, |limiter| {
                        let (limit, key) = (&*this.limit, &*this.key);
                        match limiter {
                            Ok(limiter) => limiter.check(limit, key, 1),
                            Err(error) => undecided(limit, error).into(),
                        }
                    }))
                }
                Stage::Check(check) => break ready!(Pin::new(check).poll(context)),
                Stage::Pause(pause) => {
                    ready!(pause.as_mut().poll(context));
                    Stage::Ask
                }
            };
        };
        *this.stage = Stage::Ask;
        match result {
            Ok(_) => Poll::Ready(this.item.take().map(Ok)),
            Err(rejection) => {
                let wait = rejection.retry_after().unwrap_or(PAUSE);
                let pause =
                    with_limiter(this.limiter.as_ref(), this.limit, |limiter| match limiter {
                        Ok(limiter) => Some(limiter.pause(wait)),
                        Err(_) => None,
                    });
                *this.stage = pause.map_or(Stage::Ask, Stage::Pause);
                Poll::Ready(Some(Err(rejection)))
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, _) = self.stream.size_hint();
        // Any number of errors can come in between.
        (lower.saturating_add(usize::from(self.item.is_some())), None)
    }
}

/// Calls `work` with this limiter, or with the current one for `limit`.
fn with_limiter<T>(
    limiter: Option<&RateLimiter>,
    limit: &Limit,
    work: impl Fn(Result<&RateLimiter, BuildError>) -> T,
) -> T {
    match limiter {
        Some(limiter) => work(Ok(limiter)),
        None => limiter::with_current(
            || limit.policy().scope(),
            |limiter| work(Ok(limiter)),
            |error| work(Err(error)),
        ),
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
