//! Examples that end by themselves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use support::server::Server;

use crate::{error_output, example, output};

#[test]
fn quickstart_prints_the_same_decisions_on_both_stores() {
    let embedded = output(example("quickstart"));
    let server = Server::start();
    let mut on_redis = example("quickstart");
    on_redis.env("RATELIMIT_REDIS_URL", &server.url);
    let on_redis = output(on_redis);

    let picture = |text: &str| {
        let end = text.find("no call").expect("the picture has a legend");
        text[..end].to_owned()
    };
    assert_eq!(picture(&embedded), picture(&on_redis));
    let sliding = "●···············●●●●●✕✕✕✕✕······✕···●";
    for admitted in [sliding, "16 admitted", "11 admitted"] {
        assert!(embedded.contains(admitted), "{embedded}");
    }
    for text in [&embedded, &on_redis] {
        assert_eq!(text.matches("too many requests, try again in").count(), 1, "{text}");
        assert_eq!(text.matches("  hi ann").count(), 3, "{text}");
    }
    assert!(!server.ttls().is_empty(), "no key is on Redis");
}

#[test]
fn quickstart_reports_why_it_fails() {
    let mut without_redis = example("quickstart");
    // No server listens on port 1.
    without_redis.env("RATELIMIT_REDIS_URL", "redis://127.0.0.1:1");
    let text = error_output(without_redis);
    assert!(text.contains("because: no connection to Redis"), "{text}");
}

#[test]
fn spring_style_greets_twice() {
    let text = output(example("spring_style"));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0..2], ["say_hi(1): Hi, user 1!"; 2]);
    assert_eq!(lines[2], "say_hi(1): not so fast: too many requests, try again in 30 seconds");
    assert_eq!(lines[3..5], ["say_hi(2): Hi, user 2!"; 2]);
    assert!(lines[9].starts_with("broadcast(): `greeter.broadcast` admits 3 per 30 s"), "{text}");
}

/// Returns the time in seconds with which each line begins, and the rest of the line.
fn timed_lines(text: &str) -> Vec<(f64, &str)> {
    let lines = text.lines().filter_map(|line| line.trim_start().split_once(" s  "));
    lines.map(|(at, rest)| (at.parse().expect("seconds"), rest)).collect()
}

#[test]
fn outbound_client_makes_all_calls_within_the_rate() {
    let text = output(example("outbound_client"));
    let calls = timed_lines(&text);
    // The last call waits for twelve gaps of a fifth of a second and for the outage. The times are rounded to tenths.
    assert!(calls.iter().all(|(at, _)| *at < 15.0) && calls[11].0 >= 5.0, "{text}");
    assert!(text.contains("the API is unavailable for 3s"), "{text}");
    let responses: BTreeSet<_> = calls.into_iter().map(|(_, line)| line.to_owned()).collect();
    let expected = (1..=12).map(|number| format!("call {number:2}: fair in city-{number}"));
    assert_eq!(responses, expected.collect::<BTreeSet<_>>());
}

/// An API that is unavailable for four seconds from its fifth call on. It keeps the time of each call.
async fn unavailable_api() -> (String, Arc<Mutex<Vec<Instant>>>) {
    let calls: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let kept = Arc::clone(&calls);
    let weather = async move || {
        let mut calls = kept.lock().expect("no panic");
        calls.push(Instant::now());
        let outage = calls.get(4).map(Instant::elapsed);
        if outage.is_some_and(|it| it < Duration::from_secs(4)) {
            // In four seconds, by a clock that is behind.
            let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
            let later = ("retry-after", "Sun, 06 Nov 1994 08:49:41 GMT");
            return (StatusCode::SERVICE_UNAVAILABLE, [date, later]).into_response();
        }
        "fair".into_response()
    };
    let router = Router::new().route("/weather/{city}", get(weather));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, calls)
}

#[tokio::test]
async fn two_outbound_clients_obey_a_retry_after_together() {
    let server = Server::start();
    let (url, calls) = unavailable_api().await;
    let client = || {
        let mut client = example("outbound_client");
        client.env("RATELIMIT_REDIS_URL", &server.url).env("API_URL", &url);
        tokio::task::spawn_blocking(move || output(client))
    };
    for text in [client(), client()] {
        let text = text.await.expect("no panic");
        assert_eq!(timed_lines(&text).len(), 12, "{text}");
    }
    let calls = calls.lock().expect("no panic");
    let after: Vec<_> = calls.iter().map(|at| at.duration_since(calls[4])).collect();
    // The other process obeys within a second. Two more allow for a busy machine.
    let early = Duration::from_secs(3)..Duration::from_secs(4);
    assert!(!after.iter().any(|at| early.contains(at)), "{after:?}");
    assert!(after.iter().filter(|at| **at > Duration::from_secs(4)).count() >= 19, "{after:?}");
}

