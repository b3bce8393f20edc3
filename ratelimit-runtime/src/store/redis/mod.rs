//! The Redis store: one decision is one script, in one round trip, on the keys of its limits.

mod address;
mod batch;
mod breaker;
mod cluster;
mod connect;
mod failure;
mod link;
mod node;
mod prefix;
mod program;
mod rollback;
mod script;
mod segments;
mod sentinel;
mod slot;
#[cfg(feature = "tls")]
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::time::Instant;

use self::address::Address;
pub(crate) use self::address::Certificates;
use self::batch::{Asked, Queues};
use self::cluster::Cluster;
use self::failure::Failure;
use self::node::{Find, Node};
pub use self::program::text as script_text;
use self::script::{Code, REPLY, Script, decode_reply};
use self::sentinel::Sentinels;
use super::{OnReturn, Store};
use crate::algorithm::{BucketOp, Op, Outcome};
use crate::background::Background;
use crate::check::Answer;
use crate::clock::Clock;
use crate::decision::{Answered, Decision, Source, Verdict};
use crate::error::{BuildError, StoreError};
use crate::key::{Key, KeyWriter};
use crate::limit::{Algorithm, BucketLimit, Limit};
use crate::part::Charge;

/// How a [`Redis`] is reached.
pub(crate) struct Settings<'a> {
    pub(crate) url: &'a str,
    pub(crate) certificates: &'a Certificates,
    pub(crate) prefix: &'a str,
    pub(crate) deadline: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) clock: Clock,
    pub(crate) background: Arc<Background>,
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
    background: Arc<Background>,
}

enum Topology {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Redis {
    /// A store on the servers that the URL names. Nothing is connected before the first decision.
    pub(crate) fn new(settings: Settings<'_>) -> Result<Self, BuildError> {
        let Settings { url, certificates, prefix, deadline, max_in_flight, clock, background } =
            settings;
        prefix::check(prefix)?;
        let probe = script::probe(format!("{prefix}:probe").as_bytes());
        let one = |find| Topology::One(Node::new(find, deadline, probe, &background));
        let topology = match Address::parse(url, certificates)? {
            Address::Server(target) => one(Find::At(target)),
            Address::Sentinel { sentinels, service, primary } => {
                one(Find::Primary(Sentinels::new(sentinels, service, primary)))
            }
            Address::Cluster { seeds } => {
                Topology::Cluster(Cluster::new(seeds, prefix, deadline, Arc::clone(&background)))
            }
        };
        let (queues, in_flight) = (Queues::default(), AtomicUsize::new(0));
        let servers =
            Servers { topology, queues, clock, deadline, in_flight, max_in_flight, background };
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
        let counts = !op.gives_back();
        Servers::answer(&self.servers, counts, move |servers, by| async move {
            let outcome = match op {
                Op::Decide => servers.decide_one(asked, by).await?,
                op => Box::pin(servers.ask(op, asked, by)).await?,
            };
            Ok(Answered { outcome, source: Source::Redis })
        })
    }

    fn apply_ahead(
        &self,
        op: BucketOp,
        limit: &BucketLimit,
        key: &dyn Key,
        cost: u32,
    ) -> Answer<Answered> {
        let asked = Asked { limit: **limit, key: self.key(limit, key), cost };
        let counts = matches!(op, BucketOp::Book { .. });
        Servers::answer(&self.servers, counts, move |servers, by| async move {
            let outcome = servers.ask(op, asked, by).await?;
            Ok(Answered { outcome, source: Source::Redis })
        })
    }

