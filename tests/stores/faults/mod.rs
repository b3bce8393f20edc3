//! Faults of Redis, of connections and of runtimes, the errors that they cause, and the rights that a Redis user needs.

mod connections;
mod rights;
mod runtimes;
mod server;
mod server_errors;

pub(crate) use server::{DAILY, denying_builder, store_error};
