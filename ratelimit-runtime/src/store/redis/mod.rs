//! The Redis store: one decision is one script and one round trip.

mod network;
mod operations;
mod prefix;
mod scripts;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ::redis::{Cmd, Value};
use tokio::time::Instant;

use self::network::address::Address;
pub(crate) use self::network::certificates::Certificates;
use self::network::cluster::Cluster;
use self::network::node::{Node, ServerLookup};
use self::network::sentinel::Sentinels;
use self::network::slot;
use self::operations::batch::BatchQueues;
use self::operations::births::Births;
use self::operations::line::LineReplies;
pub(crate) use self::operations::rollback::RollbackHook;
use self::operations::rollback::SlotGroup;
use self::operations::script_call::{ScriptCall, unexpected};
pub use self::scripts::program::text as script_text;
use self::scripts::script::{
    self, RECEIPT, REPLY, Script, ScriptOp, decode_acquired, decode_reply,
};
use super::{Charge, OneOrMany, Reply, Request, SettleError, SettledCharge, Store};
use crate::algorithm::{Op, Outcome, Receipt};
use crate::background::{Background, is_in_runtime};
use crate::clock::Clock;
use crate::key::{Key, put_count_name};
use crate::limit::{Algorithm, Terms};
use crate::reply::{BuildError, Source, StoreError};

/// The settings of a [`Redis`].
pub(crate) struct RedisSettings<'a> {
    pub(crate) url: &'a str,
    pub(crate) certificates: &'a Certificates,
    pub(crate) prefix: &'a str,
    pub(crate) deadline: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) clock: Clock,
    pub(crate) background: Arc<Background>,
    pub(crate) on_rollback: RollbackHook,
}

pub(crate) struct Redis {
    servers: Arc<Servers>,
    prefix: Box<str>,
}

/// The servers behind a URL, and the pending decisions.
struct Servers {
    topology: Topology,
    queues: BatchQueues,
    births: Births,
    clock: Clock,
    deadline: Duration,
    pending: AtomicUsize,
    max_in_flight: usize,
    background: Arc<Background>,
    on_rollback: RollbackHook,
}

enum Topology {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Redis {
    /// Creates a store on the servers that the URL names. It connects with the first decision.
    pub(crate) fn new(settings: RedisSettings<'_>) -> Result<Self, BuildError> {
        let RedisSettings { url, certificates, prefix, deadline, background, .. } = settings;
        prefix::check(prefix)?;
        let probe = script::probe(format!("{prefix}:probe").as_bytes());
        let one = |lookup| Topology::One(Node::new(lookup, deadline, probe, &background));
        let topology = match Address::parse(url, certificates)? {
            Address::Server(target) => one(ServerLookup::At(target)),
            Address::Sentinel { sentinels, service, primary } => {
                one(ServerLookup::Primary(Sentinels::new(sentinels, service, primary)))
            }
            Address::Cluster { seeds } => {
                Topology::Cluster(Cluster::new(seeds, prefix, deadline, Arc::clone(&background)))
            }
        };
        let servers = Servers {
            topology,
            queues: BatchQueues::default(),
            births: Births::default(),
            clock: settings.clock,
            deadline,
            pending: AtomicUsize::new(0),
            max_in_flight: settings.max_in_flight,
            background,
            on_rollback: settings.on_rollback,
        };
        Ok(Self { servers: Arc::new(servers), prefix: prefix.into() })
    }
}

impl Store for Redis {
    async fn execute(&self, request: Request) -> Result<Reply, StoreError> {
        let servers = &self.servers;
        // A give-back makes room, so it does not count as a pending decision.
        let (by, _guard) = servers.admit(!request.gives_back())?;
        let (op, charge) = match request {
            Request::Apply(Op::Decide, OneOrMany::One(charge)) => {
                let outcome = servers.decide_one(charge, by).await?;
                return Ok(Reply::one(outcome, Source::Redis));
            }
            Request::Apply(op, OneOrMany::Many(charges)) => {
                let outcomes = OneOrMany::Many(servers.apply_many(op, charges, by).await?);
                return Ok(Reply::new(outcomes, Source::Redis));
            }
            Request::Acquire(charges) => {
                let charges = charges.iter().map(Arc::clone).collect();
                let acquired = servers.acquire(charges, by).await?;
                let is_charged = acquired.iter().all(|(outcome, _)| outcome.is_allowed());
                let (outcomes, receipts): (Vec<_>, Vec<_>) = acquired.into_iter().unzip();
                let mut reply = Reply::new(outcomes.into(), Source::Redis);
                if is_charged {
                    reply.receipts = receipts.into();
                }
                return Ok(reply);
            }
            Request::Apply(op, OneOrMany::One(charge)) => (op, charge),
            Request::Line(line) => {
                let LineReplies { outcomes, receipts } = servers.decide_line(line, by).await?;
                let (outcomes, receipts) = (OneOrMany::Many(outcomes), OneOrMany::Many(receipts));
                return Ok(Reply { outcomes, receipts, source: Source::Redis });
            }
        };
        let outcome = servers.apply_one(op, &charge, by).await?;
        Ok(Reply::one(outcome, Source::Redis))
    }

