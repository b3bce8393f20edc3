//! The span of a call that goes to Redis or waits: a child of the span of its caller, and the parent of its events.

use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures::future::{poll_immediate, ready};
use futures::{FutureExt, poll};
use ratelimit_runtime::{Limit, OnError, Part, RateLimiter, Rejection, rate_limit};
use support::cluster::Cluster;
use support::limits::{HOUR, MINUTE, SECOND};
use support::server::Server;
use support::wait::wait_until;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument, Subscriber, info, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Scope, SpanRef};

use crate::{KEY, TestLimiter, calls};

const ONE: Limit = Limit::fixed("one", 1, HOUR);
const FOUR: Limit = Limit::in_flight("four", 4).hold(Duration::from_secs(30));

/// The spans that have ended and the events, in their order. Each begins with the names of its spans.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<String>>>);

/// The fields of a span or an event, by their names.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push((field.name(), format!("{value:?}").replace('"', "")));
    }
}

impl Trace {
    fn add<'a, S: LookupSpan<'a> + 'a>(
        &self,
        spans: impl Iterator<Item = SpanRef<'a, S>>,
        text: &str,
    ) {
        let names: Vec<_> = spans.map(|span| span.name()).collect();
        self.0.lock().expect("no panic").push(format!("{}{text}", names.join("/")));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Trace {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        context.span(id).expect("a span").extensions_mut().insert(fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).expect("a span");
        values.record(span.extensions_mut().get_mut::<Fields>().expect("inserted"));
    }

    /// Adds the text of the event; `events` tests the fields.
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let target = event.metadata().target();
        if target.starts_with("ratelimit_runtime::report") || target.starts_with("seen") {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let text = fields.0.iter().find(|(name, _)| *name == "message").expect("a text");
            let spans = context.event_scope(event).into_iter().flat_map(Scope::from_root);
            self.add(spans, &format!(": {}", text.1));
        }
    }

    /// Adds the fields of the span; for its wait `#`.
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).expect("a span");
        let shown = |(name, value): &(&str, String)| match *name {
            "wait" => " wait=#".to_owned(),
            name => format!(" {name}={value}"),
        };
        let fields = span
            .extensions()
            .get::<Fields>()
            .expect("inserted")
            .0
            .iter()
            .map(shown)
            .collect::<String>();
        self.add(span.scope().from_root(), &fields);
    }
}

/// Returns what calls do in a span `request`, which is left out at the end.
async fn trace_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let trace = Trace::default();
    let guard =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(trace.clone()));
    calls.instrument(info_span!("request")).await;
    drop(guard);
    let mut lines = std::mem::take(&mut *trace.0.lock().expect("no panic"));
    assert_eq!(lines.pop().as_deref(), Some("request"), "{lines:#?}");
    lines
}

/// Returns the spans without the events.
async fn spans_of(calls: impl Future<Output = ()>) -> Vec<String> {
    let lines = trace_of(calls).await.into_iter();
    lines.filter(|line| line.contains("ratelimit.check limit=")).collect()
}

#[tokio::test]
async fn calls_that_go_to_redis_have_spans_and_calls_that_this_process_decides_have_none() {
    let server = Server::start();
    let (embedded, redis) = (TestLimiter::embedded(), TestLimiter::redis(&server));
    for test in [&embedded, &redis] {
        let each = |of: &str, outcomes: &[&str]| -> Vec<String> {
            let outcomes = if test.source == "redis" { outcomes } else { &[] };
            let line =
                |it: &&str| format!("request/ratelimit.check limit={of} outcome={it} source=redis");
            outcomes.iter().map(line).collect()
        };
        // No request: a cost above the capacity, and operations that are no calls.
        assert_eq!(spans_of(calls::plain(test)).await, each("plain", &["allowed", "limited"]));
        let shadow = each("shadow", &["allowed", "shadow_limited"]);
        assert_eq!(spans_of(calls::shadow(test)).await, shadow);
        let several = each("wide, narrow", &["allowed", "allowed", "limited"]);
        assert_eq!(spans_of(calls::several(test)).await, several);
        assert_eq!(spans_of(calls::other_operations(test)).await, [""; 0]);
        let acquired = spans_of(async {
            let _held = test.limiter.acquire(&ONE.wait(SECOND), KEY, 1).await.expect("admitted");
            let _held = test.limiter.acquire(&FOUR, KEY, 4).await.expect("admitted");
            test.limiter.acquire(&FOUR, KEY, 1).await.expect_err("busy");
        });
        let mut expected = each("one", &["allowed"]);
        for line in &mut expected {
            line.push_str(" wait=#");
        }
        expected.extend(each("four", &["allowed", "busy"]));
        assert_eq!(acquired.await, expected);
    }
}

