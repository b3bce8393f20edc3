//! A process from its start to its first decision: its events, and what its environment sets. The process-wide limiter
//! is built once, from the environment. So each test here runs another one, which does the work and prints what
//! happened, in a process of its own.

use std::collections::HashSet;
use std::convert::Infallible;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use futures::{StreamExt, stream};
use http::{Request, Response};
use metrics::{Gauge, Key};
use ratelimit_runtime::stream::RateLimitStreamExt;
use ratelimit_runtime::web::{RateLimitLayer, RequestLimits};
use ratelimit_runtime::{RateLimiterSettings, current};
use support::log::Log;
use support::server::command;
use tower::{Layer, ServiceExt, service_fn};

use crate::prelude::*;

const URL: &str = "RATELIMIT_REDIS_URL";

const LIMIT: Limit = Limit::sliding("start", 5, MINUTE).on_error(OnError::Deny);
const HERE: Limit = Limit::fixed("here", 1, HOUR).scope(Scope::Process);
const THERE: Limit = Limit::fixed("there", 1, HOUR);

/// Runs a test of this file in a process with this environment, and returns what it prints.
fn output_of(test: &str, environment: &[(&str, &str)]) -> String {
    let mut process = Command::new(std::env::current_exe().expect("this program has a path"));
    process.args([&*format!("startup::{test}"), "--exact", "--nocapture"]);
    let process = process.env_remove(URL).envs(environment.iter().copied());
    let output = process.output().expect("a process");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs a test of this file in a process with this Redis URL, and returns its events without their modules.
fn events_of_a_process(test: &str, url: &str) -> Vec<String> {
    let log = output_of(test, &[(URL, url)]);
    let ours = log.lines().filter_map(|line| line.split_once("ratelimit_runtime::"));
    let events = ours.filter_map(|(level, event)| {
        Some(format!("{} {}", level.trim(), event.split_once(": ")?.1))
    });
    events.collect()
}

#[tokio::test]
async fn a_process_decides_according_to_its_environment() {
    let log = Log::default();
    // Also for the thread of the limiter, which opens the breaker.
    tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false).without_time().init();
    let limiter = current().expect("valid settings");
    let decided = limiter.check(&LIMIT, "key", 1).await;
    wait_until(async || decided.is_ok() || log.text().contains(OPENS)).await;
    println!("{}", log.text());
}

/// The server does not reply in time, and then refuses the password.
#[tokio::test]
async fn a_server_refuses_the_password_after_a_timeout() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.writer()).with_ansi(false);
    // Another test of this process may have set one.
    let is_observed = subscriber.without_time().try_init().is_ok();
    let server = Server::start();
    // Stays logged in.
    let mut connection = server.connection();
    let mut run = |words: &str| command::<redis::Value>(&mut connection, words);
    run("CONFIG SET requirepass old");
    let url = server.url.replace("redis://", "redis://:old@");
    let builder = RateLimiter::builder().redis(url).deadline(Duration::from_millis(100));
    let limiter = builder.build().expect("valid");
    let error = async || match limiter.check(&LIMIT, "key", 0).await {
        Err(Rejection::Unavailable { error, .. }) => error.to_string(),
        decided => format!("{decided:?}"),
    };
    wait_until(async || error().await.contains("allowed: true")).await;
    run("CLIENT PAUSE 600000 WRITE");
    wait_until(async || error().await.contains("probe; cause: no reply")).await;
    run("CONFIG SET requirepass new");
    run("CLIENT KILL TYPE normal");
    wait_until(async || error().await.contains("WRONGPASS")).await;
    let is_reported =
        || log.text().lines().any(|it| it.contains(OPENS) && it.contains("WRONGPASS"));
    wait_until(async || !is_observed || is_reported()).await;
    println!("{}", log.text());
}

#[test]
fn an_event_names_the_newest_cause_of_an_open_breaker() {
    let events = events_of_a_process("a_server_refuses_the_password_after_a_timeout", "");
    let opened: Vec<_> = events.iter().filter(|event| event.contains(OPENS)).collect();
    let [first, last] = opened[..] else { panic!("{events:#?}") };
    assert!(first.contains("no reply from Redis within the deadline"), "{first}");
    assert!(last.contains("WRONGPASS") && last.contains("check the user and password"), "{last}");
}

/// Prints settings of its environment, its events, and the error of a builder that reads none.
#[test]
fn a_process_reads_its_settings() {
    let log = tracing_subscriber::fmt().with_ansi(false).without_time();
    let _guard = tracing::subscriber::set_default(log.finish());
    match RateLimiterSettings::from_environment() {
        Ok(settings) => {
            let RateLimiterSettings { deadline, on_error, instances, max_keys, .. } = settings;
            println!("settings: {deadline:?} {on_error:?} {instances:?} {max_keys:?} {settings:?}");
            let built = settings.builder().and_then(Builder::build);
            println!("built: {:?}", built.as_ref().err());
            let secret = built.ok().and_then(|limiter| limiter.key_secret().ok());
            println!("hash: {:?}", secret.map(|secret| secret.hash("alice").to_string()));
        }
        Err(error) => println!("invalid: {error}"),
    }
    let _ = RateLimiter::builder().key_prefix("shop").build();
}

