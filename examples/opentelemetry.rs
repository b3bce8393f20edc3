//! Traces: how long a request has waited for its rate limit, as a span of OpenTelemetry within the span of the request.
//!
//! ```sh
//! cargo run --example opentelemetry
//! ```
//!
//! Three requests call a partner that admits five calls a second, so the second one and the third one wait. The program
//! prints the spans that it would export. A service exports them with `opentelemetry_otlp`, in place of the exporter in
//! memory.
//!
//! If `RATELIMIT_REDIS_URL` is set, each call goes to that Redis and has a span. Otherwise, only a call that waits has
//! one.

use anyhow::Context;
use opentelemetry::trace::{SpanId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use ratelimit_runtime::{Rejection, rate_limit};
use tracing::{Instrument, Level, info_span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

#[rate_limit(
    name = "partner",
    period = "1s",
    threshold = 5,
    algo = "leaky_bucket",
    wait = "10s",
    on_error = "deny"
)]
async fn call_partner() -> Result<(), Rejection> {
    Ok(())
}

/// Returns the name of a span, its duration, and what the limiter has recorded.
fn text(span: &SpanData) -> anyhow::Result<String> {
    let took = span.end_time.duration_since(span.start_time)?;
    let attributes = span
        .attributes
        .iter()
        .filter(|attribute| ["limit", "outcome", "source"].contains(&attribute.key.as_str()));
    let attributes = attributes.map(|attribute| format!(" {}={}", attribute.key, attribute.value));
    Ok(format!("{} {} ms{}", span.name, took.as_millis(), attributes.collect::<String>()))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let shown = Targets::new()
        .with_default(Level::INFO)
        .with_target("ratelimit_runtime::span", Level::DEBUG);
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing_subscriber::registry().with(spans.with_filter(shown)).init();
    ratelimit_runtime::current().context("RATELIMIT_REDIS_URL")?;

    for _ in 0..3 {
        call_partner().instrument(info_span!("request")).await?;
    }

    provider.force_flush()?;
    let spans = exporter.get_finished_spans()?;
    for request in spans.iter().filter(|span| span.parent_span_id == SpanId::INVALID) {
        println!("{}", text(request)?);
        let id = request.span_context.span_id();
        for child in spans.iter().filter(|span| span.parent_span_id == id) {
            println!("  {}", text(child)?);
        }
    }
    Ok(())
}
