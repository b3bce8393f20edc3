//! A Redis that comes back empty: running processes keep the rules, report the loss, and follow the next rules. No
//! process writes rules back, and a process that starts meanwhile follows the code.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ratelimit_runtime::{Limit, OnError, RateLimiter, Rule, Rules, StoreError};
use support::limits::MINUTE;
use support::log::Log;
use support::server::Server;
use support::wait::wait_until;

const API: Limit = Limit::sliding("api", 10, MINUTE);

async fn capacity(limiter: &RateLimiter) -> u64 {
    limiter.peek(&API, "acme", 1).await.expect("a decision").limit
}

async fn write(limiter: &RateLimiter, threshold: Option<u64>) {
    loop {
        let Ok(mut shared) = limiter.operator().shared_rules().await else { continue };
        shared.rules.unset_key("api", "acme");
        if let Some(threshold) = threshold {
            shared.rules.set_key("api", "acme", Rule::new().threshold(threshold)).expect("valid");
        }
        match limiter.operator().share_rules(shared, "alice").await {
            Ok(()) => return,
            Err(StoreError::RulesChanged) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns the gauge of lost rules, if it was set.
fn gauge(snapshotter: &Snapshotter) -> Option<f64> {
    snapshotter.snapshot().into_vec().into_iter().find_map(|(key, .., value)| match value {
        DebugValue::Gauge(value) if key.key().name() == "ratelimit_rules_lost" => {
            Some(value.into())
        }
        _ => None,
    })
}

#[tokio::test]
async fn rules_stay_in_force_when_redis_has_lost_them() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.writer()).finish();
    tracing::subscriber::set_global_default(subscriber).expect("the only test");
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().expect("the only test");
    let warnings = || log.text().matches("Redis has lost the rules").count();
    let mut server = Server::start();
    let builder = server.builder().on_error(OnError::Local).rules(Rules::redis());
    let limiter = builder.clone().build().expect("valid");

    // Rules without an entry have a version, too. Without rules, nothing is lost.
    for (rule, expected) in [(Some(50), 50), (None, 10), (Some(50), 50)] {
        write(&limiter, rule).await;
        wait_until(async || capacity(&limiter).await == expected).await;
    }
    assert_eq!((warnings(), gauge(&snapshotter)), (0, None));

    let port = server.port();
    for (losses, threshold) in [(1, 60), (2, 70)] {
        if losses == 1 {
            server.command::<()>("FLUSHALL");
        } else {
            drop(server);
            server = Server::start_on(port);
        }
        wait_until(async || warnings() == losses).await;
        assert_eq!(gauge(&snapshotter), Some(1.0));
        // Some more looks into Redis.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!((capacity(&limiter).await, warnings()), (threshold - 10, losses));
        let shared = limiter.operator().shared_rules().await.expect("read");
        assert_eq!(shared.version(), "", "no process writes rules back");
        let late = builder.clone().build().expect("valid");
        late.ping().await.expect("ready");
        assert_eq!(capacity(&late).await, 10, "a process that starts follows the code");

        write(&limiter, Some(threshold)).await;
        for limiter in [&limiter, &late] {
            wait_until(async || capacity(limiter).await == threshold).await;
        }
        assert_eq!(gauge(&snapshotter), Some(0.0));
    }
    assert_eq!(warnings(), 2);
}
