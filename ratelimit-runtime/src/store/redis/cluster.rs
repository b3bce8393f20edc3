//! A Redis Cluster: which node serves which slot, and where it says so when that changed.
//!
//! A node that does not serve a slot says who does (`MOVED`, or `ASK` while the slot is on its way)
//! and has done nothing, so the command goes there. Nothing else is sent again.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::address::Target;
use super::failure::Failure;
use super::node::{Node, ServerLookup, lock};
use super::script;
use super::slot::{self, SLOTS};
use crate::background::Background;

/// How often a command follows a node's word to another.
const HOPS: usize = 5;

/// How long a node has to say who serves what.
const ANSWER: Duration = Duration::from_millis(500);

/// The pause before the next try when the keys of a call are on two nodes, on their way.
const ON_THE_WAY: Duration = Duration::from_millis(10);

/// The nodes are not asked again who serves what before this has passed.
const QUIET: Duration = Duration::from_millis(100);

type NodeAddress = (Box<str>, u16);

/// By slot; nothing where no node is known.
type Owners = Arc<[Option<Arc<Node>>]>;

pub(super) struct Cluster {
    seeds: Vec<Target>,
    prefix: Box<str>,
    deadline: Duration,
    nodes: Mutex<HashMap<NodeAddress, Arc<Node>>>,
    owners: watch::Sender<Owners>,
    /// When the nodes were last asked who serves what, since `born`; plus 1, for 0 is never.
    asked: AtomicU64,
    born: Instant,
    background: Arc<Background>,
}

impl Cluster {
    pub(super) fn new(
        seeds: Vec<Target>,
        prefix: &str,
        deadline: Duration,
        background: Arc<Background>,
    ) -> Arc<Self> {
        Arc::new(Self {
            seeds,
            prefix: prefix.into(),
            deadline,
            nodes: Mutex::default(),
            owners: watch::Sender::new(Arc::new([])),
            asked: AtomicU64::new(0),
            born: Instant::now(),
            background,
        })
    }

