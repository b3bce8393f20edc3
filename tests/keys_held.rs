//! The gauge of the keys that the embedded stores of a process hold. It is one for the process, so
//! this is one test in a process of its own.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ratelimit_runtime::{Clock, Limit, OnError, Part, RateLimiter, VirtualClock};
use support::server::Server;

const HOUR: Duration = Duration::from_secs(3600);
const LIMIT: Limit = Limit::fixed("keys", 1, HOUR);
const OTHER: Limit = Limit::fixed("other", 1, HOUR);

/// What the gauge says; it is 0 until it is set again.
fn gauge(recorder: &Snapshotter) -> Option<f64> {
    recorder.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| match value {
        DebugValue::Gauge(value) if key.key().name() == "ratelimit_keys" => Some(value.into()),
        _ => None,
    })
}

async fn take(limiter: &RateLimiter, keys: std::ops::Range<u32>) {
    for key in keys {
        limiter.check(&LIMIT, key, 1).await.expect("a new key");
    }
}

#[tokio::test]
async fn the_gauge_goes_up_and_comes_down() {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    recorder.install().expect("the only one");
    let clock = VirtualClock::new();
    let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));

    let limiter = builder.clone().build().expect("valid");
    take(&limiter, 0..100).await;
    assert_eq!(gauge(&seen), Some(100.0));
    let parts = [Part::new(&LIMIT, &"several", 1), Part::new(&OTHER, &"several", 1)];
    limiter.check_all(&parts).await.expect("two new keys");
    assert_eq!(gauge(&seen), Some(102.0));

    // A key that is there, a rejection and a look change nothing; a reset does.
    assert!(limiter.check(&LIMIT, 0, 1).await.is_err());
    limiter.peek(&LIMIT, 1_000, 1).await.expect("a look");
    limiter.reset(&LIMIT, 0).await.expect("forgotten");
    assert_eq!(gauge(&seen), Some(101.0));

    // Two limiters are counted together, until one is gone. A full one stays full.
    let full = builder.max_keys(64).build().expect("valid");
    take(&full, 0..10_000).await;
    assert_eq!(gauge(&seen), Some(101.0 + 64.0));
    take(&full, 10_000..10_001).await;
    drop(full);
    assert_eq!(gauge(&seen), Some(101.0));

    // What is of no use any more goes as new keys come.
    clock.advance(HOUR);
    take(&limiter, 0..10_000).await;
    assert_eq!(gauge(&seen), Some(10_000.0));

    // What is counted here while Redis is away is held here as well.
    let server = Server::start();
    let redis = server.builder().on_error(OnError::Local).build().expect("valid");
    take(&redis, 0..1).await;
    drop(server);
    take(&redis, 0..1).await;
    assert_eq!(gauge(&seen), Some(10_001.0));
    drop((limiter, redis));
    assert_eq!(gauge(&seen), Some(0.0));

    // Who is late does not have the last word.
    let slow = Arc::new(Slow {
        shown: Mutex::default(),
        hurries: AtomicBool::new(false),
        meeting: Barrier::new(2),
    });
    let limiter = RateLimiter::embedded();
    let recorder = OnlyGauge(Arc::clone(&slow));
    let take =
        |key| metrics::with_local_recorder(&recorder, || drop(limiter.check(&LIMIT, key, 1)));
    std::thread::scope(|scope| {
        scope.spawn(|| take(1));
        slow.meeting.wait();
        take(2);
        slow.meeting.wait();
    });
    assert_eq!(slow.shown.lock().expect("no panic").pop(), Some(2.0));
}

/// A gauge that takes its time when it is set first: until there was a meeting, and another.
struct Slow {
    shown: Mutex<Vec<f64>>,
    hurries: AtomicBool,
    meeting: Barrier,
}

impl GaugeFn for Slow {
    fn set(&self, value: f64) {
        if !self.hurries.swap(true, SeqCst) {
            self.meeting.wait();
            self.meeting.wait();
        }
        self.shown.lock().expect("no panic").push(value);
    }

    fn increment(&self, _: f64) {}

    fn decrement(&self, _: f64) {}
}

/// A recorder of that one gauge.
struct OnlyGauge(Arc<Slow>);

impl Recorder for OnlyGauge {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::clone(&self.0))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
