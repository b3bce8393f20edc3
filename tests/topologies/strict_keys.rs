//! A server that rejects keys which a call does not declare, like Dragonfly: every operation works there. The test uses
//! a real server behind a proxy. The proxy puts a check of each key before each script, and the check raises the error
//! of Dragonfly.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::spawn;

use ratelimit_runtime::{Limit, Part};
use support::limits::{HOUR, limits};
use support::server::Server;
use tokio::task::JoinSet;

use crate::denying_builder;

/// The check, before the first line of a script.
const CHECK: &str = "local redis = (function(redis, declared) \
     for _, key in ipairs(KEYS) do declared[key] = true end \
     local function strict(call) return function(command, key, ...) \
     if key and not declared[key] then error('script tried accessing undeclared key, key: ' .. key) end \
     if key then return call(command, key, ...) end return call(command) end end \
     return setmetatable({ call = strict(redis.call), pcall = strict(redis.pcall) }, { __index = redis }) \
     end)(redis, {}) ";

/// Starts the proxy, and returns its port.
fn start_strict(server: &Server) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (port, real) = (listener.local_addr().expect("an address").port(), server.port());
    spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", real))) else {
                return;
            };
            let (mut replies, mut back) =
                (server.try_clone().expect("a socket"), client.try_clone().expect("a socket"));
            spawn(move || io::copy(&mut replies, &mut back));
            spawn(move || {
                let _ = forward(BufReader::new(client), &server);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    port
}

/// Forwards commands, and puts the check before the text of scripts.
fn forward(mut client: BufReader<TcpStream>, mut server: &TcpStream) -> io::Result<()> {
    loop {
        let mut command = Vec::new();
        for _ in 0..number(&mut client, '*')? {
            let mut word = vec![0; number(&mut client, '$')?];
            client.read_exact(&mut word)?;
            client.read_exact(&mut [0; 2])?;
            command.push(word);
        }
        if command[0] == b"EVAL" {
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
async fn every_operation_declares_its_keys() {
    let server = Server::start();
    let limiter = denying_builder(&format!("redis://127.0.0.1:{}", start_strict(&server)));
    let limiter = limiter.build().expect("valid");
    limiter.ping().await.expect("it can decide");
    let all: Vec<_> = limits("strict", 10_000_000, HOUR).collect();
    for limit in &all {
        let calls: JoinSet<_> = (0..50).map(|_| limiter.check(limit, "key", 1)).collect();
        assert!(calls.join_all().await.iter().all(Result::is_ok), "{limit:?}");
        limiter.acquire(limit, "key", 5).await.expect("admitted").settle(2);
        limiter.flush().await.expect("settled");
        // Units of a bucket may have refilled.
        assert!(limiter.peek(limit, "key", 1).await.expect("decided").remaining >= 10_000_000 - 52);
        limiter.credit(limit, "key", 2).await.expect("given back");
        limiter.block(limit, "key", HOUR).await.expect("blocked");
        assert!(limiter.unblock(limit, "key").await.expect("unblocked"));
        limiter.reset(limit, "key").await.expect("reset");
    }
    let parts: Vec<_> = all.iter().map(|limit| Part::new(limit, &"key", 1)).collect();
    limiter.check_all(&parts).await.expect("admitted");
    let running = Limit::in_flight("strict", 2).hold(HOUR);
    drop(limiter.acquire(&running, "key", 1).await.expect("admitted"));
    let patient = all[3].wait(HOUR);
    limiter.check(&patient, "key", 1).await.expect("admitted");
    limiter.shutdown().await.expect("nothing is lost");
}
