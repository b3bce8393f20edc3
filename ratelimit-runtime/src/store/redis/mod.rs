//! The Redis store: one decision is one script, in one round trip, on the keys of its limits.

mod address;
mod batch;
mod breaker;
mod cluster;
mod failure;
mod node;
mod script;
mod segments;
mod sentinel;
mod slot;

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use self::address::Address;
pub(crate) use self::address::Certificates;
use self::batch::{Asked, Queues};
use self::cluster::Cluster;
use self::failure::Failure;
use self::node::{Find, Node};
use self::script::{REPLY, Script, decode_reply};
use self::sentinel::Sentinels;
use super::Store;
use crate::algorithm::{Op, Outcome};
use crate::check::Answer;
use crate::clock::Clock;
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::{BuildError, StoreError};
use crate::key::{Key, KeyWriter};
use crate::limit::{Algorithm, Limit};
use crate::part::Charge;

/// How a [`Redis`] is reached.
pub(crate) struct Settings<'a> {
    pub(crate) url: &'a str,
    pub(crate) certificates: &'a Certificates,
    pub(crate) prefix: &'a str,
    pub(crate) deadline: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) clock: Clock,
}

pub(crate) struct Redis {
    servers: Arc<Servers>,
    prefix: Box<str>,
}

/// Those that are asked.
struct Servers {
    topology: Topology,
    queues: Queues,
    clock: Clock,
    deadline: Duration,
    in_flight: AtomicUsize,
    max_in_flight: usize,
}

enum Topology {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Redis {
    /// A store on the servers that the URL names. Nothing is connected before the first decision.
    pub(crate) fn new(settings: Settings<'_>) -> Result<Self, BuildError> {
        let Settings { url, certificates, prefix, deadline, max_in_flight, clock } = settings;
        if prefix.contains(['{', '}']) {
            return Err(BuildError::BracesInPrefix);
        }
        let topology = match Address::parse(url, certificates)? {
            Address::Server(target) => Topology::One(Node::new(Find::At(target), deadline)),
            Address::Sentinel { sentinels, service, primary } => {
                let primary = Find::Primary(Sentinels::new(sentinels, service, primary));
                Topology::One(Node::new(primary, deadline))
            }
            Address::Cluster { seeds } => Topology::Cluster(Cluster::new(seeds, deadline)),
        };
        let (queues, in_flight) = (Queues::default(), AtomicUsize::new(0));
        let servers = Servers { topology, queues, clock, deadline, in_flight, max_in_flight };
        Ok(Self { servers: Arc::new(servers), prefix: prefix.into() })
    }

    fn key(&self, limit: &Limit, key: &dyn Key) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + limit.name().len() + 48);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b':');
        KeyWriter::append(&mut name, |out| out.identity(limit, key));
        name
    }
}

impl Store for Redis {
    fn apply(&self, op: Op, limit: &Limit, key: &dyn Key, cost: u32) -> Answer<Answered> {
        let asked = Asked { limit: *limit, key: self.key(limit, key), cost };
        Servers::answer(&self.servers, move |servers, by| async move {
            let outcome = match op {
                Op::Decide => servers.decide_one(asked, by).await?,
                op => Box::pin(servers.ask(op, asked, by)).await?,
            };
            Ok(Answered { outcome, source: Source::Redis })
        })
    }