/// A task of its own has no caller.
#[tokio::test]
async fn a_call_that_waits_has_a_span_on_both_stores() {
    let server = Server::start();
    for test in [TestLimiter::embedded(), TestLimiter::redis(&server)] {
        let source = test.source;
        let expected = ["line", "slot", "wide, narrow"].into_iter().flat_map(|limit| {
            let line = |begin, outcome| {
                format!("{begin} limit={limit} outcome={outcome} source={source} wait=#")
            };
            let at_once = ["allowed", "limited"].map(|it| line("request/ratelimit.check", it));
            let later = line("ratelimit.check", "allowed");
            // This process admits and rejects at once.
            let at_once = at_once.into_iter().filter(|_| source == "redis");
            at_once.chain([later])
        });
        assert_eq!(spans_of(calls::waits(&test)).await, expected.collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn the_events_of_a_call_are_in_its_span() {
    let server = Server::start();
    let test = TestLimiter::redis(&server);
    let rejected = trace_of(calls::plain(&test)).await;
    assert_eq!(
        rejected,
        [
            "request/ratelimit.check limit=plain outcome=allowed source=redis",
            "request/ratelimit.check: rejected",
            "request/ratelimit.check limit=plain outcome=limited source=redis",
            "request: rejected: the cost exceeds the capacity",
        ]
    );
    drop(server);
    for (on_error, outcome, source) in [
        (OnError::Deny, "unavailable", "none"),
        (OnError::Allow, "allowed", "fallback"),
        (OnError::Local, "allowed", "fallback"),
        (OnError::Local, "limited", "fallback"),
    ] {
        let limit = ONE.on_error(on_error);
        let call = async { drop(test.limiter.check(&limit, KEY, 1).await) };
        let mut lines = trace_of(call).await;
        let span = format!("request/ratelimit.check limit=one outcome={outcome} source={source}");
        assert_eq!(lines.pop(), Some(span));
        // Also the first report of the outage.
        assert!(lines.iter().all(|it| it.starts_with("request/ratelimit.check: ")), "{lines:#?}");
        assert_eq!(lines.is_empty(), outcome == "allowed", "{lines:#?}");
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
    assert_eq!(
        spans,
        [format!("request/ratelimit.check limit={limits} outcome=allowed source=redis")]
    );
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
    assert_eq!(spans.await, ["request/ratelimit.check limit=one"; 2]);
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
            "request/ratelimit.check limit=body outcome=allowed source=redis wait=#",
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
            let subscriber = || {
                let subscriber = tracing_subscriber::registry().with(PanicLayer(moment));
                tracing::subscriber::set_default(subscriber)
            };
            let guard = subscriber();
            let call = AssertUnwindSafe(limiter.acquire(&FOUR, KEY, 1)).catch_unwind().await;
            drop(guard);
            // Without a wait, the embedded store needs no span.
            assert_eq!(call.is_err(), is_shared, "{moment}");
            drop(call);
            wait_until_free().await;

            let held = limiter.acquire(&FOUR, KEY, 4).await.expect("admitted");
            let guard = subscriber();
            let call = AssertUnwindSafe(limiter.acquire(&FOUR.wait(30 * SECOND), KEY, 1));
            let mut call = Box::pin(call.catch_unwind());
            let first = poll!(call.as_mut());
            drop(held);
            let result = match first {
                Poll::Ready(result) => result,
                Poll::Pending => call.await,
            };
            drop(guard);
            assert!(result.is_err(), "{moment}");
            wait_until_free().await;
        }
    }
}
