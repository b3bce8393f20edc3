//! What the stores promise: the embedded one, Redis, and the two against each other.

#![allow(clippy::unchecked_time_subtraction, reason = "a negative time fails the test")]

mod batches;
mod bounds;
mod by_hand;
mod extremes;
mod faults;
mod leases;
mod life;
mod links;
mod long_logs;
mod mixed;
mod operator;
mod parity;
mod policies;
mod prefixes;
mod refusals;
mod semantics;
mod slots;
mod terms;
mod together;
mod waiting;

use std::time::Duration;

use ratelimit_runtime::{
    Answer, Check, Clock, Decision, Limit, RateLimiter, Rejection, VirtualClock,
};
use support::server::Server;

/// Runs a test body on the embedded store, then on Redis.
macro_rules! on_both_stores {
    ($($(#[$attribute:meta])* async fn $name:ident($timed:ident: Timed) $body:block)*) => {$(
        $(#[$attribute])*
        #[tokio::test]
        async fn $name() {
            let server = support::server::Server::start();
            for $timed in [$crate::Timed::embedded(), $crate::Timed::redis(&server)] {
                println!("{:?}", $timed.limiter);
                $body
            }
            for (key, life) in server.lives() {
                assert!(life > 0, "{key} has no TTL");
            }
        }
    )*};
}

use on_both_stores;

/// A limiter on virtual time, and its clock.
struct Timed {
    limiter: RateLimiter,
    clock: VirtualClock,
}

impl Timed {
    fn embedded() -> Self {
        let clock = VirtualClock::new();
        let limiter = RateLimiter::builder()
            .clock(Clock::Virtual(clock.clone()))
            .build()
            .expect("valid settings");
        Self { limiter, clock }
    }

    fn redis(server: &Server) -> Self {
        let clock = VirtualClock::new();
        let limiter =
            server.builder().clock(Clock::Virtual(clock.clone())).build().expect("valid settings");
        Self { limiter, clock }
    }

    async fn allows(&self, limit: &Limit, cost: u32) -> bool {
        self.decide(limit, cost).await.allowed
    }

    /// Checks a call and gives its decision, whether it was admitted or not.
    async fn decide(&self, limit: &Limit, cost: u32) -> Decision {
        decision(self.limiter.check(limit, "key", cost).await)
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
    }
}

fn decision(answer: Result<Decision, Rejection>) -> Decision {
    match answer {
        Ok(decision) | Err(Rejection::Limited { decision, .. }) => decision,
        Err(other) => panic!("the store did not decide: {other:?}"),
    }
}

/// The futures of a limiter can be sent to another task and hold nothing borrowed.
#[test]
fn futures_are_send_and_own_what_they_need() {
    fn owned<T: Send + 'static>(_: T) {}
    const LIMIT: Limit = Limit::fixed("owned", 1, Duration::from_secs(1));
    let (limiter, key) = (RateLimiter::embedded(), String::from("key"));
    owned::<Check>(limiter.check(&LIMIT, &key, 1));
    owned::<Answer<Decision>>(limiter.refund(&LIMIT, &*key, 1));
    owned::<Answer<()>>(limiter.reset(&LIMIT, key));
}
