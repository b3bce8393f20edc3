//! The span of a call that goes to Redis or waits: a child of the span of its caller, and the parent of its events.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use futures::future::{poll_immediate, ready};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Instrument, Subscriber, info, info_span};
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::prelude::*;

const ONE: Limit = Limit::fixed("one", 1, HOUR);
const FOUR: Limit = Limit::in_flight("four", 4).hold(MINUTE);

/// Returns what calls do in a span `request`: the spans that have ended, with their fields, and the events, with the
/// names of their spans and without their fields. `#` replaces a wait.
async fn trace_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let calls = async { calls.instrument(info_span!("request")).await };
    let log = log_of(calls, FmtSpan::CLOSE).await;
    let line = |line: &str| {
        let (spans, text) = line.trim_start().split_once(' ')?.1.split_once(": ")?;
        let (target, text) = text.split_once(": ")?;
        let is_ours = ["ratelimit_runtime::report", "ratelimit_runtime::span", "seen::spans"];
        if !is_ours.contains(&target) {
            return None;
        }
        let before = |text: &str, end: &str| text.split(end).next().unwrap_or_default().to_owned();
        Some(match (text, spans.split_once(" wait=")) {
            // A field without a value leaves a space.
            ("close", None) => spans.replace(" }", "}"),
            ("close", Some((span, _))) => format!("{span} wait=#}}"),
            _ => format!("{}: {}", before(spans, "{"), before(text, " limit=")),
        })
    };
    let mut lines: Vec<_> = log.replace('"', "").lines().filter_map(line).collect();
    assert_eq!(lines.pop().as_deref(), Some("request"), "{lines:#?}");
    lines
}

async fn spans_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let lines = trace_of(calls).await.into_iter();
    lines.filter(|line| line.contains("ratelimit.check{")).collect()
}

support::on_both_stores! {
    TestLimiter::both;

    async fn calls_that_go_to_redis_have_spans_and_calls_that_this_process_decides_have_none(test) {
        let each = |of: &str, outcomes: &[&str]| -> Vec<String> {
            let outcomes = if test.source == "redis" { outcomes } else { &[] };
            let span = |it: &&str| {
                format!("request:ratelimit.check{{limit={of} outcome={it} source=redis}}")
            };
            outcomes.iter().map(span).collect()
        };
        // No request: a cost above the capacity, and operations that are no calls.
        assert_eq!(spans_of(calls::plain(&test)).await, each("plain", &["allowed", "limited"]));
        let shadow = each("shadow", &["allowed", "shadow_limited"]);
        assert_eq!(spans_of(calls::shadow(&test)).await, shadow);
        let several = each("wide, narrow", &["allowed", "allowed", "limited"]);
        assert_eq!(spans_of(calls::several(&test)).await, several);
        assert_eq!(spans_of(calls::other_operations(&test)).await, [""; 0]);
        let acquired = spans_of(async {
            let _held = test.limiter.acquire(&ONE.wait(SECOND), KEY, 1).await.expect("admitted");
            let _held = test.limiter.acquire(&FOUR, KEY, 4).await.expect("admitted");
            test.limiter.acquire(&FOUR, KEY, 1).await.expect_err("busy");
        });
        let waited = each("one", &["allowed"]).into_iter().map(|it| it.replace('}', " wait=#}"));
        let expected: Vec<_> = waited.chain(each("four", &["allowed", "busy"])).collect();
        assert_eq!(acquired.await, expected);
    }

    /// A task of its own has no caller.
    async fn a_call_that_waits_has_a_span_on_both_stores(test) {
        let source = test.source;
        let mut expected = Vec::new();
        for limit in ["line", "slot", "wide, narrow"] {
            let span = |outcome| {
                format!("ratelimit.check{{limit={limit} outcome={outcome} source={source} wait=#}}")
            };
            // This process admits and rejects at once.
            if source == "redis" {
                expected.extend(["allowed", "limited"].map(|it| format!("request:{}", span(it))));
            }
            expected.push(span("allowed"));
        }
        assert_eq!(spans_of(calls::waits(&test)).await, expected);
    }
}

