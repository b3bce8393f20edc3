//! A server that rejects keys which a call does not declare, like Dragonfly: every operation works there. The test uses
//! a real server behind a proxy. The proxy puts a check of each key before each script, and the check raises the error
//! of Dragonfly.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::spawn;

use support::server::Server;

use crate::{denying_builder, use_all_operations};

/// The check, before the first line of a script.
const CHECK: &str = "local redis = (function(redis, declared) \
     for _, key in ipairs(KEYS) do declared[key] = true end \
     local function strict(call) return function(command, key, ...) \
     if key and not declared[key] then error('script tried accessing undeclared key, key: ' .. key) end \
     if key then return call(command, key, ...) end return call(command) end end \
     return setmetatable({ call = strict(redis.call), pcall = strict(redis.pcall) }, { __index = redis }) \
     end)(redis, {}) ";

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
    use_all_operations(&limiter).await;
    limiter.shutdown().await.expect("nothing is lost");
}