#[test]
fn llm_budget_admits_what_the_answers_use() {
    let text = output(example("llm_budget"));
    let numbers = |line: &str| -> Vec<u64> {
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let lines: Vec<_> = text.lines().map(numbers).collect();
    let [calls, seconds, estimated, used] = lines[0][..] else { panic!("{text}") };
    assert_eq!(estimated, calls * 1_000);
    assert!(used < estimated / 5, "{text}");
    // 20 estimates fit into a second.
    assert!(calls > 2 * 20 * seconds, "{text}");
}

#[test]
fn outbound_layer_sends_all_requests_within_the_rate() {
    let text = output(example("outbound_layer"));
    let requests = timed_lines(&text);
    assert!(requests.iter().all(|(at, _)| *at < 10.0) && requests[11].0 >= 2.1, "{text}");
    for (number, (_, line)) in requests.iter().enumerate() {
        let is_sent = line.ends_with(&format!("(request {})", number + 1));
        assert!(is_sent && line.contains(": fair in city-"), "{text}");
    }
    assert_eq!(text.matches("reqwest: ").count(), 6, "{text}");
}

#[test]
fn paced_stream_sends_mails_in_order_at_the_rate() {
    let text = output(example("paced_stream"));
    let mails = timed_lines(&text);
    assert!(mails[11].0 >= 2.1 && mails[11].0 < 10.0, "{text}");
    for (number, (_, line)) in mails.iter().enumerate() {
        assert_eq!(*line, format!("mail {} is sent", number + 1));
    }
}

#[test]
fn outbound_client_reports_failed_calls() {
    let mut without_server = example("outbound_client");
    without_server.env("API_URL", "http://127.0.0.1:1");
    assert!(error_output(without_server).contains("Error: 12 calls failed"));
}

#[test]
fn background_jobs_share_one_limit() {
    let server = Server::start();
    let mut jobs = example("background_job");
    jobs.env("RATELIMIT_REDIS_URL", &server.url);
    let text = output(jobs);
    let mut sent: Vec<_> =
        timed_lines(&text).into_iter().map(|(_, line)| line.to_owned()).collect();
    let expected = (1..=12).map(|mail| format!("worker {} sends mail {mail}", (mail - 1) % 3 + 1));
    let mut expected: Vec<_> = expected.collect();
    sent.sort();
    expected.sort();
    assert_eq!(sent, expected);
    // The workers share the rate. With a rate of its own, each would end after three gaps of a fifth of a second.
    let (_, took) = text.trim_end().rsplit_once(" in ").expect("the duration");
    let took: f64 = took.strip_suffix(" s").expect("seconds").parse().expect("a number");
    assert!(took >= 2.1, "{text}");
    let keys = server.ttls();
    assert!(matches!(&keys[..], [(key, _)] if key.contains("mails")), "{keys:?}");
}

/// Takes as long as the hold: the process that is killed says that it holds its slots until then.
#[test]
fn exports_of_a_killed_process_free_their_slots_within_the_hold() {
    let server = Server::start();
    let mut exports = example("export");
    exports.env("RATELIMIT_REDIS_URL", &server.url);
    let text = output(exports);
    let lines = timed_lines(&text);
    let find = |line: &str| {
        let found = lines.iter().position(|(_, shown)| *shown == line);
        found.unwrap_or_else(|| panic!("no `{line}` in {text}"))
    };
    let killed = find("the other process was killed");
    let exported = find("exported the data of acme");
    let count = |lines: &[(f64, &str)], begin: &str| {
        lines.iter().filter(|(_, line)| line.starts_with(begin)).count()
    };
    assert_eq!(count(&lines[..killed], "the other process exports"), 2, "{text}");
    assert!(find("exported the data of globex, which has slots of its own") < killed, "{text}");
    assert_eq!(count(&lines[..killed], "rejected: "), 1, "{text}");
    // The last statement was made at most ten seconds before the kill. A waiting call asks again within about a second.
    assert!(count(&lines[killed..exported], "rejected: ") >= 3, "{text}");
    assert!((19.0..32.0).contains(&(lines[exported].0 - lines[killed].0)), "{text}");
}

#[test]
fn export_fails_without_redis() {
    assert!(error_output(example("export")).contains("set RATELIMIT_REDIS_URL"));
}

#[test]
fn background_job_fails_without_redis() {
    assert!(error_output(example("background_job")).contains("set RATELIMIT_REDIS_URL"));
    let mut without_server = example("background_job");
    without_server.env("RATELIMIT_REDIS_URL", "redis://127.0.0.1:1");
    let text = error_output(without_server);
    assert!(text.contains("no connection to Redis"), "{text}");
    assert!(text.contains("failed: exit status: 1"), "{text}");
}