#[test]
fn a_process_can_have_all_settings_in_its_environment() {
    let output = output_of(
        "a_process_reads_its_settings",
        &[
            (URL, "redis://127.0.0.1:1"),
            ("RATELIMIT_PASSWORD_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")),
            ("RATELIMIT_KEY_SECRET", "one of the secrets"),
            ("RATELIMIT_KEY_PREFIX", "shop"),
            ("RATELIMIT_DEADLINE", "50ms"),
            ("RATELIMIT_ON_ERROR", "deny"),
            ("RATELIMIT_INSTANCES", "4"),
            ("RATELIMIT_MAX_KEYS", ""),
            ("RATELIMIT_RULES", "redis"),
            ("RATELIMIT_DEADLIN", "70ms"),
        ],
    );
    for part in [
        "settings: Some(50ms) Some(Deny) Some(4) None RateLimiterSettings { .. }",
        "built: None",
        // By HMAC-SHA-256 of Python, under the SHA-256 of the secret.
        r#"hash: Some("hashed-bcc86160587faf110b71bd09e4f198da")"#,
        r#"variable="RATELIMIT_DEADLIN" meant="RATELIMIT_DEADLINE""#,
        "a builder does not read RATELIMIT_REDIS_URL",
    ] {
        assert!(output.contains(part), "{output}");
    }
    assert!(!output.contains("one of the secrets"), "{output}");
    let random_hash = || {
        let output = output_of("a_process_reads_its_settings", &[]);
        output.lines().find(|line| line.starts_with("hash: Some(")).expect("a hash").to_owned()
    };
    assert_ne!(random_hash(), random_hash());
}

#[test]
fn an_invalid_setting_is_named_with_its_variable() {
    let path = "write the path of a file";
    let no_url = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (start, variable, value, message) in [
        ("invalid: ", "RATELIMIT_DEADLINE", "50", "has no unit"),
        ("invalid: ", "RATELIMIT_ON_ERROR", "open", "none of `local`, `allow`, `deny`"),
        ("invalid: ", "RATELIMIT_INSTANCES", "-1", "`-1` is not a number in its range"),
        ("built: Some(", "RATELIMIT_ROOT_CERTIFICATES", "-----BEGIN KEY", path),
        ("built: Some(", "RATELIMIT_PASSWORD_FILE", "hunter2", path),
        ("built: Some(", "RATELIMIT_CLIENT_KEY", "/no/key.pem", "set `client_certificate` as well"),
        ("built: Some(", "RATELIMIT_RULES", "/nowhere/rules.toml", "/nowhere/rules.toml"),
        ("built: Some(", "RATELIMIT_PASSWORD_FILE", no_url, "`RATELIMIT_REDIS_URL`"),
        ("built: Some(", "RATELIMIT_KEY_SECRET", "too short", "at least 16 bytes"),
    ] {
        let output = output_of("a_process_reads_its_settings", &[(variable, value)]);
        let (_, error) = output.split_once(start).unwrap_or_else(|| panic!("{output}"));
        assert!(error.contains(message), "{error}");
        if start == "invalid: " {
            assert!(error.contains(variable), "{error}");
            assert!(!output.contains("a builder does not read"), "{output}");
        }
        assert!(!output.contains("BEGIN KEY") && !output.contains("hunter2"), "{output}");
    }
}

#[test]
fn a_configuration_has_the_same_settings() {
    let text = r#"{"redis_url": "redis://10.0.0.5", "key_prefix": "shop", "deadline": "50ms",
        "on_error": "allow", "instances": 4, "max_keys": 100, "rules": "redis"}"#;
    let settings: RateLimiterSettings = serde_json::from_str(text).expect("valid");
    assert_eq!(settings.deadline, Some(Duration::from_millis(50)));
    assert_eq!((settings.on_error, settings.instances), (Some(OnError::Allow), Some(4)));
    settings.builder().and_then(Builder::build).expect("valid");
    for (text, message) in [
        ("deadlin = \"50ms\"", "unknown field `deadlin`"),
        ("deadline = \"50\"", "has no unit"),
        ("on_error = \"open\"", "`local`, `allow`, `deny`"),
    ] {
        let error = toml::from_str::<RateLimiterSettings>(text).expect_err(text).to_string();
        assert!(error.contains(message), "{error}");
    }
}

const OPENS: &str = "Redis receives no requests until it replies to a probe";

const DECIDES: &str = "a_process_decides_according_to_its_environment";

const WILL_COUNT: &str = "INFO rate limits will be counted in the Redis at RATELIMIT_REDIS_URL; the first \
                          decision connects to it store=Redis";

