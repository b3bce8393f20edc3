//! A `redis-server` of its own for a test: on a free port, stopped on drop.

use std::time::Duration;

use ratelimit_runtime::{Builder, OnError, RateLimiter};
use redis::{Client, Commands, Connection};
use redis_test::server::RedisServer;

/// A running server.
pub struct Server {
    inner: RedisServer,
    /// Where it listens.
    pub url: String,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// # Panics
    ///
    /// When there is no `redis-server`; `tests/run` installs it.
    #[must_use]
    pub fn start() -> Self {
        Self::wait_for(RedisServer::new())
    }

    /// Starts a server on a port that one was on before.
    ///
    /// # Panics
    ///
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_on(port: u16) -> Self {
        Self::wait_for(RedisServer::new_with_addr_and_modules(
            RedisServer::get_addr(port),
            &[],
            false,
        ))
    }

    /// The port it listens on.
    ///
    /// # Panics
    ///
    /// Never: test servers listen on TCP.
    #[must_use]
    pub fn port(&self) -> u16 {
        let redis::ConnectionAddr::Tcp(_, port) = &self.inner.addr else { unreachable!() };
        *port
    }

    fn wait_for(inner: RedisServer) -> Self {
        let redis::ConnectionAddr::Tcp(host, port) = &inner.addr else {
            panic!("the test server listens on TCP, not on {}", inner.addr)
        };
        let url = format!("redis://{host}:{port}");
        let server = Self { inner, url };
        // Starting takes some milliseconds; there is no event to wait for but an answer.
        for _ in 0..500 {
            if server.client().get_connection().is_ok() {
                return server;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server did not answer: {:?}", server.inner.log_file_contents());
    }

    /// A builder for limiters on this server, with a deadline that a busy test machine keeps, and
    /// errors that are seen.
    pub fn builder(&self) -> Builder {
        RateLimiter::builder()
            .redis(&*self.url)
            .deadline(Duration::from_secs(30))
            .on_error(OnError::Deny)
    }

    /// A connection for looking behind the limiter's back.
    ///
    /// # Panics
    ///
    /// When the server is gone.
    #[must_use]
    pub fn connection(&self) -> Connection {
        self.client().get_connection().expect("the test server answers")
    }

    /// Every key with its remaining life in milliseconds, -1 for none.
    ///
    /// # Panics
    ///
    /// When the server is gone.
    #[must_use]
    pub fn lives(&self) -> Vec<(String, i64)> {
        let mut connection = self.connection();
        let keys: Vec<Vec<u8>> = connection.keys("*").expect("KEYS");
        keys.into_iter()
            .map(|key| {
                let life = connection.pttl(&key).expect("PTTL");
                (String::from_utf8_lossy(&key).into_owned(), life)
            })
            // A key may expire between the two commands.
            .filter(|(_, life)| *life != -2)
            .collect()
    }

    /// How many calls of known scripts it has answered.
    ///
    /// # Panics
    ///
    /// When the server is gone.
    #[must_use]
    pub fn script_calls(&self) -> u32 {
        self.script_stat("calls=").map_or(0, |count| count.parse().expect("a count"))
    }

    /// How many microseconds it has spent in them.
    ///
    /// # Panics
    ///
    /// When the server is gone.
    #[must_use]
    pub fn script_micros(&self) -> f64 {
        self.script_stat("usec=").map_or(0.0, |micros| micros.parse().expect("a number"))
    }

    fn script_stat(&self, name: &str) -> Option<String> {
        let info = redis::cmd("INFO").arg("commandstats").query(&mut self.connection());
        let stats: String = info.expect("INFO");
        let stat = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:"))?;
        let value = stat.split(',').find_map(|pair| pair.strip_prefix(name))?;
        Some(value.to_owned())
    }

    fn client(&self) -> Client {
        Client::open(&*self.url).expect("a valid URL")
    }
}

/// Whether a replica has all that this primary has. It waits for what its own connection wrote.
///
/// # Panics
///
/// When the server is gone.
pub fn has_a_copy(primary: &mut Connection) -> bool {
    redis::cmd("PUBLISH").arg("x").arg("x").exec(primary).expect("PUBLISH");
    let copies = redis::cmd("WAIT").arg(1).arg(1_000).query::<u32>(primary);
    copies.is_ok_and(|copies| copies == 1)
}
