//! The states of each release in Redis, in a file of `tests/stores/states/`: this commit reads them, and decides as the
//! release did. Each line of a file is a state: its bytes when the release wrote it, and the calls that came then.
//! `STATES=write tests/run --test stores states` writes the file of the present version.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ratelimit_runtime::{Limit, VirtualClock};
use redis::Commands;
use serde::{Deserialize, Serialize};
use support::ALGORITHMS;
use support::limits::{HOUR, MINUTE, SECOND, decision, limit};
use support::server::Server;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/stores/states");

/// When the states were written: the calls move on from here.
const START: Duration = Duration::from_secs(1_800_000_000);

/// The period of the limits.
const PERIOD: Duration = HOUR;

#[derive(Serialize, Deserialize)]
struct State {
    what: String,
    limit: Limit,
    /// The key in Redis.
    key: String,
    value: Vec<u8>,
    /// The calls, in microseconds after [`START`].
    calls: Vec<Call>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Call {
    at: u64,
    cost: u64,
    allowed: bool,
    remaining: u64,
    retry_after: u64,
    reset_after: u64,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Lets this commit decide the calls about a state.
async fn decide(server: &Server, state: &State) -> Vec<Call> {
    let mut connection = server.connection();
    let () = connection.set_ex(&state.key, &state.value, 3_600).expect("SET");
    let clock = VirtualClock::at(START);
    let (limiter, mut calls) = (server.limiter_on(&clock), state.calls.clone());
    for call in &mut calls {
        clock.set(START + Duration::from_micros(call.at));
        let result = limiter.acquire(&state.limit, "ann", call.cost).await;
        let decided = decision(result.map(|permit| {
            let decided = permit.decision();
            std::mem::forget(permit);
            decided
        }));
        (call.allowed, call.remaining) = (decided.allowed, decided.remaining);
        [call.retry_after, call.reset_after] =
            [decided.retry_after, decided.reset_after].map(micros);
    }
    let keys: Vec<String> = connection.keys("*").expect("KEYS");
    assert_eq!(keys, [&*state.key], "{}", state.what);
    let () = connection.del(&state.key).expect("DEL");
    calls
}

/// Changes a count, and returns its state.
async fn state(server: &Server, limit: Limit, what: &str) -> State {
    let clock = VirtualClock::at(START - PERIOD / 4);
    let limiter = server.limiter_on(&clock);
    let most = limit.capacity();
    let take = async |cost| limiter.acquire(&limit, "ann", cost).await.expect("admitted");
    match what {
        // Records of one cell are joined.
        "joined" => {
            for _ in 0..1_100 {
                clock.advance(SECOND / 2);
                take(1).await.keep();
            }
        }
        "held" => std::mem::forget(take(most / 2).await),
        _ => {
            take(most / 4).await.keep();
            clock.advance(MINUTE);
            take(most / 4).await.settle(if what == "indebted" { most } else { most / 5 });
        }
    }
    limiter.flush().await.expect("settled");
    if what == "blocked" {
        limiter.block(&limit, "ann", 2 * PERIOD).await.expect("blocked");
    }
    clock.set(START);
    let mut connection = server.connection();
    let [(key, _)] = <[_; 1]>::try_from(server.ttls()).expect("one key");
    let value: Vec<u8> = connection.get_del(&key).expect("GETDEL");
    let calls = [(0, most / 10), (20, most / 3), (25, most / 2), (60, most / 2), (130, most)];
    let call = |(minutes, cost)| {
        let (at, allowed) = (micros(minutes * MINUTE), false);
        Call { at, cost, allowed, remaining: 0, retry_after: 0, reset_after: 0 }
    };
    State { what: what.to_owned(), limit, key, value, calls: calls.map(call).to_vec() }
}

/// Returns states of all kinds, and what this commit decides about them.
async fn states(server: &Server) -> Vec<State> {
    let (few, many) = (40, 1 << 40);
    let mut kinds: Vec<_> = ALGORITHMS
        .into_iter()
        .flat_map(|algorithm| {
            [(few, "charged"), (many, "large"), (few, "blocked"), (few, "indebted")]
                .map(|(threshold, what)| (limit("states", algorithm, threshold, PERIOD), what))
        })
        .collect();
    kinds.push((Limit::sliding("states", 5_000, PERIOD), "joined"));
    kinds.push((Limit::in_flight("states", few).hold(PERIOD), "held"));
    let mut states = Vec::new();
    for (limit, what) in kinds {
        let state = state(server, limit, what).await;
        states.push(State { calls: decide(server, &state).await, ..state });
    }
    states
}

#[tokio::test]
async fn the_states_of_each_release_are_read() {
    let manifest = include_str!("../../Cargo.toml");
    let version = manifest.split("\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
    let own = Path::new(FOLDER).join(format!("{}.jsonl", version.expect("a version")));
    let server = Server::start();
    if std::env::var_os("STATES").is_some() {
        let lines = states(&server)
            .await
            .into_iter()
            .map(|state| serde_json::to_string(&state).expect("JSON") + "\n");
        fs::write(&own, lines.collect::<String>()).expect("written");
    }
    assert!(own.exists(), "no {}: run STATES=write tests/run --test stores states", own.display());
    for file in fs::read_dir(FOLDER).expect("a folder") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("UTF-8");
        let states = text.lines().map(|line| serde_json::from_str::<State>(line).expect(line));
        for state in states {
            let (calls, what) = (decide(&server, &state).await, &state.what);
            assert_eq!(calls, state.calls, "{}, {what}: {:?}", path.display(), state.limit);
        }
        assert!(text.lines().count() > 4 * ALGORITHMS.len(), "{}", path.display());
    }
}
