//! Metrics: each call is counted and timed once for each of its limits.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use metrics::{Gauge, Key, Label};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use support::proxy::{Network, Proxy};

use crate::prelude::*;

const LIMIT: Limit = Limit::sliding("metrics", 1, HOUR);

/// The recorded values by the name of the metric, and by limit, outcome and source. Of a histogram, how many there are.
struct Recording(BTreeMap<String, BTreeMap<String, f64>>);

impl Recording {
    async fn during(calls: impl Future<Output = ()>) -> Self {
        let recorder = DebuggingRecorder::new();
        let guard = metrics::set_default_local_recorder(&recorder);
        calls.await;
        drop(guard);
        let mut recording = Self(BTreeMap::new());
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
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => values.len() as f64,
            };
            recording.0.entry(key.name().to_owned()).or_default().insert(labels.join(" "), value);
        }
        recording
    }

    fn of(&self, metric: &str) -> BTreeMap<String, f64> {
        self.0.get(&format!("ratelimit_{metric}")).cloned().unwrap_or_default()
    }

    /// Asserts that exactly these calls were counted, and that each was timed.
    fn assert(&self, calls: &[(&str, &str, &str, u32)]) {
        let mut timed = BTreeMap::<_, f64>::new();
        let mut counted = BTreeMap::new();
        for (limit, outcome, source, calls) in calls {
            counted.insert(format!("{limit} {outcome} {source}"), f64::from(*calls));
            *timed.entry(format!("{limit} {source}")).or_default() += f64::from(*calls);
        }
        assert_eq!(self.of("decisions_total"), counted);
        assert_eq!(self.of("decision_duration_seconds"), timed);
    }
}