/// A connection that cannot be used is not reported.
#[test]
fn a_process_reports_where_it_counts() {
    let here = "INFO rate limits are counted in this process: RATELIMIT_REDIS_URL is not set store=Embedded";
    assert_eq!(events_of_a_process(DECIDES, ""), [here]);

    let server = Server::start();
    let connected = format!("INFO connected to Redis node=127.0.0.1:{}", server.port());
    assert_eq!(events_of_a_process(DECIDES, &server.url), [WILL_COUNT, &connected]);

    for url in ["redis://127.0.0.1:1", &server.url.replace("redis://", "redis://ann:wrong@")] {
        let events = events_of_a_process(DECIDES, url);
        let [first, warnings @ ..] = &events[..] else { panic!("no events") };
        assert_eq!((&**first, warnings.len()), (WILL_COUNT, 2), "{warnings:#?}");
        for expected in [OPENS, "Redis does not decide"] {
            let warning = format!("WARN {expected}");
            assert!(warnings.iter().any(|event| event.starts_with(&warning)), "{warnings:#?}");
        }
    }
}

#[rate_limit(period = "1h", threshold = 1, scope = "process")]
fn here() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1)]
async fn there() -> Result<(), Rejection> {
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, scope = "process", permit = permit)]
async fn here_with_permit() -> Result<(), Rejection> {
    permit.settle(1);
    Ok(())
}

#[rate_limit(period = "1h", threshold = 1, permit = permit)]
async fn there_with_permit() -> Result<(), Rejection> {
    permit.settle(1);
    Ok(())
}

async fn is_item_admitted(limit: Limit) -> bool {
    let limit = limit.wait(Duration::from_millis(1));
    stream::iter([()]).rate_limited(&limit, "stream").next().await.is_some_and(|item| item.is_ok())
}

async fn is_request_admitted(limit: Limit, is_chosen: bool) -> bool {
    let layer = RateLimitLayer::new();
    let layer = if is_chosen {
        layer.limits(move |_, limits: &mut RequestLimits| {
            limits.add(&limit, "chosen", 1);
            Ok(())
        })
    } else {
        layer.limit(limit, |_| "fixed")
    };
    let handler = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
    let response = layer.layer(handler).oneshot(Request::new(String::new())).await;
    response.expect("infallible").status().is_success()
}

#[tokio::test]
async fn each_kind_of_call_is_decided_by_its_scope() {
    let log = tracing_subscriber::fmt().with_ansi(false).without_time();
    let _guard = tracing::subscriber::set_default(log.finish());
    let mut decided = Vec::new();
    for _ in 0..2 {
        decided.push([
            [here().is_ok(), there().await.is_ok()],
            [here_with_permit().await.is_ok(), there_with_permit().await.is_ok()],
            [is_item_admitted(HERE).await, is_item_admitted(THERE).await],
            [is_request_admitted(HERE, false).await, is_request_admitted(THERE, false).await],
            [is_request_admitted(HERE, true).await, is_request_admitted(THERE, true).await],
        ]);
    }
    println!("decided: {decided:?}");
}

#[test]
fn a_wrong_url_rejects_only_what_redis_would_count() {
    let output =
        output_of("each_kind_of_call_is_decided_by_its_scope", &[(URL, "redis://one,other")]);
    let decided = [[[true, false]; 5], [[false, false]; 5]];
    assert!(output.contains(&format!("decided: {decided:?}")), "{output}");
    let errors: Vec<_> = output.lines().filter(|line| line.contains("ERROR")).collect();
    for error in &errors {
        assert!(error.contains("because the program has a mistake limit=\""), "{error}");
        assert!(error.contains(" error=RATELIMIT_REDIS_URL"), "{error}");
        assert!(error.contains("redis+cluster://"), "{error}");
    }
    let distinct: HashSet<_> = errors.iter().collect();
    assert!(errors.len() > 2 && distinct.len() == errors.len(), "one for each limit: {output}");
}

#[rate_limit(period = "1h", threshold = 100, scope = "process")]
fn limited() -> Result<(), Rejection> {
    Ok(())
}

#[test]
fn the_first_call_of_a_process_ends() {
    let (ended, end) = channel();
    thread::spawn(move || {
        let log = Log::default().writer();
        let limited_log = move || {
            let _ = limited();
            log()
        };
        let subscriber = tracing_subscriber::fmt().with_writer(limited_log).finish();
        let gauge = |_: &Key| Gauge::noop();
        let recorder = GaugeRecorder { described: || _ = limited(), other: |_| (), gauge };
        let result = tracing::subscriber::with_default(subscriber, || {
            metrics::with_local_recorder(&recorder, limited)
        });
        ended.send(result.is_ok()).expect("the test waits");
    });
    println!("admitted: {}", end.recv_timeout(Duration::from_secs(20)).expect("the call ends"));
}

#[test]
fn a_subscriber_and_a_recorder_may_call_limited_functions_at_the_first_call() {
    for url in ["", "redis://127.0.0.1:1", "not a URL"] {
        let output = output_of("the_first_call_of_a_process_ends", &[(URL, url)]);
        assert!(output.contains("admitted: true"), "{output}");
    }
}
