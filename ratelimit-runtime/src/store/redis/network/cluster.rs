//! A Redis Cluster: sends each command to the node that serves its hash slot, and follows migrations. Slots in
//! this file are hash slots.
//!
//! A node that does not serve a slot executes nothing and replies with the address of another node: `MOVED`, or `ASK`
//! while the slot migrates. This file then sends the command to that node. If the address is `?`, it reads the slots
//! again, and sends the command to the node that serves the slot then. While the keys of an atomic script are on two
//! nodes, the reply is `TRYAGAIN`, and this file sends the script again. It also sends a script again that a node has
//! not executed, because the node does not serve a key. After any other reply, this file does not send a command again.
//!
//! The hash slot of a key in a Redis Cluster: the CRC16 (XMODEM) of its hash tag, or of the whole key if it
//! has none, modulo 16384. Source: the Redis Cluster specification, "Key distribution model" and "Hash tags".

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Target;
use super::failure::is_of_another_node;
use super::node::{Node, ServerLookup};
use crate::background::Background;
use crate::reply::StoreError;
use crate::store::Failure;
use crate::store::redis::scripts::script;
use crate::threads::{Mutex, lock};

/// The most redirects that a command follows. After them, only the slots tell the node.
const MAX_REDIRECTS: usize = 5;

/// How long a node may take to reply to `CLUSTER SLOTS`.
const SLOTS_TIMEOUT: Duration = Duration::from_millis(500);

/// The pause before a command is sent again to the node that serves the slot then.
const MIGRATION_PAUSE: Duration = Duration::from_millis(10);

/// The shortest interval between two refreshes of the slots.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);

type NodeAddress = (Box<str>, u16);

/// The node that serves each slot; `None` if it is not known.
type SlotNodes = Arc<[Option<Arc<Node>>]>;

