//! A server that rejects keys which a call does not declare, like Dragonfly. The test uses a real server behind a
//! proxy. The proxy puts a check of each key before each script, and the check raises the error of Dragonfly.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::spawn;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Limit, Rejection};
use support::limits::HOUR;
use support::server::Server;
use tokio::time::sleep;

use crate::denying_builder;

/// The check, before the first line of a script.
const CHECK: &str = "local redis = (function(redis, declared) \
     for _, key in ipairs(KEYS) do declared[key] = true end \
     local function strict(call) return function(command, key, ...) \
     if key and not declared[key] then error('script tried accessing undeclared key, key: ' .. key) end \
     if key then return call(command, key, ...) end return call(command) end end \
     return setmetatable({ call = strict(redis.call), pcall = strict(redis.pcall) }, { __index = redis }) \
     end)(redis, {}) ";

/// How many calls a log has before its first segment, whose name the server does not know.
const FIRST_SEGMENT: u32 = 4_096;

/// A server with strict scripts, until `is_lenient` is set.
struct StrictServer {
    port: u16,
    is_lenient: Arc<AtomicBool>,
}

impl StrictServer {
    fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (is_lenient, real) = (Arc::new(AtomicBool::new(false)), server.port());
        let lenient = Arc::clone(&is_lenient);
        spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", real)))
                else {
                    return;
                };
                let (mut replies, mut back) =
                    (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
                spawn(move || io::copy(&mut replies, &mut back));
                let lenient = Arc::clone(&lenient);
                spawn(move || {
                    let _ = forward(BufReader::new(client), &server, &lenient);
                    let _ = server.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, is_lenient }
    }
}

/// Forwards commands, and puts the check before the text of scripts.
fn forward(
    mut client: BufReader<TcpStream>,
    mut server: &TcpStream,
    is_lenient: &AtomicBool,
) -> io::Result<()> {
    loop {
        let mut command = Vec::new();
        for _ in 0..number(&mut client, '*')? {
            let mut word = vec![0; number(&mut client, '$')?];
            client.read_exact(&mut word)?;
            client.read_exact(&mut [0; 2])?;
            command.push(word);
        }
        if !is_lenient.load(Relaxed) && command[0] == b"EVAL" {
            command[1].splice(0..0, CHECK.bytes());
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

#[tokio::test]
async fn a_server_with_strict_scripts_is_refused_at_once_until_it_allows_them() {
    const LIMIT: Limit = Limit::sliding("strict", 100_000, HOUR);
    let server = Server::start();
    let strict = StrictServer::start(&server);
    let limiter = denying_builder(&format!("redis://127.0.0.1:{}", strict.port));
    let limiter = limiter.build().expect("valid");

    let error = limiter.ping().await.expect_err("it refuses keys").to_string();
    assert!(error.contains("undeclared key, key: rl:probe:1"), "{error}");
    assert!(error.contains("--default_lua_flags=allow-undeclared-keys"), "{error}");

    // The first calls can be decided before the server is known.
    let mut calls = 0;
    let rejection = loop {
        if let Err(rejection) = limiter.check(&LIMIT, "key", 1).await {
            break rejection;
        }
        calls += 1;
        assert!(calls < FIRST_SEGMENT, "the log has a segment before the server is refused");
        sleep(Duration::from_millis(1)).await;
    };
    let Rejection::Unavailable { error, .. } = rejection else { panic!("{rejection:?}") };
    assert!(error.to_string().contains("allow-undeclared-keys"), "{error}");

    strict.is_lenient.store(true, Relaxed);
    let start = Instant::now();
    while let Err(rejection) = limiter.check(&LIMIT, "key", 1).await {
        assert!(start.elapsed() < Duration::from_secs(30), "{rejection:?}");
        sleep(Duration::from_millis(10)).await;
    }
    limiter.ping().await.expect("it allows keys");
}
