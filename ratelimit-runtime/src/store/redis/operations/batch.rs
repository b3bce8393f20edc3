//! Batches: one script decides many calls. Saves work of a busy Redis (`benches/all -- redis`).
//!
//! While few decisions are pending, each call is sent alone. Further calls queue, and up to [`SENDERS`] tasks per queue
//! send all pending calls as batches, without waiting for more calls. If replies are slow, further tasks start to send.
//! Equal calls are one entry of a script, with a count. The outcome of an entry is split, so that each caller receives
//! the outcome that it would have received if the calls had come in sequence. In a cluster, a batch is of a node or, if
//! the node refuses that, of a hash slot.
//!
//! In a cluster, a hash slot alone seldom has two calls to decide at a time.
//!
//! The script for a node declares no key and has the flag `allow-cross-slot-keys`. For a key of another node, a node
//! executes nothing and replies with an error; the call is then sent alone to the node of its slot. Servers before
//! Redis 7 and some proxies refuse such scripts. Then each batch is of one hash slot.
//!
//! Calls are added to a queue and taken under one lock, under which a sender also ends. So a queue with calls has a
//! sender, and a queue without calls and senders does not exist.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::pin::Pin;
use std::slice;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::script_call::{ScriptCall, unexpected};
use crate::algorithm::bucket::{self, DecidedBucket};
use crate::algorithm::{Applied, Op, Outcome, Receipt};
use crate::clock::complete_by;
use crate::reply::StoreError;
use crate::store::Charge;
use crate::store::redis::network::cluster::hash_slot;
use crate::store::redis::network::failure::is_of_another_node;
use crate::store::redis::network::node::Node;
use crate::store::redis::operations::script_call::by_hash_or_text;
use crate::store::redis::scripts::script::{self, RECEIPT, REPLY};
use crate::store::redis::{Servers, Topology};
use crate::threads::{Mutex, MutexGuard};

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

/// The most pending decisions for each node of a cluster that are sent alone (`benches/all -- cluster`).
const UNQUEUED_BY_NODE: usize = 8;

impl Servers {
    /// Returns what the keys of a batch with this key share.
    fn batch_target(&self, key: &[u8]) -> BatchTarget {
        let Topology::Cluster(cluster) = &self.topology else { return BatchTarget::Slot(0) };
        let slot = hash_slot(key);
        let node = if cluster.takes_batches_by_node() { cluster.known_node(slot) } else { None };
        node.map_or(BatchTarget::Slot(slot), BatchTarget::Node)
    }

    /// Returns the most pending decisions that are sent alone.
    fn most_unqueued(&self) -> usize {
        match &self.topology {
            Topology::One(_) => UNQUEUED,
            Topology::Cluster(cluster) => UNQUEUED_BY_NODE * cluster.serving(),
        }
    }

    /// Sends a batch to a node. `None` if the node has not executed it, so that each call is to be decided by itself.
    async fn send_to_node(
        &self,
        node: &Arc<Node>,
        entries: &[BatchEntry],
        mut arguments: Vec<Vec<u8>>,
        by: Instant,
    ) -> Option<Result<Value, StoreError>> {
        let Topology::Cluster(cluster) = &self.topology else { return None };
        arguments.extend(entries.iter().map(|entry| entry.charge.count_name.clone()));
        let send = |command: Cmd| async move { node.send(&command, false, by).await };
        let reply = by_hash_or_text(&script::BATCH_OF_NODE, &[], &arguments, send).await;
        let failure = match reply {
            Ok(reply) => return Some(Ok(reply)),
            Err(failure) => failure,
        };
        cluster.refresh();
        match failure.kind() {
            // An error of the script as a whole: the script catches the errors of commands.
            Some(ErrorKind::Server(kind)) => {
                if kind == ServerErrorKind::ResponseError {
                    cluster.refuse_batches_by_node();
                }
                None
            }
            Some(ErrorKind::Extension) => None,
            _ => Some(Err(failure.into_store_error(self.deadline, &[]))),
        }
    }
}

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
enum NeedOfSender {
    /// The queue has no calls.
    Idle,
    /// A sender took calls a short time ago. Looks again at this time.
    Later(Instant),
    /// The caller starts one.
    Now,
}

impl BatchQueues {
    /// Adds a call. Returns whether the caller starts a sender for it; otherwise, one that runs takes it.
    fn add(&self, id: QueueId, call: PendingCall) -> bool {
        let mut queues = self.lock();
        let queue = queues.entry(id).or_default();
        queue.calls.push_back(call);
        let starts = queue.senders < SENDERS;
        queue.senders += u32::from(starts);
        starts
    }

