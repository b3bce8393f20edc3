//! The Redis store: one decision is one script and one round trip.

mod network;
mod operations;
mod prefix;
mod scripts;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::network::address::Address;
use self::network::cluster::{Cluster, hash_slot};
pub use self::network::credentials::{
    Credentials, CredentialsError, CredentialsProvider, PasswordFile,
};
pub(crate) use self::network::credentials::{LoginSettings, Provider};
use self::network::node::Node;
use self::operations::batch::BatchQueues;
use self::operations::script_call::script_op;
pub use self::scripts::program::text as script_text;
use self::scripts::script;
use super::{Calls, Charge, GiveBack, Reply, Stated};
use crate::algorithm::{Op, Receipt};
use crate::background::{Background, is_in_runtime};
use crate::clock::Clock;
use crate::key::{Key, put_count_name};
use crate::limit::Terms;
use crate::reply::{BuildError, Source, StoreError};

pub(crate) type SharedStore = Arc<Redis>;

/// The servers behind a URL, and the pending decisions.
pub(crate) struct Redis {
    topology: Topology,
    prefix: Box<str>,
    queues: BatchQueues,
    clock: Clock,
    deadline: Duration,
    /// The decisions that may still begin.
    free: Semaphore,
    max_pending: usize,
}

enum Topology {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Redis {
    /// Creates a store on the servers that the URL names. It connects with the first decision.
    pub(crate) fn new(
        url: &str,
        login: &LoginSettings,
        prefix: &str,
        deadline: Duration,
        max_pending: usize,
        clock: Clock,
        background: Arc<Background>,
    ) -> Result<SharedStore, BuildError> {
        prefix::check(prefix)?;
        let probe = script::probe(format!("{prefix}:probe").as_bytes(), clock.sent());
        let topology = match Address::parse(url, login)? {
            Address::Server(lookup) => {
                Topology::One(Node::new(lookup, deadline, probe, &background))
            }
            Address::Cluster(seeds) => Topology::Cluster(Cluster::new(seeds, deadline, background)),
        };
        let max_pending = max_pending.min(Semaphore::MAX_PERMITS);
        Ok(Arc::new(Self {
            topology,
            prefix: prefix.into(),
            queues: BatchQueues::default(),
            clock,
            deadline,
            free: Semaphore::new(max_pending),
            max_pending,
        }))
    }

    /// Decides calls atomically. If their keys are in several hash slots of a cluster, charges them hash slot by
    /// hash slot, and rolls back by `give_back` if one rejects.
    pub(crate) async fn execute(
        self: &Arc<Self>,
        calls: &Calls,
        give_back: GiveBack<'_>,
    ) -> Result<Reply, StoreError> {
        let by = self.begin()?;
        let overloaded = |_| StoreError::Overloaded { max_pending: self.max_pending };
        let _pending = self.free.try_acquire().map_err(overloaded)?;
        let Some(charge) = calls.only_charge() else {
            return self.decide(calls, give_back, by).await;
        };
        let takes_slot = charge.statement.is_some() && calls.op == Op::ACQUIRE;
        if matches!(calls.op, Op::Take { .. }) && !takes_slot {
            let decided = self.decide_one(calls.op, charge, by).await?;
            return Ok(Reply::to_call(calls.op, decided, Source::Redis));
        }
        let op = script_op(calls.op, charge.cost);
        let (outcome, receipt) = self.apply_one(op, &charge, by).await?;
        let mut reply = Reply::to_call(calls.op, (outcome, Receipt::default()), Source::Redis);
        if takes_slot {
            let granted = if outcome.is_allowed() { charge.cost } else { 0 };
            reply.statements.push(Some(Stated::new(receipt, granted)));
        }
        Ok(reply)
    }

    /// Returns the hash slot of a charge; 0 on one server.
    pub(crate) fn slot(&self, charge: &Charge) -> u16 {
        self.cluster().map_or(0, |_| hash_slot(&charge.count_name))
    }

    /// Returns a number of the server of a hash slot, as far as it is known.
    pub(crate) fn server_of(&self, slot: u16) -> usize {
        let node = self.cluster().and_then(|cluster| cluster.known_node(slot));
        node.map_or(0, |node| Arc::as_ptr(&node) as usize)
    }

    /// Succeeds if the store would decide now.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        let by = self.begin()?;
        match &self.topology {
            Topology::One(node) => drop(node.send(&node.probe, false, by).await?),
            Topology::Cluster(cluster) => {
                cluster.ping(&self.prefix, self.clock.sent(), by).await?;
            }
        }
        Ok(())
    }

    /// Returns the name of a count, which is its key in Redis.
    pub(crate) fn count_name(&self, terms: &Terms, key: &dyn Key) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + terms.identity.name.len() + 48);
        name.extend_from_slice(self.prefix.as_bytes());
        name.push(b':');
        put_count_name(&mut name, terms, key);
        name
    }

    fn cluster(&self) -> Option<&Arc<Cluster>> {
        match &self.topology {
            Topology::One(_) => None,
            Topology::Cluster(cluster) => Some(cluster),
        }
    }

    /// Returns how many decisions are under way.
    pub(crate) fn pending(&self) -> usize {
        self.max_pending - self.free.available_permits()
    }

    /// Begins a request. Returns its deadline.
    fn begin(&self) -> Result<Instant, StoreError> {
        // Timers and sockets belong to a runtime, and panic without one.
        if !is_in_runtime() {
            let message = "there is no runtime".into();
            return Err(StoreError::Connection { message });
        }
        Ok(Instant::now() + self.deadline)
    }
}
