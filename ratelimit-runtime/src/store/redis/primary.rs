//! The address of a primary, which `sentinel.rs` finds, `connect.rs` connects to and a connection remembers.

/// The host and the port of a primary, as the Sentinels report them.
pub(super) type PrimaryAddress = (String, u16);
