//! The address of a primary. `sentinel.rs` finds it, `connect.rs` connects to it, and a connection keeps it.

/// The host and the port of a primary, as the Sentinels report them.
pub(crate) type PrimaryAddress = (String, u16);
