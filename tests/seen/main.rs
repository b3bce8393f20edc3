//! The events, spans and metrics of a limiter. On both stores, each call is reported once, and never with its key.

mod calls;
mod events;
mod metrics;
mod prelude;
mod rejected;
mod spans;
mod startup;

use ratelimit_runtime::{RateLimiter, VirtualClock};
use support::clocks::embedded_on;
use support::log::Log;
use support::server::Server;
use tracing_subscriber::fmt::format::FmtSpan;

/// The key of the calls: no event and no label contains it.
const KEY: &str = "alice@example.org";

/// A limiter on a virtual clock, and the label of the source of its decisions.
struct TestLimiter {
    limiter: RateLimiter,
    clock: VirtualClock,
    source: &'static str,
}

impl TestLimiter {
    fn both(server: &Server) -> [Self; 2] {
        [Self::embedded(), Self::redis(server)]
    }

    fn embedded() -> Self {
        let clock = VirtualClock::new();
        Self { limiter: embedded_on(&clock), clock, source: "embedded" }
    }

    fn redis(server: &Server) -> Self {
        let clock = VirtualClock::new();
        Self { limiter: server.limiter_on(&clock), clock, source: "redis" }
    }
}

/// Returns what `calls` log: their events, and the ends of spans if `spans` has them.
async fn log_of(calls: impl Future<Output = ()>, spans: FmtSpan) -> String {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(log.writer())
        .with_span_events(spans)
        .with_ansi(false)
        .without_time();
    let guard = tracing::subscriber::set_default(subscriber.finish());
    calls.await;
    drop(guard);
    log.text()
}

/// Returns the events of `calls`, each a line of level, message and fields. `#` replaces the hash of a key.
async fn events_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let masked = |event: String| match event.split_once(" key=") {
        Some((before, rest)) => {
            let (_, after) = rest.split_once(' ').expect("more fields");
            format!("{before} key=# {after}")
        }
        None => event,
    };
    raw_events_of(calls).await.into_iter().map(masked).collect()
}

async fn raw_events_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let log = log_of(calls, FmtSpan::NONE).await;
    let ours = log.lines().filter_map(|line| line.split_once("ratelimit_runtime::report: "));
    // Between the level and the target is the span of the call.
    let level = |before: &str| before.split_whitespace().next().expect("a level").to_owned();
    ours.map(|(before, event)| format!("{} {event}", level(before))).collect()
}

async fn logged_keys_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let key = |event: &String| {
        let (_, key) = event.split_once(" key=").expect("a key");
        key.split(' ').next().expect("a word").to_owned()
    };
    raw_events_of(calls).await.iter().map(key).collect()
}
