//! Wrong settings: the servers among the examples end before they serve, with an error that names the setting.

use std::net::TcpListener;

use crate::{error_output, example};

const SERVERS: [&str; 7] = ["axum", "actix", "tonic", "poem", "tower_layer", "login", "websocket"];

#[test]
fn the_error_of_a_wrong_setting_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    for name in SERVERS {
        let wrong = |variable, value: &str| {
            let mut command = example(name);
            error_output({
                command.env(variable, value);
                command
            })
        };
        let text = wrong("PORT", "many");
        assert!(text.contains("PORT is `many`"), "{name}: {text}");
        let text = wrong("PORT", &port);
        assert!(text.contains(&format!("cannot listen on 127.0.0.1:{port}")), "{name}: {text}");
        let text = wrong("RATELIMIT_REDIS_URL", "http://127.0.0.1");
        assert!(text.contains("Error: RATELIMIT_REDIS_URL\n"), "{name}: {text}");
    }
}

#[test]
fn the_error_of_an_invalid_proxy_names_it() {
    let mut command = example("tower_layer");
    command.env("TRUSTED_PROXIES", "10.0.0.0/8,everybody");
    let text = error_output(command);
    assert!(text.contains("TRUSTED_PROXIES") && text.contains("`everybody`"), "{text}");
}
