//! The gauge of the keys in the embedded stores of a process. The process has one gauge, so this is the only test of
//! the file.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use metrics::{Key, Level, Metadata, Recorder as _};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ratelimit_runtime::{Clock, Limit, OnError, Part, RateLimiter, VirtualClock};
use support::limits::HOUR;
use support::recorder::GaugeRecorder;
use support::server::Server;

const LIMIT: Limit = Limit::fixed("keys", 1, HOUR);
const OTHER: Limit = Limit::fixed("other", 1, HOUR);

/// Returns the value of the gauge. A snapshot resets it to 0.
fn gauge(recorder: &Snapshotter) -> Option<f64> {
    recorder.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| match value {
        DebugValue::Gauge(value) if key.key().name() == "ratelimit_keys" => Some(value.into()),
        _ => None,
    })
}

/// Charges a unit of each key.
async fn take(limiter: &RateLimiter, keys: std::ops::Range<u64>) {
    for key in keys {
        limiter.check(&LIMIT, key, 1).await.expect("a new key");
    }
}

#[tokio::test]
async fn the_gauge_follows_the_keys_of_all_embedded_stores() {
    let recorder = DebuggingRecorder::new();
    let metrics = recorder.snapshotter();
    recorder.install().expect("the only recorder");
    let clock = VirtualClock::new();
    let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));

    let limiter = builder.clone().build().expect("valid");
    take(&limiter, 0..100).await;
    assert_eq!(gauge(&metrics), Some(100.0));
    let parts = [Part::new(&LIMIT, &"several", 1), Part::new(&OTHER, &"several", 1)];
    limiter.check_all(&parts).await.expect("two new keys");
    assert_eq!(gauge(&metrics), Some(102.0));

    // A rejected call and a peek change nothing. A reset removes a key.
    assert!(limiter.check(&LIMIT, 0, 1).await.is_err());
    limiter.peek(&LIMIT, 1_000, 1).await.expect("a peek");
    limiter.reset(&LIMIT, 0).await.expect("a reset");
    assert_eq!(gauge(&metrics), Some(101.0));

    // A blocked key is a key, also without a count. Its end removes a key without one.
    for key in [1, 2_000] {
        limiter.block(&LIMIT, key, HOUR).await.expect("blocked");
    }
    assert_eq!(gauge(&metrics), Some(102.0));
    limiter.credit(&LIMIT, 1, 1).await.expect("refunded");
    for key in [1, 2_000] {
        limiter.unblock(&LIMIT, key).await.expect("unblocked");
    }
    assert_eq!(gauge(&metrics), Some(100.0));
    limiter.check(&LIMIT, 1, 1).await.expect("refunded");
    assert_eq!(gauge(&metrics), Some(101.0));

    // The gauge is the sum of all limiters. A full store evicts a key for each new one.
    let full = builder.max_keys(64).build().expect("valid");
    take(&full, 0..10_000).await;
    assert_eq!(gauge(&metrics), Some(101.0 + 64.0));
    take(&full, 10_000..10_001).await;
    drop(full);
    assert_eq!(gauge(&metrics), Some(101.0));

    // New keys replace keys whose windows have ended.
    clock.advance(HOUR);
    take(&limiter, 0..10_000).await;
    assert_eq!(gauge(&metrics), Some(10_000.0));

    // A fallback counts in the process while Redis is down.
    let server = Server::start();
    let redis = server.builder().on_error(OnError::Local).build().expect("valid");
    take(&redis, 0..1).await;
    drop(server);
    take(&redis, 0..1).await;
    assert_eq!(gauge(&metrics), Some(10_001.0));
    drop((limiter, redis));
    assert_eq!(gauge(&metrics), Some(0.0));

    // A thread that is slow to set the gauge does not overwrite a newer value.
    let (inner, barrier) = (DebuggingRecorder::new(), Barrier::new(2));
    let is_slow = AtomicBool::new(true);
    let gauge_of = |key: &Key| {
        if is_slow.swap(false, SeqCst) {
            barrier.wait();
            barrier.wait();
        }
        inner.register_gauge(key, &Metadata::new(module_path!(), Level::INFO, None))
    };
    let slow = GaugeRecorder { described: || (), other: |_| (), gauge: gauge_of };
    let limiter = RateLimiter::embedded();
    let take = |key| metrics::with_local_recorder(&slow, || drop(limiter.check(&LIMIT, key, 1)));
    std::thread::scope(|scope| {
        scope.spawn(|| take(1));
        barrier.wait();
        take(2);
        barrier.wait();
    });
    assert_eq!(gauge(&inner.snapshotter()), Some(2.0));
}