    async fn settle(&self, charges: &[SettledCharge]) -> Vec<Result<Outcome, SettleError>> {
        match self.servers.admit(false) {
            Ok((by, _)) => self.servers.settle(charges, by).await,
            Err(error) => vec![Err(SettleError::NotExecuted(error)); charges.len()],
        }
    }

    fn settle_group(&self, charge: &Charge) -> u16 {
        self.servers.slot(&charge.count_name)
    }

    async fn reset(&self, charge: &Charge) -> Result<bool, StoreError> {
        let servers = &self.servers;
        let (by, _) = servers.admit(false)?;
        let name = &charge.count_name;
        if charge.terms.algorithm() == Algorithm::Sliding {
            return servers.reset_log(name, by).await;
        }
        let mut unlink = Cmd::new();
        unlink.arg("UNLINK").arg(name);
        match servers.send(&unlink, name, true, by).await {
            Ok(removed) => Ok(removed != Value::Int(0)),
            Err(failure) => Err(failure.into_store_error(servers.deadline, &[&name[..]])),
        }
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let servers = &self.servers;
        let (by, _) = servers.admit(false)?;
        let pinged = match &servers.topology {
            Topology::One(node) => node.ping(by).await,
            Topology::Cluster(cluster) => cluster.ping(by).await,
        };
        pinged.map_err(|failure| failure.into_store_error(servers.deadline, &[]))
    }

    /// Returns the key in Redis.
    fn count_name(&self, terms: &Terms, key: &dyn Key) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + terms.name().as_str().len() + 48);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b':');
        put_count_name(&mut name, terms, key);
        name
    }

    fn source(&self) -> Source {
        Source::Redis
    }
}

/// Counts one pending decision until it is dropped.
struct PendingDecision(Arc<Servers>);

impl Drop for PendingDecision {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Servers {
    /// Begins a request: returns its deadline, and a guard if it counts as a pending decision.
    fn admit(
        self: &Arc<Self>,
        counts: bool,
    ) -> Result<(Instant, Option<PendingDecision>), StoreError> {
        // Timers and sockets belong to a runtime, and panic without one.
        if !is_in_runtime() {
            return Err(StoreError::NoRuntime);
        }
        let mut guard = None;
        if counts {
            let others = self.pending.fetch_add(1, Ordering::Relaxed);
            guard = Some(PendingDecision(Arc::clone(self)));
            if others >= self.max_in_flight {
                return Err(StoreError::Overloaded { max_in_flight: self.max_in_flight });
            }
        }
        Ok((Instant::now() + self.deadline, guard))
    }

    fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Returns the hash slot of a key, which all keys of a script must share; 0 on one server.
    fn slot(&self, key: &[u8]) -> u16 {
        match self.topology {
            Topology::One(_) => 0,
            Topology::Cluster(_) => slot::slot(key),
        }
    }

