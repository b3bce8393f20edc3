//! The helpers that the tests and benches of the workspace share; each module says what it is for.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "only tests use it, and a test panics if something that it needs is missing"
)]

pub mod calendar;
pub mod clocks;
pub mod cluster;
pub mod example;
pub mod filter;
pub mod fleet;
pub mod history;
pub mod http;
pub mod judge;
pub mod limits;
pub mod lines;
pub mod log;
pub mod model;
pub mod port;
pub mod proxy;
pub mod random;
pub mod recorder;
pub mod sentinel;
pub mod server;
pub mod sources;
pub mod tls;
pub mod wait;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Builder, Runtime};

/// All algorithms, from the list of the runtime.
pub use ratelimit_runtime::__private::ALGORITHMS;

/// Returns whether tests play longer: `tests/run --long`.
pub fn is_long() -> bool {
    std::env::var_os("TESTS_LONG").is_some()
}

/// Returns a runtime that runs on the thread that polls it, and only then.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns a figure of `/proc/self/status` in bytes, or `None` on a system without this file.
pub fn memory(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Returns the output of a future that is ready at its first poll, as each future of the embedded store is. No
/// runtime is needed, so none can allocate.
pub fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is pending, but the embedded store never waits"),
    }
}

/// Declares tests that run on each limiter of `$limiters`, which returns them for a server; `TestLimiter::each` is the
/// default. At the end, each key of the server has to have a TTL.
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "each program has a `TestLimiter` of its own")]
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* async fn $name:ident($test:ident: TestLimiter) $body:block)*) => {
        $crate::on_both_stores! {
            crate::TestLimiter::each;
            $($(#[$attribute])* async fn $name($test) $body)*
        }
    };
    ($limiters:path; $($(#[$attribute:meta])* async fn $name:ident($test:pat) $body:block)*) => {$(
        $(#[$attribute])*
        #[tokio::test]
        async fn $name() {
            let server = $crate::server::Server::start();
            for $test in $limiters(&server) $body
            server.assert_all_keys_expire();
        }
    )*};
}
