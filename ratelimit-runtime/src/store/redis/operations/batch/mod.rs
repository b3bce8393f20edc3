//! Batches: one script decides many calls. Saves work of a busy Redis (`benches/all -- redis`).
//!
//! While few decisions are pending, each call is sent alone. Further calls queue, and up to [`SENDERS`] tasks
//! per queue send all pending calls as batches, without waiting for more calls. If replies are slow, further tasks
//! start to send. Equal calls are one entry of a script, with a count. `reply.rs` splits the outcome of an entry,
//! so that each caller receives the outcome that it would have received if the calls had come in sequence. In a
//! cluster, a batch is of a node (`by_node.rs`) or, if the node refuses that, of a hash slot.

mod by_node;
mod queues;
mod reply;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::pin::Pin;
use std::sync::Arc;

use redis::Value;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::Instant;

pub(crate) use self::queues::BatchQueues;
use self::queues::NeedOfSender;
use self::reply::BatchReply;
use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::{Applied, Op};
use crate::clock::complete_by;
use crate::reply::StoreError;
use crate::store::Charge;
use crate::store::redis::Servers;
use crate::store::redis::network::failure::is_of_another_node;
use crate::store::redis::network::node::Node;
use crate::store::redis::scripts::script;

/// The most pending decisions that one server gets alone. Further calls queue.
const UNQUEUED: usize = 4;

/// The number of pending scripts of a queue.
const SENDERS: u32 = 2;

/// The most entries of a script, because Redis does nothing else while it runs a script.
const MAX_ENTRIES: usize = 64;

/// The most calls that one script decides.
const MAX_CALLS: usize = 1024;

/// A pending call waits for a sender for its deadline divided by this number. If no sender becomes free in that
/// time, another sender starts.
const SENDER_WAITS_PER_DEADLINE: u32 = 16;

/// The runtime whose tasks send the calls, and the [`id`](BatchTarget::id) of what all keys of a script share.
type QueueId = (Id, usize);

/// What all keys of a batch share.
#[derive(Clone)]
enum BatchTarget {
    /// A hash slot; 0 on one server.
    Slot(u16),
    /// A node of a cluster.
    Node(Arc<Node>),
}

impl BatchTarget {
    /// Returns a number that differs from those of all other targets which are in use.
    fn id(&self) -> usize {
        match self {
            Self::Slot(slot) => usize::from(*slot),
            // No address is as low as the number of a slot.
            Self::Node(node) => Arc::as_ptr(node) as usize,
        }
    }

    /// Returns the queue of this runtime.
    fn queue(&self) -> QueueId {
        (Handle::current().id(), self.id())
    }
}

struct PendingCall {
    /// A take, with a receipt or without.
    op: Op,
    charge: Arc<Charge>,
    digest: u64,
    by: Instant,
    reply_to: CallReply,
}

type CallReply = oneshot::Sender<Result<Applied, StoreError>>;

/// Returns a number that is the same for equal calls and differs for most others.
fn digest(charge: &Charge) -> u64 {
    let mut digest = DefaultHasher::new();
    digest.write(&charge.count_name);
    digest.write_u64(charge.cost);
    digest.finish()
}

