//! Examples that end by themselves, and what examples say if they cannot run.

use std::collections::BTreeSet;
use std::net::TcpListener;

use support::example::{error_output, output};
use support::server::Server;

use crate::{REDIS, example, with};

#[test]
fn quickstart_prints_the_same_decisions_on_both_stores() {
    let server = Server::start();
    let embedded = output(example("quickstart"));
    let on_redis = output(with("quickstart", REDIS, &server.url));
    let picture = |text: &str| text.split_once("no call").expect("the legend").0.to_owned();
    assert_eq!(picture(&embedded), picture(&on_redis));
    let timeline = "●···············●●●●●✕✕✕✕✕······✕···●";
    for admitted in [timeline, "16 admitted", "11 admitted"] {
        assert!(embedded.contains(admitted), "{embedded}");
    }
    for text in [&embedded, &on_redis] {
        assert_eq!(text.matches("too many requests, try again in").count(), 1, "{text}");
        assert_eq!(text.matches("  hi ann").count(), 3, "{text}");
    }
    assert!(!server.ttls().is_empty(), "no key is on Redis");
}

#[test]
fn configuration_is_read_by_figment_and_by_config() {
    let text = output(example("configuration"));
    assert!(text.starts_with("port 8080, limits in Embedded\n"), "{text}");
    assert!(text.contains("with a mistake: unknown field: found `deadlin`"), "{text}");
}

#[test]
fn invoice_begins_the_month_of_each_customer() {
    let lines = "acme: 3 converted, more in 2 hours\nglobex: 3 converted, more in 392 hours\n\
                 two hours later, acme: 3 converted, more in 744 hours\n\
                 two hours later, globex: 0 converted, more in 390 hours\n";
    assert_eq!(output(example("invoice")), lines);
}

