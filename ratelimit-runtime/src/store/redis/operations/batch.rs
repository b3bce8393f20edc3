//! Batches: one script decides many calls. Saves work of a busy Redis (`benches/all -- redis`).
//!
//! While few decisions are pending, each call is sent alone. Further calls queue, and up to [`SENDERS`] tasks per queue
//! send all pending calls as batches, without waiting for more calls. A sender does not wait for a slow reply. Equal
//! calls are one entry of a script, with a count. The outcome of an entry is split, so that each caller receives the
//! outcome that it would have received if the calls had come in sequence.
//!
//! In a cluster, a batch is of a node: a hash slot alone seldom has two calls to decide at a time. The script for a
//! node declares no key and has the flag `allow-cross-slot-keys`. For a key of another node, a node executes nothing
//! and replies with an error; the call is then sent alone to the node of its slot. Servers before Redis 7 and some
//! proxies refuse such scripts. Then each entry has a script of its own.
//!
//! Calls are added to a queue and taken under one lock, under which a sender also ends. So a queue with calls has a
//! sender. The senders own the queue: if their runtime shuts down, the callers receive an error.

use std::collections::{HashMap, VecDeque};
use std::slice;
use std::sync::{Arc, Weak};

use redis::Value;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::script_call::{ScriptCall, script_op, unexpected};
use crate::algorithm::bucket::{self, BucketAtCall};
use crate::algorithm::{Applied, Op, Receipt};
use crate::clock::complete_by;
use crate::one_or_many::OneOrMany;
use crate::reply::StoreError;
use crate::store::redis::network::cluster::hash_slot;
use crate::store::redis::network::failure::is_of_another_node;
use crate::store::redis::network::node::Node;
use crate::store::redis::scripts::script::{
    self, take, take_7, take_error, take_outcome, take_receipt,
};
use crate::store::redis::{Redis, Topology};
use crate::store::{Charge, Failure};
use crate::threads::{Mutex, lock};

/// The most pending decisions that one server gets alone. Further calls queue.
const UNQUEUED: usize = 4;

/// The most pending decisions for each node of a cluster that are sent alone (`benches/all -- cluster`).
const UNQUEUED_BY_NODE: usize = 8;

/// The number of tasks that send the calls of a queue.
const SENDERS: usize = 2;

/// The most entries of a script, because Redis does nothing else while it runs a script.
const MAX_ENTRIES: usize = 64;

/// The most calls that one script decides.
const MAX_CALLS: usize = 1024;

/// A sender waits for a reply for the deadline divided by this number. Then it sends the next calls.
const WAITS_PER_DEADLINE: u32 = 16;

/// The runtime whose tasks send the calls, and the address of the node, or 0 for the only server.
type QueueId = (Id, usize);

/// Equal calls, which are one entry of a script.
struct BatchEntry {
    /// A take, with a receipt or without.
    op: Op,
    charge: Arc<Charge>,
    by: Instant,
    /// Of each call.
    reply_to: OneOrMany<oneshot::Sender<Result<Applied, StoreError>>>,
}

impl Redis {
    /// Decides a take, alone or in a batch.
    pub(crate) async fn decide_one(
        self: &Arc<Self>,
        op: Op,
        charge: Arc<Charge>,
        by: Instant,
    ) -> Result<Applied, StoreError> {
        let (most_unqueued, node) = match &self.topology {
            Topology::One(_) => (UNQUEUED, None),
            Topology::Cluster(cluster) => match cluster.known_node(hash_slot(&charge.count_name)) {
                None => (usize::MAX, None),
                node => (UNQUEUED_BY_NODE * cluster.serving(), node),
            },
        };
        if self.pending() <= most_unqueued {
            return self.apply_one(script_op(op, charge.cost), &charge, by).await;
        }
        let (reply_to, reply) = oneshot::channel();
        let id =
            (Handle::current().id(), node.as_ref().map_or(0, |node| Arc::as_ptr(node) as usize));
        let entry = BatchEntry { op, charge, by, reply_to: OneOrMany::from([reply_to]) };
        if let Some(queue) = self.queues.add(id, entry) {
            tokio::spawn(send_batches(Arc::clone(self), node, queue));
        }
        match complete_by(by, reply).await {
            Some(Ok(result)) => result,
            Some(Err(_)) => {
                let message = "the tokio runtime of the request has shut down".into();
                Err(StoreError::Connection { message })
            }
            None => Err(StoreError::Timeout { deadline: self.deadline }),
        }
    }
}

/// Sends one batch after the other, until no call is pending. `node` is the node of a cluster that serves the keys.
async fn send_batches(store: Arc<Redis>, node: Option<Arc<Node>>, queue: Arc<BatchQueue>) {
    let (patience, mut queue) = (store.deadline / WAITS_PER_DEADLINE, Some(queue));
    while let Some(entries) = store.queues.take(&mut queue) {
        let (store, node) = (Arc::clone(&store), node.clone());
        let mut batch = Box::pin(async move { store.decide_batch(node.as_ref(), entries).await });
        if timeout(patience, &mut batch).await.is_err() {
            tokio::spawn(batch);
        }
    }
}

