//! The servers of the store: their addresses, the connections to them, and whether they reply. A command goes to one
//! server, or to the node of a cluster that serves its hash slot.

pub(crate) mod address;
pub(crate) mod certificates;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod failure;
pub(crate) mod node;
pub(crate) mod sentinel;
#[cfg(feature = "tls")]
pub(crate) mod tls;
