//! Metrics: each call is counted and timed once for each of its limits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Key, KeyName, Label, Metadata, SharedString, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use ratelimit_runtime::{Limit, OnError, Part, RateLimiter};
use support::proxy::{Network, Proxy};
use support::server::Server;

use crate::{KEY, TestLimiter, calls};

const LIMIT: Limit = Limit::sliding("metrics", 1, Duration::from_secs(3600));

/// The recorded calls by limit, outcome and source, and their durations by limit and source.
#[derive(Default)]
struct Recording {
    decisions: BTreeMap<String, u64>,
    durations: BTreeMap<String, Vec<f64>>,
    /// The number of waits by limit and outcome.
    waits: BTreeMap<String, usize>,
    /// The largest number of calls that wait at the end.
    waiting: f64,
    /// The units in flight at the end.
    in_flight: f64,
    /// The units of debts, and the charges that could not be corrected, by limit.
    debts: BTreeMap<String, u64>,
    lost: BTreeMap<String, u64>,
}

impl Recording {
    async fn during(calls: impl Future<Output = ()>) -> Self {
        let recorder = DebuggingRecorder::new();
        let guard = metrics::set_default_local_recorder(&recorder);
        calls.await;
        drop(guard);
        let mut recording = Self::default();
        for (key, _, _, value) in recorder.snapshotter().snapshot().into_vec() {
            let key = key.key();
            if key.name() == "ratelimit_breaker_open" {
                continue;
            }
            let label = |name| key.labels().find(|label| label.key() == name).map(Label::value);
            let labels: Vec<_> =
                ["limit", "outcome", "source"].into_iter().filter_map(label).collect();
            assert_eq!(labels.len(), key.labels().count(), "{key}");
            assert!(!key.to_string().contains(KEY), "{key}");
            match (key.name(), value) {
                ("ratelimit_decisions_total", DebugValue::Counter(calls)) => {
                    recording.decisions.insert(labels.join(" "), calls);
                }
                ("ratelimit_decision_duration_seconds", DebugValue::Histogram(seconds)) => {
                    let seconds = seconds.into_iter().map(Into::into).collect();
                    recording.durations.insert(labels.join(" "), seconds);
                }
                ("ratelimit_keys", DebugValue::Gauge(_)) => {}
                ("ratelimit_debt_units_total", DebugValue::Counter(units)) => {
                    recording.debts.insert(labels.join(" "), units);
                }
                ("ratelimit_settlements_lost_total", DebugValue::Counter(charges)) => {
                    recording.lost.insert(labels.join(" "), charges);
                }
                ("ratelimit_in_flight", DebugValue::Gauge(units)) => {
                    recording.in_flight = units.into_inner();
                }
                ("ratelimit_waiting_calls", DebugValue::Gauge(calls)) => {
                    recording.waiting = recording.waiting.max(calls.into_inner());
                }
                ("ratelimit_wait_duration_seconds", DebugValue::Histogram(seconds)) => {
                    recording.waits.insert(labels.join(" "), seconds.len());
                }
                other => panic!("{other:?}"),
            }
        }
        recording
    }

    /// Asserts that exactly these calls were counted, and that each was timed.
    fn assert(&self, calls: &[(&str, &str, &str, u64)]) {
        let mut timed = BTreeMap::<_, u64>::new();
        let mut counted = BTreeMap::new();
        for (limit, outcome, source, calls) in calls {
            counted.insert(format!("{limit} {outcome} {source}"), *calls);
            *timed.entry(format!("{limit} {source}")).or_default() += calls;
        }
        assert_eq!(self.decisions, counted);
        let durations = self.durations.iter().map(|(key, it)| (key.clone(), it.len() as u64));
        assert_eq!(durations.collect::<BTreeMap<_, _>>(), timed);
    }
}

#[tokio::test]
async fn every_call_is_counted_once() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let source = test.source;
        let plain = Recording::during(calls::plain(&test)).await;
        plain.assert(&[
            ("plain", "allowed", source, 1),
            ("plain", "limited", source, 1),
            ("plain", "cost_exceeds_capacity", "none", 1),
        ]);
        let shadow = Recording::during(calls::shadow(&test)).await;
        shadow.assert(&[
            ("shadow", "shadow_allowed", source, 1),
            ("shadow", "shadow_limited", source, 1),
            ("shadow", "shadow_limited", "none", 1),
        ]);
        let blocked = Recording::during(calls::blocked(&test)).await;
        blocked.assert(&[
            ("blocked", "blocked", source, 2),
            ("blocked", "shadow_limited", source, 1),
            ("wide", "rejected_by_another", source, 1),
        ]);
        let mixed = Recording::during(calls::mixed_limits(&test)).await;
        mixed.assert(&[("plain", "mistake", "none", 1)]);
        Recording::during(calls::other_operations(&test)).await.assert(&[]);
    }
}

#[tokio::test]
async fn a_call_of_several_limits_is_counted_for_each() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let several = Recording::during(calls::several(&test)).await;
        several.assert(&[
            ("narrow", "allowed", test.source, 2),
            ("narrow", "limited", test.source, 1),
            ("wide", "allowed", test.source, 2),
            ("wide", "rejected_by_another", test.source, 1),
        ]);
    }
}

