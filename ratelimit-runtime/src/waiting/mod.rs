//! Waiting calls: the limiter admits them first come, first served. A call is admitted within its wait, or rejected.
//! A call that is dropped takes nothing.
//!
//! A bucket can compute when it will admit a call, so a call reserves that moment and sleeps until then:
//! `reservations`. With the other algorithms, and with several limits, calls wait in a line of this process, and
//! the first call sends requests: `line`.

mod line;
mod reservations;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::algorithm::Op;
use crate::backend::Backend;
use crate::clock::Clock;
use crate::key::KeyId;
use crate::limit::Policy;
use crate::reply::{Source, StoreError};
use crate::store::{BucketCharge, Charge, OneOrMany, Reply, Request};

/// The waiting calls of a limiter.
pub(crate) struct Waiting {
    backend: Arc<Backend>,
    lines: line::Lines,
    reservations: reservations::ReservationQueues,
}

/// A call that waits.
#[derive(Clone)]
struct WaitingCall {
    waiting: Arc<Waiting>,
    policy: Policy,
    charges: OneOrMany<Arc<Charge>>,
    /// The combined id of all counts of the call.
    key_id: KeyId,
}

impl Waiting {
    pub(crate) fn new(backend: Arc<Backend>) -> Arc<Self> {
        let (lines, reservations) = Default::default();
        Arc::new(Self { backend, lines, reservations })
    }

    /// Waits up to `wait` until the call is admitted. Returns a rejection once it is known that the call cannot be
    /// admitted in time.
    pub(crate) async fn admit(
        self: Arc<Self>,
        policy: Policy,
        charges: OneOrMany<Arc<Charge>>,
        wait: Duration,
    ) -> Result<Reply, StoreError> {
        let clock = self.backend.clock();
        if !clock.can_sleep() {
            return Err(StoreError::NoRuntime);
        }
        let wait = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
        let deadline = clock.local().saturating_add(wait);
        let key_id = KeyId::combine(charges.iter().map(|charge| charge.key_id));
        let bucket = match &charges {
            OneOrMany::One(charge) => BucketCharge::new(Arc::clone(charge)),
            OneOrMany::Many(_) => None,
        };
        let call = WaitingCall { waiting: self, policy, charges, key_id };
        match bucket {
            Some(bucket) => reservations::admit(&call, &bucket, deadline).await,
            None => line::admit(&call, deadline).await,
        }
    }
}

impl WaitingCall {
    fn backend(&self) -> &Backend {
        &self.waiting.backend
    }

    fn clock(&self) -> &Clock {
        self.backend().clock()
    }

    /// Executes a request about the charges of this call.
    async fn execute(self, request: Request) -> Result<Reply, StoreError> {
        self.backend().execute(self.policy, request).await
    }

    /// Gives back the units that `source` charged for this call.
    async fn refund(self, source: Source) {
        for charge in self.charges.iter() {
            let request = Request::give_back(Op::Refund, Arc::clone(charge));
            // A failure is not reported, because the caller has dropped the call.
            let _ = self.backend().give_back(self.policy, source, request).await;
        }
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A request whose effect is undone if the future is dropped before the reply.
struct UndoOnDrop<T: Send + 'static> {
    reply: Option<Boxed<T>>,
    undo: Option<Box<dyn FnOnce(T) -> Boxed<()> + Send>>,
}

impl<T: Send + 'static> UndoOnDrop<T> {
    fn new<U: Future<Output = ()> + Send + 'static>(
        reply: impl Future<Output = T> + Send + 'static,
        undo: impl FnOnce(T) -> U + Send + 'static,
    ) -> Self {
        let undo = Box::new(|reply| Box::pin(undo(reply)) as Boxed<()>);
        Self { reply: Some(Box::pin(reply)), undo: Some(undo) }
    }
}

impl<T: Send + 'static> Future for UndoOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let reply = self.reply.as_mut().expect("polled after it was ready");
        let reply = std::task::ready!(reply.as_mut().poll(context));
        self.reply = None;
        Poll::Ready(reply)
    }
}

impl<T: Send + 'static> Drop for UndoOnDrop<T> {
    fn drop(&mut self) {
        if let (Some(reply), Some(undo)) = (self.reply.take(), self.undo.take())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async { undo(reply.await).await });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
