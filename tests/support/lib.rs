//! What the tests of the workspace share: the reference model and a real Redis server.

#![forbid(unsafe_code)]

pub mod http;
pub mod model;
pub mod server;
