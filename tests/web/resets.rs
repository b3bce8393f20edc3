//! The reset that responses report: a client that adds it to the time of its response finds the same moment, until the
//! algorithm moves that moment.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use axum::Router;
use axum::routing::get as route_get;
use ratelimit_runtime::web::RateLimitLayer;
use ratelimit_runtime::{Algorithm, Align, Limit, RateLimiter, VirtualClock};
use support::clocks::embedded_on;
use support::http::{Response, get};
use support::limits::limits;
use support::server::Server;

use crate::{MINUTE, Running, items, reported, serve};

const SECOND_US: u64 = 1_000_000;
const THRESHOLD: u64 = 24;

/// The moment at which a count is reset, in microseconds, by the description of its algorithm.
struct ResetMoment {
    limit: Limit,
    at: u64,
}

impl ResetMoment {
    /// Charges one unit. Returns the moment, which no charge moves to an earlier time.
    fn charge(&mut self, now: u64) -> u64 {
        let period = self.limit.period().as_micros() as u64;
        let is_over = self.at <= now;
        let window = now - now % period;
        let at = match self.limit.algorithm() {
            Algorithm::Fixed if !is_over => self.at,
            Algorithm::Fixed if self.limit.name() == "aligned" => window + period,
            Algorithm::Fixed | Algorithm::Sliding => now + period,
            Algorithm::SlidingCounter => window + 2 * period,
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                self.at.max(now) + period / THRESHOLD
            }
            other => panic!("{other:?} is not described here"),
        };
        assert!(at >= self.at);
        self.at = at;
        at
    }

    /// The moment that responses report when no unit is left: a bucket has its next unit before the reset.
    fn next_unit(&self) -> u64 {
        match self.limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let unit = self.limit.period().as_micros() as u64 / THRESHOLD;
                self.at - unit * (THRESHOLD - 1)
            }
            _ => self.at,
        }
    }
}

/// Serves a route behind a layer with `limit`.
fn server(limit: Limit, limiter: &RateLimiter) -> Running {
    let layer = RateLimitLayer::new().legacy_headers().limit(limit, |_| ());
    let router = Router::new().route("/", route_get(async || "in"));
    serve(router.layer(layer.limiter(limiter.clone())), limiter)
}

/// Sends requests at the same time, each to the next server.
fn burst(addresses: &[SocketAddr], requests: Range<usize>) -> Vec<Response> {
    std::thread::scope(|scope| {
        let ask = |index: usize| move || get(addresses[index % addresses.len()], "/", &[]);
        let sent: Vec<_> = requests.map(|index| scope.spawn(ask(index))).collect();
        sent.into_iter().map(|sent| sent.join().expect("no panic")).collect()
    })
}

/// Returns the remaining units and the seconds of a response.
fn state(response: &Response) -> (i64, u64) {
    let states = items(reported(response).1);
    let [(_, parameters)] = &states[..] else { panic!("{states:?}") };
    let [(_, remaining), (_, seconds)] = parameters[..] else { panic!("{parameters:?}") };
    let seconds = u64::try_from(seconds).expect("not negative");
    let legacy = response.header("x-ratelimit-reset").expect("a legacy header");
    assert_eq!(legacy, seconds.to_string());
    (remaining, seconds)
}

/// Plays bursts, each some time after the one before, and checks every moment that a response reports.
fn play(limit: Limit, limiters: &[RateLimiter], clock: &VirtualClock) {
    let servers: Vec<_> = limiters.iter().map(|limiter| server(limit, limiter)).collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let mut reset = ResetMoment { limit, at: 0 };
    // The moments at which a rejected call can be admitted, as reported since the last admission.
    let mut retries: Vec<u64> = Vec::new();
    let (mut sent, mut rejected) = (0, 0);
    let pauses = [0, 1, 999, 1_000, 1_001, 137, 2_500, 63, 7_777, 400].into_iter().cycle();
    // In each window, bursts reach the limit. Once, all that was counted is forgotten.
    for (step, pause) in pauses.take(90).enumerate() {
        let pause = if step == 60 { 200_003 } else { pause };
        clock.advance(Duration::from_millis(pause));
        let now = clock.now().as_micros() as u64;
        let requests = [1, 3, 1, 8][step % 4];
        let (mut admitted, others): (Vec<_>, Vec<_>) = burst(&addresses, sent..sent + requests)
            .into_iter()
            .partition(|response| response.status == 200);
        sent += requests;
        rejected += others.len();
        admitted.sort_by_key(|response| std::cmp::Reverse(state(response).0));
        for response in &admitted {
            let (moment, (remaining, seconds)) = (reset.charge(now), state(response));
            let moment = if remaining == 0 { reset.next_unit() } else { moment };
            let left = (moment - now).div_ceil(SECOND_US);
            assert_eq!(seconds, left, "{limit:?}, step {step}: {response:?}");
            retries.clear();
        }
        for response in &others {
            retries.push(now + state(response).1 * SECOND_US);
        }
        if let (Some(first), Some(last)) = (retries.iter().min(), retries.iter().max()) {
            assert!(last - first < SECOND_US, "{limit:?}, step {step}: {retries:?}");
        }
    }
    assert!(rejected > 30 && sent - rejected > 60, "{rejected} of {sent} were rejected");
}

fn all_limits() -> impl Iterator<Item = Limit> {
    let aligned = Limit::fixed("aligned", THRESHOLD, MINUTE).align(Align::UTC);
    limits("resets", THRESHOLD, MINUTE).chain([aligned])
}

/// Neither on a boundary of a window nor on that of a second.
fn clock() -> VirtualClock {
    VirtualClock::at(Duration::from_micros(1_800_000_017_345_678))
}

#[test]
fn a_reset_stays_at_its_moment() {
    for limit in all_limits() {
        let clock = clock();
        play(limit, &[embedded_on(&clock)], &clock);
    }
}

/// Two processes share the counts, and each caches rejections.
#[test]
fn a_reset_stays_at_its_moment_for_a_fleet() {
    let redis = Server::start();
    for limit in all_limits() {
        redis::cmd("FLUSHALL").exec(&mut redis.connection()).expect("FLUSHALL");
        let clock = clock();
        play(limit, &[redis.limiter_on(&clock), redis.limiter_on(&clock)], &clock);
    }
}
