//! Units go back to their charge although the clock of the process is behind the clock of another: a count records the
//! charge at the later time.

use std::task::{Context, Waker};
use std::time::Duration;

use ratelimit_runtime::{Limit, RateLimiter, VirtualClock};
use support::limits::MINUTE;
use support::server::Server;

use crate::leases::TERM;
use crate::{decision, wait_until, wait_until_idle};

/// By how much the clock of `late` is behind the clock of `early`.
const LAG: Duration = Duration::from_millis(5);

/// Two processes on one server. The clock of `early` is at the beginning of a window, and the clock of `late` is not.
struct Pair {
    early: RateLimiter,
    late: RateLimiter,
    clocks: [VirtualClock; 2],
}

impl Pair {
    fn start(server: &Server) -> Self {
        // A multiple of a minute, and of a minute and a term.
        let begin = Duration::from_secs(6_060) * 300_000;
        let clocks = [begin, begin - LAG].map(VirtualClock::at);
        let process = |clock: &VirtualClock| server.limiter_on(clock);
        let [early, late] = [process(&clocks[0]), process(&clocks[1])];
        Self { early, late, clocks }
    }

    fn advance(&self, by: Duration) {
        self.clocks.iter().for_each(|clock| clock.advance(by));
    }

    async fn remaining(&self, limit: &Limit) -> u64 {
        decision(self.early.peek(limit, "key", 1).await).remaining
    }
}

/// The limits that record when they were charged. A bucket gives back a little less, for the time of the lag.
const LIMITS: [Limit; 3] = [
    Limit::sliding("lagging", 1_000, MINUTE),
    Limit::fixed("lagging", 1_000, MINUTE),
    Limit::sliding_counter("lagging", 1_000, MINUTE),
];

#[tokio::test]
async fn leased_units_return_to_their_charge() {
    let server = Server::start();
    for limit in LIMITS {
        let pair = Pair::start(&server);
        let leased = limit.lease(50);
        pair.early.check(&leased, "key", 1).await.expect("admitted");
        for _ in 0..20 {
            pair.late.check(&leased, "key", 1).await.expect("admitted");
        }
        assert!(pair.remaining(&leased).await < 1_000 - 21, "units are leased");
        pair.advance(TERM);
        wait_until(async || pair.remaining(&leased).await == 1_000 - 21).await;
    }
}

#[tokio::test]
async fn grants_that_no_call_takes_return_to_their_charge() {
    let server = Server::start();
    for limit in LIMITS {
        let pair = Pair::start(&server);
        let limit = limit.wait(MINUTE);
        pair.early.check(&limit, "key", 1).await.expect("admitted");
        let mut check = Box::pin(pair.late.check(&limit, "key", 10));
        let poll = check.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        wait_until_idle(&pair.late).await;
        assert_eq!(pair.remaining(&limit).await, 1_000 - 11, "{limit:?}");
        drop(check);
        wait_until_idle(&pair.late).await;
        assert_eq!(pair.remaining(&limit).await, 1_000 - 1, "{limit:?}");
    }
}
