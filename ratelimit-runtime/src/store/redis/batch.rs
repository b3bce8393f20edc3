//! Many calls in one script: what makes a busy Redis fast.
//!
//! As long as few decisions are under way, each is sent by itself. Beyond that they queue, and up to
//! [`FLIGHTS`] scripts at a time take as many as there are, without waiting for more; more scripts, where
//! the server is far away. Equal calls are
//! one entry of a script with a count, whose answer is split again, so that each caller gets what it
//! would have got if they had come one after the other.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::{mem, slice};

use redis::Value;
use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::node::lock;
use super::script::{self, REPLY, Script};
use super::{Call, Servers, unexpected};
use crate::algorithm::{Op, Outcome};
use crate::error::StoreError;
use crate::limit::Limit;

/// So many decisions may be under way before they queue.
const THROUGH: usize = 4;

/// How many scripts of a queue are under way at a time.
const FLIGHTS: usize = 2;

/// How many entries a script has at most: Redis does nothing else meanwhile.
const ENTRIES: usize = 64;

/// How many calls one script decides at most.
const CALLS: usize = 1024;

/// A call waits for a flight for this part of its deadline. Where the server is so far away that no
/// flight comes back in that time, another one takes off.
const PATIENCE: u32 = 16;

/// What an entry that failed replies.
const FAILED: u32 = u32::MAX;

/// Calls that wait to be taken along.
#[derive(Default)]
pub(super) struct Queues {
    /// By runtime, which sends them, and by slot, for the keys of a script are in one.
    queues: Mutex<HashMap<QueueId, Queue>>,
}

type QueueId = (Id, u16);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    flights: usize,
    /// When the last flight took calls along.
    departed: Option<Instant>,
}

struct Waiting {
    asked: Asked,
    digest: u64,
    by: Instant,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<Outcome, StoreError>>;

/// A call. Equal ones are one entry.
#[derive(PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) limit: Limit,
    pub(super) key: Vec<u8>,
    pub(super) cost: u32,
}

impl Asked {
    /// A number that is the same for equal calls, and another one for most others.
    fn digest(&self) -> u64 {
        let mut digest = DefaultHasher::new();
        digest.write(&self.key);
        digest.write_u32(self.cost);
        digest.finish()
    }
}

impl Servers {
    /// Decides a call, by itself or with others.
    pub(super) async fn decide_one(
        self: &Arc<Self>,
        asked: Asked,
        by: Instant,
    ) -> Result<Outcome, StoreError> {
        if self.under_way() <= THROUGH {
            // In a box of its own: it is large, and most calls of a busy process queue.
            return Box::pin(self.ask(Op::Decide, asked, by)).await;
        }
        let id = (Handle::current().id(), self.slot(&asked.key));
        let mut answer = self.queue(id, asked, by);
        let mut soon = by - self.deadline / PATIENCE * (PATIENCE - 1);
        loop {
            match timeout_at(soon.min(by), &mut answer).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) => {
                    let message = "the tokio runtime that was to ask has shut down".into();
                    return Err(StoreError::Connection { message });
                }
                Err(_) if soon < by => soon = self.hurry(id, by),
                Err(_) => return Err(StoreError::Timeout { deadline: self.deadline }),
            }
        }
    }

    fn queue(
        self: &Arc<Self>,
        id: QueueId,
        asked: Asked,
        by: Instant,
    ) -> oneshot::Receiver<Result<Outcome, StoreError>> {
        let (sender, answer) = oneshot::channel();
        let digest = asked.digest();
        let mut queues = lock(&self.queues.queues);
        let queue = queues.entry(id).or_default();
        queue.waiting.push_back(Waiting { asked, digest, by, answer: sender });
        let takes_off = queue.flights < FLIGHTS;
        queue.flights += usize::from(takes_off);
        // A runtime that shuts down drops the flight at once, and its end locks the queues.
        drop(queues);
        if takes_off {
            self.take_off(id);
        }
        answer
    }

    fn take_off(self: &Arc<Self>, id: QueueId) {
        tokio::spawn(Flight { servers: Arc::clone(self), id, ended: false }.fly());
    }

    /// Sends another flight if calls wait and none has departed for a while. Says when a call that still
    /// waits is to look again.
    fn hurry(self: &Arc<Self>, id: QueueId, by: Instant) -> Instant {
        let mut queues = lock(&self.queues.queues);
        let Some(queue) = queues.get_mut(&id).filter(|queue| !queue.waiting.is_empty()) else {
            return by;
        };
        let (now, pause) = (Instant::now(), self.deadline / PATIENCE);
        let due = queue.departed.map_or(now, |departed| departed + pause);
        if due > now {
            return due;
        }
        queue.departed = Some(now);
        queue.flights += 1;
        drop(queues);
        self.take_off(id);
        now + pause
    }
}

