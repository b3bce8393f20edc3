//! What the tests of the workspace share: the reference model and a real Redis server.

#![forbid(unsafe_code)]

pub mod http;
pub mod model;
pub mod server;

use ratelimit_runtime::Algorithm;

/// All of them.
pub const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Sliding,
    Algorithm::Fixed,
    Algorithm::SlidingCounter,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
];