    fn apply_all(&self, parts: &[Charge<'_>]) -> Answer<Verdict> {
        let parts = parts.iter().map(|part| Asked {
            limit: *part.limit,
            key: self.key(part.limit, part.key),
            cost: part.cost,
        });
        let groups = self.servers.groups(parts.collect());
        Servers::answer(&self.servers, move |servers, by| async move {
            match &groups[..] {
                [group] => servers.decide(Op::Decide, group, by).await,
                _ => servers.decide_by_slots(groups, by).await,
            }
        })
    }

    fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<()> {
        let (key, algorithm) = (self.key(limit, key), limit.algorithm());
        Servers::answer(&self.servers, move |servers, by| async move {
            if algorithm == Algorithm::Sliding {
                return servers.reset_log(key, by).await;
            }
            let mut unlink = Cmd::new();
            unlink.arg("UNLINK").arg(&key);
            match servers.send(&unlink, &key, by).await {
                Ok(_) => Ok(()),
                Err(failure) => Err(failure.into_store_error(servers.deadline, &[key])),
            }
        })
    }

    fn source(&self) -> Source {
        Source::Redis
    }

    fn deadline(&self) -> Duration {
        self.servers.deadline
    }
}

/// A script, and what it is called with.
struct Call {
    script: &'static Script,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

/// A place among the decisions that are awaited.
struct Place(Arc<Servers>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Servers {
    /// Runs `work`, which is to be done by a moment.
    fn answer<T, F>(
        servers: &Arc<Self>,
        work: impl FnOnce(Arc<Self>, Instant) -> F + Send + 'static,
    ) -> Answer<T>
    where
        T: 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let servers = Arc::clone(servers);
        Answer::later(async move {
            // Timers and sockets belong to a runtime, and panic without one.
            if tokio::runtime::Handle::try_current().is_err() {
                return Err(StoreError::NoRuntime);
            }
            let _place = servers.enter()?;
            let by = Instant::now() + servers.deadline;
            work(servers, by).await
        })
    }

    fn enter(self: &Arc<Self>) -> Result<Place, StoreError> {
        let place = Place(Arc::clone(self));
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.max_in_flight {
            return Err(StoreError::Overloaded { max_in_flight: self.max_in_flight });
        }
        Ok(place)
    }

    fn under_way(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// What keys of one script have in common.
    fn slot(&self, key: &[u8]) -> u16 {
        match self.topology {
            Topology::One(_) => 0,
            Topology::Cluster(_) => slot::slot(key),
        }
    }

    /// What can be decided by one script each: all of it on one server, the limits of one slot in a
    /// cluster.
    fn groups(&self, parts: Vec<Asked>) -> Vec<Vec<Asked>> {
        let mut groups: Vec<(u16, Vec<Asked>)> = Vec::new();
        for part in parts {
            let slot = self.slot(&part.key);
            match groups.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, group)) => group.push(part),
                None => groups.push((slot, vec![part])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Answers the limits of one script together.
    async fn decide(&self, op: Op, group: &[Asked], by: Instant) -> Result<Verdict, StoreError> {
        let mut head = script::head(op, self.clock.sent());
        head.extend(group.iter().flat_map(|part| part.cost.to_be_bytes()));
        let limits = group.iter().map(|part| script::among_several(&part.limit));
        let call = Call {
            script: Script::all(),
            keys: group.iter().map(|part| part.key.clone()).collect(),
            arguments: iter::once(head).chain(limits).collect(),
        };
        let reply = self.run(&call, by).await?;
        let replies = group.iter().zip(reply.chunks(REPLY));
        let verdicts = replies.map(|(part, reply)| {
            let (outcome, source) = (decode_reply(reply)?, Source::Redis);
            let decision = Decision::new(part.limit.capacity(), Answered { outcome, source });
            Some(Verdict::new(&part.limit, decision))
        });
        let hardest = verdicts.reduce(|one, other| Some(one?.harder(other?))).flatten();
        hardest.filter(|_| reply.len() == group.len() * REPLY).ok_or_else(unexpected)
    }

    /// Answers limits that no one script can: first asks all of them, then charges one group after
    /// the other. If somebody else was faster in between, what was charged is given back; until then
    /// others may have been refused for it.
    async fn decide_by_slots(
        self: &Arc<Self>,
        mut groups: Vec<Vec<Asked>>,
        by: Instant,
    ) -> Result<Verdict, StoreError> {
        let mut hardest: Option<Verdict> = None;
        for group in &groups {
            let verdict = self.decide(Op::Peek, group, by).await?;
            hardest = Some(hardest.map_or(verdict, |hardest| hardest.harder(verdict)));
        }
        if let Some(refused) = hardest.filter(|hardest| !hardest.decision.allowed) {
            return Ok(refused);
        }
        let mut hardest: Option<Verdict> = None;
        for (index, group) in groups.iter().enumerate() {
            let verdict = self.decide(Op::Decide, group, by).await;
            if !verdict.as_ref().is_ok_and(|verdict| verdict.decision.allowed) {
                groups.truncate(index);
                // As far as there is time: who is told finds nothing charged.
                let _ = timeout_at(by, self.give_back(groups)).await;
                return verdict;
            }
            let verdict = verdict?;
            hardest = Some(hardest.map_or(verdict, |hardest| hardest.harder(verdict)));
        }
        hardest.ok_or(StoreError::NoLimits)
    }

    /// Gives back in time of its own: the caller's may be over, and the caller may leave.
    fn give_back(self: &Arc<Self>, groups: Vec<Vec<Asked>>) -> JoinHandle<()> {
        let servers = Arc::clone(self);
        tokio::spawn(async move {
            let by = Instant::now() + servers.deadline;
            for part in groups.into_iter().flatten() {
                // The failure that is told is the one that led here.
                let _ = servers.ask(Op::Refund, part, by).await;
            }
        })
    }

    /// Asks about one limit.
    async fn ask(&self, op: Op, asked: Asked, by: Instant) -> Result<Outcome, StoreError> {
        let Asked { limit, key, cost } = asked;
        let call = Call {
            script: Script::of(limit.algorithm()),
            arguments: vec![script::alone(op, &limit, self.clock.sent(), cost)],
            keys: vec![key],
        };
        decode_reply(&self.run(&call, by).await?).ok_or_else(unexpected)
    }

    /// Runs a script that replies one string.
    async fn run(&self, call: &Call, by: Instant) -> Result<Vec<u8>, StoreError> {
        match self.run_for(call, by).await? {
            Value::BulkString(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }

    /// Runs a script once, whether the server knows it or not.
    async fn run_for(&self, call: &Call, by: Instant) -> Result<Value, StoreError> {
        let Call { script, keys, arguments } = call;
        let key = keys.first().map_or(&[][..], |key| key);
        let mut reply = self.send(&script.by_hash(keys, arguments), key, by).await;
        let unknown = ErrorKind::Server(ServerErrorKind::NoScript);
        if reply.as_ref().is_err_and(|failure| failure.kind() == Some(unknown)) {
            // Certainly not executed, so this is the only charge.
            reply = self.send(&script.by_text(keys, arguments), key, by).await;
        }
        reply.map_err(|failure| failure.into_store_error(self.deadline, keys))
    }

    async fn send(&self, command: &Cmd, key: &[u8], by: Instant) -> Result<Value, Failure> {
        match &self.topology {
            Topology::One(node) => node.send(command, false, by).await,
            Topology::Cluster(cluster) => cluster.send(command, slot::slot(key), by).await,
        }
    }
}

fn unexpected() -> StoreError {
    StoreError::Server { code: "ERR".into(), message: "the script gave another reply".into() }
}