/// One script after the other, until nobody waits.
struct Flight {
    servers: Arc<Servers>,
    id: QueueId,
    ended: bool,
}

/// A flight ends with its runtime as well, and the last one takes along the calls that still wait: no
/// other comes for them.
impl Drop for Flight {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut queues = lock(&self.servers.queues.queues);
        let stranded = queues.get_mut(&self.id).filter(|queue| queue.flights == 1);
        let stranded = stranded.map(|queue| mem::take(&mut queue.waiting));
        self.end(&mut queues);
        drop(queues);
        drop(stranded);
    }
}

impl Flight {
    fn end(&self, queues: &mut HashMap<QueueId, Queue>) {
        if let Some(queue) = queues.get_mut(&self.id) {
            queue.flights -= 1;
            if queue.flights == 0 && queue.waiting.is_empty() {
                queues.remove(&self.id);
            }
        }
    }

    async fn fly(mut self) {
        loop {
            let entries = self.board();
            let Some(by) = entries.iter().map(|entry| entry.by).max() else { return };
            self.servers.decide_many(entries, by).await;
        }
    }

    /// Takes the next calls along; ends when there are none.
    fn board(&mut self) -> Vec<Entry> {
        let servers = Arc::clone(&self.servers);
        let mut queues = lock(&servers.queues.queues);
        let Some(queue) = queues.get_mut(&self.id) else { return Vec::new() };
        let mut entries: Vec<Entry> = Vec::with_capacity(queue.waiting.len().min(ENTRIES));
        let mut digests = Vec::with_capacity(entries.capacity());
        let mut calls = 0;
        while calls < CALLS
            && entries.len() < ENTRIES
            && let Some(Waiting { asked, digest, by, answer }) = queue.waiting.pop_front()
        {
            // Who has given up is not charged.
            if answer.is_closed() {
                continue;
            }
            calls += 1;
            let equal = digests.iter().zip(&mut entries);
            let mut equal =
                equal.filter(|(other, entry)| **other == digest && entry.asked == asked);
            if let Some((_, entry)) = equal.next() {
                entry.answers.push(answer);
                entry.by = entry.by.max(by);
            } else {
                entries.push(Entry { asked, by, answers: vec![answer] });
                digests.push(digest);
            }
        }
        queue.departed = Some(Instant::now());
        if entries.is_empty() {
            // At once: whoever comes next starts another.
            self.ended = true;
            self.end(&mut queues);
        }
        entries
    }
}

/// Equal calls.
struct Entry {
    asked: Asked,
    by: Instant,
    answers: Vec<Answer>,
}