#[tokio::test]
async fn each_of_several_limits_that_rejects_is_counted() {
    const HOUR: Duration = Duration::from_secs(3600);
    let limits = [Limit::fixed("one", 1, HOUR), Limit::fixed("other", 1, HOUR)];
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let recording = Recording::during(async {
            for shadow in [false, false, true] {
                let limits = limits.map(|limit| limit.shadow(shadow));
                let parts = limits.each_ref().map(|limit| Part::new(limit, &KEY, 1));
                let _ = test.limiter.check_all(&parts).await;
            }
        });
        let each = |name| {
            [
                (name, "allowed", test.source, 1),
                (name, "limited", test.source, 1),
                (name, "shadow_limited", test.source, 1),
            ]
        };
        recording.await.assert(&[each("one"), each("other")].concat());
    }
    // Without a decision.
    let builder = RateLimiter::builder().redis("redis://127.0.0.1:1").on_error(OnError::Deny);
    let away = builder.deadline(Duration::from_secs(5)).build().expect("a URL");
    let recording = Recording::during(async {
        let parts = limits.each_ref().map(|limit| Part::new(limit, &KEY, 1));
        assert!(away.check_all(&parts).await.is_err());
    });
    let each = |name| (name, "unavailable", "none", 1);
    recording.await.assert(&[each("one"), each("other")]);
}

/// Also if the rejection by the rate beside them is the one that the caller receives.
#[tokio::test]
async fn slots_that_reject_are_counted_as_busy() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let source = test.source;
        let busy = Recording::during(calls::busy(&test)).await;
        assert!(busy.in_flight.abs() < 0.5, "{} units are in flight", busy.in_flight);
        busy.assert(&[
            ("slots", "allowed", source, 1),
            ("slots", "busy", source, 2),
            ("slots", "shadow_limited", source, 1),
            ("slots", "rejected_by_another", source, 1),
            ("beside", "allowed", source, 1),
            ("beside", "rejected_by_another", source, 1),
            ("beside", "limited", source, 2),
            ("beside", "shadow_limited", source, 1),
        ]);
    }
}

#[tokio::test]
async fn a_waiting_call_is_counted_once() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let source = test.source;
        let recording = Recording::during(calls::waits(&test)).await;
        // Redis decides while a call waits, also if it admits the call at once.
        let admitted = if source == "redis" { 2 } else { 1 };
        for limit in ["line", "slot", "wide"] {
            assert_eq!(
                recording.waits.get(&format!("{limit} admitted")),
                Some(&admitted),
                "{limit}"
            );
        }
        assert!(recording.waiting < 0.5, "{} calls wait", recording.waiting);
        recording.assert(&[
            ("line", "allowed", source, 2),
            ("line", "limited", source, 1),
            ("slot", "allowed", source, 2),
            ("slot", "limited", source, 1),
            ("narrow", "allowed", source, 2),
            ("narrow", "limited", source, 1),
            ("wide", "allowed", source, 2),
            ("wide", "rejected_by_another", source, 1),
        ]);
    }
}

#[tokio::test]
async fn the_duration_of_a_call_includes_its_wait() {
    let limit = Limit::leaky_bucket("timed", 1, Duration::from_millis(50));
    let limit = limit.wait(Duration::from_secs(60));
    let recorded = Recording::during(async {
        let limiter = RateLimiter::embedded();
        for _ in 0..2 {
            let check = limiter.check(&limit, KEY, 1);
            assert!(check.await.is_ok());
        }
    });
    let durations = &recorded.await.durations["timed embedded"];
    assert!(durations[0] < durations[1] && durations[1] > 0.02, "{durations:?}");
}

#[tokio::test]
async fn the_outcomes_of_calls_without_redis_are_counted() {
    let test = TestLimiter::redis(&Server::start());
    let recorded = Recording::during(async {
        assert!(test.limiter.check(&LIMIT, KEY, 1).await.is_err());
        assert!(test.limiter.check(&LIMIT.shadow(true), KEY, 1).await.is_ok());
        assert!(test.limiter.check(&LIMIT.on_error(OnError::Allow), KEY, 1).await.is_ok());
        for admitted in [true, false] {
            let check = test.limiter.check(&LIMIT.on_error(OnError::Local), KEY, 1);
            assert_eq!(check.await.is_ok(), admitted);
        }
    });
    recorded.await.assert(&[
        ("metrics", "unavailable", "none", 2),
        ("metrics", "allowed", "fallback", 2),
        ("metrics", "limited", "fallback", 1),
    ]);
}

#[tokio::test]
async fn metrics_have_units_and_descriptions() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    assert!(RateLimiter::embedded().check(&LIMIT, KEY, 1).await.is_ok());
    let metrics = recorder.snapshotter().snapshot().into_vec();
    let units = metrics.into_iter().map(|(key, unit, help, _)| {
        assert!(help.is_some(), "{key:?}");
        (key.key().name().to_owned(), unit.expect("a unit"))
    });
    let units: BTreeMap<_, _> = units.collect();
    assert_eq!(units.len(), 3);
    assert_eq!(units["ratelimit_decisions_total"], Unit::Count);
    assert_eq!(units["ratelimit_decision_duration_seconds"], Unit::Seconds);
    assert_eq!(units["ratelimit_keys"], Unit::Count);
}

