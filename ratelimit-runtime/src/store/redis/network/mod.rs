//! The servers of the store: their addresses, the connections to them, and whether they reply. A command goes to one
//! server, or to the node of a cluster that serves its hash slot.

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod credentials;
pub(crate) mod failure;
pub(crate) mod node;
pub(crate) mod sentinel;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;

use self::tls::Tls;