/// Takes the next calls, and makes one entry of equal calls; `None` if no call is pending.
fn take_entries(pending: &mut VecDeque<BatchEntry>) -> Option<Vec<BatchEntry>> {
    let mut entries: Vec<BatchEntry> = Vec::with_capacity(pending.len().min(MAX_ENTRIES));
    let mut calls = 0;
    while calls < MAX_CALLS
        && entries.len() < MAX_ENTRIES
        && let Some(call) = pending.pop_front()
    {
        // A call whose caller has dropped it is not charged.
        if call.reply_to.iter().all(oneshot::Sender::is_closed) {
            continue;
        }
        calls += 1;
        // The ids of most calls differ, so they are compared first.
        let equal = entries.iter_mut().find(|entry| {
            entry.charge.key_id == call.charge.key_id
                && (entry.op, &entry.charge) == (call.op, &call.charge)
        });
        match equal {
            Some(entry) => {
                entry.reply_to.extend(call.reply_to);
                entry.by = entry.by.max(call.by);
            }
            None => entries.push(call),
        }
    }
    (!entries.is_empty()).then_some(entries)
}

impl Redis {
    /// Decides entries of one node of a cluster; without a node, of one hash slot or the only server.
    async fn decide_batch(self: &Arc<Self>, node: Option<&Arc<Node>>, entries: Vec<BatchEntry>) {
        let cluster = self.cluster().filter(|_| node.is_some());
        let elsewhere = if cluster.is_some_and(|cluster| !cluster.takes_batches_by_node()) {
            entries
        } else {
            match self.send_batch(node, &entries).await {
                Err(failure) if cluster.is_some_and(|cluster| cluster.refuses(&failure)) => entries,
                reply => send_replies(node, entries, &reply),
            }
        };
        let mut each = self.decide_each(elsewhere);
        while each.join_next().await.is_some() {}
    }

    async fn send_batch(
        &self,
        node: Option<&Arc<Node>>,
        entries: &[BatchEntry],
    ) -> Result<Value, Failure> {
        let mut arguments = script::arguments_of_each(
            entries.iter().map(|entry| (&*entry.charge, entry)),
            |out, entry| {
                let (_, [cost, birth, _]) = script_op(entry.op, entry.charge.cost);
                script::put(out, [cost, birth]);
                out.extend((entry.reply_to.len() as u32).to_be_bytes());
            },
            self.clock.sent(),
        );
        let names = entries.iter().map(|entry| &entry.charge.count_name[..]);
        let (script, keys) = if node.is_some() {
            arguments.extend(names.map(<[u8]>::to_vec));
            (&script::BATCH_OF_NODE, Vec::new())
        } else {
            (&script::BATCH, names.collect())
        };
        let by = entries.iter().map(|entry| entry.by).max().unwrap_or_else(Instant::now);
        let call = ScriptCall { script, keys, arguments, is_atomic: true, node, by };
        self.exchange(&call).await
    }

    /// Decides entries concurrently, each by a script of its own.
    fn decide_each(self: &Arc<Self>, entries: Vec<BatchEntry>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for entry in entries {
            let store = Arc::clone(self);
            tasks.spawn(async move { store.decide_batch(None, vec![entry]).await });
        }
        tasks
    }
}

/// Sends the replies to the callers. Returns the entries of a node whose keys another node serves.
fn send_replies(
    node: Option<&Arc<Node>>,
    entries: Vec<BatchEntry>,
    reply: &Result<Value, Failure>,
) -> Vec<BatchEntry> {
    let reply = reply.as_ref().map_err(Failure::error);
    let (mut reply, mut elsewhere) = (reply.map(BatchReply::new), Vec::new());
    for entry in entries {
        let BatchEntry { op, charge, reply_to, .. } = &entry;
        let outcomes = match &mut reply {
            Ok(Some(reply)) => reply.next(*op, charge, reply_to.len()),
            Ok(None) => None,
            Err(error) => Some(Err(error.clone())),
        };
        let outcomes = outcomes.unwrap_or_else(|| Err(unexpected()));
        if node.is_some() && outcomes.as_ref().is_err_and(is_of_another_node) {
            elsewhere.push(entry);
            continue;
        }
        for (index, reply_to) in entry.reply_to.into_iter().enumerate() {
            let outcome = outcomes.as_ref().map(|outcomes| outcomes[index]);
            // Fails if the caller has dropped the call.
            let _ = reply_to.send(outcome.map_err(Clone::clone));
        }
    }
    elsewhere
}

#[derive(Default)]
pub(crate) struct BatchQueues(Mutex<HashMap<QueueId, Weak<BatchQueue>>>);

/// Pending calls. The owners are their senders.
type BatchQueue = Mutex<VecDeque<BatchEntry>>;