impl Servers {
    async fn decide_many(self: &Arc<Self>, mut entries: Vec<Entry>, by: Instant) {
        let mut limits: Vec<Limit> = Vec::new();
        let mut calls = Vec::with_capacity(9 * entries.len());
        for Entry { asked, answers, .. } in &entries {
            let known = limits.iter().position(|limit| *limit == asked.limit);
            let limit = known.unwrap_or_else(|| {
                limits.push(asked.limit);
                limits.len() - 1
            });
            script::put_entry(&mut calls, limit, asked.cost, answers.len() as u32);
        }
        let call = Call {
            script: Script::batch(),
            keys: entries.iter_mut().map(|entry| mem::take(&mut entry.asked.key)).collect(),
            arguments: script::in_batch(calls, &limits, self.clock.sent()),
            together: entries.len() == 1,
        };
        match self.run_for(&call, by).await {
            Ok(reply) => self.hand_out(entries, &call.keys, &reply),
            // Some keys of the slot are on another node already. Nothing was executed.
            Err(StoreError::Server { code, .. }) if &*code == "TRYAGAIN" && entries.len() > 1 => {
                let keys = entries.iter_mut().zip(call.keys);
                keys.for_each(|(entry, key)| entry.asked.key = key);
                self.decide_each(entries).await;
            }
            Err(error) => {
                for answer in entries.into_iter().flat_map(|entry| entry.answers) {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    /// Decides entries at the same time, each by a script of its own.
    fn decide_each(
        self: &Arc<Self>,
        entries: Vec<Entry>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let decide = |entry: Entry| {
            let (servers, by) = (Arc::clone(self), entry.by);
            tokio::spawn(async move { servers.decide_many(vec![entry], by).await })
        };
        let tasks: Vec<_> = entries.into_iter().map(decide).collect();
        Box::pin(async {
            for task in tasks {
                let _ = task.await;
            }
        })
    }

    fn hand_out(&self, entries: Vec<Entry>, keys: &[Vec<u8>], reply: &Value) {
        let mut reply = Reply::new(reply);
        for (Entry { asked, answers, .. }, key) in entries.into_iter().zip(keys) {
            let told = reply.as_mut().and_then(|reply| reply.next(key, answers.len()));
            let told = told.unwrap_or_else(|| Err(unexpected()));
            if let Err(error) = &told {
                self.look_for_replica(error);
            }
            for (index, answer) in answers.into_iter().enumerate() {
                // A caller that has given up does not want it any more.
                let _ = answer
                    .send(told.as_ref().map(|told| told.to(index, &asked)).map_err(Clone::clone));
            }
        }
    }
}

/// The reply of `lua/batch.lua`, read entry by entry.
struct Reply<'a> {
    outcomes: &'a [u8],
    errors: slice::Iter<'a, Value>,
}

impl<'a> Reply<'a> {
    fn new(reply: &'a Value) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        let mut parts = parts.iter();
        let Some(Value::BulkString(outcomes)) = parts.next() else { return None };
        Some(Self { outcomes, errors: parts })
    }

    /// What so many equal calls of a key are told.
    fn next(&mut self, key: &[u8], calls: usize) -> Option<Result<Told, StoreError>> {
        let admitted = u32::from_be_bytes(*self.outcomes.first_chunk()?);
        if admitted == FAILED {
            self.take(4)?;
            let Some(Value::BulkString(message)) = self.errors.next() else { return None };
            let message = String::from_utf8_lossy(message);
            return Some(Err(script::error_of(&message, key)));
        }
        if calls == 1 {
            let (outcome, slack) = self.outcome()?;
            let admitted = usize::from(outcome.allowed);
            return Some(Ok(Told { admitted, last: outcome, slack, refused: outcome }));
        }
        self.take(4)?;
        let admitted = (admitted as usize).min(calls);
        let last = if admitted > 0 { Some(self.outcome()?) } else { None };
        let refused = if admitted < calls { Some(self.outcome()?.0) } else { None };
        let (last, slack) = last.or(refused.map(|refused| (refused, 0)))?;
        Some(Ok(Told { admitted, last, slack, refused: refused.unwrap_or(last) }))
    }

    fn outcome(&mut self) -> Option<(Outcome, u32)> {
        let reply = self.take(REPLY)?;
        Some((script::decode_reply(reply)?, script::decode_slack(reply)?))
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.outcomes.split_at_checked(bytes)?;
        self.outcomes = rest;
        Some(taken)
    }
}

/// What equal calls are told.
struct Told {
    /// So many are admitted; this is what the last of them is told.
    admitted: usize,
    last: Outcome,
    slack: u32,
    /// What the others are told.
    refused: Outcome,
}

impl Told {
    /// What the call of this index is told.
    fn to(&self, index: usize, asked: &Asked) -> Outcome {
        if index >= self.admitted {
            return self.refused;
        }
        let behind = (self.admitted - 1 - index) as u64;
        self.last.before(&asked.limit, behind * u64::from(asked.cost), self.slack)
    }
}

impl Outcome {
    /// The outcome of an admitted call, behind which `units` more were charged at the same moment.
    fn before(self, limit: &Limit, units: u64, slack: u32) -> Self {
        let sooner = if limit.algorithm().is_bucket() && slack != script::LEASED {
            // Less was taken by then, and the wait was rounded up from there.
            (u64::from(slack) + units * limit.rate.token) / limit.rate.drain
        } else {
            0
        };
        Self {
            remaining: self.remaining.saturating_add(units as u32),
            reset_us: self.reset_us.saturating_sub(sooner),
            ..self
        }
    }
}
