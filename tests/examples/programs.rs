//! Examples that run to their end.

use std::collections::BTreeSet;

use support::server::Server;

use crate::{complaint, example, output};

#[test]
fn quickstart_shows_the_same_on_both_stores() {
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
    for admitted in ["●···············●●●●●✕✕✕✕✕······✕···●", "16 admitted", "11 admitted"]
    {
        assert!(embedded.contains(admitted), "{embedded}");
    }
    for text in [&embedded, &on_redis] {
        assert_eq!(text.matches("too many requests, try again in").count(), 1, "{text}");
        assert_eq!(text.matches("  hi ann").count(), 3, "{text}");
    }
    assert!(!server.ttls().is_empty(), "nothing was counted on Redis");
}

#[test]
fn quickstart_says_why_it_cannot_go_on() {
    let mut without_redis = example("quickstart");
    // Port 1 is not in use on any machine that tests run on, and asked once.
    without_redis.env("RATELIMIT_REDIS_URL", "redis://127.0.0.1:1");
    let text = complaint(without_redis);
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

/// The seconds at which lines begin, and what follows.
fn timed(text: &str) -> Vec<(f64, &str)> {
    let lines = text.lines().filter_map(|line| line.trim_start().split_once(" s  "));
    lines.map(|(at, said)| (at.parse().expect("seconds"), said)).collect()
}

#[test]
fn outbound_client_is_never_refused() {
    let text = output(example("outbound_client"));
    let calls = timed(&text);
    // The last one comes after eleven gaps of a fifth of a second. Tenths are shown.
    assert!(calls.iter().all(|(at, _)| *at < 10.0) && calls[11].0 >= 2.1, "{text}");
    let answered: BTreeSet<_> = calls.into_iter().map(|(_, said)| said.to_owned()).collect();
    let expected = (1..=12).map(|number| format!("call {number:2}: fair in city-{number}"));
    assert_eq!(answered, expected.collect::<BTreeSet<_>>());
}

#[test]
fn outbound_client_says_which_calls_failed() {
    let mut away = example("outbound_client");
    away.env("API_URL", "http://127.0.0.1:1");
    assert!(complaint(away).contains("Error: 12 calls failed"));
}

#[test]
fn background_jobs_share_one_limit() {
    let server = Server::start();
    let mut jobs = example("background_job");
    jobs.env("RATELIMIT_REDIS_URL", &server.url);
    let text = output(jobs);
    let mut sent: Vec<_> = timed(&text).into_iter().map(|(_, said)| said.to_owned()).collect();
    let expected = (1..=12).map(|mail| format!("worker {} sends mail {mail}", (mail - 1) % 3 + 1));
    let mut expected: Vec<_> = expected.collect();
    sent.sort();
    expected.sort();
    assert_eq!(sent, expected);
    // All wait in one line: alone, a worker would be done after three gaps of a fifth of a second.
    let (_, took) = text.trim_end().rsplit_once(" in ").expect("what it took");
    let took: f64 = took.strip_suffix(" s").expect("seconds").parse().expect("a number");
    assert!(took >= 2.1, "{text}");
    let keys = server.ttls();
    assert!(matches!(&keys[..], [(key, _)] if key.contains("mails")), "{keys:?}");
}

#[test]
fn background_job_needs_redis() {
    assert!(complaint(example("background_job")).contains("set RATELIMIT_REDIS_URL"));
    let mut away = example("background_job");
    away.env("RATELIMIT_REDIS_URL", "redis://127.0.0.1:1");
    let text = complaint(away);
    assert!(text.contains("no connection to Redis"), "{text}");
    assert!(text.contains("failed: exit status: 1"), "{text}");
}