    /// Sends a command to the node that serves `slot`. Keys that are on two nodes, on their way, are
    /// waited for if they are needed `together`.
    pub(super) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        slot: u16,
        together: bool,
        by: Instant,
    ) -> Result<Value, Failure> {
        let (mut node, mut asking) = (self.owner(slot, by).await?, false);
        let mut hops = 0;
        loop {
            let reply = node.send(command, asking, by).await;
            let Err(failure) = &reply else { return reply };
            match failure.kind() {
                Some(ErrorKind::Server(ServerErrorKind::Moved)) if hops < HOPS => {
                    let Some(next) = self.named(failure, &node) else { return reply };
                    self.refresh();
                    (node, asking, hops) = (next, false, hops + 1);
                }
                Some(ErrorKind::Server(ServerErrorKind::Ask)) if hops < HOPS => {
                    let Some(next) = self.named(failure, &node) else { return reply };
                    (node, asking, hops) = (next, true, hops + 1);
                }
                Some(ErrorKind::Server(ServerErrorKind::TryAgain))
                    if together && Instant::now() + ON_THE_WAY < by =>
                {
                    sleep(ON_THE_WAY).await;
                }
                // The node may be gone, or no longer what it was.
                _ => {
                    self.refresh();
                    return reply;
                }
            }
        }
    }

    /// Whether all slots are served, by nodes that would decide now.
    pub(super) async fn ping(self: &Arc<Self>, by: Instant) -> Result<(), Failure> {
        self.owner(0, by).await?;
        let owners = self.owners.borrow().clone();
        let mut pinged = HashSet::new();
        for slot in 0..SLOTS {
            let node = self.owner(slot, by).await?;
            if pinged.insert(Arc::as_ptr(&node) as usize) {
                let key = self.key_of(|slot| {
                    let owner = owners.get(usize::from(slot)).and_then(Option::as_ref);
                    owner.is_some_and(|owner| Arc::ptr_eq(owner, &node))
                });
                let probe = script::probe(key.as_bytes());
                self.send(&probe, slot::slot(key.as_bytes()), true, by).await?;
            }
        }
        Ok(())
    }

    /// A key with the prefix of the limiter, in one of these slots.
    fn key_of(&self, is_there: impl Fn(u16) -> bool) -> String {
        let keys = (0_u32..).map(|tag| format!("{}:probe{{{tag}}}", self.prefix));
        // A node has one slot at least; so many keys are in all slots.
        let mut keys = keys.take(usize::from(SLOTS) * 16);
        keys.find(|key| is_there(slot::slot(key.as_bytes()))).unwrap_or_default()
    }

    /// The node that serves `slot`, once that is known.
    async fn owner(self: &Arc<Self>, slot: u16, by: Instant) -> Result<Arc<Node>, Failure> {
        let find = |owners: &Owners| owners.get(usize::from(slot)).cloned().flatten();
        let mut owners = self.owners.subscribe();
        loop {
            if let Some(node) = find(&owners.borrow_and_update()) {
                return Ok(node);
            }
            self.refresh();
            let again = (Instant::now() + QUIET).min(by);
            if timeout_at(again, owners.changed()).await.is_err() && Instant::now() >= by {
                let unserved = (ErrorKind::Io, "no node of the cluster serves the slot of the key");
                return Err(Failure::Redis(unserved.into()));
            }
        }
    }

    /// The node that another one names.
    fn named(&self, failure: &Failure, by: &Arc<Node>) -> Option<Arc<Node>> {
        let Failure::Redis(error) = failure else { return None };
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        // Nameless is the host of the one that says so.
        let host = if host.is_empty() || host == "?" { by.host() } else { host };
        Some(self.node(host, port.parse().ok()?))
    }

    fn node(&self, host: &str, port: u16) -> Arc<Node> {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry((host.into(), port)).or_insert_with(|| {
            let target = self.seeds[0].at(host, port);
            Node::new(
                ServerLookup::At(target),
                self.deadline,
                script::probe_of_node(),
                &self.background,
            )
        });
        Arc::clone(node)
    }

    /// Asks the nodes who serves what, in the background.
    fn refresh(self: &Arc<Self>) {
        let now = self.born.elapsed().as_millis() as u64 + 1;
        let asked = self.asked.load(Ordering::Relaxed);
        if asked > 0 && now < asked + QUIET.as_millis() as u64 {
            return;
        }
        if self.asked.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let cluster = Arc::clone(self);
            self.background.spawn(async move { cluster.learn().await });
        }
    }

    /// Asks one node after the other, until one knows.
    async fn learn(&self) {
        let mut nodes: Vec<_> = lock(&self.nodes).values().cloned().collect();
        // Not always the same one first: it may be one that nobody else talks to any more.
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let length = nodes.len().max(1);
        nodes.rotate_left(random as usize % length);
        nodes.extend(self.seeds.iter().map(|seed| self.seed(seed)));
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        for node in nodes {
            let reply = node.send(&question, false, Instant::now() + ANSWER).await;
            let owners = reply.ok().and_then(|slots| self.owners(&slots, node.host()));
            if let Some(owners) = owners {
                let served: Vec<_> = owners.iter().flatten().map(Arc::as_ptr).collect();
                lock(&self.nodes).retain(|_, node| served.contains(&Arc::as_ptr(node)));
                self.owners.send_replace(owners);
                return;
            }
        }
    }

    fn seed(&self, seed: &Target) -> Arc<Node> {
        self.node(seed.host(), seed.port())
    }

    /// Reads the reply of `CLUSTER SLOTS`: ranges, each with its nodes, the primary first.
    fn owners(&self, slots: &Value, asked: &str) -> Option<Owners> {
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in slots.as_sequence()? {
            let [Value::Int(from), Value::Int(to), primary, ..] = range.as_sequence()? else {
                return None;
            };
            let [host, Value::Int(port), ..] = primary.as_sequence()? else { return None };
            let host: Option<String> = redis::from_redis_value_ref(host).ok()?;
            let host = host.filter(|host| !host.is_empty() && host != "?");
            let node = self.node(host.as_deref().unwrap_or(asked), (*port).try_into().ok()?);
            let range = (*from).try_into().ok()?..=(*to).try_into().ok()?;
            owners.get_mut(range)?.fill(Some(node));
        }
        owners.iter().any(Option::is_some).then(|| owners.into())
    }
}
