//! The end of a limiter: it gives back the units that the process holds, and sends pending settlements.

use std::future::ready;

use tokio::time::timeout;

use super::RateLimiter;
use crate::check::Checker;
use crate::reply::{Answer, StoreError};

impl RateLimiter {
    /// Completes once Redis has settled the [permits](crate::Permit) that were settled before this call. Without
    /// `flush`, Redis can decide a later check before it applies a settlement. Units
    /// [in flight](crate::Limit::in_flight) that were released are free in Redis as well. On the embedded store,
    /// permits are settled at once.
    ///
    /// # Errors
    ///
    /// - [`StoreError::SettlementsLost`](crate::StoreError::SettlementsLost) when settlements were lost since the last
    ///   `flush`: they were sent and Redis has not replied, or has replied with an error; or too many were pending. The
    ///   others are settled.
    /// - [`StoreError::Timeout`](crate::StoreError::Timeout) when Redis has not settled all of them within ten
    ///   [deadlines](crate::Builder::deadline). The settlements that it has not received stay pending: call `flush`
    ///   again.
    #[must_use]
    pub fn flush(&self) -> Answer<()> {
        let backend = &self.checker.backend;
        let Some(owner) = backend.owner.clone() else { return Box::pin(ready(Ok(()))) };
        let deadline = 10 * backend.settings.deadline;
        backend.answer(move |_| async move {
            let flushed = async {
                owner.flushed().await?;
                owner.stated().await;
                Ok(())
            };
            timeout(deadline, flushed).await.unwrap_or(Err(StoreError::Timeout { deadline }))
        })
    }

    /// Gives back the units and moments that this process holds. Call it when the service stops, before the runtime
    /// ends.
    ///
    /// Calls that [wait](crate::Limit::wait) are rejected with
    /// [`Rejection::Unavailable`](crate::Rejection::Unavailable) and the error
    /// [`ShuttingDown`](crate::StoreError::ShuttingDown). Their reservations and
    /// [leased](crate::Limit::lease) units are given back: other processes can use all of them at once.
    /// [Permits](crate::Permit) that were settled are settled in Redis. Later calls are decided as usual, but do not
    /// wait and lease no units.
    ///
    /// Calls that run keep their units [in flight](crate::Limit::in_flight): this process states them until their
    /// permits end, also after the limiter was dropped.
    ///
    /// Takes two [deadlines](crate::Builder::deadline) at most. Holds for all clones of the limiter. A second call has
    /// no effect. Without this method, a process that ends loses its leased units, and the reservations of about a
    /// second.
    ///
    /// ```
    /// use ratelimit_runtime::RateLimiter;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = RateLimiter::embedded();
    /// // serve, and then
    /// limiter.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`StoreError`](crate::StoreError) when Redis does not reply in time: units that were not given back, and charges
    /// that were not settled, then count as used. [`StoreError::InFlight`](crate::StoreError::InFlight) if all is given
    /// back, and calls still run that hold units.
    #[must_use]
    pub fn shutdown(&self) -> Answer<()> {
        let Checker { backend, leases, waiting, .. } = self.checker.clone();
        backend.answer(|backend| async move {
            waiting.shut_down();
            let Some(owner) = backend.owner.as_ref() else { return Ok(()) };
            let (deadline, mut result) = (backend.settings.deadline, Ok(()));
            let all = async {
                leases.shut_down().await;
                waiting.rested().await;
                result = owner.flushed().await;
                if result.is_ok() {
                    owner.stated().await;
                }
            };
            let is_late = timeout(2 * deadline, all).await.is_err();
            result?;
            match owner.in_flight() {
                _ if is_late => Err(StoreError::Timeout { deadline }),
                (0, _) => Ok(()),
                (units, _) => Err(StoreError::InFlight { units }),
            }
        })
    }
}
