//! The processes of a trace: limiters that share a store and a virtual clock.

use std::cell::RefCell;
use std::time::Duration;

use ratelimit_runtime::{Clock, RateLimiter, VirtualClock};
use redis::Commands;
use support::lines::settle_lines;
use support::server::Server;

/// The most processes of a trace.
pub(crate) const MOST_PROCESSES: usize = 8;

/// The processes that share a store and a clock. Each trace has a key of its own.
pub(crate) struct Fleet {
    pub(crate) processes: Vec<RateLimiter>,
    pub(crate) clock: VirtualClock,
    server: Option<RefCell<redis::Connection>>,
}

impl Fleet {
    /// One process on the embedded store.
    pub(crate) fn embedded() -> Self {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let builder = RateLimiter::builder().clock(Clock::Virtual(clock.clone()));
        // A busy test machine must not take a grant from a call that it does not poll for a while.
        let builder = builder.deadline(Duration::from_secs(30));
        Self { processes: vec![builder.build().expect("valid settings")], clock, server: None }
    }

    /// Processes that share a server.
    pub(crate) fn redis(server: &Server) -> Self {
        let clock = VirtualClock::at(Duration::from_secs(1_800_000_000));
        let process = || {
            let builder = server.builder().clock(Clock::Virtual(clock.clone()));
            builder.build().expect("valid settings")
        };
        let processes = (0..MOST_PROCESSES).map(|_| process()).collect();
        let connection = Some(RefCell::new(server.connection()));
        Self { processes, clock: clock.clone(), server: connection }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now().as_micros() as u64
    }

    pub(crate) fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }

    /// Removes the counts of a key, as a server that is full does. Returns whether there is a server.
    pub(crate) fn evict(&self, limit: &str, key: &str) -> bool {
        let Some(server) = &self.server else { return false };
        let mut server = server.borrow_mut();
        let pattern = format!("*:{limit}{{{key}}}*");
        for name in server.keys::<_, Vec<Vec<u8>>>(pattern).expect("KEYS") {
            server.del::<_, ()>(name).expect("DEL");
        }
        true
    }

    pub(crate) async fn settle(&self, processes: usize) {
        for process in &self.processes[..processes] {
            settle_lines(process).await;
        }
    }
}