impl BatchQueues {
    /// Adds a call. Returns the queue if the caller starts a sender for it; otherwise, one that runs takes the call.
    fn add(&self, id: QueueId, call: BatchEntry) -> Option<Arc<BatchQueue>> {
        let mut queues = lock(&self.0);
        let queue = queues.get(&id).and_then(Weak::upgrade).unwrap_or_else(|| {
            let queue = Arc::default();
            queues.retain(|_, queue| queue.strong_count() > 0);
            queues.insert(id, Arc::downgrade(&queue));
            queue
        });
        lock(&queue).push_back(call);
        let senders = Arc::strong_count(&queue) - 1;
        (senders < SENDERS).then_some(queue)
    }

    /// Takes calls for a sender. If there are none, the sender has ended.
    fn take(&self, queue: &mut Option<Arc<BatchQueue>>) -> Option<Vec<BatchEntry>> {
        let _queues = lock(&self.0);
        let taken = take_entries(&mut lock(queue.as_ref()?));
        if taken.is_none() {
            *queue = None;
        }
        taken
    }
}

/// The kinds of replies to an entry that are not those to its calls.
const FAILED: u8 = 0;
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
        let mut outcomes = &outcomes[..];
        Some(Self { clock: take_7(&mut outcomes)?, outcomes, errors: parts })
    }

    /// Reads the outcomes of `calls` equal takes and their receipts, as if the calls had come in sequence; `None` if
    /// the reply is malformed.
    fn next(
        &mut self,
        op: Op,
        Charge { terms, cost, count_name, .. }: &Charge,
        calls: usize,
    ) -> Option<Result<Vec<Applied>, StoreError>> {
        let bytes = &mut self.outcomes;
        let [kind] = take(bytes)?;
        if kind == FAILED {
            return Some(Err(take_error(&mut self.errors, count_name)?));
        }
        if kind > LEVEL {
            return None;
        }
        let admitted = (u32::from_be_bytes(take(bytes)?) as usize).min(calls);
        // The last admitted call, with the slack of its outcome, and each rejected one.
        let (mut last, mut rejected, mut receipt) = (None, None, Receipt::default());
        if kind == LEVEL {
            let level = take_7(bytes)?;
            let outcome = |allowed| {
                BucketAtCall::at_level(level, allowed, self.clock).outcome(terms, self.clock, *cost)
            };
            last = Some((outcome(true), bucket::slack(level, terms.rate)));
            rejected = Some(outcome(false));
        } else {
            if admitted > 0 {
                last = Some(take_outcome(bytes)?);
                if op == Op::ACQUIRE {
                    receipt = take_receipt(bytes)?;
                }
            }
            if admitted < calls {
                rejected = Some(take_outcome(bytes)?.0);
            }
        }
        let of_call = |index: usize| {
            let Some(later) = admitted.checked_sub(index + 1) else {
                return Some((rejected?, Receipt::default()));
            };
            let (outcome, slack) = last?;
            Some((script::outcome_before(outcome, terms, later as u64 * cost, slack), receipt))
        };
        (0..calls).map(of_call).collect::<Option<Vec<_>>>().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::runtime::Handle;
    use tokio::sync::oneshot;

    use super::*;
    use crate::algorithm::Op;
    use crate::key::KeyId;
    use crate::limit::Limit;
    use crate::store::Charge;

    type CallReply = oneshot::Receiver<Result<Applied, StoreError>>;

    fn call() -> (BatchEntry, CallReply) {
        let terms = *Limit::fixed("queue", 1, Duration::from_secs(1)).terms();
        let (key_id, count_name) = (KeyId::from_bits(0), Vec::new());
        let charge = Arc::new(Charge { terms, key_id, count_name, cost: 1, statement: None });
        let (reply_to, reply) = oneshot::channel();
        let reply_to = OneOrMany::from([reply_to]);
        (BatchEntry { op: Op::TAKE, charge, by: Instant::now(), reply_to }, reply)
    }

    #[tokio::test]
    async fn calls_have_a_sender_until_none_is_left() {
        let (queues, id) = (BatchQueues::default(), (Handle::current().id(), 0));
        let (calls, replies): (Vec<_>, Vec<_>) = (0..5).map(|_| call()).unzip();
        let mut senders: Vec<_> = calls.into_iter().map(|call| queues.add(id, call)).collect();
        let started: Vec<_> = senders.iter().map(Option::is_some).collect();
        assert_eq!(started, [true, true, false, false, false]);
        let taken = queues.take(&mut senders[0]).expect("calls");
        let calls: Vec<_> = taken.iter().map(|entry| entry.reply_to.len()).collect();
        assert_eq!(calls, [5], "equal calls are one entry");
        assert!(queues.take(&mut senders[0]).is_none());
        // Another sender is left.
        let (next, reply) = call();
        let first = queues.add(id, next);
        assert!(first.is_some());
        drop((senders, first));
        reply.await.expect_err("no sender is left");
        let (next, _reply) = call();
        assert!(queues.add(id, next).is_some());
        assert_eq!(lock(&queues.0).len(), 1);
        drop(replies);
    }
}
