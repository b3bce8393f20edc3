//! Batches of a cluster: one script decides calls of all hash slots of a node. A hash slot alone seldom has two calls
//! to decide at a time.
//!
//! The script declares no key and has the flag `allow-cross-slot-keys`. For a key of another node, a node executes
//! nothing and replies with an error; the call is then sent alone to the node of its slot. Servers before Redis 7 and
//! some proxies refuse such scripts. Then each batch is of one hash slot.

use std::sync::Arc;

use redis::{Cmd, ErrorKind, ServerErrorKind, Value};
use tokio::time::Instant;

use super::{BatchEntry, BatchTarget, UNQUEUED};
use crate::reply::StoreError;
use crate::store::redis::network::node::Node;
use crate::store::redis::network::slot;
use crate::store::redis::operations::script_call::by_hash_or_text;
use crate::store::redis::scripts::script;
use crate::store::redis::{Servers, Topology};

/// The most pending decisions for each node of a cluster that are sent alone (`benches/all -- cluster`).
const UNQUEUED_BY_NODE: usize = 8;

impl Servers {
    /// Returns what the keys of a batch with this key share.
    pub(super) fn batch_target(&self, key: &[u8]) -> BatchTarget {
        let Topology::Cluster(cluster) = &self.topology else { return BatchTarget::Slot(0) };
        let slot = slot::slot(key);
        let node = if cluster.takes_batches_by_node() { cluster.known_node(slot) } else { None };
        node.map_or(BatchTarget::Slot(slot), BatchTarget::Node)
    }

    /// Returns the most pending decisions that are sent alone.
    pub(super) fn most_unqueued(&self) -> usize {
        match &self.topology {
            Topology::One(_) => UNQUEUED,
            Topology::Cluster(cluster) => UNQUEUED_BY_NODE * cluster.serving(),
        }
    }

    /// Sends a batch to a node. `None` if the node has not executed it, so that each call is to be decided by itself.
    pub(super) async fn send_to_node(
        &self,
        node: &Arc<Node>,
        entries: &[BatchEntry],
        mut arguments: Vec<Vec<u8>>,
        by: Instant,
    ) -> Option<Result<Value, StoreError>> {
        let Topology::Cluster(cluster) = &self.topology else { return None };
        arguments.extend(entries.iter().map(|entry| entry.charge.count_name.clone()));
        let send = |command: Cmd| async move { node.send(&command, false, by).await };
        let reply = by_hash_or_text(&script::BATCH_OF_NODE, &[], &arguments, send).await;
        let failure = match reply {
            Ok(reply) => return Some(Ok(reply)),
            Err(failure) => failure,
        };
        cluster.refresh();
        match failure.kind() {
            // An error of the script as a whole: the script catches the errors of commands.
            Some(ErrorKind::Server(kind)) => {
                if kind == ServerErrorKind::ResponseError {
                    cluster.refuse_batches_by_node();
                }
                None
            }
            Some(ErrorKind::Extension) => None,
            _ => Some(Err(failure.into_store_error(self.deadline, &[]))),
        }
    }
}