#[derive(Default)]
pub(crate) struct Cluster {
    seeds: Vec<Target>,
    deadline: Duration,
    nodes: Mutex<HashMap<NodeAddress, Arc<Node>>>,
    slots: watch::Sender<SlotNodes>,
    /// The error of the last node that was to report the slots, until a node reports them.
    slots_error: Mutex<Option<StoreError>>,
    /// The time at which the last refresh started.
    last_refresh: Mutex<Option<Instant>>,
    /// Whether a node has refused a script over several slots.
    refuses_batches_by_node: AtomicBool,
    background: Arc<Background>,
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Target>,
        deadline: Duration,
        background: Arc<Background>,
    ) -> Arc<Self> {
        Arc::new(Self { seeds, deadline, background, ..Self::default() })
    }

    pub(crate) fn takes_batches_by_node(&self) -> bool {
        !self.refuses_batches_by_node.load(Ordering::Relaxed)
    }

    /// Returns whether a node has executed nothing of a script over several slots, and replied with an error of the
    /// script as a whole: the script catches the errors of commands. Records that a node refuses such scripts.
    pub(crate) fn refuses(self: &Arc<Self>, failure: &Failure) -> bool {
        self.refresh();
        let is_refused = matches!(failure, Failure::Replied(error) if error.has_code("ERR"));
        if is_refused && !self.refuses_batches_by_node.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "the cluster refuses scripts over several hash slots, so calls share scripts only if they are equal"
            );
        }
        matches!(failure.error(), StoreError::Server { .. })
    }

    /// Returns the number of nodes that may serve slots; at least 1.
    pub(crate) fn serving(&self) -> usize {
        lock(&self.nodes).len().max(1)
    }

    /// Returns the node that serves `slot`, if that is known.
    pub(crate) fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        self.slots.borrow().get(usize::from(slot)).cloned().flatten()
    }

    /// Sends a command to the node that serves `slot`. If the command is atomic and its keys are on two nodes
    /// during a slot migration, waits until they are on one.
    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        slot: u16,
        is_atomic: bool,
        by: Instant,
    ) -> Result<Value, Failure> {
        let (mut node, mut asking) = (self.node_of_slot(slot, by).await?, false);
        let mut redirects = 0;
        loop {
            let reply = node.send(command, asking, by).await;
            let Err(failure) = &reply else { return reply };
            let error = failure.error();
            let is_redirect = error.has_code("MOVED ASK");
            let redirect = match error {
                StoreError::Server { message, .. } if is_redirect && redirects < MAX_REDIRECTS => {
                    self.redirect_target(message, &node)
                }
                _ => None,
            };
            let has_time = Instant::now() + MIGRATION_PAUSE < by;
            match redirect {
                Some(next) => {
                    asking = error.has_code("ASK");
                    if !asking {
                        self.refresh();
                    }
                    (node, redirects) = (next, redirects + 1);
                }
                _ if is_atomic && error.has_code("TRYAGAIN") && has_time => {
                    sleep(MIGRATION_PAUSE).await;
                }
                _ if (is_redirect || is_of_another_node(error)) && has_time => {
                    self.refresh();
                    sleep(MIGRATION_PAUSE).await;
                    let Ok(next) = self.node_of_slot(slot, by).await else { return reply };
                    (node, asking) = (next, false);
                }
                // The node may have left the cluster, or may serve other slots now.
                _ => {
                    self.refresh();
                    return reply;
                }
            }
        }
    }

    /// Returns the nodes that serve slots, in an order that stays.
    pub(crate) async fn primaries(
        self: &Arc<Self>,
        by: Instant,
    ) -> Result<Vec<Arc<Node>>, Failure> {
        self.node_of_slot(0, by).await?;
        let slots = self.slots.borrow().clone();
        let mut nodes: Vec<Arc<Node>> = slots.iter().flatten().cloned().collect();
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        nodes.dedup_by(|one, other| Arc::ptr_eq(one, other));
        Ok(nodes)
    }

    /// Checks whether all slots are served by nodes that would decide now. Keys begin with `prefix`.
    pub(crate) async fn ping(
        self: &Arc<Self>,
        prefix: &str,
        clock: Option<u64>,
        by: Instant,
    ) -> Result<(), Failure> {
        for slot in 0..SLOTS {
            self.node_of_slot(slot, by).await?;
        }
        for node in self.primaries(by).await? {
            let is_of_node = |key: &String| {
                let server = self.known_node(hash_slot(key.as_bytes()));
                server.is_some_and(|server| Arc::ptr_eq(&server, &node))
            };
            // These keys cover all slots.
            let mut keys = (0..u32::from(SLOTS) * 16).map(|tag| format!("{prefix}:probe{{{tag}}}"));
            let key = keys.find(is_of_node).unwrap_or_default();
            let probe = script::probe(key.as_bytes(), clock);
            self.send(&probe, hash_slot(key.as_bytes()), true, by).await?;
        }
        Ok(())
    }

    /// Returns the node that serves `slot`. Waits until `by` if it is not known yet.
    async fn node_of_slot(self: &Arc<Self>, slot: u16, by: Instant) -> Result<Arc<Node>, Failure> {
        let mut slots = self.slots.subscribe();
        loop {
            slots.mark_unchanged();
            if let Some(node) = self.known_node(slot) {
                return Ok(node);
            }
            self.refresh();
            let next_refresh = (Instant::now() + REFRESH_INTERVAL).min(by);
            if timeout_at(next_refresh, slots.changed()).await.is_err() && Instant::now() >= by {
                let message = "no node of the cluster serves the slot of the key".into();
                let error = lock(&self.slots_error).clone();
                let error = error.unwrap_or(StoreError::Connection { message });
                return Err(Failure::NotExecuted(error));
            }
        }
    }

    /// Returns the node that a redirect from `sender` leads to. Its message is a slot and an address. `None` if the
    /// host is `?`, so that only the slots tell.
    fn redirect_target(&self, message: &str, sender: &Arc<Node>) -> Option<Arc<Node>> {
        let (host, port) = message.split(' ').nth(1)?.rsplit_once(':')?;
        let host = match host {
            "?" => return None,
            // The redirect leads to another port of the sender.
            "" => sender.host(),
            host => host,
        };
        Some(self.node(host, port.parse().ok()?))
    }

    fn node(&self, host: &str, port: u16) -> Arc<Node> {
        let mut nodes = lock(&self.nodes);
        let node = nodes.entry((host.into(), port)).or_insert_with(|| {
            let target = self.seeds[0].with_address(host, port);
            // It needs no hash slot, and succeeds if the node runs scripts.
            let probe = redis::cmd("EVAL").arg("return 1").arg(0).take();
            Node::new(ServerLookup::At(target), self.deadline, probe, &self.background)
        });
        Arc::clone(node)
    }

    /// Reads the slots again in the background, at most once per [`REFRESH_INTERVAL`].
    pub(crate) fn refresh(self: &Arc<Self>) {
        let mut last = lock(&self.last_refresh);
        if last.is_some_and(|last| last.elapsed() < REFRESH_INTERVAL) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        let cluster = Arc::clone(self);
        self.background.spawn(async move { cluster.read_slots().await });
    }

    /// Sends `CLUSTER SLOTS` to one node after the other until one replies with the slots.
    async fn read_slots(&self) {
        // A new map has another order: the first node is random, because one without connection to the others replies
        // with outdated slots.
        let nodes: HashMap<_, _> = lock(&self.nodes).clone().into_iter().collect();
        let seeds = self.seeds.iter().map(Target::host_and_port);
        let seeds = seeds.map(|(host, port)| self.node(host, port));
        let command = redis::cmd("CLUSTER").arg("SLOTS").take();
        for node in nodes.into_values().chain(seeds) {
            let slots = match node.send(&command, false, Instant::now() + SLOTS_TIMEOUT).await {
                Ok(reply) => self.decode_slots(&reply, node.host()),
                Err(failure) => {
                    let error = match failure.into() {
                        StoreError::CircuitOpen { cause } => StoreError::clone(&cause),
                        error => error,
                    };
                    if !matches!(error, StoreError::Timeout { .. }) {
                        *lock(&self.slots_error) = Some(error);
                    }
                    None
                }
            };
            if let Some(slots) = slots {
                *lock(&self.slots_error) = None;
                let serving: HashSet<_> = slots.iter().flatten().map(Arc::as_ptr).collect();
                lock(&self.nodes).retain(|_, node| serving.contains(&Arc::as_ptr(node)));
                self.slots.send_replace(slots);
                return;
            }
        }
    }

    /// Decodes the reply to `CLUSTER SLOTS`: ranges of slots, each with its nodes, the primary first. A node
    /// without a host has the host of the sender of the reply. A node that prefers host names and has none has the host
    /// `?`, and its address follows.
    fn decode_slots(&self, reply: &Value, sender: &str) -> Option<SlotNodes> {
        let mut slots = vec![None; usize::from(SLOTS)];
        for range in reply.as_sequence()? {
            let [Value::Int(from), Value::Int(to), primary, ..] = range.as_sequence()? else {
                return None;
            };
            let [host, Value::Int(port), rest @ ..] = primary.as_sequence()? else {
                return None;
            };
            let host: Option<String> = redis::from_redis_value_ref(host).ok()?;
            let host = if host.as_deref() == Some("?") { ip_in(rest) } else { host };
            let host = host.filter(|host| !host.is_empty());
            let node = self.node(host.as_deref().unwrap_or(sender), (*port).try_into().ok()?);
            let range = (*from).try_into().ok()?..=(*to).try_into().ok()?;
            slots.get_mut(range)?.fill(Some(node));
        }
        slots.iter().any(Option::is_some).then(|| slots.into())
    }
}

