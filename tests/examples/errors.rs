//! What the examples say if they cannot run: wrong settings, and servers that are away.

use std::net::TcpListener;
use std::process::Command;

use crate::{error_output, example};

const REDIS: &str = "RATELIMIT_REDIS_URL";

const SERVERS: [&str; 7] = ["axum", "actix", "tonic", "poem", "tower_layer", "login", "websocket"];

fn with(name: &str, variable: &str, value: &str) -> Command {
    let mut command = example(name);
    command.env(variable, value);
    command
}

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
