//! Waiting for a permit: first come, first served among the calls of this process that want the
//! same keys.
//!
//! Only the first in a line asks the store; it sleeps as long as it is told and asks again. The
//! others are asleep until it is their turn. Nothing is charged before it is admitted, so a waiter
//! that gives up has taken nothing.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::check::Check;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::key::{KeyWriter, Written};
use crate::limit::{Algorithm, Limit};
use crate::limiter::RateLimiter;
use crate::part::Part;
use crate::rejection::Rejection;

/// The lines of a limiter, by what is waited for. A line exists while somebody is in it.
#[derive(Default)]
pub(crate) struct Lines {
    lines: Mutex<HashMap<u128, Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    /// Held by the first; the mutex is fair.
    turn: tokio::sync::Mutex<()>,
    ahead: Mutex<Ahead>,
}

#[derive(Default)]
struct Ahead {
    waiters: usize,
    /// What all in the line want together.
    units: u64,
    /// What the first wants, and when it expects to be admitted; nothing when it is not waiting.
    first: Option<(u32, u64)>,
}

/// A call that waits: everything needed to ask for it again.
pub(crate) struct Wanted {
    limiter: RateLimiter,
    parts: Vec<(Limit, Written, u32)>,
    place: u128,
    wait: Duration,
}

impl Wanted {
    pub(crate) fn new(limiter: &RateLimiter, parts: &[Part<'_>], wait: Duration) -> Self {
        let place = |part: &Part<'_>| limiter.local().place(part.limit, part.key);
        Self {
            limiter: limiter.clone(),
            parts: parts
                .iter()
                .map(|part| (part.limit.patient(None), KeyWriter::written(part.key), part.cost))
                .collect(),
            place: parts.iter().map(place).fold(0, |all, one| all.rotate_left(1) ^ one),
            wait,
        }
    }

    /// Waits in line, and then for the store.
    pub(crate) async fn admitted(self) -> Result<Decision, Rejection> {
        let clock = self.limiter.local().clock().clone();
        let name = self.parts.first().map_or("", |(limit, ..)| limit.name());
        if !clock.can_sleep() {
            return Err(Rejection::Unavailable { name, error: StoreError::NoRuntime });
        }
        let deadline = clock.local().saturating_add(self.wait.as_micros() as u64);
        let Some((limit, cost)) = self.parts.first().map(|(limit, _, cost)| (*limit, *cost)) else {
            return self.ask().await;
        };

        let mut place = Place::join(&self.limiter, self.place, cost);
        if place.earliest(&limit, cost) > deadline {
            return self.refused(place.earliest(&limit, cost), clock.local()).await;
        }
        let line = Arc::clone(&place.line);
        let Some(_turn) = before(clock.sleep_until(deadline), line.turn.lock()).await else {
            return self.refused(place.earliest(&limit, cost), clock.local()).await;
        };
        loop {
            let asked = clock.local();
            let answer = InFlight::new(&self).await;
            let Err(Rejection::Limited { decision, .. }) = &answer else { return answer };
            let retry = decision.retry_after.as_micros() as u64;
            if asked.saturating_add(retry) > deadline {
                return answer;
            }
            // The answer was true somewhere between `asked` and now: asking too early would be in
            // vain, so it is the later of the two.
            let at = clock.local().saturating_add(retry).min(deadline);
            place.expects(at);
            clock.sleep_until(at).await;
        }
    }

    fn ask(&self) -> Check {
        let parts = self.parts();
        match &parts[..] {
            [part] => self.limiter.check(part.limit, part.key, part.cost),
            parts => self.limiter.check_all(parts),
        }
    }

    fn parts(&self) -> Vec<Part<'_>> {
        self.parts.iter().map(|(limit, key, cost)| Part::new(limit, key, *cost)).collect()
    }

