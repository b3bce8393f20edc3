//! The gauge of the keys in the embedded stores of a process. The process has one gauge, so this is the only test of
//! the file.

use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ratelimit_runtime::{Clock, Limit, OnError, Part, RateLimiter, VirtualClock};
use support::limits::HOUR;
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
    let slow = SlowRecorder {
        inner: DebuggingRecorder::new(),
        is_slow: AtomicBool::new(true),
        barrier: Barrier::new(2),
    };
    let limiter = RateLimiter::embedded();
    let take = |key| metrics::with_local_recorder(&slow, || drop(limiter.check(&LIMIT, key, 1)));
    std::thread::scope(|scope| {
        scope.spawn(|| take(1));
        slow.barrier.wait();
        take(2);
        slow.barrier.wait();
    });
    assert_eq!(gauge(&slow.inner.snapshotter()), Some(2.0));
}

/// A recorder that records only the gauge, and waits at a barrier twice before the first value.
struct SlowRecorder {
    inner: DebuggingRecorder,
    is_slow: AtomicBool,
    barrier: Barrier,
}

impl Recorder for SlowRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        if self.is_slow.swap(false, SeqCst) {
            self.barrier.wait();
            self.barrier.wait();
        }
        self.inner.register_gauge(key, metadata)
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
