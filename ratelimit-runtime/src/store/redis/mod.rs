//! The Redis store: one decision is one script and one round trip.

mod network;
mod operations;
mod prefix;
mod scripts;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use once_cell::sync::OnceCell;
use tokio::time::Instant;

use self::network::address::Address;
pub(crate) use self::network::certificates::Certificates;
use self::network::cluster::Cluster;
use self::network::cluster::hash_slot;
use self::network::node::{Node, ServerLookup};
use self::network::sentinel::Sentinels;
use self::operations::batch::BatchQueues;
use self::operations::script_call::Births;
use self::operations::script_call::{ScriptCall, unexpected};
pub use self::scripts::program::text as script_text;
use self::scripts::script::{self, Script, ScriptOp, decode_acquired};
use super::{Calls, Charge, CorrectError, CorrectedCharge, Reply, RollbackHook, Stated, Store};
use crate::algorithm::{Op, Outcome, Receipt};
use crate::background::{Background, is_in_runtime};
use crate::clock::Clock;
use crate::key::{Key, put_count_name};
use crate::limit::Terms;
use crate::reply::{BuildError, Source, StoreError};

/// The settings of a [`Redis`].
pub(crate) struct RedisSettings<'a> {
    pub(crate) url: &'a str,
    pub(crate) certificates: &'a Certificates,
    pub(crate) prefix: &'a str,
    pub(crate) deadline: Duration,
    pub(crate) max_pending: usize,
    pub(crate) clock: Clock,
    pub(crate) background: Arc<Background>,
}

#[derive(Clone)]
pub(crate) struct Redis {
    servers: Arc<Servers>,
    prefix: Arc<str>,
}

/// The servers behind a URL, and the pending decisions.
struct Servers {
    topology: Topology,
    queues: BatchQueues,
    births: Births,
    clock: Clock,
    deadline: Duration,
    pending: AtomicUsize,
    max_pending: usize,
    on_rollback: OnceCell<RollbackHook>,
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
                Topology::Cluster(Cluster::new(seeds, prefix, deadline, background))
            }
        };
        let servers = Servers {
            topology,
            queues: BatchQueues::default(),
            births: Births::default(),
            clock: settings.clock,
            deadline,
            pending: AtomicUsize::new(0),
            max_pending: settings.max_pending,
            on_rollback: OnceCell::new(),
        };
        Ok(Self { servers: Arc::new(servers), prefix: prefix.into() })
    }
}

impl Store for Redis {
    async fn execute(&self, calls: Calls) -> Result<Reply, StoreError> {
        let servers = &self.servers;
        let (by, _guard) = servers.admit(true)?;
        let Some(charge) = calls.only_charge() else { return servers.decide(&calls, by).await };
        if charge.statement.is_some() && calls.op == Op::ACQUIRE {
            return servers.take_slot(&charge, by).await;
        }
        let decided = match calls.op {
            Op::Take { .. } => servers.decide_one(calls.op, charge, by).await?,
            _ => servers.apply_one(servers.script_op(calls.op, charge.cost), &charge, by).await?,
        };
        Ok(Reply::to_call(calls.op, decided, Source::Redis))
    }

    async fn correct(&self, charges: &[CorrectedCharge]) -> Vec<Result<Outcome, CorrectError>> {
        match self.servers.admit(false) {
            Ok((by, _)) => self.servers.correct(charges, by).await,
            Err(error) => vec![Err(CorrectError::NotExecuted(error)); charges.len()],
        }
    }

    async fn hold(&self, charges: &[Arc<Charge>]) -> Vec<Result<Stated, StoreError>> {
        match self.servers.admit(false) {
            Ok((by, _)) => self.servers.hold(charges, by).await,
            Err(error) => vec![Err(error); charges.len()],
        }
    }

    fn slot(&self, charge: &Charge) -> u16 {
        self.servers.slot(&charge.count_name)
    }

    fn server_of(&self, slot: u16) -> usize {
        match &self.servers.topology {
            Topology::One(_) => 0,
            Topology::Cluster(cluster) => {
                cluster.known_node(slot).map_or(0, |node| Arc::as_ptr(&node) as usize)
            }
        }
    }

    fn on_rollback(&self, hook: RollbackHook) {
        let is_first = self.servers.on_rollback.set(hook).is_ok();
        debug_assert!(is_first, "a limiter sets its hook once");
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

    fn is_idle(&self) -> bool {
        self.servers.pending() == 0
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
            let message = "there is no runtime".into();
            return Err(StoreError::Connection { message });
        }
        let mut guard = None;
        if counts {
            let others = self.pending.fetch_add(1, Ordering::Relaxed);
            guard = Some(PendingDecision(Arc::clone(self)));
            if others >= self.max_pending {
                return Err(StoreError::Overloaded { max_pending: self.max_pending });
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
            Topology::Cluster(_) => hash_slot(key),
        }
    }

    /// Returns a take or a peek as scripts receive it.
    fn script_op(&self, op: Op, cost: u64) -> ScriptOp {
        let birth = if op == Op::ACQUIRE { self.births.draw() } else { 0 };
        ScriptOp::decide(op, cost, birth)
    }

    /// Applies an operation to one charge. Returns the receipt of an admitted take that needs one.
    async fn apply_one(
        &self,
        op: ScriptOp,
        charge: &Charge,
        by: Instant,
    ) -> Result<(Outcome, Receipt), StoreError> {
        let call = ScriptCall {
            script: Script::of(&charge.terms),
            arguments: script::arguments_of_one(op, charge, self.clock.sent()),
            keys: vec![&charge.count_name],
            is_atomic: true,
        };
        decode_acquired(&self.run(&call, by).await?).ok_or_else(unexpected)
    }
}
