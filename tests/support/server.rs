//! A real `redis-server` for one test, on a free port, stopped on drop.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Builder, OnError, RateLimiter};
use redis::{Client, Commands, Connection, ConnectionAddr, FromRedisValue};
use redis_test::server::RedisServer;
use redis_test::utils::TlsFilePaths;

use crate::port;
use crate::wait::block_until;

pub struct Server {
    inner: RedisServer,
    pub url: String,
}

impl Server {
    /// Starts a server on a free port, and waits until it replies.
    pub fn start() -> Self {
        Self::start_on(port::free())
    }

    /// Starts a server on a port, as that of a server that was stopped, and waits until it replies.
    pub fn start_on(port: u16) -> Self {
        Self::start_with(port, &[])
    }

    pub fn start_with(port: u16, arguments: &[&str]) -> Self {
        let (address, url) = (RedisServer::get_addr(port), format!("redis://127.0.0.1:{port}"));
        let server = Self { inner: spawn(address, None, None, arguments), url };
        block_until("redis-server replies", || server.client().get_connection().is_ok());
        server
    }

    pub fn id(&self) -> u32 {
        self.inner.process.id()
    }

    pub fn port(&self) -> u16 {
        let ConnectionAddr::Tcp(_, port) = &self.inner.addr else { unreachable!() };
        *port
    }

    pub fn stop(&mut self) {
        self.inner.stop();
    }

    /// Returns a builder for limiters on this server. Its deadline is long enough for a busy test machine, and
    /// calls are rejected if Redis does not decide.
    pub fn builder(&self) -> Builder {
        RateLimiter::builder()
            .redis(&*self.url)
            .deadline(Duration::from_secs(30))
            .on_error(OnError::Deny)
    }

    pub fn connection(&self) -> Connection {
        self.client().get_connection().expect("the test server replies")
    }

    pub fn command<T: FromRedisValue>(&self, words: &str) -> T {
        command(&mut self.connection(), words)
    }

    /// Returns all keys with their TTLs in milliseconds, or -1 for a key without a TTL.
    pub fn ttls(&self) -> Vec<(String, i64)> {
        let mut connection = self.connection();
        let keys: Vec<Vec<u8>> = connection.keys("*").expect("KEYS");
        keys.into_iter()
            .map(|key| {
                let ttl = connection.pttl(&key).expect("PTTL");
                (String::from_utf8_lossy(&key).into_owned(), ttl)
            })
            // A key that expired between the two commands has the TTL -2.
            .filter(|(_, ttl)| *ttl != -2)
            .collect()
    }

    pub fn assert_all_keys_expire(&self) {
        for (key, ttl) in self.ttls() {
            assert!(ttl > 0, "{key} has no TTL");
        }
    }

    /// Returns the number that follows a text in `INFO`; 0 if nothing does.
    pub fn stat(&self, name: &str) -> u64 {
        stat(&mut self.connection(), name)
    }

    pub fn script_calls(&self) -> u64 {
        self.stat("cmdstat_evalsha:calls=")
    }

    /// Returns the microseconds that these scripts took.
    pub fn script_micros(&self) -> f64 {
        let info: String = self.command("INFO commandstats");
        let scripts = info.split_once("cmdstat_evalsha:").map_or("", |(_, scripts)| scripts);
        number_after(scripts, "usec=") as f64
    }

    /// Makes the server hold back everything that writes, until [`Self::resume`]. It still receives.
    pub fn pause_writes(&self) {
        self.command::<()>("CLIENT PAUSE 600000 WRITE");
    }

    pub fn resume(&self) {
        self.command::<()>("CLIENT UNPAUSE");
    }

    fn client(&self) -> Client {
        Client::open(&*self.url).expect("a valid URL")
    }
}

/// Sends a command, whose words are separated by spaces, and returns the reply.
pub fn command<T: FromRedisValue>(connection: &mut Connection, words: &str) -> T {
    let (name, words) = words.split_once(' ').unwrap_or((words, ""));
    let mut command = redis::cmd(name);
    words.split_whitespace().for_each(|word| _ = command.arg(word));
    command.query(connection).unwrap_or_else(|error| panic!("{name} {words}: {error}"))
}

/// Returns the number that follows a text in the `INFO` of a server; 0 if nothing does.
pub fn stat(connection: &mut Connection, name: &str) -> u64 {
    number_after(&command::<String>(connection, "INFO all"), name)
}

fn number_after(text: &str, name: &str) -> u64 {
    let Some((_, rest)) = text.split_once(name) else { return 0 };
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().expect("a number")
}

/// Starts a server that requires TLS with client certificates, and returns its URL.
pub fn start_with_tls() -> (RedisServer, String) {
    let (host, port) = ("127.0.0.1", port::free());
    let address =
        ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None };
    let server = RedisServer::new_with_addr_and_modules(address, &[], true);
    block_until("the server listens", || TcpStream::connect((host, port)).is_ok());
    (server, format!("rediss://{host}:{port}"))
}

/// Waits for up to two seconds until a replica has all writes of the primary, and returns whether it has. A replica
/// reports its offset each second. `WAIT` covers only the writes of its own connection, and a node of a cluster accepts
/// none without the right key.
pub fn is_replicated(primary: &mut Connection) -> bool {
    let mut offsets = || {
        let info: String = command(primary, "INFO replication");
        let after = |text: &str, name: &str| -> Option<u64> {
            let (_, rest) = text.split_once(name)?;
            rest.split(['\r', ',']).next()?.parse().ok()
        };
        let replica = info.lines().find(|line| line.contains(",state=online,"));
        (
            after(&info, "master_repl_offset:").expect("an offset"),
            replica.and_then(|line| after(line, ",offset=")).unwrap_or(0),
        )
    };
    let (written, _) = offsets();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(2) {
        if offsets().1 >= written {
            return true;
        }
        sleep(Duration::from_millis(5));
    }
    false
}

/// Starts a server with arguments, in the folder of its log. Otherwise, it would load what another one has saved in
/// this folder.
pub(crate) fn spawn(
    address: ConnectionAddr,
    settings: Option<&Path>,
    tls: Option<TlsFilePaths>,
    arguments: &[&str],
) -> RedisServer {
    let spawn = |command: &mut Command| {
        let log = command.get_args().skip_while(|argument| *argument != "--logfile").nth(1);
        let folder = log.map(PathBuf::from).and_then(|log| Some(log.parent()?.to_owned()));
        command.arg("--dir").arg(folder.expect("the log of the server is in a folder"));
        command.args(arguments).spawn().expect("redis-server")
    };
    let start = RedisServer::new_with_addr_tls_modules_and_spawner;
    start(address, settings, tls, false, None, &[], spawn)
}