#[tokio::test]
async fn the_events_of_a_call_are_in_its_span() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    assert_eq!(
        trace_of(calls::plain(&test)).await,
        [
            "request:ratelimit.check{limit=plain outcome=allowed source=redis}",
            "request:ratelimit.check: rejected",
            "request:ratelimit.check{limit=plain outcome=limited source=redis}",
            "request: rejected: the cost exceeds the capacity",
        ]
    );
    drop(server);
    for (on_error, end) in [
        (OnError::Deny, "outcome=unavailable source=none"),
        (OnError::Allow, "outcome=allowed source=fallback"),
        (OnError::Local, "outcome=allowed source=fallback"),
        (OnError::Local, "outcome=limited source=fallback"),
    ] {
        let limit = ONE.on_error(on_error);
        let call = async { drop(test.limiter.check(&limit, KEY, 1).await) };
        let mut lines = trace_of(call).await;
        assert_eq!(lines.pop(), Some(format!("request:ratelimit.check{{limit=one {end}}}")));
        // Also the first report of the outage.
        assert!(lines.iter().all(|it| it.starts_with("request:ratelimit.check: ")), "{lines:#?}");
        assert_eq!(lines.is_empty(), end.contains("allowed"), "{lines:#?}");
    }
}

/// The keys are on several nodes, so the call is several requests.
#[tokio::test]
async fn a_call_on_a_cluster_has_one_span() {
    let cluster = Cluster::start(0);
    let builder = RateLimiter::builder().redis(cluster.url()).deadline(30 * SECOND);
    let limiter = builder.on_error(OnError::Deny).build().expect("valid");
    let keys: Vec<_> = (0..6_u64).collect();
    let parts: Vec<_> = keys.iter().map(|key| Part::new(&ONE, key, 1)).collect();
    let spans = spans_of(async { _ = limiter.check_all(&parts).await.expect("admitted") }).await;
    let limits = ["one"; 6].join(", ");
    let span = format!("request:ratelimit.check{{limit={limits} outcome=allowed source=redis}}");
    assert_eq!(spans, [span]);
}

#[tokio::test]
async fn a_dropped_call_has_no_outcome_and_a_call_that_is_not_polled_no_span() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let spans = spans_of(async {
        for limit in [ONE, ONE.wait(MINUTE)] {
            assert!(poll_immediate(test.limiter.check(&limit, KEY, 1)).await.is_none());
            drop(test.limiter.check(&limit, KEY, 1));
        }
    });
    assert_eq!(spans.await, ["request:ratelimit.check{limit=one}"; 2]);
}

#[rate_limit(period = "1h", threshold = 5, name = "body", key = KEY, wait = "1s")]
async fn annotated() -> Result<(), Rejection> {
    info!("before");
    ready(()).await;
    tokio::task::yield_now().await;
    info!("after");
    Ok(())
}

#[tokio::test]
async fn the_body_of_a_function_is_not_in_the_span_of_its_call() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let call = async { test.limiter.scope(annotated()).await.expect("admitted") };
    assert_eq!(
        trace_of(call).await,
        [
            "request:ratelimit.check{limit=body outcome=allowed source=redis wait=#}",
            "request: before",
            "request: after",
        ]
    );
}

/// Panics at one moment in the life of a span.
struct PanicLayer(&'static str);

impl PanicLayer {
    fn observe(&self, moment: &str) {
        assert!(self.0 != moment, "on purpose");
    }

    fn install(moment: &'static str) -> DefaultGuard {
        tracing::subscriber::set_default(tracing_subscriber::registry().with(Self(moment)))
    }
}

impl<S: Subscriber> Layer<S> for PanicLayer {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.observe("new");
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        self.observe("enter");
    }

    fn on_record(&self, _: &Id, _: &Record<'_>, _: Context<'_, S>) {
        self.observe("record");
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        self.observe("exit");
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        self.observe("close");
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_leaves_nothing_of_the_call() {
    let server = Server::start();
    let redis = server.builder().build().expect("valid");
    for (limiter, is_shared) in [(RateLimiter::embedded(), false), (redis, true)] {
        let wait_until_free = async || {
            let left = async || limiter.peek(&FOUR, KEY, 0).await.expect("a decision").remaining;
            wait_until(async || left().await == 4).await;
        };
        for moment in ["new", "enter", "record", "exit", "close"] {
            let guard = PanicLayer::install(moment);
            let call = AssertUnwindSafe(limiter.acquire(&FOUR, KEY, 1)).catch_unwind().await;
            drop(guard);
            // Without a wait, the embedded store needs no span.
            assert_eq!(call.is_err(), is_shared, "{moment}");
            drop(call);
            wait_until_free().await;

            let held = limiter.acquire(&FOUR, KEY, 4).await.expect("admitted");
            let guard = PanicLayer::install(moment);
            let call = AssertUnwindSafe(limiter.acquire(&FOUR.wait(30 * SECOND), KEY, 1));
            let mut call = Box::pin(call.catch_unwind());
            let first = poll_immediate(&mut call).await;
            drop(held);
            let result = if let Some(result) = first { result } else { call.await };
            drop(guard);
            assert!(result.is_err(), "{moment}");
            wait_until_free().await;
        }
    }
}