    fn apply_all(&self, parts: &[Charge<'_>], on_return: &dyn Fn() -> OnReturn) -> Answer<Verdict> {
        let parts = parts.iter().map(|part| Asked {
            limit: *part.limit,
            key: self.key(part.limit, part.key),
            cost: part.cost,
        });
        let groups = self.servers.groups(parts.collect());
        let on_return: OnReturn = if groups.len() > 1 { on_return() } else { Box::new(|| {}) };
        Servers::answer(&self.servers, true, move |servers, by| async move {
            match &groups[..] {
                [group] => servers.decide(Op::Decide, group, by).await.map(|(verdict, _)| verdict),
                _ => servers.decide_by_slots(groups, on_return, by).await,
            }
        })
    }

    fn reset(&self, limit: &Limit, key: &dyn Key) -> Answer<()> {
        let (key, algorithm) = (self.key(limit, key), limit.algorithm());
        Servers::answer(&self.servers, false, move |servers, by| async move {
            if algorithm == Algorithm::Sliding {
                return servers.reset_log(key, by).await;
            }
            let mut unlink = Cmd::new();
            unlink.arg("UNLINK").arg(&key);
            match servers.send(&unlink, &key, true, by).await {
                Ok(_) => Ok(()),
                Err(failure) => Err(failure.into_store_error(servers.deadline, &[key])),
            }
        })
    }

    fn ping(&self) -> Answer<()> {
        Servers::answer(&self.servers, false, |servers, by| async move {
            let pinged = match &servers.topology {
                Topology::One(node) => node.ping(by).await,
                Topology::Cluster(cluster) => cluster.ping(by).await,
            };
            pinged.map_err(|failure| failure.into_store_error(servers.deadline, &[]))
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
    /// The keys are decided together, and not each by itself.
    together: bool,
}

/// A place among the decisions that are awaited.
struct Place(Arc<Servers>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Servers {
    /// Runs `work`, which is to be done by a moment. What gives back does not count among the decisions
    /// that are awaited: it makes room.
    fn answer<T, F>(
        servers: &Arc<Self>,
        counts: bool,
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
            let _place = if counts { Some(servers.enter()?) } else { None };
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

    /// Answers the limits of one script together, and says when.
    async fn decide(
        &self,
        op: Op,
        group: &[Asked],
        by: Instant,
    ) -> Result<(Verdict, u64), StoreError> {
        let parts = group.iter().map(|part| (&part.limit, part.cost));
        let call = Call {
            script: Script::all(),
            keys: group.iter().map(|part| part.key.clone()).collect(),
            arguments: script::together(op, parts, self.clock.sent()),
            together: true,
        };
        let reply = match self.run_for(&call, by).await? {
            Value::BulkString(reply) => reply,
            reply => {
                let error = error_in_group(&reply, &call.keys).unwrap_or_else(unexpected);
                self.look_for_replica(&error);
                return Err(error);
            }
        };
        let replies = group.iter().zip(reply.chunks(REPLY));
        let verdicts = replies.map(|(part, reply)| {
            let (outcome, source) = (decode_reply(reply)?, Source::Redis);
            let decision = Decision::new(part.limit.capacity(), Answered { outcome, source });
            Some((Verdict::new(&part.limit, decision), outcome.clock))
        });
        let hardest = verdicts.reduce(|one, other| {
            let ((one, clock), (other, _)) = (one?, other?);
            Some((one.harder(other), clock))
        });
        let hardest = hardest.flatten();
        hardest.filter(|_| reply.len() == group.len() * REPLY).ok_or_else(unexpected)
    }

    /// Backs off where an error that a script has caught says that the server is a replica.
    fn look_for_replica(&self, error: &StoreError) {
        if let Topology::One(node) = &self.topology {
            node.look_for_replica(error);
        }
    }

    /// Asks about one limit.
    async fn ask(
        &self,
        op: impl Into<Code>,
        asked: Asked,
        by: Instant,
    ) -> Result<Outcome, StoreError> {
        let Asked { limit, key, cost } = asked;
        let call = Call {
            script: Script::of(&limit),
            arguments: script::alone(op, &limit, self.clock.sent(), cost),
            keys: vec![key],
            together: true,
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
        let Call { script, keys, arguments, together } = call;
        let key = keys.first().map_or(&[][..], |key| key);
        let mut reply = self.send(&script.by_hash(keys, arguments), key, *together, by).await;
        let unknown = ErrorKind::Server(ServerErrorKind::NoScript);
        if reply.as_ref().is_err_and(|failure| failure.kind() == Some(unknown)) {
            // Certainly not executed, so this is the only charge.
            reply = self.send(&script.by_text(keys, arguments), key, *together, by).await;
        }
        reply.map_err(|failure| failure.into_store_error(self.deadline, keys))
    }

    async fn send(
        &self,
        command: &Cmd,
        key: &[u8],
        together: bool,
        by: Instant,
    ) -> Result<Value, Failure> {
        match &self.topology {
            Topology::One(node) => node.send(command, false, by).await,
            Topology::Cluster(cluster) => {
                cluster.send(command, slot::slot(key), together, by).await
            }
        }
    }
}

/// The error of one limit, as `lua/all.lua` replies it.
fn error_in_group(reply: &Value, keys: &[Vec<u8>]) -> Option<StoreError> {
    let Value::Array(parts) = reply else { return None };
    let [Value::Int(index), Value::BulkString(message)] = &parts[..] else { return None };
    let key = keys.get(usize::try_from(*index).ok()?.checked_sub(1)?)?;
    Some(script::error_of(&String::from_utf8_lossy(message), key))
}

fn unexpected() -> StoreError {
    StoreError::Server { code: "ERR".into(), message: "the script gave another reply".into() }
}