impl Servers {
    /// Decides a take, alone or in a batch.
    pub(crate) async fn decide_one(
        self: &Arc<Self>,
        op: Op,
        charge: Arc<Charge>,
        by: Instant,
    ) -> Result<Applied, StoreError> {
        if self.pending() <= self.most_unqueued() {
            return self.apply_one(self.script_op(op, charge.cost), &charge, by).await;
        }
        let target = self.batch_target(&charge.count_name);
        let mut reply = self.enqueue(&target, op, charge, by);
        let mut next_check =
            by - self.deadline / SENDER_WAITS_PER_DEADLINE * (SENDER_WAITS_PER_DEADLINE - 1);
        loop {
            match complete_by(next_check.min(by), &mut reply).await {
                Some(Ok(result)) => return result,
                Some(Err(_)) => {
                    let message = "the tokio runtime of the request has shut down".into();
                    return Err(StoreError::Connection { message });
                }
                None if next_check < by => next_check = self.add_sender_if_due(&target, by),
                None => return Err(StoreError::Timeout { deadline: self.deadline }),
            }
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        target: &BatchTarget,
        op: Op,
        charge: Arc<Charge>,
        by: Instant,
    ) -> oneshot::Receiver<Result<Applied, StoreError>> {
        let (reply_to, reply) = oneshot::channel();
        // Hashed before the lock, because every call locks a busy queue.
        let call = PendingCall { op, digest: digest(&charge), charge, by, reply_to };
        if self.queues.add(target.queue(), call) {
            self.start_sender(target);
        }
        reply
    }

    fn start_sender(self: &Arc<Self>, target: &BatchTarget) {
        let (servers, id, target) = (Arc::clone(self), target.queue(), target.clone());
        // If the runtime is shutting down, `spawn` drops the sender, and the drop locks the queues.
        tokio::spawn(BatchSender { servers, id, target, has_ended: false }.run());
    }

    /// Starts another sender if calls are pending and no call was sent for a while. Returns the time at which a
    /// call that is still pending checks again.
    fn add_sender_if_due(self: &Arc<Self>, target: &BatchTarget, by: Instant) -> Instant {
        let pause = self.deadline / SENDER_WAITS_PER_DEADLINE;
        match self.queues.start_another(target.queue(), pause) {
            NeedOfSender::Idle => by,
            NeedOfSender::Later(due) => due,
            NeedOfSender::Now => {
                self.start_sender(target);
                Instant::now() + pause
            }
        }
    }
}

/// A task that sends one batch after the other, until no call is pending.
struct BatchSender {
    servers: Arc<Servers>,
    id: QueueId,
    target: BatchTarget,
    has_ended: bool,
}

impl Drop for BatchSender {
    /// If the runtime has shut down and no sender is left, drops the pending calls, so that their callers receive an
    /// error.
    fn drop(&mut self) {
        if !self.has_ended {
            drop(self.servers.queues.abandon(self.id));
        }
    }
}

impl BatchSender {
    async fn run(mut self) {
        while let Some(entries) = self.servers.queues.take(self.id, BatchEntry::take) {
            let by = entries.iter().map(|entry| entry.by).max().unwrap_or_else(Instant::now);
            self.servers.decide_batch(&self.target, entries, by).await;
        }
        self.has_ended = true;
    }
}

/// An entry of a batch: equal calls.
struct BatchEntry {
    op: Op,
    charge: Arc<Charge>,
    by: Instant,
    reply_to: Vec<CallReply>,
}

impl BatchEntry {
    /// Takes the next calls as entries; `None` if there are none.
    fn take(pending: &mut VecDeque<PendingCall>) -> Option<Vec<Self>> {
        let mut entries: Vec<Self> = Vec::with_capacity(pending.len().min(MAX_ENTRIES));
        let mut digests = Vec::with_capacity(entries.capacity());
        let mut calls = 0;
        while calls < MAX_CALLS
            && entries.len() < MAX_ENTRIES
            && let Some(PendingCall { op, charge, digest, by, reply_to }) = pending.pop_front()
        {
            // A call whose caller has dropped it is not charged.
            if reply_to.is_closed() {
                continue;
            }
            calls += 1;
            let equal = digests.iter().zip(&mut entries);
            let mut equal = equal.filter(|(other, entry)| {
                **other == digest && entry.op == op && entry.charge == charge
            });
            if let Some((_, entry)) = equal.next() {
                entry.reply_to.push(reply_to);
                entry.by = entry.by.max(by);
            } else {
                entries.push(Self { op, charge, by, reply_to: vec![reply_to] });
                digests.push(digest);
            }
        }
        (!entries.is_empty()).then_some(entries)
    }
}

impl Servers {
    async fn decide_batch(
        self: &Arc<Self>,
        target: &BatchTarget,
        entries: Vec<BatchEntry>,
        by: Instant,
    ) {
        let arguments = script::arguments_of_each(
            entries.iter().map(|entry| (&*entry.charge, entry)),
            |out, entry| {
                let op = self.script_op(entry.op, entry.charge.cost);
                script::put_calls(out, op, entry.reply_to.len() as u32);
            },
            self.clock.sent(),
        );
        let reply = match target {
            BatchTarget::Node(node) => self.send_to_node(node, &entries, arguments, by).await,
            BatchTarget::Slot(_) => self.send_to_slot(&entries, arguments, by).await,
        };
        match reply {
            Some(Ok(reply)) => {
                let elsewhere = self.send_replies(target, entries, &reply);
                if !elsewhere.is_empty() {
                    self.decide_each(elsewhere).await;
                }
            }
            None => self.decide_each(entries).await,
            Some(Err(error)) => {
                for reply_to in entries.into_iter().flat_map(|entry| entry.reply_to) {
                    let _ = reply_to.send(Err(error.clone()));
                }
            }
        }
    }

    /// Sends a batch whose keys share a hash slot. `None` if some of them have migrated to another node, so that
    /// nothing was executed.
    async fn send_to_slot(
        &self,
        entries: &[BatchEntry],
        arguments: Vec<Vec<u8>>,
        by: Instant,
    ) -> Option<Result<Value, StoreError>> {
        let keys = entries.iter().map(|entry| &entry.charge.count_name[..]).collect();
        let is_atomic = entries.len() == 1;
        let call = ScriptCall { script: &script::BATCH, keys, arguments, is_atomic };
        match self.run_for(&call, by).await {
            Err(StoreError::Server { code, .. }) if &*code == "TRYAGAIN" && !is_atomic => None,
            reply => Some(reply),
        }
    }

    /// Decides entries concurrently, each by a script of its own.
    fn decide_each(
        self: &Arc<Self>,
        entries: Vec<BatchEntry>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let decide = |entry: BatchEntry| {
            let (servers, by) = (Arc::clone(self), entry.by);
            let target = BatchTarget::Slot(self.slot(&entry.charge.count_name));
            tokio::spawn(async move { servers.decide_batch(&target, vec![entry], by).await })
        };
        let tasks: Vec<_> = entries.into_iter().map(decide).collect();
        Box::pin(async {
            for task in tasks {
                let _ = task.await;
            }
        })
    }

    /// Sends the replies to the callers. Returns the entries of a node whose keys another node serves.
    fn send_replies(
        &self,
        target: &BatchTarget,
        entries: Vec<BatchEntry>,
        reply: &Value,
    ) -> Vec<BatchEntry> {
        let (mut reply, mut elsewhere) = (BatchReply::new(reply), Vec::new());
        for BatchEntry { op, charge, by, reply_to } in entries {
            let outcome = reply.as_mut().and_then(|reply| reply.next(op, &charge, reply_to.len()));
            let outcome = outcome.unwrap_or_else(|| Err(unexpected()));
            if let Err(error) = &outcome {
                if matches!(target, BatchTarget::Node(_)) && is_of_another_node(error) {
                    elsewhere.push(BatchEntry { op, charge, by, reply_to });
                    continue;
                }
                self.back_off_if_unfit(error);
            }
            for (index, reply_to) in reply_to.into_iter().enumerate() {
                let outcome = outcome.as_ref().map(|outcome| outcome.of_call(index, &charge));
                // Fails if the caller has dropped the call.
                let _ = reply_to.send(outcome.map_err(Clone::clone));
            }
        }
        elsewhere
    }
}