    /// The rejection of a call that those before it leave no time: the state of its first limit,
    /// and the wait until it would be its turn.
    async fn refused(&self, earliest: u64, now: u64) -> Result<Decision, Rejection> {
        let Some((limit, key, cost)) = self.parts.first() else { return self.ask().await };
        let peek = self.limiter.peek(limit, key, *cost).await?;
        let turn = Duration::from_micros(earliest.saturating_sub(now));
        let retry_after = peek.retry_after.max(turn);
        let decision = Decision { allowed: false, retry_after, ..peek };
        Err(Rejection::Limited { name: limit.name(), decision })
    }

    async fn refund(self) {
        for (limit, key, cost) in &self.parts {
            // Nobody is left to hear of a failure.
            let _ = self.limiter.refund(limit, key, *cost).await;
        }
    }
}

/// A place in a line, given up on drop.
struct Place<'a> {
    lines: &'a Lines,
    line: Arc<Line>,
    at: u128,
    cost: u32,
    is_first: bool,
}

impl<'a> Place<'a> {
    fn join(limiter: &'a RateLimiter, at: u128, cost: u32) -> Self {
        let lines = limiter.lines();
        let line = Arc::clone(lock(&lines.lines).entry(at).or_default());
        let mut ahead = lock(&line.ahead);
        ahead.waiters += 1;
        ahead.units += u64::from(cost);
        drop(ahead);
        Self { lines, line, at, cost, is_first: false }
    }

    /// This is the first in the line, and expects to be admitted `at`.
    fn expects(&mut self, at: u64) {
        self.is_first = true;
        lock(&self.line.ahead).first = Some((self.cost, at));
    }

    /// When the last in the line can be admitted at the earliest, by what the first was told; 0 if
    /// that is not known.
    fn earliest(&self, limit: &Limit, cost: u32) -> u64 {
        let ahead = lock(&self.line.ahead);
        let Some((first, at)) = ahead.first.filter(|_| ahead.waiters > 1) else { return 0 };
        let (units, threshold) = (ahead.units, u64::from(limit.threshold()));
        // The first takes the last unit there is when it is admitted, or it would not have waited.
        let windows = |whole: u64| units.div_ceil(threshold).saturating_sub(whole);
        let after = match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let between = u128::from(units.saturating_sub(first.into()).max(cost.into()));
                let rate = limit.rate;
                (between * u128::from(rate.token) / u128::from(rate.drain)) as u64
            }
            Algorithm::Sliding => windows(1).saturating_mul(limit.period_us()),
            Algorithm::Fixed | Algorithm::SlidingCounter => {
                windows(2).saturating_mul(limit.period_us())
            }
        };
        at.saturating_add(after)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = lock(&self.lines.lines);
        let mut ahead = lock(&self.line.ahead);
        ahead.waiters -= 1;
        ahead.units -= u64::from(self.cost);
        if self.is_first {
            ahead.first = None;
        }
        if ahead.waiters == 0 {
            lines.remove(&self.at);
        }
    }
}

/// A question to the store whose answer is taken back if nobody waits for it any more.
struct InFlight<'a> {
    wanted: &'a Wanted,
    check: Option<Check>,
}

impl<'a> InFlight<'a> {
    fn new(wanted: &'a Wanted) -> Self {
        Self { wanted, check: Some(wanted.ask()) }
    }
}

impl Future for InFlight<'_> {
    type Output = Result<Decision, Rejection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let check = self.check.as_mut().expect("polled after it was ready");
        let answer = std::task::ready!(Pin::new(check).poll(context));
        self.check = None;
        Poll::Ready(answer)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let (Some(check), Ok(runtime)) = (self.check.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let Wanted { limiter, parts, place, wait } = self.wanted;
        let wanted =
            Wanted { limiter: limiter.clone(), parts: parts.clone(), place: *place, wait: *wait };
        runtime.spawn(async move {
            if check.await.is_ok_and(|decision| decision.allowed) {
                wanted.refund().await;
            }
        });
    }
}

/// What `work` gives, if that is before `end`.
async fn before<T>(end: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut work) = (pin!(end), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(done) = work.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
