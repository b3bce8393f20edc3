//! The servers of the store: their addresses, the connections to them, and whether they reply. A command goes to one
//! server, or to the node of a cluster that serves its hash slot.

pub(crate) mod address;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod credentials;
pub(crate) mod failure;
#[cfg(not(feature = "tls"))]
mod no_tls;
pub(crate) mod node;
pub(crate) mod sentinel;
#[cfg(feature = "tls")]
mod tls;

#[cfg(not(feature = "tls"))]
use self::no_tls::NoTls as Tls;
#[cfg(feature = "tls")]
use self::tls::Tls;
