//! What responses report is what the reference model computes: the remaining units, and a reset that stays at its
//! moment until the algorithm moves it.

use std::cmp::Reverse;
use std::collections::HashMap;

use proptest::prelude::*;
use ratelimit_runtime::Align;
use support::clocks::embedded_on;
use support::http::Response as Answer;
use support::limits::{is_bucket, limits};
use support::model::Model;

use crate::prelude::*;

const THRESHOLD: u64 = 24;

fn server(limit: Limit, limiter: &RateLimiter) -> Running {
    let layer = RateLimitLayer::new().legacy_headers().limit(limit, |_| ());
    serve(Router::new().fallback(async || "in").layer(layer), limiter)
}

fn burst(servers: &[Running], first: usize, requests: usize) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let servers = servers.iter().cycle().skip(first % servers.len()).take(requests);
        let ask = |server: &Running| {
            let address = server.address;
            scope.spawn(move || get(address, "/", &[]))
        };
        let sent: Vec<_> = servers.map(ask).collect();
        sent.into_iter().map(|sent| sent.join().expect("no panic")).collect()
    })
}

fn state(response: &Answer) -> (u64, u64) {
    let states = items(reported(response).1);
    let [(_, parameters)] = &states[..] else { panic!("{states:?}") };
    let [(_, remaining), (_, seconds)] = parameters[..] else { panic!("{parameters:?}") };
    assert_eq!(response.header("x-ratelimit-reset"), Some(&*seconds.to_string()));
    (remaining.cast_unsigned(), seconds.cast_unsigned())
}

/// Plays bursts, each some time after the one before, and compares each response with the model.
fn play(limit: Limit, align: Option<i64>, limiters: &[RateLimiter], clock: &VirtualClock) {
    let servers: Vec<_> = limiters.iter().map(|limiter| server(limit, limiter)).collect();
    let mut model = Model::new(&limit, align);
    let (mut sent, mut rejected) = (0, 0);
    let pauses = [0, 1, 999, 1_000, 1_001, 137, 2_500, 63, 7_777, 400].into_iter().cycle();
    // In each window, bursts reach the limit. Once, all that was counted is forgotten.
    for (step, pause) in pauses.take(90).enumerate() {
        clock.advance(Duration::from_millis(if step == 60 { 200_003 } else { pause }));
        let now = clock.now().as_micros() as u64;
        let requests = [1, 3, 1, 8][step % 4];
        let mut responses = burst(&servers, sent, requests);
        sent += requests;
        responses.sort_by_key(|response| (response.status, Reverse(state(response).0)));
        for response in &responses {
            let decision = model.check(&limit, now, 1);
            let is_empty = decision.remaining == 0 && is_bucket(limit.algorithm());
            let (status, wait) = match (decision.allowed, is_empty) {
                (false, _) => (429, decision.retry_after),
                // The wait for the next unit, and not for all of them.
                (true, true) => (200, model.peek(&limit, now, 1).retry_after),
                (true, false) => (200, decision.reset_after),
            };
            rejected += usize::from(!decision.allowed);
            let seconds = wait.as_micros().div_ceil(1_000_000) as u64;
            let expected = (status, (decision.remaining, seconds));
            let shown = (response.status, state(response));
            assert_eq!(shown, expected, "{limit:?}, step {step}: {response:?}");
        }
    }
    assert!(rejected > 30 && sent - rejected > 60, "{rejected} of {sent} were rejected");
}

fn all_limits() -> impl Iterator<Item = (Limit, Option<i64>)> {
    let aligned = Limit::fixed("aligned", THRESHOLD, MINUTE).align(Align::UTC);
    let small = Limit::token_bucket("small", THRESHOLD, MINUTE).burst(THRESHOLD / 2);
    let plain = limits("resets", THRESHOLD, MINUTE).chain([small]);
    plain.map(|limit| (limit, None)).chain([(aligned, Some(0))])
}

/// In one process, and for a fleet: two processes share the counts, and each caches rejections.
#[test]
fn a_reset_stays_at_its_moment() {
    let redis = Server::start();
    for (limit, align) in all_limits() {
        // Neither on a boundary of a window nor on that of a second.
        let clock = || VirtualClock::at(Duration::from_micros(1_800_000_017_345_678));
        let (alone, clock) = (clock(), clock());
        play(limit, align, &[embedded_on(&alone)], &alone);
        redis.command::<()>("FLUSHALL");
        play(limit, align, &[redis.limiter_on(&clock), redis.limiter_on(&clock)], &clock);
    }
}

// The headers for any name and any numbers: they are structured fields, and different names stay different.

fn fields(limit: Limit) -> [String; 2] {
    let layer = RateLimitLayer::new().limit(limit, |_| ()).limiter(RateLimiter::embedded());
    let inner =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let sent = layer.layer(inner).oneshot(Request::new(String::new()));
    let response = poll_once(sent).expect("infallible");
    ["ratelimit-policy", "ratelimit"]
        .map(|name| response.headers()[name].to_str().expect("ASCII").to_owned())
}

proptest! {
    #[test]
    fn sends_structured_fields(
        names in proptest::collection::hash_set("\\PC{1,5}|[%\"\\\\0-9A-F]{1,4}|[\\x00-\\x7f]{1,3}", 1..4),
        algorithm in prop::sample::select(&support::ALGORITHMS[..]),
        threshold in 1..=999_999_999_999_999_u64,
        period in 1..3_000_000_000_000_000_u64,
        burst in any::<Option<u64>>(),
    ) {
        let period = Duration::from_micros(period);
        let mut names_by_item: HashMap<String, String> = HashMap::new();
        for name in names {
            let Ok(limit) = Limit::new(name.clone().leak(), algorithm, threshold, period) else {
                continue;
            };
            let limit = burst.and_then(|burst| limit.try_burst(burst).ok()).unwrap_or(limit);
            let (capacity, units) = (limit.capacity(), limit.capacity().max(threshold));
            let [policy, state] = fields(limit);
            let window = period.as_micros() * u128::from(units) / u128::from(threshold);
            let window = i64::try_from(window.div_ceil(1_000_000)).expect("small");
            let [(one, quota)] = &items(&policy)[..] else { panic!("{policy}") };
            prop_assert_eq!(&quota[..], [("q".into(), units.cast_signed()), ("w".into(), window)]);
            let [(other, left)] = &items(&state)[..] else { panic!("{state}") };
            prop_assert_eq!(&left[0], &("r".to_owned(), (capacity - 1).cast_signed()));
            prop_assert!(left[1].1 >= 1 && one == other);
            prop_assert_eq!(names_by_item.insert(one.clone(), name), None);
        }
    }
}
