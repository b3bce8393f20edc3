//! Many calls in one script: what makes a busy Redis fast.
//!
//! As long as few decisions are under way, each is sent by itself. Beyond that they queue, and up to
//! [`FLIGHTS`] scripts at a time take as many as there are, without waiting for more. Equal calls are
//! one entry of a script with a count, whose answer is split again, so that each caller gets what it
//! would have got if they had come one after the other.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

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
}

struct Waiting {
    asked: Asked,
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

impl Hash for Asked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Limits of one key rarely differ.
        self.key.hash(state);
        self.cost.hash(state);
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
            return self.ask(Op::Decide, asked, by).await;
        }
        match timeout_at(by, self.queue(asked, by)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(StoreError::Timeout { deadline: self.deadline }),
        }
    }

    fn queue(
        self: &Arc<Self>,
        asked: Asked,
        by: Instant,
    ) -> oneshot::Receiver<Result<Outcome, StoreError>> {
        let (sender, answer) = oneshot::channel();
        let id = (Handle::current().id(), self.slot(&asked.key));
        let mut queues = lock(&self.queues.queues);
        let queue = queues.entry(id).or_default();
        queue.waiting.push_back(Waiting { asked, by, answer: sender });
        let takes_off = queue.flights < FLIGHTS;
        queue.flights += usize::from(takes_off);
        // A runtime that shuts down drops the flight at once, and its end locks the queues.
        drop(queues);
        if takes_off {
            tokio::spawn(Flight { servers: Arc::clone(self), id, ended: false }.fly());
        }
        answer
    }
}

/// One script after the other, until nobody waits.
struct Flight {
    servers: Arc<Servers>,
    id: QueueId,
    ended: bool,
}

/// A flight ends with its runtime as well.
impl Drop for Flight {
    fn drop(&mut self) {
        if !self.ended {
            self.end(&mut lock(&self.servers.queues.queues));
        }
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
        let mut entries: Vec<Entry> = Vec::new();
        let mut places: HashMap<Asked, usize> = HashMap::new();
        let mut calls = 0;
        while calls < CALLS
            && entries.len() < ENTRIES
            && let Some(Waiting { asked, by, answer }) = queue.waiting.pop_front()
        {
            // Who has given up is not charged.
            if answer.is_closed() {
                continue;
            }
            calls += 1;
            if let Some(place) = places.get(&asked) {
                let entry = &mut entries[*place];
                entry.answers.push(answer);
                entry.by = entry.by.max(by);
            } else {
                entries.push(Entry {
                    limit: asked.limit,
                    cost: asked.cost,
                    key: asked.key.clone(),
                    by,
                    answers: vec![answer],
                });
                places.insert(asked, entries.len() - 1);
            }
        }
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
    limit: Limit,
    key: Vec<u8>,
    cost: u32,
    by: Instant,
    answers: Vec<Answer>,
}

impl Servers {
    async fn decide_many(&self, entries: Vec<Entry>, by: Instant) {
        let clock = self.clock.sent();
        let arguments = entries.iter().map(|entry| {
            let count = entry.answers.len() as u32;
            script::counted_arguments(&entry.limit, clock, entry.cost, count)
        });
        let call = Call {
            script: Script::batch(),
            keys: entries.iter().map(|entry| entry.key.clone()).collect(),
            arguments: arguments.collect(),
        };
        let reply = self.run_for(&call, by).await;
        let mut reply = match reply {
            Ok(Value::Array(parts)) => Reply::new(parts),
            Ok(_) => None,
            Err(error) => {
                return for_each(entries, |answer| {
                    let _ = answer.send(Err(error.clone()));
                });
            }
        };
        for entry in entries {
            let answers = reply.as_mut().and_then(|reply| reply.next(&entry));
            let answers = answers.unwrap_or_else(|| vec![Err(unexpected()); entry.answers.len()]);
            for (answer, decided) in entry.answers.into_iter().zip(answers) {
                // Who has given up does not want it any more.
                let _ = answer.send(decided);
            }
        }
    }
}

fn for_each(entries: Vec<Entry>, act: impl FnMut(Answer)) {
    entries.into_iter().flat_map(|entry| entry.answers).for_each(act);
}

/// The reply of `lua/batch.lua`, read entry by entry.
struct Reply {
    outcomes: std::vec::IntoIter<u8>,
    errors: std::vec::IntoIter<Value>,
}

impl Reply {
    fn new(parts: Vec<Value>) -> Option<Self> {
        let mut parts = parts.into_iter();
        let Some(Value::BulkString(outcomes)) = parts.next() else { return None };
        Some(Self { outcomes: outcomes.into_iter(), errors: parts })
    }

    /// What each call of the entry is told.
    fn next(&mut self, entry: &Entry) -> Option<Vec<Result<Outcome, StoreError>>> {
        let calls = entry.answers.len();
        let admitted = u32::from_be_bytes(self.take()?);
        if admitted == FAILED {
            let Some(Value::BulkString(message)) = self.errors.next() else { return None };
            let message = String::from_utf8_lossy(&message);
            return Some(vec![Err(script::error_of(&message, &entry.key)); calls]);
        }
        let admitted = (admitted as usize).min(calls);
        let mut outcomes = Vec::with_capacity(calls);
        if admitted > 0 {
            let reply: [u8; REPLY] = self.take()?;
            let last = script::decode_reply(&reply)?;
            let slack = script::decode_slack(&reply)?;
            outcomes.extend((0..admitted).rev().map(|behind| {
                Ok(last.before(&entry.limit, behind as u64 * u64::from(entry.cost), slack))
            }));
        }
        if admitted < calls {
            let reply: [u8; REPLY] = self.take()?;
            let refused = script::decode_reply(&reply)?;
            outcomes.resize(calls, Ok(refused));
        }
        Some(outcomes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.outcomes.next()?;
        }
        Some(bytes)
    }
}

impl Outcome {
    /// The outcome of an admitted call, behind which `units` more were charged at the same moment.
    fn before(self, limit: &Limit, units: u64, slack: u32) -> Self {
        let sooner = if limit.algorithm().is_bucket() {
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
