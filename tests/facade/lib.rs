//! A facade: it re-exports the runtime in one line.

pub use ratelimit_runtime as limits;
