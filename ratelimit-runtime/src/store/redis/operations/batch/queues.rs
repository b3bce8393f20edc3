//! The queues of calls that wait for a batch, and how many tasks send each.
//!
//! Calls are added and taken under one lock, under which a sender also ends. So a queue with calls has a sender, and a
//! queue without calls and senders does not exist.

use std::collections::{HashMap, VecDeque};
use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::Instant;

use super::{PendingCall, QueueId, SENDERS};
use crate::threads::{Mutex, MutexGuard};

#[derive(Default)]
pub(crate) struct BatchQueues(Mutex<HashMap<QueueId, BatchQueue>>);

#[derive(Default)]
struct BatchQueue {
    calls: VecDeque<PendingCall>,
    senders: u32,
    /// The time at which a sender last took calls.
    last_taken: Option<Instant>,
}

/// Whether a queue needs another sender.
pub(super) enum NeedOfSender {
    /// The queue has no calls.
    Idle,
    /// A sender took calls a short time ago. Looks again at this time.
    Later(Instant),
    /// The caller starts one.
    Now,
}

impl BatchQueues {
    /// Adds a call. Returns whether the caller starts a sender for it; otherwise, one that runs takes it.
    pub(super) fn add(&self, id: QueueId, call: PendingCall) -> bool {
        let mut queues = self.lock();
        let queue = queues.entry(id).or_default();
        queue.calls.push_back(call);
        let starts = queue.senders < SENDERS;
        queue.senders += u32::from(starts);
        starts
    }

    /// Starts another sender, whatever runs, if the queue has calls and no sender has taken some for `pause`.
    pub(super) fn start_another(&self, id: QueueId, pause: Duration) -> NeedOfSender {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&id).filter(|queue| !queue.calls.is_empty()) else {
            return NeedOfSender::Idle;
        };
        let now = Instant::now();
        if let Some(due) = queue.last_taken.map(|last| last + pause).filter(|due| *due > now) {
            return NeedOfSender::Later(due);
        }
        queue.last_taken = Some(now);
        queue.senders += 1;
        NeedOfSender::Now
    }

    /// Takes calls for a sender. If there are none, the sender has ended.
    pub(super) fn take<T>(
        &self,
        id: QueueId,
        take: impl FnOnce(&mut VecDeque<PendingCall>) -> Option<T>,
    ) -> Option<T> {
        let mut queues = self.lock();
        let queue = queues.get_mut(&id)?;
        let taken = take(&mut queue.calls);
        queue.last_taken = Some(Instant::now());
        if taken.is_none() {
            queue.senders -= 1;
            if queue.senders == 0 {
                queues.remove(&id);
            }
        }
        taken
    }

    /// Ends a sender whose runtime has shut down. Returns the calls that no sender is left for.
    pub(super) fn abandon(&self, id: QueueId) -> VecDeque<PendingCall> {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&id) else { return VecDeque::new() };
        queue.senders -= 1;
        if queue.senders > 0 {
            return VecDeque::new();
        }
        queues.remove(&id).map(|queue| queue.calls).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueId, BatchQueue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::runtime::Handle;
    use tokio::sync::oneshot;

    use super::*;
    use crate::algorithm::Op;
    use crate::key::KeyId;
    use crate::limit::Limit;
    use crate::store::Charge;

    fn call() -> PendingCall {
        let terms = *Limit::fixed("queue", 1, Duration::from_secs(1)).terms();
        let (key_id, count_name) = (KeyId::from_bits(0), Vec::new());
        let charge = Charge { terms, key_id, count_name, cost: 1, statement: None };
        let (reply_to, _) = oneshot::channel();
        PendingCall {
            op: Op::TAKE,
            charge: Arc::new(charge),
            digest: 0,
            by: Instant::now(),
            reply_to,
        }
    }

    #[tokio::test]
    async fn calls_have_a_sender_until_none_is_left() {
        let (queues, id) = (BatchQueues::default(), (Handle::current().id(), 0));
        let started: Vec<_> = (0..5).map(|_| queues.add(id, call())).collect();
        assert_eq!(started, [true, true, false, false, false]);
        assert!(queues.abandon(id).is_empty(), "another sender is left");
        assert!(queues.take(id, VecDeque::pop_front).is_some());
        assert!(matches!(
            queues.start_another(id, Duration::from_secs(60)),
            NeedOfSender::Later(_)
        ));
        assert!(matches!(queues.start_another(id, Duration::ZERO), NeedOfSender::Now));
        while queues.take(id, VecDeque::pop_front).is_some() {}
        assert!(matches!(queues.start_another(id, Duration::ZERO), NeedOfSender::Idle));
        assert!(!queues.lock().is_empty(), "a sender still runs");
        assert!(queues.add(id, call()));
        assert!(queues.abandon(id).is_empty());
        assert_eq!(queues.abandon(id).len(), 1);
        assert!(queues.lock().is_empty());
    }
}
