//! Servers that reject what Redis does not, as some managed ones do: every operation works there. Each is a real server
//! behind a proxy. The proxy puts a check before each script, and gives the commands that the server refuses an unknown
//! name.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use ratelimit_runtime::{Builder, Clock};
use support::proxy::relay;
use support::server::Server;

use crate::{denying, denying_builder, use_all_operations};

/// Returns a check, before the first line of a script: a call of Redis with this condition raises this error.
fn check(condition: &str, error: &str) -> String {
    format!(
        "local redis = (function(redis, declared) \
         for _, key in ipairs(KEYS) do declared[key] = true end \
         local function strict(call) return function(command, key, ...) \
         if {condition} then error({error}) end \
         if key then return call(command, key, ...) end return call(command) end end \
         return setmetatable({{ call = strict(redis.call), pcall = strict(redis.pcall) }}, {{ __index = redis }}) \
         end)(redis, {{}}) "
    )
}

/// Starts a proxy before a server that refuses these commands outside of scripts. Returns its URL.
fn start_strict(server: &Server, check: String, refused: &'static [&'static str]) -> String {
    let port = relay(
        server.port(),
        move |client, server| {
            let _ = forward(BufReader::new(client), &server, &check, refused);
        },
        |mut server, mut client| _ = io::copy(&mut server, &mut client),
    );
    format!("redis://127.0.0.1:{port}")
}

fn forward(
    mut client: BufReader<TcpStream>,
    mut server: &TcpStream,
    check: &str,
    refused: &[&str],
) -> io::Result<()> {
    loop {
        let mut command = Vec::new();
        for _ in 0..number(&mut client, '*')? {
            let mut word = vec![0; number(&mut client, '$')?];
            client.read_exact(&mut word)?;
            client.read_exact(&mut [0; 2])?;
            command.push(word);
        }
        if command[0] == b"EVAL" {
            command[1].splice(0..0, check.bytes());
        } else if refused.iter().any(|refused| refused.as_bytes() == command[0]) {
            command[0].splice(0..0, *b"NO");
        }
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            bytes.extend(format!("${}\r\n", word.len()).bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        server.write_all(&bytes)?;
    }
}

/// Reads a line that is a number after `kind`.
fn number(client: &mut impl BufRead, kind: char) -> io::Result<usize> {
    let mut line = String::new();
    client.read_line(&mut line)?;
    let number = line.trim_end().strip_prefix(kind).and_then(|number| number.parse().ok());
    number.ok_or(io::ErrorKind::UnexpectedEof.into())
}

async fn assert_works(builder: Builder) {
    let limiter = builder.build().expect("valid");
    limiter.ping().await.expect("it can decide");
    use_all_operations(&limiter).await;
    limiter.shutdown().await.expect("nothing is lost");
}

/// As Dragonfly does.
#[tokio::test]
async fn every_operation_declares_its_keys() {
    let server = Server::start();
    let error = "'script tried accessing undeclared key, key: ' .. key";
    let url = start_strict(&server, check("key and not declared[key]", error), &[]);
    assert_works(denying_builder(&url)).await;
}

#[tokio::test]
async fn no_operation_needs_a_command_that_is_refused_outside_of_scripts() {
    let server = Server::start();
    let refused = &["TIME", "CLIENT", "SCRIPT", "INFO", "CONFIG", "COMMAND", "WAIT"];
    assert_works(denying_builder(&start_strict(&server, String::new(), refused))).await;
}

#[tokio::test]
async fn a_server_that_rejects_time_in_scripts_needs_the_clock_of_the_client() {
    let server = Server::start();
    let error = "'This Redis command is not allowed from script'";
    let url = start_strict(&server, check("command == 'TIME'", error), &[]);
    let error = denying(&url).ping().await.expect_err("no time").to_string();
    assert!(error.contains("set `clock(Clock::Client)`"), "{error}");
    assert_works(denying_builder(&url).clock(Clock::Client)).await;
}