support::on_both_stores! {
    TestLimiter::both;

    async fn every_call_is_counted_once(test) {
        let source = test.source;
        Recording::during(calls::plain(&test)).await.assert(&[
            ("plain", "allowed", source, 1),
            ("plain", "limited", source, 1),
            ("plain", "cost_exceeds_capacity", "none", 1),
        ]);
        Recording::during(calls::shadow(&test)).await.assert(&[
            ("shadow", "shadow_allowed", source, 1),
            ("shadow", "shadow_limited", source, 1),
            ("shadow", "shadow_limited", "none", 1),
        ]);
        Recording::during(calls::blocked(&test)).await.assert(&[
            ("blocked", "blocked", source, 2),
            ("blocked", "shadow_limited", source, 1),
            ("wide", "rejected_by_another", source, 1),
        ]);
        let mistake = [("plain", "mistake", "none", 1)];
        Recording::during(calls::mixed_limits(&test)).await.assert(&mistake);
        Recording::during(calls::other_operations(&test)).await.assert(&[]);
        let of_two = [
            ("narrow", "allowed", source, 2),
            ("narrow", "limited", source, 1),
            ("wide", "allowed", source, 2),
            ("wide", "rejected_by_another", source, 1),
        ];
        Recording::during(calls::several(&test)).await.assert(&of_two);

        let waits = Recording::during(calls::waits(&test)).await;
        // Redis decides while a call waits, also if it admits the call at once.
        let admitted = if source == "redis" { 2.0 } else { 1.0 };
        for limit in ["line", "slot", "wide"] {
            let waited = waits.of("wait_duration_seconds");
            assert_eq!(waited.get(&format!("{limit} admitted")), Some(&admitted), "{limit}");
        }
        let waiting = waits.of("waiting_calls");
        assert!(waiting.values().all(|calls| *calls < 0.5), "{waiting:?}");
        let of_one = |limit| [(limit, "allowed", source, 2), (limit, "limited", source, 1)];
        waits.assert(&[&of_one("line")[..], &of_one("slot"), &of_two].concat());

        let notifying = Limit::fixed("budget", 4, HOUR).notify_at(50);
        let notified = Recording::during(async {
            for _ in 0..4 {
                test.limiter.check(&notifying, KEY, 1).await.expect("admitted");
            }
        });
        let expected = BTreeMap::from([("budget".to_owned(), 1.0)]);
        assert_eq!(notified.await.of("notifications_total"), expected);
    }

    /// Also if the rejection by the rate beside them is the one that the caller receives.
    async fn slots_that_reject_are_counted_as_busy(test) {
        let source = test.source;
        let busy = Recording::during(calls::busy(&test)).await;
        assert!(busy.of("in_flight")["slots"].abs() < 0.5, "nothing is in flight at the end");
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
async fn each_of_several_limits_that_rejects_is_counted() {
    let limits = [Limit::fixed("one", 1, HOUR), Limit::fixed("other", 1, HOUR)];
    let call = async |limiter: &RateLimiter, shadow| {
        let limits = limits.map(|limit| limit.shadow(shadow));
        limiter.check_all(&limits.each_ref().map(|limit| Part::new(limit, &KEY, 1))).await.is_ok()
    };
    let counts = |outcomes: &[&'static str], source| {
        let count = |name| outcomes.iter().map(move |outcome| (name, *outcome, source, 1));
        [count("one"), count("other")].into_iter().flatten().collect::<Vec<_>>()
    };
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let recording = Recording::during(async {
            for (shadow, is_admitted) in [(false, true), (false, false), (true, true)] {
                assert_eq!(call(&test.limiter, shadow).await, is_admitted);
            }
        });
        recording.await.assert(&counts(&["allowed", "limited", "shadow_limited"], test.source));
    }
    let away = TestLimiter::redis(&Server::start()).limiter;
    let recording = Recording::during(async { assert!(!call(&away, false).await) });
    recording.await.assert(&counts(&["unavailable"], "none"));
}

#[tokio::test]
async fn the_duration_of_a_call_includes_its_wait() {
    let limit = Limit::leaky_bucket("timed", 1, Duration::from_millis(50)).wait(HOUR);
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let limiter = RateLimiter::embedded();
    for _ in 0..2 {
        assert!(limiter.check(&limit, KEY, 1).await.is_ok());
    }
    let snapshot = recorder.snapshotter().snapshot().into_vec().into_iter();
    let durations = snapshot.filter_map(|(key, _, _, value)| match value {
        DebugValue::Histogram(values) if key.key().name().contains("decision") => Some(values),
        _ => None,
    });
    let durations: Vec<f64> = durations.flatten().map(Into::into).collect();
    assert!(durations[0] < durations[1] && durations[1] > 0.02, "{durations:?}");
}

#[tokio::test]
async fn the_outcomes_of_calls_without_redis_are_counted() {
    let test = TestLimiter::redis(&Server::start());
    Recording::during(calls::undecided(&test, LIMIT)).await.assert(&[
        ("metrics", "unavailable", "none", 2),
        ("metrics", "allowed", "fallback", 2),
        ("metrics", "limited", "fallback", 1),
    ]);
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

/// The thread of the limiter opens the breaker, so it records to the recorder of the program.
#[tokio::test]
async fn a_gauge_shows_whether_the_breaker_is_open() {
    let server = Server::start();
    let port = server.port();
    let value = Arc::new(AtomicU64::new((-1.0_f64).to_bits()));
    let (node, of_node) = (format!(":{port}"), Arc::clone(&value));
    let gauge = move |key: &Key| {
        let is_of_node = key.labels().any(|label| label.value().ends_with(&node));
        if key.name() == "ratelimit_breaker_open" && is_of_node {
            return Gauge::from_arc(Arc::clone(&of_node));
        }
        Gauge::noop()
    };
    let recorder = GaugeRecorder { described: || (), other: |_| (), gauge };
    metrics::set_global_recorder(recorder).expect("no other recorder of the program");
    let shows = |wanted: f64| value.load(SeqCst) == wanted.to_bits();
    let limiter = server.builder().build().expect("valid");
    assert!(limiter.check(&LIMIT, KEY, 1).await.is_ok());
    assert!(shows(-1.0), "the breaker is closed since the start");
    drop(server);
    let pause = Duration::from_millis(5);
    while !shows(1.0) {
        assert!(limiter.check(&LIMIT, KEY, 1).await.is_err());
        tokio::time::sleep(pause).await;
    }
    let _restarted = Server::start_on(port);
    while !shows(0.0) {
        tokio::time::sleep(pause).await;
    }
    limiter.check(&LIMIT, KEY, 0).await.expect("admitted");
}

#[tokio::test]
async fn debts_are_counted() {
    const TOKENS: Limit = Limit::fixed("tokens", 100, HOUR);
    let recording = Recording::during(async {
        let limiter = RateLimiter::embedded();
        for used in [7, 30, 12] {
            limiter.acquire(&TOKENS, KEY, 10).await.expect("admitted").settle(used);
        }
    });
    let recording = recording.await;
    assert_eq!(recording.of("debt_units_total"), BTreeMap::from([("tokens".to_owned(), 22.0)]));
    assert_eq!(recording.of("settlements_lost_total"), BTreeMap::new());
    recording.assert(&[("tokens", "allowed", "embedded", 3)]);
}

/// While Redis does not reply, a bounded number of settlements waits for it. The others are lost, and counted.
#[tokio::test]
async fn settlements_that_are_too_many_are_counted() {
    const LARGE: Limit = Limit::fixed("large", 1_000_000_000, HOUR);
    let server = Server::start();
    let proxy = Proxy::start(server.port(), Duration::ZERO);
    let limiter = proxy.builder().deadline(MINUTE).build().expect("valid settings");
    let recording = Recording::during(async {
        let parts = vec![Part::new(&LARGE, &KEY, 2); 2_000];
        let mut permits = Vec::new();
        for _ in 0..35 {
            permits.extend(limiter.acquire_all(&parts).await.expect("admitted"));
        }
        proxy.set(Network::Blackhole);
        for permit in permits {
            permit.settle(1);
        }
    });
    let lost = recording.await.of("settlements_lost_total")["large"];
    // 65,536 wait, and up to 1,024 are sent.
    let most = f64::from(70_000 - 65_536);
    assert!((most - 1_024.0..=most).contains(&lost), "{lost}");
}