    /// Groups charges so that one script can decide a group: all charges on one server; in a cluster, the charges of
    /// a hash slot.
    fn groups(&self, charges: Vec<Arc<Charge>>) -> Vec<SlotGroup> {
        let mut groups: Vec<(u16, SlotGroup)> = Vec::new();
        for (index, charge) in charges.into_iter().enumerate() {
            let slot = self.slot(&charge.count_name);
            match groups.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, group)) => group.push((index, charge)),
                None => groups.push((slot, vec![(index, charge)])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Applies an operation to one charge.
    async fn apply_one(&self, op: Op, charge: &Charge, by: Instant) -> Result<Outcome, StoreError> {
        let Charge { terms, count_name, cost, .. } = charge;
        let call = ScriptCall {
            script: Script::of(terms),
            arguments: script::arguments_of_one(op, terms, self.clock.sent(), *cost),
            keys: vec![count_name],
            is_atomic: true,
        };
        decode_reply(&self.run(&call, by).await?).ok_or_else(unexpected)
    }

    /// Applies an operation to several charges together. Returns the outcomes in their order.
    async fn apply_many(
        self: &Arc<Self>,
        op: Op,
        charges: Vec<Arc<Charge>>,
        by: Instant,
    ) -> Result<Vec<Outcome>, StoreError> {
        match op {
            Op::Decide => Ok(outcomes_of(self.decide_groups(op.into(), charges, by).await?)),
            Op::Peek => Ok(outcomes_of(self.peek_by_slots(&self.groups(charges), by).await?)),
            // Each give-back stands by itself: one that fails stops no other.
            Op::Refund | Op::Return { .. } => {
                let mut outcomes = Ok(Vec::with_capacity(charges.len()));
                for charge in charges {
                    let outcome = self.apply_one(op, &charge, by).await;
                    outcomes = outcomes.and_then(|mut outcomes| {
                        outcomes.push(outcome?);
                        Ok(outcomes)
                    });
                }
                outcomes
            }
        }
    }

    /// Decides a call whose charges can be settled.
    async fn acquire(
        self: &Arc<Self>,
        charges: Vec<Arc<Charge>>,
        by: Instant,
    ) -> Result<Vec<(Outcome, Receipt)>, StoreError> {
        let op = ScriptOp::acquire(self.births.draw());
        let [charge] = &charges[..] else { return self.decide_groups(op, charges, by).await };
        let Charge { terms, count_name, cost, .. } = &**charge;
        let call = ScriptCall {
            script: Script::of(terms),
            arguments: script::arguments_of_one(op, terms, self.clock.sent(), *cost),
            keys: vec![count_name],
            is_atomic: true,
        };
        Ok(vec![decode_acquired(&self.run(&call, by).await?).ok_or_else(unexpected)?])
    }

    /// Decides a call by `op`, in one script or hash slot by hash slot.
    async fn decide_groups(
        self: &Arc<Self>,
        op: ScriptOp,
        charges: Vec<Arc<Charge>>,
        by: Instant,
    ) -> Result<Vec<(Outcome, Receipt)>, StoreError> {
        let groups = self.groups(charges);
        match &groups[..] {
            [group] => self.apply_group(op, group, by).await,
            _ => self.decide_by_slots(op, groups, by).await,
        }
    }

    /// Applies an operation to the charges of one script. Returns the outcomes in their order, with the receipts of an
    /// admitted `acquire`.
    async fn apply_group(
        &self,
        op: ScriptOp,
        group: &SlotGroup,
        by: Instant,
    ) -> Result<Vec<(Outcome, Receipt)>, StoreError> {
        let parts = group.iter().map(|(_, charge)| (&charge.terms, charge.cost));
        let call = ScriptCall {
            script: Script::all(),
            keys: group.iter().map(|(_, charge)| &charge.count_name[..]).collect(),
            arguments: script::arguments_of_all(op, parts, self.clock.sent()),
            is_atomic: true,
        };
        let reply = self.run_for_group(&call, by).await?;
        let length =
            [REPLY, REPLY + RECEIPT].into_iter().find(|it| it * group.len() == reply.len());
        let replies = reply.chunks(length.ok_or_else(unexpected)?);
        replies.map(|reply| decode_acquired(reply).ok_or_else(unexpected)).collect()
    }
}

fn outcomes_of(replied: Vec<(Outcome, Receipt)>) -> Vec<Outcome> {
    replied.into_iter().map(|(outcome, _)| outcome).collect()
}