/// Returns the address in what follows the port of a node: its identifier, and names with their values.
fn ip_in(rest: &[Value]) -> Option<String> {
    let mut values: HashMap<String, String> = redis::from_redis_value_ref(rest.get(1)?).ok()?;
    values.remove("ip")
}

/// The number of hash slots.
pub(crate) const SLOTS: u16 = 16384;

/// Returns the hash slot of a key.
pub(crate) fn hash_slot(key: &[u8]) -> u16 {
    crc16(tag(key).unwrap_or(key)) % SLOTS
}

/// Returns the hash tag: the bytes between the first `{` and the first `}` after it, if there are any.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let from = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[from..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[from..from + length])
}

fn crc16(bytes: &[u8]) -> u16 {
    let shift = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u16::from(*byte) << 8, shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(hash_slot(b"foo{bar}{zap}"), hash_slot(b"bar"));
        assert_eq!(hash_slot(b"foo{{bar}}zap"), hash_slot(b"{bar"));
        assert_eq!(hash_slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(hash_slot(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
    }

    #[test]
    fn a_client_that_chooses_its_key_can_choose_the_slot() {
        let of_slot_7 = (0_u32..).filter(|number| {
            hash_slot(format!("rl:fixed:1m:login{{user{number}}}").as_bytes()) == 7
        });
        assert_eq!(of_slot_7.take(10).count(), 10);
    }
}
