//! The command `ratelimit`, as a program, on real servers.

mod doctor;
mod operator;
mod prove;
mod usage;

use std::process::{Command, Stdio};

use redis_test::server::RedisServer;

/// Returns the command with these arguments, without a terminal.
fn ratelimit(arguments: &[&str]) -> Command {
    let mut command = support::example::ratelimit();
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Gives a command the certificates of a server in files.
fn with_certificates(command: &mut Command, server: &RedisServer) {
    let files = server.tls_paths.as_ref().expect("the server has TLS");
    command.env("RATELIMIT_ROOT_CERTIFICATES", &files.ca_crt);
    command.env("RATELIMIT_CLIENT_CERTIFICATE", &files.redis_crt);
    command.env("RATELIMIT_CLIENT_KEY", &files.redis_key);
}