/// A client chooses its key, and a tenant its threshold: neither gets series of its own.
#[tokio::test]
async fn keys_and_computed_thresholds_have_no_series() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let limiter = RateLimiter::builder().max_keys(10_000).build().expect("valid");
    for is_admitted in [true, false] {
        assert_eq!(limiter.check(&LIMIT, KEY, 1).await.is_ok(), is_admitted);
    }
    // The durations that were recorded are removed, too, so they do not fill the memory.
    let series = || recorder.snapshotter().snapshot().into_vec().len();
    let before = series();
    for key in 0..1_000_000_u64 {
        let limit = LIMIT.try_amounts(1 + key % 10_000, None).expect("valid");
        assert!(limiter.check(&limit, key, 1).await.is_ok());
        if key % 100_000 == 0 {
            assert_eq!(series(), before, "after {key} keys");
        }
    }
    assert_eq!(series(), before);
}

/// The values that gauges of a server were set to. The other recorder sets a gauge to 0 when a test reads it.
#[derive(Clone, Default)]
struct GaugeValues {
    port: String,
    values: Arc<Mutex<Vec<f64>>>,
}

impl GaugeValues {
    fn seen(&self) -> Vec<f64> {
        self.values.lock().expect("no panic").clone()
    }
}

impl metrics::GaugeFn for GaugeValues {
    fn increment(&self, _value: f64) {}

    fn decrement(&self, _value: f64) {}

    fn set(&self, value: f64) {
        self.values.lock().expect("no panic").push(value);
    }
}

impl metrics::Recorder for GaugeValues {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> metrics::Counter {
        metrics::Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> metrics::Gauge {
        let is_of_server = key.labels().any(|label| label.value().ends_with(&self.port));
        if key.name() == "ratelimit_breaker_open" && is_of_server {
            return metrics::Gauge::from_arc(Arc::new(self.clone()));
        }
        metrics::Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::noop()
    }
}

/// The thread of the limiter opens the breaker, so it records to the recorder of the program.
#[tokio::test]
async fn a_gauge_shows_whether_the_breaker_is_open() {
    let server = Server::start();
    let port = server.port();
    let gauge = GaugeValues { port: format!(":{port}"), ..GaugeValues::default() };
    metrics::set_global_recorder(gauge.clone()).expect("no other recorder of the program");
    let limiter = server.builder().build().expect("valid");
    assert!(limiter.check(&LIMIT, KEY, 1).await.is_ok());
    assert!(gauge.seen().is_empty());
    drop(server);
    // The connection breaks, and a probe does not connect.
    let pause = Duration::from_millis(5);
    while gauge.seen().is_empty() {
        assert!(limiter.check(&LIMIT, KEY, 1).await.is_err());
        tokio::time::sleep(pause).await;
    }
    let _restarted = Server::start_on(port);
    while gauge.seen().len() < 2 {
        tokio::time::sleep(pause).await;
    }
    assert_eq!(gauge.seen(), [1.0, 0.0]);
    limiter.check(&LIMIT, KEY, 0).await.expect("admitted");
}

#[tokio::test]
async fn debts_are_counted() {
    const TOKENS: Limit = Limit::fixed("tokens", 100, Duration::from_secs(3600));
    let recording = Recording::during(async {
        let limiter = RateLimiter::embedded();
        for used in [7, 30, 12] {
            limiter.acquire(&TOKENS, KEY, 10).await.expect("admitted").settle(used);
        }
    });
    let recording = recording.await;
    assert_eq!(recording.debts, BTreeMap::from([("tokens".to_owned(), 22)]));
    assert_eq!(recording.lost, BTreeMap::new());
    recording.assert(&[("tokens", "allowed", "embedded", 3)]);
}

/// While Redis does not reply, a bounded number of settlements waits for it. The others are lost, and counted.
#[tokio::test]
async fn settlements_that_are_too_many_are_counted() {
    const LARGE: Limit = Limit::fixed("large", 1_000_000_000, Duration::from_secs(3600));
    const PARTS: usize = 2_000;
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let builder = RateLimiter::builder().redis(format!("redis://127.0.0.1:{}", proxy.port));
    let limiter = builder.deadline(Duration::from_secs(60)).build().expect("valid settings");
    let recording = Recording::during(async {
        let parts = vec![Part::new(&LARGE, &KEY, 2); PARTS];
        let mut permits = Vec::new();
        for _ in 0..35 {
            permits.extend(limiter.acquire_all(&parts).await.expect("admitted"));
        }
        proxy.set(Network::Blackhole);
        for permit in permits {
            permit.settle(1);
        }
    });
    let lost = recording.await.lost["large"];
    // 65,536 wait, and up to 1,024 are sent.
    assert!((70_000 - 65_536 - 1_024..=70_000 - 65_536).contains(&lost), "{lost}");
}