#[test]
fn repeated_order_is_charged_once() {
    let accepted = [7, 7, 8, 7].map(|id| format!("order {id}: accepted\n")).concat();
    let rejected = "order 9: too many requests, try again in 1 hour\n";
    assert_eq!(output(example("repeated_order")), accepted + rejected + "order 8: accepted\n");
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

#[test]
fn opentelemetry_shows_the_span_of_a_call_within_its_request() {
    let server = Server::start();
    let on_redis = with("opentelemetry", REDIS, &server.url);
    for (program, source, calls) in
        [(example("opentelemetry"), "embedded", 2), (on_redis, "redis", 3)]
    {
        let text = output(program);
        let lines: Vec<_> = text.lines().collect();
        let requests = lines.iter().filter(|line| line.starts_with("request "));
        let end = format!(" ms limit=partner outcome=allowed source={source}");
        let waits = lines.windows(2).filter_map(|pair| {
            let is_child = pair[0].starts_with("request ") && pair[1].ends_with(&end);
            let (_, rest) = pair[1].split_once("  ratelimit.check ").filter(|_| is_child)?;
            rest.strip_suffix(&end)?.parse::<u64>().ok()
        });
        let waits: Vec<_> = waits.collect();
        assert_eq!((requests.count(), waits.len(), lines.len()), (3, calls, 3 + calls), "{text}");
        // Five calls a second; the times are rounded down.
        assert!(waits[calls - 2..].iter().all(|wait| (150..2_000).contains(wait)), "{text}");
    }
}

/// Returns the time in seconds with which each line begins, and the rest of the line.
fn timed_lines(text: &str) -> Vec<(f64, &str)> {
    let lines = text.lines().filter_map(|line| line.trim_start().split_once(" s  "));
    lines.map(|(at, rest)| (at.parse().expect("seconds"), rest)).collect()
}

/// Asserts that there are these lines, in any order.
fn assert_lines(lines: &[(f64, &str)], expected: impl Iterator<Item = String>) {
    let shown: BTreeSet<_> = lines.iter().map(|(_, line)| (*line).to_owned()).collect();
    assert_eq!((lines.len(), shown), (12, expected.collect()));
}

#[test]
fn outbound_client_makes_all_calls_within_the_rate() {
    let text = output(example("outbound_client"));
    let calls = timed_lines(&text);
    // The last call waits for twelve gaps of a fifth of a second and for the outage. The times are rounded to tenths.
    assert!(calls.iter().all(|(at, _)| *at < 15.0) && calls[11].0 >= 5.0, "{text}");
    assert!(text.contains("the API is unavailable for 3s"), "{text}");
    assert_lines(&calls, (1..=12).map(|call| format!("call {call:2}: fair in city-{call}")));
}

#[test]
fn budget_charges_what_the_replies_say_and_warns_once() {
    let text = output(example("budget"));
    let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("acme: ")).collect();
    assert_eq!(lines[0], "$0.0286 for 400 tokens in, 2760 out; $0.0714 left of $0.1000", "{text}");
    assert!(lines[4].starts_with("402, the budget is used up until the month ends, in "), "{text}");
    assert_eq!(lines.len(), 5, "{text}");
    assert_eq!(text.matches("WARN").count(), 1, "{text}");
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
fn obedient_client_is_rejected_at_most_twice() {
    let text = output(example("obedient_client"));
    let requests = timed_lines(&text);
    assert_eq!(requests.len(), 30, "{text}");
    assert!(text.matches("200 OK").count() >= 28 && !text.contains("failed"), "{text}");
    assert!(requests[29].0 >= 1.9, "{text}");
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
fn background_jobs_share_one_limit() {
    let server = Server::start();
    let text = output(with("background_job", REDIS, &server.url));
    let sent = (1..=12).map(|mail| format!("worker {} sends mail {mail}", (mail - 1) % 3 + 1));
    assert_lines(&timed_lines(&text), sent);
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
    let text = output(with("export", REDIS, &server.url));
    let lines = timed_lines(&text);
    let find = |line: &str| {
        let found = lines.iter().position(|(_, shown)| *shown == line);
        found.unwrap_or_else(|| panic!("no `{line}` in {text}"))
    };
    let killed = find("the other process was killed");
    let exported = find("exported the data of acme");
    let count = |from: usize, to: usize, begin: &str| {
        lines[from..to].iter().filter(|(_, line)| line.starts_with(begin)).count()
    };
    assert_eq!(count(0, killed, "the other process exports"), 2, "{text}");
    assert!(find("exported the data of globex, which has slots of its own") < killed, "{text}");
    assert_eq!(count(0, killed, "rejected: "), 1, "{text}");
    // The last statement was made at most ten seconds before the kill. A waiting call asks again within about a second.
    assert!(count(killed, exported, "rejected: ") >= 3, "{text}");
    assert!((19.0..32.0).contains(&(lines[exported].0 - lines[killed].0)), "{text}");
}

// What the examples say if they cannot run: wrong settings, and servers that are away.

const SERVERS: [&str; 7] = ["axum", "actix", "tonic", "poem", "tower_layer", "login", "websocket"];

#[test]
fn the_error_of_a_wrong_setting_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let cannot_listen = format!("cannot listen on 127.0.0.1:{port}");
    for name in SERVERS {
        for (variable, value, words) in [
            ("PORT", "many", "PORT is `many`"),
            ("PORT", &*port, &*cannot_listen),
            (REDIS, "http://127.0.0.1", "Error: RATELIMIT_REDIS_URL\n"),
        ] {
            let text = error_output(with(name, variable, value));
            assert!(text.contains(words), "{name}: {text}");
        }
    }
    let text = error_output(with("tower_layer", "TRUSTED_PROXIES", "10.0.0.0/8,everybody"));
    assert!(text.contains("TRUSTED_PROXIES") && text.contains("`everybody`"), "{text}");
}

/// No server listens on port 1.
#[test]
fn the_error_of_a_program_says_what_is_away() {
    for (name, variable, value, words) in [
        ("quickstart", REDIS, "redis://127.0.0.1:1", "because: no connection to Redis"),
        ("background_job", REDIS, "redis://127.0.0.1:1", "no connection to Redis"),
        ("background_job", REDIS, "redis://127.0.0.1:1", "failed: exit status: 1"),
        ("outbound_client", "API_URL", "http://127.0.0.1:1", "Error: 12 calls failed"),
    ] {
        let text = error_output(with(name, variable, value));
        assert!(text.contains(words), "{name}: {text}");
    }
    for name in ["background_job", "export"] {
        assert!(error_output(example(name)).contains("set RATELIMIT_REDIS_URL"), "{name}");
    }
}
