//! Metrics: each call is counted and timed once, under the limit that spoke.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{Label, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use ratelimit_runtime::{Limit, OnError, RateLimiter};
use support::server::Server;

use crate::{KEY, Timed, calls};

const LIMIT: Limit = Limit::sliding("metrics", 1, Duration::from_secs(3600));

/// The calls by limit, outcome and source, and the seconds they took by limit and source.
#[derive(Default)]
struct Recorded {
    decisions: BTreeMap<String, u64>,
    durations: BTreeMap<String, Vec<f64>>,
}

impl Recorded {
    async fn during(calls: impl Future<Output = ()>) -> Self {
        let recorder = DebuggingRecorder::new();
        let guard = metrics::set_default_local_recorder(&recorder);
        calls.await;
        drop(guard);
        let mut seen = Self::default();
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
                    seen.decisions.insert(labels.join(" "), calls);
                }
                ("ratelimit_decision_duration_seconds", DebugValue::Histogram(seconds)) => {
                    let seconds = seconds.into_iter().map(Into::into).collect();
                    seen.durations.insert(labels.join(" "), seconds);
                }
                ("ratelimit_keys", DebugValue::Gauge(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        seen
    }

    /// Checks that these calls were counted, and as many were timed.
    fn are(&self, calls: &[(&str, &str, &str, u64)]) {
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
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let source = on.source;
        let plain = Recorded::during(calls::plain(&on)).await;
        plain.are(&[
            ("plain", "allowed", source, 1),
            ("plain", "limited", source, 1),
            ("plain", "cost_exceeds_capacity", "none", 1),
        ]);
        let shadow = Recorded::during(calls::shadow(&on)).await;
        shadow.are(&[
            ("shadow", "shadow_allowed", source, 1),
            ("shadow", "shadow_limited", source, 1),
            ("shadow", "shadow_limited", "none", 1),
        ]);
        let nothing = Recorded::during(calls::nothing(&on)).await;
        nothing.are(&[("plain", "unavailable", "none", 1)]);
        Recorded::during(calls::quiet(&on)).await.are(&[]);
    }
}

#[tokio::test]
async fn several_limits_are_one_call_of_the_one_that_speaks() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let several = Recorded::during(calls::several(&on)).await;
        several.are(&[("narrow", "allowed", on.source, 2), ("narrow", "limited", on.source, 1)]);
    }
}

#[tokio::test]
async fn a_wait_is_one_call() {
    let server = Server::start();
    for on in [Timed::embedded(), Timed::redis(&server)] {
        let source = on.source;
        Recorded::during(calls::waits(&on)).await.are(&[
            ("line", "allowed", source, 2),
            ("line", "limited", source, 1),
            ("slot", "allowed", source, 2),
            ("slot", "limited", source, 1),
            ("narrow", "allowed", source, 2),
            ("wide", "limited", source, 1),
        ]);
    }
}

#[tokio::test]
async fn a_wait_is_timed_to_its_end() {
    let limit = Limit::leaky_bucket("timed", 1, Duration::from_millis(50));
    let limit = limit.wait(Duration::from_secs(60));
    let recorded = Recorded::during(async {
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
async fn what_becomes_of_calls_without_redis_is_counted() {
    let on = Timed::redis(&Server::start());
    let recorded = Recorded::during(async {
        assert!(on.limiter.check(&LIMIT, KEY, 1).await.is_err());
        assert!(on.limiter.check(&LIMIT.shadow(true), KEY, 1).await.is_ok());
        assert!(on.limiter.check(&LIMIT.on_error(OnError::Allow), KEY, 1).await.is_ok());
        for admitted in [true, false] {
            let check = on.limiter.check(&LIMIT.on_error(OnError::Local), KEY, 1);
            assert_eq!(check.await.is_ok(), admitted);
        }
    });
    recorded.await.are(&[
        ("metrics", "unavailable", "none", 2),
        ("metrics", "allowed", "fallback", 2),
        ("metrics", "limited", "fallback", 1),
    ]);
}

#[tokio::test]
async fn exporters_are_told_what_it_is() {
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

/// Whether the breaker of the only server is open.
fn is_open(recorder: &DebuggingRecorder) -> Option<bool> {
    let metrics = recorder.snapshotter().snapshot().into_vec();
    let mut gauges = metrics.into_iter().filter_map(|(key, _, _, value)| {
        let DebugValue::Gauge(value) = value else { return None };
        (key.key().name() == "ratelimit_breaker_open").then_some(value.into_inner() > 0.0)
    });
    gauges.next()
}

#[tokio::test]
async fn a_breaker_that_opens_and_closes_is_seen() {
    let recorder = DebuggingRecorder::new();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let server = Server::start();
    let limiter = server.builder().build().expect("valid");
    assert!(limiter.check(&LIMIT, KEY, 1).await.is_ok());
    assert_eq!(is_open(&recorder), None);
    let port = server.port();
    drop(server);
    // The connection breaks, and another is not made.
    loop {
        assert!(limiter.check(&LIMIT, KEY, 1).await.is_err());
        match is_open(&recorder) {
            None => {}
            Some(open) => break assert!(open),
        }
    }
    let _back = Server::start_on(port);
    while limiter.check(&LIMIT, KEY, 0).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(is_open(&recorder), Some(false));
}