    /// Starts another sender, whatever runs, if the queue has calls and no sender has taken some for `pause`.
    fn start_another(&self, id: QueueId, pause: Duration) -> NeedOfSender {
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
    fn take<T>(
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
    fn abandon(&self, id: QueueId) -> VecDeque<PendingCall> {
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

/// The kinds of replies to an entry.
const FAILED: u8 = 0;
const FULL: u8 = 1;
const LEVEL: u8 = 2;

/// Reads the reply entry by entry.
struct BatchReply<'a> {
    clock: u64,
    outcomes: &'a [u8],
    errors: slice::Iter<'a, Value>,
}

impl<'a> BatchReply<'a> {
    fn new(reply: &'a Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let mut parts = parts.iter();
        let Some(Value::BulkString(outcomes)) = parts.next() else { return None };
        let (clock, outcomes) = outcomes.split_first_chunk()?;
        Some(Self { clock: script::get_7(*clock), outcomes, errors: parts })
    }

    /// Reads the outcome of `calls` equal takes; `None` if the reply is malformed.
    fn next(
        &mut self,
        op: Op,
        charge: &Charge,
        calls: usize,
    ) -> Option<Result<EntryOutcome, StoreError>> {
        let [kind] = self.take()?;
        match kind {
            FAILED => {
                let Some(Value::BulkString(message)) = self.errors.next() else { return None };
                let message = String::from_utf8_lossy(message);
                Some(Err(script::error_of(&message, &charge.count_name)))
            }
            LEVEL => {
                let admitted = u32::from_be_bytes(self.take()?) as usize;
                let level = script::get_7(self.take()?);
                Some(Ok(EntryOutcome::of_level(charge, self.clock, admitted, level)))
            }
            FULL if calls == 1 => {
                let (last, slack) = self.outcome()?;
                let admitted = usize::from(last.is_allowed());
                let receipt = self.receipt(op, admitted)?;
                Some(Ok(EntryOutcome { admitted, last, slack, receipt, rejected: last }))
            }
            FULL => {
                let admitted = (u32::from_be_bytes(self.take()?) as usize).min(calls);
                let last = if admitted > 0 { Some(self.outcome()?) } else { None };
                let receipt = self.receipt(op, admitted)?;
                let rejected = if admitted < calls { Some(self.outcome()?.0) } else { None };
                let (last, slack) = last.or(rejected.map(|rejected| (rejected, 0)))?;
                let rejected = rejected.unwrap_or(last);
                Some(Ok(EntryOutcome { admitted, last, slack, receipt, rejected }))
            }
            _ => None,
        }
    }

    fn outcome(&mut self) -> Option<(Outcome, u64)> {
        let reply: [u8; REPLY] = self.take()?;
        Some((script::decode_reply(&reply)?, script::decode_slack(&reply)?))
    }

    /// Reads the receipt that admitted calls share, if they need one.
    fn receipt(&mut self, op: Op, admitted: usize) -> Option<Receipt> {
        if op != Op::ACQUIRE || admitted == 0 {
            return Some(Receipt::default());
        }
        script::decode_receipt(&self.take::<RECEIPT>()?)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.outcomes.split_first_chunk()?;
        self.outcomes = rest;
        Some(*taken)
    }
}

/// The outcome of equal calls.
struct EntryOutcome {
    admitted: usize,
    /// The outcome of the last admitted call.
    last: Outcome,
    slack: u64,
    /// The receipt of all admitted calls.
    receipt: Receipt,
    /// The outcome of each rejected call.
    rejected: Outcome,
}

impl EntryOutcome {
    /// Returns the outcome of calls of a bucket that has this level after them.
    fn of_level(charge: &Charge, clock: u64, admitted: usize, level: u64) -> Self {
        let Charge { terms, cost, .. } = charge;
        let outcome =
            |allowed| DecidedBucket::at_level(level, allowed).outcome(terms, clock, *cost);
        let slack = bucket::slack(level, terms.rate());
        let (last, rejected) = (outcome(true), outcome(false));
        Self { admitted, last, slack, receipt: Receipt::default(), rejected }
    }

    /// Returns the outcome of the call `index`, as if the calls had come in sequence, and its receipt.
    fn of_call(&self, index: usize, charge: &Charge) -> Applied {
        if index >= self.admitted {
            return (self.rejected, Receipt::default());
        }
        let later = (self.admitted - 1 - index) as u64;
        let units = later * charge.cost;
        (script::outcome_before(self.last, &charge.terms, units, self.slack), self.receipt)
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
