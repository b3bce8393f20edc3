//! What the tests of the workspace share: the reference model, real Redis servers, and a network
//! between the two that can fail.

#![forbid(unsafe_code)]
#![allow(
    clippy::len_without_is_empty,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "for tests, which panic when something they need is gone"
)]

pub mod cluster;
pub mod example;
pub mod http;
pub mod model;
pub mod proxy;
pub mod sentinel;
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
