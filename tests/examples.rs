//! The examples do what their head comments say.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use support::http::get;
use support::server::Server;

fn example(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--quiet", "--example", name]);
    command.env_remove("RATELIMIT_REDIS_URL").env("NO_COLOR", "1");
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

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
    assert!(!server.lives().is_empty(), "nothing was counted on Redis");
}

#[test]
fn quickstart_says_why_it_cannot_go_on() {
    let mut without_redis = example("quickstart");
    // Port 1 is not in use on any machine that tests run on, and asked once.
    without_redis.env("RATELIMIT_REDIS_URL", "redis://127.0.0.1:1");
    let output = without_redis.output().expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
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

#[test]
fn axum_answers_as_its_curl_lines_say() {
    let mut server = example("axum")
        .env("ADDRESS", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo runs");
    let mut lines = BufReader::new(server.stdout.take().expect("piped")).lines();
    let address = loop {
        let line = lines.next().expect("it says where it listens").expect("UTF-8");
        if let Some(address) = line.strip_prefix("listening on http://") {
            break address.parse().expect("an address");
        }
    };

    for _ in 0..2 {
        let greeting = get(address, "/hi/7", &[]);
        assert_eq!((greeting.status, &*greeting.body), (200, "hi 7\n"));
    }
    let refused = get(address, "/hi/7", &[]);
    assert_eq!(refused.status, 429);
    let wait: u32 = refused.header("retry-after").expect("a wait").parse().expect("seconds");
    assert!((1..=30).contains(&wait), "{wait}");
    assert_eq!(refused.header("cache-control"), Some("no-store"));
    assert!(refused.body.starts_with("too many requests, try again in"), "{}", refused.body);
    assert_eq!(get(address, "/hi/8", &[]).status, 200);

    let search = |key: &str, pages: u32| {
        get(address, &format!("/search?pages={pages}"), &[&format!("x-api-key: {key}")]).status
    };
    assert_eq!(search("secret", 5), 200);
    assert_eq!(search("secret", 1), 429);
    assert_eq!(search("other", 4), 200);
    assert_eq!(search("other", 6), 413);

    // `cargo run` becomes the program it runs, so this is the server.
    server.kill().expect("it still runs");
    server.wait().expect("it ends");
}
